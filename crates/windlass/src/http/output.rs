//! What a job wrote: as it is kept, or as it comes.
//!
//! Whoever follows a job has what it writes put into its files at once, and the kernel tells when those grow. A file is
//! followed to the end of its head: behind that later bytes may overwrite earlier ones, so the rest comes when the
//! attempt has ended, out of the archive, as does everything of jobs that no launcher has.

use super::app::{App, Call, First, blocking, race, stopping};
use super::follow::{Letters, Pieces, mailbox};
use super::jobs;
use super::problem::Problem;
use crate::api;
use crate::engine::event::{Change, Event, Followed, Follower};
use crate::error::Failure;
use crate::runner::launcher::{file_name, head_length};
use crate::runner::progress::Following;
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use windlass_core::job::JobId;
use windlass_core::life_cycle::State;

/// So much is passed on in one line.
const LINE_MOST: usize = 64 << 10;
const STREAMS: [&str; 2] = ["stdout", "stderr"];

pub(super) async fn output(call: Call) -> Result<Response, Problem> {
    let query = call.query(&["stream", "start", "follow"])?;
    let id = call.job()?;
    let start = query.number("start", 1, u64::from(u32::MAX))?.map(|start| start as u32);
    let stream = match query.get("stream") {
        None => None,
        Some("stdout") => Some(0),
        Some("stderr") => Some(1),
        Some(other) => return Err(Problem::malformed(format!("stream={other}: expected stdout or stderr"))),
    };
    if query.truth("follow")?.unwrap_or(false) {
        if start.is_some() {
            return Err(Problem::malformed("follow goes with the last start, and start names another"));
        }
        return follow(call, id, stream).await;
    }
    let stderr = stream == Some(1);
    let mut bytes = call.app.read(move |reads| (reads.archive.output)(id, start, stderr)).await?;
    if bytes.is_none() {
        call.app.catch_up().await?;
        bytes = call.app.read(move |reads| (reads.archive.output)(id, start, stderr)).await?;
    }
    let bytes = bytes.ok_or_else(|| {
        Problem::not_found(format!("no output of {id} is kept"))
            .hint("it comes with the end of an attempt, or follow=true")
    })?;
    let mut response = Response::new(Body::from(bytes));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(api::BYTES));
    Ok(response)
}

