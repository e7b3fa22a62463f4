//! Runs Rust handlers of the embedding program: up to a batch of jobs a call, on a pool of threads.
//!
//! A handler sees its jobs in place, without a copy, and reports on all of them at once or stretch by stretch, at its
//! end or on some of them before; one with types (`typed`) is called job by job. A panic ends its batch as crashed and
//! nothing else. A thread cannot be killed: a handler that runs is asked to stop through its batch and not forced, and
//! time limits are its own affair.

mod typed;

pub use typed::{Answer, EmitError, Job};

use super::command::Hear;
use super::progress::Board;
use super::{Emitted, Finished, Flight, Runner, Start, Stop};
use crate::clock;
use crate::error::Failure;
use crate::supervisor::{About, Kind, Worker};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use windlass_core::job::{JobId, QueueName};
use windlass_core::outcome::Outcome;
use windlass_core::policy::Service;
use windlass_core::supervisor::WorkerEvent;
use windlass_core::time::Time;

/// The longest checkpoint.
const CHECKPOINT_MAX: usize = 4096;

/// What a handler is called with.
pub struct Batch<'a> {
    start: &'a Start,
    asked: &'a Asked,
    hear: &'a Hear,
    board: &'a Board,
    worker: &'a Worker,
    started: Time,
    has_emitted: AtomicBool,
    emitted: Mutex<Vec<Emitted>>,
    /// By position: how far jobs have come for good.
    kept: Mutex<Vec<(u16, String)>>,
    /// Positions of the jobs that were spoken of.
    reported: Mutex<BTreeSet<u16>>,
    /// Positions of those of which something is on the board.
    shown: Mutex<BTreeSet<u16>>,
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("start", self.start).finish_non_exhaustive()
    }
}

