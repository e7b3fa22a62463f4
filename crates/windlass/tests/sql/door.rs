//! A door in front of a database, for tests that close it: connections to it are passed on, broken off, led elsewhere,
//! or lose one answer on the way.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Passes connections on to a database; closed, it breaks those that are there off and lets no other in.
pub(crate) struct Door {
    pub(crate) address: String,
    frame: Arc<Frame>,
}

struct Frame {
    passing: Mutex<Passing>,
    /// The answer to the next COMMIT does not come through; and the door closes with it.
    loses_answer: AtomicBool,
    then_closes: AtomicBool,
    /// What is said at either end is not passed on, and nobody is told.
    swallows: AtomicBool,
    /// Who came to the door, whether it was open or not.
    knocks: AtomicUsize,
}

struct Passing {
    leads_to: String,
    closed: bool,
    streams: Vec<TcpStream>,
}

impl Door {
    /// `server` is host and port.
    pub(crate) fn to(server: &str) -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let passing = Passing { leads_to: server.to_owned(), closed: false, streams: Vec::new() };
        let passing = Mutex::new(passing);
        let frame = Arc::new(Frame {
            passing,
            loses_answer: false.into(),
            then_closes: false.into(),
            swallows: false.into(),
            knocks: 0.into(),
        });
        let of_thread = Arc::clone(&frame);
        std::thread::spawn(move || {
            for here in listener.incoming().map_while(Result::ok) {
                of_thread.knocks.fetch_add(1, Ordering::SeqCst);
                let mut passing = of_thread.passing.lock().unwrap();
                let Some(there) = (!passing.closed).then(|| TcpStream::connect(&passing.leads_to)) else { continue };
                // A server that is down is like a closed door.
                let Ok(there) = there else { continue };
                passing.streams.extend([here.try_clone().unwrap(), there.try_clone().unwrap()]);
                let (back, forth) = (here.try_clone().unwrap(), there.try_clone().unwrap());
                let (asked, answered) = (Arc::clone(&of_thread), Arc::clone(&of_thread));
                let lost = Arc::<AtomicBool>::default();
                let is_lost = Arc::clone(&lost);
                std::thread::spawn(move || pass(here, there, &asked, |bytes| asked.lets_ask(bytes, &lost)));
                std::thread::spawn(move || pass(forth, back, &answered, |_| answered.lets_answer(&is_lost)));
            }
        });
        Door { address, frame }
    }

    pub(crate) fn close(&self) {
        let mut passing = self.frame.passing.lock().unwrap();
        passing.closed = true;
        for stream in passing.streams.drain(..) {
            // One whose other end went first is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn open(&self) {
        self.frame.passing.lock().unwrap().closed = false;
    }

    /// Nobody is refused and nobody is answered, as where a cable was pulled.
    pub(crate) fn swallow(&self) {
        self.frame.swallows.store(true, Ordering::SeqCst);
    }

    /// Connections that lost something on the way are broken off; those that come are passed on again.
    pub(crate) fn stop_swallowing(&self) {
        self.close();
        self.frame.swallows.store(false, Ordering::SeqCst);
        self.open();
    }

    /// How many connections were tried.
    pub(crate) fn knocks(&self) -> usize {
        self.frame.knocks.load(Ordering::SeqCst)
    }

    /// Whoever comes from now on is led to this server.
    pub(crate) fn lead_to(&self, server: &str) {
        self.frame.passing.lock().unwrap().leads_to = server.to_owned();
    }

    /// Loses the answer to the next COMMIT, with its connection; and closes, so that nobody can ask what became of it.
    pub(crate) fn lose_answer(&self, and_close: bool) {
        self.frame.then_closes.store(and_close, Ordering::SeqCst);
        self.frame.loses_answer.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.frame.passing.lock().unwrap().closed
    }

    /// Whether the answer that was to be lost is.
    pub(crate) fn has_lost_answer(&self) -> bool {
        !self.frame.loses_answer.load(Ordering::SeqCst)
    }
}

impl Frame {
    /// What a client says goes through; its answer may not.
    fn lets_ask(&self, bytes: &[u8], lost: &AtomicBool) -> bool {
        // Transactions begin with READ COMMITTED, which is no commit.
        let commits = |at: usize| bytes[at..].starts_with(b"COMMIT") && bytes.get(at + 6) != Some(&b'T');
        if (0..bytes.len()).any(commits) && self.loses_answer.swap(false, Ordering::SeqCst) {
            lost.store(true, Ordering::SeqCst);
        }
        true
    }

    /// The database has done what it was asked for, and nobody hears of it.
    fn lets_answer(&self, lost: &AtomicBool) -> bool {
        if lost.load(Ordering::SeqCst) && self.then_closes.load(Ordering::SeqCst) {
            self.passing.lock().unwrap().closed = true;
        }
        !lost.load(Ordering::SeqCst)
    }
}

/// The first bytes that must not go through end the connection: they were said, and nobody heard them.
fn pass(mut from: TcpStream, mut to: TcpStream, frame: &Frame, goes_through: impl Fn(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        if read > 0 && frame.swallows.load(Ordering::SeqCst) {
            continue;
        }
        if read == 0 || !goes_through(&buffer[..read]) || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // Whoever waits at either end hears of it.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
