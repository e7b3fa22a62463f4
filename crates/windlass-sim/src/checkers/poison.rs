//! A job that kills its server ends as poison, and no other job ever does.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use std::collections::BTreeSet;
use windlass_core::job::JobId;
use windlass_core::judge::Reason;
use windlass_core::life_cycle::State;

#[derive(Debug, Default)]
pub(super) struct Poison {
    killers: BTreeSet<JobId>,
}

impl Checker for Poison {
    fn name(&self) -> &'static str {
        "only killers are poison"
    }

    fn see(&mut self, seen: &Seen<'_>, _ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Killer { id } => {
                self.killers.insert(*id);
            }
            Seen::Harmless { id } => {
                self.killers.remove(id);
            }
            Seen::Turned(turned) => {
                for (id, _, after) in &turned.moved {
                    if after.reason == Some(Reason::Poison) && !self.killers.contains(id) {
                        return Err(format!("{id} is healthy and was convicted"));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, ledger: &Ledger) -> Result<(), String> {
        for (id, job) in self.killers.iter().filter_map(|id| Some((id, ledger.jobs.get(id)?))) {
            // One whose time was over before it had killed often enough has failed as it should, too.
            let convicted = job.state == State::Failed && matches!(job.reason, Some(Reason::Poison | Reason::Expired));
            // One that a person suspended or cancelled was not given the chance.
            if job.record.starts > 0 && job.state.is_end() && !convicted && job.state != State::Cancelled {
                return Err(format!("{id} kills its server and is {} ({:?})", job.state, job.reason));
            }
        }
        Ok(())
    }
}
