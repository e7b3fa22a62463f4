//! Following a run: one line for each finished job, with its whole output, until the run ends.
//!
//! The engine drops what happened into a mailbox and never waits. A follower that does not read is cut off once
//! 64 MiB wait for it, with a line that says so; it may follow again and loses only what it was told to have lost.
//! Output that lies in a file is read when its turn comes, a piece at a time.

use super::app::{App, Call, First, blocking, race, stopping};
use super::problem::Problem;
use super::runs::or_ended;
use crate::api::{self, base64};
use crate::engine::event::{Event, Followed, FollowedJob, Follower};
use crate::error::{Failure, Kind};
use crate::runner::Stream;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use hyper::body::Frame;
use serde::Serialize;
use std::convert::Infallible;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// What may wait for one follower.
const MAILBOX_MAX: usize = 64 << 20;
/// What a message weighs besides its bytes.
const OVERHEAD: usize = 256;
/// Lines are handed to the connection in pieces of about this size, of which few wait.
const PIECE: usize = 64 << 10;
/// A file is read in pieces whose base64 joins without padding.
const FILE_PIECE: usize = 48 << 10;

pub(super) async fn follow(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let run = call.run()?;
    let place = call.app.stream()?;
    let (mailbox, letters) = mailbox();
    let follower = Follower(Box::new(move |what| mailbox.put(what)));
    let asked = call.app.ask(|answer| Event::Follow { run, follower, answer });
    let info = or_ended(&call.app, run, call.app.unless_stopped(asked).await).await?;
    let (pieces, body) = mpsc::channel(2);
    let writer = Writer { app: call.app.clone(), letters, pieces, text: Vec::new(), _place: place };
    let over = info.counts.ended.then(|| api::Run::from(&info));
    tokio::spawn(async move {
        // The client that has gone away needs no more lines.
        let _ = writer.write(over).await;
    });
    let mut response = Response::new(Body::new(Pieces(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(api::NDJSON));
    Ok(response)
}

/// The engine's end of a mailbox.
pub(super) struct Mailbox {
    letters: mpsc::UnboundedSender<Followed>,
    level: Arc<Level>,
}

/// The follower's end.
pub(super) struct Letters {
    letters: mpsc::UnboundedReceiver<Followed>,
    level: Arc<Level>,
}

#[derive(Default)]
struct Level {
    bytes: AtomicUsize,
    overflowed: AtomicBool,
}

pub(super) fn mailbox() -> (Mailbox, Letters) {
    let (send, receive) = mpsc::unbounded_channel();
    let level = Arc::new(Level::default());
    (Mailbox { letters: send, level: level.clone() }, Letters { letters: receive, level })
}

impl Mailbox {
    /// Whether anybody would take a letter.
    pub(super) fn is_read(&self) -> bool {
        !self.letters.is_closed() && !self.level.overflowed.load(Ordering::Acquire)
    }

    /// Called by the engine: takes the letter or says that the follower is gone; never waits.
    pub(super) fn put(&self, letter: Followed) -> bool {
        if self.level.overflowed.load(Ordering::Acquire) {
            return false;
        }
        let weight = weight(&letter);
        if self.level.bytes.fetch_add(weight, Ordering::AcqRel) + weight > MAILBOX_MAX {
            self.level.overflowed.store(true, Ordering::Release);
            return false;
        }
        self.letters.send(letter).is_ok()
    }
}

impl Letters {
    pub(super) async fn next(&mut self) -> Option<Followed> {
        let letter = self.letters.recv().await?;
        self.level.bytes.fetch_sub(weight(&letter), Ordering::AcqRel);
        Some(letter)
    }

    /// Why no more letters come.
    pub(super) fn why_silent(&self) -> Failure {
        if self.level.overflowed.load(Ordering::Acquire) {
            let text = format!(
                "the follower fell {} MiB behind and was let go; jobs from here on are not told",
                MAILBOX_MAX >> 20
            );
            return Failure::new(Kind::TryLater, text).hint("follow again; the archive has what was missed");
        }
        Failure::new(Kind::TryLater, "the engine has ended").hint("follow again: another may be taking over")
    }
}

fn weight(letter: &Followed) -> usize {
    OVERHEAD
        + match letter {
            Followed::Job(job) => {
                job.data.len() + job.error.len() + job.output.stdout.head.len() + job.output.stderr.head.len()
            }
            Followed::Change(change) | Followed::Begun(change) => change.data.len() + change.error.len(),
            Followed::Ended(_) | Followed::Amended { .. } => 0,
        }
}

/// The client is gone.
struct Gone;

/// Turns letters into lines for one client.
struct Writer {
    app: Arc<App>,
    letters: Letters,
    pieces: mpsc::Sender<Bytes>,
    /// Lines that were not handed over yet.
    text: Vec<u8>,
    _place: OwnedSemaphorePermit,
}

impl Writer {
    async fn write(mut self, over: Option<api::Run>) -> Result<(), Gone> {
        if let Some(ended) = over {
            return self.last_line(&api::FollowLine::Ended { ended: Box::new(ended) }).await;
        }
        loop {
            if self.letters.letters.is_empty() {
                self.hand_over().await?;
            }
            // Every way out of the wait is named: a letter, the client's end, the server's.
            let gone = self.pieces.clone();
            let letter = race(self.letters.next(), race(gone.closed(), self.app.stopped())).await;
            match letter {
                First::Left(Some(Followed::Job(job))) => self.job_line(job).await?,
                // Told to watchers only.
                First::Left(Some(Followed::Change(_) | Followed::Begun(_) | Followed::Amended { .. })) => {}
                First::Left(Some(Followed::Ended(info))) => {
                    return self.last_line(&api::FollowLine::Ended { ended: Box::new(api::Run::from(&info)) }).await;
                }
                First::Left(None) => return self.broken(self.letters.why_silent()).await,
                First::Right(First::Left(())) => return Err(Gone),
                First::Right(First::Right(())) => return self.broken(stopping()).await,
            }
        }
    }

    async fn broken(&mut self, failure: Failure) -> Result<(), Gone> {
        let error = Problem::from(failure).document();
        self.last_line(&api::FollowLine::Broken { error }).await
    }

    async fn last_line(&mut self, line: &impl Serialize) -> Result<(), Gone> {
        self.json(line);
        self.text.push(b'\n');
        self.hand_over().await
    }

    async fn job_line(&mut self, job: FollowedJob) -> Result<(), Gone> {
        #[derive(Serialize)]
        struct Head {
            job: String,
            state: &'static str,
            error: String,
            #[serde(flatten)]
            data: api::Data,
            stdout_total: u64,
            stderr_total: u64,
        }
        let output = job.output;
        self.json(&Head {
            job: job.id.to_string(),
            state: job.state.word(),
            error: job.error,
            data: api::Data::new(&job.data),
            stdout_total: output.stdout.total,
            stderr_total: output.stderr.total,
        });
        // The object goes on: its streams may be longer than memory should hold.
        self.text.pop();
        self.text.extend_from_slice(b",\"stdout_base64\":\"");
        self.stream(output.stdout).await?;
        self.text.extend_from_slice(b"\",\"stderr_base64\":\"");
        self.stream(output.stderr).await?;
        self.text.extend_from_slice(b"\"}\n");
        if self.text.len() >= PIECE { self.hand_over().await } else { Ok(()) }
    }

    async fn stream(&mut self, stream: Stream) -> Result<(), Gone> {
        let path = stream.file.as_ref().map(|name| self.app.dir.output().join(name));
        // A file that retention took meanwhile leaves what was kept beside it.
        let file = match path {
            Some(path) => blocking(move || File::open(&path).map_err(|e| Failure::io("cannot open", &e))).await.ok(),
            None => None,
        };
        let Some(file) = file.map(Arc::new) else {
            base64::encode_into(&stream.head, &mut self.text);
            return Ok(());
        };
        let mut at = 0;
        loop {
            let from = file.clone();
            let piece = blocking(move || read_piece(&from, at).map_err(|e| Failure::io("cannot read", &e))).await;
            // What cannot be read ends the stream here; the total tells that something is missing.
            let piece = piece.unwrap_or_default();
            at += piece.len() as u64;
            base64::encode_into(&piece, &mut self.text);
            if piece.len() < FILE_PIECE {
                return Ok(());
            }
            self.hand_over().await?;
        }
    }

    /// Waits until the connection takes what there is, so that a slow client slows only its own writer.
    async fn hand_over(&mut self) -> Result<(), Gone> {
        if self.text.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.text));
        match race(self.pieces.send(piece), self.app.stopped()).await {
            First::Left(sent) => sent.map_err(|_| Gone),
            First::Right(()) => Err(Gone),
        }
    }

    fn json(&mut self, document: &impl Serialize) {
        // Writing to memory cannot fail, and these documents have nothing that JSON lacks.
        let _ = serde_json::to_writer(&mut self.text, document);
    }
}

