//! One live token: a job is held by one start at a time, and no start number is begun twice.
//!
//! A power cut may take a start that nobody on disk knew of; everything that ran is dead then, and the store has
//! another epoch.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::job::JobId;

#[derive(Debug, Default)]
pub(super) struct Tokens {
    begun: BTreeMap<JobId, u32>,
    live: BTreeSet<JobId>,
    tokens: BTreeSet<(JobId, u64, u32)>,
}

impl Checker for Tokens {
    fn name(&self) -> &'static str {
        "one live token"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Begun { id, start, epoch, .. } => {
                if self.begun.get(id).is_some_and(|last| last >= start) {
                    return Err(format!("start {start} of {id} was begun after start {}", self.begun[id]));
                }
                if !self.live.insert(*id) || !self.tokens.insert((*id, *epoch, *start)) {
                    return Err(format!("{id} is held twice"));
                }
                self.begun.insert(*id, *start);
            }
            Seen::Turned(turned) => {
                for id in turned.settled.iter().flat_map(|settlement| settlement.held.ids()) {
                    self.live.remove(&id);
                }
            }
            // It went on elsewhere while its server was gone; or that server died before it could hand out what it
            // had claimed.
            Seen::Resumed { id, start } => {
                let newer = self.begun.insert(*id, *start).is_some_and(|last| last > *start);
                let other = ledger.jobs.get(id).is_some_and(|job| job.record.starts != *start);
                let held = !self.live.insert(*id);
                if newer || other || held {
                    return Err(format!("start {start} of {id} goes on, and another is held"));
                }
            }
            Seen::Died { power_cut, undone, .. } => {
                self.live.clear();
                for id in undone.iter().filter(|_| *power_cut) {
                    let starts = ledger.jobs.get(id).map_or(0, |job| job.record.starts);
                    self.begun.insert(*id, starts);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
