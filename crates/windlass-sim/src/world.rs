//! The world around one engine: virtual time, what is due, and the driver's duties, one step after another.
//!
//! It does what `engine/drive.rs` does, with a clock of its own: events become turns, effects are performed after
//! the commit. It owns everything outside the engine but the faults (`faults.rs`), the hands (`hands.rs`) and the
//! people (`people.rs`). Whatever happens is shown to the checkers.

use crate::Cast;
use crate::agenda;
use crate::checkers::{self, Checker, Seen};
use crate::disk::FakeDisk;
use crate::feeders;
use crate::flow;
use crate::hands::Hands;
use crate::inbox::Inbox;
use crate::kept::Desk;
use crate::ledger::{Known, Ledger};
use crate::people::People;
use crate::producers::Producers;
use crate::random::{self, Random};
use crate::remotes::Remotes;
use crate::rules::Rules;
use crate::story;
use crate::totals::Totals;
use crate::watched::Watched;
use crate::workload;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use windlass::engine::{Effects, Engine, EngineOptions, Event, IdSource, Stopping};
use windlass::store::memory::Memory;
use windlass::store::{DELETED, Durability, EXPIRED, End, Evidence, Store, StoreError, StoreView};
use windlass_core::job::{JobId, Origin, RunId};
use windlass_core::life_cycle::State;
use windlass_core::time::{Steady, Time};

/// The most turns in a row that only the engine asks for and that do nothing.
const IDLE_MOST: u32 = 8;

/// What will happen at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    Turn,
    Wake(u64),
    People,
    Fault,
    Begin(u64),
    End(u64, u64),
    Report(u64),
    Archive,
    Look,
    /// A slow writer finishes its record.
    Writer,
    /// The next step of a staged operation, by its name.
    Bulk(u64),
    Restart,
    Kill,
    /// What a kept worker does next, by its number and the number of its plan.
    Kept(u32, u64),
    /// A deadline of some worker's state may have passed.
    Deadline,
    /// A worker may be made again.
    Hire,
    /// A worker elsewhere has something to say, by the number of its token.
    Remote(u64),
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) random: Random,
    /// Microseconds since the world began; the wall clock is this and an offset that may jump.
    pub(crate) mono: u64,
    pub(crate) offset: i64,
    due: BTreeMap<(u64, u64), (u64, Due)>,
    last_due: u64,
    wake: u64,
    pub(crate) engine: Option<Engine<Watched>>,
    /// The store while no engine has it.
    pub(crate) down: Option<Watched>,
    /// Counts the engines; what was due for a dead one does not happen.
    pub(crate) life: u64,
    pub(crate) same_boot: bool,
    pub(crate) options: EngineOptions,
    pub(crate) rules: Rules,
    /// Somebody asked for quiet.
    quiet: bool,
    pub(crate) ledger: Ledger,
    checkers: Vec<Box<dyn Checker>>,
    pub(crate) disk: FakeDisk,
    pub(crate) producers: Producers,
    pub(crate) inbox: Option<Inbox>,
    pub(crate) look_due: bool,
    pub(crate) hands: Hands,
    /// Crews of all kinds: kept workers, workers elsewhere, needs of memory, rates.
    pub(crate) crews: bool,
    /// Schedules, chains, terms of runs, batches that die, a destination that asks for patience.
    pub(crate) flows: bool,
    pub(crate) desk: Desk,
    pub(crate) remotes: Remotes,
    pub(crate) people: People,
    pub(crate) mail: Vec<Event>,
    turn_due: bool,
    /// Outcomes on their way to the archive, by turn.
    pub(crate) archive: VecDeque<(u64, Vec<(JobId, u32)>)>,
    /// The monotonic time of the last turn that found no space.
    full_at: Option<u64>,
    /// Turns in a row that only the engine asked for and that did nothing; one that was for mail may find none left.
    idle: u32,
    pub(crate) calm: bool,
    pub(crate) totals: Totals,
    verbose: bool,
    /// The rig END asks after every step.
    pub(crate) over: Option<crate::over::Over>,
}

pub(crate) type Outcome<T> = Result<T, String>;

