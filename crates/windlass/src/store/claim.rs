//! What a claim is: which jobs were taken together, from where, and how their start ended.
//!
//! Owns no job and changes none: stores give these out and take them back, the engine carries them in between.

use super::chunk::Chunk;
use std::ops::Range;
use std::sync::Arc;
use windlass_core::job::{Arrival, JobId, Lane, QueueName, Record, RunId, RunNo};
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

/// A job that is alone in its queue, in a flight that others of its crew share.
#[derive(Clone, Debug)]
pub struct Fellow {
    pub queue: Arc<QueueName>,
    /// One job, which was never started before.
    pub held: Held,
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

/// One settlement for fellows of a flight that ended alike: tens of thousands of jobs that are alone in their queues
/// would have as many, each with all that a settlement holds.
#[derive(Clone, Debug)]
pub struct Together {
    pub fellows: Arc<[Fellow]>,
    /// Which of them, by their places.
    pub which: Range<usize>,
    pub verdict: Verdict,
    pub outcome: &'static str,
    pub started: Time,
    pub finished: Time,
}

impl Together {
    pub fn members(&self) -> &[Fellow] {
        &self.fellows[self.which.clone()]
    }

    pub fn ends(&self) -> impl Iterator<Item = End<'_>> + Clone {
        let Together { verdict, outcome, started, finished, .. } = self;
        let (started, finished) = (*started, *finished);
        self.members().iter().map(move |fellow| End { held: &fellow.held, verdict, outcome, started, finished })
    }
}

/// A settlement to look at: one that stands for itself, or one of those that ended together.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub held: &'a Held,
    pub verdict: &'a Verdict,
    pub outcome: &'static str,
    pub started: Time,
    pub finished: Time,
}

impl<'a> End<'a> {
    pub fn of(settlement: &'a Settlement) -> End<'a> {
        let Settlement { held, verdict, outcome, started, finished } = settlement;
        End { held, verdict, outcome, started: *started, finished: *finished }
    }

    pub fn settlement(self) -> Settlement {
        let End { held, verdict, outcome, started, finished } = self;
        Settlement { held: held.clone(), verdict: verdict.clone(), outcome, started, finished }
    }
}
