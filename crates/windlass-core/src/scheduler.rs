//! Decides which lanes to claim from: priority is strict, weight shares out the starts among equals.
//!
//! Crews hold their eligible queues in the order of service, and one index holds the free crews by their best queue:
//! O(log n) per start and event, and a crew without a slot is out with all its queues. Among equals it is stride
//! scheduling by where a queue will stand *after* its next job (pass + 1 ÷ weight), with a clock for each priority:
//! of queues that became ready together, the k-th start of one comes within ⌈k · sum of weights ÷ own weight⌉
//! selections; before one that joins later, each other goes at most 1 + its weight ÷ own weight times. (By the pass
//! *before* the start, a crowd of light queues would go in front of a heavy one.)
//! It must not claim, start or count anything but slots and ready jobs: it plans, and is told what came of it.

mod asked;
mod crew;
mod memory;
mod queue;
mod queues;
mod rates;
mod reason;
mod rules;
mod stages;
mod stock;
mod topics;
mod why;

use crate::circuit::{Passage, Sign};
use crate::job::{Lane, LaneKind, Priority, QueueName, QueueNo};
use crate::overrides::{Override, Overrides};
use crate::policy::{HandlerFiles, Policy};
use crate::router::Router;
use crate::time::{Steady, Time};
use crew::{Clocks, Crew, Place};
use memory::Memory;
use queue::{Mark, Pass, Queue};
use queues::Queues;
use rates::{Look, Metered};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use memory::Shortage;
pub use queue::CAREFUL_SHARE;
pub use reason::{Reason, Stall};
pub use stock::{Pace, STOCK_PER_SLOT_MAX};
pub use why::{Closed, Explained};

/// A crew's number; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CrewNo(pub u32);

/// Where the virtual clocks are set back, some weeks into a flood in one queue, long before they could wrap.
const REWIND_AT: Pass = 1 << 62;

/// One slot is booked for up to `most` jobs of this lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a slot stays booked until `claimed` or `finished` is told"]
pub struct Planned {
    pub lane: Lane,
    pub most: u32,
    pub crew: CrewNo,
}

/// The slots, the ready counts and the order of service.
#[derive(Debug)]
pub struct Scheduler {
    queues: Queues,
    crews: BTreeMap<CrewNo, Crew>,
    /// The config's crews in file order: the first match wins.
    in_order: Vec<CrewNo>,
    /// The handler files, which decide what some crews serve.
    files: HandlerFiles,
    /// Some crew has unique jobs.
    any_unique: bool,
    /// Who has subscribed to what, and the topics that have something to hand on, best first.
    router: Router,
    topics: BTreeSet<(Reverse<Priority>, QueueNo)>,
    /// The queues that are stages of pipelines.
    stages: BTreeMap<Box<str>, QueueNo>,
    /// Jobs that wait for their time, where there are any. Signed, as the ready ones are.
    put_off: BTreeMap<QueueNo, i64>,
    /// Crews added at run time, by queue name.
    extras: BTreeMap<String, CrewNo>,
    next_crew: u32,
    /// Crews that may start something, best first.
    index: BTreeSet<(Place, CrewNo)>,
    clocks: Clocks,
    /// The server's slots as the config has them, and those in force.
    own_slots: u32,
    slots: u32,
    used: u32,
    overrides: Overrides,
    /// The pause of the whole server.
    paused: Option<Arc<Override>>,
    /// The slots of queues that have some of their own.
    caps: BTreeMap<QueueNo, u32>,
    /// The time as it was last told, for the hours, and when hours begin or end next.
    now: Time,
    next_hours: Option<Time>,
    /// The same on a clock that nobody sets, for rates and probes, and who is to be looked at again when.
    steady: Steady,
    looks: BTreeSet<(Steady, Look)>,
    /// The queues whose tables have rates.
    metered: BTreeMap<QueueNo, Metered>,
    suspects_held: bool,
    suspect_runs: bool,
    /// What remote workers ask for now, and when they last did.
    asked: asked::Asked,
    /// Queues that would stand elsewhere if a suspect might start.
    behind_suspect: BTreeSet<QueueNo>,
    draining: bool,
    stall: Option<Stall>,
    memory: Memory,
}

