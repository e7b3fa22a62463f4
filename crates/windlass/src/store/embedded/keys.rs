//! Unique keys in their table: taken with the job that has them, freed when it starts or ends, or with their run.
//!
//! A job that must be unique pays for it with one look and one row; others pay nothing. What a key is made of is said
//! by `store::keys`.

use super::super::chunk::Chunk;
use super::super::keys::{self, Duplicate, Key, Step};
use super::super::{Amended, Amendment, NewJobs, StoreError};
use super::Turn;
use super::rows::Row;
use super::schema::failed;
use super::sums::{check, sum};
use crate::sabotage::{self, Sabotage};
use rusqlite::{Connection, OptionalExtension, params};
use std::ops::Range;
use std::sync::Arc;
use windlass_core::job::{JobId, Origin, QueueNo, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::particulars::{OnConflict, Scope};
use windlass_core::time::Time;

impl Turn<'_> {
    /// How many more jobs a run takes in; `None` is any number.
    fn room_in(&mut self, run: Option<RunNo>) -> Result<Option<u64>, StoreError> {
        let Some(no) = run else { return Ok(None) };
        Ok(self.m.runs.run(self.db, no)?.and_then(|run| run.terms.room(&run.counts)))
    }

    /// The jobs of a chunk that may come in, with their keys taken; of the others those whose keys are taken are told.
    pub(super) fn take_keys(
        &mut self,
        jobs: &Arc<Chunk>,
        queue: QueueNo,
        run: Option<RunNo>,
        now: Time,
    ) -> Result<Arc<Chunk>, StoreError> {
        let unique = jobs.particulars().and_then(|particulars| particulars.unique.clone());
        let mut room = self.room_in(run)?.unwrap_or(u64::MAX);
        if unique.is_none() && room >= jobs.len() as u64 {
            return Ok(jobs.clone());
        }
        let mut kept = vec![true; jobs.len()];
        let mut beyond = 0;
        for (index, kept) in kept.iter_mut().enumerate() {
            let key = |unique| keys::key_of(unique, queue, run, jobs.data(index));
            let (id, key, on_conflict) = match &unique {
                Some(unique) => (jobs.id(index), key(unique), unique.on_conflict),
                None => (jobs.id(index), None, OnConflict::Ignore),
            };
            let Some(left) = room.checked_sub(1) else {
                *kept = false;
                beyond += 1;
                continue;
            };
            let Some(key) = key else {
                room = left;
                continue;
            };
            match holder(self.db, key)? {
                Some(of) if !self.gives_way(of, jobs, on_conflict, now)? => {
                    *kept = false;
                    self.m.changes.duplicates.push(Duplicate { id, of });
                }
                Some(_) | None => {
                    take(self.db, key, id)?;
                    room = left;
                }
            }
        }
        let dropped = kept.iter().filter(|kept| !**kept).count();
        if dropped == 0 {
            return Ok(jobs.clone());
        }
        if let Some(no) = run
            && let Some(run) = self.m.runs.run(self.db, no)?
        {
            run.counts.dropped += dropped as u64;
            self.m.changes.beyond_limit.extend((beyond > 0).then_some((no, beyond)));
        }
        Ok(Arc::new(jobs.rebuilt(jobs.particulars().cloned(), |index| kept[index])))
    }

    /// Whether the job that has a key makes room for another: one that waits is cancelled.
    fn gives_way(&mut self, of: JobId, beside: &Chunk, on_conflict: OnConflict, now: Time) -> Result<bool, StoreError> {
        if on_conflict != OnConflict::Replace || beside.find(of).is_some() {
            return Ok(keys::replaces(on_conflict, true));
        }
        let answers = self.amend(&[of], Amendment::Cancel, now)?;
        Ok(keys::replaces(on_conflict, answers == [Amended::Running]))
    }

    pub(super) fn holders(&mut self, new: &NewJobs) -> Result<Vec<Option<JobId>>, StoreError> {
        let unique = new.jobs.particulars().and_then(|particulars| particulars.unique.clone());
        let Some(unique) = unique else { return Ok(vec![None; new.jobs.len()]) };
        let queue = self.number_of(&new.queue)?;
        let run = match new.run {
            Some(id) => self.m.runs.known_number(self.db, id)?,
            None => None,
        };
        let find = |index| match keys::key_of(&unique, queue, run, new.jobs.data(index)) {
            Some(key) => holder(self.db, key),
            None => Ok(None),
        };
        (0..new.jobs.len()).map(find).collect()
    }

    /// Frees the keys of jobs that go on.
    pub(super) fn free_keys(
        &self,
        jobs: &Chunk,
        range: Range<usize>,
        queue: QueueNo,
        step: Step,
    ) -> Result<(), StoreError> {
        if jobs.is_plain() {
            return Ok(());
        }
        keys::freed(jobs, range, queue, step).into_iter().try_for_each(|(key, id)| free(self.db, key, id))
    }

    /// The same for a single job, which may have ended now.
    pub(super) fn free_keys_of(&mut self, row: &Row) -> Result<(), StoreError> {
        if row.state.is_end() {
            self.note_end(row.id, false);
        }
        if row.particulars.is_none() || !row.state.is_end() && row.state != State::Running {
            return Ok(());
        }
        let step = if row.state.is_end() { Step::Ended } else { Step::Begun };
        self.free_keys(&row.held(row.record).jobs, 0..1, row.queue, step)
    }
}

