//! The scripted runner: every start goes as its script says, unless it is stopped or its engine dies first.
//!
//! It owns what is in flight and what the slot table would know. It reports each start, now and then twice.

use crate::checkers::Seen;
use crate::random;
use crate::workload::{self, Script};
use crate::world::{Due, Outcome, World};
use std::collections::{BTreeMap, BTreeSet};
use windlass::engine::Event;
use windlass::runner::{Emitted, Finished, Flight, Output, Start, Stop};
use windlass_core::job::{JobId, QueueName};
use windlass_core::outcome;
use windlass_core::time::Time;

#[derive(Debug)]
pub(crate) struct Flying {
    start: Start,
    begun: Option<Time>,
    /// Changes when it is stopped: the end that was planned before does not come.
    plan: u64,
    stopped: Option<Stop>,
}

#[derive(Debug, Default)]
pub(crate) struct Hands {
    pub(crate) flights: BTreeMap<u64, Flying>,
    /// Starts that reached their process since the machine came up.
    pub(crate) begun: BTreeSet<(JobId, u32)>,
    reported: BTreeMap<u64, Finished>,
}

impl Hands {
    /// Jobs that have a process now.
    pub(crate) fn running(&self) -> impl Iterator<Item = JobId> + '_ {
        self.flights.values().filter(|flying| flying.begun.is_some()).flat_map(|flying| flying.start.held.ids())
    }
}

impl World {
    pub(crate) fn take_off(&mut self, start: Start) {
        let flight = start.flight.0;
        self.hands.flights.insert(flight, Flying { start, begun: None, plan: 0, stopped: None });
        let after = self.random.between(10, 3000);
        self.at(after, Due::Begin(flight));
    }

    /// The process is there.
    pub(crate) fn begin(&mut self, flight: u64) -> Outcome<()> {
        let now = self.now();
        let Some(flying) = self.hands.flights.get_mut(&flight).filter(|flying| flying.stopped.is_none()) else {
            return Ok(());
        };
        flying.begun = Some(now);
        let start = flying.start.clone();
        let (number, epoch, attempts) = (start.held.start(), start.epoch, start.policy.attempts);
        let mut kills = false;
        for index in start.held.range() {
            let id = start.held.jobs.id(index);
            let data = random::hash(start.held.jobs.data(index));
            self.tell(|| format!("begin {id} start {number}"));
            self.totals.starts += 1;
            self.hands.begun.insert((id, number));
            self.show(&Seen::Begun { id, start: number, epoch, data, attempts })?;
            kills |= self.people.killer == Some(id);
        }
        if kills {
            let after = self.random.between(10, 20_000);
            self.at(after, Due::Kill);
            return Ok(());
        }
        let run = start.held.ids().next().and_then(|id| self.ledger.jobs.get(&id)).and_then(|job| job.run);
        if let Some(run) = run.filter(|_| !self.calm && self.random.chance(60)) {
            self.push_into(run)?;
        }
        let lengths: Vec<Option<u64>> = self.scripts(&start).into_iter().map(|script| script.length).collect();
        if let Some(length) = lengths.into_iter().try_fold(0, |sum: u64, length| length.map(|length| sum.max(length))) {
            self.at(length, Due::End(flight, 0));
        }
        Ok(())
    }

    fn scripts(&self, start: &Start) -> Vec<Script> {
        let (number, suspicions) = (start.held.start(), start.held.record.suspicions);
        let script = |id| workload::script(self.seed, id, number, suspicions, self.calm);
        start.held.ids().map(script).collect()
    }

    /// What its jobs emit; whether it counts is the engine's to know.
    fn emitted(&self, start: &Start) -> Outcome<Vec<Emitted>> {
        let mut emitted = Vec::new();
        for (by, index) in (0..).zip(start.held.range()) {
            let (id, data) = (start.held.jobs.id(index), start.held.jobs.data(index));
            for (queue, data) in workload::emits(self.seed, start.queue.as_str(), id, data, !start.run.is_empty()) {
                let queue = QueueName::new(queue.as_bytes()).map_err(|error| error.to_string())?;
                emitted.push(Emitted { by, queue, data });
            }
        }
        Ok(emitted)
    }

    /// The order to end: it does after a while, if its own end does not come first.
    pub(crate) fn stop(&mut self, flight: Flight, why: Stop) {
        let after = match why {
            Stop::Kill => self.random.between(10, 5000),
            // What has begun may go on; what has not comes back at once.
            Stop::Withdraw if self.hands.flights.get(&flight.0).is_none_or(|flying| flying.begun.is_some()) => return,
            Stop::Withdraw => 0,
            Stop::Cancel | Stop::Interrupt => self.random.between(10, 10_000_000),
        };
        self.tell(|| format!("stop {} {why:?}", flight.0));
        let Some(flying) = self.hands.flights.get_mut(&flight.0) else { return };
        flying.plan += 1;
        flying.stopped = Some(why);
        let plan = flying.plan;
        self.at(after, Due::End(flight.0, plan));
    }

    pub(crate) fn end(&mut self, flight: u64, plan: u64) -> Outcome<()> {
        let now = self.now();
        if self.hands.flights.get(&flight).is_none_or(|flying| flying.plan != plan) {
            return Ok(());
        }
        let Some(flying) = self.hands.flights.remove(&flight) else { return Ok(()) };
        let outcomes = self.scripts(&flying.start).into_iter().map(|script| match flying.stopped {
            None => (1, script.outcome),
            Some(Stop::Cancel) => (1, outcome::Outcome::Cancelled),
            Some(Stop::Withdraw | Stop::Interrupt | Stop::Kill) => (1, outcome::Outcome::Interrupted),
        });
        let outcomes: Vec<(u16, outcome::Outcome)> = outcomes.collect();
        let finished = Finished {
            flight: flying.start.flight,
            first: 0,
            emitted: self.emitted(&flying.start)?,
            outcomes,
            checkpoints: Vec::new(),
            started: flying.begun.unwrap_or(now),
            finished: now,
            output: Output::default(),
        };
        self.tell(|| format!("end {flight} {:?}", finished.outcomes.iter().map(|o| o.1.word()).collect::<Vec<_>>()));
        if self.random.chance(50) && !self.calm {
            self.hands.reported.insert(flight, finished.clone());
            let after = self.random.below(2000);
            self.at(after, Due::Report(flight));
        }
        self.send(Event::Finished(finished));
        Ok(())
    }

    /// The same report a second time.
    pub(crate) fn report_again(&mut self, flight: u64) -> Outcome<()> {
        if let Some(finished) = self.hands.reported.remove(&flight) {
            self.send(Event::Finished(finished));
        }
        Ok(())
    }
}