/// A piece of exactly `FILE_PIECE` bytes, or the shorter end of the file.
fn read_piece(file: &File, at: u64) -> std::io::Result<Vec<u8>> {
    let mut piece = vec![0; FILE_PIECE];
    let mut length = 0;
    while length < piece.len() {
        match file.read_at(&mut piece[length..], at + length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    piece.truncate(length);
    Ok(piece)
}

/// A body of pieces; dropping it tells the writer that the client is gone.
pub(super) struct Pieces(pub(super) mpsc::Receiver<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Output;
    use windlass_core::job::{JobId, Origin};
    use windlass_core::life_cycle::State;

    fn letter(bytes: usize) -> Followed {
        let stdout = Stream { head: vec![b'x'; bytes], file: None, total: bytes as u64 };
        let id = JobId { origin: Origin::from_random(1), offset: 0 };
        let output = Output { stdout, ..Output::default() };
        Followed::Job(FollowedJob { id, state: State::Succeeded, error: String::new(), output, data: Vec::new() })
    }

    #[test]
    fn a_mailbox_is_bounded_and_stays_closed_once_it_overflowed() {
        let (mailbox, mut letters) = mailbox();
        let mut taken = 0;
        while mailbox.put(letter(1 << 20)) {
            taken += 1;
            assert!(taken <= 64, "64 MiB are the limit");
        }
        assert_eq!(taken, 63, "the letters weigh a little more than their bytes");
        while letters.letters.try_recv().is_ok() {}
        assert!(!mailbox.put(letter(1)), "a gap must not be papered over");
    }

    #[test]
    fn a_reader_makes_room() {
        let (mailbox, mut letters) = mailbox();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..200 {
            assert!(mailbox.put(letter(1 << 20)));
            runtime.block_on(letters.next()).unwrap();
        }
        drop(letters);
        assert!(!mailbox.put(letter(1)), "nobody listens");
    }
}