impl Scheduler {
    pub fn new(policies: Vec<Policy>, slots: u32) -> Scheduler {
        let mut scheduler = Scheduler {
            queues: Queues::default(),
            crews: BTreeMap::new(),
            in_order: Vec::new(),
            files: HandlerFiles::new(),
            any_unique: false,
            router: Router::default(),
            topics: BTreeSet::new(),
            stages: BTreeMap::new(),
            put_off: BTreeMap::new(),
            extras: BTreeMap::new(),
            next_crew: 0,
            index: BTreeSet::new(),
            clocks: Clocks::new(),
            own_slots: slots,
            slots,
            used: 0,
            overrides: Overrides::default(),
            paused: None,
            caps: BTreeMap::new(),
            now: Time::ZERO,
            next_hours: None,
            steady: Steady::default(),
            looks: BTreeSet::new(),
            metered: BTreeMap::new(),
            suspects_held: false,
            suspect_runs: false,
            asked: asked::Asked::default(),
            behind_suspect: BTreeSet::new(),
            draining: false,
            stall: None,
            memory: Memory::default(),
        };
        scheduler.reload(policies, slots);
        scheduler
    }

    /// Makes a queue known; a queue that is known already stays as it is.
    pub fn queue_appeared(&mut self, number: QueueNo, name: &QueueName) {
        if !self.queues.has(number) {
            let mut queue = Queue::new(name.as_str());
            queue.crew = self.crew_for(name.as_str());
            queue.mark(Mark::Topic, queue.crew.is_none() && self.router.is_topic(name.as_str()));
            self.queues.insert(number, queue);
            self.note_stage(number);
            self.lay_over_queue(number);
        }
    }

    /// Forgets a queue that will not be named again; what it has in flight still holds its slots.
    pub fn queue_vanished(&mut self, number: QueueNo) {
        self.unlist(number);
        self.unroute(number);
        self.look_at_queue(number, None);
        self.metered.remove(&number);
        self.behind_suspect.remove(&number);
        self.caps.remove(&number);
        self.put_off.remove(&number);
        if let Some(queue) = self.queues.remove(number) {
            self.stages.remove(&queue.name);
        }
    }

    /// The number of ready jobs of a lane changed, but for jobs that `plan` has taken off already.
    pub fn ready(&mut self, lane: Lane, delta: i64) {
        let queue = self.queues.get_mut(lane.queue);
        assert!(queue.is_some(), "queue {} has jobs before it appeared", lane.queue.0);
        if let Some(queue) = queue.filter(|_| delta != 0) {
            let rests = queue.waiting() == 0;
            queue.add(lane, delta);
            if rests {
                self.queue_rested(lane.queue);
            }
            self.place(lane.queue);
        }
    }

    /// Forgets what is ready, not what is in flight: the store is about to be read anew.
    pub fn clear_ready(&mut self) {
        self.unlist_all();
        self.behind_suspect.clear();
        self.topics.clear();
        self.put_off.clear();
        self.queues.values_mut().for_each(Queue::clear);
    }

    /// Books every free slot for which a job is ready, and takes those jobs off the ready counts.
    pub fn plan(&mut self) -> Vec<Planned> {
        self.plan_up_to(u64::MAX)
    }

