//! The keys that make jobs unique: what they are made of and for whom they count.
//!
//! A key is the first half of the SHA-256 of what it was given as, so that a row has a fixed size; two texts with the
//! same one are not met by chance. It must not know how a store keeps it.

use super::chunk::{Chunk, ChunkBuilder};
use super::{NewJobs, RunInfo};
use crate::sabotage::{self, Sabotage};
use ring::digest::{SHA256, digest};
use std::ops::Range;
use std::sync::Arc;
use windlass_core::job::{JobId, Priority, QueueName, QueueNo, RunNo};
use windlass_core::notify::Ending;
use windlass_core::particulars::{OnConflict, Scope, Unique};
use windlass_core::run::terms::EndJob;

/// A key within its scope: a run's, or a queue's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub scope: Scope,
    pub of: u32,
    pub hash: [u8; 16],
}

/// The key of a job; none where it is to be unique in its run and has none.
pub fn key_of(unique: &Unique, queue: QueueNo, run: Option<RunNo>, data: &[u8]) -> Option<Key> {
    let of = match unique.scope {
        Scope::Waiting | Scope::Active => queue.0,
        Scope::Run => run?.0,
    };
    let whole = digest(&SHA256, unique.key.as_deref().unwrap_or(data));
    let hash = *whole.as_ref().first_chunk()?;
    Some(Key { scope: unique.scope, of, hash })
}

/// What happens to keys when a job goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It was started.
    Begun,
    Ended,
}

impl Step {
    pub fn frees(self, scope: Scope) -> bool {
        let early = sabotage::on(Sabotage::KeyFreedEarly);
        match (self, scope) {
            (Step::Begun, Scope::Active) if early => true,
            (_, Scope::Waiting) | (Step::Ended, Scope::Active) => true,
            (Step::Begun, Scope::Active) | (_, Scope::Run) => false,
        }
    }
}

/// The keys that jobs of a chunk give up with this step.
pub fn freed(jobs: &Chunk, range: Range<usize>, queue: QueueNo, step: Step) -> Vec<(Key, JobId)> {
    let unique = jobs.particulars().and_then(|particulars| particulars.unique.as_ref());
    let Some(unique) = unique.filter(|unique| step.frees(unique.scope)) else { return Vec::new() };
    let key = |index| Some((key_of(unique, queue, None, jobs.data(index))?, jobs.id(index)));
    range.filter_map(key).collect()
}

/// The jobs that announce the end of a run: the one that was asked for, and those of the channels that hear of such an
/// end. Their ids are functions of the run's, so there is one of each; lines of a run's input have far smaller numbers.
pub fn end_jobs(run: &RunInfo) -> Vec<NewJobs> {
    let job = |number: u64, queue: QueueName, priority: Priority, data: &[u8]| {
        let mut builder = ChunkBuilder::new(run.id.origin);
        builder.push(END_OFFSET + (number << 32) + u64::from(run.id.generation), data);
        NewJobs { queue, priority, run: None, not_before: None, jobs: Arc::new(builder.finish()) }
    };
    let report = || run.counts.report(run.id);
    let announced = run.terms.end_job.clone().map(|EndJob { queue, priority, data }| {
        let data = if data.is_empty() { report().into_bytes() } else { data };
        job(0, queue, priority, &data)
    });
    let ending = Ending::of_run(&run.terms, &run.counts);
    let channels = run.terms.notify.of(ending).iter().zip(1..).map(|(channel, number)| {
        let (event, name) = (ending.word(), serde_json::Value::from(run.name.as_str()));
        let told = format!("{{\"event\":\"{event}\",\"name\":{name},\"run\":{}}}", report());
        job(number, channel.clone(), Priority::NORMAL, told.as_bytes())
    });
    announced.into_iter().chain(channels).collect()
}

const END_OFFSET: u64 = 1 << 62;

/// A job that was not taken in, because another has its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    pub id: JobId,
    pub of: JobId,
}

/// What is done about a key that is taken; `holder` is the state of the job that has it, if it is still there.
pub fn replaces(on_conflict: OnConflict, holder_runs: bool) -> bool {
    match on_conflict {
        // What must be refused was refused before; through a door that cannot be told, it is dropped.
        OnConflict::Ignore | OnConflict::Reject => false,
        OnConflict::Replace => !holder_runs,
    }
}
