//! Steering by turns: what holds after the answer, what a dropped turn takes back, and what ends by itself.

use super::super::event::{NewRules, QueueExplained, Steered, Steering};
use super::*;
use crate::store::StoreError;
use windlass_core::hours::{Hours, Zone};
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::scheduler::{Reason, Stall};

fn made(target: &str, key: Key, value: u32) -> Override {
    let (target, by) = (Target::from_text(target), String::new());
    Override { target, key, value, by, since: Time(0), until: None, reason: String::new() }
}

impl World {
    fn steer(&mut self, set: Vec<Override>, unset: Vec<(Target, Option<Key>)>) -> (Result<Steered, Failure>, Effects) {
        let (answer, given) = answer();
        let steering = Steering { set, unset, by: "ada".into() };
        let effects = self.turn([Event::Steer { steering, answer }]);
        (given.try_recv().unwrap(), effects)
    }

    fn explain(&mut self, queue: &str) -> QueueExplained {
        let (answer, given) = answer();
        self.turn([Event::Explain { queue: queue.into(), lane: None, data: Vec::new(), answer }]);
        given.try_recv().unwrap().unwrap()
    }
}

#[test]
fn nothing_starts_after_the_answer_to_a_pause_and_everything_after_its_end() {
    let mut world = World::new(vec![serving("q")]);
    let (lot, (pushed, _given)) = (world.lot("q", 3), answer());
    let (paused, given) = answer();
    let pause = Override { until: Some(Time(5_000_000)), ..made("q", Key::Paused, 1) };
    let steering = Steering { set: vec![pause], unset: Vec::new(), by: "ada".into() };
    let push = Event::Pushed { lot, durability: Durability::Full, answer: pushed };
    let effects = world.turn([push, Event::Steer { steering, answer: paused }]);
    assert!(given.try_recv().unwrap().is_ok());
    assert_eq!((effects.starts.len(), effects.audit.len()), (0, 1), "the same turn starts none of it");
    assert_eq!(effects.audit[0].to_json()["by"], "ada");
    let Reason::Paused(by) = world.explain("q").reason else { panic!("paused") };
    assert_eq!((by.by.as_str(), by.since), ("ada", world.now));
    assert_eq!(world.engine.next_wake().unwrap(), Some(Time(5_000_000)), "its end is a deadline");
    world.now = Time(4_999_999);
    assert_eq!(world.turn([]).starts.len(), 0);
    world.now = Time(5_000_000);
    let effects = world.turn([]);
    assert_eq!((effects.starts.len(), effects.audit[0].to_json()["action"].as_str()), (3, Some("end")));
    assert_eq!(world.engine.store().overrides().unwrap(), []);
    assert!(world.engine.next_wake().unwrap().is_none_or(|wake| wake > Time(5_000_000)));
}

#[test]
fn what_was_claimed_ahead_goes_back_when_its_queue_is_paused() {
    let mut world = World::new(vec![serving("a"), serving("b")]);
    world.push("a", 300);
    world.finish(succeeded());
    world.engine.turn_took(Duration::from_millis(1));
    assert!(world.finish(succeeded()).starts.len() > 100);
    let (_, effects) = world.steer(vec![made("b", Key::Paused, 1)], Vec::new());
    assert_eq!(effects.stops.len(), 0, "another queue's pause touches nothing");
    let (_, effects) = world.steer(vec![made("a*", Key::Paused, 1)], Vec::new());
    assert_eq!(effects.stops.len(), world.under_way.len());
    assert!(effects.stops.iter().all(|(_, why)| *why == Stop::Withdraw), "what has begun goes on");
}

#[test]
fn a_dropped_turn_takes_rules_and_overrides_back() {
    let mut world = World::new(vec![serving("q")]);
    world.steer(vec![made("q", Key::Slots, 2)], Vec::new()).0.unwrap();
    world.push("q", 3);
    let (lot, (pushed, refused)) = (world.lot("q", 4), answer());
    let push = Event::Pushed { lot, durability: Durability::Full, answer: pushed };
    let (reloaded, reload) = answer();
    let (steered, steer) = answer();
    let steering = Steering {
        set: vec![made("q", Key::Paused, 1)],
        unset: vec![(Target::from_text("q"), None)],
        by: "ada".into(),
    };
    world.engine.store().fail_commit(StoreError::Full("test".into()));
    let effects = world.turn([
        push,
        Event::Reload {
            new: NewRules { policies: vec![serving("other")], slots: 1, ..NewRules::default() },
            answer: reloaded,
        },
        Event::Steer { steering, answer: steered },
    ]);
    assert_eq!(refused.try_recv().unwrap().unwrap_err().kind, Kind::Full);
    assert_eq!(reload.try_recv().unwrap().unwrap_err().kind, Kind::Full);
    assert_eq!(steer.try_recv().unwrap().unwrap_err().kind, Kind::Full);
    assert!(effects.audit.is_empty(), "what never was is not in the log");
    assert_eq!(world.explain("q").reason, Reason::Stalled(Stall::NoSpace));
    world.now = world.now.after(FULL_RETRY);
    world.turn([]);
    assert_eq!(world.explain("q").reason, Reason::CrewSlotsTaken { slots: 2 }, "the old rules, the old override");
    world.finish(succeeded());
    assert_eq!(world.under_way.len(), 2);
}

