//! Keeps the one account of all workers: performs on core's state machine what the engine's flights go through.
//!
//! A worker here is a slot: for a command it is a process that is made for one job and exits with it. Every start,
//! stop and end of a flight is an event of the machine, so states, durations and counters exist once. It must not
//! start or kill anything: the runner does, and reports.

use crate::runner::Flight;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use windlass_core::policy::Backoff;
use windlass_core::supervisor::{Counts, Forbidden, Supervisor, Terms, WorkerEvent, WorkerNo, WorkerState};
use windlass_core::time::Time;

/// How a flight's worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It did its job, well or badly, or was told to stop.
    Done,
    /// It died under its job, and nobody had asked for it.
    Died,
}

/// The workers of a server, by the flight that each holds.
#[derive(Debug)]
pub struct Workers {
    machine: Supervisor,
    by_flight: HashMap<Flight, WorkerNo>,
    idle: BTreeSet<WorkerNo>,
    made: u32,
    /// Transitions that the table forbids: each is a fault of ours, and is said.
    faults: Vec<Forbidden>,
}

impl Default for Workers {
    fn default() -> Workers {
        let terms = Terms {
            start: Duration::from_secs(10),
            stop: Duration::from_secs(10),
            backoff: Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(60) },
            deaths: 5,
            window: Duration::from_secs(60),
        };
        Workers {
            machine: Supervisor::new(terms),
            by_flight: HashMap::new(),
            idle: BTreeSet::new(),
            made: 0,
            faults: Vec::new(),
        }
    }
}

impl Workers {
    /// A worker is made for a flight and takes its job.
    pub fn depart(&mut self, flight: Flight, now: Time) {
        let worker = self.idle.pop_first().unwrap_or_else(|| {
            self.made += 1;
            WorkerNo(self.made)
        });
        self.by_flight.insert(flight, worker);
        for event in [WorkerEvent::Make, WorkerEvent::Up, WorkerEvent::Take] {
            self.apply(worker, event, now);
        }
    }

    /// It was told to end before its job did.
    pub fn stop(&mut self, flight: Flight, now: Time) {
        if let Some(worker) = self.by_flight.get(&flight).copied()
            && self.machine.state(worker) != Some(WorkerState::Stopping)
        {
            self.apply(worker, WorkerEvent::Stop, now);
        }
    }

    /// Its end was reported; the number is free for another.
    pub fn land(&mut self, flight: Flight, ended: Ended, now: Time) {
        let Some(worker) = self.by_flight.remove(&flight) else { return };
        match (ended, self.machine.state(worker)) {
            (Ended::Died, _) => self.apply(worker, WorkerEvent::Die, now),
            (Ended::Done, Some(WorkerState::Stopping)) => self.apply(worker, WorkerEvent::Exit, now),
            (Ended::Done, _) => {
                self.apply(worker, WorkerEvent::Finish, now);
                self.apply(worker, WorkerEvent::Exit, now);
            }
        }
        // A dead slot is not made anew by itself: the next job makes it.
        self.machine.dismiss(worker);
        self.idle.insert(worker);
    }

    pub fn of(&self, flight: Flight) -> Option<(WorkerNo, WorkerState)> {
        let worker = *self.by_flight.get(&flight)?;
        Some((worker, self.machine.state(worker)?))
    }

    /// True when no worker can hold a job: nothing more will be reported.
    pub fn is_quiet(&self) -> bool {
        self.machine.is_quiet()
    }

    pub fn counts(&self) -> &Counts {
        self.machine.counts()
    }

    /// Forbidden transitions since this was last asked, in words.
    pub fn take_faults(&mut self) -> Vec<String> {
        std::mem::take(&mut self.faults).iter().map(Forbidden::to_string).collect()
    }

    fn apply(&mut self, worker: WorkerNo, event: WorkerEvent, now: Time) {
        if let Err(forbidden) = self.machine.apply(worker, event, now) {
            self.faults.push(forbidden);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_goes_round_and_counts_every_step() {
        let mut workers = Workers::default();
        for (number, ended) in [(1, Ended::Done), (2, Ended::Died), (3, Ended::Done)] {
            workers.depart(Flight(number), Time(0));
            assert_eq!(workers.of(Flight(number)), Some((WorkerNo(1), WorkerState::Working)));
            assert!(!workers.is_quiet());
            if number == 3 {
                workers.stop(Flight(number), Time(1));
                workers.stop(Flight(number), Time(2));
                assert_eq!(workers.of(Flight(number)).unwrap().1, WorkerState::Stopping);
            }
            workers.land(Flight(number), ended, Time(3));
            assert!(workers.is_quiet() && workers.of(Flight(number)).is_none());
        }
        assert_eq!(workers.take_faults(), Vec::<String>::new());
        assert_eq!(workers.counts().forbidden, 0);
        assert_eq!(workers.counts().transitions.iter().sum::<u64>(), 5 + 4 + 5);
    }
}
