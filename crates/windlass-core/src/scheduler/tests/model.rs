//! Random lives against a naive model: slots are never exceeded, nobody starves, every count adds up.

use super::{command, hours, lane, made};
use crate::overrides::{Key, Overrides, Target};
use crate::policy::Service;
use crate::scheduler::*;
use std::time::Duration;

/// A small xorshift, so that a failure repeats from its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn name(queue: u32) -> QueueName {
    QueueName::new(format!("q{queue}").as_bytes()).unwrap()
}

fn queue_of_weight_each(weights: &[u32]) -> Scheduler {
    let policies = weights.iter().enumerate().map(|(i, w)| command(&format!("q{i}"), 1 + i as u32 % 3, *w)).collect();
    let mut s = Scheduler::new(policies, 1);
    (0..weights.len() as u32).for_each(|queue| s.queue_appeared(QueueNo(queue), &name(queue)));
    s
}

fn serve_one(s: &mut Scheduler) -> Option<Planned> {
    let planned = s.plan().first().copied();
    if let Some(p) = planned {
        s.finished(p.crew, p.lane);
    }
    planned
}

#[test]
fn the_kth_start_comes_within_its_share_of_selections() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..60 {
        let weights: Vec<u32> = (0..1 + dice.below(30)).map(|_| 1 + dice.below(12) as u32).collect();
        let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        let mut s = queue_of_weight_each(&weights);
        (0..weights.len() as u32).for_each(|queue| s.ready(lane(queue, 0, LaneKind::Fresh), 1 << 20));
        let mut starts = vec![0u64; weights.len()];
        for selection in 1..=4 * sum {
            let served = serve_one(&mut s).unwrap().lane.queue.0 as usize;
            starts[served] += 1;
            for (queue, weight) in weights.iter().enumerate() {
                // The k-th start within ⌈k · sum ÷ weight⌉ selections, put the other way round.
                assert!(starts[queue] >= selection * u64::from(*weight) / sum, "round {round} {weights:?}");
            }
        }
        for (queue, weight) in weights.iter().enumerate() {
            assert_eq!(starts[queue], 4 * u64::from(*weight), "round {round}: exact at whole turns");
        }
    }
}

#[test]
fn a_queue_that_joins_a_crowd_is_served_in_bounded_time() {
    let mut dice = Dice(77);
    for round in 0..60 {
        let weights: Vec<u32> = (0..2 + dice.below(20)).map(|_| 1 + dice.below(20) as u32).collect();
        let mut s = queue_of_weight_each(&weights);
        let mut waited: Vec<Option<u64>> = vec![None; weights.len()];
        for step in 0..2000 {
            let queue = dice.below(weights.len() as u64) as usize;
            if waited[queue].is_none() {
                s.ready(lane(queue as u32, 0, LaneKind::Fresh), 1 + dice.below(5) as i64);
                waited[queue] = Some(0);
            }
            let Some(served) = serve_one(&mut s) else { continue };
            let served = served.lane.queue.0 as usize;
            waited.iter_mut().flatten().for_each(|w| *w += 1);
            waited[served] = (s.waiting(QueueNo(served as u32)) > 0).then_some(0);
            for (queue, wait) in waited.iter().enumerate() {
                let bound: u32 = weights.iter().map(|w| 1 + w / weights[queue]).sum();
                assert!(wait.unwrap_or(0) <= u64::from(bound), "round {round} step {step} queue {queue} {wait:?}");
            }
        }
    }
}

/// What the model knows beside the scheduler.
struct World {
    s: Scheduler,
    dice: Dice,
    queues: u32,
    ready: BTreeMap<Lane, i64>,
    flights: Vec<Planned>,
    extras: Vec<CrewNo>,
    slots: u32,
    overrides: Overrides,
    now: Time,
}

impl World {
    fn policies(dice: &mut Dice) -> Vec<Policy> {
        let mut policies = Vec::new();
        for pattern in ["q1*", "q2", "q3*", "q*"].into_iter().take(1 + dice.below(4) as usize) {
            let mut policy = command(pattern, 1 + dice.below(6) as u32, 1 + dice.below(5) as u32);
            if dice.below(2) == 0 {
                policy.service = Service::Handler { name: "h".into(), batch: 1 + dice.below(9) as u32 };
            }
            policy.enabled = dice.below(8) != 0;
            policy.hours = (dice.below(4) == 0).then(|| hours("06:00-18:00"));
            policies.push(policy);
        }
        policies
    }

