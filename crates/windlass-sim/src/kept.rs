//! Kept workers on virtual time, by core's own machine: they come up or do not, answer in order or not, die, hang, stop
//! themselves, say nothing, answer too much, and are ended, recycled and made anew within their budget.
//!
//! It stands for `runner/worker`: jobs wait here until a worker is free, and each is told of exactly once, in pieces of
//! its start. Whatever happens to a worker goes through the state machine, and what that forbids ends the world.

use crate::random::Random;
use crate::together::Together;
use crate::world::{Due, Outcome, World};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use windlass::engine::Event;
use windlass::runner::{Finished, Flight, Output, Start, Stop};
use windlass_core::job::JobId;
use windlass_core::outcome;
use windlass_core::policy::{Backoff, Framing, Policy, Service};
use windlass_core::supervisor::choice::{self, Load};
use windlass_core::supervisor::{
    Budget, Due as Overdue, Regeneration, Supervisor, Terms, WorkerEvent, WorkerNo, WorkerState,
};
use windlass_core::time::{Steady, Time};

const TERMS: Terms = Terms { start: Duration::from_secs(5), stop: Duration::from_secs(10) };
const BUDGET: Budget = Budget {
    backoff: Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(20) },
    free: 0,
    fruitless: 3,
    deaths: 20,
    window: Duration::from_secs(60),
};
/// A job that hangs is ended after so many microseconds.
const TIME_LIMIT: u64 = 5_000_000;

/// One line in a worker's hands.
#[derive(Clone, Copy, Debug)]
struct Line {
    flight: u64,
    position: u16,
    id: JobId,
    begun: Time,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    ComesUp,
    /// By its place among the lines.
    Answers(usize),
    /// It answers a job that it was not given.
    Babbles,
    HangsAt(usize),
    DiesAt(usize),
    IsGone,
}

/// Why it is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Retired,
    TimedOut(u64, u16),
    Stopped(u64, Stop),
    Cancelled(u64, u16),
    Babbled,
}

#[derive(Debug)]
struct Member {
    pool: String,
    policy: Arc<Policy>,
    lines: VecDeque<Line>,
    next: Next,
    /// Changes with every plan: what was planned before does not happen.
    plan: u64,
    done: u64,
    ending: Option<Ending>,
}

#[derive(Debug)]
struct Pool {
    policy: Arc<Policy>,
    waiting: VecDeque<(u64, u16)>,
    regeneration: Regeneration,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    machine: Supervisor,
    made: u32,
    members: BTreeMap<u32, Member>,
    pools: BTreeMap<String, Pool>,
    /// Starts of which not every job has been told of, with those that have not.
    flights: BTreeMap<u64, (Start, Vec<bool>)>,
    /// Processes and calls with many jobs, which go by the same machine.
    pub(crate) together: Together,
}

impl Desk {
    /// Jobs that a worker has in hand.
    pub(crate) fn running(&self) -> impl Iterator<Item = JobId> + '_ {
        let kept = self.members.values().flat_map(|member| member.lines.iter().map(|line| line.id));
        kept.chain(self.together.running())
    }

    /// For a worker, or for what has plans as one has.
    pub(crate) fn new_number(&mut self) -> u32 {
        self.made += 1;
        self.made
    }

    pub(crate) fn has(&self, flight: Flight) -> bool {
        self.flights.contains_key(&flight.0)
    }

    fn is_parallel(policy: &Policy) -> (bool, u32) {
        match &policy.service {
            Service::Worker(worker) => (worker.framing == Framing::Json && worker.in_flight > 1, worker.in_flight),
            _ => (false, 1),
        }
    }

    /// What the choice needs to know of a worker that may get more.
    fn load(&self, number: u32, member: &Member) -> Option<Load> {
        let state = self.machine.state(WorkerNo(number))?;
        let takes = matches!(state, WorkerState::Waiting | WorkerState::Working) && member.ending.is_none();
        let (parallel, window) = Desk::is_parallel(&member.policy);
        let in_flight = member.lines.len() as u32;
        takes.then_some(Load { in_flight, window, parallel, usual: None, running: Duration::ZERO })
    }
}

impl World {
    fn steady(&self) -> Steady {
        Steady::default().after(Duration::from_micros(self.mono))
    }

