//! Lots by turns: what is stored with their claims, who takes them, and what a crash on either side leaves.

use super::super::event::{Departed, Departure, Parcel, Wanted};
use super::*;
use crate::lot::{self, LotNo, Manner};
use crate::store::{Arriving, Filter, Past};
use std::collections::BTreeSet;
use windlass_core::job::{Arrival, RunId};
use windlass_core::policy::{Forward, Host};

fn there() -> Forward {
    let host = Host { tls: false, name: "there".into(), port: 80, inside: false };
    Forward { host, base: String::new(), token_file: None, address_file: None }
}

fn forwarding() -> World {
    World::new(vec![Policy::new("q", Service::Forward(there()))])
}

fn moved() -> Outcome {
    Outcome::Moved { to: there().to_string() }
}

/// The process dies, and the next one begins with what is in the store.
fn restarted(mut world: World, policies: Vec<Policy>) -> World {
    let mut store = world.engine.store().clone();
    store.crash();
    let options = EngineOptions { policies, ..world.engine.options.clone() };
    let evidence =
        Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD };
    let (engine, _) = Engine::new(store, options, evidence, world.now).unwrap();
    let mut world = World { engine, under_way: Vec::new(), ..world };
    world.under_way = world.engine.take_resumed();
    world
}

/// Ids and states of all jobs.
fn jobs(world: &mut World) -> Vec<(JobId, State)> {
    let page = StoreView::list(world.engine.store(), &Filter::default(), Arrival(0), 10_000).unwrap();
    page.jobs.into_iter().map(|job| (job.id, job.state)).collect()
}

fn notes(world: &mut World, prefix: &str) -> usize {
    world.engine.store().notes(prefix, usize::MAX).unwrap().len()
}

/// What another server would send of these starts.
fn parcel(starts: &[Start]) -> Parcel {
    let number = starts[0].lot.as_ref().unwrap().number;
    let mut lot = Lot::default();
    for start in starts {
        let kept = |index: usize| start.held.range().contains(&index);
        let jobs = Arc::new(start.held.jobs.rebuilt(None, kept));
        let queue = QueueName::clone(&start.queue);
        lot.jobs.push(NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs });
    }
    Parcel { number, lot, pasts: Vec::new(), known: 0 }
}

fn give(world: &mut World, parcel: Parcel) -> Result<lot::Answer, Failure> {
    let (answer, given) = answer();
    world.turn([Event::Parcel { parcel, answer }]);
    given.try_recv().unwrap()
}

fn depart(world: &mut World, wanted: Wanted) -> Receiver<Result<Departed, Failure>> {
    let (answer, given) = answer();
    world.turn([Event::Depart {
        departure: Departure { wanted, to: there(), by: "ada".into(), chosen: "all".into() },
        answer,
    }]);
    given
}

#[test]
fn a_forwarded_queue_leaves_in_lots_that_are_stored_until_they_have_arrived() {
    let mut world = forwarding();
    world.push("q", 5);
    assert_eq!(world.under_way.len(), 1, "one stretch");
    let lot = world.under_way[0].lot.clone().unwrap();
    assert_eq!((lot.manner, lot.resumed, notes(&mut world, "moving/")), (Manner::Forward, false, 1));
    let effects = world.finish(moved());
    assert_eq!(effects.archive[0].settlement.outcome, crate::store::MOVED);
    assert_eq!(effects.confirms, [lot], "the other server may forget it");
    assert_eq!((notes(&mut world, "moving/"), jobs(&mut world).len()), (0, 0));
}

