//! What pages, commands and metrics may see of a store, and the forms in which they see it.
//!
//! It must not change anything: every question is about the committed state.

use super::{Cursor, Gone, Held, RunInfo, StoreError};
use std::ops::Deref;
use std::sync::Arc;
use windlass_core::job::{Arrival, JobId, LaneKind, Priority, QueueName, QueueNo, Record, RunId};
use windlass_core::judge::Reason;
use windlass_core::life_cycle::State;
use windlass_core::overrides::Override;
use windlass_core::particulars::{Particulars, Trace};
use windlass_core::selector::{Facts, Selector};
use windlass_core::time::Time;

/// A live or kept job, for `show` and `ls`. Finished jobs that succeeded are in the archive only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInfo {
    pub id: JobId,
    pub queue: QueueName,
    pub priority: Priority,
    pub kind: LaneKind,
    pub state: State,
    pub run: Option<RunId>,
    pub record: Record,
    pub admitted: Time,
    pub not_before: Option<Time>,
    pub ended: Option<Time>,
    pub reason: Option<Reason>,
    /// The last ten errors, oldest first.
    pub errors: Vec<AttemptError>,
    pub particulars: Option<Arc<Particulars>>,
    pub data: Vec<u8>,
}

impl JobInfo {
    /// Whether a selector means this job, at that moment.
    pub fn matches(&self, selector: &Selector, now: Time) -> bool {
        let run = self.run.map(|run| run.to_string());
        selector.matches(&Facts {
            id: &self.id.to_string(),
            queue: self.queue.as_str(),
            state: self.state,
            run: run.as_deref(),
            priority: self.priority,
            age: now.since(self.admitted),
            failures: self.record.failures,
            ended: self.ended.map(|at| now.since(at)),
            due: self.not_before.map(|at| at.since(now)),
            reason: self.reason,
            error: self.errors.last().map_or("", |error| &error.text),
            data: &self.data,
            subject: subject_of(self.particulars.as_deref()),
        })
    }
}

impl Held {
    /// The application's record that its jobs are about: its type and its id.
    pub fn subject(&self) -> Option<(&str, &str)> {
        subject_of(self.jobs.particulars().map(|particulars| &**particulars))
    }

    /// The trace that its jobs belong to.
    pub fn trace(&self) -> Option<&Trace> {
        self.jobs.particulars()?.trace.as_ref()
    }
}

/// The record that a job is about, as a selector asks for it.
pub fn subject_of(particulars: Option<&Particulars>) -> Option<(&str, &str)> {
    particulars?.subject.as_ref().map(|subject| (subject.kind.as_str(), subject.id.as_str()))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptError {
    pub start: u32,
    pub at: Time,
    pub text: String,
}

/// Which jobs a listing wants; empty lists mean all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub queues: Vec<String>,
    pub states: Vec<State>,
    pub run: Option<RunId>,
}

/// One page of a listing and where the next one begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub jobs: Vec<JobInfo>,
    pub next: Option<Arrival>,
}

/// The counters of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    pub no: QueueNo,
    pub name: QueueName,
    pub stats: QueueStats,
}

/// Kept per queue in the transactions that change them; the end states count for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    pub by_state: [u64; State::ALL.len()],
    pub started: u64,
    /// Sums over finished starts, in microseconds.
    pub waited: u64,
    pub ran: u64,
}

/// A server that shares the store with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// The host, and what tells it from others there.
    pub name: String,
    /// The number of its opening.
    pub epoch: u64,
    /// How long it is taken for alive if it is not heard of, by the store's clock; negative where that is over.
    pub lease_micros: i64,
    pub slots: u64,
    /// The memory that its jobs may have, in bytes; none where that is not limited.
    pub memory: Option<u64>,
    /// Jobs that it holds.
    pub running: u64,
    pub draining: bool,
    pub controls: bool,
}

/// What pages, commands and metrics may see of the committed state. Cannot change anything.
pub trait StoreView {
    fn job(&self, id: JobId) -> Result<Option<JobInfo>, StoreError>;
    /// False where certainly no job is here whose id lies between these two of one origin, however it is kept.
    fn may_hold(&self, _first: JobId, _last: JobId) -> Result<bool, StoreError> {
        Ok(true)
    }
    /// Those of these jobs of which only a row is left, and why. A store that keeps none of what has ended knows none.
    fn gone(&self, _ids: &[JobId]) -> Result<Vec<(JobId, Gone)>, StoreError> {
        Ok(Vec::new())
    }
    /// Jobs by arrival from `from` on; `limit` bounds the answer and the work.
    fn list(&self, filter: &Filter, from: Arrival, limit: usize) -> Result<Page, StoreError>;
    fn queues(&self) -> Result<Vec<QueueInfo>, StoreError>;
    fn run(&self, id: RunId) -> Result<Option<RunInfo>, StoreError>;
    fn runs(&self, limit: usize) -> Result<Vec<RunInfo>, StoreError>;
    /// Inbox cursors, so that a reader can go on where the store left off.
    fn cursors(&self) -> Result<Vec<Cursor>, StoreError>;
    /// What people changed while running.
    fn overrides(&self) -> Result<Vec<Override>, StoreError>;
    /// The servers that share the store; none where it is one server's alone.
    fn servers(&self) -> Result<Vec<ServerInfo>, StoreError> {
        Ok(Vec::new())
    }
}

/// Whoever holds one, alone or with others, has one.
impl<P: Deref<Target: StoreView>> StoreView for P {
    fn job(&self, id: JobId) -> Result<Option<JobInfo>, StoreError> {
        (**self).job(id)
    }
    fn may_hold(&self, first: JobId, last: JobId) -> Result<bool, StoreError> {
        (**self).may_hold(first, last)
    }
    fn gone(&self, ids: &[JobId]) -> Result<Vec<(JobId, Gone)>, StoreError> {
        (**self).gone(ids)
    }
    fn list(&self, filter: &Filter, from: Arrival, limit: usize) -> Result<Page, StoreError> {
        (**self).list(filter, from, limit)
    }
    fn queues(&self) -> Result<Vec<QueueInfo>, StoreError> {
        (**self).queues()
    }
    fn run(&self, id: RunId) -> Result<Option<RunInfo>, StoreError> {
        (**self).run(id)
    }
    fn runs(&self, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        (**self).runs(limit)
    }
    fn cursors(&self) -> Result<Vec<Cursor>, StoreError> {
        (**self).cursors()
    }
    fn overrides(&self) -> Result<Vec<Override>, StoreError> {
        (**self).overrides()
    }
    fn servers(&self) -> Result<Vec<ServerInfo>, StoreError> {
        (**self).servers()
    }
}
