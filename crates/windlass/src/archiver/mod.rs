//! The memory of what became of every attempt: appended to segments, found again for its retention.
//!
//! The engine hands over the outcomes of each committed turn; a thread of its own writes them, syncs in groups and
//! only then says that the turn is archived, so that the store may forget it. A turn is in the archive once: the
//! segments remember its number. The archiver must not read the store, decide anything about a job, or hold up
//! the engine: what it has not written yet is visible in `pending_bytes`, and the engine stops claiming on it.
//! The bytes are described in `docs/storage.md`.

use crate::error::{Failure, Kind};
use crate::log::Log;
use crate::memcached::Copies;
use crate::runner::Output;
use crate::spans::Spans;
use crate::store::{Fellow, Settlement, Together};
use std::convert::Infallible;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use windlass_core::job::{QueueName, RunId};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

mod attempt_copy;
mod attempt_line;
mod attempt_span;
pub mod extent;
mod frame;
mod groups;
mod index;
pub mod output;
pub mod read;
mod record;
mod retention;
mod segment;
mod writer;

pub use groups::Group;
pub use record::{AttemptRecord, Kept};

/// With so much handed over and not yet on disk the engine should stop claiming.
pub const PENDING_MAX: u64 = 64 << 20;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Where the archive lies and how long it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiverOptions {
    /// The data directory's `archive/`.
    pub dir: PathBuf,
    /// The data directory's `output/`.
    pub output_dir: PathBuf,
    /// False leaves the jobs' data out; what is archived then cannot be replayed.
    pub keep_bodies: bool,
    /// A segment is closed at the end of the turn that takes it past this size.
    pub segment_bytes: u64,
    pub keep_succeeded: Duration,
    pub keep_failed: Duration,
    /// The most bytes of segments, and of output files, that are kept; the oldest go first.
    pub max_bytes: u64,
}

impl ArchiverOptions {
    /// The defaults of every option.
    pub fn new(dir: PathBuf, output_dir: PathBuf) -> ArchiverOptions {
        ArchiverOptions {
            dir,
            output_dir,
            keep_bodies: true,
            segment_bytes: 64 << 20,
            keep_succeeded: 7 * DAY,
            keep_failed: 30 * DAY,
            max_bytes: 10 << 30,
        }
    }
}

/// Everything that one committed turn settled; a turn is handed over whole and in the order of its number.
#[derive(Clone, Debug)]
pub struct ArchivedTurn {
    pub turn: u64,
    pub entries: Vec<Entry>,
    /// Attempts that ended together; each becomes an entry only where it is written.
    pub together: Vec<Several>,
}

impl ArchivedTurn {
    /// Shows everything as entries, one by one.
    fn try_each<E>(&self, mut show: impl FnMut(&Entry) -> Result<(), E>) -> Result<(), E> {
        self.entries.iter().try_for_each(&mut show)?;
        self.together.iter().try_for_each(|several| several.try_each(&mut show))
    }

    fn each(&self, mut show: impl FnMut(&Entry)) {
        self.entries.iter().for_each(&mut show);
        self.together.iter().for_each(|several| several.each(&mut show));
    }
}

/// Some attempts that ended alike.
#[derive(Clone, Debug)]
pub struct Entry {
    pub settlement: Settlement,
    pub queue: Arc<QueueName>,
    pub run: Option<RunId>,
    pub output: Output,
    /// The state that the verdict led to.
    pub state: State,
    pub ran: Ran,
}

/// Attempts at jobs of several queues that shared a start and ended alike, without any output.
#[derive(Clone, Debug)]
pub struct Several {
    pub ends: Together,
    pub run: Option<RunId>,
    pub ran: Ran,
}

impl Several {
    /// Shows each as an entry. One is made, and what tells them apart is put into it.
    fn try_each<E>(&self, mut show: impl FnMut(&Entry) -> Result<(), E>) -> Result<(), E> {
        let Some((fellow, end)) = self.ends.members().first().zip(self.ends.ends().next()) else { return Ok(()) };
        let (queue, state, output) = (Arc::clone(&fellow.queue), end.verdict.state(), Output::default());
        let mut entry = Entry { settlement: end.settlement(), queue, run: self.run, output, state, ran: self.ran };
        for fellow in self.ends.members() {
            entry.settlement.held.clone_from(&fellow.held);
            entry.queue.clone_from(&fellow.queue);
            show(&entry)?;
        }
        Ok(())
    }

    pub(crate) fn each(&self, mut show: impl FnMut(&Entry)) {
        let Ok(()) = self.try_each::<Infallible>(|entry| {
            show(entry);
            Ok(())
        });
    }

