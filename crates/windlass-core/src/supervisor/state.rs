//! The states of a worker and the one table of allowed transitions.
//!
//! ```text
//!              make              up               take               emit
//!  stopped ──────────► starting ─────► waiting ─────────► working ──────────► emitting
//!     ▲                   ▲               ▲ ▲               │ ▲ ◄── emitted, take ──┘ │
//!     │                   │ make          │ └──── finish ───┘ │                       │
//!     │                   │               └──────────────── finish ───────────────────┤
//!     │                  died             waiting ── emit ──► emitting
//!     │ exit (from stopping, waiting)
//!     └──────────────── stopping ◄── stop ── starting, waiting, working, emitting
//!
//!  starting, waiting, working, emitting, stopping ── die ──► died
//! ```
//!
//! What may be trusted in each state:
//!
//! - *starting*: it was asked for. It may not exist yet, it has no job, and it must not be given one.
//! - *waiting*: it exists and holds nothing. It may be given a job, or be stopped at no cost.
//! - *working*: it holds a job whose outcome is not known. Its death is that job's crash or interruption.
//! - *emitting*: it hands on what it made. What it emitted does not count before the job is settled.
//! - *stopping*: it was told to end and gets no job. It may still hold one, until it is proven gone.
//! - *stopped*, *died*: it is proven gone and holds nothing; *died* means nobody had asked for it.

use std::fmt;

/// The state of a worker: the same words in code, commands, API, metrics and pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerState {
    Starting,
    Waiting,
    Working,
    Emitting,
    Stopping,
    Stopped,
    Died,
}

impl WorkerState {
    pub const ALL: [WorkerState; 7] = [
        WorkerState::Starting,
        WorkerState::Waiting,
        WorkerState::Working,
        WorkerState::Emitting,
        WorkerState::Stopping,
        WorkerState::Stopped,
        WorkerState::Died,
    ];

    pub fn word(self) -> &'static str {
        match self {
            WorkerState::Starting => "starting",
            WorkerState::Waiting => "waiting",
            WorkerState::Working => "working",
            WorkerState::Emitting => "emitting",
            WorkerState::Stopping => "stopping",
            WorkerState::Stopped => "stopped",
            WorkerState::Died => "died",
        }
    }

    /// True where the worker may hold a job, so that nothing is over yet.
    pub fn may_hold_a_job(self) -> bool {
        match self {
            WorkerState::Working | WorkerState::Emitting | WorkerState::Stopping => true,
            WorkerState::Starting | WorkerState::Waiting | WorkerState::Stopped | WorkerState::Died => false,
        }
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// What can happen to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerEvent {
    /// It was asked for, the first time or again.
    Make,
    /// It said that it is there.
    Up,
    /// It was given a job.
    Take,
    /// It began to hand on what it made.
    Emit,
    /// It has handed that on and goes on with its job.
    Emitted,
    /// Its job is over.
    Finish,
    /// It was told to end.
    Stop,
    /// It ended as it should.
    Exit,
    /// It ended and nobody had asked for it, or it ended badly.
    Die,
}

impl WorkerEvent {
    pub const ALL: [WorkerEvent; 9] = [
        WorkerEvent::Make,
        WorkerEvent::Up,
        WorkerEvent::Take,
        WorkerEvent::Emit,
        WorkerEvent::Emitted,
        WorkerEvent::Finish,
        WorkerEvent::Stop,
        WorkerEvent::Exit,
        WorkerEvent::Die,
    ];

    pub fn word(self) -> &'static str {
        match self {
            WorkerEvent::Make => "make",
            WorkerEvent::Up => "up",
            WorkerEvent::Take => "take",
            WorkerEvent::Emit => "emit",
            WorkerEvent::Emitted => "emitted",
            WorkerEvent::Finish => "finish",
            WorkerEvent::Stop => "stop",
            WorkerEvent::Exit => "exit",
            WorkerEvent::Die => "die",
        }
    }
}

impl fmt::Display for WorkerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Everything a worker may do; nothing else is allowed.
pub const TRANSITIONS: [(WorkerState, WorkerEvent, WorkerState); 21] = {
    use {WorkerEvent as E, WorkerState as S};
    [
        (S::Stopped, E::Make, S::Starting),
        (S::Died, E::Make, S::Starting),
        (S::Starting, E::Up, S::Waiting),
        (S::Waiting, E::Take, S::Working),
        // What is left in a buffer may be handed on between two jobs.
        (S::Waiting, E::Emit, S::Emitting),
        (S::Working, E::Emit, S::Emitting),
        (S::Working, E::Finish, S::Waiting),
        (S::Emitting, E::Emitted, S::Working),
        (S::Emitting, E::Take, S::Working),
        (S::Emitting, E::Finish, S::Waiting),
        (S::Starting, E::Stop, S::Stopping),
        (S::Waiting, E::Stop, S::Stopping),
        (S::Working, E::Stop, S::Stopping),
        (S::Emitting, E::Stop, S::Stopping),
        (S::Stopping, E::Exit, S::Stopped),
        // A worker with nothing in hand may leave by itself.
        (S::Waiting, E::Exit, S::Stopped),
        (S::Starting, E::Die, S::Died),
        (S::Waiting, E::Die, S::Died),
        (S::Working, E::Die, S::Died),
        (S::Emitting, E::Die, S::Died),
        (S::Stopping, E::Die, S::Died),
    ]
};

/// The place in the table of what an event does in a state, if it is allowed there.
pub(super) fn find(from: WorkerState, event: WorkerEvent) -> Option<usize> {
    TRANSITIONS.iter().position(|(f, e, _)| *f == from && *e == event)
}

/// The state an event leads to, or nothing if it is not allowed.
pub fn next(from: WorkerState, event: WorkerEvent) -> Option<WorkerState> {
    find(from, event).map(|at| TRANSITIONS[at].2)
}

/// An event that a worker's state does not allow: somebody's fault, and nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forbidden {
    pub worker: super::WorkerNo,
    pub state: WorkerState,
    pub event: WorkerEvent,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Forbidden { worker, state, event } = self;
        let allowed: Vec<_> =
            TRANSITIONS.iter().filter(|(from, ..)| from == state).map(|(_, event, _)| event.word()).collect();
        write!(f, "worker {} is {state}, where `{event}` is not allowed (allowed: {})", worker.0, allowed.join(", "))
    }
}

impl std::error::Error for Forbidden {}
