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

/// In these a job can run yet.
const WAITING: [State; 3] = [State::Scheduled, State::Ready, State::Retrying];

impl<S: Store> Engine<S> {
    /// True when nothing that can run waits or runs.
    pub fn is_quiet(&self) -> bool {
        self.has_none(&WAITING, false)
    }

    /// True when all has ended that somebody waits for; where only what is due counts, what waits for its time does
    /// not.
    pub(super) fn satisfies(&self, waiter: &DrainedWaiter) -> bool {
        let waiting = if waiter.due_only { &[State::Ready][..] } else { &WAITING };
        self.has_none(waiting, waiter.here_only)
    }

    fn has_none(&self, waiting: &[State], here_only: bool) -> bool {
        let flies = if here_only { self.flights.end_here() > 0 } else { !self.flights.is_empty() };
        let live = |queue: &Queue| waiting.iter().any(|state| queue.by_state[state.index()] > 0);
        (!flies || sabotage::on(Sabotage::DrainedWhileRunning))
            && self.pending.is_empty()
            && !self.queues.iter().any(|(no, queue)| live(queue) && self.scheduler.can_run(no))
    }

    pub(super) fn answer_drained(&mut self, effects: &mut Effects) {
        self.waiters.reading_for_drained = false;
        let missed = self.waiters.missed;
        let waiters = std::mem::take(&mut self.waiters.drained);
        let (satisfied, others): (Vec<_>, Vec<_>) = waiters.into_iter().partition(|waiter| self.satisfies(waiter));
        self.waiters.drained = others;
        for DrainedWaiter { answer, before, .. } in satisfied {
            let (failed, cancelled) = (missed.failed - before.failed, missed.cancelled - before.cancelled);
            effects.answers.add(answer, Ok(Drained { failed, cancelled }));
        }
    }
}