/// Lines of what it writes, until it has ended; of both streams where none is named.
async fn follow(call: Call, id: JobId, stream: Option<usize>) -> Result<Response, Problem> {
    let place = call.app.stream()?;
    let growth = Growth::of(&call.app.dir.output())?;
    let following = call.app.reads.board.follow(id);
    let (mailbox, letters) = mailbox();
    let is_its = move |told: &Followed| match told {
        Followed::Change(change) | Followed::Begun(change) => change.id == id,
        Followed::Amended { id: amended, .. } => *amended == id,
        Followed::Job(_) | Followed::Ended(_) => false,
    };
    let follower = Follower(Box::new(move |told| if is_its(&told) { mailbox.put(told) } else { mailbox.is_read() }));
    call.app.unless_stopped(call.app.ask(|answer| Event::Watch { follower, answer })).await?;
    // Watched first, looked at then: no end is missed between the two.
    let found = jobs::find_or_wait(&call.app, id).await?;
    let (pieces, body) = mpsc::channel(2);
    let wanted = [stream != Some(1), stream != Some(0)];
    let output = call.app.dir.output();
    let reader =
        Reader { app: call.app, id, wanted, output, pieces, growth, sent: BTreeMap::new(), _held: (place, following) };
    tokio::spawn(async move {
        // A client that has gone away needs no more lines.
        let _ = reader.read_along(letters, &found).await;
    });
    let mut response = Response::new(Body::new(Pieces(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(api::NDJSON));
    Ok(response)
}

/// The kernel's word that something was written in a directory.
struct Growth(AsyncFd<OwnedFd>);

impl Growth {
    fn of(dir: &Path) -> Result<Growth, Failure> {
        let cannot = |e: std::io::Error| Failure::io("cannot watch the outputs", &e);
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|e| cannot(e.into()))?;
        let written = WatchFlags::CREATE | WatchFlags::MODIFY;
        inotify::add_watch(&events, dir, written).map_err(|e| cannot(e.into()))?;
        // SAFETY: the descriptor is owned by what is registered, and so lives as long as that.
        let registered = unsafe { AsyncFd::register(events) };
        registered.map(Growth).map_err(|e| cannot(std::io::Error::other(e.to_string())))
    }

    async fn seen(&self) {
        let Ok(mut ready) = self.0.readable().await else { return };
        let mut told = [0; 4096];
        // Which file it was is looked at by the caller; here the words only have to be gone.
        while rustix::io::read(self.0.get_ref(), &mut told).is_ok_and(|n| n > 0) {}
        ready.clear_ready();
    }
}

/// The client is gone, or was told all.
struct Over;

/// Passes on what one job writes.
struct Reader {
    app: Arc<App>,
    id: JobId,
    wanted: [bool; 2],
    output: PathBuf,
    pieces: mpsc::Sender<Bytes>,
    growth: Growth,
    /// How much of each stream of a start was passed on.
    sent: BTreeMap<u32, [u64; 2]>,
    _held: (OwnedSemaphorePermit, Following),
}

impl Reader {
    async fn read_along(mut self, mut letters: Letters, found: &Value) -> Result<(), Over> {
        let state = found.get("state").and_then(Value::as_str).and_then(|word| word.parse::<State>().ok());
        if let Some(state) = state.filter(|state| state.is_end()) {
            let starts = found.pointer("/attempts/starts").and_then(Value::as_u64).unwrap_or(0);
            self.rest_of(starts as u32).await?;
            return self.ended(state).await;
        }
        loop {
            self.pass_on().await?;
            let gone = self.pieces.clone();
            let wait = race(self.growth.seen(), race(gone.closed(), self.app.stopped()));
            match race(letters.next(), wait).await {
                First::Left(Some(Followed::Change(change))) => self.end_of(&change).await?,
                First::Left(Some(Followed::Amended { state, .. })) if state.is_end() => return self.ended(state).await,
                First::Left(Some(_)) | First::Right(First::Left(())) => {}
                First::Left(None) => return self.broken(letters.why_silent()).await,
                First::Right(First::Right(First::Left(()))) => return Err(Over),
                First::Right(First::Right(First::Right(()))) => return self.broken(stopping()).await,
            }
        }
    }

    /// What stands in the files of the running start and was not passed on yet.
    async fn pass_on(&mut self) -> Result<(), Over> {
        let Some(written) = self.app.reads.board.written(self.id) else { return Ok(()) };
        let wanted = self.wanted;
        for (stream, suffix) in ["out", "err"].into_iter().enumerate().filter(|(stream, _)| wanted[*stream]) {
            let path = self.output.join(file_name(self.id, written.start, suffix));
            loop {
                let from = self.sent.entry(written.start).or_default()[stream];
                let (path, most) = (path.clone(), head_length(written.most));
                let read = blocking(move || Ok(read_from(&path, from, most)));
                let bytes = read.await.unwrap_or_default();
                if bytes.is_empty() {
                    break;
                }
                self.say_bytes(written.start, stream, &bytes).await?;
            }
        }
        Ok(())
    }

    /// An attempt has ended: the rest of what it wrote, and how it ended.
    async fn end_of(&mut self, change: &Change) -> Result<(), Over> {
        self.rest_of(change.start).await?;
        if change.state.is_end() {
            self.ended(change.state).await?;
            return Err(Over);
        }
        let (state, outcome) = (change.state.word(), change.outcome);
        self.line(&json!({ "start": change.start, "state": state, "outcome": outcome, "error": change.error })).await
    }

    async fn rest_of(&mut self, start: u32) -> Result<(), Over> {
        if let Err(failure) = self.app.catch_up().await {
            return self.broken(failure).await;
        }
        let wanted = self.wanted;
        for stream in (0..2).filter(|stream| wanted[*stream]) {
            let id = self.id;
            let kept = self.app.read(move |reads| (reads.archive.output)(id, Some(start), stream == 1)).await;
            let kept = kept.ok().flatten().unwrap_or_default();
            let from = self.sent.entry(start).or_default()[stream] as usize;
            for bytes in kept.get(from..).unwrap_or_default().chunks(LINE_MOST) {
                self.say_bytes(start, stream, bytes).await?;
            }
        }
        self.sent.remove(&start);
        Ok(())
    }

    async fn say_bytes(&mut self, start: u32, stream: usize, bytes: &[u8]) -> Result<(), Over> {
        let mut line = json!({ "start": start, "stream": STREAMS[stream] });
        if let (Some(line), Ok(Value::Object(data))) =
            (line.as_object_mut(), serde_json::to_value(api::Data::new(bytes)))
        {
            line.extend(data);
        }
        self.line(&line).await?;
        self.sent.entry(start).or_default()[stream] += bytes.len() as u64;
        Ok(())
    }

    async fn ended(&self, state: State) -> Result<(), Over> {
        self.line(&json!({ "ended": state.word() })).await
    }

    async fn broken(&self, failure: Failure) -> Result<(), Over> {
        self.line(&json!({ "error": Problem::from(failure).document() })).await?;
        Err(Over)
    }

    async fn line(&self, line: &Value) -> Result<(), Over> {
        let text = format!("{line}\n").into_bytes();
        match race(self.pieces.send(text.into()), self.app.stopped()).await {
            First::Left(sent) => sent.map_err(|_| Over),
            First::Right(()) => Err(Over),
        }
    }
}

/// What a file has from there on, up to a line's worth; nothing while it is not there.
fn read_from(path: &Path, from: u64, most: u64) -> Vec<u8> {
    let room = usize::try_from(most.saturating_sub(from)).unwrap_or(usize::MAX).min(LINE_MOST);
    let mut bytes = vec![0; room];
    let read = File::open(path).and_then(|file| file.read_at(&mut bytes, from));
    bytes.truncate(read.unwrap_or(0));
    bytes
}
