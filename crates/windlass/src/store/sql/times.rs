//! Times: what is due becomes ready, what is too late fails, and who waits for others is let go or given up.

use super::claim::before;
use super::database::Value;
use super::dialect::Rows;
use super::rows::{self, COLUMNS, Row};
use super::tally::Was;
use super::{SqlStore, StoreError};
use crate::store::chunk::Chunk;
use crate::store::{Amendment, EXPIRED, Settlement, Told};
use std::collections::HashMap;
use std::time::Duration;
use windlass_core::job::{JobId, Lane, Origin, QueueNo, RunNo};
use windlass_core::judge::{Reason, Verdict, late_sentence};
use windlass_core::life_cycle::{Change, State};
use windlass_core::time::Time;

/// A job that runs past its time is asked for again after so long.
const AGAIN: Duration = Duration::from_secs(10);

impl SqlStore {
    /// A time was set at which `release` has work.
    pub(super) fn note_due(&mut self, at: Option<Time>) {
        if let (Some(at), Some(due)) = (at, &mut self.due) {
            *due = Some(due.map_or(at, |due| due.min(at)));
        }
    }

    pub(super) fn next_due_time(&mut self) -> Result<Option<Time>, StoreError> {
        if self.due.is_none() {
            let sql = self.names.sql(
                "SELECT (SELECT min(:run_at) FROM :jobs WHERE :state IN (0, 3) AND :status = 'pending'), \
                 (SELECT min(:start_by) FROM :jobs WHERE :start_by IS NOT NULL), \
                 (SELECT min(:finish_by) FROM :jobs WHERE :finish_by IS NOT NULL)",
            );
            let mut row = self.db.one(&sql, &[])?;
            let times = [rows::time_in(&mut row).0.map(Time::as_micros), row.maybe_int()?, row.maybe_int()?];
            self.due = Some(times.into_iter().flatten().min().map(Time));
        }
        Ok(self.due.flatten())
    }

    pub(super) fn release_due(&mut self, now: Time, limit: u32, late: Told<'_>) -> Result<(), StoreError> {
        self.begin()?;
        self.flush(now)?;
        self.due = None;
        self.expire(now, limit, late)?;
        let sql = self.names.sql(&format!(
            "SELECT :id, :queue_no, :priority, :lane_kind, :run_no, :state FROM :jobs WHERE :state IN (0, 3) \
             AND :status = 'pending' AND :run_at <= $1 ORDER BY :run_at, :id LIMIT $2 {}",
            self.db.dialect.skip_locked()
        ));
        let due = self.db.query(&sql, &[now.as_micros().into(), i64::from(limit).into()])?;
        let mut ids = Vec::with_capacity(due.len());
        for mut row in due {
            ids.push(row.int()?);
            let (queue, priority) = (QueueNo(row.number()?), rows::priority_in(&mut row).0);
            let kind = super::look::kind_from(row.int()?)?;
            let run = row.maybe_int()?.map(|no| RunNo(no as u32));
            let state = if row.int()? == 0 { State::Scheduled } else { State::Retrying };
            self.count(Lane { queue, priority, kind }, run, Some(state), Some(State::Ready), 1, now);
        }
        if !ids.is_empty() {
            self.written = true;
            let mut params: Vec<Value> = vec![now.as_micros().into()];
            let source = self.db.dialect.rows(Rows::default().ints("w_id", ids), &mut params);
            // Those that never failed stand by their arrival; retries keep their time as their place.
            let set = format!(
                ":state = 1, :run_at = CASE WHEN j.:lane_kind = 0 THEN NULL ELSE j.:run_at END, :updated_at = {}",
                self.db.dialect.timestamp("$1")
            );
            let sql = self.names.sql(&self.db.dialect.update_from(":jobs", &set, &source, "j.:id = t.w_id"));
            self.db.execute(&sql, &params)?;
        }
        self.end_waits(now)?;
        self.name_moved_queues()
    }

    /// A job that comes back may have missed its times meanwhile: where it ran past one, that was put off.
    pub(super) fn list_times_again(&mut self, row: &Row) -> Result<(), StoreError> {
        let Some(of) = &row.particulars else { return Ok(()) };
        for (column, at) in [(":start_by", of.start_by), (":finish_by", of.finish_by)] {
            if let Some(at) = at {
                let sql = self.names.sql(&format!("UPDATE :jobs SET {column} = $1 WHERE :id = $2"));
                self.db.execute(&sql, &[at.as_micros().into(), (row.arrival.0 as i64).into()])?;
                self.note_due(Some(at));
            }
        }
        Ok(())
    }

