//! Decides which lanes to claim from: priority is strict, weight shares out the starts among equals.
//!
//! Crews hold their eligible queues in the order of service, and one index holds the free crews by their best queue:
//! O(log n) per start and event, and a crew without a slot is out with all its queues. Among equals it is stride
//! scheduling by where a queue will stand *after* its next job (pass + 1 ÷ weight), with a clock for each priority:
//! of queues that became ready together, the k-th start of one comes within ⌈k · sum of weights ÷ own weight⌉
//! selections; before one that joins later, each other goes at most 1 + its weight ÷ own weight times. (By the pass
//! *before* the start, a crowd of light queues would go in front of a heavy one.)
//! It must not claim, start or count anything but slots and ready jobs: it plans, and is told what came of it.

mod crew;
mod queue;
mod reason;
mod stock;

use crate::job::{Lane, LaneKind, Priority, QueueName, QueueNo};
use crate::policy::Policy;
use crew::{Clocks, Crew, Place};
use queue::{Pass, Queue};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use queue::CAREFUL_SHARE;
pub use reason::Reason;
pub use stock::{Pace, STOCK_PER_SLOT_MAX};

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
    queues: BTreeMap<QueueNo, Queue>,
    crews: BTreeMap<CrewNo, Crew>,
    /// The config's crews in file order: the first match wins.
    in_order: Vec<CrewNo>,
    /// Crews added at run time by queue name; the last one added serves.
    extras: BTreeMap<String, Vec<CrewNo>>,
    next_crew: u32,
    /// Crews that may start something, best first.
    index: BTreeSet<(Place, CrewNo)>,
    clocks: Clocks,
    slots: u32,
    used: u32,
    suspect_runs: bool,
    /// Queues that would stand elsewhere if a suspect might start.
    behind_suspect: BTreeSet<QueueNo>,
    draining: bool,
}

impl Scheduler {
    pub fn new(policies: Vec<Policy>, slots: u32) -> Scheduler {
        let mut scheduler = Scheduler {
            queues: BTreeMap::new(),
            crews: BTreeMap::new(),
            in_order: Vec::new(),
            extras: BTreeMap::new(),
            next_crew: 0,
            index: BTreeSet::new(),
            clocks: Clocks::new(),
            slots,
            used: 0,
            suspect_runs: false,
            behind_suspect: BTreeSet::new(),
            draining: false,
        };
        scheduler.reload(policies, slots);
        scheduler
    }

    /// Makes a queue known; a queue that is known already stays as it is.
    pub fn queue_appeared(&mut self, number: QueueNo, name: &QueueName) {
        if !self.queues.contains_key(&number) {
            let mut queue = Queue::new(name.as_str());
            queue.crew = self.crew_for(name.as_str());
            self.queues.insert(number, queue);
        }
    }

    /// Forgets a queue that will not be named again; what it has in flight still holds its slots.
    pub fn queue_vanished(&mut self, number: QueueNo) {
        self.unlist(number);
        self.behind_suspect.remove(&number);
        self.queues.remove(&number);
    }

    /// The number of ready jobs of a lane changed, but for jobs that `plan` has taken off already.
    pub fn ready(&mut self, lane: Lane, delta: i64) {
        let queue = self.queues.get_mut(&lane.queue);
        assert!(queue.is_some(), "queue {} has jobs before it appeared", lane.queue.0);
        if let Some(queue) = queue.filter(|_| delta != 0) {
            queue.add(lane, delta);
            self.place(lane.queue);
        }
    }

    /// Forgets what is ready, not what is in flight: the store is about to be read anew.
    pub fn clear_ready(&mut self) {
        self.unlist_all();
        self.behind_suspect.clear();
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
        while self.used < self.slots && !self.draining && asked < jobs {
            let Some(&((Reverse(class), due, queue), crew)) = self.index.first() else { break };
            if due > REWIND_AT {
                self.rewind();
                continue;
            }
            if let Some(booked) = self.book(queue, crew, class, due) {
                asked += u64::from(booked.most);
                planned.push(booked);
            }
        }
        planned
    }

