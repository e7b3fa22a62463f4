//! Jobs on their way between servers, in the model store.

use super::times::NEVER;
use super::{Job, Memory, Number, verbs};
use crate::store::{Arriving, Held, Unheld};
use windlass_core::job::{Arrival, JobId};
use windlass_core::life_cycle::{Change, State};
use windlass_core::time::Time;

impl Memory {
    pub(super) fn hold_one(&mut self, id: JobId) -> Result<Held, Unheld> {
        let arrival = self.ids.get(&id).copied().ok_or(Unheld::Unknown)?;
        let job = self.jobs.get(&arrival).cloned().ok_or(Unheld::Unknown)?;
        match job.state {
            State::Running => return Err(Unheld::Running),
            State::Succeeded | State::Failed | State::Cancelled => return Err(Unheld::Ended(job.state)),
            State::Scheduled if job.due == NEVER => return Err(Unheld::Waits),
            State::Scheduled | State::Ready | State::Retrying | State::Suspended => {}
        }
        if let Some(no) = job.run {
            return Err(self.runs.get(&no).map_or(Unheld::Unable, |run| Unheld::OfRun(run.id)));
        }
        let held = verbs::hold(&job);
        self.transit(arrival, job, Change::Hold);
        Ok(held)
    }

    pub(super) fn arrive_one(&mut self, arriving: &Arriving, now: Time) {
        if self.ids.get(&arriving.jobs.id(0)).is_some() {
            return;
        }
        let queue = self.queue_no(&arriving.queue);
        let jobs = self.take_keys(&arriving.jobs, queue, None, now);
        if jobs.is_empty() {
            return;
        }
        let past = &arriving.past;
        let state = match past.state {
            State::Scheduled | State::Retrying | State::Suspended => past.state,
            State::Ready | State::Running | State::Succeeded | State::Failed | State::Cancelled => State::Ready,
        };
        let arrival = Arrival(self.draw(Number::Arrival, 1));
        let job = Job {
            id: jobs.id(0),
            queue,
            priority: arriving.priority,
            state,
            run: None,
            record: past.record,
            admitted: now,
            due: past.due.unwrap_or(now),
            ended: None,
            reason: None,
            errors: past.errors.clone(),
            chunk: jobs.clone(),
            index: 0,
            chunk_start: arrival,
        };
        self.count(job.lane(), None, None, Some(state));
        self.write(arrival, Some(job));
        self.list_waits(arrival, &jobs, &[]);
    }
}