    /// Fails what has not begun or ended in time; what runs too long is told.
    fn expire(&mut self, now: Time, limit: u32, told: Told<'_>) -> Result<(), StoreError> {
        let mut follow_ups = Vec::new();
        for (column, begin) in [(":start_by", true), (":finish_by", false)] {
            let sql = self.names.sql(&format!(
                "SELECT {COLUMNS} FROM :jobs AS j WHERE j.{column} <= $1 AND j.:state IS NOT NULL \
                 ORDER BY j.{column} LIMIT $2 {}",
                self.db.dialect.skip_locked()
            ));
            let late = self.db.query(&sql, &[now.as_micros().into(), i64::from(limit).into()])?;
            let late = late.into_iter().map(|mut row| Row::read(&mut row)).collect::<Result<Vec<_>, _>>()?;
            if late.is_empty() {
                continue;
            }
            self.written = true;
            let again = |row: &Row| (!begin && row.state == State::Running).then(|| now.after(AGAIN).as_micros());
            let rows = Rows::default()
                .ints("w_id", late.iter().map(|row| row.arrival.0 as i64))
                .maybe_ints("w_again", late.iter().map(again));
            let mut params = Vec::new();
            let source = self.db.dialect.rows(rows, &mut params);
            let set = format!("{column} = t.w_again");
            let sql = self.names.sql(&self.db.dialect.update_from(":jobs", &set, &source, "j.:id = t.w_id"));
            self.db.execute(&sql, &params)?;
            for row in late {
                match row.state {
                    State::Running if !begin => self.changes.overdue.push(row.id),
                    State::Running | State::Succeeded | State::Failed | State::Cancelled => {}
                    State::Scheduled | State::Ready | State::Retrying | State::Suspended => {
                        if !begin || row.record.starts == 0 {
                            let row = self.fail_late(row, begin, now)?;
                            follow_ups.extend(self.said_of(row, told)?);
                        }
                    }
                }
            }
            self.flush(now)?;
        }
        self.admit_follow_ups(&follow_ups, now)
    }

    fn fail_late(&mut self, mut row: Row, begin: bool, now: Time) -> Result<Row, StoreError> {
        let (was, held, error) = (Was::of(&row), row.held(row.record), late_sentence(begin).to_owned());
        (row.reason, row.ended) = (Some(Reason::Expired), Some(now));
        row.note_error(now, &error);
        self.transit(was, &mut row, Change::Expire, now)?;
        let verdict = Verdict::Fail { reason: Reason::Expired, error };
        let last = Settlement { held, verdict, outcome: EXPIRED, started: now, finished: now };
        self.note_outcome(&last);
        self.changes.expired.push(last);
        Ok(row)
    }

    /// What new jobs have to wait for, and one of these that never will succeed.
    pub(super) fn unmet(&mut self, jobs: &Chunk, now: Time) -> Result<(Vec<JobId>, Option<JobId>), StoreError> {
        let after = jobs.particulars().map(|particulars| particulars.after.clone()).unwrap_or_default();
        if after.is_empty() {
            return Ok((Vec::new(), None));
        }
        self.begin()?;
        self.flush(now)?;
        // Locked, so that none of them ends unseen before it is written that somebody waits for it.
        let rows = rows::by_ids(&mut self.db, &self.names, &after, true)?;
        let states: HashMap<JobId, State> = rows.into_iter().map(|row| (row.id, row.state)).collect();
        let failed = after.iter().copied().find(|id| states.get(id).is_some_and(|state| state.is_end()));
        let unmet = after.into_iter().filter(|id| states.get(id).is_some_and(|state| !state.is_end())).collect();
        Ok((unmet, failed))
    }

    pub(super) fn list_waits(&mut self, ids: &[JobId], unmet: &[JobId]) -> Result<(), StoreError> {
        if unmet.is_empty() {
            return Ok(());
        }
        let pairs = || unmet.iter().flat_map(|of| ids.iter().map(move |id| (*of, *id)));
        let rows = Rows::default()
            .ints("w_origin", pairs().map(|(of, _)| of.origin.bits() as i64))
            .ints("w_offset", pairs().map(|(of, _)| of.offset as i64))
            .ints("w_waiting", pairs().map(|(_, id)| id.origin.bits() as i64))
            .ints("w_waiting_offset", pairs().map(|(_, id)| id.offset as i64));
        let mut params = Vec::new();
        let source = self.db.dialect.rows(rows, &mut params);
        let select = format!("SELECT w_origin, w_offset, w_waiting, w_waiting_offset FROM {source} WHERE true");
        let into = ":waits (origin, job_offset, waiting_origin, waiting_offset)";
        let sql = self.names.sql(&self.db.dialect.insert_new(into, &select));
        self.written = true;
        self.db.execute(&sql, &params).map(|_| ())
    }

