//! What is claimed never holds more slots than its crew and the server have; suspects run one at a time.

use super::{Checker, Seen};
use crate::ledger::{Booking, Ledger};
use crate::rules::Rules;
use windlass_core::job::LaneKind;

#[derive(Debug, Default)]
pub(super) struct Slots {
    rules: Rules,
}

impl Slots {
    /// The slots of whoever serves this queue, and those of the queue itself.
    fn check(&self, queue: &str, bookings: &[Booking]) -> Result<(), String> {
        let taken = |of: &dyn Fn(&str) -> bool| bookings.iter().filter(|booking| of(&booking.queue)).count();
        let of_queue = taken(&|other| other == queue);
        if let Some(slots) = self.rules.run_slots(queue) {
            if of_queue > slots as usize {
                return Err(format!("run {queue} has {slots} slots, {of_queue} are taken"));
            }
            return Ok(());
        }
        let Some(crew) = self.rules.crew(queue) else { return Err(format!("nobody serves queue {queue}")) };
        let used = taken(&|other| self.rules.run_slots(other).is_none() && self.rules.crew(other) == Some(crew));
        let policy = &self.rules.policies[crew];
        if used > policy.slots as usize {
            return Err(format!("crew {} has {} slots, {used} are taken", policy.pattern, policy.slots));
        }
        match self.rules.cap(queue).filter(|cap| of_queue > *cap as usize) {
            Some(cap) => Err(format!("queue {queue} was given {cap} slots, {of_queue} are taken")),
            None => Ok(()),
        }
    }
}

impl Checker for Slots {
    fn name(&self) -> &'static str {
        "slots are never exceeded"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Rules(rules) => self.rules = (*rules).clone(),
            Seen::Turned(turned) if !turned.claimed.is_empty() => {
                // What runs elsewhere takes no slot here.
                let here = ledger.bookings.iter().filter(|booking| !self.rules.is_remote(&booking.queue));
                let (used, slots) = (here.count(), self.rules.slots);
                // A reload may take slots away that are in use: whoever starts something here must have found one free.
                let starts_here = turned.claimed.iter().any(|claimed| !self.rules.is_remote(&claimed.queue));
                if starts_here && used > slots as usize {
                    return Err(format!("{used} slots are taken, the server has {slots}"));
                }
                let suspects = ledger.bookings.iter().filter(|booking| booking.kind == LaneKind::Suspect).count();
                if suspects > 1 {
                    return Err(format!("{suspects} suspects run at once"));
                }
                for claimed in &turned.claimed {
                    self.check(&claimed.queue, &ledger.bookings)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
