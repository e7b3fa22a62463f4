//! Every job that fails for good is told to its handler once, every message to every listener once, and in the very
//! turn that ends it; what a handler fails at is told to nobody.

use super::{Checker, Seen};
use crate::flow::{ERRORS, LISTENERS, TOPIC};
use crate::ledger::{Ledger, Turned};
use crate::rules::Rules;
use std::collections::BTreeSet;
use windlass_core::job::JobId;
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::State;

#[derive(Debug, Default)]
pub(super) struct Told {
    rules: Rules,
}

impl Told {
    fn has_handler(&self, queue: &str) -> bool {
        self.rules.policy(queue).is_some_and(|policy| policy.on_failure.is_some()) && queue != ERRORS
    }

    fn failures(&self, turned: &Turned) -> Result<(), String> {
        // What failed and was cancelled or given another try within one turn has failed all the same.
        let fails = turned.settled.iter().filter(|settled| matches!(settled.verdict, Verdict::Fail { .. }));
        let settled: BTreeSet<JobId> = fails.flat_map(|settled| settled.held.ids()).collect();
        for (id, before, after) in &turned.moved {
            let is_new = before.as_ref().is_none_or(|job| job.state != State::Failed);
            let failed = settled.contains(id) || after.state == State::Failed && is_new;
            let expected = usize::from(failed && self.has_handler(&after.queue));
            let found = told(turned, *id, ERRORS);
            if found != expected {
                return Err(format!("the end of {id} was told to its handler {found} times, expected {expected}"));
            }
        }
        Ok(())
    }
}

/// How many jobs of this queue came of that one in this turn.
fn told(turned: &Turned, parent: JobId, queue: &str) -> usize {
    turned.follow_ups.iter().filter(|(of, to)| *of == parent && **to == *queue).count()
}

impl Checker for Told {
    fn name(&self) -> &'static str {
        "handlers and listeners are told once"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Rules(rules) => self.rules = (*rules).clone(),
            Seen::Turned(turned) => {
                self.failures(turned)?;
                let done = turned.settled.iter().filter(|settled| matches!(settled.verdict, Verdict::Succeed { .. }));
                let is_message = |id: &JobId| ledger.jobs.get(id).is_some_and(|job| &*job.queue == TOPIC);
                for id in done.flat_map(|settled| settled.held.ids()).filter(is_message) {
                    if let Some(listener) = LISTENERS.iter().find(|listener| told(turned, id, listener) != 1) {
                        let found = told(turned, id, listener);
                        return Err(format!("{listener} got message {id} {found} times"));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::job;
    use super::*;
    use std::collections::BTreeMap;
    use windlass_core::job::{Origin, QueueName};
    use windlass_core::policy::{Command, Policy, Service};

    #[test]
    fn a_failure_that_was_told_to_nobody_or_twice_is_found_out() {
        let errors = Some(QueueName::new(ERRORS.as_bytes()).unwrap());
        let table = Policy { on_failure: errors, ..Policy::new("mail", Service::Command(Command::default())) };
        let rules = Rules::new(&[table], 4, &BTreeMap::new(), &[]);
        let id = JobId { origin: Origin::from_random(1), offset: 1 };
        for (times, right) in [(0, false), (1, true), (2, false)] {
            let moved = vec![(id, Some(job(State::Running)), job(State::Failed))];
            let follow_ups = vec![(id, ERRORS.into()); times];
            let turned = Turned { moved, follow_ups, ..Turned::default() };
            let (mut checker, ledger) = (Told::default(), Ledger::default());
            checker.see(&Seen::Rules(&rules), &ledger).unwrap();
            assert_eq!(checker.see(&Seen::Turned(&turned), &ledger).is_ok(), right, "{times} times");
        }
    }
}
