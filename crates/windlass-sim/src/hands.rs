//! The scripted runner: every start goes as its script says, unless it is stopped or its engine dies first.
//!
//! It owns what is in flight and what the slot table would know. It reports each start, now and then twice.

use crate::checkers::Seen;
use crate::random;
use crate::workload::{self, Mood, Script};
use crate::world::{Due, Outcome, World};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use windlass::engine::Event;
use windlass::runner::{Emitted, Finished, Flight, Output, Start, Stop};
use windlass_core::job::{JobId, QueueName};
use windlass_core::outcome;
use windlass_core::policy::Service;
use windlass_core::time::Time;

#[derive(Debug)]
pub(crate) struct Flying {
    start: Start,
    begun: Option<Time>,
    /// Changes when it is stopped: the end that was planned before does not come.
    plan: u64,
    stopped: Option<Stop>,
    /// Where the jobs begin that have no outcome yet, and the ends of the pieces that they go on in, last first.
    from: u16,
    pieces: Vec<u16>,
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
    pub(crate) fn take_off(&mut self, start: Start) -> Outcome<()> {
        match start.policy.service {
            Service::Worker(_) => return self.kept_take(start),
            Service::Remote(_) => return self.remote_take(start),
            Service::Batch(_) | Service::Url(_) => {
                self.together_take(start);
                return Ok(());
            }
            Service::Command(_) | Service::Forward(_) | Service::Handler { .. } => {}
        }
        let flight = start.flight.0;
        let pieces = vec![start.held.count];
        self.hands.flights.insert(flight, Flying { start, begun: None, plan: 0, stopped: None, from: 0, pieces });
        let after = self.random.between(10, 3000);
        self.at(after, Due::Begin(flight));
        Ok(())
    }

    /// A job is in the hands of whoever does it; says whether it kills its server.
    pub(crate) fn job_begins(&mut self, start: &Start, position: u16) -> Outcome<bool> {
        let (_, held, index) = start.job(position);
        let id = held.jobs.id(index);
        let (number, epoch, attempts) = (held.start(), start.epoch, start.policy.attempts);
        let data = random::hash(held.jobs.data(index));
        self.tell(|| format!("begin {id} start {number}"));
        self.totals.starts += 1;
        self.hands.begun.insert((id, number));
        self.show(&Seen::Begun { id, start: number, epoch, data, attempts })?;
        let kills = self.people.killer == Some(id);
        if kills {
            let after = self.random.between(10, 20_000);
            self.at(after, Due::Kill);
        }
        Ok(kills)
    }

    /// A job is in the hands of a worker elsewhere, from where it can kill no server.
    pub(crate) fn job_begins_elsewhere(&mut self, start: &Start) -> Outcome<()> {
        let (_, held, index) = start.job(0);
        let id = held.jobs.id(index);
        if self.people.killer == Some(id) {
            self.people.killer = None;
            self.show(&Seen::Harmless { id })?;
        }
        self.job_begins(start, 0).map(drop)
    }

