//! `windlass run` as seen from the engine: opens a run with a command of its own, follows it, hands its lines over.
//!
//! It goes on from where the run stands, whatever died meanwhile. It owns what each of them knows and was told, and
//! checks that every line became one job and that every finished job was told once.

use crate::asks::{Ask, Said};
use crate::world::{Outcome, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, channel};
use windlass::engine::Event;
use windlass::engine::event::{Followed, Follower, OpenRun, RunService};
use windlass::store::{Durability, Lot, RunInfo, Taken};
use windlass_core::job::{JobId, QueueName, RunId};
use windlass_core::policy::Command;

/// The queues of the runs begin like this, and nobody else's do.
pub(crate) const QUEUE: &str = "run.";
/// The most of them in one world.
const FEEDERS_MAX: usize = 3;

/// One `windlass run`.
#[derive(Debug)]
pub(crate) struct Feeder {
    lines: u64,
    slots: u32,
    run: Option<RunId>,
    /// The one that it had before an engine died.
    last_run: Option<RunId>,
    taken: Taken,
    /// Something was asked and not answered.
    busy: bool,
    pub(crate) followed: bool,
    sealed: bool,
    heard: Option<Receiver<Followed>>,
    /// What it should have been told by now, and was.
    due: BTreeMap<JobId, u32>,
    told: BTreeMap<JobId, u32>,
    /// Which line each job was made of.
    made: BTreeMap<JobId, u64>,
}

impl Feeder {
    pub(crate) fn run(&self) -> Option<RunId> {
        self.run
    }

    pub(crate) fn last_run(&self) -> Option<RunId> {
        self.last_run
    }

    /// The engine died: nothing that was asked is answered, nobody tells any more.
    pub(crate) fn forget(&mut self) {
        self.busy = false;
        self.followed = false;
        self.heard = None;
        self.due.clear();
        self.told.clear();
        self.last_run = self.run.take().or(self.last_run);
    }
}

impl World {
    pub(crate) fn feed_some(&mut self) -> Outcome<()> {
        if self.engine.is_none() {
            return Ok(());
        }
        if self.people.feeders.len() < FEEDERS_MAX && self.random.chance(150) {
            let (lines, slots) = (self.random.between(0, 40), self.random.between(1, 3) as u32);
            self.people.feeders.push(Feeder {
                lines,
                slots,
                run: None,
                last_run: None,
                taken: Taken::default(),
                busy: false,
                followed: false,
                sealed: false,
                heard: None,
                due: BTreeMap::new(),
                told: BTreeMap::new(),
                made: BTreeMap::new(),
            });
        }
        if self.people.feeders.is_empty() {
            return Ok(());
        }
        let number = self.random.below(self.people.feeders.len() as u64) as usize;
        self.feed(number)
    }

    /// In the calm each goes on until all of its lines are handed over.
    pub(crate) fn feed_all(&mut self) -> Outcome<()> {
        for number in 0..self.people.feeders.len() {
            while !self.people.feeders[number].sealed {
                if !self.people.feeders[number].busy {
                    self.feed(number)?;
                }
                self.step()?;
            }
        }
        Ok(())
    }

    /// Its next step: open, follow, hand over some lines, seal.
    fn feed(&mut self, number: usize) -> Outcome<()> {
        let feeder = &self.people.feeders[number];
        if feeder.busy || feeder.sealed || self.engine.is_none() {
            return Ok(());
        }
        let (run, followed, taken, lines) = (feeder.run, feeder.followed, feeder.taken, feeder.lines);
        self.people.feeders[number].busy = true;
        match run {
            None => self.open_feeder(number),
            Some(run) if !followed => self.follow(number, run),
            Some(run) if taken.lines < lines => return self.hand_over(number, run, taken),
            Some(run) => {
                let answer = self.people.ask(Ask::SealFeeder(number), |()| Said::Nothing);
                self.send(Event::SealRun { run, answer });
            }
        }
        Ok(())
    }

    fn open_feeder(&mut self, number: usize) {
        let last = self.people.feeders[number].last_run.and_then(|run| self.ledger.runs.get(&run));
        if last.is_some_and(|run| run.ended) {
            // It was sealed and ended, and only the answer was lost.
            self.feeder_sealed(number);
            return;
        }
        let command = Command { argv: vec![format!("work {number}").into_bytes()], ..Command::default() };
        let service = RunService {
            queue: format!("{QUEUE}{number}"),
            command,
            slots: self.people.feeders[number].slots,
            attempts: 1,
            output_max: 1000,
        };
        self.ledger.services.insert(service.queue.clone(), service.slots);
        let request = OpenRun { name: format!("feeder {number}"), service: Some(service), terms: Default::default() };
        let answer = self.people.ask(Ask::OpenFeeder(number), |info: &RunInfo| Said::Run(Box::new(info.clone())));
        self.send(Event::OpenRun { request, answer });
    }

    fn follow(&mut self, number: usize, run: RunId) {
        let (mouth, ear) = channel();
        self.people.feeders[number].heard = Some(ear);
        let follower = Follower(Box::new(move |told| mouth.send(told).is_ok()));
        let answer = self.people.ask(Ask::Follow(number), |_: &RunInfo| Said::Nothing);
        self.send(Event::Follow { run, follower, answer });
    }