    /// Books jobs beyond the slots of a crew until it has `most` of them, if every slot of it is taken and no crew
    /// waits for one of the server's: a stock is there to keep slots busy, never to keep others out.
    pub fn plan_stock(&mut self, number: CrewNo, most: u32) -> Vec<Planned> {
        let mut planned = Vec::new();
        while !self.draining && self.index.is_empty() {
            let Some(crew) = self.crews.get(&number) else { break };
            let wanted = crew.used > 0 && crew.is_full() && crew.stocked < most && !crew.policy.paused && !crew.gone;
            let Some(&(Reverse(class), due, queue)) = crew.order.first().filter(|_| wanted) else { break };
            let due = due + crew.lag(class);
            // A suspect runs alone and under watch; it does not wait in a stock.
            let choice = self.queues.get(&queue).and_then(|queue| queue.choose(!self.suspect_runs));
            if due > REWIND_AT || choice.is_some_and(|choice| choice.kind == LaneKind::Suspect) {
                break;
            }
            planned.extend(self.book(queue, number, class, due));
        }
        planned
    }

    /// Corrects a plan when the store gave `got` jobs for it; none frees the slot.
    pub fn claimed(&mut self, planned: &Planned, got: u32) {
        let missing = planned.most.saturating_sub(got);
        if missing > 0 {
            self.unlist(planned.lane.queue);
            if let Some(queue) = self.queues.get_mut(&planned.lane.queue) {
                queue.add(planned.lane, i64::from(missing));
                if got == 0 {
                    queue.found_barren(planned.lane);
                }
                if let Some(crew) = self.crews.get(&planned.crew) {
                    queue.pass = queue.pass.saturating_sub(crew.stride() * Pass::from(missing));
                }
            }
            self.place(planned.lane.queue);
        }
        if got == 0 {
            self.finished(planned.crew, planned.lane.kind);
        }
    }

