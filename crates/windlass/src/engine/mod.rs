//! The wheel: one turn is one transaction; nothing is polled, and waiting costs no CPU.
//!
//! The engine owns what is in flight, who waits for what, and the order of a turn's steps (`turn.rs`). It holds no
//! policy: core decides. It does no I/O but through its store: what a turn leads to comes back as `Effects`, which
//! `drive.rs` performs after the commit, and the simulator performs on virtual time.

mod arrivals;
mod aside;
pub mod ask;
mod checkpoint;
mod claim;
pub mod condition;
mod contention;
mod destinations;
mod drained;
pub mod drive;
mod dropped;
pub mod dump;
pub mod effects;
mod emit;
pub mod event;
mod failure;
pub mod flights;
pub mod handle;
pub mod linger;
mod lonely;
mod look;
mod lots;
pub mod merge;
mod obey;
mod operate;
pub mod operations;
mod route;
pub mod runs;
mod schedules;
mod settle;
mod several;
pub mod spec;
pub mod stalemate;
mod steer;
mod stock;
mod sweep;
mod tell;
mod terms;
pub mod turn;
pub mod turn_times;
mod unique;
pub mod waiters;

use crate::runner::Start;
use crate::schedule::Schedule;
use crate::store::{Durability, Evidence, JobInfo, Occasion, Recovered, Store, StoreError};
use ask::Leases;
use event::NewRules;
use flights::Flights;
use lots::{Lots, Travelling};
use operations::Operations;
use runs::Runs;
use schedules::Schedules;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use waiters::Waiters;
use windlass_core::contention::Contention;
use windlass_core::destination::Destinations;
use windlass_core::failure::Handlers;
use windlass_core::job::{QueueName, QueueNo};
use windlass_core::life_cycle::State;
use windlass_core::policy::{HandlerFiles, Policy};
use windlass_core::router::Router;
use windlass_core::scheduler::{CrewNo, Pace, Scheduler};
use windlass_core::suspicion;
use windlass_core::time::{Steady, Time, jump};

pub use condition::Condition;
pub use effects::Effects;
pub use event::Event;
pub use handle::{EngineHandle, IdSource};
pub use turn_times::TurnTimes;

/// What the archive holds of several turns is forgotten together, so long after the first of them.
const TOGETHER: Duration = Duration::from_millis(100);

/// While commits in mode `os` are not on disk yet, they are brought there within this time.
pub const OS_SYNC: Duration = Duration::from_secs(1);
/// After a turn found no space, the next try to settle comes after this time.
pub const FULL_RETRY: Duration = Duration::from_secs(1);
/// The most jobs that one turn makes ready because their time has come.
pub const RELEASE_MOST: u32 = 10_000;

/// How an engine is set up; everything in it is checked.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub policies: Vec<Policy>,
    pub slots: u32,
    /// Bytes that the processes of all policies may need together; none where nobody counts.
    pub memory: Option<u64>,
    pub schedules: Vec<Schedule>,
    /// Who hears the jobs of which queues.
    pub router: Router,
    /// The weakest durability of a turn that starts jobs; one that settles any is always on disk.
    pub durability: Durability,
    /// Whether runs that an earlier process left unfinished are served at once, or only when they are opened again.
    pub serve_open_runs: bool,
    /// False for a process that is only there to answer: it takes no `windlass run`.
    pub serves_runs: bool,
    /// How long what runs may go on after the order to stop.
    pub drain: Duration,
    /// Seeds the jitter of retries: the engine draws no random number itself.
    pub seed: u64,
    /// Where emitted jobs get their ids, shared with the doors.
    pub ids: Arc<IdSource>,
    /// What the directory of handlers holds when the engine begins; what it holds later is told as an event.
    pub files: HandlerFiles,
}

