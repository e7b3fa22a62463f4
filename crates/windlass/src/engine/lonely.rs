//! Jobs that are alone in their queues: those of one crew are claimed together and share a flight.
//!
//! A queue with one job would have a claim, a flight, a start and a report of its own for it, and tens of thousands of
//! such queues as many. Which of them may share is core's to say. What ends is settled job by job all the same.

use super::Engine;
use super::effects::Effects;
use super::turn::Progress;
use crate::runner::{Fellow, Start};
use crate::store::{Held, Order, Store, StoreError};
use std::sync::Arc;
use windlass_core::scheduler::Planned;
use windlass_core::time::Time;

/// The most jobs of such a flight: as many as a chunk of one queue has.
const TOGETHER_MOST: usize = 1000;

impl<S: Store> Engine<S> {
    /// How many of the first plans may be of one flight; none where the first may not share.
    pub(super) fn lonely(&self, planned: &[Planned]) -> usize {
        self.scheduler.together(&planned[..planned.len().min(TOGETHER_MOST)])
    }

    /// Fills slots that may share a flight; tells how many jobs go. Where it fails, the slots are free again.
    pub(super) fn claim_lonely(
        &mut self,
        planned: &[Planned],
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<u32, StoreError> {
        let orders: Vec<Order> = planned.iter().map(|next| Order { lane: next.lane, most: next.most }).collect();
        let free = |scheduler: &mut windlass_core::scheduler::Scheduler| {
            planned.iter().for_each(|next| scheduler.claimed(next, 0));
        };
        let held = self.claim_known(&orders, now).inspect_err(|_| free(&mut self.scheduler))?;
        let held = one_by_one(held);
        let mut given = held.iter().peekable();
        for next in planned {
            let got = given.next_if(|held| held.lane == next.lane).is_some();
            self.scheduler.claimed(next, u32::from(got));
            if got {
                self.stalemates.started(next.lane.queue);
            }
        }
        if let Some(held) = given.next() {
            return Err(StoreError::Corrupt(format!("queue {} gave a job that nobody ordered", held.lane.queue.0)));
        }
        let going = held.len() as u32;
        let crew = planned.first().map(|next| next.crew);
        let Some((crew, policy)) = crew.and_then(|crew| Some((crew, self.scheduler.terms(crew)?))) else {
            return Ok(going);
        };
        if going > 0 {
            progress.needs(self.options.durability);
        }
        // What was started before may have left word for this start, and is told of by itself.
        let run = held.first().and_then(|held| held.run);
        let fits = |held: &Held| held.record.starts == 0 && held.run == run;
        let all = held.iter().all(fits);
        let (together, alone): (Vec<Held>, Vec<Held>) =
            if all { (held, Vec::new()) } else { held.into_iter().partition(fits) };
        for held in alone {
            let (claim, departed) = self.flights.depart(crew, &policy, vec![held], now);
            for (flight, held) in departed {
                progress.departed.push(flight);
                effects.starts.push(self.start(flight, claim, held, Arc::clone(&policy), None)?);
            }
        }
        let mut together = together.into_iter();
        if let Some(first) = together.next() {
            let fellow = |held: Held| Fellow { queue: Arc::clone(self.queue_name(held.lane.queue)), held };
            let fellows: Arc<[Fellow]> = together.map(fellow).collect();
            let (claim, flight) = self.flights.depart_together(crew, &policy, first.clone(), Arc::clone(&fellows), now);
            progress.departed.push(flight);
            let start = self.start(flight, claim, first, policy, None)?;
            effects.starts.push(Start { fellows, ..start });
        }
        Ok(going)
    }
}

/// Each job by itself: a store may have found that some of different orders are neighbours.
fn one_by_one(held: Vec<Held>) -> Vec<Held> {
    if held.iter().all(|held| held.count == 1) {
        return held;
    }
    held.iter().flat_map(|held| (0..held.count).map(|position| held.part(position, 1))).collect()
}
