//! A job is started again only after a recorded failure, a return, a death of its holder, or a person's word.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use std::collections::BTreeMap;
use windlass_core::job::JobId;
use windlass_core::life_cycle::State;

#[derive(Debug, Default)]
pub(super) struct Duplicates {
    /// How often it was begun, and how many of those are explained as not the last.
    starts: BTreeMap<JobId, (u32, u32)>,
}

impl Checker for Duplicates {
    fn name(&self) -> &'static str {
        "bounded duplicates"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Begun { id, .. } => {
                let (begun, explained) = self.starts.entry(*id).or_default();
                *begun += 1;
                if *begun > *explained + 1 {
                    return Err(format!("{id} was begun {begun} times, {} are explained", *explained + 1));
                }
            }
            Seen::Turned(turned) => {
                for settlement in turned.settled.iter().filter(|s| !s.verdict.state().is_end()) {
                    for id in settlement.held.ids() {
                        self.starts.entry(id).or_default().1 += 1;
                    }
                }
                for id in &turned.revived {
                    let (begun, explained) = self.starts.entry(*id).or_default();
                    *explained = *begun;
                }
            }
            Seen::Died { undone, .. } => {
                for (id, (begun, explained)) in &mut self.starts {
                    let held = ledger.jobs.get(id).is_none_or(|job| job.state == State::Running);
                    if held || undone.contains(id) {
                        *explained = *begun;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
