//! The one account of all workers: whoever has a worker says here what happens to it, and core's machine says what it
//! is then.
//!
//! A worker is had by exactly one owner, as a `Worker`; what the roster shows of it to others is what the machine says.
//! So states, durations, counters and deadlines exist once. Events that the table forbids change nothing, are counted
//! and are said. It must not start or kill anything: the runners do, also when a deadline has passed (`watch`).

pub mod watch;

use crate::clock;
use crate::runner::Flight;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use windlass_core::job::JobId;
use windlass_core::policy::Policy;
use windlass_core::supervisor::{Counts, Supervisor, Terms, WorkerEvent, WorkerNo, WorkerState};
use windlass_core::time::Steady;

/// So many steps of workers are remembered.
const STEPS_KEPT: usize = 1000;
/// A kept worker is first told that no more will come, then to end: each has the grace.
const KEPT_GRACES: u32 = 2;
/// A worker that is not there so long after it was asked for is stopped.
const START_WITHIN: Duration = Duration::from_secs(60);
/// What an end may take beyond the grace: the last kill, and the proof that nothing is left.
const PROOF_WITHIN: Duration = Duration::from_secs(10);

/// What a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Starts and kills processes.
    Launcher,
    /// A process for one job.
    Process,
    /// A process for many jobs.
    Batch,
    /// A process that stays.
    Kept,
    /// A call of a URL.
    Call,
    /// A worker elsewhere, for as long as it has a lease.
    Remote,
    /// A thread that calls Rust handlers.
    Thread,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Launcher => "launcher",
            Kind::Process => "process",
            Kind::Batch => "batch",
            Kind::Kept => "kept",
            Kind::Call => "call",
            Kind::Remote => "remote",
            Kind::Thread => "thread",
        }
    }
}

/// What is known of a worker beside its state.
#[derive(Clone, Debug)]
pub struct About {
    pub kind: Kind,
    /// The table of the config whose jobs it does; none for who does any.
    pub policy: Option<Arc<Policy>>,
    /// What its runner calls it.
    pub flight: Flight,
    pub pid: Option<i32>,
    /// The job it is at, or the first of those, and how many it holds.
    pub job: Option<JobId>,
    pub jobs: u32,
}

impl About {
    pub fn new(kind: Kind, policy: Option<&Arc<Policy>>, flight: Flight) -> About {
        About { kind, policy: policy.map(Arc::clone), flight, pid: None, job: None, jobs: 0 }
    }
}

/// One worker as others see it.
#[derive(Clone, Debug)]
pub struct Shown {
    pub number: WorkerNo,
    pub about: About,
    pub state: WorkerState,
    pub phase: String,
    /// How long it has been in this state.
    pub since: Duration,
}

/// A change of a worker's state or phase.
#[derive(Clone, Debug)]
pub struct Step {
    pub number: WorkerNo,
    pub at: Steady,
    /// What happened; none where it only said what it is at.
    pub event: Option<WorkerEvent>,
    pub state: WorkerState,
    pub phase: String,
    /// The table whose jobs it does.
    pub policy: Option<Arc<Policy>>,
}

#[derive(Debug, Default)]
struct Books {
    machine: Supervisor,
    about: BTreeMap<WorkerNo, About>,
    /// Numbers of workers that are gone.
    free: BTreeSet<WorkerNo>,
    made: u32,
    steps: VecDeque<Step>,
    /// Until when whoever watches the deadlines sleeps.
    watched_until: Option<Steady>,
    closed: bool,
}

/// Hears what is to be said.
type Say = Box<dyn Fn(String) + Send + Sync>;

/// All workers of a server.
#[derive(Default)]
pub struct Roster {
    books: Mutex<Books>,
    stirred: Condvar,
    say: OnceLock<Say>,
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster").field("books", &*self.books()).finish_non_exhaustive()
    }
}

impl Roster {
    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing can fail between two changes of them.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who hears of forbidden events and of missed deadlines; the first one does.
    pub fn heard_by(&self, say: impl Fn(String) + Send + Sync + 'static) {
        let _first = self.say.set(Box::new(say));
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if let Some(say) = self.say.get() {
            say(what());
        }
    }

    /// A worker is asked for: it is `starting`.
    pub fn make(self: &Arc<Roster>, about: About) -> Worker {
        let grace = about.policy.as_ref().map_or(Duration::ZERO, |policy| policy.grace);
        let grace = if about.kind == Kind::Kept { grace.saturating_mul(KEPT_GRACES) } else { grace };
        let terms = Terms { start: START_WITHIN, stop: grace.saturating_add(PROOF_WITHIN) };
        let mut books = self.books();
        let number = books.free.pop_first().unwrap_or_else(|| {
            books.made += 1;
            WorkerNo(books.made)
        });
        books.machine.enrol(number, terms, clock::steady());
        books.about.insert(number, about);
        drop(books);
        let mut worker = Worker { roster: Arc::clone(self), number, state: WorkerState::Stopped };
        worker.happens(&[WorkerEvent::Make]);
        worker
    }

