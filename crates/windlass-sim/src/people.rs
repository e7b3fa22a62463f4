//! Producers and people: they push, append to the inbox, open and seal runs, cancel, retry, reload and wait.
//!
//! It owns the questions that were asked and checks each answer against what it may be. A question to an engine
//! that died is unanswered for ever: its job may or may not be there.

use crate::checkers::Seen;
use crate::ledger::Ledger;
use crate::random::{self, Random};
use crate::workload;
use crate::world::{Due, Outcome, World};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use windlass::engine::event::{Answer, OpenRun};
use windlass::engine::{EngineOptions, Event};
use windlass::inbox::Envelope;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::{Amendment, Durability, Lot, NewJobs, RunInfo};
use windlass_core::job::{JobId, Origin, QueueName, RunId};
use windlass_core::policy::Policy;

/// What was asked.
#[derive(Clone, Debug)]
enum Ask {
    Push { ids: Vec<JobId>, durability: Durability },
    OpenRun,
    SealRun,
    AwaitRun(RunId),
    Drained { inbox: Vec<JobId> },
    Amend,
    Reload,
}

/// What came back: a run's id where there is one.
type Told = (u64, Result<Option<RunId>, String>);

#[derive(Debug)]
pub(crate) struct People {
    /// How much is still to be done before the calm.
    pub(crate) actions: u64,
    /// The one job that kills its server, once it is made.
    pub(crate) killer: Option<JobId>,
    makes_killer: bool,
    asks: BTreeMap<u64, Ask>,
    last: u64,
    mouth: Sender<Told>,
    ear: Receiver<Told>,
    origin: Origin,
    offset: u64,
    runs: Vec<RunId>,
    rules: Vec<(Vec<Policy>, u32)>,
    known: Vec<JobId>,
}

impl People {
    pub(crate) fn new(random: &mut Random) -> People {
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
            rules: Vec::new(),
            known: Vec::new(),
        }
    }

    fn ask<T>(&mut self, ask: Ask, run: impl Fn(&T) -> Option<RunId> + Send + 'static) -> Answer<T> {
        self.last += 1;
        self.asks.insert(self.last, ask);
        let (number, mouth) = (self.last, self.mouth.clone());
        Answer::new(move |answer: Result<T, windlass::error::Failure>| {
            // The ear lives as long as the world.
            let _ = mouth.send((number, answer.map(|value| run(&value)).map_err(|failure| failure.text)));
        })
    }

    pub(crate) fn forget_asks(&mut self) {
        self.asks.clear();
        self.rules.clear();
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

    /// A question that should have been answered by now.
    pub(crate) fn unanswered(&self, ledger: &Ledger, quiet: bool) -> Option<String> {
        let due = |ask: &&Ask| match ask {
            Ask::AwaitRun(run) => ledger.runs.get(run).is_none_or(|run| run.ended),
            Ask::Drained { .. } => quiet,
            Ask::Push { .. } | Ask::OpenRun | Ask::SealRun | Ask::Amend | Ask::Reload => true,
        };
        self.asks.values().find(due).map(|ask| format!("{ask:?}"))
    }
}

impl World {
    pub(crate) fn people_act(&mut self) -> Outcome<()> {
        if self.calm {
            return Ok(());
        }
        let after = self.random.between(100, 150_000);
        self.at(after, Due::People);
        self.people.actions -= 1;
        match self.random.below(20) {
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
        let answer = self.people.ask(Ask::Reload, |()| None);
        self.send(Event::Reload { policies, slots, answer });
        for run in self.people.runs.clone() {
            let answer = self.people.ask(Ask::SealRun, |()| None);
            self.send(Event::SealRun { run, answer });
            let answer = self.people.ask(Ask::AwaitRun(run), |_: &RunInfo| None);
            self.send(Event::AwaitRun { run, answer });
        }
        let inbox = self.disk.ids_written();
        let answer = self.people.ask(Ask::Drained { inbox }, |_| None);
        self.send(Event::AwaitDrained { due_only: false, answer });
        Ok(())
    }

    fn push(&mut self) -> Outcome<()> {
        if self.engine.is_none() {
            return Ok(());
        }
        let mut lot = Lot::default();
        let mut ids = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            let mut builder = ChunkBuilder::new(self.people.origin);
            let many = if self.random.chance(100) { 70 } else { 6 };
            for _ in 0..self.random.between(1, many) {
                self.people.offset += 1;
                let data = workload::data(&mut self.random);
                let id = JobId { origin: self.people.origin, offset: self.people.offset };
                builder.push(id.offset, &data);
                ids.push(id);
                self.offer(id, &data)?;
            }
            let queue = self.queue()?;
            let run = self.some_run();
            let later = self.random.chance(150).then(|| Duration::from_millis(self.random.below(60_000)));
            let not_before = later.map(|later| self.now().after(later));
            let priority = workload::priority(&mut self.random);
            lot.jobs.push(NewJobs { queue, priority, run, not_before, jobs: Arc::new(builder.finish()) });
        }
        let durability = if self.random.chance(500) { Durability::Full } else { Durability::Os };
        let answer = self.people.ask(Ask::Push { ids, durability }, |()| None);
        self.send(Event::Pushed { lot, durability, answer });
        Ok(())
    }