impl World {
    pub(crate) fn new(seed: u64, verbose: bool, cast: Cast) -> Outcome<World> {
        let mut random = Random::new(seed);
        let steers = cast != Cast::Plain;
        let crews = matches!(cast, Cast::Crews | Cast::All) && seed.is_multiple_of(2);
        let flows = cast == Cast::All && seed % 4 < 2;
        let (policies, slots) = workload::policies(&mut random, crews);
        let policies = flow::with_handlers(seed, policies)?;
        let durability = if random.chance(500) { Durability::Full } else { Durability::Os };
        let options = EngineOptions {
            policies,
            slots,
            memory: crews.then_some(workload::MEMORY),
            schedules: if flows { agenda::schedules(seed)? } else { Vec::new() },
            router: flow::router(seed)?,
            durability,
            serve_open_runs: random.chance(700),
            serves_runs: true,
            drain: Duration::from_secs(random.between(1, 20)),
            seed: random.next(),
            ids: Arc::new(IdSource::new(Origin::from_random(0xe317 ^ seed))),
            files: Default::default(),
        };
        let disk = FakeDisk::new(&mut random);
        let people = People::new(&mut random, steers);
        let mut world = World {
            seed,
            producers: Producers::new(&disk),
            disk,
            inbox: None,
            look_due: true,
            people,
            mono: 0,
            offset: 1_800_000_000_000_000,
            due: BTreeMap::new(),
            last_due: 0,
            wake: 0,
            engine: None,
            down: Some(Watched::new(Memory::new(random.next()))),
            life: 0,
            same_boot: false,
            options,
            rules: Rules::default(),
            quiet: false,
            ledger: Ledger::default(),
            checkers: checkers::all(),
            hands: Hands::default(),
            crews,
            flows,
            desk: Desk::default(),
            remotes: Remotes::default(),
            mail: Vec::new(),
            turn_due: false,
            archive: VecDeque::new(),
            full_at: None,
            idle: 0,
            calm: false,
            totals: Totals::default(),
            verbose,
            over: None,
            random,
        };
        world.show(&Seen::Budget(world.options.memory))?;
        world.show(&Seen::Agenda(&agenda::plans(&world.options.schedules)))?;
        world.show_rules()?;
        world.at(0, Due::Restart);
        world.at(1000, Due::People);
        world.at(5000, Due::Fault);
        world.at(2000, Due::Look);
        Ok(world)
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.offset + self.mono as i64)
    }

    /// Lets something happen after so many microseconds.
    pub(crate) fn at(&mut self, after: u64, due: Due) {
        self.last_due += 1;
        self.due.insert((self.mono + after, self.last_due), (self.life, due));
    }

    /// One line of the story, and its share of the hash by which two tellings are compared.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        let line = line();
        self.totals.trace = (self.totals.trace ^ random::hash(line.as_bytes())).wrapping_mul(0x0100_0000_01b3);
        if self.verbose {
            println!("{:>14.6} {line}", self.mono as f64 / 1e6);
        }
    }

    pub(crate) fn show(&mut self, seen: &Seen<'_>) -> Outcome<()> {
        for checker in &mut self.checkers {
            self.totals.checks += 1;
            checker.see(seen, &self.ledger).map_err(|what| format!("{}: {what}", checker.name()))?;
        }
        Ok(())
    }

    pub(crate) fn show_rules(&mut self) -> Outcome<()> {
        let (policies, slots) = (&self.options.policies, self.options.slots);
        let rules = Rules::new(policies, slots, &self.ledger.services, &self.ledger.overrides);
        self.show(&Seen::Rules(&rules))?;
        self.rules = rules;
        Ok(())
    }

    /// Runs the seed's whole story: trouble first, then calm until everything that can end has ended.
    pub(crate) fn run(&mut self) -> Outcome<Totals> {
        let told = self.live();
        if told.is_err() && self.verbose {
            println!("{}", self.disk.dump());
        }
        told
    }

    fn live(&mut self) -> Outcome<Totals> {
        while self.people.actions > 0 {
            self.step()?;
        }
        self.tell(|| "calm".into());
        self.calm = true;
        self.disk.works_again();
        self.producers.end_half(false);
        self.producers.close_foreign();
        self.people_settle()?;
        let limit = self.mono + 24 * 3_600_000_000;
        while self.mono < limit && !self.due.is_empty() {
            self.step()?;
        }
        self.check_end()?;
        self.totals.jobs = self.ledger.jobs.len() as u64;
        Ok(self.totals)
    }

    fn check_end(&mut self) -> Outcome<()> {
        let Some(engine) = &self.engine else { return Err("liveness: the engine did not come back".into()) };
        if engine.stalemates() > 0 {
            return Err(format!("liveness: {} stalemates were cured, and there was none", engine.stalemates()));
        }
        for (id, job) in &self.ledger.jobs {
            let waits = matches!(job.state, State::Suspended) || !self.is_served(job) && job.state != State::Running;
            let waits = waits || self.ledger.waits(*id);
            if !job.state.is_end() && !waits {
                return Err(format!("liveness: {id} of queue {} is still {}", job.queue, job.state));
            }
        }
        self.check_lines()?;
        self.operations_listed(&[])?;
        self.check_operations()?;
        // A record that is on the disk was accepted, whoever wrote it and however often the engine died since.
        if let Some(id) = self.producers.ids_written().iter().find(|id| !self.ledger.jobs.contains_key(id)) {
            return Err(format!("nothing accepted is lost: {id} stands in the inbox and is no job"));
        }
        if let Some(ask) = self.people.unanswered(&self.ledger, self.is_quiet()) {
            return Err(format!("liveness: {ask} was never answered"));
        }
        for checker in &mut self.checkers {
            checker.end(&self.ledger).map_err(|what| format!("{}: {what}", checker.name()))?;
        }
        Ok(())
    }

    fn is_served(&self, job: &Known) -> bool {
        let served = match World::is_of_a_run(&job.queue) {
            true => self.is_run_served(&job.queue),
            false => self.rules.crew(&job.queue).is_some() || flow::is_topic(self.seed, &job.queue),
        };
        served && !self.rules.is_closed(&job.queue)
    }

    /// A run's own queue is served while a run of its name has not ended, by whom it is followed or else by the rules.
    fn is_run_served(&self, queue: &str) -> bool {
        let number = queue.strip_prefix(feeders::QUEUE).and_then(|number| number.parse::<usize>().ok());
        let Some(feeder) = number.and_then(|number| self.people.feeders.get(number)) else { return false };
        let open = |id: &RunId| self.ledger.runs.get(id).is_some_and(|run| !run.ended);
        let followed = feeder.followed && feeder.run().is_some_and(|run| open(&run));
        let origin = feeder.run().or(feeder.last_run()).map(|run| run.origin);
        let any = self.ledger.runs.iter().any(|(id, run)| Some(id.origin) == origin && !run.ended);
        followed || self.options.serve_open_runs && any
    }

    /// The engine may still hold what a dropped turn gave back.
    pub(crate) fn was_full(&self) -> bool {
        self.full_at.is_some_and(|at| self.mono < at + 3_000_000)
    }

    /// What `drained` should mean: nothing that can run waits or runs.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ledger.jobs.values().all(|job| match job.state {
            State::Running => false,
            State::Scheduled | State::Ready | State::Retrying => !self.is_served(job),
            State::Suspended | State::Succeeded | State::Failed | State::Cancelled => true,
        })
    }

    pub(crate) fn step(&mut self) -> Outcome<()> {
        let Some(((when, _), (life, due))) = self.due.pop_first() else { return Err("nothing is due".into()) };
        self.mono = self.mono.max(when);
        let belongs = life == self.life;
        self.happen(due, belongs)?;
        self.ask_if_over()
    }

    fn happen(&mut self, due: Due, belongs: bool) -> Outcome<()> {
        match due {
            Due::People => self.people_act(),
            Due::Fault if !self.calm => self.fault(),
            Due::Restart => self.restart(),
            Due::Turn if belongs => self.turn(false),
            Due::Wake(number) if belongs && number == self.wake => self.turn(true),
            Due::Begin(flight) if belongs => self.begin(flight),
            Due::End(flight, plan) if belongs => self.end(flight, plan),
            Due::Report(flight) if belongs => self.report_again(flight),
            Due::Archive if belongs => self.archive_some(),
            Due::Look => self.look(),
            Due::Writer => self.finish_half(),
            Due::Bulk(name) if belongs => self.go_on_with(name),
            Due::Kill if belongs => self.die(false),
            Due::Kept(number, plan) if belongs => self.kept_due(number, plan),
            Due::Deadline if belongs => self.kept_deadlines(),
            Due::Hire if belongs => self.kept_hire(),
            Due::Remote(number) => self.remote_due(number),
            Due::Fault
            | Due::Turn
            | Due::Wake(_)
            | Due::Begin(_)
            | Due::End(..)
            | Due::Report(_)
            | Due::Archive
            | Due::Bulk(_)
            | Due::Kept(..)
            | Due::Deadline
            | Due::Hire
            | Due::Kill => Ok(()),
        }
    }

    /// Hands an event to the engine; it turns soon, perhaps with more.
    pub(crate) fn send(&mut self, event: Event) {
        if self.engine.is_none() {
            return;
        }
        self.mail.push(event);
        if !std::mem::replace(&mut self.turn_due, true) {
            let after = self.random.below(600);
            self.at(after, Due::Turn);
        }
    }

    fn turn(&mut self, woken: bool) -> Outcome<()> {
        self.turn_due = false;
        let now = self.now();
        self.fail_some_commit();
        let Some(mut engine) = self.engine.take() else { return Ok(()) };
        let behind = self.archive.len() >= 12;
        engine.archive_keeps_up(!behind);
        engine.tell_steady(Steady::default().after(Duration::from_micros(self.mono)));
        let mail = std::mem::take(&mut self.mail);
        let reloads = mail.iter().any(|event| matches!(event, Event::Reload { .. }));
        let quiet_before = self.is_quiet();
        let names: Vec<&'static str> = mail.iter().map(story::name).collect();
        self.hear_of_quiet(&mail)?;
        self.tell(|| format!("turn {}", names.join(" ")));
        let asked = !mail.is_empty();
        let turned = engine.turn(now, mail);
        self.idle = if asked || !engine.store().committed.is_empty() { 0 } else { self.idle + u32::from(woken) };
        if self.idle > IDLE_MOST {
            return Err(format!("waiting costs no CPU: {} turns in a row did nothing", self.idle));
        }
        // The engine tells of it once; while it holds, a command may find no space again, and the wait begins anew.
        let full = std::mem::take(&mut engine.store().was_full);
        if reloads && full {
            self.people.drop_rules();
        } else if reloads {
            self.people.take_rules(&mut self.options);
            self.show_rules()?;
        }
        if full {
            self.tell(|| "no space".into());
            self.full_at = Some(self.mono);
        }
        let recently_full = self.full_at.is_some_and(|at| self.mono < at + 1_000_000);
        let holding = behind || recently_full || self.quiet || engine.stopping() != Stopping::No;
        self.show(&Seen::Holding(holding))?;
        self.engine = Some(engine);
        self.learn()?;
        match turned {
            Ok(effects) => self.after_turn(effects, quiet_before),
            Err(StoreError::Io(_)) => self.die(false),
            Err(other) => Err(format!("the engine ended: {other}")),
        }
    }

    /// Quiet lasts until somebody asks for work, whatever becomes of the turn.
    fn hear_of_quiet(&mut self, mail: &[Event]) -> Outcome<()> {
        for event in mail {
            match event {
                Event::Quiet => self.quiet = true,
                Event::Nudge => self.quiet = false,
                _ => {}
            }
        }
        self.show(&Seen::Quiet(self.quiet))
    }

    /// Takes what was committed into the ledger and shows it around.
    fn learn(&mut self) -> Outcome<()> {
        let now = self.now();
        let Some(engine) = &mut self.engine else { return Ok(()) };
        for committed in std::mem::take(&mut engine.store().committed) {
            let Some(engine) = &mut self.engine else { return Ok(()) };
            let mut turned = self.ledger.learn(&committed, &engine.store().memory, now)?;
            turned.at = self.mono;
            self.show_rules()?;
            for (id, data) in &turned.emitted {
                self.show(&Seen::Offered { id: *id, data: *data, not_before: None })?;
            }
            for (id, before, after) in &turned.moved {
                let from = before.as_ref().map_or("new", |job| job.state.word());
                self.tell(|| format!("  {id} {from} -> {} {:?}", after.state, after.record));
            }
            self.totals.fired += turned.fired.len() as u64;
            self.show(&Seen::Turned(&turned))?;
            self.ledger.note_ended(&turned.ended);
            self.note_followed(&turned);
        }
        Ok(())
    }

    fn after_turn(&mut self, effects: Effects, quiet_before: bool) -> Outcome<()> {
        if self.dies_before_effects() {
            self.tell(|| "died before the effects".into());
            return self.die(false);
        }
        self.perform(effects, quiet_before)?;
        let Some(engine) = &mut self.engine else { return Ok(()) };
        if engine.is_over() {
            self.tell(|| "over".into());
            return self.die(false);
        }
        self.set_wake()
    }

    fn set_wake(&mut self) -> Outcome<()> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let wake = engine.next_wake().map_err(|error| error.to_string())?;
        self.wake += 1;
        if let Some(wake) = wake {
            let after = wake.since(self.now()).as_micros() as u64;
            // A driver that is told "at once" turns in its next round, with what has arrived meanwhile.
            self.at(after.max(1), Due::Wake(self.wake));
        }
        Ok(())
    }

    fn perform(&mut self, effects: Effects, quiet_before: bool) -> Outcome<()> {
        let (archives, ends) = (effects.has_ends(), starts(effects.ends()));
        effects.answers.give();
        self.people_hear(quiet_before)?;
        for start in effects.starts {
            self.take_off(start)?;
        }
        let mut stops = effects.stops;
        stops.sort_by_key(|(flight, _)| *flight);
        for (flight, why) in stops {
            self.stop(flight, why)?;
        }
        effects.cancels.into_iter().try_for_each(|(flight, position)| self.kept_cancel(flight, position))?;
        self.remotes_ask();
        if archives {
            self.archive.push_back((effects.turn, ends));
            let after = self.random.between(100, 50_000);
            self.at(after, Due::Archive);
        }
        if let Some(inbox) = &mut self.inbox {
            inbox.committed += u64::from(effects.ingested);
            inbox.wait_for_look(effects.read_inbox);
            self.look_soon();
        }
        Ok(())
    }

    /// The archive syncs what it has, says so, or dies with the engine before it could say so.
    fn archive_some(&mut self) -> Outcome<()> {
        let mut last = None;
        for (turn, starts) in std::mem::take(&mut self.archive) {
            self.show(&Seen::Archived { turn, starts: &starts })?;
            last = Some(turn);
        }
        if let Some(turn) = last {
            self.send(Event::Archived { turn });
        }
        Ok(())
    }

    /// A new engine takes over what the last one left.
    fn restart(&mut self) -> Outcome<()> {
        let Some(store) = self.down.take() else { return Ok(()) };
        let now = self.now();
        let (same_boot, hands) = (self.same_boot, &self.hands);
        let begun = |id: JobId, start: u32| !same_boot || hands.begun.contains(&(id, start));
        let evidence = Evidence { begun: &begun, elsewhere: &|_, _| false, same_boot, convicted: Evidence::UNTOLD };
        let options = EngineOptions { seed: self.random.next(), ..self.options.clone() };
        let (mut engine, recovered) = Engine::new(store, options, evidence, now).map_err(|e| e.to_string())?;
        self.tell(|| format!("restart {recovered:?}"));
        let resumed = engine.take_resumed();
        let unarchived = engine.store().unarchived().map_err(|error| error.to_string())?;
        let cursors = engine.store().memory.cursors().map_err(|error| error.to_string())?;
        let overrides = engine.store().overrides().map_err(|error| error.to_string())?;
        self.engine = Some(engine);
        self.same_boot = true;
        self.idle = 0;
        self.learn()?;
        self.show(&Seen::Overrides(&overrides))?;
        self.remotes_find_their_server(resumed)?;
        self.inbox = Some(Inbox::new(&self.disk, cursors));
        self.look_soon();
        for left in unarchived {
            self.archive.push_back((left.turn, starts(left.settlements.iter().map(End::of))));
        }
        if !self.archive.is_empty() {
            self.at(1000, Due::Archive);
        }
        self.set_wake()
    }

    /// The engine is gone with everything that it had in memory; processes die with it.
    pub(crate) fn die(&mut self, power_cut: bool) -> Outcome<()> {
        let Some(mut engine) = self.engine.take() else { return Ok(()) };
        let mut store = engine.store().clone();
        drop(engine);
        let mut undone = BTreeSet::new();
        if power_cut {
            self.totals.cuts += 1;
            let kept = self.random.between(0, self.ledger.at_risk() as u64) as usize;
            store.memory.power_cut(kept);
            undone = self.ledger.power_cut(kept);
            self.same_boot = false;
            self.hands.begun.clear();
            self.disk.power_cut();
            self.producers.power_cut();
        } else {
            self.totals.crashes += 1;
            store.memory.crash();
        }
        self.ledger.audit(&store.memory)?;
        self.check_lines()?;
        self.tell(|| format!("died, power cut {power_cut}, {} jobs undone", undone.len()));
        self.show(&Seen::Died { power_cut, undone: &undone, at: self.mono })?;
        if self.random.chance(500) {
            // What was handed over was written, but nobody heard of it.
            for (turn, starts) in std::mem::take(&mut self.archive) {
                self.show(&Seen::Archived { turn, starts: &starts })?;
            }
        }
        self.down = Some(store);
        self.life += 1;
        self.forget_life();
        let after = self.random.between(1000, 2_000_000);
        self.at(after, Due::Restart);
        Ok(())
    }

    fn forget_life(&mut self) {
        self.archive.clear();
        self.mail.clear();
        self.turn_due = false;
        self.inbox = None;
        self.full_at = None;
        self.quiet = false;
        self.hands.flights.clear();
        self.desk = Desk::default();
        self.remotes_lose_their_server();
        self.people.forget_asks();
    }
}

/// The starts that these settle; the last line of a job that was deleted or too late settles none.
fn starts<'a>(ends: impl Iterator<Item = End<'a>>) -> Vec<(JobId, u32)> {
    let settled = ends.filter(|end| ![DELETED, EXPIRED].contains(&end.outcome));
    settled.flat_map(|end| end.held.ids().map(move |id| (id, end.held.start()))).collect()
}
