//! END: "is it over?" asked of the engine after every step and compared with a model.
//!
//! The model knows the jobs one by one and the seals, and counts anew; it never looks at a counter of the engine or
//! the store. An answer that is early would let somebody go on while work is left; one that is late would keep
//! somebody waiting for nothing.

use crate::ledger::Ledger;
use crate::world::{Outcome, World};
use std::collections::BTreeMap;
use windlass::store::StoreView;
use windlass_core::job::RunId;

/// What the model says, until a turn changes something.
#[derive(Debug, Default)]
pub(crate) struct Over {
    version: u64,
    over: BTreeMap<RunId, bool>,
}

impl Over {
    fn look(&mut self, ledger: &Ledger) {
        if self.version == ledger.version {
            return;
        }
        self.version = ledger.version;
        self.over = ledger.runs.iter().map(|(id, run)| (*id, run.sealed)).collect();
        for job in ledger.jobs.values().filter(|job| !job.state.is_end()) {
            if let Some(over) = job.run.and_then(|run| self.over.get_mut(&run)) {
                *over = false;
            }
        }
    }
}

impl World {
    pub(crate) fn ask_if_over(&mut self) -> Outcome<()> {
        let Some(mut over) = self.over.take() else { return Ok(()) };
        over.look(&self.ledger);
        let model_quiet = self.is_quiet();
        let unsettled = !self.mail.is_empty() || self.was_full() || !self.people.feeders.is_empty();
        if let Some(engine) = &mut self.engine {
            let quiet = engine.is_quiet();
            self.totals.answers += 1;
            if quiet && !model_quiet {
                return Err("early: everything was said to have ended".into());
            }
            if model_quiet && !quiet && !unsettled {
                return Err("late: nothing is left that can run".into());
            }
            for (id, expected) in &over.over {
                let told = engine.store().memory.run(*id).map_err(|error| error.to_string())?;
                let told = told.is_some_and(|run| run.counts.ended);
                self.totals.answers += 1;
                match (told, expected) {
                    (true, false) => return Err(format!("early: {id} was said to be over")),
                    (false, true) => return Err(format!("late: {id} is over and was not said to be")),
                    (true, true) | (false, false) => {}
                }
            }
        }
        self.over = Some(over);
        Ok(())
    }
}