    /// Lets something happen to a worker; what the table forbids ends the world.
    pub(crate) fn happens(&mut self, number: u32, event: WorkerEvent) -> Outcome<WorkerState> {
        let now = self.steady();
        let state = self.desk.machine.apply(WorkerNo(number), event, now);
        let state = state.map_err(|forbidden| format!("worker states: {forbidden}"))?;
        self.tell(|| format!("  worker {number} {event}: {state}"));
        if let Some(deadline) = self.desk.machine.next_deadline() {
            let after = deadline.since(now).as_micros() as u64 + 1;
            self.at(after, Due::Deadline);
        }
        Ok(state)
    }

    pub(crate) fn enrol(&mut self, number: u32) {
        let now = self.steady();
        self.desk.machine.enrol(WorkerNo(number), TERMS, now);
    }

    pub(crate) fn forget_worker(&mut self, number: u32) {
        self.desk.machine.forget(WorkerNo(number));
    }

    pub(crate) fn kept_take(&mut self, start: Start) -> Outcome<()> {
        let (flight, name) = (start.flight.0, start.policy.pattern.clone());
        let positions = 0..start.count();
        let fresh = || Pool {
            policy: Arc::clone(&start.policy),
            waiting: VecDeque::new(),
            regeneration: Regeneration::new(BUDGET),
        };
        let pool = self.desk.pools.entry(name.clone()).or_insert_with(fresh);
        pool.policy = Arc::clone(&start.policy);
        pool.waiting.extend(positions.map(|position| (flight, position)));
        let open = vec![true; usize::from(start.count())];
        self.desk.flights.insert(flight, (start, open));
        self.assign(&name)
    }

    /// Gives what waits to who is free first, and makes more workers where that is not enough.
    fn assign(&mut self, name: &str) -> Outcome<()> {
        loop {
            let desk = &self.desk;
            let Some(pool) = desk.pools.get(name).filter(|pool| !pool.waiting.is_empty()) else { return Ok(()) };
            let of_pool = desk.members.iter().filter(|(_, member)| member.pool == name);
            let loads = of_pool.clone().filter_map(|(number, member)| Some((*number, desk.load(*number, member)?)));
            if let Some(number) = choice::free_first(loads) {
                self.give(name, number)?;
                continue;
            }
            let coming = of_pool.clone().filter(|(_, member)| member.next == Next::ComesUp).count();
            let (all, now) = (of_pool.count(), self.steady());
            if coming >= pool.waiting.len() || all >= pool.policy.slots as usize {
                return Ok(());
            }
            if !pool.regeneration.may_make(now) {
                let wait = pool.regeneration.not_before().map_or(0, |at| at.since(now).as_micros() as u64 + 1);
                self.at(wait, Due::Hire);
                return Ok(());
            }
            self.hire(name)?;
        }
    }

    fn hire(&mut self, name: &str) -> Outcome<()> {
        let number = self.desk.new_number();
        self.enrol(number);
        let Some(pool) = self.desk.pools.get(name) else { return Ok(()) };
        let member = Member {
            pool: name.to_owned(),
            policy: Arc::clone(&pool.policy),
            lines: VecDeque::new(),
            next: Next::ComesUp,
            plan: 0,
            done: 0,
            ending: None,
        };
        self.desk.members.insert(number, member);
        self.happens(number, WorkerEvent::Make)?;
        // Some never come up, and some end before they do.
        match self.random.below(40) {
            0 if !self.calm => {}
            1 | 2 if !self.calm => self.plan(number, Next::DiesAt(0), 2000),
            _ => self.plan(number, Next::ComesUp, 3000),
        }
        Ok(())
    }

    /// It does that next, within so long.
    fn plan(&mut self, number: u32, next: Next, within: u64) {
        let after = self.random.between(1, within);
        self.plan_at(number, next, after);
    }

    fn plan_at(&mut self, number: u32, next: Next, after: u64) {
        let Some(member) = self.desk.members.get_mut(&number) else { return };
        member.plan += 1;
        member.next = next;
        let plan = member.plan;
        self.at(after, Due::Kept(number, plan));
    }

