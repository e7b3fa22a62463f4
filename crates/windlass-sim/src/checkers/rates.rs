//! A queue with a rate starts no more jobs in any time than its rate allows, but for what a moment's delay may make up.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use crate::rules::Rules;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use windlass_core::rate::Rate;

/// What may be made up for at most, in microseconds; the rate's own figure, written down a second time.
const CREDIT: u64 = 200_000;
/// So many starts are remembered.
const KEPT: usize = 300;

#[derive(Debug, Default)]
pub(super) struct Rates {
    rules: Rules,
    /// By queue: when how many jobs were started.
    starts: BTreeMap<Arc<str>, VecDeque<(u64, u64)>>,
}

impl Rates {
    fn rate(&self, queue: &str) -> Option<Rate> {
        self.rules.policy(queue).and_then(|policy| policy.rate)
    }
}

impl Checker for Rates {
    fn name(&self) -> &'static str {
        "rates are kept"
    }

    fn see(&mut self, seen: &Seen<'_>, _ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Rules(rules) => {
                let rates = |rules: &Rules| -> Vec<Option<Rate>> { rules.policies.iter().map(|p| p.rate).collect() };
                if rates(rules) != rates(&self.rules) {
                    self.starts.clear();
                }
                self.rules = (*rules).clone();
            }
            // A new engine has no memory of what its queues did.
            Seen::Died { .. } => self.starts.clear(),
            Seen::Turned(turned) => {
                for booking in &turned.claimed {
                    let Some(rate) = self.rate(&booking.queue) else { continue };
                    let starts = self.starts.entry(Arc::clone(&booking.queue)).or_default();
                    starts.push_back((turned.at, booking.left.len() as u64));
                    if starts.len() > KEPT {
                        starts.pop_front();
                    }
                    let interval = rate.per().as_micros() as u64 / u64::from(rate.count());
                    let mut begun = 0;
                    for (at, count) in starts.iter().rev() {
                        begun += count;
                        let allowed = (turned.at - at + CREDIT) / interval + 1;
                        if begun > allowed {
                            let (queue, within) = (&booking.queue, (turned.at - at) / 1000);
                            return Err(format!("{queue} may start {rate}, and started {begun} within {within} ms"));
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
