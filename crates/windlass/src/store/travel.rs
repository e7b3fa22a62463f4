//! Jobs on their way between servers: what one brings along, and why one is not taken out of its queue.
//!
//! Plain values that the verbs `hold` and `arrive` give and take. It must not know lots: the engine does.

use super::AttemptError;
use super::chunk::Chunk;
use std::sync::Arc;
use windlass_core::job::{Priority, QueueName, Record, RunId};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// What a job that comes from another server brings along beside its lane and its chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// Scheduled, ready, retrying or suspended.
    pub state: State,
    /// When a scheduled or retrying job becomes ready.
    pub due: Option<Time>,
    pub record: Record,
    pub errors: Vec<AttemptError>,
}

/// One job that was tried, put off or held back elsewhere.
#[derive(Clone, Debug)]
pub struct Arriving {
    pub queue: QueueName,
    pub priority: Priority,
    pub past: Past,
    /// Of this one job.
    pub jobs: Arc<Chunk>,
}

/// Why a job is not taken out of its queue for another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unheld {
    Unknown,
    Running,
    Ended(State),
    /// Jobs of a run stay with it.
    OfRun(RunId),
    /// It waits for other jobs.
    Waits,
    /// The store cannot.
    Unable,
}

/// What became of a job that was here and does not wait or run any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    Ended,
    /// To another server, which may give it back.
    Moved,
}
