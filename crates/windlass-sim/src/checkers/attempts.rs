//! Failures never exceed the attempts under which a start was made.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use std::collections::BTreeMap;
use windlass_core::job::JobId;
use windlass_core::judge::Verdict;

#[derive(Debug, Default)]
pub(super) struct Attempts {
    allowed: BTreeMap<(JobId, u32), u32>,
}

impl Checker for Attempts {
    fn name(&self) -> &'static str {
        "failures within attempts"
    }

    fn see(&mut self, seen: &Seen<'_>, _ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Begun { id, start, attempts, .. } => {
                self.allowed.insert((*id, *start), *attempts);
            }
            // What a worker elsewhere does outlives the server, and is judged by what the next one reads in its config.
            Seen::Died { .. } => self.allowed.clear(),
            Seen::Turned(turned) => {
                for settlement in turned.settled.iter().filter(|s| matches!(s.verdict, Verdict::Retry { .. })) {
                    let failures = settlement.held.record.failures + 1;
                    for id in settlement.held.ids() {
                        let allowed = self.allowed.get(&(id, settlement.held.start())).copied().unwrap_or(0);
                        if allowed != 0 && failures >= allowed {
                            return Err(format!("{id} is tried again after {failures} failures of {allowed}"));
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
