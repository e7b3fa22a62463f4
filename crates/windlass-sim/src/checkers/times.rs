//! No job is started before its time, or after the time by which it had to begin or to end, and none is tried again
//! after that, unless a person changed it; and only what is past such a time fails for it.

use super::{Checker, Seen};
use crate::ledger::{Ledger, Turned};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::job::JobId;
use windlass_core::judge::Reason;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

#[derive(Debug, Default)]
pub(super) struct Times {
    not_before: BTreeMap<JobId, Time>,
    start_by: BTreeMap<JobId, Time>,
    finish_by: BTreeMap<JobId, Time>,
    /// A person changed them: what had expired may begin after all.
    excused: BTreeSet<JobId>,
}

impl Times {
    fn deadlines(&self, turned: &Turned) -> Result<(), String> {
        for (id, before, after) in &turned.moved {
            let past = |times: &BTreeMap<JobId, Time>| times.get(id).is_some_and(|by| *by <= turned.now);
            let (passed, over) = (past(&self.start_by), past(&self.finish_by));
            let was_failed = before.as_ref().is_some_and(|job| job.state == State::Failed);
            let expired = after.state == State::Failed && after.reason == Some(Reason::Expired);
            if expired && !was_failed && !passed && !over {
                return Err(format!("{id} expired before its time"));
            }
            let never_began = before.as_ref().is_none_or(|job| job.record.starts == 0);
            let ran = before.as_ref().is_some_and(|job| job.state == State::Running) && !turned.recovered;
            let again = matches!(after.state, State::Scheduled | State::Ready | State::Retrying);
            let begins = after.state == State::Running && never_began;
            if over && (begins || ran && again) && !self.excused.contains(id) {
                return Err(format!("{id} is {} after the time by which it had to end", after.state));
            }
            if after.state == State::Running && never_began && passed && !self.excused.contains(id) {
                return Err(format!("{id} began after its time"));
            }
        }
        Ok(())
    }
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
            Seen::MustBegin { id, by } => {
                self.start_by.insert(*id, *by);
            }
            Seen::MustEnd { id, by } => {
                self.finish_by.insert(*id, *by);
            }
            Seen::Turned(turned) => {
                for id in &turned.amended {
                    self.not_before.remove(id);
                    self.excused.insert(*id);
                }
                self.deadlines(turned)?;
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

    fn end(&mut self, ledger: &Ledger) -> Result<(), String> {
        let waits = |id: &JobId| ledger.jobs.get(id).is_some_and(|job| !job.state.is_end() && !job.forgotten);
        // The world ends a day later than anything that it promised, but for jumps of some hours.
        match self.finish_by.keys().find(|id| waits(id) && !self.excused.contains(id)) {
            Some(id) => Err(format!("{id} is still there after the time by which it had to end")),
            None => Ok(()),
        }
    }
}
