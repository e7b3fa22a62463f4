//! A run ends exactly once, in the very turn that left it sealed and empty: never early, never late.

use super::{Checker, Seen};
use crate::ledger::{Ledger, RunModel};

#[derive(Debug, Default)]
pub(super) struct RunEnd;

impl Checker for RunEnd {
    fn name(&self) -> &'static str {
        "exact end of runs"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        let Seen::Turned(turned) = seen else { return Ok(()) };
        for (id, run) in &ledger.runs {
            let told = turned.ended.iter().filter(|(ended, _)| ended == id).count();
            let due = usize::from(run.sealed && run.live == 0 && !run.ended);
            if told != due {
                let RunModel { live, sealed, ended, .. } = run;
                return Err(format!("{id} (live {live}, sealed {sealed}, ended {ended}) was told to end {told} times"));
            }
        }
        Ok(())
    }
}
