//! Jobs that are done together: processes for many and calls with many, by core's own machine, on virtual time.
//!
//! What comes back is read by the shipped rules (`windlass::runner::rehearsal`); this plays the programs and servers,
//! each in its manner: they also die or hang in the middle, are away, break off, are busy. It says beforehand what each
//! job must come to, and any other end ends the world.

use crate::manners::{FAILED, Manner, Must, reply};
use crate::random::Random;
use crate::world::{Due, Outcome, World};
use std::collections::{BTreeMap, BTreeSet};
use windlass::engine::Event;
use windlass::runner::rehearsal::{Called, Ended, Processes, read_call};
use windlass::runner::{Finished, Flight, Output, Start, Stop};
use windlass_core::job::JobId;
use windlass_core::outcome::{self, from_status, status_is_for_all};
use windlass_core::policy::{Batch, Command, Framing, Host, Service, Url};
use windlass_core::supervisor::WorkerEvent;
use windlass_core::time::Time;

#[derive(Debug)]
enum Play {
    Processes(Box<Processes>),
    /// Those that wait for a call, the next ones last.
    Calls(Vec<Vec<u16>>),
}

/// One start on its way.
#[derive(Debug)]
struct Work {
    start: Start,
    play: Play,
    /// The jobs of the process or call under way, and the worker that it is.
    piece: Vec<u16>,
    worker: Option<u32>,
    since: Time,
    /// Changes with every plan: what was planned before does not happen.
    plan: u64,
    ends_by: Option<Stop>,
    /// What has not begun does not begin any more.
    withdrawn: bool,
    /// Cancelled while others were in the same piece.
    unwanted: BTreeSet<u16>,
    open: Vec<bool>,
    begun: Vec<bool>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Together {
    works: BTreeMap<u32, Work>,
}

impl Together {
    /// Jobs of which a process or a call has been given any.
    pub(crate) fn running(&self) -> impl Iterator<Item = JobId> + '_ {
        self.works.values().filter(|work| work.begun.contains(&true)).flat_map(|work| work.start.held.ids())
    }

    pub(crate) fn number_of(&self, flight: Flight) -> Option<u32> {
        self.works.iter().find(|(_, work)| work.start.flight == flight).map(|(number, _)| *number)
    }
}

impl Work {
    fn id(&self, position: u16) -> JobId {
        let (_, held, index) = self.start.job(position);
        held.jobs.id(index)
    }

    fn ids(&self) -> Vec<JobId> {
        self.piece.iter().map(|position| self.id(*position)).collect()
    }
}

impl World {
    pub(crate) fn together_take(&mut self, start: Start) {
        let count = usize::from(start.held.count);
        let play = match &start.policy.service {
            Service::Url(url) => {
                let all: Vec<u16> = (0..start.held.count).collect();
                Play::Calls(all.chunks(url.size as usize).rev().map(<[u16]>::to_vec).collect())
            }
            _ => Play::Processes(Box::new(Processes::new(start.clone()))),
        };
        let number = self.desk.new_number();
        let (since, open, begun) = (self.now(), vec![true; count], vec![false; count]);
        let (piece, unwanted) = (Vec::new(), BTreeSet::new());
        let work = Work {
            start,
            play,
            piece,
            worker: None,
            since,
            plan: 0,
            ends_by: None,
            withdrawn: false,
            unwanted,
            open,
            begun,
        };
        self.desk.together.works.insert(number, work);
        self.together_plan(number, 3000);
    }

    /// Its next step comes within so long.
    fn together_plan(&mut self, number: u32, within: u64) {
        let after = self.random.between(1, within);
        if let Some(work) = self.desk.together.works.get_mut(&number) {
            work.plan += 1;
            let plan = work.plan;
            self.at(after, Due::Kept(number, plan));
        }
    }

    pub(crate) fn together_due(&mut self, number: u32, plan: u64) -> Outcome<()> {
        let work = self.desk.together.works.get(&number).filter(|work| work.plan == plan);
        match work.map(|work| work.worker.is_some()) {
            Some(true) => self.together_ends(number),
            Some(false) => self.together_begins(number),
            None => Ok(()),
        }
    }