    fn give(&mut self, name: &str, number: u32) -> Outcome<()> {
        let Some((flight, position)) = self.desk.pools.get_mut(name).and_then(|pool| pool.waiting.pop_front()) else {
            return Ok(());
        };
        let Some((start, _)) = self.desk.flights.get(&flight) else { return Ok(()) };
        let (start, begun) = (start.clone(), self.now());
        let (_, held, index) = start.job(position);
        let id = held.jobs.id(index);
        if self.desk.machine.state(WorkerNo(number)) == Some(WorkerState::Waiting) {
            self.happens(number, WorkerEvent::Take)?;
        }
        let Some(member) = self.desk.members.get_mut(&number) else { return Ok(()) };
        member.lines.push_back(Line { flight, position, id, begun });
        let first = member.lines.len() == 1;
        if self.job_begins(&start, position)? {
            return Ok(());
        }
        if first {
            self.goes_on(number)?;
        }
        Ok(())
    }

    /// What a worker does with the lines that it has: as the script of one of its jobs says.
    fn goes_on(&mut self, number: u32) -> Outcome<()> {
        let Some(member) = self.desk.members.get(&number).filter(|member| !member.lines.is_empty()) else {
            return Ok(());
        };
        let (parallel, _) = Desk::is_parallel(&member.policy);
        let count = member.lines.len() as u64;
        let at = if parallel { self.random.below(count) as usize } else { 0 };
        if member.lines.get(at).is_some_and(|line| self.people.killer == Some(line.id)) {
            // It does nothing any more before its server is dead.
            return Ok(());
        }
        if !self.calm && self.random.chance(10) {
            self.plan(number, Next::Babbles, 5000);
            return Ok(());
        }
        let script = self.line_script(number, at);
        let Some(script) = script else { return Ok(()) };
        match (script.length, script.outcome) {
            (None, _) => self.plan_at(number, Next::HangsAt(at), TIME_LIMIT),
            (Some(length), outcome::Outcome::Lost) if self.may_accuse(number, parallel) => {
                self.plan_at(number, Next::DiesAt(at), length.max(1));
            }
            (Some(length), _) => self.plan_at(number, Next::Answers(at), length.max(1)),
        }
        Ok(())
    }

    fn line_script(&self, number: u32, at: usize) -> Option<crate::workload::Script> {
        let line = self.desk.members.get(&number)?.lines.get(at)?;
        let (start, _) = self.desk.flights.get(&line.flight)?;
        Some(self.script_of(start, line.id))
    }

    /// Nobody in its hands would be convicted for its death.
    fn may_accuse(&self, number: u32, parallel: bool) -> bool {
        let Some(member) = self.desk.members.get(&number) else { return false };
        let at = if parallel { member.lines.len() } else { 1 };
        let healthy = |line: &Line| {
            let (start, _) = &self.desk.flights[&line.flight];
            start.held.record.suspicions < 2
        };
        member.lines.iter().take(at).all(healthy)
    }

    pub(crate) fn kept_due(&mut self, number: u32, plan: u64) -> Outcome<()> {
        let Some(member) = self.desk.members.get_mut(&number) else { return self.together_due(number, plan) };
        if member.plan != plan {
            return Ok(());
        }
        let (next, pool) = (std::mem::replace(&mut member.next, Next::Nothing), member.pool.clone());
        match next {
            Next::Nothing => {}
            Next::ComesUp => {
                self.happens(number, WorkerEvent::Up)?;
            }
            Next::Answers(at) => self.answers(number, at)?,
            Next::Babbles => self.ends(number, Ending::Babbled)?,
            Next::HangsAt(at) => {
                let line = self.desk.members.get(&number).and_then(|member| member.lines.get(at).copied());
                if let Some(line) = line {
                    self.ends(number, Ending::TimedOut(line.flight, line.position))?;
                }
            }
            Next::DiesAt(at) => self.dies(number, at)?,
            Next::IsGone => self.is_gone(number)?,
        }
        self.assign(&pool)
    }

