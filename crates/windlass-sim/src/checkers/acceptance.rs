//! Nothing accepted is lost, nothing rejected exists, and nothing runs that was never handed over as it is.
//!
//! A job accepted with `full` survives everything; one accepted with `os` may go with a power cut, but only if it
//! was accepted within the second before.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};
use windlass::store::Durability;
use windlass_core::job::JobId;

/// How old an answer may be whose job goes with a power cut: the promised second, and the turn that was due.
const OS_LOSS: u64 = 1_100_000;

#[derive(Debug, Default)]
pub(super) struct Acceptance {
    offered: BTreeMap<JobId, u64>,
    accepted: BTreeMap<JobId, (Durability, u64)>,
    rejected: BTreeSet<JobId>,
}

impl Acceptance {
    fn all_there(&self, ledger: &Ledger) -> Result<(), String> {
        match self.accepted.keys().find(|id| !ledger.jobs.contains_key(id)) {
            Some(id) => Err(format!("{id} was accepted and is not there")),
            None => Ok(()),
        }
    }
}

impl Checker for Acceptance {
    fn name(&self) -> &'static str {
        "nothing accepted is lost"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Offered { id, data, .. } => {
                self.offered.insert(*id, *data);
            }
            Seen::Accepted { id, durability, at } => {
                self.accepted.insert(*id, (*durability, *at));
            }
            Seen::Rejected { id } => {
                self.rejected.insert(*id);
            }
            Seen::Turned(turned) => {
                for (id, before, after) in &turned.moved {
                    if self.offered.get(id) != Some(&after.data) {
                        return Err(format!("{id} was never handed over with this data"));
                    }
                    if before.is_none() && self.rejected.contains(id) {
                        return Err(format!("{id} was rejected and is there"));
                    }
                }
            }
            Seen::Begun { id, data, .. } if self.offered.get(id) != Some(data) => {
                return Err(format!("{id} runs with data that was never handed over"));
            }
            Seen::Died { power_cut: true, at, .. } => {
                let gone = |id: &JobId| !ledger.jobs.contains_key(id);
                for (id, (durability, accepted)) in self.accepted.iter().filter(|(id, _)| gone(id)) {
                    if *durability == Durability::Full || at - accepted > OS_LOSS {
                        let age = (at - accepted) / 1000;
                        return Err(format!(
                            "{id} ({}, accepted {age} ms before) went with the power",
                            durability.word()
                        ));
                    }
                }
                self.accepted.retain(|id, _| !gone(id));
            }
            Seen::Died { power_cut: false, .. } => self.all_there(ledger)?,
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, ledger: &Ledger) -> Result<(), String> {
        self.all_there(ledger)
    }
}
