//! What people do to single jobs, and what becomes old: amend, delete, forget.

use super::database::Value;
use super::dialect::Rows;
use super::rows::{self, Row};
use super::tally::Was;
use super::{SqlStore, StoreError};
use crate::store::{Amended, Amendment, DELETED, Deleted, Settlement};
use std::collections::HashMap;
use windlass_core::job::{JobId, Lane, Priority, QueueNo, Record, RunNo};
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::{self, Change, State};
use windlass_core::time::Time;

impl SqlStore {
    pub(super) fn amend_all(
        &mut self,
        ids: &[JobId],
        amendment: Amendment,
        now: Time,
    ) -> Result<Vec<Amended>, StoreError> {
        let mut rows = self.lock_all(ids, now)?;
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.push(match rows.get_mut(id) {
                Some(row) => self.amend_one(row, amendment, now)?,
                None => Amended::Unknown,
            });
        }
        self.flush(now)?;
        self.end_waits(now)?;
        self.name_moved_queues()?;
        Ok(answers)
    }

    fn lock_all(&mut self, ids: &[JobId], now: Time) -> Result<HashMap<JobId, Row>, StoreError> {
        self.begin()?;
        self.flush(now)?;
        let mut once = ids.to_vec();
        once.sort_unstable();
        once.dedup();
        let rows = rows::by_ids(&mut self.db, &self.names, &once, true)?;
        Ok(rows.into_iter().map(|row| (row.id, row)).collect())
    }

    pub(super) fn amend_one(&mut self, row: &mut Row, amendment: Amendment, now: Time) -> Result<Amended, StoreError> {
        let (from, was) = (row.state, Was::of(row));
        let change = match amendment {
            Amendment::Cancel if from == State::Running => return Ok(Amended::Running),
            Amendment::Priority(priority) => return Ok(self.rank(row, priority)),
            Amendment::Cancel => Change::Cancel,
            Amendment::Retry => Change::Revive,
            Amendment::Suspend => Change::Suspend,
            Amendment::Resume => Change::Resume,
        };
        if life_cycle::next(from, change).is_none() {
            return Ok(Amended::Refused(from));
        }
        if change == Change::Revive
            && let Some(of) = self.key_held_beside(row, now)?
        {
            return Ok(Amended::Taken(of));
        }
        row.ended = (change == Change::Cancel).then_some(now);
        row.reason = None;
        if change == Change::Revive {
            row.record = Record { starts: row.record.starts, ..Record::default() };
            let over = match row.run {
                Some(no) => self.is_over(no, now)?,
                None => None,
            };
            if let Some(id) = over {
                row.run = Some(self.joined_run(id, now)?);
            }
            if from.is_end()
                && let Some(of) = self.retake_key(row, now)?
            {
                return Ok(Amended::Taken(of));
            }
        }
        let to = self.transit(was, row, change, now)?;
        Ok(Amended::Done { from, to })
    }

    /// Moves a waiting job to the lane of another priority: no change of state, so no counter changes.
    fn rank(&mut self, row: &mut Row, priority: Priority) -> Amended {
        let state = row.state;
        if state.is_end() || state == State::Running {
            return Amended::Refused(state);
        }
        if row.priority == priority {
            return Amended::Same(state);
        }
        let (lane, run) = (row.lane(), row.run);
        row.priority = priority;
        self.count_in_queue(lane, run, Some(state), None, 1);
        self.count_in_queue(row.lane(), run, None, Some(state), 1);
        self.save(row);
        Amended::Done { from: state, to: state }
    }

    pub(super) fn delete_all(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Deleted>, StoreError> {
        let mut rows = self.lock_all(ids, now)?;
        let (mut answers, mut gone) = (Vec::with_capacity(ids.len()), Vec::new());
        for id in ids {
            answers.push(match rows.remove(id) {
                Some(row) if row.state == State::Running => {
                    rows.insert(*id, row);
                    Deleted::Running
                }
                Some(row) => {
                    gone.push(row.arrival.0 as i64);
                    self.delete_one(row, now)?
                }
                None => Deleted::Unknown,
            });
        }
        self.flush(now)?;
        self.remove_rows(gone)?;
        self.end_waits(now)?;
        self.name_moved_queues()?;
        Ok(answers)
    }

    /// A waiting job is given up first; then it is gone, and the archive has its last line.
    fn delete_one(&mut self, mut row: Row, now: Time) -> Result<Deleted, StoreError> {
        let (from, lane, held, was) = (row.state, row.lane(), row.held(row.record), Was::of(&row));
        let ended = if from.is_end() { from } else { self.transit(was, &mut row, Change::Cancel, now)? };
        self.count_in_queue(lane, None, Some(ended), None, 1);
        let last = Settlement { held, verdict: Verdict::Cancel, outcome: DELETED, started: now, finished: now };
        self.note_outcome(&last);
        Ok(Deleted::Done { from, last })
    }

    /// Rows that are old, as far as the application's tables let them go: else they stay, and that is said once.
    pub(super) fn remove_old_rows(&mut self, ids: Vec<i64>) -> Result<bool, StoreError> {
        if ids.is_empty() {
            return Ok(true);
        }
        self.db.batch(&["SAVEPOINT removal"])?;
        match self.remove_rows(ids) {
            Err(StoreError::Refused(why)) => {
                self.db.batch(&["ROLLBACK TO SAVEPOINT removal"])?;
                if !std::mem::replace(&mut self.keeps_old_rows, true) {
                    self.remarks.push(format!("old rows stay, because another table refers to them: {why}"));
                }
                Ok(false)
            }
            removed => removed.map(|()| true),
        }
    }

    pub(super) fn remove_rows(&mut self, ids: Vec<i64>) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.written = true;
        let mut params = Vec::new();
        let source = self.db.dialect.rows(Rows::default().ints("w_id", ids), &mut params);
        let sql = self.names.sql(&self.db.dialect.delete_from(":jobs", &source, "j.:id = t.w_id"));
        self.db.execute(&sql, &params).map(|_| ())
    }

    /// Old rows first, then runs that have none left.
    pub(super) fn forget_old(&mut self, before: Time, limit: u32) -> Result<u64, StoreError> {
        self.begin()?;
        self.flush(before)?;
        let sql = self.names.sql(&format!(
            "SELECT :id, :queue_no, :priority, :lane_kind, :run_no, :state FROM :jobs WHERE :ended_at < $1 \
             AND :state IN (6, 7) AND :status = 'error' ORDER BY :ended_at LIMIT $2 {}",
            self.db.dialect.skip_locked()
        ));
        let old = self.db.query(&sql, &[before.as_micros().into(), i64::from(limit).into()])?;
        let (mut ids, mut forgotten) = (Vec::with_capacity(old.len()), Vec::with_capacity(old.len()));
        for mut row in old {
            ids.push(row.int()?);
            let (queue, priority) = (QueueNo(row.number()?), rows::priority_in(&mut row).0);
            let kind = super::look::kind_from(row.int()?)?;
            let run = row.maybe_int()?.map(|no| RunNo(no as u32));
            let state = if row.int()? == 6 { State::Failed } else { State::Cancelled };
            forgotten.push((Lane { queue, priority, kind }, run, state));
        }
        if !self.remove_old_rows(ids)? {
            forgotten.clear();
        }
        for (lane, run, state) in &forgotten {
            self.count_in_queue(*lane, *run, Some(*state), None, 1);
        }
        let forgotten = forgotten.len() as u64;
        self.name_moved_queues()?;
        Ok(forgotten + self.forget_runs(before, u64::from(limit) - forgotten)?)
    }

    /// The oldest generation goes first, so that no generation's number is given twice.
    fn forget_runs(&mut self, before: Time, limit: u64) -> Result<u64, StoreError> {
        if limit == 0 {
            return Ok(0);
        }
        let sql = self.names.sql(
            "SELECT r.number FROM :runs AS r WHERE r.ended_at < $1 \
             AND NOT EXISTS (SELECT 1 FROM :jobs AS j WHERE j.:run_no = r.number AND j.:state <> 5) \
             AND NOT EXISTS (SELECT 1 FROM :runs AS o WHERE o.origin = r.origin AND o.generation < r.generation) \
             ORDER BY r.number LIMIT $2",
        );
        let over = self.db.query(&sql, &[before.as_micros().into(), (limit as i64).into()])?;
        let count = over.len() as u64;
        for mut row in over {
            let number = row.int()?;
            self.written = true;
            self.db.execute(&self.names.sql("DELETE FROM :runs WHERE number = $1"), &[number.into()])?;
            self.db.execute(&self.names.sql("DELETE FROM :run_counts WHERE run = $1"), &[number.into()])?;
            self.forget_keys(RunNo(number as u32))?;
        }
        Ok(count)
    }

    /// Rows of a run that have not ended, by arrival.
    pub(super) fn live_of_run(&mut self, run: RunNo, from: u64, limit: usize) -> Result<Vec<(u64, JobId)>, StoreError> {
        let sql = self.names.sql(
            "SELECT :id, coalesce(:job_origin, (SELECT origin FROM :meta)), coalesce(:job_offset, :id) FROM :jobs \
             WHERE :run_no = $1 AND :state IN (0, 1, 2, 3, 4) AND :id >= $2 ORDER BY :id LIMIT $3",
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params: [Value; 3] = [i64::from(run.0).into(), (from as i64).into(), limit.into()];
        let found = self.db.query(&sql, &params)?.into_iter().map(|mut row| {
            let arrival = row.int()? as u64;
            let origin = windlass_core::job::Origin::from_random(row.int()? as u64);
            Ok((arrival, JobId { origin, offset: row.int()? as u64 }))
        });
        found.collect()
    }
}
