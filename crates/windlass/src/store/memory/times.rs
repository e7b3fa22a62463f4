//! Times by which jobs must have begun or ended, and jobs that wait for others, in the model store.

use super::{Job, Memory};
use crate::store::chunk::Chunk;
use crate::store::{Amendment, EXPIRED, Settlement, Told};
use std::time::Duration;
use windlass_core::job::{Arrival, JobId};
use windlass_core::judge::{Reason, Verdict, late_sentence};
use windlass_core::life_cycle::{Change, State};
use windlass_core::time::Time;

/// The time of what waits for jobs.
pub(super) const NEVER: Time = Time(i64::MAX);
/// A job that runs past its time is asked for again after so long.
const AGAIN: Duration = Duration::from_secs(10);

impl Memory {
    /// What new jobs have to wait for, and one of these that never will succeed.
    pub(super) fn unmet(&self, jobs: &Chunk) -> (Vec<JobId>, Option<JobId>) {
        let after = jobs.particulars().map(|particulars| particulars.after.clone()).unwrap_or_default();
        let state = |id: &JobId| self.ids.get(id).and_then(|arrival| self.jobs.get(arrival)).map(|job| job.state);
        let failed = after.iter().copied().find(|id| state(id).is_some_and(State::is_end));
        (after.into_iter().filter(|id| state(id).is_some_and(|state| !state.is_end())).collect(), failed)
    }

    /// Lists a job that is new, or comes back, by the times and the jobs that it waits for.
    pub(super) fn list_waits(&mut self, arrival: Arrival, jobs: &Chunk, unmet: &[JobId]) {
        let Some(particulars) = jobs.particulars().cloned() else { return };
        for (at, begin) in [(particulars.start_by, true), (particulars.finish_by, false)] {
            at.into_iter().for_each(|at| self.expiry.put((at, arrival, begin), Some(())));
        }
        unmet.iter().for_each(|id| self.waits_for.put((*id, arrival), Some(())));
    }

    pub(super) fn expire(&mut self, now: Time, limit: u32, told: Told<'_>) {
        let mut follow_ups = Vec::new();
        let late = self.expiry.rows().keys().take_while(|(at, ..)| *at <= now).take(limit as usize);
        for (at, arrival, begin) in late.copied().collect::<Vec<_>>() {
            self.expiry.put((at, arrival, begin), None);
            let Some(job) = self.jobs.get(&arrival).cloned() else { continue };
            match job.state {
                State::Running if !begin => {
                    self.changes.overdue.push(job.id);
                    self.expiry.put((now.after(AGAIN), arrival, begin), Some(()));
                }
                State::Running | State::Succeeded | State::Failed | State::Cancelled => {}
                State::Scheduled | State::Ready | State::Retrying | State::Suspended => {
                    if !begin || job.record.starts == 0 {
                        self.fail_late(arrival, job, begin, now);
                        follow_ups.extend(self.said_of(arrival, told));
                    }
                }
            }
        }
        self.admit_follow_ups(&follow_ups, now);
    }

    fn fail_late(&mut self, arrival: Arrival, mut job: Job, begin: bool, now: Time) {
        let (held, error) = (super::verbs::hold(&job), late_sentence(begin).to_owned());
        (job.reason, job.ended) = (Some(Reason::Expired), Some(now));
        job.note_error(now, &error);
        self.transit(arrival, job, Change::Expire);
        let verdict = Verdict::Fail { reason: Reason::Expired, error };
        let last = Settlement { held, verdict, outcome: EXPIRED, started: now, finished: now };
        self.note_outcomes(std::slice::from_ref(&last));
        self.changes.expired.push(last);
    }

    /// Lets those go that waited for jobs which have ended: on, or into the ground.
    pub(super) fn end_waits(&mut self, now: Time) {
        while let Some((id, succeeded)) = self.ends.pop() {
            let waiting = self.waits_for.rows().range((id, Arrival(0))..).take_while(|((of, _), ())| *of == id);
            for arrival in waiting.map(|((_, arrival), ())| *arrival).collect::<Vec<_>>() {
                self.waits_for.put((id, arrival), None);
                let left = self.waits_for.rows().keys().any(|(_, waits)| *waits == arrival);
                match succeeded {
                    true if left => {}
                    true => self.let_go(arrival),
                    false => self.give_up(arrival, id, now),
                }
            }
        }
    }

    fn let_go(&mut self, arrival: Arrival) {
        let job = self.jobs.get(&arrival).cloned();
        if let Some(mut job) = job.filter(|job| job.state == State::Scheduled && job.due == NEVER) {
            job.due = job.admitted;
            self.transit(arrival, job, Change::Release);
        }
    }

    /// What a job waits for will not be: it is cancelled, and says why.
    pub(super) fn give_up(&mut self, arrival: Arrival, because: JobId, now: Time) {
        let waits = self.waits_for.rows().keys().filter(|(_, waits)| *waits == arrival);
        for key in waits.copied().collect::<Vec<_>>() {
            self.waits_for.put(key, None);
        }
        let job = self.jobs.get(&arrival).cloned();
        // Whom a person let go waits for nobody, also where it asked for a later start.
        if let Some(mut job) = job.filter(|job| job.state == State::Scheduled && job.due == NEVER) {
            job.note_error(now, &format!("cancelled: {because}, which it waited for, did not succeed"));
            self.amend_one(arrival, job, Amendment::Cancel, now);
        }
    }
}