    /// A worker that is made with its job in hand, and is at it at once.
    pub fn make_for(self: &Arc<Roster>, about: About) -> Worker {
        let mut worker = self.make(about);
        worker.happens(&[WorkerEvent::Up, WorkerEvent::Take]);
        worker
    }

    /// All of them, by number.
    pub fn shown(&self) -> Vec<Shown> {
        let (books, now) = (self.books(), clock::steady());
        let known =
            books.machine.iter().filter_map(|(number, worker)| Some((number, worker, books.about.get(&number)?)));
        let shown = |(number, worker, about): (WorkerNo, &windlass_core::supervisor::Worker, &About)| Shown {
            number,
            about: about.clone(),
            state: worker.state,
            phase: worker.phase.clone(),
            since: now.since(worker.since),
        };
        known.map(shown).collect()
    }

    /// The worker that is at a job, if it is said of one.
    pub fn at(&self, job: JobId) -> Option<Shown> {
        self.shown().into_iter().find(|worker| worker.about.job == Some(job))
    }

    pub fn counts(&self) -> Counts {
        self.books().machine.counts().clone()
    }

    /// The last steps, oldest first, and what the clock says now.
    pub fn steps(&self) -> (Vec<Step>, Steady) {
        (self.books().steps.iter().cloned().collect(), clock::steady())
    }
}

impl Books {
    fn note(&mut self, number: WorkerNo, event: Option<WorkerEvent>, at: Steady) {
        let (Some(worker), Some(about)) = (self.machine.get(number), self.about.get(&number)) else { return };
        let (state, phase, policy) = (worker.state, worker.phase.clone(), about.policy.clone());
        let step = Step { number, at, event, state, phase, policy };
        if self.steps.len() == STEPS_KEPT {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }
}

/// A worker in the hands of its owner; dropped, nobody knows of it any more.
pub struct Worker {
    roster: Arc<Roster>,
    number: WorkerNo,
    /// The machine's last word: only the owner lets anything happen to it.
    state: WorkerState,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} {}", self.number.0, self.state)
    }
}

impl Worker {
    pub fn state(&self) -> WorkerState {
        self.state
    }

    /// Lets these happen to it, one after the other. What the table does not know is somebody's mistake: it changes
    /// nothing, is counted and said.
    pub fn happens(&mut self, events: &[WorkerEvent]) -> WorkerState {
        let now = clock::steady();
        let mut refused = None;
        let mut books = self.roster.books();
        for event in events {
            match books.machine.apply(self.number, *event, now) {
                Ok(state) => {
                    self.state = state;
                    books.note(self.number, Some(*event), now);
                }
                Err(forbidden) => refused = Some(forbidden),
            }
        }
        let stirs = books.machine.next_deadline().is_some_and(|by| books.watched_until.is_none_or(|until| by < until));
        drop(books);
        if stirs {
            self.roster.stirred.notify_all();
        }
        if let Some(forbidden) = refused {
            self.roster.say(|| forbidden.to_string());
            debug_assert!(false, "{forbidden}");
        }
        self.state
    }

    /// It is at this job, and holds so many.
    pub fn is_at(&self, job: Option<JobId>, jobs: u32) {
        if let Some(about) = self.roster.books().about.get_mut(&self.number) {
            (about.job, about.jobs) = (job, jobs);
        }
    }

    pub fn has_pid(&self, pid: i32) {
        if let Some(about) = self.roster.books().about.get_mut(&self.number) {
            about.pid = Some(pid);
        }
    }

    /// It says what it is at.
    pub fn is_in(&self, phase: &str) {
        let mut books = self.roster.books();
        if books.machine.set_phase(self.number, phase) {
            books.note(self.number, None, clock::steady());
        }
    }

    /// It was told to end; once more changes nothing.
    pub fn stop(&mut self) {
        if self.state != WorkerState::Stopping {
            self.happens(&[WorkerEvent::Stop]);
        }
    }

    /// It is proven gone: as it should where it was told to, or its one job was done.
    pub fn is_done(&mut self, emitted: bool) -> WorkerState {
        match self.state {
            WorkerState::Working if emitted => {
                self.happens(&[WorkerEvent::Emit, WorkerEvent::Finish, WorkerEvent::Exit])
            }
            WorkerState::Working | WorkerState::Emitting => self.happens(&[WorkerEvent::Finish, WorkerEvent::Exit]),
            WorkerState::Starting
            | WorkerState::Waiting
            | WorkerState::Stopping
            | WorkerState::Stopped
            | WorkerState::Died => self.happens(&[WorkerEvent::Exit]),
        }
    }

    /// It is proven gone, and nobody had asked for it.
    pub fn died(&mut self) -> WorkerState {
        self.happens(&[WorkerEvent::Die])
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut books = self.roster.books();
        books.machine.forget(self.number);
        books.about.remove(&self.number);
        books.free.insert(self.number);
    }
}

#[cfg(test)]
mod tests;
