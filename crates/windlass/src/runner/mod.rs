//! The hands: a runner starts jobs and reports exactly one outcome per start, also when it was killed.
//!
//! This file owns the seam between the engine and what does the work. A runner must not touch the store.

use crate::store::Held;
use std::sync::Arc;
use windlass_core::job::QueueName;
use windlass_core::outcome::Outcome;
use windlass_core::policy::Policy;
use windlass_core::time::Time;

pub mod command;
pub mod front;
pub mod handler;
pub mod launcher;

/// The engine's number for one start under way; never reused while the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flight(pub u64);

/// Please start this: its start is on disk already.
#[derive(Clone, Debug)]
pub struct Start {
    pub flight: Flight,
    pub queue: Arc<QueueName>,
    pub policy: Arc<Policy>,
    pub epoch: u64,
    /// One job for a command, up to a batch for a handler.
    pub held: Held,
    /// The job's number for `{#}`.
    pub number: u64,
    /// The run's id in words, for the job's environment; empty without one.
    pub run: String,
}

/// The end of a start.
#[derive(Clone, Debug)]
pub struct Finished {
    pub flight: Flight,
    /// Stretches of the held jobs, in order and covering all of them, each with its outcome.
    pub outcomes: Vec<(u16, Outcome)>,
    pub started: Time,
    pub finished: Time,
    pub output: Output,
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

    /// Ends one start: the tree is killed and the outcome reported is `as_outcome`.
    fn stop(&mut self, flight: Flight, why: Stop);
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
