//! The last step of a turn before its commit: fills the planned slots. The start is stored before it happens.
//!
//! What the store gave becomes flights, and starts for after the commit. Where jobs may not start yet because of where
//! they go, their slots serve the jobs behind them in the same turn.

use super::Engine;
use super::ask::Ask;
use super::effects::Effects;
use super::turn::Progress;
use crate::lot::Manner;
use crate::runner::{Flight, Lent, Start};
use crate::store::{Held, Order, Store, StoreError};
use std::collections::HashMap;
use std::sync::Arc;
use windlass_core::circuit::Sign;
use windlass_core::policy::{Policy, Service};
use windlass_core::scheduler::Planned;
use windlass_core::time::Time;

/// A turn claims no more jobs once it has so many. It is more than one wide lot brings, so that what was admitted is
/// claimed while it is still in memory.
const CLAIMED_MOST: u64 = 80 << 10;

impl<S: Store> Engine<S> {
    pub(super) fn claim(
        &mut self,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        self.note_what_is_asked_for();
        self.end_lingering(now);
        let mut booked = 0;
        loop {
            let mut planned = self.scheduler.plan_up_to(CLAIMED_MOST - booked);
            booked += planned.iter().map(|planned| u64::from(planned.most)).sum::<u64>();
            let stock = self.plan_stock(progress, &planned);
            planned.extend(stock);
            let (_, all_went) = self.claim_all(planned, None, now, progress, effects)?;
            // What the budget left out is the next turn's, which must not wait for an event.
            self.turn_again = booked >= CLAIMED_MOST;
            // Where jobs were sent away, their slots may serve the jobs behind them.
            if all_went || self.turn_again {
                break;
            }
        }
        effects.make_room = self.scheduler.memory_wanted();
        self.serve_asks(now, progress, effects)?;
        let changes = self.store.changes();
        self.count(&changes);
        Ok(())
    }

    /// Fills planned slots, for a remote worker's ask where there is one; tells how many jobs go, and false where jobs
    /// were claimed that may not start yet, and sent away. Where it fails the turn is dropped, and of what was planned
    /// nothing stays booked but what has departed, which is taken back with the turn.
    pub(super) fn claim_all(
        &mut self,
        planned: Vec<Planned>,
        asked: Option<&Ask>,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(u32, bool), StoreError> {
        let (mut jobs, mut all_went) = (0, true);
        let mut rest = &planned[..];
        let mut tokens = asked.into_iter().flat_map(|ask| &ask.tokens);
        while let Some(next) = rest.first() {
            let (now_filled, later) = rest.split_at(self.lonely(rest).max(1));
            let filled = match now_filled {
                [_, _, ..] => self.claim_lonely(now_filled, now, progress, effects).map(|going| (going, true)),
                [] | [_] => {
                    let lent = asked.zip(tokens.next()).map(|(ask, token)| {
                        let (ask, token) = (Some(ask.number), token.clone());
                        Lent { token, since: now, ask, spoken: Vec::new() }
                    });
                    self.claim_planned(next, lent, now, progress, effects)
                }
            };
            rest = later;
            let (going, went) = filled.inspect_err(|_| rest.iter().for_each(|next| self.scheduler.claimed(next, 0)))?;
            (jobs, all_went) = (jobs + going, all_went && went);
        }
        Ok((jobs, all_went))
    }

    /// Fills one planned slot; where it fails, the slot is free again.
    fn claim_planned(
        &mut self,
        planned: &Planned,
        lent: Option<Lent>,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(u32, bool), StoreError> {
        let order = Order { lane: planned.lane, most: planned.most };
        let held = self.claim_known(&[order], now).inspect_err(|_| self.scheduler.claimed(planned, 0))?;
        let got = count_of(&held);
        self.scheduler.claimed(planned, got);
        if got > 0 {
            self.stalemates.started(planned.lane.queue);
        }
        let policy = self.scheduler.terms(planned.crew);
        // What is left may be less than a batch.
        if policy.as_ref().is_none_or(|policy| !policy.service.linger().is_zero()) {
            self.changed.insert(planned.lane.queue);
        }
        let Some(policy) = policy.filter(|_| got > 0) else {
            return Ok((got, true));
        };
        let asked_where = self.ask_destinations(planned.crew, &policy, held, now, effects);
        let held = asked_where.inspect_err(|_| {
            self.scheduler.heard(planned.crew, got, Sign::None);
            self.scheduler.finished(planned.crew, planned.lane);
        })?;
        let going = count_of(&held);
        progress.needs(self.options.durability);
        if going < got {
            self.scheduler.heard(planned.crew, got - going, Sign::None);
        }
        if going == 0 {
            self.scheduler.finished(planned.crew, planned.lane);
            return Ok((0, false));
        }
        if let Some(lent) = &lent
            && let Err(error) = held.iter().try_for_each(|held| self.lease(held, lent))
        {
            held.iter().for_each(|held| self.hear_of_destinations(planned.crew, held, Sign::None));
            self.scheduler.finished(planned.crew, planned.lane);
            return Err(error);
        }
        let lots = match &policy.service {
            Service::Forward(to) => self.pack(&held, to, Manner::Forward, HashMap::new(), None, progress),
            _ => Ok(Vec::new()),
        };
        let lots = lots.inspect_err(|_| self.scheduler.finished(planned.crew, planned.lane))?;
        let (claim, departed) = self.flights.depart(planned.crew, &policy, held, now);
        progress.departed.extend(departed.iter().map(|(flight, _)| *flight));
        for (at, (flight, held)) in departed.into_iter().enumerate() {
            let lot = lots.get(at).cloned();
            lot.iter().for_each(|lot| self.flights.belongs_to(flight, lot));
            let start = self.start(flight, claim, held, Arc::clone(&policy), lent.clone())?;
            effects.starts.push(Start { lot, ..start });
        }
        Ok((going, going == got))
    }

    /// Claims, and learns of runs that another server opened.
    pub(super) fn claim_known(&mut self, orders: &[Order], now: Time) -> Result<Vec<Held>, StoreError> {
        let held = self.store.claim(orders, now)?;
        for no in held.iter().filter_map(|held| held.run) {
            if self.runs.get(no).is_none()
                && let Some(info) = self.store.run_numbered(no)?
            {
                self.runs.learn(info, self.options.serve_open_runs, &mut self.scheduler);
            }
        }
        Ok(held)
    }

    pub(super) fn start(
        &mut self,
        flight: Flight,
        claim: u64,
        held: Held,
        policy: Arc<Policy>,
        lent: Option<Lent>,
    ) -> Result<Start, StoreError> {
        let run = held.run.and_then(|no| self.runs.get(no)).map(|run| run.info.id);
        let number = held.number(run);
        let run = run.map(|id| id.to_string()).unwrap_or_default();
        let (queue, epoch) = (Arc::clone(self.queue_name(held.lane.queue)), self.store.epoch());
        let (checkpoint, lent) = (self.checkpoint_for(&held)?, lent.map(Box::new));
        let fellows = Arc::default();
        Ok(Start { flight, claim, queue, policy, epoch, held, fellows, number, run, checkpoint, lent, lot: None })
    }
}

fn count_of(held: &[Held]) -> u32 {
    held.iter().map(|held| u32::from(held.count)).sum()
}