    /// Lets those go that waited for jobs which have ended: on, or into the ground.
    pub(super) fn end_waits(&mut self, now: Time) -> Result<(), StoreError> {
        if !self.work.ends.is_empty() && !self.somebody_waits()? {
            self.work.ends.clear();
        }
        while !self.work.ends.is_empty() {
            let ends = std::mem::take(&mut self.work.ends);
            self.flush(now)?;
            for (of, waiting) in self.waiting_for(&ends)? {
                let succeeded = ends.iter().any(|(id, succeeded)| *id == of && *succeeded);
                self.forget_waits("origin = $1 AND job_offset = $2", of)?;
                match succeeded {
                    true => self.let_go(&waiting, now)?,
                    false => self.give_up(&waiting, of, now)?,
                }
            }
        }
        Ok(())
    }

    /// Mostly nobody does, and then nobody has to be looked for by name.
    fn somebody_waits(&mut self) -> Result<bool, StoreError> {
        Ok(self.db.maybe_one(&self.names.sql("SELECT 1 FROM :waits LIMIT 1"), &[])?.is_some())
    }

    fn waiting_for(&mut self, ends: &[(JobId, bool)]) -> Result<HashMap<JobId, Vec<JobId>>, StoreError> {
        let ids: Vec<JobId> = ends.iter().map(|(id, _)| *id).collect();
        let mut params = Vec::new();
        let source = self.db.dialect.rows(rows::identities(&ids), &mut params);
        let sql = self.names.sql(&format!(
            "SELECT w.origin, w.job_offset, w.waiting_origin, w.waiting_offset FROM :waits AS w \
             JOIN {source} ON w.origin = t.o AND w.job_offset = t.f"
        ));
        let mut found: HashMap<JobId, Vec<JobId>> = HashMap::new();
        for mut row in self.db.query(&sql, &params)? {
            let mut id = || -> Result<JobId, StoreError> {
                Ok(JobId { origin: Origin::from_random(row.int()? as u64), offset: row.int()? as u64 })
            };
            let (of, waiting) = (id()?, id()?);
            found.entry(of).or_default().push(waiting);
        }
        Ok(found)
    }

    fn forget_waits(&mut self, condition: &str, id: JobId) -> Result<(), StoreError> {
        self.written = true;
        let sql = self.names.sql(&format!("DELETE FROM :waits WHERE {condition}"));
        self.db.execute(&sql, &[(id.origin.bits() as i64).into(), (id.offset as i64).into()]).map(|_| ())
    }

    /// Those that wait for nothing more become ready.
    fn let_go(&mut self, waiting: &[JobId], now: Time) -> Result<(), StoreError> {
        let sql = self.names.sql("SELECT 1 FROM :waits WHERE waiting_origin = $1 AND waiting_offset = $2 LIMIT 1");
        let mut free = Vec::new();
        for id in waiting {
            let params = [(id.origin.bits() as i64).into(), (id.offset as i64).into()];
            if self.db.maybe_one(&sql, &params)?.is_none() {
                free.push(*id);
            }
        }
        for mut row in rows::by_ids(&mut self.db, &self.names, &free, true)? {
            if row.state == State::Scheduled && row.due.is_none() {
                self.transit(Was::of(&row.clone()), &mut row, Change::Release, now)?;
            }
        }
        self.flush(now)
    }

    /// What jobs wait for will not be: they are cancelled, and say why.
    pub(super) fn give_up(&mut self, waiting: &[JobId], because: JobId, now: Time) -> Result<(), StoreError> {
        for id in waiting {
            self.forget_waits("waiting_origin = $1 AND waiting_offset = $2", *id)?;
        }
        for mut row in rows::by_ids(&mut self.db, &self.names, waiting, true)? {
            // Whom a person let go waits for nobody, also where it asked for a later start.
            if row.state == State::Scheduled && row.due.is_none() {
                row.note_error(now, &format!("cancelled: {because}, which it waited for, did not succeed"));
                self.amend_one(&mut row, Amendment::Cancel, now)?;
            }
        }
        self.flush(now)
    }

    /// The claim of a row as it was given out.
    pub(super) fn held_of(row: &Row) -> crate::store::Held {
        row.held(before(row.record))
    }
}
