//! No job is started before its time, unless a person changed it.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use std::collections::BTreeMap;
use windlass_core::job::JobId;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

#[derive(Debug, Default)]
pub(super) struct Times {
    not_before: BTreeMap<JobId, Time>,
}

impl Checker for Times {
    fn name(&self) -> &'static str {
        "nothing starts before its time"
    }

    fn see(&mut self, seen: &Seen<'_>, _ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Offered { id, not_before: Some(time), .. } => {
                self.not_before.insert(*id, *time);
            }
            Seen::Turned(turned) => {
                for id in &turned.amended {
                    self.not_before.remove(id);
                }
                let may_start = |state: State| matches!(state, State::Ready | State::Running);
                for (id, _, after) in turned.moved.iter().filter(|(_, _, after)| may_start(after.state)) {
                    // Once it was due it stays so, whatever the clock does after that.
                    if self.not_before.remove(id).is_some_and(|due| due > turned.now) {
                        return Err(format!("{id} is {} before its time", after.state));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