    fn random_lane(&mut self) -> Lane {
        let kind = [LaneKind::Fresh, LaneKind::Fresh, LaneKind::Retry, LaneKind::Suspect][self.dice.below(4) as usize];
        lane(self.dice.below(u64::from(self.queues)) as u32, self.dice.below(3) as i64, kind)
    }

    fn plan(&mut self) {
        let before: BTreeMap<CrewNo, u32> = self.s.crews.iter().map(|(no, crew)| (*no, crew.used)).collect();
        for p in self.plan_explained() {
            let (crew, policy) = self.s.policy_of(p.lane.queue).expect("only a served queue is claimed from");
            assert_eq!(crew, p.crew);
            assert!(policy.enabled);
            let batch = policy.service.jobs_a_slot();
            let left = self.ready.get_mut(&p.lane).expect("a claimed lane had jobs");
            *left -= i64::from(p.most);
            assert!(p.most >= 1 && p.most <= batch && *left >= 0, "{p:?} leaves {left}");
            let got = if self.dice.below(4) == 0 { self.dice.below(u64::from(p.most) + 1) as u32 } else { p.most };
            *left += i64::from(p.most - got);
            self.s.claimed(&p, got);
            if got > 0 {
                self.flights.push(p);
            }
        }
        for (number, queue) in self.s.queues.iter() {
            let of_queue = self.flights.iter().filter(|p| p.lane.queue == number).count() as u32;
            assert_eq!(queue.used, of_queue, "what a queue has in flight is counted");
        }
        for (number, crew) in &self.s.crews {
            let in_flight = self.flights.iter().filter(|p| p.crew == *number).count() as u32;
            assert_eq!(crew.used, in_flight);
            assert!(in_flight <= crew.policy.slots.max(before.get(number).copied().unwrap_or(0)));
        }
        assert_eq!(self.s.in_flight() as usize, self.flights.len());
        assert!(self.flights.iter().filter(|p| p.lane.kind == LaneKind::Suspect).count() <= 1);
    }

    /// Plans start by start: what starts had no reason not to, and what does not start has one.
    fn plan_explained(&mut self) -> Vec<Planned> {
        let mut all = Vec::new();
        loop {
            let queues = (0..self.queues).map(QueueNo);
            let runnable: Vec<QueueNo> = queues.filter(|queue| self.s.why(*queue) == Reason::Runnable).collect();
            let planned = self.s.plan_up_to(1);
            let Some(p) = planned.first() else {
                assert_eq!(runnable, [], "nothing starts, and nothing says why");
                return all;
            };
            assert_eq!(planned.len(), 1);
            assert!(runnable.contains(&p.lane.queue), "{p:?} started against a reason");
            all.extend(planned);
        }
    }

    fn steer(&mut self) {
        let queue = format!("q{}", self.dice.below(u64::from(self.queues)));
        let target = ["", "q*", "q1*", "q2", &queue, &queue, &queue][self.dice.below(7) as usize];
        let key = Key::ALL[self.dice.below(5) as usize];
        let value = self.dice.below(5) as u32;
        if key.check(&Target::from_text(target), value).is_ok() {
            self.overrides.set(made(target, key, value));
        } else {
            Key::ALL.into_iter().for_each(|key| self.overrides.unset(&Target::from_text(target), key));
        }
        self.s.steer(self.overrides.clone());
    }

    /// Hours go by, and sometimes the clock is set back.
    fn time_goes_on(&mut self) {
        let step = Duration::from_secs(3600 * self.dice.below(20));
        self.now = if self.dice.below(5) == 0 { Time(self.now.0 / 2) } else { self.now.after(step) };
        self.s.tell_time(self.now);
    }