#[test]
fn a_lot_on_its_way_outlives_the_server_and_is_sent_under_the_same_number() {
    let mut world = forwarding();
    world.push("q", 3);
    let number = world.under_way[0].lot.as_ref().unwrap().number;
    // Whatever the rules say now: it may have arrived where it was sent.
    let mut world = restarted(world, vec![serving("q")]);
    let lots: BTreeSet<LotNo> = world.under_way.iter().map(|start| start.lot.as_ref().unwrap().number).collect();
    let count: u16 = world.under_way.iter().map(|start| start.held.count).sum();
    assert_eq!((lots, count), (BTreeSet::from([number]), 3));
    assert!(world.under_way.iter().all(|start| start.lot.as_ref().unwrap().resumed));
    assert!(world.turn([]).starts.is_empty(), "none of them is started here");
    while !world.under_way.is_empty() {
        world.finish(moved());
    }
    assert_eq!((notes(&mut world, "moving/"), jobs(&mut world).len()), (0, 0));
}

#[test]
fn a_server_does_not_wait_for_lots_when_it_stops() {
    let mut world = forwarding();
    world.push("q", 3);
    let effects = world.turn([Event::Halt]);
    assert!(effects.stops.is_empty() && world.engine.is_over());
}

#[test]
fn a_lot_that_is_sent_twice_arrives_once() {
    let mut source = forwarding();
    source.push("q", 3);
    let mut target = World::new(Vec::new());
    let first = give(&mut target, parcel(&source.under_way)).unwrap();
    assert!(first.taken);
    assert_eq!(jobs(&mut target).len(), 3);
    // Its jobs have ended and are forgotten here, and then it is sent again, after a crash of either.
    let ids: Vec<JobId> = jobs(&mut target).into_iter().map(|(id, _)| id).collect();
    target.engine.store().delete(&ids, Time(2)).unwrap();
    target.engine.store().commit(Durability::Full).unwrap();
    let mut target = restarted(target, Vec::new());
    assert_eq!(give(&mut target, parcel(&source.under_way)).unwrap(), first);
    assert_eq!(jobs(&mut target).len(), 0, "nothing came a second time");
    let number = source.under_way[0].lot.as_ref().unwrap().number;
    let (settled, _given) = answer();
    target.turn([Event::LotSettled { number, answer: settled }]);
    assert_eq!(notes(&mut target, "lot/"), 0);
}

#[test]
fn a_lot_that_nobody_asks_about_is_forgotten_after_a_long_time() {
    let mut source = forwarding();
    source.push("q", 1);
    let mut target = World::new(Vec::new());
    give(&mut target, parcel(&source.under_way)).unwrap();
    target.turn([Event::Forget { before: Time(0) }]);
    assert_eq!(notes(&mut target, "lot/"), 1);
    target.now = target.now.after(Duration::from_secs(91 * 24 * 3600));
    target.turn([Event::Forget { before: Time(0) }]);
    assert_eq!(notes(&mut target, "lot/"), 0);
}

#[test]
fn what_comes_with_a_past_keeps_it() {
    let mut target = World::new(Vec::new());
    let states = [State::Ready, State::Scheduled, State::Retrying, State::Suspended];
    let later = Time(9_000_000);
    let pasts = states.iter().enumerate().map(|(at, state)| {
        let mut builder = ChunkBuilder::new(Origin::from_random(9));
        builder.push(at as u64, b"x");
        let due = matches!(state, State::Scheduled | State::Retrying).then_some(later);
        let record = Record { starts: 3, failures: 2, suspicions: 0 };
        let past = Past { state: *state, due, record, errors: Vec::new() };
        let queue = QueueName::new(b"q").unwrap();
        (Arriving { queue, priority: Priority::NORMAL, past, jobs: Arc::new(builder.finish()) }, "page 7".to_owned())
    });
    let parcel = Parcel { number: LotNo(1), lot: Lot::default(), pasts: pasts.collect(), known: 0 };
    assert!(give(&mut target, parcel).unwrap().taken);
    assert_eq!(jobs(&mut target).into_iter().map(|(_, state)| state).collect::<Vec<_>>(), states);
    assert_eq!(notes(&mut target, "checkpoint/"), 4);
    let page = StoreView::list(target.engine.store(), &Filter::default(), Arrival(0), 10).unwrap();
    assert!(page.jobs.iter().all(|job| job.record == Record { starts: 3, failures: 2, suspicions: 0 }));
    let due = |state| page.jobs.iter().find(|job| job.state == state).and_then(|job| job.not_before);
    assert_eq!((due(State::Scheduled), due(State::Retrying)), (Some(later), Some(later)));
}

