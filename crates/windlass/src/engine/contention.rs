//! Looks at what holds ready jobs, now and then before a turn changes it: the scheduler says what, core adds it up.

use super::Engine;
use crate::store::Store;
use std::collections::BTreeMap;
use windlass_core::contention::HeldFor;
use windlass_core::life_cycle::State;

impl<S: Store> Engine<S> {
    /// Before a turn: what holds a queue now has held it since the last one. No job is looked at.
    pub(super) fn measure_contention(&mut self) {
        let Some(now) = self.told_steady else { return };
        let Some(time) = self.contention.look(now, self.queues.0.len()).filter(|_| self.ready > 0) else { return };
        for (queue, _) in self.queues.iter().filter(|(_, queue)| queue.by_state[State::Ready.index()] > 0) {
            self.contention.saw(queue, &self.scheduler.why(queue), time);
        }
    }

    /// For how long each queue was held so far, and by what.
    pub(super) fn held_for(&self) -> BTreeMap<String, HeldFor> {
        self.contention.held().map(|(queue, held)| (self.queue_name(queue).to_string(), held.clone())).collect()
    }
}