    /// The process is there.
    pub(crate) fn begin(&mut self, flight: u64) -> Outcome<()> {
        let now = self.now();
        let Some(flying) = self.hands.flights.get_mut(&flight).filter(|flying| flying.stopped.is_none()) else {
            return Ok(());
        };
        flying.begun = Some(now);
        let start = flying.start.clone();
        let mut kills = false;
        for position in 0..start.count() {
            kills |= self.job_begins(&start, position)?;
        }
        if kills {
            return Ok(());
        }
        if let Some(id) = start.held.ids().next().filter(|_| start.held.count == 1) {
            self.show(&Seen::WentOnFrom { id, checkpoint: &start.checkpoint })?;
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
        start.held.ids().map(|id| self.script_of(start, id)).collect()
    }

    pub(crate) fn script_of(&self, start: &Start, id: JobId) -> Script {
        let number = start.held.start();
        let mood = Mood { calm: self.calm, snoozes: self.flows };
        let script = workload::script(self.seed, id, number, start.held.record.suspicions, mood);
        match self.busy(start.queue.as_str(), id, number) {
            Some(outcome) => Script { outcome, ..script },
            None => script,
        }
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
    pub(crate) fn stop(&mut self, flight: Flight, why: Stop) -> Outcome<()> {
        if self.desk.has(flight) {
            return self.kept_stop(flight, why);
        }
        if let Some(number) = self.desk.together.number_of(flight) {
            return self.together_stop(number, why, None);
        }
        if self.remotes.has(flight) {
            self.remote_stop(flight, why);
            return Ok(());
        }
        let after = match why {
            Stop::Kill => self.random.between(10, 5000),
            // What has begun may go on; what has not comes back at once.
            Stop::Withdraw if self.hands.flights.get(&flight.0).is_none_or(|flying| flying.begun.is_some()) => {
                return Ok(());
            }
            Stop::Withdraw => 0,
            Stop::Cancel | Stop::Interrupt => self.random.between(10, 10_000_000),
        };
        self.tell(|| format!("stop {} {why:?}", flight.0));
        let Some(flying) = self.hands.flights.get_mut(&flight.0) else { return Ok(()) };
        flying.plan += 1;
        flying.stopped = Some(why);
        let plan = flying.plan;
        self.at(after, Due::End(flight.0, plan));
        Ok(())
    }

    pub(crate) fn end(&mut self, flight: u64, plan: u64) -> Outcome<()> {
        let now = self.now();
        if self.hands.flights.get(&flight).is_none_or(|flying| flying.plan != plan) {
            return Ok(());
        }
        if self.goes_on_in_halves(flight) {
            return Ok(());
        }
        let Some(mut flying) = self.hands.flights.remove(&flight) else { return Ok(()) };
        let first = flying.from;
        let end = if flying.stopped.is_some() { flying.pieces.drain(..).max() } else { flying.pieces.pop() };
        let end = end.unwrap_or(flying.start.held.count);
        let outcomes = self.outcomes(&flying, first..end)?;
        let checkpoint = self.some_checkpoint(&flying)?;
        let emitted = self.emitted(&flying.start)?;
        let finished = Finished {
            flight: flying.start.flight,
            first,
            outcomes,
            emitted: emitted.into_iter().filter(|emitted| (first..end).contains(&emitted.by)).collect(),
            checkpoints: checkpoint.map(|text| (0, text)).into_iter().collect(),
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
        if !flying.pieces.is_empty() {
            flying.from = end;
            let plan = flying.plan;
            self.hands.flights.insert(flight, flying);
            let after = self.random.between(100, 200_000);
            self.at(after, Due::End(flight, plan));
        }
        Ok(())
    }

    /// A process with several jobs that one of them kills has answered nothing: they go on in halves.
    fn goes_on_in_halves(&mut self, flight: u64) -> bool {
        let Some(flying) = self.hands.flights.get(&flight).filter(|flying| flying.stopped.is_none()) else {
            return false;
        };
        let (from, end) = (flying.from, flying.pieces.last().copied().unwrap_or(flying.from));
        let held = flying.start.held.part(from, end - from);
        if held.count < 2 || !held.ids().any(|id| self.is_fatal(id, held.start())) {
            return false;
        }
        self.tell(|| format!("the process of {flight} died with {} jobs", held.count));
        let after = self.random.between(100, 200_000);
        let Some(flying) = self.hands.flights.get_mut(&flight) else { return false };
        flying.pieces.push(from + held.count / 2);
        let plan = flying.plan;
        self.at(after, Due::End(flight, plan));
        true
    }

    /// What becomes of these of its jobs.
    fn outcomes(&mut self, flying: &Flying, jobs: Range<u16>) -> Outcome<Vec<(u16, outcome::Outcome)>> {
        let held = flying.start.held.part(jobs.start, jobs.end - jobs.start);
        let mut outcomes = Vec::with_capacity(jobs.len());
        for id in held.ids() {
            let outcome = match flying.stopped {
                None if self.is_fatal(id, held.start()) && flying.start.held.count > 1 => {
                    outcome::Outcome::Crashed { error: "it died".into() }
                }
                None => self.script_of(&flying.start, id).outcome,
                Some(Stop::Cancel) => outcome::Outcome::Cancelled,
                Some(Stop::Withdraw | Stop::Interrupt | Stop::Kill) => outcome::Outcome::Interrupted,
            };
            self.report(id, held.start(), &outcome)?;
            outcomes.push((1, outcome));
        }
        Ok(outcomes)
    }

    /// Whoever did a job is about to say what it came to.
    pub(crate) fn report(&mut self, id: JobId, start: u32, outcome: &outcome::Outcome) -> Outcome<()> {
        let after = match outcome {
            outcome::Outcome::Snoozed { after } => Some(*after),
            outcome::Outcome::RetryLater { after, .. } => *after,
            _ => None,
        };
        let again_at = after.map(|after| self.mono + after.as_micros() as u64);
        self.totals.snoozed += u64::from(matches!(outcome, outcome::Outcome::Snoozed { .. }));
        self.show(&Seen::Reported { id, start, word: outcome.word(), again_at })
    }

    /// Now and then a job that ran alone has said how far it came.
    fn some_checkpoint(&mut self, flying: &Flying) -> Outcome<Option<String>> {
        let held = &flying.start.held;
        let id = held.ids().next().filter(|_| self.crews && held.count == 1 && flying.begun.is_some());
        let Some(id) = id else { return Ok(None) };
        if !self.random.chance(300) {
            return Ok(None);
        }
        let text = format!("{id} start {}", held.start());
        self.show(&Seen::Said { id, start: held.start(), text: &text })?;
        Ok(Some(text))
    }

    /// The same report a second time.
    pub(crate) fn report_again(&mut self, flight: u64) -> Outcome<()> {
        if let Some(finished) = self.hands.reported.remove(&flight) {
            self.send(Event::Finished(finished));
        }
        Ok(())
    }
}