impl<'a> Batch<'a> {
    pub fn queue(&self) -> &'a QueueName {
        &self.start.queue
    }

    pub fn len(&self) -> usize {
        usize::from(self.start.held.count)
    }

    pub fn is_empty(&self) -> bool {
        self.start.held.count == 0
    }

    /// Which start of its jobs this is, from 1.
    pub fn start(&self) -> u32 {
        self.start.held.start()
    }

    /// The jobs in order, with their data as it was pushed.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, &'a [u8])> + use<'a> {
        let chunk = &self.start.held.jobs;
        self.start.held.range().map(|index| (chunk.id(index), chunk.data(index)))
    }

    /// A further job, stored if the job at this position of the batch succeeds and not otherwise.
    pub fn emit(&self, by: u16, queue: &str, data: Vec<u8>) -> Result<(), EmitError> {
        let (queue, data) = typed::checked(queue, data)?;
        self.has_emitted.store(true, Ordering::Relaxed);
        self.emitted.lock().unwrap_or_else(PoisonError::into_inner).push(Emitted { by, queue, data });
        Ok(())
    }

    /// How far an earlier start of its one job had come for good, if that said so.
    pub fn checkpoint(&self) -> Option<&'a str> {
        Some(self.start.checkpoint.as_str()).filter(|text| !text.is_empty())
    }

    /// How far the job at this position has come for good: told to its next start, however this one ends. The last word
    /// counts; text that is too long or holds a NUL is refused.
    pub fn keep(&self, position: u16, text: &str) -> Result<(), CheckpointError> {
        if text.len() > CHECKPOINT_MAX || text.contains('\0') {
            return Err(CheckpointError(text.len()));
        }
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push((position, text.to_owned()));
        Ok(())
    }

    /// What the handler is at, in a word of its own, for whoever looks.
    pub fn phase(&self, phase: &str) {
        self.worker.is_in(phase);
    }

    /// How far the job at this position is, for whoever looks: so many of so many, and a text.
    pub fn progress(&self, position: u16, done: u64, of: u64, text: &str) {
        self.show(position, &format!("progress {done}/{of} {text}"));
    }

    /// Puts a control line of a job on the board; no more than one, whatever its text holds.
    fn show(&self, position: u16, words: &str) {
        let range = self.start.held.range();
        let index = range.start + usize::from(position);
        if range.contains(&index) {
            self.shown().insert(position);
            let line = words.lines().next().unwrap_or_default();
            self.board.said(self.start.held.jobs.id(index), line.as_bytes());
        }
    }

    fn shown(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Speaks of one job before the others are done; what it emitted goes with it. Said once, it is left out of what
    /// the handler says at its end.
    pub fn report(&self, at: u16, outcome: Outcome) {
        if at >= self.start.held.count || !self.reported().insert(at) {
            return;
        }
        let mut emitted = self.emitted.lock().unwrap_or_else(PoisonError::into_inner);
        let emitted = emitted.extract_if(.., |one| one.by == at).collect();
        (self.hear)(self.finished(at, vec![(1, outcome)], emitted));
    }

    fn finished(&self, first: u16, outcomes: Vec<(u16, Outcome)>, emitted: Vec<Emitted>) -> Finished {
        let nothing = Finished::all(self.start.flight, 0, Outcome::Interrupted, self.started, clock::now());
        let end = first + outcomes.iter().map(|(count, _)| count).sum::<u16>();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let checkpoints = kept.extract_if(.., |(position, _)| (first..end).contains(position)).collect();
        self.shown().extract_if(first..end, |_| true).for_each(|position| {
            let index = self.start.held.range().start + usize::from(position);
            self.board.ended(self.start.held.jobs.id(index));
        });
        Finished { first, outcomes, emitted, checkpoints, ..nothing }
    }

    fn reported(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is said at the end, of the jobs that were not spoken of before.
    fn rest(&self, verdicts: Result<Verdicts, Outcome>) -> Vec<Finished> {
        let reported = std::mem::take(&mut *self.reported());
        let left: Vec<u16> = (0..self.start.held.count).filter(|at| !reported.contains(at)).collect();
        let count = left.len() as u16;
        let outcomes = verdicts.map_or_else(|same| vec![(count, same)], |verdicts| covering(verdicts, count));
        let mut emitted = std::mem::take(&mut *self.emitted.lock().unwrap_or_else(PoisonError::into_inner));
        if reported.is_empty() {
            return vec![self.finished(0, outcomes, emitted)];
        }
        let each = outcomes.into_iter().flat_map(|(count, outcome)| std::iter::repeat_n(outcome, usize::from(count)));
        let pieces = left.into_iter().zip(each).map(|(at, outcome)| {
            let emitted = emitted.extract_if(.., |one| one.by == at).collect();
            self.finished(at, vec![(1, outcome)], emitted)
        });
        pieces.collect()
    }

    /// True once the batch was cancelled or the server stops: the sooner it ends, the better.
    pub fn is_stopping(&self) -> bool {
        self.asked.to_stop.load(Ordering::Relaxed)
    }

    /// True once a person has cancelled the job at this position: where it has not begun it need not, and its outcome
    /// is then `Cancelled`.
    pub fn is_cancelled(&self, position: u16) -> bool {
        self.asked.cancelled().contains(&position)
    }
}

/// Why a checkpoint was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointError(usize);

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot keep a checkpoint of {} bytes: expected at most {CHECKPOINT_MAX} without a NUL", self.0)
    }
}

impl std::error::Error for CheckpointError {}

/// What a handler says of its batch, or of what is left of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdicts {
    /// The same of every job.
    All(Outcome),
    /// Of stretches of the jobs, in order; together they must cover the batch.
    Stretches(Vec<(u16, Outcome)>),
}

impl Verdicts {
    pub fn succeeded() -> Verdicts {
        Verdicts::All(Outcome::Succeeded { message: String::new() })
    }

    /// Job by job, in order; equal neighbours are joined.
    pub fn each(outcomes: impl IntoIterator<Item = Outcome>) -> Verdicts {
        let mut stretches: Vec<(u16, Outcome)> = Vec::new();
        for outcome in outcomes {
            match stretches.last_mut() {
                Some((count, last)) if last.is_same(&outcome) => *count += 1,
                _ => stretches.push((1, outcome)),
            }
        }
        Verdicts::Stretches(stretches)
    }
}