    fn answers(&mut self, number: u32, at: usize) -> Outcome<()> {
        let outcome = self.line_script(number, at).map(|script| script.outcome);
        let Some(member) = self.desk.members.get_mut(&number) else { return Ok(()) };
        let (Some(line), Some(outcome)) = (member.lines.remove(at), outcome) else { return Ok(()) };
        member.done += 1;
        let (empty, enough) = (member.lines.is_empty(), retires(&member.policy, member.done));
        let now = self.steady();
        if let Some(pool) = self.desk.members.get(&number).and_then(|member| self.desk.pools.get_mut(&member.pool)) {
            pool.regeneration.worked(now);
        }
        if self.random.chance(200) {
            self.happens(number, WorkerEvent::Emit)?;
            self.happens(number, if empty { WorkerEvent::Finish } else { WorkerEvent::Emitted })?;
        } else if empty {
            self.happens(number, WorkerEvent::Finish)?;
        }
        // One that dies of this job where it would convict somebody gives it back instead.
        let outcome = if outcome == outcome::Outcome::Lost { outcome::Outcome::Interrupted } else { outcome };
        self.kept_told(line, outcome)?;
        if enough && let Some(member) = self.desk.members.get_mut(&number) {
            member.ending = Some(Ending::Retired);
        }
        if enough && empty { self.ends(number, Ending::Retired) } else { self.goes_on(number) }
    }

    /// It is told to end, and takes its time; some take longer than they have.
    fn ends(&mut self, number: u32, ending: Ending) -> Outcome<()> {
        let Some(member) = self.desk.members.get_mut(&number) else { return Ok(()) };
        member.ending = Some(ending);
        if self.desk.machine.state(WorkerNo(number)) != Some(WorkerState::Stopping) {
            self.happens(number, WorkerEvent::Stop)?;
        }
        let within = if self.random.chance(50) { 40_000_000 } else { 100_000 };
        self.plan(number, Next::IsGone, within);
        Ok(())
    }

    /// Nobody had told it to: who it was at is suspected, what it had not begun goes back.
    fn dies(&mut self, number: u32, at: usize) -> Outcome<()> {
        self.happens(number, WorkerEvent::Die)?;
        let Some(member) = self.desk.members.remove(&number) else { return Ok(()) };
        self.desk.machine.forget(WorkerNo(number));
        let now = self.steady();
        if let Some(pool) = self.desk.pools.get_mut(&member.pool) {
            pool.regeneration.died(member.done > 0, now);
        }
        let (parallel, _) = Desk::is_parallel(&member.policy);
        for (place, line) in member.lines.into_iter().enumerate() {
            let lost = parallel || place == at;
            self.kept_told(line, if lost { outcome::Outcome::Lost } else { outcome::Outcome::Interrupted })?;
        }
        Ok(())
    }

    fn is_gone(&mut self, number: u32) -> Outcome<()> {
        self.happens(number, WorkerEvent::Exit)?;
        let Some(member) = self.desk.members.remove(&number) else { return Ok(()) };
        self.desk.machine.forget(WorkerNo(number));
        let now = self.steady();
        if member.ending == Some(Ending::Babbled)
            && let Some(pool) = self.desk.pools.get_mut(&member.pool)
        {
            pool.regeneration.died(member.done > 0, now);
        }
        for (place, line) in member.lines.into_iter().enumerate() {
            let outcome = match member.ending {
                Some(Ending::TimedOut(flight, position)) if (flight, position) == (line.flight, line.position) => {
                    outcome::Outcome::TimedOut { limit: Duration::from_micros(TIME_LIMIT) }
                }
                Some(Ending::Babbled) if place == 0 => outcome::Outcome::Failed { error: "babble".into() },
                Some(Ending::Stopped(flight, Stop::Cancel)) if flight == line.flight => outcome::Outcome::Cancelled,
                Some(Ending::Cancelled(flight, position)) if (flight, position) == (line.flight, line.position) => {
                    outcome::Outcome::Cancelled
                }
                Some(_) | None => outcome::Outcome::Interrupted,
            };
            self.kept_told(line, outcome)?;
        }
        Ok(())
    }

    /// Deadlines of states: who does not come up is ended, who does not end is killed.
    pub(crate) fn kept_deadlines(&mut self) -> Outcome<()> {
        let now = self.steady();
        for (WorkerNo(number), due) in self.desk.machine.take_due(now) {
            self.tell(|| format!("  worker {number} {}", due.word()));
            match due {
                Overdue::StartOverdue => self.ends(number, Ending::Retired)?,
                Overdue::StopOverdue => self.plan(number, Next::IsGone, 1000),
            }
        }
        Ok(())
    }

    pub(crate) fn kept_hire(&mut self) -> Outcome<()> {
        let names: Vec<String> = self.desk.pools.keys().cloned().collect();
        names.iter().try_for_each(|name| self.assign(name))
    }