    /// The next process is there, or the next call is made.
    fn together_begins(&mut self, number: u32) -> Outcome<()> {
        let now = self.now();
        let Some(work) = self.desk.together.works.get_mut(&number) else { return Ok(()) };
        let piece = match &mut work.play {
            Play::Calls(todo) => todo.pop().unwrap_or_default(),
            Play::Processes(processes) => {
                let input = processes.next_input().map_err(|error| format!("no lines for a process: {error}"))?;
                given(&work.start, &input.unwrap_or_default())?
            }
        };
        if piece.is_empty() {
            return Err(format!("batches and calls: start {} goes on with nobody", work.start.flight.0));
        }
        (work.piece, work.since) = (piece.clone(), now);
        let (start, fresh): (Start, Vec<u16>) =
            (work.start.clone(), piece.iter().copied().filter(|at| !work.begun[usize::from(*at)]).collect());
        fresh.iter().for_each(|at| work.begun[usize::from(*at)] = true);
        let worker = self.desk.new_number();
        self.enrol(worker);
        for event in [WorkerEvent::Make, WorkerEvent::Up, WorkerEvent::Take] {
            self.happens(worker, event)?;
        }
        if let Some(work) = self.desk.together.works.get_mut(&number) {
            work.worker = Some(worker);
        }
        let mut kills = false;
        for position in fresh {
            kills |= self.job_begins(&start, position)?;
        }
        if !kills {
            self.together_plan(number, 200_000);
        }
        Ok(())
    }

    /// The process or the call has come to its end: all that was in it is told of, or goes on.
    fn together_ends(&mut self, number: u32) -> Outcome<()> {
        let Some(work) = self.desk.together.works.get(&number) else { return Ok(()) };
        let (is_call, ends_by) = (matches!(work.play, Play::Calls(_)), work.ends_by);
        let (told, must, died) = match (is_call, ends_by) {
            (true, _) => self.play_call(number)?,
            (false, None) => self.play_process(number),
            (false, Some(why)) => self.stop_process(number, why),
        };
        self.check_told(number, &told, &must)?;
        let worker = self.desk.together.works.get_mut(&number).and_then(|work| work.worker.take());
        if let Some(worker) = worker {
            let events: &[WorkerEvent] = match (died, ends_by) {
                (_, Some(_)) => &[WorkerEvent::Stop, WorkerEvent::Exit],
                (true, None) => &[WorkerEvent::Die],
                (false, None) => &[WorkerEvent::Finish, WorkerEvent::Exit],
            };
            for event in events {
                self.happens(worker, *event)?;
            }
            self.forget_worker(worker);
        }
        self.together_tell(number, told)
    }

    /// Whether each job of the piece has come to what it must, and no other to anything.
    fn check_told(&self, number: u32, told: &[Finished], must: &[Must]) -> Outcome<()> {
        let Some(work) = self.desk.together.works.get(&number) else { return Ok(()) };
        let mut words: BTreeMap<u16, &'static str> = BTreeMap::new();
        for finished in told {
            let each = finished.outcomes.iter().flat_map(|(count, outcome)| (0..*count).map(|_| outcome.word()));
            words.extend((finished.first..).zip(each));
        }
        for (position, must) in work.piece.iter().zip(must) {
            let came = words.remove(position).map_or(Must::GoOn, Must::Be);
            if came != *must {
                let id = work.id(*position);
                return Err(format!("batches and calls: {id} came to {came:?}, expected {must:?}"));
            }
        }
        // Who waited for the next process ends with this one, where there is to be none.
        let interrupted = outcome::Outcome::Interrupted.word();
        words.retain(|_, word| !(work.withdrawn && *word == interrupted));
        match words.pop_first() {
            Some((at, word)) => Err(format!("batches and calls: {} was not in it and is {word}", work.id(at))),
            None => Ok(()),
        }
    }

    /// What its jobs want to come to, as lines.
    fn wants(&self, work: &Work) -> Vec<(String, &'static str)> {
        let script = |id: JobId| reply(&self.script_of(&work.start, id).outcome);
        work.ids().into_iter().map(script).collect()
    }

    /// One of them kills whatever has it.
    fn has_fatal(&self, work: &Work) -> bool {
        !self.calm && work.ids().iter().any(|id| self.is_fatal(*id, work.start.held.start()))
    }

