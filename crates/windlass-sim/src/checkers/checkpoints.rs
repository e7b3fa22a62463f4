//! What a start said of how far its job has come for good reaches the next start, and nothing else does.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::job::JobId;

#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    said: BTreeMap<(JobId, u32), String>,
    stored: BTreeMap<JobId, String>,
    /// A person or a power cut changed what is stored of these.
    unsure: BTreeSet<JobId>,
}

impl Checker for Checkpoints {
    fn name(&self) -> &'static str {
        "checkpoints reach the next start"
    }

    fn see(&mut self, seen: &Seen<'_>, _ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Said { id, start, text } => {
                self.said.insert((*id, *start), (*text).to_owned());
            }
            Seen::Turned(turned) => {
                self.unsure.extend(turned.amended.iter().chain(&turned.revived));
                for settlement in &turned.settled {
                    let ended = settlement.verdict.state().is_end();
                    for id in settlement.held.ids() {
                        match self.said.remove(&(id, settlement.held.start())) {
                            _ if ended => drop(self.stored.remove(&id)),
                            Some(text) => drop(self.stored.insert(id, text)),
                            None => {}
                        }
                    }
                }
            }
            Seen::Died { undone, .. } => self.unsure.extend(undone.iter()),
            Seen::WentOnFrom { id, checkpoint } if !self.unsure.contains(id) => {
                let stored = self.stored.get(id).map_or("", String::as_str);
                if stored != *checkpoint {
                    return Err(format!("{id} was told {checkpoint:?}, expected {stored:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