    fn step(&mut self) {
        match self.dice.below(21) {
            0 => {
                let policies = World::policies(&mut self.dice);
                self.slots = 1 + self.dice.below(12) as u32;
                self.s.reload(policies, self.slots);
            }
            1 | 2 => self.steer(),
            3 => self.time_goes_on(),
            4 => {
                let lane = self.random_lane();
                let held = self.ready.get(&lane).copied().unwrap_or(0);
                self.s.ready(lane, -held);
                self.ready.remove(&lane);
            }
            5 if self.extras.len() < 3 => {
                let queue = self.dice.below(u64::from(self.queues));
                let policy = command(&format!("q{queue}"), self.dice.below(4) as u32, 1 + self.dice.below(3) as u32);
                self.extras.push(self.s.add_crew(policy));
            }
            5 => {
                let extra = self.extras.swap_remove(self.dice.below(3) as usize);
                self.s.remove_crew(extra);
            }
            6..12 => {
                let (lane, count) = (self.random_lane(), 1 + self.dice.below(12) as i64);
                self.s.ready(lane, count);
                *self.ready.entry(lane).or_default() += count;
            }
            20 => {
                let queue = QueueNo(self.dice.below(u64::from(self.queues)) as u32);
                let lingers = self.dice.below(2) == 0;
                self.s.set_lingering(queue, lingers);
                let held = lingers && self.s.waiting(queue) > 0;
                assert!(!held || self.s.why(queue) != Reason::Runnable, "it waits for more");
            }
            _ if !self.flights.is_empty() => {
                let at = self.dice.below(self.flights.len() as u64) as usize;
                let done = self.flights.swap_remove(at);
                self.s.finished(done.crew, done.lane);
            }
            _ => {}
        }
        let before = self.s.in_flight();
        self.plan();
        assert!(self.s.in_flight() <= self.overrides.server_slots(self.slots).max(before));
    }

    /// With every brake off, everything that can ever run does.
    fn drain(&mut self) {
        std::mem::take(&mut self.extras).into_iter().for_each(|extra| self.s.remove_crew(extra));
        self.s.reload(vec![command("*", 3, 1)], 5);
        self.slots = 5;
        self.s.steer(Overrides::default());
        (0..self.queues).for_each(|queue| self.s.set_lingering(QueueNo(queue), false));
        while self.ready.values().any(|count| *count > 0) || !self.flights.is_empty() {
            for done in std::mem::take(&mut self.flights) {
                self.s.finished(done.crew, done.lane);
            }
            for p in self.s.plan() {
                *self.ready.get_mut(&p.lane).unwrap() -= i64::from(p.most);
                self.s.claimed(&p, p.most);
                self.flights.push(p);
            }
            let waits = self.ready.values().any(|count| *count > 0);
            assert!(!waits || !self.flights.is_empty(), "jobs wait, slots are free, and nothing starts");
        }
        assert_eq!(self.s.in_flight(), 0);
        assert!((0..self.queues).all(|queue| self.s.waiting(QueueNo(queue)) == 0));
        assert_eq!(self.s.crews.len(), 1, "crews that no rule names are gone with their last start");
    }
}

#[test]
fn random_lives_keep_every_promise() {
    for seed in 1..=120 {
        let mut dice = Dice(0x2545_f491_4f6c_dd1d ^ seed << 20);
        let policies = World::policies(&mut dice);
        let queues = 1 + dice.below(40) as u32;
        let slots = 1 + dice.below(12) as u32;
        let mut s = Scheduler::new(policies, slots);
        (0..queues).for_each(|queue| s.queue_appeared(QueueNo(queue), &name(queue)));
        let (ready, flights, extras) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (overrides, now) = (Overrides::default(), Time::ZERO);
        let mut world = World { s, dice, queues, ready, flights, extras, slots, overrides, now };
        (0..400).for_each(|_| world.step());
        world.drain();
    }
}

#[test]
fn fifty_thousand_queues_of_one_crew_leave_and_return_at_once() {
    let mut s = Scheduler::new(vec![command("*", 50_000, 1)], 50_000);
    for queue in 0..50_000 {
        s.queue_appeared(QueueNo(queue), &name(queue));
        s.ready(lane(queue, 0, LaneKind::Fresh), 2);
    }
    let planned = s.plan();
    let served: BTreeSet<_> = planned.iter().map(|p| p.lane.queue).collect();
    assert_eq!(served.len(), 50_000, "each once before any twice");
    assert!(s.index.is_empty(), "a full crew is out with all its queues");
    s.finished(planned[0].crew, planned[0].lane);
    assert_eq!((s.index.len(), s.plan().len()), (1, 1));
    assert!(std::mem::size_of::<Queue>() <= 64);
}

#[test]
fn clocks_are_set_back_before_they_wrap() {
    let mut s = queue_of_weight_each(&[3, 1]);
    s.clocks.insert(Priority::NORMAL, REWIND_AT - 1);
    (0..2).for_each(|queue| s.ready(lane(queue, 0, LaneKind::Fresh), 1000));
    let heavy = (0..400).filter(|_| serve_one(&mut s).is_some_and(|p| p.lane.queue.0 == 0)).count();
    assert_eq!(heavy, 300);
    assert!(s.clocks[&Priority::NORMAL] < REWIND_AT / 2);
}
