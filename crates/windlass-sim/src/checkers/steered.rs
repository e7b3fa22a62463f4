//! What people change holds from the answer on, survives every death, and ends when it was said to.
//!
//! A queue that is paused or off starts nothing, also nothing that was claimed before. A quiet server starts nothing.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use crate::rules::Rules;
use windlass_core::overrides::Override;

#[derive(Debug, Default)]
pub(super) struct SteeredWell {
    rules: Rules,
    /// What people were told holds, and nobody has changed since.
    promised: Vec<Override>,
    quiet: bool,
    holding: bool,
}

impl SteeredWell {
    fn all_there(&self, ledger: &Ledger) -> Result<(), String> {
        match self.promised.iter().find(|made| !ledger.overrides.contains(made)) {
            Some(Override { key, target, by, .. }) => Err(format!("`{}` of {target} by {by} is gone", key.word())),
            None => Ok(()),
        }
    }
}

impl Checker for SteeredWell {
    fn name(&self) -> &'static str {
        "what people change holds"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Rules(rules) => self.rules = (*rules).clone(),
            Seen::Quiet(quiet) => self.quiet = *quiet,
            Seen::Holding(holding) => self.holding = *holding,
            Seen::Steered { by } => {
                if !ledger.steered.contains(*by) {
                    return Err(format!("{by} was answered before it was committed"));
                }
                self.promised.extend(ledger.overrides.iter().filter(|made| made.by == *by).cloned());
            }
            Seen::Turned(turned) => {
                self.promised.retain(|made| ledger.overrides.contains(made));
                if let Some(claimed) = turned.claimed.iter().find(|claimed| self.rules.is_closed(&claimed.queue)) {
                    return Err(format!("queue {} is closed and was started", claimed.queue));
                }
                if self.quiet && !turned.claimed.is_empty() {
                    return Err("somebody asked for quiet and something was started".into());
                }
                let over = |made: &&Override| made.until.is_some_and(|until| until <= turned.now);
                if let Some(made) = ledger.overrides.iter().find(over).filter(|_| !self.holding && !turned.recovered) {
                    return Err(format!("`{}` of {} should have ended by itself", made.key.word(), made.target));
                }
            }
            Seen::Begun { id, .. } => {
                let queue = ledger.jobs.get(id).map(|job| &job.queue);
                if let Some(queue) = queue.filter(|queue| self.rules.is_closed(queue)) {
                    return Err(format!("{id} was begun while queue {queue} is closed"));
                }
            }
            Seen::Died { .. } => self.all_there(ledger)?,
            Seen::Overrides(stored) => {
                let (had, has) = (ledger.overrides.len(), stored.len());
                if had != has || !stored.iter().all(|made| ledger.overrides.contains(made)) {
                    return Err(format!("the new engine has {has} overrides, expected the {had} of the last one"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, ledger: &Ledger) -> Result<(), String> {
        match ledger.overrides.first() {
            Some(made) => Err(format!("`{}` of {} never ended", made.key.word(), made.target)),
            None => self.all_there(ledger),
        }
    }
}