    fn hand_over(&mut self, number: usize, run: RunId, from: Taken) -> Outcome<()> {
        let lines = self.people.feeders[number].lines;
        let count = self.random.between(1, 8).min(lines - from.lines);
        let to = Taken { lines: from.lines + count, hash: from.hash.wrapping_mul(31).wrapping_add(count) };
        let durability = if self.random.chance(500) { Durability::Full } else { Durability::Os };
        // Another of the same name may hand over the same lines: only one of them may be taken.
        for _ in 0..=u64::from(self.random.chance(100)) {
            let line = |line| format!("line {} of {number}", from.lines + line).into_bytes();
            let data: Vec<Vec<u8>> = (0..count).map(line).collect();
            let queue = QueueName::new(format!("{QUEUE}{number}").as_bytes()).map_err(|error| error.to_string())?;
            let mut ids = Vec::new();
            let jobs = vec![self.new_jobs(queue, Some(run), &data, &mut ids)?];
            for (id, line) in ids.iter().zip(from.lines..) {
                self.people.feeders[number].made.insert(*id, line);
            }
            let lot = Lot { jobs, taken: Some((run, from, to)), ..Lot::default() };
            let answer = self.people.ask(Ask::Feed { feeder: number, ids, durability, from, to }, |_| Said::Nothing);
            self.send(Event::Pushed { lot, durability, answer });
        }
        Ok(())
    }

    pub(crate) fn feeder_opened(&mut self, number: usize, info: RunInfo) {
        let feeder = &mut self.people.feeders[number];
        feeder.busy = false;
        feeder.run = Some(info.id);
        feeder.taken = info.taken;
        feeder.sealed = info.counts.sealed;
    }

    pub(crate) fn feeder_fed(&mut self, number: usize, from: Taken, to: Taken, accepted: bool) -> Outcome<()> {
        let feeder = &mut self.people.feeders[number];
        feeder.busy = false;
        match accepted {
            true if feeder.taken != from => return Err(format!("lines from {} on were taken twice", from.lines)),
            true => feeder.taken = to,
            // It asks where the run stands.
            false if feeder.taken == from => feeder.run = None,
            false => {}
        }
        Ok(())
    }

    pub(crate) fn feeder_followed(&mut self, number: usize) {
        let feeder = &mut self.people.feeders[number];
        feeder.busy = false;
        feeder.followed = true;
    }

    pub(crate) fn feeder_sealed(&mut self, number: usize) {
        let feeder = &mut self.people.feeders[number];
        feeder.busy = false;
        feeder.sealed = true;
        // From now on others may add to it, which opens its next generation.
        let run = feeder.run.filter(|_| self.random.chance(300));
        self.people.runs.extend(run);
    }

    /// No space, or the run is gone: it asks again where it stands.
    pub(crate) fn feeder_refused(&mut self, number: usize) {
        let feeder = &mut self.people.feeders[number];
        feeder.busy = false;
        feeder.last_run = feeder.run.take().or(feeder.last_run);
    }

    /// Notes what those who follow a run must hear of this turn.
    pub(crate) fn note_followed(&mut self, turned: &crate::ledger::Turned) {
        for settlement in turned.settled.iter().filter(|settlement| settlement.verdict.state().is_end()) {
            for id in settlement.held.ids() {
                let run = self.ledger.jobs.get(&id).and_then(|job| job.run);
                let follows = |feeder: &&mut Feeder| feeder.followed && feeder.run.is_some() && feeder.run == run;
                for feeder in self.people.feeders.iter_mut().filter(follows) {
                    *feeder.due.entry(id).or_default() += 1;
                }
            }
        }
    }

    pub(crate) fn hear_followed(&mut self) -> Outcome<()> {
        for (number, feeder) in self.people.feeders.iter_mut().enumerate() {
            let Some(heard) = &feeder.heard else { continue };
            for told in heard.try_iter() {
                if let Followed::Job(job) = told {
                    *feeder.told.entry(job.id).or_default() += 1;
                }
            }
            // What ended in the very turn that took the follower in may be told or not.
            let missed = feeder.due.iter().find(|(id, times)| feeder.told.get(id) < Some(*times));
            if let Some((id, times)) = missed.filter(|_| feeder.followed) {
                return Err(format!("the follower of run {number} was not told of {id} ({times} ends)"));
            }
        }
        Ok(())
    }

    /// Every line of every run is one job, none is missing and none is there twice.
    pub(crate) fn check_lines(&self) -> Outcome<()> {
        for (number, feeder) in self.people.feeders.iter().enumerate() {
            let mut lines = BTreeSet::new();
            for (_, line) in feeder.made.iter().filter(|(id, _)| self.ledger.jobs.contains_key(id)) {
                if !lines.insert(*line) {
                    return Err(format!("line {line} of run {number} became two jobs"));
                }
            }
            if feeder.sealed && self.calm && lines.len() as u64 != feeder.lines {
                return Err(format!("run {number} has {} jobs of {} lines", lines.len(), feeder.lines));
            }
        }
        Ok(())
    }
}