/// The engine on some store.
#[derive(Debug)]
pub struct Engine<S> {
    store: S,
    options: EngineOptions,
    scheduler: Scheduler,
    destinations: Destinations,
    /// When the last turn was, on the wall and on a clock that nobody sets, and what the driver says of the next.
    now: Time,
    steady: Steady,
    told_steady: Option<Steady>,
    /// Both clocks as the driver told them last, and by how much the wall's was set since waits were told of it.
    clocks: Option<(Time, Steady)>,
    jumped: i64,
    flights: Flights,
    runs: Runs,
    waiters: Waiters,
    asks: ask::Asks,
    lots: Lots,
    /// What workers elsewhere have kept through the restart, for the runner to know of.
    resumed: Vec<Start>,
    operations: Operations,
    schedules: Schedules,
    /// The queues that are told of ends, as this turn has them.
    handlers: Handlers,
    /// Runs may be stored that are to be cancelled.
    sweeping: bool,
    /// More of an operation or a sweep is to be done in the next turn, which must not wait for an event.
    operations_wait: bool,
    queues: Queues,
    /// Ready jobs of all queues, as the store tells it.
    ready: u64,
    stalemates: stalemate::Stalemates,
    contention: Contention,
    jitter: Jitter,
    /// How long the jobs of each crew of commands take, and how long turns take that settle jobs.
    paces: HashMap<CrewNo, Pace>,
    turns: Pace,
    /// Queues whose ready jobs changed since the last plan, and those that wait for more.
    changed: BTreeSet<QueueNo>,
    lingering: linger::Lingering,
    /// What arrived and did not fit into the last turn, or could not be committed.
    pending: VecDeque<Event>,
    /// Rules of the open turn; those in the options are the committed ones.
    new_rules: Option<NewRules>,
    stopping: Stopping,
    /// When suspects may start: not before the server has stood for a while.
    suspects_at: Option<Time>,
    /// What still runs at this time is told to end.
    drain_until: Option<Time>,
    /// The turn before this one could not settle what had ended, and came to nothing else; and how many ends those
    /// were.
    obeys_first: bool,
    tried_ends: usize,
    /// When commits that are only in the kernel's hands must be on disk.
    sync_by: Option<Time>,
    /// No space was found: nothing is admitted or started, and what has ended is settled next at this time.
    full_until: Option<Time>,
    /// It is not for lack of space but because the store is away; what memory holds of it is to be read anew.
    away: bool,
    locked: look::Locked,
    one_by_one: dropped::OneByOne,
    aside: aside::Aside,
    /// Somebody said that there may be work in the store.
    look_because: Occasion,
    /// This server is the one that fires schedules.
    controls: bool,
    /// What runs was told to end, because others may soon take this server for dead.
    fence: Option<look::Fence>,
    /// Somebody asked for quiet: nothing is started until somebody asks for work.
    hushed: bool,
    /// The last turn that settled anything, and the last one that the archive holds.
    settled: u64,
    archived: u64,
    /// When the store forgets what the archive holds, where there is any of that.
    forget_at: Option<Time>,
    /// False while the archive is too far behind: what runs goes on, nothing new is started.
    archive_keeps_up: bool,
    /// Something may wait that no event tells of: the engine is new, or its last plan was cut by its budget.
    turn_again: bool,
    /// The last turn took in so much from the inbox that it did nothing else.
    was_wide: bool,
}

/// A queue's name and how many of its jobs are in each state.
#[derive(Debug)]
struct Queue {
    name: Arc<QueueName>,
    by_state: [u64; State::ALL.len()],
}

/// Whether the engine is about to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopping {
    No,
    /// Starts nothing more; ends when nothing is in flight.
    Draining,
    /// As draining, and what is in flight was told to end at once.
    Halting,
}