#[test]
fn a_move_takes_what_waits_and_a_refusal_puts_each_job_back_as_it_was() {
    let mut world = World::new(Vec::new());
    world.push("q", 4);
    let ids: Vec<JobId> = jobs(&mut world).into_iter().map(|(id, _)| id).collect();
    world.engine.store().amend(&ids[1..2], Amendment::Suspend, Time(2)).unwrap();
    let given = depart(&mut world, Wanted::Ids(ids.clone()));
    assert!(jobs(&mut world).iter().all(|(_, state)| *state == State::Running));
    while !world.under_way.is_empty() {
        world.finish(Outcome::NotMoved { why: "it is full".into() });
    }
    let report = given.try_recv().unwrap().unwrap();
    assert_eq!((report.held, report.moved, report.refused.as_deref()), (4, 0, Some("it is full")));
    let states: Vec<State> = jobs(&mut world).into_iter().map(|(_, state)| state).collect();
    assert_eq!(states, [State::Ready, State::Suspended, State::Ready, State::Ready]);
    assert_eq!(notes(&mut world, "moving/"), 0);
    let given = depart(&mut world, Wanted::Ready("q".into()));
    while !world.under_way.is_empty() {
        world.finish(moved());
    }
    let report = given.try_recv().unwrap().unwrap();
    assert_eq!((report.moved, jobs(&mut world).len()), (3, 1), "the suspended one is not ready");
}

#[test]
fn jobs_of_a_run_and_jobs_that_run_are_left_where_they_are() {
    let mut world = World::new(vec![serving("busy")]);
    world.push("busy", 1);
    let busy = world.under_way[0].held.ids().next().unwrap();
    let mut lot = world.lot("q", 1);
    let run = RunId::first(Origin::from_random(77));
    lot.jobs[0].run = Some(run);
    let of_run = lot.jobs[0].jobs.id(0);
    let (pushed, _given) = answer();
    world.turn([Event::Pushed { lot, durability: Durability::Full, answer: pushed }]);
    let report = depart(&mut world, Wanted::Ids(vec![busy, of_run])).try_recv().unwrap().unwrap();
    assert_eq!((report.held, report.left.values().sum::<u64>()), (0, 2), "{report:?}");
    assert!(report.left.keys().any(|why| why.contains("belong to a run")), "{report:?}");
    let report = depart(&mut world, Wanted::Ready("q".into())).try_recv().unwrap().unwrap();
    assert_eq!((report.held, report.left.len()), (0, 1), "{report:?}");
}

#[test]
fn a_turn_that_finds_no_space_has_packed_no_lot() {
    // The claim, the lot's note, and the commit.
    for verb in 1..=2 {
        let mut world = forwarding();
        world.engine.store().fail_verb(verb, StoreError::Full("test".into()));
        world.push("q", 3);
        world.now = world.engine.next_wake().unwrap().unwrap();
        world.push("q", 3);
        world.turn([]);
        let lots: BTreeSet<LotNo> = world.under_way.iter().map(|start| start.lot.as_ref().unwrap().number).collect();
        assert_eq!(notes(&mut world, "moving/"), lots.len(), "after verb {verb} has failed");
        while !world.under_way.is_empty() {
            world.finish(moved());
        }
        assert_eq!(notes(&mut world, "moving/"), 0);
    }
    let mut world = World::new(Vec::new());
    world.push("q", 3);
    world.engine.store().fail_commit(StoreError::Full("test".into()));
    let given = depart(&mut world, Wanted::Ready("q".into()));
    assert_eq!(given.try_recv().unwrap().unwrap_err().kind, Kind::Full);
    assert!(jobs(&mut world).iter().all(|(_, state)| *state == State::Ready));
    assert_eq!(notes(&mut world, "moving/"), 0);
}

