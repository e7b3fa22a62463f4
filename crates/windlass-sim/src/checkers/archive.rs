//! Every settled start is in the archive once in the end, through any number of deaths.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::job::JobId;

#[derive(Debug, Default)]
pub(super) struct Archive {
    turns: BTreeSet<u64>,
    times: BTreeMap<(JobId, u32), u32>,
    power_cuts: bool,
}

impl Checker for Archive {
    fn name(&self) -> &'static str {
        "every settled start is archived once"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            // The segments remember the numbers of their turns: a second time changes nothing.
            Seen::Archived { turn, starts } if self.turns.insert(*turn) => {
                for start in *starts {
                    *self.times.entry(*start).or_default() += 1;
                }
            }
            Seen::Died { power_cut: true, undone, .. } if !undone.is_empty() => self.power_cuts = true,
            Seen::CaughtUp { unread: Some(id), .. } => {
                return Err(format!("caught up was answered and {id} is unread"));
            }
            Seen::CaughtUp { settled, .. } => {
                let missing = ledger.settled.iter().take(*settled).find(|start| !self.times.contains_key(start));
                if let Some((id, start)) = missing {
                    return Err(format!("caught up was answered and start {start} of {id} is not in the archive"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, ledger: &Ledger) -> Result<(), String> {
        for (id, start) in &ledger.settled {
            let times = self.times.get(&(*id, *start)).copied().unwrap_or(0);
            // What a power cut took back may have been archived, and is archived again under the same start.
            if times == 0 || times > 1 && !self.power_cuts {
                return Err(format!("start {start} of {id} is in the archive {times} times"));
            }
        }
        Ok(())
    }
}