    fn offer(&mut self, id: JobId, data: &[u8]) -> Outcome<()> {
        if self.people.makes_killer && self.people.killer.is_none() && self.random.chance(30) {
            self.people.killer = Some(id);
            self.tell(|| format!("{id} is a killer"));
            self.show(&Seen::Killer { id })?;
        }
        self.people.known.push(id);
        self.show(&Seen::Offered { id, data: random::hash(data) })
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
            let run = self.some_run();
            let priority = workload::priority(&mut self.random);
            let envelope = Envelope { priority, run, ..Envelope::new(queue.clone()) };
            match self.random.below(12) {
                0 => self.disk.write_torn(&envelope, &data, &mut self.random),
                1 => self.disk.write_garbage(&mut self.random),
                2..=4 => {
                    let line: Vec<u8> = data.iter().map(|byte| if *byte < b' ' { b'.' } else { *byte }).collect();
                    if let Some(id) = self.disk.write_line(&queue, &line) {
                        self.offer(id, &line)?;
                    }
                }
                _ => {
                    let id = self.disk.write_job(&envelope, &data);
                    self.offer(id, &data)?;
                }
            }
        }
        if self.random.chance(400) {
            self.disk.sync();
        }
        Ok(())
    }

    fn open_run(&mut self) -> Outcome<()> {
        let answer = self.people.ask(Ask::OpenRun, |info: &RunInfo| Some(info.id));
        self.send(Event::OpenRun { request: OpenRun { name: String::new(), service: None }, answer });
        Ok(())
    }

    fn seal_run(&mut self) -> Outcome<()> {
        let Some(run) = self.some_run() else { return Ok(()) };
        if self.random.chance(300) {
            self.disk.write_seal(run);
            return Ok(());
        }
        let answer = self.people.ask(Ask::SealRun, |()| None);
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
        let amendment = match self.random.below(8) {
            0..=2 => Amendment::Cancel,
            3 | 4 => Amendment::Retry,
            5 => Amendment::Suspend,
            6 => Amendment::Resume,
            _ => Amendment::Priority(workload::priority(&mut self.random)),
        };
        let answer = self.people.ask(Ask::Amend, |_| None);
        self.send(Event::Amend { ids, amendment, answer });
        Ok(())
    }

    fn await_something(&mut self) -> Outcome<()> {
        match self.some_run() {
            Some(run) => {
                let answer = self.people.ask(Ask::AwaitRun(run), |_: &RunInfo| None);
                self.send(Event::AwaitRun { run, answer });
            }
            None => {
                let inbox = self.disk.ids_written();
                let answer = self.people.ask(Ask::Drained { inbox }, |_| None);
                self.send(Event::AwaitDrained { due_only: false, answer });
            }
        }
        Ok(())
    }

    fn reload(&mut self) -> Outcome<()> {
        let (policies, slots) = workload::policies(&mut self.random);
        self.people.rules.push((policies.clone(), slots));
        let answer = self.people.ask(Ask::Reload, |()| None);
        self.send(Event::Reload { policies, slots, answer });
        Ok(())
    }

    /// Hears the answers that a turn gave.
    pub(crate) fn people_hear(&mut self, quiet_before: bool) -> Outcome<()> {
        while let Ok((number, answer)) = self.people.ear.try_recv() {
            let Some(ask) = self.people.asks.remove(&number) else { return Err("an answer came twice".into()) };
            match (ask, answer) {
                (Ask::Push { ids, durability }, Ok(_)) => {
                    for id in ids {
                        self.show(&Seen::Accepted { id, durability, at: self.mono })?;
                        if !self.ledger.jobs.contains_key(&id) {
                            return Err(format!("{id} was answered before it was committed"));
                        }
                    }
                }
                (Ask::Push { ids, .. }, Err(_)) => {
                    for id in ids {
                        self.show(&Seen::Rejected { id })?;
                    }
                }
                (Ask::OpenRun, Ok(run)) => self.people.runs.extend(run),
                (Ask::AwaitRun(run), Ok(_)) => {
                    if !self.ledger.runs.get(&run).is_some_and(|run| run.ended) {
                        return Err(format!("{run} was said to have ended and has not"));
                    }
                }
                (Ask::Drained { inbox }, Ok(_)) => {
                    let unread = inbox.iter().find(|id| !self.ledger.jobs.contains_key(id)).copied();
                    self.show(&Seen::Drained { quiet: quiet_before || self.is_quiet(), unread })?;
                }
                (Ask::SealRun | Ask::Amend | Ask::Reload, Ok(_)) => {}
                (Ask::OpenRun | Ask::AwaitRun(_) | Ask::Drained { .. }, Err(_)) => {}
                (Ask::SealRun | Ask::Amend | Ask::Reload, Err(_)) => {}
            }
        }
        Ok(())
    }
}
