//! A job that a person deleted never runs, never moves and never comes back.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use std::collections::BTreeSet;
use windlass_core::job::JobId;

#[derive(Debug, Default)]
pub(super) struct Deleted {
    told: BTreeSet<JobId>,
}

impl Checker for Deleted {
    fn name(&self) -> &'static str {
        "the deleted stay away"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        let is_gone = |id: &JobId| ledger.jobs.get(id).is_some_and(|job| job.deleted);
        match seen {
            Seen::Deleted { ids } => {
                if let Some(id) = ids.iter().find(|id| !is_gone(id)) {
                    return Err(format!("{id} was said to be deleted and is not"));
                }
                self.told.extend(*ids);
            }
            Seen::Begun { id, .. } if is_gone(id) => return Err(format!("{id} was deleted and runs")),
            Seen::Turned(turned) => {
                let back = turned.moved.iter().find(|(_, before, _)| before.as_ref().is_some_and(|job| job.deleted));
                if let Some((id, _, after)) = back {
                    return Err(format!("{id} was deleted and is {}", after.state));
                }
            }
            Seen::Died { .. } => {
                if let Some(id) = self.told.iter().find(|id| !is_gone(id)) {
                    return Err(format!("{id} was deleted and came back with the restart"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