    /// As `plan`, but ends once the booked slots ask for so many jobs together: a turn has a budget.
    pub fn plan_up_to(&mut self, jobs: u64) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::new();
        let mut asked = 0;
        self.end_vain_reservation();
        while asked < jobs && self.server_hold().is_none() {
            let Some(&((Reverse(class), due, queue), crew)) = self.index.first() else { break };
            if due > REWIND_AT {
                self.rewind();
                continue;
            }
            if !self.takes_room(crew, class) {
                continue;
            }
            if let Some(booked) = self.book(queue, crew, class, due) {
                asked += u64::from(booked.most);
                planned.push(booked);
            }
        }
        planned
    }

    /// Books starts beyond the slots of a crew until it has `most` of them or they ask for so many jobs, if every slot
    /// of it is taken and no crew waits for one of the server's: a stock is there to keep slots busy, never to keep
    /// others out.
    pub fn plan_stock(&mut self, number: CrewNo, most: u32, jobs: u64) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::new();
        let mut asked = 0;
        while asked < jobs && self.server_closed().is_none() && self.index.is_empty() {
            let Some(crew) = self.crews.get(&number) else { break };
            let wanted = crew.used > 0 && crew.is_full() && crew.stocked < most && crew.closed().is_none();
            // What is claimed ahead could not be held any more.
            let held = crew.policy.flow.as_ref().is_some_and(|flow| !flow.held_by.is_empty());
            let wanted = wanted && !held && self.may_hold_on(crew) && crew.passage(self.steady) == Passage::Free;
            let Some(&(Reverse(class), due, queue)) = crew.order.first().filter(|_| wanted) else { break };
            let due = due + crew.lag(class);
            // A suspect runs alone and under watch; it does not wait in a stock.
            let choice = self.queues.get(queue).and_then(|queue| queue.choose(self.suspects_may()));
            if due > REWIND_AT || choice.is_some_and(|choice| choice.kind == LaneKind::Suspect) {
                break;
            }
            if let Some(booked) = self.book(queue, number, class, due) {
                asked += u64::from(booked.most);
                planned.push(booked);
            }
        }
        planned
    }

    /// Corrects a plan when the store gave `got` jobs for it; none frees the slot.
    pub fn claimed(&mut self, planned: &Planned, got: u32) {
        let missing = planned.most.saturating_sub(got);
        if missing > 0 {
            self.unlist(planned.lane.queue);
            if let Some(queue) = self.queues.get_mut(planned.lane.queue) {
                queue.add(planned.lane, i64::from(missing));
                if got == 0 {
                    queue.found_barren(planned.lane);
                }
                if let Some(crew) = self.crews.get(&planned.crew) {
                    queue.pass = queue.pass.saturating_sub(crew.stride() * Pass::from(missing));
                    if let Some(rate) = crew.policy.queue_rate() {
                        self.metered.entry(planned.lane.queue).or_default().meter.give_back(rate, missing);
                    }
                }
            }
            self.place(planned.lane.queue);
            self.heard(planned.crew, missing, Sign::None);
        }
        if got == 0 {
            self.finished(planned.crew, planned.lane);
        }
    }

    /// One start is over: its slot is free, or taken by one of the crew's stock.
    pub fn finished(&mut self, number: CrewNo, lane: Lane) {
        if let Some(queue) = self.queues.get_mut(lane.queue) {
            queue.used = queue.used.saturating_sub(1);
            if self.caps.contains_key(&lane.queue) {
                self.place(lane.queue);
            }
        }
        let crew = self.crews.get_mut(&number);
        let here = crew.as_ref().is_some_and(|crew| !crew.is_remote());
        let known = crew.as_ref().is_some_and(|crew| crew.used > 0) && (self.used > 0 || !here);
        assert!(known, "crew {} has no start", number.0);
        if let Some(crew) = crew {
            if crew.stocked > 0 && crew.used <= crew.policy.slots {
                crew.stocked -= 1;
                return self.suspect_ended(lane.kind);
            }
            self.used -= u32::from(here);
            crew.used -= 1;
            crew.thaw(&self.clocks);
        }
        self.gave_room(number);
        self.bury(number);
        self.enter(number);
        self.suspect_ended(lane.kind);
    }

    fn suspect_ended(&mut self, kind: LaneKind) {
        if kind == LaneKind::Suspect {
            self.suspect_runs = false;
            // These were in flight when a server died, so they are no more than a server has slots.
            for queue in std::mem::take(&mut self.behind_suspect) {
                self.place(queue);
            }
        }
    }

    pub fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Why the server as a whole may start nothing, as the engine sees it.
    pub fn set_stall(&mut self, stall: Option<Stall>) {
        self.stall = stall;
    }

    /// Whether a queue waits for more jobs before it starts any.
    pub fn set_lingering(&mut self, number: QueueNo, lingers: bool) {
        if let Some(queue) = self.queues.get_mut(number).filter(|queue| queue.is(Mark::Lingers) != lingers) {
            queue.mark(Mark::Lingers, lingers);
            self.place(number);
        }
    }

    /// So many jobs of a crew go to one slot together, or as many as its rules say where that is more.
    pub fn set_at_once(&mut self, number: CrewNo, jobs: u32) {
        if let Some(crew) = self.crews.get_mut(&number) {
            crew.at_once = jobs;
        }
    }

    /// The crew that serves a queue now, and its rules.
    pub fn policy_of(&self, queue: QueueNo) -> Option<(CrewNo, Arc<Policy>)> {
        let number = self.queues.get(queue)?.crew?;
        self.crews.get(&number).map(|crew| (number, Arc::clone(&crew.policy)))
    }

    /// The rules of a crew while it has something in flight or serves queues.
    pub fn policy(&self, crew: CrewNo) -> Option<Arc<Policy>> {
        self.crews.get(&crew).map(|crew| Arc::clone(&crew.policy))
    }

    /// The same to look at: whoever counts the references of what all threads share makes them wait for each other.
    pub fn rules(&self, crew: CrewNo) -> Option<&Policy> {
        self.crews.get(&crew).map(|crew| &*crew.policy)
    }

    /// Starts in flight: of the server.
    pub fn in_flight(&self) -> u32 {
        self.used
    }

    /// The lanes of a queue that have ready jobs, best first.
    pub fn lanes(&self, queue: QueueNo) -> Vec<Lane> {
        let lane = |(priority, kind)| Lane { queue, priority, kind };
        self.queues.get(queue).map(|known| known.lanes().map(lane).collect()).unwrap_or_default()
    }

    /// Ready jobs that `plan` has not taken yet.
    pub fn waiting(&self, queue: QueueNo) -> u64 {
        self.queues.get(queue).map_or(0, Queue::waiting)
    }

    /// Books one slot for the queue at the head, or puts the queue where it belongs if it cannot start from here.
    fn book(&mut self, number: QueueNo, crew_no: CrewNo, class: Priority, due: Pass) -> Option<Planned> {
        let suspects = self.suspects_may();
        let queue = self.queues.get_mut(number)?;
        let choice = queue.choose(suspects).filter(|choice| choice.priority == class);
        let Some(choice) = choice else {
            // A suspect has started since the queue was placed.
            self.place(number);
            return None;
        };
        let crew = self.crews.get_mut(&crew_no)?;
        let rate = crew.policy.queue_rate();
        let alone = choice.kind == LaneKind::Suspect || crew.passage(self.steady) == Passage::Probe;
        let lane = Lane { queue: number, priority: class, kind: choice.kind };
        let ready = u32::try_from(queue.ready(class, choice.kind)).unwrap_or(u32::MAX);
        let mut most = if alone { 1 } else { ready.min(crew.batch(self.caps.contains_key(&number))) };
        if let Some(rate) = rate {
            let meter = &mut self.metered.entry(number).or_default().meter;
            most = most.min(meter.free(rate, self.steady).max(1));
            meter.take(rate, most, self.steady);
        }
        crew.circuit.begun(most);
        crew.order.remove(&(Reverse(class), queue.pass + crew.stride(), number));
        queue.listed = false;
        queue.used += 1;
        queue.take(lane, most);
        queue.pass = due + crew.stride() * Pass::from(most - 1);
        let clock = self.clocks.entry(class).or_insert(0);
        *clock = due.max(*clock);
        let begins = !crew.is_full();
        if begins {
            crew.used += 1;
            crew.freeze(&self.clocks);
            self.used += u32::from(!crew.is_remote());
        } else {
            crew.stocked += 1;
        }
        self.suspect_runs |= choice.kind == LaneKind::Suspect;
        if begins {
            self.took_room(crew_no);
        }
        self.place(number);
        self.enter(crew_no);
        Some(Planned { lane, most, crew: crew_no })
    }

    /// Puts a queue where it belongs in its crew's order, or nowhere; a queue that stands right keeps its place.
    fn place(&mut self, number: QueueNo) {
        let Some(queue) = self.queues.get(number) else { return };
        if queue.is(Mark::Topic) || queue.is(Mark::Routed) {
            self.place_topic(number);
        } else if queue.is(Mark::Stage) {
            self.level_changed(number);
        }
        let Some(queue) = self.queues.get(number).filter(|queue| !queue.is(Mark::Topic)) else { return };
        let choice = queue.choose(self.suspects_may());
        if !self.suspects_may() && choice.map(|c| c.priority) != queue.choose(true).map(|c| c.priority) {
            self.behind_suspect.insert(number);
        }
        let waits = choice.and_then(|_| self.rate_wait(number, queue)).map(|(_, until)| until);
        let open =
            waits.is_none() && self.queue_closed(number, queue).is_none() && !self.waits_to_be_asked_for(number, queue);
        let class = choice.map(|choice| choice.priority).filter(|_| open);
        let stands = queue.listed && class == Some(queue.class);
        self.look_at_queue(number, waits);
        if stands {
            return;
        }
        self.unlist(number);
        let (Some(class), Some(queue)) = (class, self.queues.get_mut(number)) else { return };
        let Some((crew_no, crew)) = queue.crew.and_then(|no| Some((no, self.crews.get_mut(&no)?))) else { return };
        let clock = crew.clock(class, &self.clocks);
        queue.pass = if queue.class == class { queue.pass.max(clock) } else { clock };
        // Never under nought: a crew's time has not stood still for longer than the clock has run.
        queue.pass -= crew.lag(class);
        queue.class = class;
        queue.listed = true;
        crew.order.insert((Reverse(class), queue.pass + crew.stride(), number));
        self.enter(crew_no);
    }

    /// Takes a queue out of its crew's order.
    fn unlist(&mut self, number: QueueNo) {
        let Some(queue) = self.queues.get_mut(number).filter(|queue| queue.listed) else { return };
        queue.listed = false;
        let Some((crew_no, crew)) = queue.crew.and_then(|no| Some((no, self.crews.get_mut(&no)?))) else { return };
        let stood = crew.order.remove(&(Reverse(queue.class), queue.pass + crew.stride(), number));
        queue.pass += crew.lag(queue.class);
        assert!(stood, "a listed queue stands in its crew's order");
        self.enter(crew_no);
    }

    fn unlist_all(&mut self) {
        for number in self.queues.numbers() {
            self.unlist(number);
        }
    }

    /// Sets all clocks back to nought, as if every queue had just become ready.
    fn rewind(&mut self) {
        self.unlist_all();
        self.clocks.clear();
        self.queues.values_mut().for_each(|queue| queue.pass = 0);
        self.crews.values_mut().for_each(|crew| crew.reset(&self.clocks));
        for number in self.queues.numbers() {
            self.place(number);
        }
    }

    /// Brings a crew's entry in the index up to date.
    fn enter(&mut self, number: CrewNo) {
        let Some(crew) = self.crews.get_mut(&number) else { return };
        let look = match crew.passage(self.steady) {
            Passage::Until(at) => Some(at),
            Passage::Free | Passage::Probe | Passage::Busy => None,
        };
        if look != crew.look_at {
            let old = std::mem::replace(&mut crew.look_at, look);
            old.map(|at| self.looks.remove(&(at, Look::Crew(number))));
            self.looks.extend(look.map(|at| (at, Look::Crew(number))));
        }
        let entry = crew.best(self.steady).map(|place| (place, number));
        if entry != crew.entry {
            if let Some(old) = crew.entry.take() {
                self.index.remove(&old);
            }
            self.index.extend(entry);
            crew.entry = entry;
        }
    }
}

#[cfg(test)]
mod tests;