impl<S: Store> Engine<S> {
    /// Takes over a store: what dead servers held goes back, and memory is filled from it.
    pub fn new(
        mut store: S,
        options: EngineOptions,
        evidence: Evidence<'_>,
        now: Time,
    ) -> Result<(Engine<S>, Recovered), StoreError> {
        crate::sabotage::choose();
        let handlers = Handlers::of(&options.policies, &options.router);
        let (leases, lots, recovered) = take_back(&mut store, &options, &handlers, evidence, now)?;
        // A server can come up on a full disk: what is done there has to be known before anything else.
        let full_until = (!store.has_room()).then_some(now);
        let scheduler = Scheduler::new(options.policies.clone(), options.slots);
        let mut engine = Engine {
            store,
            scheduler,
            destinations: Destinations::default(),
            now,
            steady: Steady::default(),
            told_steady: None,
            clocks: None,
            jumped: 0,
            flights: Flights::default(),
            runs: Runs::default(),
            waiters: Waiters::default(),
            asks: ask::Asks::default(),
            lots: Lots::default(),
            resumed: Vec::new(),
            operations: Operations::default(),
            schedules: Schedules::default(),
            handlers,
            sweeping: true,
            operations_wait: false,
            queues: Queues::default(),
            ready: 0,
            stalemates: stalemate::Stalemates::default(),
            contention: Contention::default(),
            jitter: Jitter(options.seed | 1),
            paces: HashMap::new(),
            turns: Pace::default(),
            changed: BTreeSet::new(),
            lingering: linger::Lingering::default(),
            pending: VecDeque::new(),
            new_rules: None,
            stopping: Stopping::No,
            suspects_at: Some(now.after(suspicion::WAIT)),
            drain_until: None,
            obeys_first: false,
            tried_ends: 0,
            sync_by: None,
            forget_at: None,
            full_until,
            away: false,
            locked: look::Locked::default(),
            one_by_one: dropped::OneByOne::default(),
            aside: aside::Aside::default(),
            look_because: Occasion::Time,
            controls: false,
            fence: None,
            hushed: false,
            settled: 0,
            archived: 0,
            archive_keeps_up: true,
            turn_again: true,
            was_wide: false,
            options,
        };
        engine.begin(leases, lots, now)?;
        Ok((engine, recovered))
    }

    /// Learns what the store has, and goes on with what went on without it.
    fn begin(&mut self, leases: Leases, lots: Travelling, now: Time) -> Result<(), StoreError> {
        self.scheduler.subscribe(self.options.router.clone());
        self.scheduler.set_memory(self.options.memory);
        self.scheduler.hold_suspects();
        self.scheduler.set_stall(self.stall());
        self.controls = self.store.controls();
        self.fill()?;
        self.resume(leases)?;
        self.resume_lots(lots, now)
    }

    /// What servers before this one have ended is on its way to the archive, up to this turn.
    pub fn archive_is_behind(&mut self, turn: u64) {
        self.settled = self.settled.max(turn);
    }

    /// The starts that go on elsewhere: for the runner, before anybody may speak for them. Once.
    pub fn take_resumed(&mut self) -> Vec<Start> {
        std::mem::take(&mut self.resumed)
    }

    /// Fills memory from the store: at start, and after a turn that had to be dropped.
    fn fill(&mut self) -> Result<(), StoreError> {
        self.fill_overrides()?;
        let open = self.store.open_runs()?;
        self.runs.keep_only(&open, &mut self.scheduler);
        for info in open {
            self.runs.learn(info, self.options.serve_open_runs, &mut self.scheduler);
        }
        let mut changes = self.store.backlog()?;
        // The rows of the runs have their counts already.
        changes.moves.iter_mut().for_each(|step| step.run = None);
        self.learn(changes, &mut Effects::default());
        self.sweeping = true;
        self.schedules.load(&self.options.schedules, &mut self.store, self.now)?;
        self.aside.load(&mut self.store)?;
        self.operations.load(&mut self.store)
    }

    /// Drops the turn and everything in memory that came from it, and starts over from the store.
    fn start_over(&mut self) -> Result<(), StoreError> {
        self.store.rollback()?;
        self.read_anew()
    }

    /// Forgets what is known of jobs, and learns it from the store.
    fn read_anew(&mut self) -> Result<(), StoreError> {
        self.scheduler.clear_ready();
        self.ready = 0;
        let known = std::mem::take(&mut self.queues);
        self.fill()?;
        // A number that was given out in the dropped turn will be another queue's: its crew must not stick to it.
        for (no, _) in known.iter().filter(|(no, _)| !self.queues.has(*no)) {
            self.scheduler.queue_vanished(no);
            self.contention.forget(no);
        }
        Ok(())
    }

