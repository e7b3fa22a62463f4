//! Jobs on their way between servers: taken out of their queues to go elsewhere, and taken in as they were elsewhere.

use super::database::Cells;
use super::rows::{self, NewRow};
use super::tally::Was;
use super::{SqlStore, StoreError};
use crate::store::{Arriving, Held, Unheld};
use std::collections::{HashMap, HashSet};
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
        let mut pasts = HashMap::new();
        for job in jobs {
            let has_past = job.past.record != Record::default() || !job.past.errors.is_empty();
            if here.insert(job.jobs.id(0)) && self.arrive_one(job, now)? && has_past {
                pasts.insert(job.jobs.id(0), &job.past);
            }
        }
        self.flush(now)?;
        let ids: Vec<JobId> = pasts.keys().copied().collect();
        for mut row in rows::by_ids(&mut self.db, &self.names, &ids, true)? {
            let Some(past) = pasts.get(&row.id) else { continue };
            (row.record, row.errors) = (past.record, past.errors.clone());
            row.due = past.due.or(row.due).or(Some(now));
            self.save(&row);
        }
        self.flush(now)
    }

    /// The new row of a job that comes in, unless another has its key; its past is written once it is there.
    fn arrive_one(&mut self, job: &Arriving, now: Time) -> Result<bool, StoreError> {
        let queue = self.queue_no(&job.queue)?;
        let jobs = self.take_keys(&job.jobs, queue, None, now)?;
        if jobs.is_empty() {
            return Ok(false);
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
        self.work.inserts.push(NewRow { jobs, index: 0, queue, name, priority, state, run: None, due });
        Ok(true)
    }

    /// Those of these ids that the table has, also of jobs that succeeded.
    fn ids_here(&mut self, ids: &[JobId]) -> Result<HashSet<JobId>, StoreError> {
        let mut params = Vec::new();
        let source = self.db.dialect.rows(rows::identities(ids), &mut params);
        let sql = self.names.sql(&format!(
            "SELECT t.o, t.f FROM :jobs AS j JOIN {source} ON j.:job_origin = t.o AND j.:job_offset = t.f"
        ));
        let id = |cells: &mut Cells| -> Result<JobId, StoreError> {
            Ok(JobId { origin: Origin::from_random(cells.int()? as u64), offset: cells.int()? as u64 })
        };
        self.db.query(&sql, &params)?.iter_mut().map(id).collect()
    }
}