/// Two engines, a network that repeats and forgets, and deaths of both in any moment.
struct Pair {
    source: World,
    target: World,
    pushed: BTreeSet<JobId>,
    /// Jobs that the target has done and forgotten.
    done: Vec<JobId>,
    dice: Jitter,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let (source, target) = (forwarding(), World::new(Vec::new()));
        let mut dice = Jitter(seed * 2 + 1);
        // The first numbers of small seeds are alike.
        for _ in 0..10 {
            dice.next();
        }
        Pair { source, target, pushed: BTreeSet::new(), done: Vec::new(), dice }
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.dice.next().is_multiple_of(one_in)
    }

    /// Brings a lot to the target; its answer may be lost, and so may the word that it is settled.
    fn deliver(&mut self, certain: bool) {
        if self.source.under_way.is_empty() {
            return;
        }
        let at = self.dice.next() as usize % self.source.under_way.len();
        let number = self.source.under_way[at].lot.as_ref().unwrap().number;
        let of_lot = |start: &Start| start.lot.as_ref().unwrap().number == number;
        let starts: Vec<Start> = self.source.under_way.iter().filter(|start| of_lot(start)).cloned().collect();
        assert!(give(&mut self.target, parcel(&starts)).unwrap().taken);
        if !certain && self.chance(2) {
            return;
        }
        let now = self.source.now;
        let ends: Vec<Event> = starts.iter().map(|start| Event::Finished(finished(start, moved(), now))).collect();
        self.source.under_way.retain(|start| !of_lot(start));
        let effects = self.source.turn(ends);
        assert_eq!(effects.confirms.len(), 1, "a lot ends whole");
        if certain || self.chance(2) {
            let (settled, _given) = answer();
            self.target.turn([Event::LotSettled { number, answer: settled }]);
        }
    }

    fn step(&mut self) {
        match self.dice.next() % 8 {
            0..=2 => {
                let before = self.source.pushed;
                let count = 1 + self.dice.next() % 5;
                self.source.push("q", count);
                let ids = before + 1..=self.source.pushed;
                self.pushed.extend(ids.map(|offset| JobId { origin: Origin::from_random(7), offset }));
            }
            3 | 4 => self.deliver(false),
            5 => {
                let source = std::mem::replace(&mut self.source, World::new(Vec::new()));
                self.source = restarted(source, vec![Policy::new("q", Service::Forward(there()))]);
                self.source.turn([]);
            }
            6 => {
                let target = std::mem::replace(&mut self.target, World::new(Vec::new()));
                self.target = restarted(target, Vec::new());
            }
            _ => {
                let ids: Vec<JobId> = jobs(&mut self.target).into_iter().map(|(id, _)| id).collect();
                let now = self.target.now;
                self.target.engine.store().delete(&ids, now).unwrap();
                self.target.engine.store().commit(Durability::Full).unwrap();
                let changes = self.target.engine.store().changes();
                self.target.engine.learn(changes, &mut Effects::default());
                self.done.extend(ids);
            }
        }
    }
}

#[test]
fn whatever_is_lost_repeated_or_killed_each_job_arrives_once() {
    for seed in 0..200 {
        let mut pair = Pair::new(seed);
        for _ in 0..60 {
            pair.step();
        }
        while !pair.source.under_way.is_empty() {
            pair.deliver(true);
            pair.source.turn([]);
        }
        assert_eq!((jobs(&mut pair.source), notes(&mut pair.source, "moving/")), (Vec::new(), 0), "seed {seed}");
        let mut arrived = std::mem::take(&mut pair.done);
        arrived.extend(jobs(&mut pair.target).into_iter().map(|(id, _)| id));
        arrived.sort_unstable();
        assert_eq!(arrived, pair.pushed.into_iter().collect::<Vec<_>>(), "seed {seed}");
    }
}
