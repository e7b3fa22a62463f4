//! One planned slot filled: the claim is stored, the flight is known, the start is an effect of the commit.

use super::Engine;
use super::effects::Effects;
use super::turn::Progress;
use crate::runner::Start;
use crate::store::{Order, Store, StoreError};
use std::sync::Arc;
use windlass_core::scheduler::Planned;
use windlass_core::time::Time;

impl<S: Store> Engine<S> {
    /// Fills one planned slot, for a remote worker's ask where there is one; tells how many jobs there were.
    pub(super) fn claim_planned(
        &mut self,
        planned: Planned,
        asked: Option<u64>,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<u32, StoreError> {
        let order = Order { lane: planned.lane, most: planned.most };
        let held = self.store.claim(&[order], now)?;
        let got = held.iter().map(|held| u32::from(held.count)).sum();
        self.scheduler.claimed(&planned, got);
        // What is left may be less than a batch.
        self.changed.insert(planned.lane.queue);
        if got == 0 {
            return Ok(0);
        }
        progress.needs(self.options.durability);
        let Some(policy) = self.scheduler.policy(planned.crew) else { return Ok(got) };
        let (claim, departed) = self.flights.depart(planned.crew, &policy, held, now);
        for (flight, held) in departed {
            progress.departed.push(flight);
            self.workers.depart(flight, now);
            if asked.is_some() {
                self.lease(&held)?;
            }
            let run = held.run.and_then(|no| self.runs.get(no)).map(|run| run.info.id);
            let number = held.number(run);
            let run = run.map(|id| id.to_string()).unwrap_or_default();
            let queue = Arc::clone(self.queue_name(held.lane.queue));
            let (policy, epoch) = (Arc::clone(&policy), self.store.epoch());
            effects.starts.push(Start { flight, claim, queue, policy, epoch, held, number, run, asked });
        }
        Ok(got)
    }
}
