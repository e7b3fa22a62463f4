//! Who says that there may be work in a database: datagrams on an address of the config, and PostgreSQL itself.
//!
//! A nudge is a hint and nothing more: what it says is not read, one that is lost costs the time until the store is
//! looked at anyway, and a flood costs a bounded number of looks. This file must not look itself: the engine does.

use crate::engine::Event;
use crate::error::{Failure, Kind};
use crate::inbox::watch::Bell;
use crate::log::{Level, Log};
use crate::store::StoreError;
use crate::store::sql::{self, Listened, SqlOptions};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// So many looks may follow each other at once, and then one each so often: in no second more than twenty.
const AT_ONCE: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(67);
/// So many datagrams are taken from the kernel for one look; more wait for the next.
const DATAGRAMS_MOST: usize = 4096;

/// After a connection was lost, or could not be made, another is tried after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// The same where words do not come through, which rarely changes.
const IN_VAIN: Duration = Duration::from_secs(600);

const NO_WORDS: &str = "the database says when there is work, and its words do not come through: a pooler between \
     transactions passes none on. The table is looked at now and then; [nudge] udp is quicker";

/// The threads that wait for nudges.
#[derive(Debug, Default)]
pub struct Nudges {
    listeners: Vec<Listener>,
}

struct Listener {
    /// Makes its thread end.
    end: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listener")
    }
}

impl Nudges {
    /// Waits for datagrams where there is an address for them, and for the words of a database that has some.
    pub fn start(
        udp: Option<SocketAddr>,
        store: Option<SqlOptions>,
        events: &Sender<Event>,
        log: &Log,
    ) -> Result<Nudges, Failure> {
        // Whoever says so, and in however many ways: the looks are those of one server.
        let (mut listeners, pace) = (Vec::new(), Pace::default());
        if let Some(address) = udp {
            listeners.push(await_datagrams(address, pace.clone(), events.clone(), log.clone())?);
        }
        if let Some(options) = store {
            listeners.push(await_words(options, pace, events.clone(), log.clone())?);
        }
        Ok(Nudges { listeners })
    }
}

impl Drop for Nudges {
    fn drop(&mut self) {
        for listener in &mut self.listeners {
            (listener.end)();
            if let Some(thread) = listener.thread.take() {
                // It can only have panicked, and then it has said so.
                let _ = thread.join();
            }
        }
    }
}

/// A connection of its own, on a thread of its own, for as long as there is one.
fn await_words(options: SqlOptions, pace: Pace, events: Sender<Event>, log: Log) -> Result<Listener, Failure> {
    let cannot = |e: std::io::Error| Failure::io("cannot start the thread that listens to the database", &e);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let ending = Arc::<Notify>::default();
    let told = Arc::clone(&ending);
    let thread = std::thread::Builder::new().name("listen".into()).spawn(move || {
        runtime.spawn(listen_on(options, pace, events, log));
        runtime.block_on(told.notified());
    });
    Ok(Listener { end: Box::new(move || ending.notify_one()), thread: Some(thread.map_err(cannot)?) })
}

/// Listens, and again where the connection is lost. What was said meanwhile is made up for by a look at once.
async fn listen_on(options: SqlOptions, pace: Pace, events: Sender<Event>, log: Log) {
    let mut said = false;
    loop {
        let heard = || {
            let (rest, events) = (pace.look(Instant::now()), events.clone());
            async move {
                tokio::time::sleep(rest).await;
                events.send(Event::Look).is_ok()
            }
        };
        let mut again = AGAIN;
        match sql::listen(&options, heard).await {
            Ok(Listened::Ended) => said = false,
            Ok(Listened::InVain) => {
                again = IN_VAIN;
                if !std::mem::replace(&mut said, true) {
                    log.warn(NO_WORDS);
                }
            }
            // The engine says of itself that the database is away.
            Err(StoreError::Away(_)) => {}
            Err(error) if !std::mem::replace(&mut said, true) => {
                log.warn(format!("cannot listen to the database, which is looked at now and then: {error}"));
            }
            Err(_) => {}
        }
        tokio::time::sleep(again).await;
    }
}

