//! Checkpoints: how far a job has come for good, kept with the end of one start and given to the next.
//!
//! They are notes of the store under the job's id, written in the transaction that settles the start, and dropped when
//! the job has ended. Only a job that was started before can have one, so the common path never looks; such jobs are
//! claimed one by one. It must not read what a checkpoint says.

use super::Engine;
use crate::runner::Finished;
use crate::sabotage::{self, Sabotage};
use crate::store::{Held, Settlement, Store, StoreError};
use std::collections::HashMap;
use windlass_core::job::JobId;

/// The note of a job; the bar ends the id, which may be the beginning of another.
pub(super) fn key(id: JobId) -> String {
    format!("checkpoint/{id}/")
}

impl<S: Store> Engine<S> {
    /// What the last start of a job left for this one; empty where it left nothing.
    pub(super) fn checkpoint_for(&mut self, held: &Held) -> Result<String, StoreError> {
        // Nobody may be told how far another has come.
        if held.record.starts == 0 || held.count != 1 {
            return Ok(String::new());
        }
        let notes = self.store.notes(&key(held.jobs.id(held.range().start)), 1)?;
        Ok(notes.into_iter().next().map(|(_, text)| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default())
    }

    /// A job has ended, or is no more, without a start that says so.
    pub(super) fn drop_checkpoint(&mut self, id: JobId) -> Result<(), StoreError> {
        self.store.note(&key(id), None)
    }

    /// These have ended without a start that says so.
    pub(super) fn drop_checkpoints_of(&mut self, ended: &[Settlement]) -> Result<(), StoreError> {
        let begun = ended.iter().filter(|settlement| settlement.held.record.starts > 0);
        let ids: Vec<JobId> = begun.flat_map(|settlement| settlement.held.ids()).collect();
        ids.into_iter().try_for_each(|id| self.drop_checkpoint(id))
    }

    /// Keeps what was said of jobs that will be started again, and drops what is left of those that have ended.
    pub(super) fn keep_checkpoints(
        &mut self,
        finished: &[Finished],
        settlements: &[Settlement],
    ) -> Result<(), StoreError> {
        if sabotage::on(Sabotage::CheckpointLost) {
            return Ok(());
        }
        let mut said: HashMap<JobId, &str> = HashMap::new();
        for end in finished.iter().filter(|end| !end.checkpoints.is_empty()) {
            let Some(flight) = self.flights.get(end.flight) else { continue };
            for (position, text) in end.checkpoints.iter().filter(|(position, _)| *position < flight.count()) {
                said.extend(
                    flight.parts(*position, 1).flat_map(|(_, held)| held.ids().next()).map(|id| (id, text.as_str())),
                );
            }
        }
        for settlement in settlements {
            let (held, ended) = (&settlement.held, settlement.verdict.state().is_end());
            if said.is_empty() && !(ended && held.record.starts > 0) {
                continue;
            }
            for id in held.ids() {
                match said.get(&id) {
                    Some(text) if !ended => self.store.note(&key(id), Some(text.as_bytes()))?,
                    Some(_) | None if ended && held.record.starts > 0 => self.store.note(&key(id), None)?,
                    Some(_) | None => {}
                }
            }
        }
        Ok(())
    }
}