    /// When the engine wants to turn although nothing happened.
    pub fn next_wake(&mut self) -> Result<Option<Time>, StoreError> {
        let waits = self.operations_wait || !self.pending.is_empty();
        if self.turn_again || waits && self.full_until.is_none() {
            return Ok(Some(Time::ZERO));
        }
        // Without space nothing is released: a job that is due must not keep the engine turning.
        let due = match self.full_until {
            None => match self.store.next_due() {
                // The turn will find out what that means.
                Err(StoreError::Away(_)) => return Ok(Some(Time::ZERO)),
                due => due?,
            },
            Some(_) => None,
        };
        let beat = self.store.next_look().filter(|_| self.full_until.is_none());
        let locked = self.locked.again_at.filter(|_| self.full_until.is_none());
        let lingers = if self.full_until.is_none() { self.lingering.next() } else { None };
        let steering = self.next_steering();
        let (paced, schedule) = (self.next_paced(), self.next_schedule());
        let look = self.stalemates.look_at.filter(|_| self.full_until.is_none() && self.stopping == Stopping::No);
        let within = [due, beat, self.sync_by, self.full_until, self.drain_until, self.suspects_at, look];
        let refused = self.one_by_one.again_at.filter(|_| self.full_until.is_none());
        let forgets = self.forget_at.filter(|_| self.full_until.is_none());
        let aside = self.aside.next().filter(|_| self.full_until.is_none() && self.stopping == Stopping::No);
        let beside = [aside, locked, refused, steering, lingers, schedule, paced, self.next_run_limit(), forgets];
        Ok(within.into_iter().chain(beside).flatten().min())
    }

    /// True when it was told to stop and nothing is in flight any more.
    pub fn is_over(&self) -> bool {
        if self.stopping == Stopping::No {
            return false;
        }
        if self.full_until.is_none() && self.locked.ends.is_empty() {
            return self.flights.end_here() == 0 && self.pending.is_empty();
        }
        // Without space nobody waits for the inbox, which is read again; nor, when told to end at once, for ends that
        // cannot be written: the next start proves them dead.
        let ends = self.pending.iter().filter(|event| matches!(event, Event::Finished(_))).count();
        let unread = self.pending.iter().filter(|event| matches!(event, Event::Ingested(_))).count();
        let left = self.flights.end_here();
        // Where a database is away they are kept on this machine, and nobody waits for it longer than for a drain.
        let kept = self.away && self.drain_until.is_none() && ends <= self.tried_ends;
        let gives_up = self.stopping == Stopping::Halting || kept;
        let settled = left == 0 || gives_up && left <= ends + self.locked.ends.len();
        settled && ends + unread == self.pending.len()
    }

    /// What it is up to, in one word.
    pub fn condition(&self) -> Condition {
        match self.stopping {
            Stopping::Halting => Condition::Halting,
            Stopping::Draining => Condition::Draining,
            Stopping::No if self.away => Condition::StoreAway,
            Stopping::No if self.full_until.is_some() => Condition::NoSpace,
            Stopping::No if !self.archive_keeps_up => Condition::ArchiveBehind,
            Stopping::No if self.scheduler.is_paused() => Condition::Paused,
            Stopping::No if self.hushed => Condition::Quiet,
            Stopping::No => Condition::Serving,
        }
    }

    pub fn stopping(&self) -> Stopping {
        self.stopping
    }

    /// Told by the driver: how far the archive is behind decides whether new jobs are started.
    pub fn archive_keeps_up(&mut self, yes: bool) {
        self.archive_keeps_up = yes;
    }

    /// Told by the driver, which has a clock: so long the last turn took. Jobs that are shorter are claimed ahead.
    pub fn turn_took(&mut self, time: Duration) {
        self.turns.took(time);
    }

