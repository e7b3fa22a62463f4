//! Who waits for the inbox to be read to its end, and for everything to be done.
//!
//! "Drained" is exact: it is answered only when, at one moment, nothing that can run waits or runs and every byte
//! of the inbox had been read. So the inbox is read to its end once the store is quiet, and if that brought work,
//! again after that work.

use super::event::{Answer, Drained, Followed, Follower};
use crate::store::RunInfo;
use std::collections::HashMap;
use windlass_core::job::RunId;

/// What to do when the inbox has been read to its end.
#[derive(Debug)]
pub enum Then {
    /// Look at the drained waiters again.
    Drained,
    AwaitRun(RunId, Answer<RunInfo>),
    Seal(RunId, Answer<()>),
    /// Then wait for the archive, too.
    CatchUp(Answer<()>),
}

/// Somebody who waits for everything to end.
#[derive(Debug)]
pub struct DrainedWaiter {
    pub answer: Answer<Drained>,
    /// What was counted before it began to wait.
    pub before: Drained,
    /// What waits for a later time is not waited for.
    pub due_only: bool,
    /// Nor what is on its way to another server, which may never answer.
    pub here_only: bool,
}

/// All who wait.
#[derive(Debug, Default)]
pub struct Waiters {
    reading: HashMap<u64, Then>,
    last: u64,
    pub drained: Vec<DrainedWaiter>,
    /// Who waits for the archive to hold everything up to a turn.
    pub archive: Vec<(u64, Answer<()>)>,
    /// Who is told of everything that ends.
    pub watchers: Vec<Follower>,
    /// The inbox is being read to its end for the drained waiters.
    pub reading_for_drained: bool,
    /// Jobs that failed or were cancelled since the engine began.
    pub missed: Drained,
    /// The same with those of the open turn, which may be dropped.
    pub missed_now: Drained,
}

impl Waiters {
    /// Asks for the inbox to be read to its end; returns the number under which the answer comes.
    pub fn read_inbox(&mut self, then: Then) -> u64 {
        self.last += 1;
        self.reading.insert(self.last, then);
        self.last
    }

    /// Tells the watchers; one that no longer listens is dropped.
    pub fn tell(&mut self, told: &Followed) {
        self.watchers.retain_mut(|watcher| (watcher.0)(told.clone()));
    }

    pub fn inbox_read(&mut self, waiter: u64) -> Option<Then> {
        self.reading.remove(&waiter)
    }
}
