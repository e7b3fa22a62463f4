//! The needs of what runs never exceed the budget.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use crate::rules::Rules;

#[derive(Debug, Default)]
pub(super) struct Memory {
    rules: Rules,
    budget: Option<u64>,
    /// Needs were changed while something ran: what runs was weighed by the old ones.
    uneven: bool,
}

impl Memory {
    fn held(&self, ledger: &Ledger) -> u64 {
        ledger.bookings.iter().map(|booking| self.rules.need(&booking.queue)).sum()
    }
}

impl Checker for Memory {
    fn name(&self) -> &'static str {
        "memory within its budget"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Budget(budget) => self.budget = *budget,
            Seen::Rules(rules) => {
                let needs = |rules: &Rules| -> Vec<u64> { rules.policies.iter().map(|p| p.limits.memory).collect() };
                if needs(rules) != needs(&self.rules) {
                    self.uneven = true;
                }
                self.rules = (*rules).clone();
            }
            Seen::Turned(turned) => {
                let Some(budget) = self.budget else { return Ok(()) };
                let held = self.held(ledger);
                let claimed = turned.claimed.iter().any(|booking| self.rules.need(&booking.queue) > 0);
                if held > budget && claimed && !self.uneven {
                    return Err(format!("what runs needs {held}, and there is {budget}"));
                }
                // All that was weighed by other needs has ended.
                self.uneven &= !ledger.bookings.is_empty();
            }
            _ => {}
        }
        Ok(())
    }
}