    /// Told by the driver before a turn: the time on a clock that nobody sets, for rates and probes. Where nobody tells
    /// it, it goes on as the wall clock does, but never back.
    pub fn tell_steady(&mut self, at: Steady) {
        self.told_steady = Some(at);
    }

    fn look_at_the_steady_clock(&mut self, now: Time) {
        let told = self.told_steady.take();
        if let Some(seen) = told.map(|steady| (now, steady)) {
            let before = self.clocks.replace(seen);
            self.jumped += before.and_then(|before| jump(before, seen)).unwrap_or(0);
        }
        let steady = told.unwrap_or_else(|| self.steady.after(now.since(self.now)));
        (self.now, self.steady) = (now, self.steady.max(steady));
        self.scheduler.tell_steady(self.steady);
    }

    /// When a rate or a probe lets something start next.
    fn next_paced(&self) -> Option<Time> {
        let stands = self.full_until.is_some() || self.stopping != Stopping::No;
        let next = self.scheduler.next_look().filter(|_| !stands)?;
        Some(self.now.after(next.since(self.steady)))
    }

    pub fn store(&mut self) -> &mut S {
        &mut self.store
    }

    fn queue_name(&self, queue: QueueNo) -> &Arc<QueueName> {
        &self.queues[queue].name
    }
}

/// Takes back what dead servers held; what workers elsewhere have kept is in the answer.
fn take_back(
    store: &mut impl Store,
    options: &EngineOptions,
    handlers: &Handlers,
    evidence: Evidence<'_>,
    now: Time,
) -> Result<(Leases, Travelling, Recovered), StoreError> {
    let (leases, returned) = Leases::read(store, &options.policies)?;
    let lots = Travelling::read(store)?;
    let on_their_way = lots.starts();
    let begun = |job, start| !returned.has(job, start) && (evidence.begun)(job, start);
    let elsewhere =
        |job, start| leases.has(job, start) || on_their_way.contains(&(job, start)) || (evidence.elsewhere)(job, start);
    let convicted = |info: &JobInfo, run| failure::of_failed(info, run, options, handlers);
    let evidence = Evidence { begun: &begun, elsewhere: &elsewhere, convicted: &convicted, ..evidence };
    let recovered = match store.recover(evidence, now) {
        // The reserve is given up with the rollback, for just this.
        Err(StoreError::Full(_)) => {
            store.rollback()?;
            Leases::read(store, &options.policies)?;
            store.recover(evidence, now)?
        }
        other => other?,
    };
    Ok((leases, lots, recovered))
}

/// The known queues by number. Numbers are small and given out in order, so a plain list serves.
#[derive(Debug, Default)]
struct Queues(Vec<Option<Queue>>);

impl Queues {
    fn add(&mut self, no: QueueNo, name: QueueName) {
        let at = no.0 as usize;
        self.0.resize_with(self.0.len().max(at + 1), || None);
        self.0[at] = Some(Queue { name: Arc::new(name), by_state: Default::default() });
    }

    fn has(&self, no: QueueNo) -> bool {
        self.0.get(no.0 as usize).is_some_and(Option::is_some)
    }

    fn iter(&self) -> impl Iterator<Item = (QueueNo, &Queue)> {
        self.0.iter().enumerate().filter_map(|(no, queue)| Some((QueueNo(no as u32), queue.as_ref()?)))
    }
}

impl std::ops::Index<QueueNo> for Queues {
    type Output = Queue;
    fn index(&self, no: QueueNo) -> &Queue {
        self.0[no.0 as usize].as_ref().unwrap_or_else(|| panic!("queue {} was never named", no.0))
    }
}

impl std::ops::IndexMut<QueueNo> for Queues {
    fn index_mut(&mut self, no: QueueNo) -> &mut Queue {
        self.0[no.0 as usize].as_mut().unwrap_or_else(|| panic!("queue {} was never named", no.0))
    }
}

/// A small generator for the jitter of retries; seeded from outside, so a simulated engine repeats itself.
#[derive(Debug)]
struct Jitter(u64);

impl Jitter {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests;
