//! What a claim is: which jobs were taken together, from where, and how their start ended.
//!
//! Owns no job and changes none: stores give these out and take them back, the engine carries them in between.

use super::chunk::Chunk;
use std::sync::Arc;
use windlass_core::job::{Arrival, JobId, Lane, Record, RunId, RunNo};
use windlass_core::judge::Verdict;
use windlass_core::time::Time;

/// Please claim up to `most` jobs from the head of this lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub lane: Lane,
    pub most: u32,
}

/// Where the store keeps claimed jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Jobs `first..first + count` of the chunk with this first arrival.
    Chunk(Arrival),
    /// A single job off the common path.
    Row(Arrival),
}

/// Neighbouring jobs that one claim took together: start `record.starts + 1` of each is stored.
#[derive(Clone, Debug)]
pub struct Held {
    pub place: Place,
    pub lane: Lane,
    pub run: Option<RunNo>,
    /// As it was before this start.
    pub record: Record,
    /// When the jobs were admitted, for the statistics of waiting.
    pub admitted: Time,
    pub jobs: Arc<Chunk>,
    pub first: u16,
    pub count: u16,
}

impl Held {
    pub fn ids(&self) -> impl Iterator<Item = JobId> + '_ {
        self.range().map(|index| self.jobs.id(index))
    }

    /// The position of a job within it.
    pub fn find(&self, job: JobId) -> Option<u16> {
        let index = self.jobs.find(job).filter(|index| self.range().contains(index))?;
        Some(index as u16 - self.first)
    }

    pub fn range(&self) -> std::ops::Range<usize> {
        usize::from(self.first)..usize::from(self.first) + usize::from(self.count)
    }

    /// How much data so many of its jobs have, by positions within it.
    pub fn bytes(&self, first: u16, count: u16) -> u64 {
        let from = usize::from(self.first) + usize::from(first);
        self.jobs.data_of(from..from + usize::from(count)).len() as u64
    }

    /// The number of its first job for `{#}`: the line in a run's input, or the order of arrival.
    pub fn number(&self, run: Option<RunId>) -> u64 {
        let id = self.jobs.id(usize::from(self.first));
        let (Place::Chunk(first) | Place::Row(first)) = self.place;
        match (run, self.place) {
            (Some(run), _) if run.origin == id.origin => id.offset,
            (_, Place::Chunk(_)) => first.0 + u64::from(self.first),
            (_, Place::Row(_)) => first.0,
        }
    }

    /// The start that this claim stored.
    pub fn start(&self) -> u32 {
        self.record.starts + 1
    }

    /// A stretch of this claim, by positions within it.
    pub fn part(&self, first: u16, count: u16) -> Held {
        assert!(first + count <= self.count, "a part lies within its claim");
        Held { first: self.first + first, count, ..self.clone() }
    }
}

/// The end of one start of some held jobs.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub held: Held,
    pub verdict: Verdict,
    /// The outcome's word, for the archive.
    pub outcome: &'static str,
    pub started: Time,
    pub finished: Time,
}