    /// The order to end a start: what waits comes back, who is at it is ended.
    pub(crate) fn kept_stop(&mut self, flight: Flight, why: Stop) -> Outcome<()> {
        let outcome = match why {
            Stop::Cancel => outcome::Outcome::Cancelled,
            Stop::Withdraw | Stop::Interrupt | Stop::Kill => outcome::Outcome::Interrupted,
        };
        let Some((start, _)) = self.desk.flights.get(&flight.0) else { return Ok(()) };
        let (start, begun) = (start.clone(), self.now());
        let mut withdrawn = Vec::new();
        if let Some(pool) = self.desk.pools.get_mut(&start.policy.pattern) {
            withdrawn.extend(pool.waiting.iter().copied().filter(|(of, _)| *of == flight.0));
            pool.waiting.retain(|(of, _)| *of != flight.0);
        }
        for (of, position) in withdrawn {
            let (_, held, index) = start.job(position);
            let id = held.jobs.id(index);
            self.kept_told(Line { flight: of, position, id, begun }, outcome.clone())?;
        }
        if why == Stop::Withdraw {
            return Ok(());
        }
        let at_it = |(_, member): &(&u32, &Member)| member.lines.iter().any(|line| line.flight == flight.0);
        let members: Vec<u32> = self.desk.members.iter().filter(at_it).map(|(number, _)| *number).collect();
        members.into_iter().try_for_each(|number| self.ends(number, Ending::Stopped(flight.0, why)))
    }

    /// One job is cancelled and no other of its start: if it waits it comes back, else who is at it is ended.
    pub(crate) fn kept_cancel(&mut self, Flight(flight): Flight, position: u16) -> Outcome<()> {
        if let Some(number) = self.desk.together.number_of(Flight(flight)) {
            return self.together_stop(number, Stop::Cancel, Some(position));
        }
        let Some((start, _)) = self.desk.flights.get(&flight) else { return Ok(()) };
        let (start, begun) = (start.clone(), self.now());
        let waits = self.desk.pools.get_mut(&start.policy.pattern).and_then(|pool| {
            let at = pool.waiting.iter().position(|job| *job == (flight, position))?;
            pool.waiting.remove(at)
        });
        if waits.is_some() {
            let (_, held, index) = start.job(position);
            let id = held.jobs.id(index);
            return self.kept_told(Line { flight, position, id, begun }, outcome::Outcome::Cancelled);
        }
        let is_it = |line: &Line| (line.flight, line.position) == (flight, position);
        let at_it = self.desk.members.iter().find(|(_, member)| member.lines.iter().any(is_it));
        match at_it.map(|(number, _)| *number) {
            Some(number) => self.ends(number, Ending::Cancelled(flight, position)),
            None => Ok(()),
        }
    }

    /// One job's end: told exactly once.
    fn kept_told(&mut self, line: Line, outcome: outcome::Outcome) -> Outcome<()> {
        let now = self.now();
        let Some((of, open)) = self.desk.flights.get_mut(&line.flight) else {
            return Err(format!("worker states: {} was told of after its start was over", line.id));
        };
        if !std::mem::replace(&mut open[usize::from(line.position)], false) {
            return Err(format!("worker states: {} was told of twice", line.id));
        }
        let start = of.held.start();
        if !open.contains(&true) {
            self.desk.flights.remove(&line.flight);
        }
        self.tell(|| format!("end {} {} {}", line.flight, line.id, outcome.word()));
        self.totals.kept += 1;
        self.report(line.id, start, &outcome)?;
        self.send(Event::Finished(Finished {
            flight: Flight(line.flight),
            first: line.position,
            outcomes: vec![(1, outcome)],
            emitted: Vec::new(),
            checkpoints: Vec::new(),
            started: line.begun,
            finished: now,
            output: Output::default(),
        }));
        Ok(())
    }
}

fn retires(policy: &Policy, done: u64) -> bool {
    matches!(&policy.service, Service::Worker(worker) if worker.jobs > 0 && done >= worker.jobs)
}

/// Draws how a table's workers are kept.
pub(crate) fn service(random: &mut Random) -> Service {
    let mut worker = windlass_core::policy::Worker::new(windlass_core::policy::Command::default());
    worker.jobs = if random.chance(500) { 0 } else { random.between(1, 20) };
    if random.chance(500) {
        (worker.framing, worker.in_flight) = (Framing::Json, random.between(1, 6) as u32);
    }
    Service::Worker(worker)
}
