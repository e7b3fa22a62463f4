//! What a committed turn leads to: plain values that somebody else performs, in this order.

use super::event::Answer;
use crate::archiver::{Entry, Several};
use crate::audit::Audited;
use crate::error::Failure;
use crate::lot::Departing;
use crate::runner::{Flight, Start, Stop};
use crate::store::keys::Duplicate;
use crate::store::{End, RunInfo};
use std::fmt;
use std::sync::Arc;
use windlass_core::job::JobId;
use windlass_core::life_cycle::State;

/// Performed only after the commit: nobody is told of what might not have happened.
#[derive(Debug, Default)]
pub struct Effects {
    pub answers: Answers,
    pub starts: Vec<Start>,
    pub stops: Vec<(Flight, Stop)>,
    /// Cancelled jobs that share a flight with jobs of other queues: the flight, and the position there.
    pub cancels: Vec<(Flight, u16)>,
    /// Lots that are settled here: the servers that have them may forget their numbers.
    pub confirms: Vec<Arc<Departing>>,
    /// Bytes of memory that idle processes hold and a start lacks.
    pub make_room: u64,
    /// Running jobs that a person cancelled: told to stop only if the turn that says so is committed.
    pub cancelled: Vec<JobId>,
    /// Jobs whose state a person changed, and what it is now: for those who watch.
    pub amended: Vec<(JobId, State)>,
    /// What was settled, for the archive, under the turn's number.
    pub archive: Vec<Entry>,
    /// The same of jobs of several queues that ended together.
    pub together: Vec<Several>,
    pub turn: u64,
    /// How many lots of the inbox reader are durable now.
    pub ingested: u32,
    /// The inbox must be read to its end for these waiters.
    pub read_inbox: Vec<u64>,
    /// Runs whose end this turn committed.
    pub ended: Vec<RunInfo>,
    /// Jobs that were not taken in, because others have their keys.
    pub duplicates: Vec<Duplicate>,
    /// Somebody wants everything to be looked at now.
    pub nudge: bool,
    /// What people changed, for the audit log: written before the answers are given.
    pub audit: Vec<Audited>,
    /// Sentences for the log.
    pub notes: Vec<String>,
    /// Whoever asked for what the store refuses has been told so; the turn is dropped.
    pub refusal_told: bool,
}

impl Effects {
    /// Every end that the archive is to have.
    pub fn ends(&self) -> impl Iterator<Item = End<'_>> {
        let together = self.together.iter().flat_map(|several| several.ends.ends());
        self.archive.iter().map(|entry| End::of(&entry.settlement)).chain(together)
    }

    /// Shows the same as entries of the archive.
    pub(super) fn each_entry(&self, mut show: impl FnMut(&Entry)) {
        self.archive.iter().for_each(&mut show);
        self.together.iter().for_each(|several| several.each(&mut show));
    }

    /// Whether the archive is to have anything.
    pub fn has_ends(&self) -> bool {
        !self.archive.is_empty() || !self.together.is_empty()
    }
}

/// Answers bound to their values; if the turn is dropped all of them become the same failure.
#[derive(Default)]
pub struct Answers(Vec<Give>);

type Give = Box<dyn FnOnce(Option<Failure>) + Send>;

impl Answers {
    pub fn add<T: Send + 'static>(&mut self, answer: Answer<T>, value: Result<T, Failure>) {
        self.0.push(Box::new(move |dropped| answer.give(dropped.map_or(value, Err))));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn give(self) {
        for give in self.0 {
            give(None);
        }
    }

    /// The turn never was: whatever was asked is told why.
    pub fn refuse(self, why: &Failure) {
        for give in self.0 {
            give(Some(why.clone()));
        }
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answers", self.0.len())
    }
}
