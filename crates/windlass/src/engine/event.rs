//! The closed list of everything that can wake the engine.
//!
//! Each event is data; what it leads to is decided in the turn that absorbs it. Questions carry an answer that is
//! given after the commit of that turn, and only then.

use crate::error::Failure;
use crate::runner::{Finished, Output};
use crate::store::{Amended, Amendment, Durability, Lot, RunInfo};
use std::fmt;
use windlass_core::job::{JobId, RunId};
use windlass_core::life_cycle::State;
use windlass_core::policy::{Command, Policy};
use windlass_core::supervisor::WorkerState;
use windlass_core::time::Time;

/// Gives an answer once; dropped unanswered it means that the engine ended.
pub struct Answer<T>(Box<dyn FnOnce(Result<T, Failure>) + Send>);

impl<T> Answer<T> {
    pub fn new(give: impl FnOnce(Result<T, Failure>) + Send + 'static) -> Answer<T> {
        Answer(Box::new(give))
    }

    pub fn give(self, answer: Result<T, Failure>) {
        (self.0)(answer);
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

/// What can wake the engine.
#[derive(Debug)]
pub enum Event {
    /// A runner: one start is over.
    Finished(Finished),
    /// The inbox reader: these bytes of the inbox are synced and may become jobs.
    Ingested(Lot),
    /// A door with an answer.
    Pushed {
        lot: Lot,
        durability: Durability,
        answer: Answer<()>,
    },
    OpenRun {
        request: OpenRun,
        answer: Answer<RunInfo>,
    },
    SealRun {
        run: RunId,
        answer: Answer<()>,
    },
    Amend {
        ids: Vec<JobId>,
        amendment: Amendment,
        answer: Answer<Vec<Amended>>,
    },
    /// Answered when the run has ended.
    AwaitRun {
        run: RunId,
        answer: Answer<RunInfo>,
    },
    /// Answered when everything that can run has ended.
    AwaitDrained {
        answer: Answer<Drained>,
    },
    /// Answered when what is in the inbox now has been admitted, and what has ended is in the archive.
    CatchUp {
        answer: Answer<()>,
    },
    /// The inbox reader: it has read every file to its end for the waiter with this number.
    InboxRead {
        waiter: u64,
    },
    /// Tells a follower of each finished job of a run until it says that it is gone.
    Follow {
        run: RunId,
        follower: Follower,
        answer: Answer<RunInfo>,
    },
    /// The archiver: all turns up to this one are on disk.
    Archived {
        turn: u64,
    },
    /// Failed and cancelled jobs that ended before this go with their retention.
    Forget {
        before: Time,
    },
    /// A new set of rules, checked as a whole.
    Reload {
        policies: Vec<Policy>,
        slots: u32,
        answer: Answer<()>,
    },
    /// What is in flight now.
    Flights {
        answer: Answer<Vec<FlightInfo>>,
    },
    /// Everything that a person may want to know of the engine at once.
    Dump {
        answer: Answer<super::dump::Dump>,
    },
    /// Look for work now; ends a quiet time.
    Nudge,
    /// Accept jobs, let what runs go on, start nothing.
    Quiet,
    /// Stop claiming, let what runs end for the drain time, then stop.
    Drain,
    /// Stop at once: what runs is killed and goes back without a charge.
    Halt,
}

/// What `windlass run` asks for; taken only from the engine's own user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRun {
    /// The name it is found again by; empty for `push --run new`.
    pub name: String,
    pub service: Option<RunService>,
}

/// How the jobs of a `windlass run` are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunService {
    pub queue: String,
    pub command: Command,
    pub slots: u32,
    pub attempts: u32,
    pub output_max: u64,
}

/// Everything that can run has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Jobs that failed or were cancelled while somebody waited.
    pub failed: u64,
}

/// One start under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightInfo {
    pub job: JobId,
    pub count: u16,
    pub queue: String,
    pub start: u32,
    pub started: Time,
    /// The slot that holds it, and that slot's state.
    pub worker: u32,
    pub state: WorkerState,
}

/// One finished job of a followed run.
#[derive(Clone, Debug)]
pub struct FollowedJob {
    pub id: JobId,
    pub state: State,
    pub error: String,
    pub output: Output,
    pub data: Vec<u8>,
}

/// What a follower is told.
#[derive(Clone, Debug)]
pub enum Followed {
    Job(FollowedJob),
    Ended(RunInfo),
}

/// Receives what happens in a run; returns false when nobody listens any more.
pub struct Follower(pub Box<dyn FnMut(Followed) -> bool + Send>);

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Follower")
    }
}