    /// What a process writes in its manner, how it ends, and what each of its jobs must come to by that.
    fn process(&mut self, number: u32) -> Option<(Ended, Vec<u8>, Vec<Must>)> {
        let work = self.desk.together.works.get(&number)?;
        let (wants, ids, fatal) = (self.wants(work), work.ids(), self.has_fatal(work));
        let manner = if fatal { Manner::DiesInTheMiddle } else { Manner::draw(&mut self.random, self.calm) };
        let (lines, mut must) = manner.written(&mut self.random, &wants, &ids);
        let rest = |must: &mut [Must], alone: &outcome::Outcome, all: bool| {
            let open: Vec<usize> = (0..must.len()).filter(|at| must[*at] == Must::GoOn).collect();
            let be = all || open.len() == 1;
            open.into_iter().filter(|_| be).for_each(|at| must[at] = Must::Be(alone.word()));
        };
        let error = || "x".to_owned();
        let ended = match manner {
            Manner::DiesInTheMiddle => {
                rest(&mut must, &outcome::Outcome::Crashed { error: error() }, false);
                Ended::Signal(9)
            }
            Manner::HangsInTheMiddle => {
                rest(&mut must, &outcome::Outcome::TimedOut { limit: Default::default() }, false);
                Ended::TimedOut
            }
            Manner::IsBusy => {
                rest(&mut must, &outcome::Outcome::RetryLater { after: None, error: error() }, true);
                Ended::Code(75)
            }
            _ => {
                rest(&mut must, &outcome::Outcome::Failed { error: error() }, true);
                Ended::Code(0)
            }
        };
        Some((ended, lines.concat().into_bytes(), must))
    }

    fn play_process(&mut self, number: u32) -> (Vec<Finished>, Vec<Must>, bool) {
        let Some((ended, written, mut must)) = self.process(number) else { return Default::default() };
        let Some(work) = self.desk.together.works.get_mut(&number) else { return Default::default() };
        for (position, must) in work.piece.iter().zip(&mut must) {
            *must = match *must {
                Must::GoOn if work.unwanted.contains(position) => Must::Be(outcome::Outcome::Cancelled.word()),
                Must::GoOn if work.withdrawn => Must::Be(outcome::Outcome::Interrupted.word()),
                must => must,
            };
        }
        let told = match &mut work.play {
            Play::Processes(processes) => processes.ended(ended, written),
            Play::Calls(_) => Vec::new(),
        };
        (told, must, matches!(ended, Ended::Signal(_)))
    }

    /// It was told to end, and did so in the middle of its work.
    fn stop_process(&mut self, number: u32, why: Stop) -> (Vec<Finished>, Vec<Must>, bool) {
        let Some(work) = self.desk.together.works.get_mut(&number) else { return Default::default() };
        let (ended, outcome) = match why {
            Stop::Cancel => (Ended::Cancelled, outcome::Outcome::Cancelled),
            Stop::Withdraw | Stop::Interrupt | Stop::Kill => (Ended::Interrupted, outcome::Outcome::Interrupted),
        };
        let must = vec![Must::Be(outcome.word()); work.piece.len()];
        let told = match &mut work.play {
            Play::Processes(processes) => processes.ended(ended, Vec::new()),
            Play::Calls(_) => Vec::new(),
        };
        (told, must, false)
    }

