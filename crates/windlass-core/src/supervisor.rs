//! Knows the state of every worker, how it may change, and by when it must: the one state machine of workers.
//!
//! The table with its drawing is in `state`. Here are the workers themselves, the counters, and the deadlines of the
//! states that may not last; when one that died is made anew is `regeneration`'s. It must not start, kill or wait for
//! anything, and it reads no clock: the time comes with each event, from a clock that nobody sets. A worker is a
//! launcher, a process for one job or for many, a kept process, a call, a lease elsewhere or a handler's thread;
//! whatever it is called, nobody else keeps flags about it.

pub mod choice;
mod regeneration;
mod state;

use crate::time::Steady;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use regeneration::{Budget, Regeneration};
pub use state::{Forbidden, TRANSITIONS, WorkerEvent, WorkerState, next};

/// A worker's number, given by whoever owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerNo(pub u32);

/// How long a worker may be in the states that may not last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// From `make` to `up`.
    pub start: Duration,
    /// From `stop` to `exit`.
    pub stop: Duration,
}

/// What has become due for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It did not come up in time: stop it.
    StartOverdue,
    /// It did not end in time: kill it.
    StopOverdue,
}

impl Due {
    pub const ALL: [Due; 2] = [Due::StartOverdue, Due::StopOverdue];

    pub fn word(self) -> &'static str {
        match self {
            Due::StartOverdue => "start_overdue",
            Due::StopOverdue => "stop_overdue",
        }
    }
}

/// What is counted about all workers, for ever and now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often each row of the table happened.
    pub transitions: [u64; TRANSITIONS.len()],
    /// How many workers are in each state now, in the order of `WorkerState::ALL`.
    pub now: [u32; WorkerState::ALL.len()],
    /// Time that workers spent in each state before they left it.
    pub spent: [Duration; WorkerState::ALL.len()],
    /// Events that were refused.
    pub forbidden: u64,
    /// Deadlines that were missed, in the order of `Due::ALL`.
    pub overdue: [u64; Due::ALL.len()],
}

impl Counts {
    pub fn in_state(&self, state: WorkerState) -> u32 {
        self.now[state as usize]
    }
}

/// One worker, as anybody may see it.
#[derive(Clone, Debug)]
pub struct Worker {
    pub state: WorkerState,
    pub since: Steady,
    /// What it is at, in its own words.
    pub phase: String,
    terms: Terms,
    deadline: Option<Steady>,
}

/// All workers of a server.
#[derive(Debug, Default)]
pub struct Supervisor {
    workers: BTreeMap<WorkerNo, Worker>,
    deadlines: BTreeSet<(Steady, WorkerNo)>,
    counts: Counts,
}

impl Supervisor {
    /// Makes a worker known, stopped, on these terms; one that is known stays as it is.
    pub fn enrol(&mut self, number: WorkerNo, terms: Terms, now: Steady) {
        self.workers.entry(number).or_insert_with(|| {
            self.counts.now[WorkerState::Stopped as usize] += 1;
            Worker { state: WorkerState::Stopped, since: now, phase: String::new(), terms, deadline: None }
        });
    }

    /// Forgets a worker: whoever had it is gone, or it is itself.
    pub fn forget(&mut self, number: WorkerNo) {
        if let Some(worker) = self.workers.remove(&number) {
            self.counts.now[worker.state as usize] -= 1;
            if let Some(deadline) = worker.deadline {
                self.deadlines.remove(&(deadline, number));
            }
        }
    }

    /// Lets something happen to a worker. What the table does not allow, and any event of a worker that nobody
    /// enrolled, is refused and counted.
    pub fn apply(&mut self, number: WorkerNo, event: WorkerEvent, now: Steady) -> Result<WorkerState, Forbidden> {
        let state = self.state(number).unwrap_or(WorkerState::Stopped);
        let (Some(row), Some(worker)) = (state::find(state, event), self.workers.get_mut(&number)) else {
            self.counts.forbidden += 1;
            return Err(Forbidden { worker: number, state, event });
        };
        let to = TRANSITIONS[row].2;
        self.counts.transitions[row] += 1;
        self.counts.now[state as usize] -= 1;
        self.counts.now[to as usize] += 1;
        self.counts.spent[state as usize] += now.since(worker.since);
        if let Some(deadline) = worker.deadline.take() {
            self.deadlines.remove(&(deadline, number));
        }
        worker.enter(to, now);
        self.deadlines.extend(worker.deadline.map(|deadline| (deadline, number)));
        Ok(to)
    }

    pub fn state(&self, number: WorkerNo) -> Option<WorkerState> {
        self.workers.get(&number).map(|worker| worker.state)
    }

    pub fn get(&self, number: WorkerNo) -> Option<&Worker> {
        self.workers.get(&number)
    }

    pub fn iter(&self) -> impl Iterator<Item = (WorkerNo, &Worker)> {
        self.workers.iter().map(|(number, worker)| (*number, worker))
    }

    /// Says what a worker is at, in its own words; they last until its state changes. False where that is no news.
    pub fn set_phase(&mut self, number: WorkerNo, phase: &str) -> bool {
        let Some(worker) = self.workers.get_mut(&number).filter(|worker| worker.phase != phase) else { return false };
        worker.phase.clear();
        worker.phase.push_str(phase);
        true
    }

    /// The earliest moment at which `take_due` has something to say.
    pub fn next_deadline(&self) -> Option<Steady> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// What has become due, earliest first; each is said once, and acting on it is the caller's.
    pub fn take_due(&mut self, now: Steady) -> Vec<(WorkerNo, Due)> {
        let mut due = Vec::new();
        while let Some((_, number)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.pop_first();
            let Some(worker) = self.workers.get_mut(&number) else { continue };
            worker.deadline = None;
            let missed = match worker.state {
                WorkerState::Starting => Due::StartOverdue,
                WorkerState::Stopping => Due::StopOverdue,
                // These may last as long as they like: no deadline is ever set for them.
                WorkerState::Waiting
                | WorkerState::Working
                | WorkerState::Emitting
                | WorkerState::Stopped
                | WorkerState::Died => continue,
            };
            self.counts.overdue[missed as usize] += 1;
            due.push((number, missed));
        }
        due
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// No worker can hold a job: nothing more will be reported unless something is started.
    pub fn is_quiet(&self) -> bool {
        WorkerState::ALL.iter().filter(|state| state.may_hold_a_job()).all(|state| self.counts.in_state(*state) == 0)
    }
}

impl Worker {
    fn enter(&mut self, state: WorkerState, now: Steady) {
        self.state = state;
        self.since = now;
        self.phase.clear();
        self.deadline = match state {
            WorkerState::Starting => Some(now.after(self.terms.start)),
            WorkerState::Stopping => Some(now.after(self.terms.stop)),
            WorkerState::Waiting
            | WorkerState::Working
            | WorkerState::Emitting
            | WorkerState::Stopped
            | WorkerState::Died => None,
        };
    }
}

#[cfg(test)]
mod tests;
