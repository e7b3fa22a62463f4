//! "Everything has ended" is said only when it is so.

use super::{Checker, Seen};
use crate::ledger::Ledger;

#[derive(Debug, Default)]
pub(super) struct Drained;

impl Checker for Drained {
    fn name(&self) -> &'static str {
        "drained is exact"
    }

    fn see(&mut self, seen: &Seen<'_>, _ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Drained { quiet: false, .. } => Err("drained was answered while something could run".into()),
            Seen::Drained { unread: Some(id), .. } => Err(format!("drained was answered and {id} is unread")),
            _ => Ok(()),
        }
    }
}
