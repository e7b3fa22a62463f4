//! Sweeping a run: everything of it that has not ended is cancelled, a slice a turn.
//!
//! A sweep is stored with the turn that orders it and goes on after a restart. What runs is told to stop and is settled
//! when its tree is proven dead, as for any cancelled job. It must not decide that a run has to go: schedules do.

use super::Engine;
use super::effects::Effects;
use super::operations::SLICE;
use super::turn::Progress;
use crate::store::{Amendment, Durability, Store, StoreError};
use windlass_core::job::{Arrival, RunId};
use windlass_core::time::Time;

/// Notes of sweeps: this and the run; the value is the arrival to go on from, and by whom it was ordered.
const NOTES: &str = "sweep/";

impl<S: Store> Engine<S> {
    /// Orders it; the first slice goes with the next turn.
    pub(super) fn sweep(&mut self, run: RunId, by: &str) -> Result<(), StoreError> {
        self.store.note(&format!("{NOTES}{run}"), Some(format!("0 {by}").as_bytes()))?;
        self.sweeping = true;
        self.operations_wait = true;
        Ok(())
    }

    /// The next slice of the first sweep, if there is one.
    pub(super) fn go_on_sweeping(
        &mut self,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        if !self.sweeping || self.full_until.is_some() {
            return Ok(());
        }
        let Some((key, value)) = self.store.notes(NOTES, 1)?.into_iter().next() else {
            self.sweeping = false;
            return Ok(());
        };
        let bad = || StoreError::Corrupt(format!("the note {key} is not a sweep"));
        let run: RunId = key[NOTES.len()..].parse().map_err(|_| bad())?;
        let text = std::str::from_utf8(&value).map_err(|_| bad())?;
        let (from, by) = text.split_once(' ').ok_or_else(bad)?;
        let from = Arrival(from.parse().map_err(|_| bad())?);
        let (ids, next) = self.store.of_run(run, from, SLICE)?;
        if !ids.is_empty() {
            self.amend(&ids, Amendment::Cancel, by, now, effects)?;
        }
        let left = next.map(|next| format!("{} {by}", next.0).into_bytes());
        self.store.note(&key, left.as_deref())?;
        progress.needs(Durability::Os);
        self.operations_wait = true;
        Ok(())
    }
}
