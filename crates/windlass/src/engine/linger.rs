//! Lets queues of batch commands wait for a full batch, but never longer than their `batch_linger`.
//!
//! It owns since when each of them waits. The scheduler is told who lingers; a full batch or the time ends it.

use super::Engine;
use crate::store::Store;
use std::collections::BTreeMap;
use std::time::Duration;
use windlass_core::job::QueueNo;
use windlass_core::time::Time;

/// Queues that have some jobs but not a batch, and until when they wait for more.
#[derive(Debug, Default)]
pub(super) struct Lingering(BTreeMap<QueueNo, Time>);

impl Lingering {
    pub(super) fn queues(&self) -> impl Iterator<Item = QueueNo> {
        self.0.keys().copied()
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.0.values().min().copied()
    }
}

impl<S: Store> Engine<S> {
    /// Before a plan: who has a full batch or has waited long enough may start, the others wait on.
    pub(super) fn end_lingering(&mut self, now: Time) {
        for queue in std::mem::take(&mut self.changed) {
            let Some((_, policy)) = self.scheduler.policy_of(queue) else { continue };
            let (linger, size) = (policy.service.linger(), u64::from(policy.service.jobs_a_slot()));
            let waiting = self.scheduler.waiting(queue);
            if linger == Duration::ZERO || waiting == 0 || waiting >= size {
                self.lingering.0.remove(&queue);
                self.scheduler.set_lingering(queue, false);
            } else {
                self.lingering.0.entry(queue).or_insert(now.after(linger));
                self.scheduler.set_lingering(queue, true);
            }
        }
        // A clock that was set back must not stretch the wait; no linger is longer than an hour.
        let due = |until: &Time| *until <= now || *until > now.after(LINGER_MOST);
        let over: Vec<QueueNo> =
            self.lingering.0.iter().filter(|(_, until)| due(until)).map(|(queue, _)| *queue).collect();
        for queue in over {
            self.lingering.0.remove(&queue);
            self.scheduler.set_lingering(queue, false);
        }
    }
}

/// The longest `batch_linger` that a config may have.
pub const LINGER_MOST: Duration = Duration::from_secs(3600);
