//! Jobs change their state only as the table of the life cycle says; between two commits a job may take two steps.
//! A message may come and be handed on in one turn.

use super::{Checker, Seen};
use crate::flow::TOPIC;
use crate::ledger::Ledger;
use windlass_core::judge::Reason;
use windlass_core::life_cycle::{State, TRANSITIONS};

#[derive(Debug, Default)]
pub(super) struct Life;

/// Up to three legal changes: a turn may settle, amend or release, and claim the same job.
fn reaches(from: State, to: State, steps: u32) -> bool {
    from == to || steps > 0 && TRANSITIONS.iter().any(|(f, _, t)| *f == from && reaches(*t, to, steps - 1))
}

impl Checker for Life {
    fn name(&self) -> &'static str {
        "legal transitions"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        let Seen::Turned(turned) = seen else { return Ok(()) };
        for (id, before, after) in &turned.moved {
            // What waits for others goes with them: it is let go, or given up, in the turn that ends them.
            let chained = ledger.chains.contains_key(id);
            let legal = match before {
                None if chained && after.state == State::Cancelled => true,
                // It was emitted in the turn that cancels what is left of its run.
                None if turned.amended.contains(id) && after.state == State::Cancelled => true,
                Some(before) if chained && before.state == State::Scheduled => reaches(before.state, after.state, 3),
                None if &*after.queue == TOPIC && after.state == State::Succeeded => true,
                // It came too late to begin.
                None if after.reason == Some(Reason::Expired) => after.state == State::Failed,
                None => matches!(after.state, State::Scheduled | State::Ready | State::Running),
                Some(before) if turned.recovered => {
                    before.state == State::Running
                        && matches!(after.state, State::Ready | State::Retrying | State::Failed)
                }
                Some(before) => reaches(before.state, after.state, 3),
            };
            if !legal {
                return Err(format!("{id} went from {:?} to {}", before.as_ref().map(|job| job.state), after.state));
            }
            let fell = before.as_ref().is_some_and(|before| before.record.starts > after.record.starts);
            if fell && !turned.recovered {
                return Err(format!("the starts of {id} fell to {}", after.record.starts));
            }
        }
        Ok(())
    }
}
