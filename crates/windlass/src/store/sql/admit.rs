//! The verb `admit`: what the doors took in becomes rows, with their keys, runs, cursors and seals.

use super::rows::NewRow;
use super::{SqlStore, StoreError};
use crate::store::{FollowUp, Lot, NewJobs, NewRun};
use std::sync::Arc;
use windlass_core::job::{JobId, Lane, LaneKind, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

impl SqlStore {
    pub(super) fn admit_lot(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError> {
        if self.was_read(lot) {
            return Ok(());
        }
        if let Some((id, from, _)) = lot.taken {
            let at = self.run_of(id)?.map(|run| run.taken);
            if at != Some(from) {
                return Err(StoreError::Stale(format!("{id} has taken {at:?}, expected {from:?}")));
            }
        }
        for (id, terms) in &lot.opens {
            if self.run_of(*id)?.is_none() {
                self.make_run(*id, &NewRun { terms: terms.clone(), ..NewRun::default() }, false, now)?;
            }
        }
        for new in lot.jobs.iter().filter(|new| !new.jobs.is_empty()) {
            let run = new.run.map(|id| self.joined_run(id, now)).transpose()?;
            self.admit_jobs(new, run, now)?;
        }
        self.flush(now)?;
        let read = !lot.cursors.is_empty() || !lot.closed.is_empty();
        self.keep_cursors(&lot.cursors, &lot.closed)?;
        // A seal that waited is older than the seals of this lot, so it is looked at before them.
        if read {
            self.look_at_seals(now)?;
        }
        for seal in &lot.seals {
            self.seal(seal, now)?;
            self.look_at_seals(now)?;
        }
        if let Some((id, _, to)) = lot.taken {
            self.take(id, to)?;
        }
        self.end_waits(now)
    }

    /// Whether a turn that was in doubt took this lot in: its cursors stand where the lot would move them, or further.
    fn was_read(&self, lot: &Lot) -> bool {
        let is_behind = |origin, offset| self.done.read.get(&origin).is_some_and(|read| *read >= offset);
        !lot.cursors.is_empty() && lot.cursors.iter().all(|cursor| is_behind(cursor.origin, cursor.offset))
    }

    /// Jobs of one lane, run and time, as rows that the next flush writes.
    pub(super) fn admit_jobs(&mut self, new: &NewJobs, run: Option<RunNo>, now: Time) -> Result<(), StoreError> {
        let queue = self.queue_no(&new.queue)?;
        let (unmet, doomed) = self.unmet(&new.jobs, now)?;
        let waits = !unmet.is_empty() || doomed.is_some();
        let due = new.not_before.filter(|time| *time > now && !waits);
        let state = if waits || due.is_some() { State::Scheduled } else { State::Ready };
        let jobs = self.take_keys(&new.jobs, queue, run, now)?;
        if jobs.is_empty() {
            return Ok(());
        }
        let lane = Lane { queue, priority: new.priority, kind: LaneKind::Fresh };
        self.count(lane, run, None, Some(state), jobs.len() as u64, now);
        self.note_due(due);
        let particulars = jobs.particulars();
        self.note_due(particulars.and_then(|particulars| particulars.start_by));
        self.note_due(particulars.and_then(|particulars| particulars.finish_by));
        let (name, priority): (Arc<str>, _) = (new.queue.as_str().into(), new.priority);
        let row = |index| NewRow { jobs: jobs.clone(), index, queue, name: name.clone(), priority, state, run, due };
        self.work.inserts.extend((0..jobs.len()).map(row));
        if waits {
            let ids: Vec<JobId> = (0..jobs.len()).map(|index| jobs.id(index)).collect();
            self.flush(now)?;
            self.list_waits(&ids, &unmet)?;
            if let Some(because) = doomed {
                self.give_up(&ids, because, now)?;
            }
        }
        Ok(())
    }

    pub(super) fn admit_follow_ups(&mut self, follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError> {
        for new in follow_ups.iter().filter(|new| !new.jobs.is_empty()) {
            let FollowUp { queue, priority, run, jobs } = new.clone();
            self.admit_jobs(&NewJobs { queue, priority, run: None, not_before: None, jobs }, run, now)?;
        }
        self.flush(now)
    }
}
