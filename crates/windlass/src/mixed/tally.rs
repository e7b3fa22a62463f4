//! What has become of the jobs of each queue while this process works on it, and which that it pushed have not ended.

use crate::engine::event::Followed;
use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use windlass_core::job::JobId;
use windlass_core::life_cycle::State;

#[derive(Default)]
pub(super) struct Tally {
    queues: Mutex<HashMap<String, Told>>,
    /// One of those that were pushed has ended.
    news: Condvar,
}

#[derive(Default)]
struct Told {
    succeeded: u64,
    failed: u64,
    under_way: HashSet<JobId>,
}

impl Tally {
    /// An engine tells of an attempt that has ended; counted are those of its own stages' queues.
    pub(super) fn hear(&self, what: &Followed, own: &HashSet<String>) {
        let Followed::Change(change) = what else { return };
        if !change.state.is_end() || !own.contains(change.queue.as_str()) {
            return;
        }
        let mut queues = self.queues();
        let told = queues.entry(change.queue.as_str().to_owned()).or_default();
        match change.state {
            State::Succeeded => told.succeeded += 1,
            _ => told.failed += 1,
        }
        if told.under_way.remove(&change.id) {
            self.news.notify_all();
        }
    }

    /// How many have succeeded, and how many have not.
    pub(super) fn of(&self, queue: &str) -> (u64, u64) {
        self.queues().get(queue).map_or((0, 0), |told| (told.succeeded, told.failed))
    }

    /// Counts a job that is about to be pushed, once fewer than so many are under way; false where there are not within
    /// this time.
    pub(super) fn sets_out(&self, queue: &str, id: JobId, most: u64, within: Duration) -> bool {
        let mut queues = self.queues();
        let is_full = |told: &mut Told| most > 0 && told.under_way.len() as u64 >= most;
        if is_full(queues.entry(queue.to_owned()).or_default()) {
            queues = self.news.wait_timeout(queues, within).unwrap_or_else(PoisonError::into_inner).0;
        }
        let told = queues.entry(queue.to_owned()).or_default();
        !is_full(told) && told.under_way.insert(id)
    }

    /// One that was not taken in after all.
    pub(super) fn does_not(&self, queue: &str, id: JobId) {
        if let Some(told) = self.queues().get_mut(queue) {
            told.under_way.remove(&id);
        }
        self.news.notify_all();
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<String, Told>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
