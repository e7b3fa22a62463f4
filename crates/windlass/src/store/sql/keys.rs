//! Unique keys: a table from keys to the jobs that have them. A key is taken by whoever inserts its row, so that two
//! servers cannot both have it.

use super::database::Value;
use super::dialect::Rows;
use super::rows::{self, Row};
use super::{SqlStore, StoreError};
use crate::store::chunk::Chunk;
use crate::store::keys::{Duplicate, Key, key_of, replaces};
use crate::store::{Amendment, NewJobs};
use std::collections::BTreeMap;
use std::sync::Arc;
use windlass_core::job::{JobId, Origin, QueueNo, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::particulars::{OnConflict, Unique};
use windlass_core::time::Time;

impl SqlStore {
    /// The jobs that may come in, with their keys taken; the others are told.
    pub(super) fn take_keys(
        &mut self,
        jobs: &Arc<Chunk>,
        queue: QueueNo,
        run: Option<RunNo>,
        now: Time,
    ) -> Result<Arc<Chunk>, StoreError> {
        let unique = jobs.particulars().and_then(|particulars| particulars.unique.clone());
        let mut room = match run {
            Some(no) => self.room_in(no)?.unwrap_or(u64::MAX),
            None => u64::MAX,
        };
        if unique.is_none() && room >= jobs.len() as u64 {
            return Ok(jobs.clone());
        }
        let key = |index| unique.as_ref().and_then(|unique| key_of(unique, queue, run, jobs.data(index)));
        let keys: Vec<Option<Key>> = (0..jobs.len()).map(key).collect();
        let mut holders = self.holders_of(keys.iter().flatten().copied(), now)?;
        let on_conflict = unique.as_ref().map_or(OnConflict::Ignore, |unique| unique.on_conflict);
        let (mut kept, mut beyond) = (vec![true; jobs.len()], 0);
        let (mut fresh, mut replaced) = (BTreeMap::new(), BTreeMap::new());
        for (index, kept) in kept.iter_mut().enumerate() {
            let (id, key) = (jobs.id(index), keys[index]);
            let holder = key.and_then(|key| holders.get(&key).copied());
            if room == 0 {
                *kept = false;
                beyond += 1;
                continue;
            }
            if let Some(of) = holder
                && !self.gives_way(of, jobs, on_conflict, now)?
            {
                *kept = false;
                self.changes.duplicates.push(Duplicate { id, of });
                continue;
            }
            room -= 1;
            if let Some(key) = key {
                holders.insert(key, id);
                if holder.is_some() { &mut replaced } else { &mut fresh }.insert(key, id);
            }
        }
        self.write_keys(&replaced)?;
        for (id, of) in self.insert_keys(&fresh, now)? {
            jobs.find(id).into_iter().for_each(|index| kept[index] = false);
            self.changes.duplicates.push(Duplicate { id, of });
        }
        let dropped = kept.iter().filter(|kept| !**kept).count() as u64;
        if let Some(no) = run.filter(|_| dropped > 0) {
            self.drop_from_run(no, dropped, now);
            self.changes.beyond_limit.extend((beyond > 0).then_some((no, beyond)));
        }
        Ok(match dropped {
            0 => jobs.clone(),
            _ => Arc::new(jobs.rebuilt(jobs.particulars().cloned(), |index| kept[index])),
        })
    }

    /// Whether the job that has a key makes room for another: one that waits is cancelled.
    fn gives_way(&mut self, of: JobId, beside: &Chunk, on_conflict: OnConflict, now: Time) -> Result<bool, StoreError> {
        if !replaces(on_conflict, beside.find(of).is_some()) {
            return Ok(false);
        }
        self.flush(now)?;
        let row = rows::by_ids(&mut self.db, &self.names, &[of], true)?.pop();
        let runs = row.as_ref().is_some_and(|row| row.state == State::Running);
        let replaces = replaces(on_conflict, runs);
        if let Some(mut row) = row.filter(|_| replaces) {
            self.amend_one(&mut row, Amendment::Cancel, now)?;
            self.flush(now)?;
        }
        Ok(replaces)
    }

    pub(super) fn key_holders(&mut self, new: &NewJobs) -> Result<Vec<Option<JobId>>, StoreError> {
        let unique = new.jobs.particulars().and_then(|particulars| particulars.unique.clone());
        let Some(unique) = unique else { return Ok(vec![None; new.jobs.len()]) };
        let queue = self.queue_no(&new.queue)?;
        let run = match new.run {
            Some(id) => self.run_of(id)?.map(|run| run.no),
            None => None,
        };
        let keys: Vec<Option<Key>> =
            (0..new.jobs.len()).map(|index| key_of(&unique, queue, run, new.jobs.data(index))).collect();
        let holders = self.holders_of(keys.iter().flatten().copied(), Time::ZERO)?;
        Ok(keys.into_iter().map(|key| holders.get(&key?).copied()).collect())
    }

    fn holders_of(&mut self, keys: impl Iterator<Item = Key>, now: Time) -> Result<BTreeMap<Key, JobId>, StoreError> {
        let keys: Vec<Key> = keys.collect();
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.flush(now)?;
        let mut params = Vec::new();
        let source = self.db.dialect.rows(key_rows(&keys), &mut params);
        let sql = self.names.sql(&format!(
            "SELECT t.n, k.origin, k.job_offset FROM :keys AS k JOIN {source} \
             ON k.scope = t.w_scope AND k.owner = t.w_owner AND k.hash = t.w_hash ORDER BY t.n"
        ));
        // Places begin at one where the database numbers them.
        let first = if self.db.dialect == super::Dialect::Sqlite { 0 } else { 1 };
        let mut holders = BTreeMap::new();
        for mut row in self.db.query(&sql, &params)? {
            let at = row.number::<usize>()? - first;
            let (origin, offset) = (Origin::from_random(row.int()? as u64), row.int()? as u64);
            holders.insert(keys[at], JobId { origin, offset });
        }
        Ok(holders)
    }

    /// Takes keys that were free a moment ago; tells who lost theirs to another server, and to which job.
    fn insert_keys(&mut self, fresh: &BTreeMap<Key, JobId>, now: Time) -> Result<Vec<(JobId, JobId)>, StoreError> {
        if fresh.is_empty() {
            return Ok(Vec::new());
        }
        self.begin()?;
        self.written = true;
        let mut params = Vec::new();
        let source = self.db.dialect.rows(held_keys(fresh), &mut params);
        let columns = "scope, owner, hash, origin, job_offset";
        let select = format!("SELECT {columns} FROM {source} WHERE true");
        let sql = self.names.sql(&self.db.dialect.insert_new(&format!(":keys ({columns})"), &select));
        if self.db.execute(&sql, &params)? == fresh.len() as u64 {
            return Ok(Vec::new());
        }
        let holders = self.holders_of(fresh.keys().copied(), now)?;
        let lost = fresh.iter().filter_map(|(key, id)| Some((*id, *holders.get(key)?)));
        Ok(lost.filter(|(id, of)| id != of).collect())
    }

    /// The job that has the key of one that has ended and is to live again, in the run where that will be.
    pub(super) fn key_held_beside(&mut self, row: &Row, now: Time) -> Result<Option<JobId>, StoreError> {
        let Some(unique) = unique_of(row).filter(|_| row.state.is_end()) else { return Ok(None) };
        let run = match row.run {
            Some(no) => match self.is_over(no, now)? {
                Some(id) => match self.run_to_join(id)? {
                    Some(joined) => self.run_of(joined.id)?.map(|run| run.no),
                    None => None,
                },
                None => Some(no),
            },
            None => None,
        };
        let Some(key) = key_of(unique, row.queue, run, &row.data) else { return Ok(None) };
        let holders = self.holders_of([key].into_iter(), now)?;
        Ok(holders.get(&key).copied().filter(|of| *of != row.id))
    }

    /// Nobody had its key a moment ago; tells the job that another server gave it to since.
    pub(super) fn retake_key(&mut self, row: &Row, now: Time) -> Result<Option<JobId>, StoreError> {
        let key = unique_of(row).and_then(|unique| key_of(unique, row.queue, row.run, &row.data));
        let fresh: BTreeMap<Key, JobId> = key.into_iter().map(|key| (key, row.id)).collect();
        Ok(self.insert_keys(&fresh, now)?.pop().map(|(_, of)| of))
    }

    /// Gives keys to those that took the place of their holders.
    fn write_keys(&mut self, replaced: &BTreeMap<Key, JobId>) -> Result<(), StoreError> {
        if replaced.is_empty() {
            return Ok(());
        }
        self.begin()?;
        self.written = true;
        let mut params = Vec::new();
        let source = self.db.dialect.rows(held_keys(replaced), &mut params);
        let (key, columns) = (["scope", "owner", "hash"], ["origin", "job_offset"]);
        let sql = self.names.sql(&self.db.dialect.upsert(":keys", &key, &columns, false, &source));
        self.db.execute(&sql, &params).map(|_| ())
    }

    /// A key that another job has by now stays with that one.
    pub(super) fn flush_freed_keys(&mut self) -> Result<(), StoreError> {
        let freed = std::mem::take(&mut self.work.freed);
        if freed.is_empty() {
            return Ok(());
        }
        self.begin()?;
        self.written = true;
        let keys: Vec<Key> = freed.iter().map(|(key, _)| *key).collect();
        let rows = key_rows(&keys)
            .ints("o", freed.iter().map(|(_, id)| id.origin.bits() as i64))
            .ints("f", freed.iter().map(|(_, id)| id.offset as i64));
        let mut params = Vec::new();
        let source = self.db.dialect.rows(rows, &mut params);
        let matching = "j.scope = t.w_scope AND j.owner = t.w_owner AND j.hash = t.w_hash AND j.origin = t.o \
             AND j.job_offset = t.f";
        let sql = self.names.sql(&self.db.dialect.delete_from(":keys", &source, matching));
        self.db.execute(&sql, &params).map(|_| ())
    }

    /// The run is gone, and its keys with it.
    pub(super) fn forget_keys(&mut self, run: RunNo) -> Result<(), StoreError> {
        let sql = self.names.sql("DELETE FROM :keys WHERE scope = $1 AND owner = $2");
        let params: [Value; 2] = [(windlass_core::particulars::Scope::Run as i64).into(), i64::from(run.0).into()];
        self.db.execute(&sql, &params).map(|_| ())
    }
}

fn unique_of(row: &Row) -> Option<&Unique> {
    row.particulars.as_deref().and_then(|particulars| particulars.unique.as_ref())
}

fn key_rows(keys: &[Key]) -> Rows {
    Rows::default()
        .ints("w_scope", keys.iter().map(|key| key.scope as i64))
        .ints("w_owner", keys.iter().map(|key| i64::from(key.of)))
        .blobs("w_hash", keys.iter().map(|key| Some(key.hash.to_vec())))
}

fn held_keys(held: &BTreeMap<Key, JobId>) -> Rows {
    Rows::default()
        .ints("scope", held.keys().map(|key| key.scope as i64))
        .ints("owner", held.keys().map(|key| i64::from(key.of)))
        .blobs("hash", held.keys().map(|key| Some(key.hash.to_vec())))
        .ints("origin", held.values().map(|id| id.origin.bits() as i64))
        .ints("job_offset", held.values().map(|id| id.offset as i64))
}
