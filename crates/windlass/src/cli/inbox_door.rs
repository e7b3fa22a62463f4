//! The door that needs no server, as the command line uses it; every contact with the inbox's writer is here.

use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::store::Durability;
use std::io::Read;
use windlass_core::job::{JobId, Priority, QueueName, RunId};
use windlass_core::time::Time;

/// What all jobs of one push have in common.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) queue: QueueName,
    pub(super) priority: Priority,
    pub(super) run: Option<RunId>,
    pub(super) not_before: Option<Time>,
    pub(super) durability: Durability,
}

/// What a push of lines came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) count: u64,
}

/// Accepts jobs together: all or none; durable as the terms say when it returns.
pub(super) fn push(dir: &DataDir, terms: &Terms, data: &[Vec<u8>]) -> Result<Vec<JobId>, Failure> {
    Err(absent(dir, terms, data.len()))
}

/// Accepts what `lines` gives, one job per line; `accepted` hears of each id once it is durable.
pub(super) fn push_lines(
    dir: &DataDir,
    terms: &Terms,
    separator: u8,
    lines: &mut dyn Read,
    accepted: &mut dyn FnMut(JobId),
) -> Result<Summary, Failure> {
    let _ = (separator, lines, accepted);
    Err(absent(dir, terms, 0))
}

/// No more jobs will join this run from outside; what this user pushed before is in.
pub(super) fn seal(dir: &DataDir, run: RunId, durability: Durability) -> Result<(), Failure> {
    let _ = durability;
    Err(Failure::new(Kind::Internal, format!("this build cannot seal {run} in {}", dir.inbox().display())))
}

fn absent(dir: &DataDir, terms: &Terms, count: usize) -> Failure {
    let at = dir.inbox();
    Failure::new(Kind::Internal, format!("this build cannot write {count} of {} to {}", terms.queue, at.display()))
}