    /// The memory that waits with it.
    fn footprint(&self) -> u64 {
        let data: u64 = self.ends.members().iter().map(|fellow| fellow.held.bytes(0, fellow.held.count)).sum();
        data + (self.ends.which.len() * (12 + size_of::<Fellow>())) as u64
    }
}

/// Whether the jobs of an entry were given to anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// Put off, routed, expired or deleted.
    Not,
    /// Each had its process, or its turn in one, for itself.
    Alone,
    /// One process, or one call, may have had several at once.
    Together,
}

impl Entry {
    /// The memory that waits with this entry.
    fn footprint(&self) -> u64 {
        let held = &self.settlement.held;
        let output = self.output.stdout.head.len() + self.output.stderr.head.len();
        let data = held.jobs.data_of(held.range()).len();
        (data + output + 12 * usize::from(held.count) + size_of::<Entry>()) as u64
    }
}

/// Who is told of each attempt that has ended, on the archiver's thread; none of them is waited for.
#[derive(Clone, Debug)]
pub struct Told {
    /// A line for each.
    pub log: Log,
    /// A span for each that is traced.
    pub spans: Spans,
    /// The state that it led to, beside what the job had said.
    pub copies: Copies,
}

impl Told {
    /// Only the log.
    pub fn log(log: Log) -> Told {
        Told { log, spans: Spans::off(), copies: Copies::default() }
    }
}

/// Told, on the archiver's thread, that all turns up to this one are on disk.
pub type OnArchived = Box<dyn Fn(u64) + Send>;
/// Told once, on the archiver's thread, why nothing more is written.
pub type OnFailure = Box<dyn FnOnce(Failure) + Send>;

/// What the engine asks of the thread.
enum Request {
    Append { turn: ArchivedTurn, bytes: u64 },
    Retain { now: Time },
}

/// What both sides see.
#[derive(Debug, Default)]
struct Progress {
    last_turn: AtomicU64,
    pending_bytes: AtomicU64,
}

/// The engine's end of the archive. Dropping it writes out what was handed over, ends a removal under way and
/// closes the segment.
pub struct Archiver {
    requests: Option<Sender<Request>>,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Archiver {
    /// Opens the archive, cuts off what a crash left half written, and starts the thread.
    ///
    /// After `on_failure` was told something the thread has ended. A lack of space is no failure: what does not fit
    /// waits in memory, and in the store, until it does. Each attempt is told to those who are told of ends.
    pub fn spawn(
        options: ArchiverOptions,
        told: Told,
        on_archived: OnArchived,
        on_failure: OnFailure,
    ) -> Result<Archiver, Failure> {
        let progress = Arc::new(Progress::default());
        let writer = writer::Writer::open(options, told, Arc::clone(&progress), on_archived)?;
        let (requests, received) = channel();
        let body = move || {
            // The engine must hear of a panic too, or it would wait for ever for turns to be archived.
            let served = std::panic::catch_unwind(AssertUnwindSafe(|| writer.serve(&received)));
            let panicked = |_| Err(Failure::new(Kind::Internal, "the archiver panicked"));
            if let Err(failure) = served.unwrap_or_else(panicked) {
                on_failure(failure);
            }
        };
        let thread = std::thread::Builder::new().name("archiver".into()).spawn(body);
        let thread = thread.map_err(|e| Failure::io("cannot start the archiver's thread", &e))?;
        Ok(Archiver { requests: Some(requests), progress, thread: Some(thread) })
    }

    /// Hands over a turn; never waits. A turn that the archive already holds is confirmed and not written again.
    pub fn append(&self, turn: ArchivedTurn) {
        let several: u64 = turn.together.iter().map(Several::footprint).sum();
        let bytes = turn.entries.iter().map(Entry::footprint).sum::<u64>() + several;
        self.progress.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.request(Request::Append { turn, bytes });
    }

    /// Asks for the removal of what is past its retention, in small steps between turns.
    pub fn retain(&self, now: Time) {
        self.request(Request::Retain { now });
    }

    /// The highest turn that is on disk; what the store replays up to here is archived already.
    pub fn last_turn(&self) -> u64 {
        self.progress.last_turn.load(Ordering::Acquire)
    }

    /// Bytes handed over and not yet on disk.
    pub fn pending_bytes(&self) -> u64 {
        self.progress.pending_bytes.load(Ordering::Relaxed)
    }

    fn request(&self, request: Request) {
        if let Some(requests) = &self.requests {
            // A thread that has ended told `on_failure` why; the store keeps what it did not confirm.
            let _ = requests.send(request);
        }
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics and tells of them; this one can only come from what it told.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Archiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archiver").field("progress", &self.progress).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
