//! When everything that can run has ended: what that means, and who is told.
//!
//! It must not decide what can run: that is the scheduler's.

use super::effects::Effects;
use super::event::Drained;
use super::waiters::DrainedWaiter;
use super::{Engine, Queue};
use crate::sabotage::{self, Sabotage};
use crate::store::Store;
use windlass_core::life_cycle::State;

impl<S: Store> Engine<S> {
    /// True when nothing that can run waits or runs.
    pub fn is_quiet(&self) -> bool {
        self.has_none(&[State::Scheduled, State::Ready, State::Retrying])
    }

    /// True when nothing runs or could run now; what waits for its time does not count.
    pub(super) fn is_idle(&self) -> bool {
        self.has_none(&[State::Ready])
    }

    fn has_none(&self, waiting: &[State]) -> bool {
        let live = |queue: &Queue| waiting.iter().any(|state| queue.by_state[state.index()] > 0);
        (self.flights.is_empty() || sabotage::on(Sabotage::DrainedWhileRunning))
            && self.pending.is_empty()
            && !self.queues.iter().any(|(no, queue)| live(queue) && self.scheduler.can_run(no))
    }

    pub(super) fn answer_drained(&mut self, effects: &mut Effects) {
        self.waiters.reading_for_drained = false;
        let (quiet, idle, missed) = (self.is_quiet(), self.is_idle(), self.waiters.missed);
        let satisfied = |waiter: &mut DrainedWaiter| if waiter.due_only { idle } else { quiet };
        for DrainedWaiter { answer, before, .. } in self.waiters.drained.extract_if(.., satisfied) {
            let (failed, cancelled) = (missed.failed - before.failed, missed.cancelled - before.cancelled);
            effects.answers.add(answer, Ok(Drained { failed, cancelled }));
        }
    }
}