    /// One start is over: its slot is free, or taken by one of the crew's stock.
    pub fn finished(&mut self, number: CrewNo, kind: LaneKind) {
        let crew = self.crews.get_mut(&number);
        assert!(crew.as_ref().is_some_and(|crew| crew.used > 0) && self.used > 0, "crew {} has no start", number.0);
        if let Some(crew) = crew {
            if crew.stocked > 0 && crew.used <= crew.policy.slots {
                crew.stocked -= 1;
                return self.suspect_ended(kind);
            }
            self.used -= 1;
            crew.used -= 1;
            crew.thaw(&self.clocks);
            if crew.gone && crew.used == 0 {
                self.crews.remove(&number);
            }
        }
        self.enter(number);
        self.suspect_ended(kind);
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

    /// Takes new rules. What is in flight keeps its slots; an entry with the same pattern keeps its usage.
    pub fn reload(&mut self, policies: Vec<Policy>, slots: u32) {
        self.slots = slots;
        // Places depend on weights, so all are given up before any rule changes.
        self.unlist_all();
        let mut old: BTreeMap<String, CrewNo> = BTreeMap::new();
        for (number, crew) in self.crews.iter_mut().filter(|(_, crew)| !crew.extra) {
            crew.gone = true;
            old.entry(crew.policy.pattern.clone()).or_insert(*number);
        }
        self.in_order.clear();
        for policy in policies {
            let number = match old.remove(&policy.pattern) {
                Some(number) => number,
                None => self.number_crew(),
            };
            let crew = self.crews.entry(number).or_insert_with(|| Crew::new(policy.clone(), false));
            crew.gone = false;
            crew.policy = Arc::new(policy);
            // What is in stock begins where there are more slots now.
            let begun = crew.stocked.min(crew.policy.slots.saturating_sub(crew.used));
            (crew.used, crew.stocked) = (crew.used + begun, crew.stocked - begun);
            self.used += begun;
            self.in_order.push(number);
        }
        self.crews.retain(|_, crew| !crew.gone || crew.used > 0);
        self.crews.values_mut().for_each(|crew| crew.reset(&self.clocks));
        self.assign(|_| true);
    }

    /// Adds a crew for the queue whose name is exactly the pattern; it goes before the config's.
    pub fn add_crew(&mut self, policy: Policy) -> CrewNo {
        let number = self.number_crew();
        let name = policy.pattern.clone();
        self.crews.insert(number, Crew::new(policy, true));
        self.extras.entry(name.clone()).or_default().push(number);
        self.assign(|queue| *queue.name == *name);
        number
    }

    /// Removes a crew that was added; what it has in flight still counts until it finishes.
    pub fn remove_crew(&mut self, number: CrewNo) {
        let Some(crew) = self.crews.get_mut(&number).filter(|crew| crew.extra && !crew.gone) else { return };
        crew.gone = true;
        let name = crew.policy.pattern.clone();
        if let Some(crews) = self.extras.get_mut(&name) {
            crews.retain(|crew| *crew != number);
            if crews.is_empty() {
                self.extras.remove(&name);
            }
        }
        self.assign(|queue| queue.crew == Some(number));
        self.crews.retain(|other, crew| *other != number || crew.used > 0);
    }

    /// Starts no suspect until `allow_suspects`: a server that has only just come up proves nothing about them.
    pub fn hold_suspects(&mut self) {
        self.suspect_runs = true;
    }

    /// Suspects may start from now on, one at a time.
    pub fn allow_suspects(&mut self) {
        self.suspect_runs = false;
        for queue in std::mem::take(&mut self.behind_suspect) {
            self.place(queue);
        }
    }

    pub fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    pub fn pause(&mut self, queue: QueueNo) {
        self.set_paused(queue, true);
    }

    pub fn unpause(&mut self, queue: QueueNo) {
        self.set_paused(queue, false);
    }

    /// Whether a queue waits for more jobs before it starts any.
    pub fn set_lingering(&mut self, number: QueueNo, lingers: bool) {
        if let Some(queue) = self.queues.get_mut(&number).filter(|queue| queue.lingers != lingers) {
            queue.lingers = lingers;
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
        let number = self.queues.get(&queue)?.crew?;
        self.crews.get(&number).map(|crew| (number, Arc::clone(&crew.policy)))
    }

    /// The rules of a crew while it has something in flight or serves queues.
    pub fn policy(&self, crew: CrewNo) -> Option<Arc<Policy>> {
        self.crews.get(&crew).map(|crew| Arc::clone(&crew.policy))
    }

    /// Starts in flight: of the server.
    pub fn in_flight(&self) -> u32 {
        self.used
    }

    /// It has a runner and is not paused, so a person may wait for it to be drained.
    pub fn can_run(&self, queue: QueueNo) -> bool {
        !matches!(self.why(queue), Reason::NoRunner | Reason::Paused)
    }

    /// Ready jobs that `plan` has not taken yet.
    pub fn waiting(&self, queue: QueueNo) -> u64 {
        self.queues.get(&queue).map_or(0, Queue::waiting)
    }

    /// What holds a queue back.
    pub fn why(&self, queue: QueueNo) -> Reason {
        let Some(queue) = self.queues.get(&queue) else { return Reason::NoRunner };
        let Some(crew) = queue.crew.and_then(|number| self.crews.get(&number)) else { return Reason::NoRunner };
        if queue.paused || crew.policy.paused {
            Reason::Paused
        } else if queue.waiting() == 0 {
            Reason::NothingWaits
        } else if queue.choose(true).is_none() {
            Reason::Barren
        } else if queue.lingers {
            Reason::Lingering
        } else if self.draining {
            Reason::Draining
        } else if queue.choose(!self.suspect_runs).is_none() {
            Reason::SuspectRunning
        } else if crew.is_full() {
            Reason::CrewSlotsTaken { slots: crew.policy.slots }
        } else if self.used >= self.slots {
            Reason::ServerSlotsTaken { slots: self.slots }
        } else {
            Reason::Runnable
        }
    }

    /// Books one slot for the queue at the head, or puts the queue where it belongs if it cannot start from here.
    fn book(&mut self, number: QueueNo, crew_no: CrewNo, class: Priority, due: Pass) -> Option<Planned> {
        let queue = self.queues.get_mut(&number)?;
        let choice = queue.choose(!self.suspect_runs).filter(|choice| choice.priority == class);
        let Some(choice) = choice else {
            // A suspect has started since the queue was placed.
            self.place(number);
            return None;
        };
        let crew = self.crews.get_mut(&crew_no)?;
        let lane = Lane { queue: number, priority: class, kind: choice.kind };
        let ready = u32::try_from(queue.ready(class, choice.kind)).unwrap_or(u32::MAX);
        let most = if choice.kind == LaneKind::Suspect { 1 } else { ready.min(crew.batch()) };
        crew.order.remove(&(Reverse(class), queue.pass + crew.stride(), number));
        queue.listed = false;
        queue.take(lane, most);
        queue.pass = due + crew.stride() * Pass::from(most - 1);
        let clock = self.clocks.entry(class).or_insert(0);
        *clock = due.max(*clock);
        if crew.is_full() {
            crew.stocked += 1;
        } else {
            crew.used += 1;
            crew.freeze(&self.clocks);
            self.used += 1;
        }
        self.suspect_runs |= choice.kind == LaneKind::Suspect;
        self.place(number);
        self.enter(crew_no);
        Some(Planned { lane, most, crew: crew_no })
    }

    /// Puts a queue where it belongs in its crew's order, or nowhere; a queue that stands right keeps its place.
    fn place(&mut self, number: QueueNo) {
        let Some(queue) = self.queues.get(&number) else { return };
        let choice = queue.choose(!self.suspect_runs);
        if self.suspect_runs && choice.map(|c| c.priority) != queue.choose(true).map(|c| c.priority) {
            self.behind_suspect.insert(number);
        }
        let class = choice.map(|choice| choice.priority).filter(|_| !queue.paused && !queue.lingers);
        if queue.listed && class == Some(queue.class) {
            return;
        }
        self.unlist(number);
        let (Some(class), Some(queue)) = (class, self.queues.get_mut(&number)) else { return };
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
        let Some(queue) = self.queues.get_mut(&number).filter(|queue| queue.listed) else { return };
        queue.listed = false;
        let Some((crew_no, crew)) = queue.crew.and_then(|no| Some((no, self.crews.get_mut(&no)?))) else { return };
        let stood = crew.order.remove(&(Reverse(queue.class), queue.pass + crew.stride(), number));
        queue.pass += crew.lag(queue.class);
        assert!(stood, "a listed queue stands in its crew's order");
        self.enter(crew_no);
    }

    fn unlist_all(&mut self) {
        for number in self.queues.keys().copied().collect::<Vec<_>>() {
            self.unlist(number);
        }
    }

    /// Sets all clocks back to nought, as if every queue had just become ready.
    fn rewind(&mut self) {
        self.unlist_all();
        self.clocks.clear();
        self.queues.values_mut().for_each(|queue| queue.pass = 0);
        self.crews.values_mut().for_each(|crew| crew.reset(&self.clocks));
        for number in self.queues.keys().copied().collect::<Vec<_>>() {
            self.place(number);
        }
    }

    /// Brings a crew's entry in the index up to date.
    fn enter(&mut self, number: CrewNo) {
        let Some(crew) = self.crews.get_mut(&number) else { return };
        let entry = crew.best().map(|place| (place, number));
        if entry != crew.entry {
            if let Some(old) = crew.entry.take() {
                self.index.remove(&old);
            }
            self.index.extend(entry);
            crew.entry = entry;
        }
    }

    fn set_paused(&mut self, number: QueueNo, paused: bool) {
        if let Some(queue) = self.queues.get_mut(&number) {
            queue.paused = paused;
            self.place(number);
        }
    }

    /// Gives the queues that meet the test to the crews that the rules name now.
    fn assign(&mut self, concerned: impl Fn(&Queue) -> bool) {
        let concerned = self.queues.iter().filter(|(_, queue)| concerned(queue)).map(|(number, _)| *number);
        for number in concerned.collect::<Vec<_>>() {
            self.unlist(number);
            let crew = self.crew_for(&self.queues[&number].name);
            if let Some(queue) = self.queues.get_mut(&number) {
                queue.crew = crew;
                queue.hope_again();
            }
            self.place(number);
        }
    }

    fn crew_for(&self, name: &str) -> Option<CrewNo> {
        let extra = self.extras.get(name).and_then(|crews| crews.last()).copied();
        let of_config = || self.in_order.iter().copied().find(|no| self.crews[no].policy.matches(name));
        extra.or_else(of_config)
    }

    fn number_crew(&mut self) -> CrewNo {
        self.next_crew += 1;
        CrewNo(self.next_crew)
    }
}

#[cfg(test)]
mod tests;