    /// What comes back from a call, what each of its jobs must come to by that, and whether it broke off.
    fn call(&mut self, work: (Vec<(String, &'static str)>, Vec<JobId>, bool)) -> (Called, Vec<Must>) {
        let (wants, ids, fatal) = work;
        let count = ids.len();
        let all = |outcome: &outcome::Outcome| vec![Must::Be(outcome.word()); count];
        let alone = |outcome: &outcome::Outcome| if count > 1 { vec![Must::GoOn; count] } else { all(outcome) };
        let failed = outcome::Outcome::Failed { error: "x".into() };
        let manner = if fatal { Manner::DiesInTheMiddle } else { Manner::draw(&mut self.random, self.calm) };
        match manner {
            Manner::DiesInTheMiddle if !fatal && self.random.chance(300) => {
                let outcome = outcome::Outcome::RetryLater { after: None, error: "x".into() };
                (Called::Unreached, all(&outcome))
            }
            Manner::DiesInTheMiddle => (Called::Broken, alone(&failed)),
            Manner::HangsInTheMiddle => {
                (Called::TimedOut, alone(&outcome::Outcome::TimedOut { limit: Default::default() }))
            }
            Manner::IsBusy => {
                let status = *self.random.pick(&[429, 429, 503, 500, 400, 302, 401]);
                let after = std::time::Duration::from_secs(self.random.between(1, 40));
                let retry_after = (status == 429 || status == 503).then_some(after);
                let outcome = from_status(status, retry_after);
                let must = if status_is_for_all(status) { all(&outcome) } else { alone(&outcome) };
                (Called::Answered { status, retry_after, body: b"busy".to_vec(), cut: false }, must)
            }
            manner => {
                let (lines, mut must) = manner.written(&mut self.random, &wants, &ids);
                let open = must.iter_mut().filter(|must| **must == Must::GoOn);
                open.for_each(|must| *must = Must::Be(FAILED));
                let mut body = lines.concat().into_bytes();
                if manner == Manner::TooFew {
                    // An empty body would say that all are done, and a half line is whole where a body ends.
                    let end = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                    body.truncate(end);
                    if body.is_empty() {
                        must.fill(Must::Be(outcome::Outcome::Succeeded { message: String::new() }.word()));
                    }
                }
                (Called::Answered { status: 200, retry_after: None, body, cut: manner == Manner::Noise }, must)
            }
        }
    }

    fn play_call(&mut self, number: u32) -> Outcome<(Vec<Finished>, Vec<Must>, bool)> {
        let Some(work) = self.desk.together.works.get(&number) else { return Ok(Default::default()) };
        let Service::Url(url) = work.start.policy.service.clone() else { return Ok(Default::default()) };
        let (ids, piece) = (work.ids(), work.piece.clone());
        let given = (self.wants(work), ids.clone(), self.has_fatal(work));
        let (called, mut must) = self.call(given);
        let broke = matches!(called, Called::Broken);
        let read = read_call(&url, &ids, called);
        let Some(work) = self.desk.together.works.get_mut(&number) else { return Ok(Default::default()) };
        let ends: Vec<(usize, outcome::Outcome)> = match read {
            Some(ends) => ends,
            None => {
                let wanted = |at: &u16| !work.unwanted.contains(at);
                let halves = piece.split_at(piece.len() / 2);
                let halves = [halves.1, halves.0].map(|half| half.iter().copied().filter(wanted).collect::<Vec<_>>());
                if let Play::Calls(todo) = &mut work.play {
                    todo.extend(halves.into_iter().filter(|half| !half.is_empty()));
                }
                let gone = (0..piece.len()).filter(|at| work.unwanted.contains(&piece[*at]));
                let gone: Vec<_> = gone.map(|at| (at, outcome::Outcome::Cancelled)).collect();
                gone.iter().for_each(|(at, cancelled)| must[*at] = Must::Be(cancelled.word()));
                gone
            }
        };
        let told = ends.into_iter().map(|(at, outcome)| self.one(number, piece[at], outcome)).collect();
        Ok((told, must, broke))
    }

    /// The end of one job of a start.
    fn one(&self, number: u32, first: u16, outcome: outcome::Outcome) -> Finished {
        let (flight, started) = match self.desk.together.works.get(&number) {
            Some(work) => (work.start.flight, work.since),
            None => (Flight(0), self.now()),
        };
        let outcomes = vec![(1, outcome)];
        let (emitted, checkpoints, output) = (Vec::new(), Vec::new(), Output::default());
        Finished { flight, first, outcomes, emitted, checkpoints, started, finished: self.now(), output }
    }

    /// Tells the engine, each job once; then it goes on with those that are left.
    fn together_tell(&mut self, number: u32, told: Vec<Finished>) -> Outcome<()> {
        let now = self.now();
        for finished in told {
            let Some(work) = self.desk.together.works.get_mut(&number) else { return Ok(()) };
            let (begun, start) = (work.since, work.start.held.start());
            let mut position = finished.first;
            let mut reports = Vec::new();
            for (count, outcome) in &finished.outcomes {
                for _ in 0..*count {
                    if !std::mem::replace(&mut work.open[usize::from(position)], false) {
                        return Err(format!("batches and calls: {} was told of twice", work.id(position)));
                    }
                    reports.push((work.id(position), outcome.clone()));
                    position += 1;
                }
            }
            for (id, outcome) in reports {
                self.tell(|| format!("end together {} {id} {}", finished.flight.0, outcome.word()));
                self.totals.together += 1;
                self.report(id, start, &outcome)?;
            }
            self.send(Event::Finished(Finished { started: begun, finished: now, ..finished }));
        }
        let Some(work) = self.desk.together.works.get_mut(&number) else { return Ok(()) };
        let is_over = !work.open.contains(&true);
        let agrees = match &work.play {
            Play::Processes(processes) => processes.is_over() == is_over,
            Play::Calls(todo) => todo.is_empty() || !is_over,
        };
        if !agrees {
            return Err(format!("batches and calls: start {} does not know whether it is over", work.start.flight.0));
        }
        if is_over {
            self.desk.together.works.remove(&number);
        } else if work.worker.is_none() {
            work.piece.clear();
            self.together_plan(number, 200_000);
        }
        Ok(())
    }

    /// The order to end a start, or one job of it.
    pub(crate) fn together_stop(&mut self, number: u32, why: Stop, position: Option<u16>) -> Outcome<()> {
        let Some(work) = self.desk.together.works.get_mut(&number) else { return Ok(()) };
        let (flight, runs) = (work.start.flight, work.worker.is_some());
        if why == Stop::Cancel {
            let piece = work.piece.iter().filter(|_| runs);
            work.unwanted.extend(piece.filter(|at| position.is_none_or(|one| one == **at)));
        }
        let Play::Processes(processes) = &mut work.play else { return self.stop_call(number, why, position) };
        match (why, runs) {
            (Stop::Cancel, _) => {
                let (told, ends) = processes.cancel(flight, position);
                if ends && runs {
                    work.ends_by = Some(why);
                    self.together_plan(number, 5_000_000);
                }
                self.together_tell(number, told)
            }
            (Stop::Withdraw | Stop::Interrupt | Stop::Kill, false) => {
                let told = processes.end_all(why);
                self.together_tell(number, told)
            }
            (Stop::Withdraw, true) => {
                processes.stop();
                work.withdrawn = true;
                Ok(())
            }
            (Stop::Interrupt | Stop::Kill, true) => {
                processes.stop();
                work.withdrawn = true;
                work.ends_by.get_or_insert(why);
                self.together_plan(number, 5_000_000);
                Ok(())
            }
        }
    }

    /// Calls are cut off at once, but where a call has jobs that nobody cancelled.
    fn stop_call(&mut self, number: u32, why: Stop, position: Option<u16>) -> Outcome<()> {
        let Some(work) = self.desk.together.works.get_mut(&number) else { return Ok(()) };
        let outcome = match why {
            Stop::Cancel => outcome::Outcome::Cancelled,
            Stop::Withdraw | Stop::Interrupt | Stop::Kill => outcome::Outcome::Interrupted,
        };
        let alone = work.piece.iter().all(|at| work.unwanted.contains(at));
        let is_cut =
            work.worker.is_some() && (matches!(why, Stop::Interrupt | Stop::Kill) || why == Stop::Cancel && alone);
        let is_meant = |at: &u16| position.is_none_or(|one| one == *at);
        let mut ended: Vec<u16> = Vec::new();
        if let Play::Calls(todo) = &mut work.play {
            ended.extend(todo.iter_mut().flat_map(|jobs| jobs.extract_if(.., |at| is_meant(at))));
            todo.retain(|jobs| !jobs.is_empty());
        }
        let worker = if is_cut { work.worker.take() } else { None };
        if worker.is_some() {
            ended.append(&mut work.piece);
            work.plan += 1;
        }
        if let Some(worker) = worker {
            for event in [WorkerEvent::Stop, WorkerEvent::Exit] {
                self.happens(worker, event)?;
            }
            self.forget_worker(worker);
        }
        let told = ended.into_iter().map(|at| self.one(number, at, outcome.clone())).collect();
        self.together_tell(number, told)
    }
}

/// The jobs whose objects a process reads, by position.
fn given(start: &Start, input: &[u8]) -> Outcome<Vec<u16>> {
    let text = String::from_utf8_lossy(input);
    let mut piece = Vec::new();
    for line in text.lines() {
        let id = line.strip_prefix("{\"id\":\"").and_then(|rest| rest.split('"').next());
        let id: Option<JobId> = id.and_then(|id| id.parse().ok());
        let position = id.and_then(|id| start.held.ids().position(|of| of == id));
        let position = position.ok_or_else(|| format!("batches and calls: a process reads {line:?}"))?;
        piece.push(u16::try_from(position).unwrap_or(u16::MAX));
    }
    Ok(piece)
}

/// Draws a table of a batch.
pub(crate) fn batch(random: &mut Random) -> Service {
    let mut batch = Batch::new(Command { argv: vec![b"work".to_vec()], ..Command::default() });
    (batch.size, batch.framing) = (random.between(1, 12) as u32, Framing::Json);
    Service::Batch(batch)
}

/// Draws a table of calls with many jobs.
pub(crate) fn url(random: &mut Random) -> Service {
    let host = Host { tls: false, name: "127.0.0.1".into(), port: 80, inside: true };
    let mut url = Url::new(host, "/jobs");
    url.size = random.between(2, 12) as u32;
    Service::Url(url)
}
