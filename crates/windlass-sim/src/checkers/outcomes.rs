//! Every end is its own: what is written of a start is what was reported of it, however many jobs were reported
//! together, and in however many pieces; and who was asked for patience is not begun again before that time.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use std::collections::BTreeMap;
use windlass_core::job::JobId;

#[derive(Debug, Default)]
pub(super) struct Outcomes {
    reported: BTreeMap<(JobId, u32), &'static str>,
    /// When jobs may begin again, on the clock that nobody sets.
    patience: BTreeMap<JobId, u64>,
}

impl Checker for Outcomes {
    fn name(&self) -> &'static str {
        "every end is its own"
    }

    fn see(&mut self, seen: &Seen<'_>, _ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Reported { id, start, word, again_at } => {
                self.reported.insert((*id, *start), word);
                match again_at {
                    Some(at) => self.patience.insert(*id, *at),
                    None => self.patience.remove(id),
                };
            }
            // What was reported to a dead engine was reported to nobody.
            Seen::Died { .. } => {
                self.reported.clear();
                self.patience.clear();
            }
            Seen::Turned(turned) => {
                self.patience.retain(|id, _| !turned.amended.contains(id));
                for settled in &turned.settled {
                    for id in settled.held.ids() {
                        let Some(word) = self.reported.remove(&(id, settled.held.start())) else { continue };
                        if word != settled.outcome {
                            return Err(format!("{id} came to {word} and {} was written", settled.outcome));
                        }
                    }
                }
                for (id, _, after) in turned.moved.iter().filter(|(_, _, after)| after.state.word() == "running") {
                    if let Some(at) = self.patience.remove(id).filter(|at| turned.at < *at) {
                        let early = at - turned.at;
                        return Err(format!("{id} is {} {early} µs before it was asked to come again", after.state));
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
    use crate::ledger::Turned;
    use windlass_core::job::Origin;
    use windlass_core::life_cycle::State;

    #[test]
    fn who_comes_again_too_early_is_found_out() {
        let id = JobId { origin: Origin::from_random(1), offset: 1 };
        for (at, right) in [(999, false), (1000, true)] {
            let (mut checker, ledger) = (Outcomes::default(), Ledger::default());
            let told = Seen::Reported { id, start: 1, word: "snoozed", again_at: Some(1000) };
            checker.see(&told, &ledger).unwrap();
            let moved = vec![(id, Some(job(State::Ready)), job(State::Running))];
            let turned = Turned { moved, at, ..Turned::default() };
            assert_eq!(checker.see(&Seen::Turned(&turned), &ledger).is_ok(), right, "{at}");
        }
    }
}
