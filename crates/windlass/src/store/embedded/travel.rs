//! Jobs on their way between servers: taken out of their queues to go elsewhere, and taken in as they were elsewhere.
//!
//! A job that is to go elsewhere becomes a row that runs, whatever it was; one that comes with a past is a row from the
//! start. What comes without a past comes as any new job does. It must not know where a job goes or comes from.

use super::super::{Arriving, Held, StoreError, Unheld};
use super::Turn;
use super::amend::Found;
use super::part::Head;
use super::rows::{self, Row};
use super::times::NEVER;
use windlass_core::job::{JobId, Lane, LaneKind};
use windlass_core::life_cycle::{Change, State};
use windlass_core::time::Time;

impl Turn<'_> {
    pub(super) fn hold(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Result<Held, Unheld>>, StoreError> {
        let mut last = None;
        let mut held = Vec::with_capacity(ids.len());
        for id in ids {
            held.push(match self.find(*id, &mut last)? {
                Some(found) => self.hold_one(found)?,
                None => Err(Unheld::Unknown),
            });
        }
        self.end_runs(now)?;
        Ok(held)
    }

    fn hold_one(&mut self, found: Found) -> Result<Result<Held, Unheld>, StoreError> {
        let Found { mut row, inside } = found;
        let (from, lane) = (row.state, row.lane());
        match from {
            State::Running => return Ok(Err(Unheld::Running)),
            State::Succeeded | State::Failed | State::Cancelled => return Ok(Err(Unheld::Ended(from))),
            State::Scheduled if row.due == Some(NEVER) => return Ok(Err(Unheld::Waits)),
            State::Scheduled | State::Ready | State::Retrying | State::Suspended => {}
        }
        if let Some(no) = row.run {
            let run = self.m.runs.run(self.db, no)?.map(|run| run.id);
            return Ok(Err(run.map_or(Unheld::Unable, Unheld::OfRun)));
        }
        self.change(lane, None, from, Change::Hold, 1, inside.is_none())?;
        let held = row.held(row.record);
        row.state = State::Running;
        row.record.starts += 1;
        row.due = None;
        self.store(&row, inside)?;
        self.m.running.insert(row.arrival, Row { data: Vec::new(), ..row });
        Ok(Ok(held))
    }

    pub(super) fn arrive(&mut self, jobs: &[Arriving], now: Time) -> Result<(), StoreError> {
        let mut rows = Vec::with_capacity(jobs.len());
        for job in jobs {
            let id = job.jobs.id(0);
            // A row that the archive still needs is not found, and its id is taken all the same: to pass the job over
            // would be to lose it.
            if rows::by_id(self.db, id)?.is_some_and(|row| row.state == State::Succeeded) {
                return Err(StoreError::Busy(format!("{id} was here before, and the archive does not have its end")));
            }
            if self.find(id, &mut None)?.is_none() {
                rows.extend(self.arrive_one(job, now)?);
            }
        }
        rows::insert_all(self.db, &rows)
    }

    /// The row of a job that comes in, unless another has its key.
    fn arrive_one(&mut self, job: &Arriving, now: Time) -> Result<Option<Row>, StoreError> {
        let queue = self.number_of(&job.queue)?;
        if self.take_keys(&job.jobs, queue, None, now)?.is_empty() {
            return Ok(None);
        }
        let arrival = self.m.state.next_arrival;
        self.m.state.next_arrival += 1;
        let lane = Lane { queue, priority: job.priority, kind: LaneKind::Fresh };
        let head = Head { first: arrival, count: 1, lane, run: None, admitted: now, due: None };
        let mut row = Row::from_chunk(&head, &job.jobs, 0, job.past.state);
        (row.record, row.errors) = (job.past.record, job.past.errors.clone());
        match job.past.state {
            State::Scheduled | State::Retrying => row.due = Some(job.past.due.unwrap_or(now)),
            State::Suspended => {}
            State::Ready | State::Running | State::Succeeded | State::Failed | State::Cancelled => row.make_ready(now),
        }
        self.shift(row.lane(), None, None, Some(row.state), 1, true)?;
        self.list_waits(&head, &job.jobs, &[])?;
        Ok(Some(row))
    }
}
