//! Jobs on their way between servers: taken out of their queues to go elsewhere, and taken in as they were elsewhere.

use super::database::{Cells, Database};
use super::names::Names;
use super::rows::{self, Lock, NewRow, is_away};
use super::tally::Was;
use super::{SqlStore, StoreError};
use crate::store::{Arriving, Gone, Held, Unheld};
use std::collections::HashMap;
use windlass_core::job::{JobId, Lane, Origin, Record};
use windlass_core::life_cycle::{Change, State};
use windlass_core::suspicion;
use windlass_core::time::Time;

impl SqlStore {
    pub(super) fn hold_all(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Result<Held, Unheld>>, StoreError> {
        self.begin()?;
        self.flush(now)?;
        let found = rows::by_ids(&mut self.db, &self.names, ids, true)?;
        let mut found: HashMap<JobId, rows::Row> = found.into_iter().map(|row| (row.id, row)).collect();
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.push(match found.get_mut(id) {
                Some(row) => self.hold_one(row, now)?,
                None => Err(Unheld::Unknown),
            });
        }
        self.flush(now)?;
        Ok(answers)
    }

    fn hold_one(&mut self, row: &mut rows::Row, now: Time) -> Result<Result<Held, Unheld>, StoreError> {
        match row.state {
            State::Running => return Ok(Err(Unheld::Running)),
            State::Succeeded | State::Failed | State::Cancelled => return Ok(Err(Unheld::Ended(row.state))),
            State::Scheduled if row.due.is_none() => return Ok(Err(Unheld::Waits)),
            State::Scheduled | State::Ready | State::Retrying | State::Suspended => {}
        }
        if let Some(no) = row.run {
            let run = self.runs_where("WHERE number = $1", &[i64::from(no.0).into()])?.pop();
            return Ok(Err(run.map_or(Unheld::Unable, |run| Unheld::OfRun(run.id))));
        }
        let (was, held) = (Was::of(row), row.held(row.record));
        row.record.starts += 1;
        row.due = None;
        self.transit(was, row, Change::Hold, now)?;
        Ok(Ok(held))
    }

    pub(super) fn arrive_all(&mut self, jobs: &[Arriving], now: Time) -> Result<(), StoreError> {
        self.begin()?;
        self.flush(now)?;
        let ids: Vec<JobId> = jobs.iter().map(|job| job.jobs.id(0)).collect();
        let mut here = self.ids_here(&ids)?;
        let (mut pasts, mut back) = (HashMap::new(), Vec::new());
        for job in jobs {
            let id = job.jobs.id(0);
            let has_past = job.past.record != Record::default() || !job.past.errors.is_empty();
            let was_here = here.insert(id, Here::Stays);
            if was_here == Some(Here::Stays) {
                continue;
            }
            let Some(row) = self.arrive_one(job, now)? else { continue };
            match was_here {
                Some(_) => back.push(row),
                None => self.work.inserts.push(row),
            }
            if has_past {
                pasts.insert(id, &job.past);
            }
        }
        self.bring_back(&back, now)?;
        self.flush(now)?;
        let ids: Vec<JobId> = pasts.keys().copied().collect();
        for mut row in rows::by_ids(&mut self.db, &self.names, &ids, true)? {
            let Some(past) = pasts.get(&row.id) else { continue };
            let starts = row.record.starts.max(past.record.starts);
            (row.record, row.errors) = (Record { starts, ..past.record }, past.errors.clone());
            row.due = past.due.or(row.due).or(Some(now));
            self.save(&row);
        }
        self.flush(now)
    }

    /// Rows that were locked when it was seen that their jobs may come back.
    fn bring_back(&mut self, back: &[NewRow], now: Time) -> Result<(), StoreError> {
        if back.is_empty() {
            return Ok(());
        }
        self.written = true;
        let wakes = |row: &NewRow| row.state == State::Ready && self.looks.was_empty(row.lane());
        self.work.wakes |= self.looks.others && back.iter().any(wakes);
        match rows::revive(&mut self.db, &self.names, back, now)? {
            revived if revived == back.len() as u64 => Ok(()),
            revived => Err(StoreError::Busy(format!("of {} jobs that come back, {revived} could", back.len()))),
        }
    }

    /// The row of a job that comes in, unless another has its key; its past is written once it is there.
    fn arrive_one(&mut self, job: &Arriving, now: Time) -> Result<Option<NewRow>, StoreError> {
        let queue = self.queue_no(&job.queue)?;
        let jobs = self.take_keys(&job.jobs, queue, None, now)?;
        if jobs.is_empty() {
            return Ok(None);
        }
        let state = match job.past.state {
            State::Scheduled | State::Retrying | State::Suspended => job.past.state,
            State::Ready | State::Running | State::Succeeded | State::Failed | State::Cancelled => State::Ready,
        };
        let due = matches!(state, State::Scheduled | State::Retrying).then(|| job.past.due.unwrap_or(now));
        let lane = Lane { queue, priority: job.priority, kind: suspicion::lane_kind(job.past.record) };
        self.count(lane, None, None, Some(state), 1, now);
        self.note_due(due);
        let particulars = jobs.particulars();
        self.note_due(particulars.and_then(|particulars| particulars.start_by));
        self.note_due(particulars.and_then(|particulars| particulars.finish_by));
        let (name, priority) = (job.queue.as_str().into(), job.priority);
        Ok(Some(NewRow { jobs, index: 0, queue, name, priority, state, run: None, due }))
    }

    /// Those of these ids that the table has, also of jobs that ended; they are locked.
    fn ids_here(&mut self, ids: &[JobId]) -> Result<HashMap<JobId, Here>, StoreError> {
        let mut params = Vec::new();
        let source = self.db.dialect.rows(rows::identities(ids), &mut params);
        let found = self.db.dialect.found(":jobs", &source, &self.db.dialect.is_job("t.o", "t.f"));
        let lock = Lock::Wait.of(self.db.dialect);
        let sql =
            self.names.sql(&format!("SELECT t.o, t.f, CASE WHEN {} THEN 1 ELSE 0 END FROM {found} {lock}", is_away()));
        let here = |cells: &mut Cells| -> Result<(JobId, Here), StoreError> {
            Ok((id_of(cells)?, if cells.int()? != 0 { Here::Away } else { Here::Stays }))
        };
        self.db.query(&sql, &params)?.iter_mut().map(here).collect()
    }
}

/// What the table has of a job that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    /// It is left as it is.
    Stays,
    /// It went away from here.
    Away,
}

fn id_of(cells: &mut Cells) -> Result<JobId, StoreError> {
    Ok(JobId { origin: Origin::from_random(cells.int()? as u64), offset: cells.int()? as u64 })
}

/// Those of these jobs whose row says no more than that they were here.
pub(super) fn gone(db: &mut Database, names: &Names, ids: &[JobId]) -> Result<Vec<(JobId, Gone)>, StoreError> {
    let mut params = Vec::new();
    let source = db.dialect.rows(rows::identities(ids), &mut params);
    let found = db.dialect.found(":jobs", &source, &db.dialect.is_job("t.o", "t.f"));
    let sql = names
        .sql(&format!("SELECT t.o, t.f, CASE WHEN {} THEN 1 ELSE 0 END FROM {found} WHERE j.:state = 5", is_away()));
    let gone = |cells: &mut Cells| -> Result<(JobId, Gone), StoreError> {
        Ok((id_of(cells)?, if cells.int()? != 0 { Gone::Moved } else { Gone::Ended }))
    };
    db.query(&sql, &params)?.iter_mut().map(gone).collect()
}
