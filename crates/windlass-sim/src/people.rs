//! Producers and people: they push, append to the inbox, open and seal runs, cancel, retry, reload and wait.
//!
//! It owns what they do and when; what they are told is in `asks.rs`, and how they steer and operate in `steering.rs`
//! and `bulk.rs`. Everything they do is drawn from the seed.

use crate::asks::{Ask, Said, Told};
use crate::bulk::Bulk;
use crate::checkers::Seen;
use crate::feeders::Feeder;
use crate::flow;
use crate::random::{self, Random};
use crate::workload;
use crate::world::{Due, Outcome, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use windlass::engine::event::{Answer, NewRules, OpenRun, Wish};
use windlass::engine::{EngineOptions, Event};
use windlass::inbox::Envelope;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::{Amendment, Durability, Lot, NewJobs, RunInfo};
use windlass_core::job::{JobId, Origin, QueueName, RunId};
use windlass_core::particulars::Particulars;
use windlass_core::policy::Policy;
use windlass_core::time::Time;

#[derive(Debug)]
pub(crate) struct People {
    /// How much is still to be done before the calm.
    pub(crate) actions: u64,
    /// The one job that kills its server, once it is made.
    pub(crate) killer: Option<JobId>,
    makes_killer: bool,
    pub(crate) asks: BTreeMap<u64, Ask>,
    last: u64,
    mouth: Sender<Told>,
    pub(crate) ear: Receiver<Told>,
    origin: Origin,
    offset: u64,
    pub(crate) runs: Vec<RunId>,
    /// Those of them that may refuse jobs, which only a door that answers can say.
    pub(crate) bound: BTreeSet<RunId>,
    rules: Vec<(Vec<Policy>, u32)>,
    pub(crate) known: Vec<JobId>,
    pub(crate) feeders: Vec<Feeder>,
    /// Whether anybody steers and operates; nobody does in a plain world.
    pub(crate) steers: bool,
    pub(crate) steerings: u64,
    pub(crate) bulks: Vec<Bulk>,
    pub(crate) last_bulk: u64,
}

impl People {
    pub(crate) fn new(random: &mut Random, steers: bool) -> People {
        let (mouth, ear) = channel();
        People {
            actions: random.between(20, 160),
            killer: None,
            makes_killer: random.chance(250),
            asks: BTreeMap::new(),
            last: 0,
            mouth,
            ear,
            origin: Origin::from_random(random.next()),
            offset: 0,
            runs: Vec::new(),
            bound: BTreeSet::new(),
            rules: Vec::new(),
            known: Vec::new(),
            feeders: Vec::new(),
            steers,
            steerings: 0,
            bulks: Vec::new(),
            last_bulk: 0,
        }
    }

    pub(crate) fn ask<T>(&mut self, ask: Ask, said: impl Fn(&T) -> Said + Send + 'static) -> Answer<T> {
        self.last += 1;
        self.asks.insert(self.last, ask);
        let (number, mouth) = (self.last, self.mouth.clone());
        Answer::new(move |answer: Result<T, windlass::error::Failure>| {
            // The ear lives as long as the world.
            let _ = mouth.send((number, answer.map(|value| said(&value)).map_err(|failure| failure.text)));
        })
    }

    pub(crate) fn forget_asks(&mut self) {
        self.asks.clear();
        self.rules.clear();
        self.feeders.iter_mut().for_each(Feeder::forget);
        self.bulks.iter_mut().for_each(Bulk::forget);
        while self.ear.try_recv().is_ok() {}
    }

    /// The rules that the engine has just been given.
    pub(crate) fn take_rules(&mut self, options: &mut EngineOptions) {
        for (policies, slots) in self.rules.drain(..) {
            options.policies = policies;
            options.slots = slots;
        }
    }

    /// The rules of a turn that was dropped never held.
    pub(crate) fn drop_rules(&mut self) {
        self.rules.clear();
    }
}

impl World {
    pub(crate) fn people_act(&mut self) -> Outcome<()> {
        if self.calm {
            return Ok(());
        }
        let after = self.until_next_act();
        self.at(after, Due::People);
        self.people.actions -= 1;
        let kinds = if self.flows {
            34
        } else if self.people.steers {
            33
        } else {
            25
        };
        match self.random.below(kinds) {
            0..=6 => self.push(),
            7..=11 => self.append(),
            12 => self.open_run(),
            13 => self.seal_run(),
            14 | 15 => self.amend(),
            16 => self.await_something(),
            17 if self.random.chance(300) => self.reload(),
            18 if self.random.chance(200) => {
                self.send(Event::Drain);
                Ok(())
            }
            19 if self.random.chance(100) => {
                self.send(Event::Halt);
                Ok(())
            }
            20..=22 => self.feed_some(),
            23 => {
                let answer = self.people.ask(
                    Ask::CatchUp { inbox: self.producers.ids_written(), settled: self.ledger.settled.len() },
                    |()| Said::Nothing,
                );
                self.send(Event::CatchUp { answer });
                Ok(())
            }
            24 => {
                let before = Time(self.now().0 - self.random.below(20_000_000) as i64);
                self.send(Event::Forget { before });
                Ok(())
            }
            25..=27 => self.steer_some(),
            28..=30 => self.operate_some(),
            31 => self.ask_something(),
            32 => self.hush_or_nudge(),
            33 => self.look_after_schedules(),
            _ => Ok(()),
        }
    }

    /// The trouble is over: everything open is sealed, everything paused goes on, what hangs is ended.
    pub(crate) fn people_settle(&mut self) -> Outcome<()> {
        if self.engine.is_none() {
            // It comes back by itself; the order below is given to the one that is there then.
            while self.engine.is_none() {
                self.step()?;
            }
        }
        self.send(Event::Drain);
        let life = self.life;
        while self.life == life || self.engine.is_none() {
            self.step()?;
        }
        for policy in &mut self.options.policies {
            policy.enabled = true;
        }
        let (policies, slots) = (self.options.policies.clone(), self.options.slots);
        self.people.rules.push((policies.clone(), slots));
        let answer = self.people.ask(Ask::Reload, |()| Said::Nothing);
        let (memory, router) = (self.options.memory, self.options.router.clone());
        let new = NewRules { policies, slots, memory, router, ..NewRules::default() };
        // Without schedules, or it would never be over.
        self.options.schedules.clear();
        self.show(&Seen::Agenda(&[]))?;
        self.send(Event::Reload { new, answer });
        self.let_go()?;
        self.feed_all()?;
        for run in self.people.runs.clone() {
            let answer = self.people.ask(Ask::SealRun, |()| Said::Nothing);
            self.send(Event::SealRun { run, answer });
            let answer = self.people.ask(Ask::AwaitRun(run), |_: &RunInfo| Said::Nothing);
            self.send(Event::AwaitRun { run, answer });
        }
        let inbox = self.producers.ids_written();
        let answer = self.people.ask(Ask::Drained { inbox }, |_| Said::Nothing);
        self.send(Event::AwaitDrained { due_only: false, here_only: false, answer });
        Ok(())
    }

    fn push(&mut self) -> Outcome<()> {
        let mut lot = Lot::default();
        let mut ids = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            let (queue, run) = (self.queue()?, self.some_run());
            let many = if self.random.chance(100) { 70 } else { 6 };
            let count = self.random.between(1, many);
            let data: Vec<Vec<u8>> = (0..count).map(|_| workload::data(&mut self.random)).collect();
            lot.jobs.push(self.new_jobs(queue, run, &data, &mut ids)?);
        }
        self.hand_in(lot, ids);
        Ok(())
    }

    /// A job that runs adds to its own run.
    pub(crate) fn push_into(&mut self, run: RunId) -> Outcome<()> {
        let queue = self.queue()?;
        let data = [workload::data(&mut self.random)];
        let mut ids = Vec::new();
        let jobs = vec![self.new_jobs(queue, Some(run), &data, &mut ids)?];
        self.hand_in(Lot { jobs, ..Lot::default() }, ids);
        Ok(())
    }

    /// Jobs as a door makes them; from now on they may be there.
    pub(crate) fn new_jobs(
        &mut self,
        queue: QueueName,
        run: Option<RunId>,
        data: &[Vec<u8>],
        ids: &mut Vec<JobId>,
    ) -> Outcome<NewJobs> {
        let not_before = self.some_time();
        let priority = workload::priority(&mut self.random);
        let start_by = self.some_deadline(not_before);
        let promised = Particulars { start_by, ..Particulars::default() };
        let (promised, not_before) = self.promise_more(&queue, promised, not_before);
        let particulars = (!promised.is_empty()).then(|| Arc::new(promised.clone()));
        let mut builder = ChunkBuilder::new(self.people.origin).with(particulars);
        for data in data {
            self.people.offset += 1;
            let id = JobId { origin: self.people.origin, offset: self.people.offset };
            builder.push(id.offset, data);
            ids.push(id);
            self.offer(id, data, not_before)?;
            if let Some(by) = start_by {
                self.show(&Seen::MustBegin { id, by })?;
            }
            self.show_promises(id, &promised)?;
        }
        Ok(NewJobs { queue, priority, run, not_before, jobs: Arc::new(builder.finish()) })
    }

    fn hand_in(&mut self, lot: Lot, ids: Vec<JobId>) {
        for new in &lot.jobs {
            let (queue, run) = (new.queue.as_str(), new.run.map_or_else(|| "no run".into(), |run| run.to_string()));
            self.tell(|| format!("{} jobs from {} on are pushed to {queue}, {run}", new.jobs.len(), new.jobs.id(0)));
        }
        let durability = if self.random.chance(500) { Durability::Full } else { Durability::Os };
        let answer = self.people.ask(Ask::Push { ids, durability }, |_| Said::Nothing);
        self.send(Event::Pushed { lot, durability, answer });
    }

    pub(crate) fn offer(&mut self, id: JobId, data: &[u8], not_before: Option<Time>) -> Outcome<()> {
        if self.people.makes_killer && self.people.killer.is_none() && self.random.chance(30) {
            self.people.killer = Some(id);
            self.tell(|| format!("{id} is a killer"));
            self.show(&Seen::Killer { id })?;
        }
        self.people.known.push(id);
        self.show(&Seen::Offered { id, data: random::hash(data), not_before })
    }

    fn queue(&mut self) -> Outcome<QueueName> {
        let name = self.random.pick(&workload::QUEUES);
        QueueName::new(name.as_bytes()).map_err(|error| error.to_string())
    }

    fn some_run(&mut self) -> Option<RunId> {
        if self.people.runs.is_empty() || self.random.chance(500) {
            return None;
        }
        Some(*self.random.pick(&self.people.runs))
    }

    /// Something is appended to the inbox, whether an engine is there or not.
    fn append(&mut self) -> Outcome<()> {
        for _ in 0..self.random.between(1, 5) {
            let queue = self.queue()?;
            let data = workload::data(&mut self.random);
            let run = self.some_run().filter(|run| !self.people.bound.contains(run));
            let priority = workload::priority(&mut self.random);
            let not_before = self.some_time();
            let envelope = Envelope { priority, run, not_before, ..Envelope::new(queue.clone()) };
            match self.random.below(16) {
                0 => {
                    if let Some(id) = self.producers.begin_half(&envelope, &data, &mut self.random) {
                        self.offer(id, &data, not_before)?;
                        let after = self.random.between(100, 400_000);
                        self.at(after, Due::Writer);
                    }
                }
                1 => self.producers.garbage(&mut self.random),
                2..=5 => {
                    let line: Vec<u8> = data.iter().map(|byte| if *byte < b' ' { b'.' } else { *byte }).collect();
                    if let Some(id) = self.producers.line(&queue, not_before, &line) {
                        self.offer(id, &line, not_before)?;
                    }
                }
                6 | 7 => {
                    let lines: Vec<Vec<u8>> =
                        (0..self.random.between(1, 30)).map(|n| format!("line {n}").into()).collect();
                    for (id, line) in self.producers.block(&envelope, &lines).into_iter().zip(&lines) {
                        self.offer(id, line, not_before)?;
                    }
                }
                8 => self.producers.close_foreign(),
                _ => {
                    if let Some(id) = self.producers.job(&envelope, &data) {
                        self.offer(id, &data, not_before)?;
                    }
                }
            }
        }
        if self.random.chance(400) {
            self.producers.sync();
        }
        self.look_soon();
        Ok(())
    }

    /// Now and then a job is for later.
    fn some_time(&mut self) -> Option<Time> {
        let later = self.random.chance(150).then(|| Duration::from_millis(self.random.below(60_000)));
        later.map(|later| self.now().after(later))
    }

    /// Now and then jobs must have begun by a time, or they fail.
    fn some_deadline(&mut self, not_before: Option<Time>) -> Option<Time> {
        let later = self.random.chance(150).then(|| Duration::from_millis(self.random.between(1, 30_000)));
        later.map(|later| not_before.unwrap_or(self.now()).after(later))
    }

    pub(crate) fn finish_half(&mut self) -> Outcome<()> {
        let dies = self.random.chance(400);
        self.producers.end_half(dies);
        self.look_soon();
        Ok(())
    }

    fn open_run(&mut self) -> Outcome<()> {
        let answer = self.people.ask(Ask::OpenRun, |info: &RunInfo| Said::Run(Box::new(info.clone())));
        let terms = self.some_terms()?;
        self.send(Event::OpenRun { request: OpenRun { name: String::new(), service: None, terms }, answer });
        Ok(())
    }

    fn seal_run(&mut self) -> Outcome<()> {
        let Some(run) = self.some_run() else { return Ok(()) };
        if self.random.chance(300) {
            self.producers.seal(run);
            return Ok(());
        }
        let answer = self.people.ask(Ask::SealRun, |()| Said::Nothing);
        self.send(Event::SealRun { run, answer });
        Ok(())
    }

    fn amend(&mut self) -> Outcome<()> {
        if self.people.known.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<JobId> =
            (0..self.random.between(1, 4)).map(|_| *self.random.pick(&self.people.known)).collect();
        ids.dedup();
        let amendment = self.some_amendment();
        if self.people.bulks.iter().any(|bulk| bulk.is_like(Wish::Amend(amendment))) {
            return Ok(());
        }
        let answer = self.people.ask(Ask::Amend, |_| Said::Nothing);
        self.send(Event::Amend { ids, amendment, by: "somebody".into(), answer });
        Ok(())
    }

    pub(crate) fn some_amendment(&mut self) -> Amendment {
        match self.random.below(8) {
            0..=2 => Amendment::Cancel,
            3 | 4 => Amendment::Retry,
            5 => Amendment::Suspend,
            6 => Amendment::Resume,
            _ => Amendment::Priority(workload::priority(&mut self.random)),
        }
    }

    fn await_something(&mut self) -> Outcome<()> {
        match self.some_run() {
            Some(run) => {
                let answer = self.people.ask(Ask::AwaitRun(run), |_: &RunInfo| Said::Nothing);
                self.send(Event::AwaitRun { run, answer });
            }
            None => {
                let inbox = self.producers.ids_written();
                let answer = self.people.ask(Ask::Drained { inbox }, |_| Said::Nothing);
                self.send(Event::AwaitDrained { due_only: false, here_only: false, answer });
            }
        }
        Ok(())
    }

    fn reload(&mut self) -> Outcome<()> {
        let (policies, slots) = workload::policies(&mut self.random, self.crews);
        let policies = flow::with_handlers(self.seed, policies)?;
        self.people.rules.push((policies.clone(), slots));
        let answer = self.people.ask(Ask::Reload, |()| Said::Nothing);
        let (memory, router) = (self.options.memory, self.options.router.clone());
        let schedules = self.options.schedules.clone();
        let new = NewRules { policies, slots, memory, router, schedules, ..NewRules::default() };
        self.send(Event::Reload { new, answer });
        Ok(())
    }
}