impl From<Outcome> for Verdicts {
    fn from(outcome: Outcome) -> Verdicts {
        Verdicts::All(outcome)
    }
}

type Handler = Arc<dyn Fn(&Batch<'_>) -> Verdicts + Send + Sync>;

/// Handlers by the names that policies use.
#[derive(Clone, Default)]
pub struct Handlers {
    by_name: HashMap<String, Handler>,
    threads: Option<usize>,
}

impl Handlers {
    pub fn new() -> Handlers {
        Handlers::default()
    }

    /// Adds a handler; the same name again replaces it.
    pub fn on(
        mut self,
        name: impl Into<String>,
        handler: impl Fn(&Batch<'_>) -> Verdicts + Send + Sync + 'static,
    ) -> Handlers {
        self.by_name.insert(name.into(), Arc::new(handler));
        self
    }

    /// So many batches are handled at once, of all handlers together; without it, as many as there are cores. Handlers
    /// that wait for somebody else want more of them.
    pub fn on_threads(self, threads: usize) -> Handlers {
        Handlers { threads: Some(threads.max(1)), ..self }
    }

    /// How many threads serve them; none where there is nothing to handle.
    pub fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        if self.is_empty() { 0 } else { self.threads.unwrap_or_else(cores) }
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.by_name.keys()).finish()
    }
}

/// What the handler of a batch is asked for.
#[derive(Default)]
struct Asked {
    to_stop: AtomicBool,
    cancelled: Mutex<BTreeSet<u16>>,
}

impl Asked {
    fn cancelled(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Start, Arc<Asked>)>,
    handled: HashMap<Flight, Arc<Asked>>,
    closed: bool,
}

struct Shared {
    handlers: Handlers,
    board: Arc<Board>,
    hear: Hear,
    state: Mutex<State>,
    work: Condvar,
}

/// Calls handlers.
pub struct HandlerRunner {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for HandlerRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerRunner").field("handlers", &self.shared.handlers).finish_non_exhaustive()
    }
}

impl HandlerRunner {
    /// `threads` bounds how many batches are handled at once, whatever the policies' slots add up to.
    pub fn new(handlers: Handlers, threads: usize, board: Arc<Board>, hear: Hear) -> Result<HandlerRunner, Failure> {
        let workers = Arc::clone(board.workers());
        let shared = Arc::new(Shared { handlers, board, hear, state: Mutex::default(), work: Condvar::new() });
        let mut runner = HandlerRunner { shared, threads: Vec::new() };
        for number in 0..threads {
            let shared = Arc::clone(&runner.shared);
            let worker = workers.make(About::new(Kind::Thread, None, Flight(number as u64)));
            let thread = std::thread::Builder::new()
                .name(format!("handler {number}"))
                .spawn(move || shared.serve(worker))
                .map_err(|e| Failure::io("cannot start a thread", &e))?;
            runner.threads.push(thread);
        }
        Ok(runner)
    }
}

impl Runner for HandlerRunner {
    fn start(&mut self, starts: Vec<Start>) {
        let count = starts.len();
        self.shared.state().waiting.extend(starts.into_iter().map(|start| (start, Arc::default())));
        match count {
            1 => self.shared.work.notify_one(),
            _ => self.shared.work.notify_all(),
        }
    }

    fn stop(&mut self, flight: Flight, why: Stop) {
        let mut state = self.shared.state();
        if let Some(asked) = state.handled.get(&flight) {
            if why == Stop::Withdraw {
                return;
            }
            asked.to_stop.store(true, Ordering::Relaxed);
            return;
        }
        let Some(at) = state.waiting.iter().position(|(start, _)| start.flight == flight) else { return };
        let Some((start, _)) = state.waiting.remove(at) else { return };
        drop(state);
        let outcome = match why {
            Stop::Cancel => Outcome::Cancelled,
            Stop::Withdraw | Stop::Interrupt | Stop::Kill => Outcome::Interrupted,
        };
        let now = clock::now();
        (self.shared.hear)(Finished::all(flight, start.held.count, outcome, now, now));
    }