fn await_datagrams(address: SocketAddr, pace: Pace, events: Sender<Event>, log: Log) -> Result<Listener, Failure> {
    let taken = |e: std::io::Error| {
        Failure::io(format_args!("cannot wait for datagrams on {address}"), &e).hint("is [nudge] udp right, and free?")
    };
    let socket = UdpSocket::bind(address).map_err(taken)?;
    socket.set_nonblocking(true).map_err(taken)?;
    let address = socket.local_addr().map_err(taken)?;
    log.say(Level::Info, "waiting for datagrams", vec![("address", address.to_string().into())]);
    let (bell, ending) = (Bell::new()?, Arc::<AtomicBool>::default());
    let (heard, told) = (bell.clone(), Arc::clone(&ending));
    let end = move || {
        ending.store(true, Ordering::Release);
        bell.ring();
    };
    let thread = std::thread::Builder::new().name("nudge".into()).spawn(move || {
        if let Err(failure) = listen(&socket, &heard, &told, &pace, &events) {
            // The store is looked at without nudges, too, only later.
            log.error(format!("datagrams are no longer awaited: {failure}"));
        }
    });
    let thread = thread.map_err(|e| Failure::io("cannot start the thread that waits for datagrams", &e))?;
    Ok(Listener { end: Box::new(end), thread: Some(thread) })
}

fn listen(
    socket: &UdpSocket,
    bell: &Bell,
    ending: &AtomicBool,
    pace: &Pace,
    events: &Sender<Event>,
) -> Result<(), Failure> {
    loop {
        bell.wait_with(socket)?;
        if ending.load(Ordering::Acquire) {
            return Ok(());
        }
        if !drained(socket)? {
            continue;
        }
        // What comes meanwhile waits in the kernel or is dropped there: one look more is all that it could ask for.
        let rest = pace.look(Instant::now());
        if !rest.is_zero() {
            bell.wait_up_to(rest)?;
        }
        if ending.load(Ordering::Acquire) || events.send(Event::Look).is_err() {
            return Ok(());
        }
    }
}

/// Takes what has come; true where that was anything.
fn drained(socket: &UdpSocket) -> Result<bool, Failure> {
    for taken in 0..DATAGRAMS_MOST {
        match socket.recv(&mut [0; 1]) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(taken > 0),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::new(Kind::Io, format!("cannot read a datagram: {error}"))),
        }
    }
    Ok(true)
}

/// Spreads looks: a few at once, then one in each interval, by all who share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// When the looks that were made are paid for.
    paid_at: Arc<Mutex<Option<Instant>>>,
}

impl Pace {
    /// Notes a look, and tells how long it has to wait.
    pub(crate) fn look(&self, now: Instant) -> Duration {
        let mut paid_at = self.paid_at.lock().unwrap_or_else(PoisonError::into_inner);
        let paid = paid_at.filter(|paid| *paid > now).unwrap_or(now) + BETWEEN_LOOKS;
        *paid_at = Some(paid);
        (paid - now).saturating_sub(BETWEEN_LOOKS * AT_ONCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// An address that nobody has now.
    fn free() -> SocketAddr {
        UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    #[test]
    fn a_flood_costs_twenty_looks_a_second() {
        let (begun, pace) = (Instant::now(), Pace::default());
        let of_the_database = pace.clone();
        let mut now = begun;
        let mut looks = Vec::new();
        while now < begun + Duration::from_secs(60) {
            // Datagrams and the database's words in turn: a flood of both costs no more than one of either.
            now += if looks.len() % 2 == 0 { pace.look(now) } else { of_the_database.look(now) };
            looks.push(now);
        }
        for (at, first) in looks.iter().enumerate() {
            let within = looks[at..].iter().take_while(|look| **look < *first + Duration::from_secs(1)).count();
            assert!(within <= 20, "{within} looks in one second");
        }
        assert!(looks.len() > 60 * 14, "{} looks in a minute", looks.len());
        assert_eq!(pace.look(now + Duration::from_secs(1)), Duration::ZERO, "after a rest there is none to wait for");
    }

    #[test]
    fn a_datagram_of_any_content_is_a_look() {
        let (events, told) = channel();
        let address = free();
        let nudges = Nudges::start(Some(address), None, &events, &Log::off()).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for content in [&b""[..], b"1", &[7; 2000]] {
            sender.send_to(content, address).unwrap();
            assert!(matches!(told.recv_timeout(Duration::from_secs(60)), Ok(Event::Look)));
        }
        drop(nudges);
        drop(events);
        assert!(told.recv().is_err(), "nobody is left who could say anything");
    }

    #[test]
    fn an_address_that_is_taken_is_told() {
        let (events, _told) = channel();
        let taken = free();
        let first = Nudges::start(Some(taken), None, &events, &Log::off()).unwrap();
        let failure = Nudges::start(Some(taken), None, &events, &Log::off()).unwrap_err();
        assert!(failure.text.contains(&taken.to_string()), "{failure}");
        drop(first);
    }
}
