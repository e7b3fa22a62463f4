//! What a person wants of single jobs, in the model store.

use super::verbs::hold;
use super::{Job, Memory};
use crate::store::{Amended, Amendment, DELETED, Deleted, Move, Settlement};
use windlass_core::job::{Arrival, Priority, Record};
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::{self, Change, State};
use windlass_core::time::Time;

impl Memory {
    pub(super) fn amend_one(&mut self, arrival: Arrival, mut job: Job, amendment: Amendment, now: Time) -> Amended {
        let from = job.state;
        let change = match amendment {
            Amendment::Cancel if from == State::Running => return Amended::Running,
            Amendment::Priority(priority) => return self.rank(arrival, job, priority),
            Amendment::Cancel => Change::Cancel,
            Amendment::Retry => Change::Revive,
            Amendment::Suspend => Change::Suspend,
            Amendment::Resume => Change::Resume,
        };
        if life_cycle::next(from, change).is_none() {
            return Amended::Refused(from);
        }
        if let Some(of) = self.key_held_beside(&job).filter(|_| change == Change::Revive) {
            return Amended::Taken(of);
        }
        job.ended = (change == Change::Cancel).then_some(now);
        job.reason = None;
        if change == Change::Revive {
            job.record = Record { starts: job.record.starts, ..Record::default() };
            let over = job.run.and_then(|no| self.runs.get(&no)).filter(|run| run.counts.ended).map(|run| run.id);
            if let Some(id) = over {
                job.run = Some(self.joined_run(id, now));
            }
            if from.is_end() {
                self.retake_key(&job);
            }
        }
        Amended::Done { from, to: self.transit(arrival, job, change) }
    }

    /// A waiting job is given up first; then it is gone, and the archive has its last line.
    pub(super) fn delete_one(&mut self, arrival: Arrival, job: Job, now: Time) -> Deleted {
        let (from, lane, held) = (job.state, job.lane(), hold(&job));
        let ended = if from.is_end() { from } else { self.transit(arrival, job, Change::Cancel) };
        self.count(lane, None, Some(ended), None);
        self.write(arrival, None);
        let last = Settlement { held, verdict: Verdict::Cancel, outcome: DELETED, started: now, finished: now };
        self.note_outcomes(std::slice::from_ref(&last));
        Deleted::Done { from, last }
    }

    /// Moves a waiting job to the lane of another priority: no change of state, so no counter changes.
    fn rank(&mut self, arrival: Arrival, mut job: Job, priority: Priority) -> Amended {
        let state = job.state;
        if !waits(state) {
            return Amended::Refused(state);
        }
        if job.priority == priority {
            return Amended::Same(state);
        }
        let (lane, run) = (job.lane(), job.run);
        job.priority = priority;
        let moves = [
            Move { lane, run, from: Some(state), to: None, count: 1 },
            Move { lane: job.lane(), run, from: None, to: Some(state), count: 1 },
        ];
        self.changes.moves.extend(moves);
        self.write(arrival, Some(job));
        Amended::Done { from: state, to: state }
    }
}

/// True where a job has not ended and nobody works at it.
fn waits(state: State) -> bool {
    match state {
        State::Scheduled | State::Ready | State::Retrying | State::Suspended => true,
        State::Running | State::Succeeded | State::Failed | State::Cancelled => false,
    }
}
