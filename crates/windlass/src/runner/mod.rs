//! The hands: a runner starts jobs and reports exactly one outcome per start, also when it was killed.
//!
//! This file owns the seam between the engine and what does the work. A runner is given starts: stretches of
//! neighbouring jobs of one queue, whose claims are on disk. Starts of one claim come together and share a slot
//! (`Start::claim`), so a runner that takes many jobs at once joins them. It reports every job of a start exactly
//! once, in one `Finished` or in several, in any order, whenever it knows. A new kind of runner is a variant of
//! `Service`, a file here that implements `Runner`, and a line in `front`. A runner must not touch the store.

use crate::lot::Departing;
use crate::store::Held;
use progress::Channel;
use std::sync::Arc;
use windlass_core::job::QueueName;
use windlass_core::outcome::Outcome;
use windlass_core::particulars::Trace;
use windlass_core::policy::Policy;
use windlass_core::time::Time;

mod batch;
pub mod command;
mod control_dir;
pub mod forward;
pub mod front;
mod given;
pub mod handler;
pub mod launcher;
mod lines;
pub mod lua;
pub mod progress;
pub mod rehearsal;
pub mod remote;
mod reply;
mod spoken;
mod tally;
pub mod url;
mod worker;

pub(crate) use command::order::field;
pub(crate) use given::given;

pub use crate::store::Fellow;

/// The engine's number for one start under way; never reused while the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flight(pub u64);

/// Please start this: its start is on disk already.
#[derive(Clone, Debug)]
pub struct Start {
    pub flight: Flight,
    /// The claim it came with: starts of one claim are handed over together and hold one slot together.
    pub claim: u64,
    pub queue: Arc<QueueName>,
    pub policy: Arc<Policy>,
    pub epoch: u64,
    /// One job for a command, up to what a slot takes at once for all others.
    pub held: Held,
    /// Jobs that share the flight, each alone in another queue of the crew: their positions are behind that of the one
    /// in `held`. Kept workers alone get any.
    pub fellows: Arc<[Fellow]>,
    /// The job's number for `{#}`.
    pub number: u64,
    /// The run's id in words, for the job's environment; empty without one.
    pub run: String,
    /// What an earlier start of its one job said last of how far it had come; empty without one.
    pub checkpoint: String,
    /// Where a worker elsewhere does it.
    pub lent: Option<Box<Lent>>,
    /// Where it goes to another server: the lot that it goes with.
    pub lot: Option<Arc<Departing>>,
}

impl Start {
    /// The application's record that its jobs are about: its type and its id.
    pub fn subject(&self) -> Option<(&str, &str)> {
        self.held.subject()
    }

    /// The trace that its jobs belong to.
    pub fn trace(&self) -> Option<&Trace> {
        self.held.trace()
    }

    /// How many jobs it is of, its fellows included.
    pub fn count(&self) -> u16 {
        self.held.count + self.fellows.len() as u16
    }

    /// The queue of the job at a position, the claim that holds it, and its index in that one's chunk.
    pub fn job(&self, position: u16) -> (&Arc<QueueName>, &Held, usize) {
        match position.checked_sub(self.held.count) {
            None => (&self.queue, &self.held, usize::from(self.held.first + position)),
            Some(at) => {
                let Fellow { queue, held } = &self.fellows[usize::from(at)];
                (queue, held, usize::from(held.first))
            }
        }
    }
}

/// What is stored of a start that a worker elsewhere has, so that the worker can go on through a restart of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Whoever has it speaks for the start.
    pub token: String,
    pub since: Time,
    /// The ask that it answers; none where an earlier server has handed it over.
    pub ask: Option<u64>,
    /// What the job has said that counts at its end.
    pub spoken: Vec<(Channel, Vec<u8>)>,
}

/// The end of a start, or of some of its jobs. The start is over when all its jobs have been spoken of.
#[derive(Clone, Debug)]
pub struct Finished {
    pub flight: Flight,
    /// The position in the start of the first job that this speaks of.
    pub first: u16,
    /// Stretches of the jobs from there on, in order and without a gap, each with its outcome.
    pub outcomes: Vec<(u16, Outcome)>,
    /// What the jobs emitted; counts only for those that succeeded.
    pub emitted: Vec<Emitted>,
    /// By position: how far jobs have come for good, for their next start.
    pub checkpoints: Vec<(u16, String)>,
    pub started: Time,
    pub finished: Time,
    pub output: Output,
}

impl Finished {
    /// The same outcome for so many jobs, beginning with the first, and nothing else to say.
    pub fn all(flight: Flight, count: u16, outcome: Outcome, started: Time, finished: Time) -> Finished {
        let (outcomes, output) = (vec![(count, outcome)], Output::default());
        let (emitted, checkpoints) = (Vec::new(), Vec::new());
        Finished { flight, first: 0, outcomes, emitted, checkpoints, started, finished, output }
    }

    /// How many jobs it speaks of.
    pub fn count(&self) -> u16 {
        self.outcomes.iter().map(|(count, _)| count).sum()
    }
}

/// One job that another emitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The position in the start of the job that emitted it.
    pub by: u16,
    pub queue: QueueName,
    pub data: Vec<u8>,
}

/// What a job wrote, bounded; empty for handlers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub stdout: Stream,
    pub stderr: Stream,
}

/// One output stream of one attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Everything where it was little, else its head and its tail; empty where `file` has it.
    pub head: Vec<u8>,
    /// Large output lies in this file under the data directory's `output/`; read it through `launcher::unroll`.
    pub file: Option<String>,
    /// Bytes that the job wrote; more than is kept where the limit cut the middle out.
    pub total: u64,
}

/// Starts jobs. Outcomes come back as events to the engine.
pub trait Runner {
    /// Starts jobs; a start that is impossible still reports an outcome.
    fn start(&mut self, starts: Vec<Start>);

    /// Ends one start: what runs it is killed, and what was not reported yet is reported.
    fn stop(&mut self, flight: Flight, why: Stop);

    /// Ends one job of a flight that several share, and no other: one that has not begun does not begin, and whoever
    /// is at it alone is ended. One of several that a process or a call has together ends with that.
    fn cancel(&mut self, flight: Flight, position: u16);

    /// A lot is settled here and on disk: the server that has it need not remember it. Who sends none says nothing.
    fn confirm(&mut self, _lot: Arc<Departing>) {}

    /// Others need so many bytes of memory: processes that idle are ended. Who keeps none has nothing to give.
    fn make_room(&mut self, _bytes: u64) {}
}

/// Why a start is ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The server stops, but what has begun may go on: only what still waits comes back, as `Outcome::Interrupted`.
    Withdraw,
    /// A person cancelled the job: TERM, grace, KILL, then `Outcome::Cancelled`.
    Cancel,
    /// The server stops: TERM, grace, KILL, then `Outcome::Interrupted` unless it ended by itself.
    Interrupt,
    /// The server stops at once: KILL, then `Outcome::Interrupted`.
    Kill,
}
