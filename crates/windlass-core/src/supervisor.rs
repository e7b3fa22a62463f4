//! Knows the state of every worker, how it may change, and by when it must: the one state machine of workers.
//!
//! The table with its drawing is in `state`. Here are the workers themselves, the counters, the deadlines of the
//! states that may not last, and the making anew of those that died: after a growing wait, and not at all after too
//! many deaths in a while, which is said instead of looped. It must not start, kill or wait for anything, and it
//! reads no clock: the time comes with each event. A worker is a launcher, a slot of one process per job, or a
//! kept process; whatever it is called, nobody else keeps flags about it.

pub mod choice;
mod state;

use crate::policy::Backoff;
use crate::retry;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub use state::{Forbidden, TRANSITIONS, WorkerEvent, WorkerState, next};

/// A worker's number, given by whoever owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerNo(pub u32);

/// How long things may take, and how often a worker may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// From `make` to `up`.
    pub start: Duration,
    /// From `stop` to `exit`; then it is to be killed.
    pub stop: Duration,
    /// The wait before a worker that died is made anew, by its deaths within the window.
    pub backoff: Backoff,
    /// More deaths than this within the window, and it is not made anew.
    pub deaths: u32,
    pub window: Duration,
}

/// What has become due for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It did not come up in time: stop it.
    StartOverdue,
    /// It did not end in time: kill it.
    StopOverdue,
    /// It died and has waited long enough: make it anew.
    MakeAnew,
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
}

impl Counts {
    pub fn in_state(&self, state: WorkerState) -> u32 {
        self.now[state as usize]
    }
}

#[derive(Debug)]
struct Worker {
    state: WorkerState,
    since: Time,
    phase: String,
    /// When it died, within the window: oldest first, at most one more than is allowed.
    deaths: VecDeque<Time>,
    deadline: Option<Time>,
}

/// All workers of a server.
#[derive(Debug)]
pub struct Supervisor {
    terms: Terms,
    workers: BTreeMap<WorkerNo, Worker>,
    deadlines: BTreeSet<(Time, WorkerNo)>,
    counts: Counts,
}

impl Supervisor {
    pub fn new(terms: Terms) -> Supervisor {
        Supervisor { terms, workers: BTreeMap::new(), deadlines: BTreeSet::new(), counts: Counts::default() }
    }

    /// Makes a worker known, stopped; one that is known stays as it is.
    pub fn enrol(&mut self, number: WorkerNo, now: Time) {
        self.workers.entry(number).or_insert_with(|| {
            self.counts.now[WorkerState::Stopped as usize] += 1;
            Worker {
                state: WorkerState::Stopped,
                since: now,
                phase: String::new(),
                deaths: VecDeque::new(),
                deadline: None,
            }
        });
    }

    /// Forgets a worker that is proven gone; says whether it did.
    pub fn dismiss(&mut self, number: WorkerNo) -> bool {
        let gone = |worker: &Worker| matches!(worker.state, WorkerState::Stopped | WorkerState::Died);
        if !self.workers.get(&number).is_some_and(gone) {
            return false;
        }
        if let Some(worker) = self.workers.remove(&number) {
            self.counts.now[worker.state as usize] -= 1;
            if let Some(deadline) = worker.deadline {
                self.deadlines.remove(&(deadline, number));
            }
        }
        true
    }

    /// Lets something happen to a worker, which is enrolled by its first event.
    pub fn apply(&mut self, number: WorkerNo, event: WorkerEvent, now: Time) -> Result<WorkerState, Forbidden> {
        let state = self.state(number).unwrap_or(WorkerState::Stopped);
        let Some(row) = state::find(state, event) else {
            self.counts.forbidden += 1;
            return Err(Forbidden { worker: number, state, event });
        };
        self.enrol(number, now);
        let to = TRANSITIONS[row].2;
        self.counts.transitions[row] += 1;
        self.counts.now[state as usize] -= 1;
        self.counts.now[to as usize] += 1;
        if let Some(worker) = self.workers.get_mut(&number) {
            self.counts.spent[state as usize] += now.since(worker.since);
            if let Some(deadline) = worker.deadline.take() {
                self.deadlines.remove(&(deadline, number));
            }
            worker.enter(to, now, &self.terms);
            self.deadlines.extend(worker.deadline.map(|deadline| (deadline, number)));
        }
        Ok(to)
    }

    pub fn state(&self, number: WorkerNo) -> Option<WorkerState> {
        self.workers.get(&number).map(|worker| worker.state)
    }

    /// Says what a worker is at, in its own words; they last until its state changes.
    pub fn set_phase(&mut self, number: WorkerNo, phase: &str) {
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.phase.clear();
            worker.phase.push_str(phase);
        }
    }

    pub fn phase(&self, number: WorkerNo) -> &str {
        self.workers.get(&number).map_or("", |worker| &worker.phase)
    }

    /// True for a worker that died too often to be made anew by itself; a `make` by a person still may.
    pub fn cannot_start(&self, number: WorkerNo) -> bool {
        let worker = self.workers.get(&number);
        worker.is_some_and(|w| w.state == WorkerState::Died && w.deaths.len() > self.terms.deaths as usize)
    }

    /// The sentence about a worker that is not made anew.
    pub fn why_not(&self, number: WorkerNo) -> Option<String> {
        let Terms { deaths, window, .. } = self.terms;
        let WorkerNo(worker) = number;
        let sentence = || format!("worker {worker} died more than {deaths} times within {window:?} and cannot start");
        self.cannot_start(number).then(sentence)
    }

    /// The earliest moment at which `take_due` has something to say.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// What has become due, earliest first; each is said once, and acting on it is the caller's.
    pub fn take_due(&mut self, now: Time) -> Vec<(WorkerNo, Due)> {
        let mut due = Vec::new();
        while let Some((_, number)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.pop_first();
            let Some(worker) = self.workers.get_mut(&number) else { continue };
            worker.deadline = None;
            match worker.state {
                WorkerState::Starting => due.push((number, Due::StartOverdue)),
                WorkerState::Stopping => due.push((number, Due::StopOverdue)),
                WorkerState::Died => due.push((number, Due::MakeAnew)),
                // These may last as long as they like: no deadline is ever set for them.
                WorkerState::Waiting | WorkerState::Working | WorkerState::Emitting | WorkerState::Stopped => {}
            }
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
    fn enter(&mut self, state: WorkerState, now: Time, terms: &Terms) {
        self.state = state;
        self.since = now;
        self.phase.clear();
        self.deadline = match state {
            WorkerState::Starting => Some(now.after(terms.start)),
            WorkerState::Stopping => Some(now.after(terms.stop)),
            WorkerState::Died => self.die(now, terms),
            WorkerState::Waiting | WorkerState::Working | WorkerState::Emitting | WorkerState::Stopped => None,
        };
    }

    /// Notes a death; gives the time to make it anew unless there were too many.
    fn die(&mut self, now: Time, terms: &Terms) -> Option<Time> {
        self.deaths.push_back(now);
        self.deaths.retain(|death| now.since(*death) < terms.window);
        let deaths = u32::try_from(self.deaths.len()).unwrap_or(u32::MAX);
        if deaths > terms.deaths {
            self.deaths.drain(..self.deaths.len() - terms.deaths as usize - 1);
            return None;
        }
        Some(now.after(retry::ceiling(terms.backoff, deaths)))
    }
}

#[cfg(test)]
mod tests;