    /// The handler is told; one that takes its jobs one by one passes it over.
    fn cancel(&mut self, flight: Flight, position: u16) {
        let state = self.shared.state();
        let waiting = state.waiting.iter().find(|(start, _)| start.flight == flight).map(|(_, asked)| asked);
        if let Some(asked) = state.handled.get(&flight).or(waiting) {
            asked.cancelled().insert(position);
        }
    }
}

impl Drop for HandlerRunner {
    /// Asks what runs to stop and waits for it; what waits is dropped unreported.
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        state.waiting.clear();
        state.handled.values().for_each(|asked| asked.to_stop.store(true, Ordering::Relaxed));
        drop(state);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // Panics of handlers are caught; any other has told so itself.
            let _told = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Handlers run outside the lock, so a panic of theirs cannot leave the books half written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut worker: Worker) {
        worker.happens(&[WorkerEvent::Up]);
        while let Some((start, asked)) = self.next() {
            worker.happens(&[WorkerEvent::Take]);
            worker.is_at(start.held.ids().next(), u32::from(start.held.count));
            let (finished, emitted) = self.handle(&start, &asked, &worker);
            if emitted {
                worker.happens(&[WorkerEvent::Emit]);
            }
            worker.is_at(None, 0);
            worker.happens(&[WorkerEvent::Finish]);
            self.state().handled.remove(&start.flight);
            finished.into_iter().for_each(|finished| (self.hear)(finished));
        }
        worker.is_done(false);
    }

    /// Waits for work; none means that the runner ends.
    fn next(&self) -> Option<(Start, Arc<Asked>)> {
        let mut state = self.state();
        loop {
            if let Some((start, asked)) = state.waiting.pop_front() {
                state.handled.insert(start.flight, Arc::clone(&asked));
                return Some((start, asked));
            }
            if state.closed {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What is said at the end, and whether anything was emitted.
    fn handle(&self, start: &Start, asked: &Asked, worker: &Worker) -> (Vec<Finished>, bool) {
        let batch = Batch {
            start,
            asked,
            hear: &self.hear,
            board: &self.board,
            worker,
            started: clock::now(),
            has_emitted: AtomicBool::new(false),
            emitted: Mutex::default(),
            kept: Mutex::default(),
            reported: Mutex::default(),
            shown: Mutex::default(),
        };
        let verdicts = match self.handler(start) {
            Ok(handler) => catch_unwind(AssertUnwindSafe(|| handler(&batch)))
                .map_err(|panic| Outcome::Crashed { error: words_of(&*panic) }),
            Err(error) => Err(Outcome::FailedForGood { error }),
        };
        (batch.rest(verdicts), batch.has_emitted.load(Ordering::Relaxed))
    }

    fn handler(&self, start: &Start) -> Result<&Handler, String> {
        match &start.policy.service {
            Service::Handler { name, .. } => {
                self.handlers.by_name.get(name).ok_or_else(|| format!("no handler is named `{name}`"))
            }
            Service::Command(_)
            | Service::Batch(_)
            | Service::Worker(_)
            | Service::Url(_)
            | Service::Remote(_)
            | Service::Forward(_) => Err("a job of another runner came to the handlers".into()),
        }
    }
}

/// The verdicts as stretches over the whole batch; a handler that lost count is not believed.
fn covering(verdicts: Verdicts, count: u16) -> Vec<(u16, Outcome)> {
    let stretches = match verdicts {
        Verdicts::All(outcome) => return vec![(count, outcome)],
        Verdicts::Stretches(stretches) => stretches,
    };
    let covered: u64 = stretches.iter().map(|(length, _)| u64::from(*length)).sum();
    if covered == u64::from(count) {
        return stretches;
    }
    let error = format!("the handler reported on {covered} of {count} jobs");
    vec![(count, Outcome::Crashed { error })]
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", words.unwrap_or("it did not say why"))
}

#[cfg(test)]
mod tests;