impl Turn<'_> {
    /// The job that has the key of one that has ended and is to live again, in the run where that will be.
    pub(super) fn key_held_beside(&mut self, row: &Row) -> Result<Option<JobId>, StoreError> {
        let Some(unique) = row.unique().filter(|_| row.state.is_end()) else { return Ok(None) };
        let run = match row.run {
            Some(no) => match self.m.runs.run(self.db, no)?.map(|run| (run.counts.ended, run.id)) {
                Some((true, id)) => match self.m.runs.joined(self.db, id)? {
                    Some(joined) => self.m.runs.known_number(self.db, joined.id)?,
                    None => None,
                },
                Some((false, _)) | None => Some(no),
            },
            None => None,
        };
        let key = keys::key_of(unique, row.queue, run, &row.data);
        let holder = key.map(|key| holder(self.db, key)).transpose()?.flatten();
        Ok(holder.filter(|of| *of != row.id))
    }

    /// Nobody has its key: it was looked for in this turn.
    pub(super) fn retake_key(&mut self, row: &Row, run: Option<RunNo>) -> Result<(), StoreError> {
        let key = row.unique().and_then(|unique| keys::key_of(unique, row.queue, run, &row.data));
        key.map_or(Ok(()), |key| take(self.db, key, row.id))
    }
}

fn holder(db: &Connection, key: Key) -> Result<Option<JobId>, StoreError> {
    let sql = "SELECT origin, offset, sum FROM unique_key WHERE scope = ?1 AND of = ?2 AND hash = ?3";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let found = statement.query_row(params![key.scope as u8, key.of, key.hash], |r| {
        Ok((JobId { origin: Origin::from_random(r.get(0)?), offset: r.get(1)? }, r.get::<_, u32>(2)?))
    });
    let Some((id, stored)) = found.optional().map_err(failed)? else { return Ok(None) };
    check(stored, key_sum(key, id), || format!("the unique key of {id}"))?;
    Ok(Some(id))
}

fn take(db: &Connection, key: Key, id: JobId) -> Result<(), StoreError> {
    let sql =
        "INSERT OR REPLACE INTO unique_key (scope, of, hash, origin, offset, sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let sum = key_sum(key, id);
    let row = params![key.scope as u8, key.of, key.hash, id.origin.bits(), id.offset, sum];
    statement.execute(row).map_err(failed)?;
    if sabotage::on(Sabotage::KeyOutsideTransaction) {
        db.execute_batch("COMMIT; BEGIN IMMEDIATE").map_err(failed)?;
    }
    Ok(())
}

/// A key that another job has by now stays with that one.
fn free(db: &Connection, key: Key, id: JobId) -> Result<(), StoreError> {
    let sql = "DELETE FROM unique_key WHERE scope = ?1 AND of = ?2 AND hash = ?3 AND origin = ?4 AND offset = ?5";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let row = params![key.scope as u8, key.of, key.hash, id.origin.bits(), id.offset];
    statement.execute(row).map_err(failed).map(|_| ())
}

/// Drops up to so many keys of a run that goes; tells how many there were.
pub(super) fn forget_run(db: &Connection, run: RunNo, limit: u64) -> Result<u64, StoreError> {
    let sql = "DELETE FROM unique_key WHERE scope = ?1 AND of = ?2 AND hash IN \
               (SELECT hash FROM unique_key WHERE scope = ?1 AND of = ?2 LIMIT ?3)";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let dropped = statement.execute(params![Scope::Run as u8, run.0, limit]).map_err(failed)?;
    Ok(dropped as u64)
}

fn key_sum(key: Key, id: JobId) -> u32 {
    let numbers = [key.scope as i64, i64::from(key.of), id.origin.bits() as i64, id.offset as i64];
    sum(numbers, &key.hash)
}
