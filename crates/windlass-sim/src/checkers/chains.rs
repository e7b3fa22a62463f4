//! A job that waits for others begins when all of them have succeeded and not before; where one of them will not, it
//! is cancelled in the very turn that says so.

use super::{Checker, Seen};
use crate::ledger::{Known, Ledger, Turned};
use std::collections::BTreeMap;
use windlass_core::job::JobId;
use windlass_core::life_cycle::State;

#[derive(Debug, Default)]
pub(super) struct Chains {
    /// Whom each waits for that has not been let go yet.
    waiting: BTreeMap<JobId, Vec<JobId>>,
}

/// How it stands with what a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Met,
    Waits,
    Lost,
}

fn stands(job: Option<&Known>) -> Stands {
    match job {
        // Nobody knows it any more: there is nothing to wait for.
        None => Stands::Met,
        Some(job) if job.state == State::Succeeded => Stands::Met,
        Some(job) if job.state.is_end() => Stands::Lost,
        Some(_) => Stands::Waits,
    }
}

impl Chains {
    fn turned(&mut self, turned: &Turned, ledger: &Ledger) -> Result<(), String> {
        // What a person changes goes as the person wants.
        self.waiting.retain(|id, _| !turned.amended.contains(id));
        for (id, before, after) in &turned.moved {
            let Some(chained) = self.waiting.get_mut(id) else { continue };
            if before.is_none() {
                // What was forgotten by then is known to nobody.
                chained.retain(|of| ledger.jobs.get(of).is_some_and(|of| !of.forgotten));
            }
            let goes = matches!(after.state, State::Ready | State::Running);
            let unmet = chained.iter().find(|of| stands(ledger.jobs.get(of)) != Stands::Met);
            if let Some(of) = unmet.filter(|_| goes) {
                return Err(format!("{id} is {} and waits for {of}", after.state));
            }
            if after.state != State::Scheduled {
                self.waiting.remove(id);
            }
        }
        for (id, after) in &self.waiting {
            if ledger.jobs.get(id).is_none_or(|job| job.state != State::Scheduled) {
                continue;
            }
            let states = || after.iter().map(|of| stands(ledger.jobs.get(of)));
            if states().any(|stands| stands == Stands::Lost) {
                return Err(format!("{id} waits for one that will not succeed"));
            }
            if states().all(|stands| stands == Stands::Met) {
                return Err(format!("{id} still waits, and all before it have succeeded"));
            }
        }
        Ok(())
    }
}

impl Checker for Chains {
    fn name(&self) -> &'static str {
        "chained jobs wait"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Chained { id, after } => {
                self.waiting.insert(*id, after.to_vec());
            }
            // What went back waits again; what it waits for went back with it.
            Seen::Died { undone, .. } => {
                for id in undone.iter().filter(|id| ledger.waits(**id)) {
                    self.waiting.insert(*id, ledger.chains[id].clone());
                }
            }
            Seen::Turned(turned) => self.turned(turned, ledger)?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::job;
    use super::*;
    use windlass_core::job::Origin;

    #[test]
    fn one_that_begins_early_or_is_left_behind_is_found_out() {
        let id = |offset| JobId { origin: Origin::from_random(1), offset };
        for (first, second, right) in [
            (State::Running, State::Scheduled, true),
            (State::Running, State::Ready, false),
            (State::Succeeded, State::Ready, true),
            (State::Succeeded, State::Scheduled, false),
            (State::Failed, State::Cancelled, true),
            (State::Failed, State::Scheduled, false),
            (State::Failed, State::Ready, false),
        ] {
            let (mut checker, mut ledger) = (Chains::default(), Ledger::default());
            ledger.jobs.insert(id(1), job(first));
            ledger.jobs.insert(id(2), job(second));
            checker.see(&Seen::Chained { id: id(2), after: &[id(1)] }, &ledger).unwrap();
            let turned = Turned { moved: vec![(id(2), None, job(second))], ..Turned::default() };
            assert_eq!(checker.see(&Seen::Turned(&turned), &ledger).is_ok(), right, "{first:?} {second:?}");
        }
    }
}
