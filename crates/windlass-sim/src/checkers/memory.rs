//! The needs of what runs never exceed the budget, and whoever has waited for memory for long is the next to get some.

use super::{Checker, Seen};
use crate::ledger::{Booking, Known, Ledger, Turned};
use crate::rules::Rules;
use std::collections::BTreeMap;
use windlass_core::job::{LaneKind, Priority};
use windlass_core::life_cycle::State;
use windlass_core::scheduler::RESERVE_AFTER;

/// A second more than it takes until memory is set aside for whoever waits.
const LONG: u64 = RESERVE_AFTER.as_micros() as u64 + 1_000_000;

#[derive(Debug, Default)]
pub(super) struct Memory {
    rules: Rules,
    budget: Option<u64>,
    /// Needs were changed while something ran: what runs was weighed by the old ones.
    uneven: bool,
    holding: bool,
    /// Since when a table has had a job ready, and slots, but no memory; and the priority of that job.
    waits: BTreeMap<usize, (u64, Priority)>,
}

impl Memory {
    fn held(&self, ledger: &Ledger) -> u64 {
        ledger.bookings.iter().map(|booking| self.rules.need(&booking.queue)).sum()
    }

    fn waited_long(&self, crew: usize, at: u64) -> bool {
        self.waits.get(&crew).is_some_and(|(since, _)| at - since > LONG)
    }

    /// A start that needs memory passes nobody who has waited for long, unless it is of a higher priority or has waited
    /// as well. Who got some in the same turn was not passed: the starts of a turn have no order.
    fn passes_nobody(&self, claimed: &Booking, turned: &Turned) -> Result<(), String> {
        let at = turned.at;
        let Some(crew) = self.rules.crew(&claimed.queue).filter(|_| self.rules.need(&claimed.queue) > 0) else {
            return Ok(());
        };
        let passed = self.waits.iter().find(|(other, (_, priority))| {
            let gets_some = || turned.claimed.iter().any(|booking| self.rules.crew(&booking.queue) == Some(**other));
            **other != crew && self.waited_long(**other, at) && *priority >= claimed.priority && !gets_some()
        });
        match passed.filter(|_| !self.waited_long(crew, at)) {
            Some((other, (since, _))) => {
                let (pattern, waited) = (&self.rules.policies[*other].pattern, (at - since) / 1_000_000);
                Err(format!("{} was started before {pattern}, which has waited for {waited} s", claimed.queue))
            }
            None => Ok(()),
        }
    }

    /// Whom nothing but memory keeps from starting, after this turn.
    fn look_who_waits(&mut self, turned: &Turned, budget: u64, ledger: &Ledger) {
        let free = budget.saturating_sub(self.held(ledger));
        let here = ledger.bookings.iter().filter(|booking| !self.rules.is_remote(&booking.queue)).count();
        let mut waits: BTreeMap<usize, Priority> = BTreeMap::new();
        let ready = |job: &&Known| job.state == State::Ready && job.kind != LaneKind::Suspect;
        for job in ledger.jobs.values().filter(ready) {
            let Some(crew) = self.rules.crew(&job.queue).filter(|_| self.rules.need(&job.queue) > free) else {
                continue;
            };
            let policy = &self.rules.policies[crew];
            let used = ledger.bookings.iter().filter(|booking| self.rules.crew(&booking.queue) == Some(crew)).count();
            let open = !self.rules.is_closed(&job.queue) && self.rules.cap(&job.queue).is_none();
            let slots = used < policy.slots as usize && here < self.rules.slots as usize;
            if open && slots && policy.rate.is_none() && !self.holding {
                let most = waits.entry(crew).or_insert(job.priority);
                *most = job.priority.max(*most);
            }
        }
        self.waits.retain(|crew, _| waits.contains_key(crew));
        for (crew, priority) in waits {
            self.waits.entry(crew).or_insert((turned.at, priority)).1 = priority;
        }
    }
}

impl Checker for Memory {
    fn name(&self) -> &'static str {
        "memory within its budget, and nobody starves for it"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Budget(budget) => self.budget = *budget,
            Seen::Holding(holding) => self.holding = *holding,
            Seen::Rules(rules) => {
                let needs = |rules: &Rules| -> Vec<u64> { rules.policies.iter().map(|p| p.limits.memory).collect() };
                if needs(rules) != needs(&self.rules) {
                    self.uneven = true;
                    self.waits.clear();
                }
                self.rules = (*rules).clone();
            }
            Seen::Died { .. } => self.waits.clear(),
            Seen::Turned(turned) => {
                let Some(budget) = self.budget else { return Ok(()) };
                let held = self.held(ledger);
                let claimed = turned.claimed.iter().any(|booking| self.rules.need(&booking.queue) > 0);
                if held > budget && claimed && !self.uneven {
                    return Err(format!("what runs needs {held}, and there is {budget}"));
                }
                // All that was weighed by other needs has ended.
                self.uneven &= !ledger.bookings.is_empty();
                turned.claimed.iter().try_for_each(|booking| self.passes_nobody(booking, turned))?;
                // Whoever got some waits anew for more.
                for crew in turned.claimed.iter().filter_map(|booking| self.rules.crew(&booking.queue)) {
                    self.waits.remove(&crew);
                }
                self.look_who_waits(turned, budget, ledger);
            }
            _ => {}
        }
        Ok(())
    }
}