#[test]
fn failures_of_a_dropped_turn_are_not_counted_twice() {
    let mut policy = serving("q");
    policy.attempts = 1;
    let mut world = World::new(vec![policy]);
    world.push("q", 1);
    let (answer, given) = answer();
    world.turn([Event::AwaitDrained { answer, due_only: false, here_only: false }]);
    let start = world.under_way.remove(0);
    world.engine.store().fail_commit(StoreError::Full("test".into()));
    let end = finished(&start, failed(), world.now);
    world.turn([Event::Finished(end)]);
    assert!(given.try_recv().is_err());
    world.now = world.now.after(FULL_RETRY);
    world.turn([]);
    assert_eq!(given.try_recv().unwrap(), Ok(Drained { failed: 1, cancelled: 0 }));
}

#[test]
fn what_a_dropped_turn_did_is_said_by_the_turn_that_does_it() {
    let mut world = World::new(vec![serving("q")]);
    let until = Some(world.now.after(Duration::from_secs(1)));
    world.steer(vec![Override { until, ..made("q", Key::Paused, 1) }], Vec::new()).0.unwrap();
    world.now = world.now.after(Duration::from_secs(1));
    world.engine.store().fail_commit(StoreError::Full("test".into()));
    let dropped = world.turn([]).notes;
    assert!(dropped.len() == 1 && dropped[0].starts_with("no space left"), "{dropped:?}");
    world.now = world.now.after(FULL_RETRY);
    let said = world.turn([]).notes;
    assert!(said.iter().filter(|note| note.contains("has ended")).count() == 1, "{said:?}");
}

#[test]
fn overrides_are_checked_as_a_whole_before_any_holds() {
    let mut off = serving("off");
    off.enabled = false;
    off.service = Service::Command(Command::default());
    let mut world = World::new(vec![serving("img.*"), off]);
    for (bad, kind) in [
        (made("img.*", Key::Slots, 0), Kind::BadData),
        (made("", Key::Weight, 1), Kind::BadData),
        (made("-x", Key::Paused, 1), Kind::BadData),
        (made("img.a", Key::Weight, 2), Kind::NotFound),
        (made("i*", Key::Slots, 2), Kind::NotFound),
        (made("off", Key::Enabled, 1), Kind::Conflict),
        (Override { until: Some(Time(1)), ..made("q", Key::Paused, 1) }, Kind::BadData),
        (Override { reason: "x".repeat(501), ..made("q", Key::Paused, 1) }, Kind::BadData),
        (Override { reason: "a\nb".into(), ..made("q", Key::Paused, 1) }, Kind::BadData),
    ] {
        let (given, effects) = world.steer(vec![made("img.*", Key::Slots, 3), bad.clone()], Vec::new());
        assert_eq!(given.unwrap_err().kind, kind, "{bad:?}");
        assert!(effects.audit.is_empty());
    }
    let fine = vec![made("img.*", Key::Weight, 2), made("img.a", Key::Slots, 2), made("", Key::Slots, 9)];
    assert_eq!(world.steer(fine, Vec::new()).0.unwrap().in_force.len(), 3);
    let named = vec![(Target::from_text("img*"), Some(Key::Slots))];
    let steered = world.steer(Vec::new(), named).0.unwrap();
    assert_eq!((steered.removed.len(), steered.in_force.len()), (1, 2), "a pattern names what it covers");
    let (steered, effects) = world.steer(Vec::new(), vec![(Target::Server, None), (Target::from_text("no"), None)]);
    assert_eq!((steered.unwrap().removed.len(), effects.audit[0].to_json()["action"].as_str()), (1, Some("unset")));
}

#[test]
fn overrides_are_there_after_a_restart() {
    let mut world = World::new(vec![serving("q")]);
    world.steer(vec![made("", Key::Paused, 1)], Vec::new()).0.unwrap();
    let mut store = world.engine.store().clone();
    store.crash();
    let evidence =
        Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD };
    let options = world.engine.options.clone();
    let (engine, _) = Engine::new(store, options, evidence, world.now).unwrap();
    world.engine = engine;
    world.push("q", 2);
    assert!(world.under_way.is_empty());
    assert_eq!(world.explain("q").reason.code(), "server_paused");
    world.steer(Vec::new(), vec![(Target::Server, None)]).0.unwrap();
    assert_eq!(world.under_way.len(), 2);
}

#[test]
fn hours_are_a_deadline_of_the_engine() {
    let hour = |hour: i64| Time(hour * 3_600_000_000);
    let mut policy = serving("q");
    policy.hours = Some(Hours::parse("22:00-06:00", |_| Ok(Zone::UTC)).unwrap());
    let mut world = World::new(vec![policy]);
    world.now = hour(12);
    world.push("q", 2);
    assert_eq!((world.under_way.len(), world.engine.next_wake().unwrap()), (0, Some(hour(22))));
    assert_eq!(world.explain("q").reason.code(), "outside_hours");
    world.now = hour(22);
    world.turn([]);
    assert_eq!((world.under_way.len(), world.engine.next_wake().unwrap()), (2, Some(hour(30))));
    world.now = hour(30);
    assert_eq!(world.turn([]).stops.len(), 2, "what has not begun goes back");
}
