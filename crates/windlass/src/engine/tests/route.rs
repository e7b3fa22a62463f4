//! Topics and those who have subscribed to them.

use super::*;
use crate::store::Order;
use windlass_core::job::{Lane, LaneKind, RunId};
use windlass_core::router::{Router, Subscription};

fn router(subscriptions: &[(&str, &[&str])]) -> Router {
    let name = |text: &&str| QueueName::new(text.as_bytes()).unwrap();
    let read = |(pattern, listeners): &(&str, &[&str])| Subscription {
        pattern: (*pattern).to_owned(),
        listeners: listeners.iter().map(name).collect(),
    };
    Router::new(subscriptions.iter().map(read).collect()).unwrap()
}

fn reload(world: &mut World, policies: Vec<Policy>, router: Router) {
    let new = NewRules { policies, slots: 4, router, ..NewRules::default() };
    world.turn([Event::Reload { new, answer: answer().0 }]);
}

/// What is under way, by queue and data.
fn flying(world: &World) -> Vec<(String, String)> {
    let data =
        |start: &Start| String::from_utf8_lossy(start.held.jobs.data(usize::from(start.held.first))).into_owned();
    let mut all: Vec<_> = world.under_way.iter().map(|start| (start.queue.to_string(), data(start))).collect();
    all.sort();
    all
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(queue, data)| ((*queue).to_owned(), (*data).to_owned())).collect()
}

#[test]
fn every_listener_gets_a_copy_in_the_run_and_the_message_is_done_with_them() {
    let mut world = World::new(vec![serving("*")]);
    reload(&mut world, vec![serving("*")], router(&[("order.*", &["mail", "bill"])]));
    let run = RunId::first(Origin::from_random(0x51));
    let mut lot = world.lot("order.new", 1);
    lot.jobs[0].run = Some(run);
    let id = lot.jobs[0].jobs.id(0);
    let effects = world.turn([Event::Pushed { lot, durability: Durability::Full, answer: answer().0 }]);
    assert_eq!(flying(&world), pairs(&[("bill", "data 1"), ("mail", "data 1")]), "in the turn that took it in");
    let [entry] = &effects.archive[..] else { panic!("{:?}", effects.archive) };
    assert_eq!((entry.settlement.held.jobs.id(0), entry.state), (id, State::Succeeded), "what the printed id shows");
    assert!(format!("{:?}", entry.settlement.verdict).contains("sent to mail, bill"), "{entry:?}");
    assert!(world.under_way.iter().all(|start| start.run == run.to_string() && start.held.jobs.id(0) != id));
    assert!(world.under_way.iter().all(|start| start.held.jobs.parent(0) == Some(id)), "and they know it");
    world.turn([Event::SealRun { run, answer: answer().0 }]);
    world.finish(succeeded());
    let last = world.finish(succeeded());
    assert!(world.engine.is_quiet() && last.archive.len() == 1);
    let counts = world.engine.store.run(run).unwrap().unwrap().counts;
    assert_eq!((counts.ended, counts.total()), (true, 3), "the message and two copies, and then the end");
}

#[test]
fn a_message_may_be_emitted_and_a_listener_may_be_a_topic() {
    let mut world = World::new(vec![serving("*")]);
    reload(&mut world, vec![serving("*")], router(&[("a", &["b", "x"]), ("b", &["y", "z"])]));
    world.push("q", 1);
    let start = world.under_way.remove(0);
    let emitted = vec![Emitted { by: 0, queue: QueueName::new(b"a").unwrap(), data: b"m".to_vec() }];
    world.turn([Event::Finished(Finished { emitted, ..finished(&start, succeeded(), world.now) })]);
    assert_eq!(flying(&world), pairs(&[("x", "m"), ("y", "m"), ("z", "m")]));
}

#[test]
fn a_reload_sends_what_waits_and_takes_a_topic_back() {
    let mut world = World::new(Vec::new());
    world.push("t", 2);
    reload(&mut world, vec![serving("l")], router(&[("t", &["l"])]));
    assert_eq!(flying(&world), pairs(&[("l", "data 1"), ("l", "data 2")]), "what waited before anybody listened");
    world.under_way.clear();
    reload(&mut world, vec![serving("t")], Router::default());
    world.push("t", 1);
    assert_eq!(flying(&world), pairs(&[("t", "data 3")]), "nobody listens any more, so its table serves it");
}

#[test]
fn a_turn_makes_no_more_copies_than_it_may_and_the_next_goes_on() {
    let mut world = World::new(Vec::new());
    let listeners: Vec<String> = (0..100).map(|n| format!("l{n}")).collect();
    let names: Vec<&str> = listeners.iter().map(String::as_str).collect();
    reload(&mut world, Vec::new(), router(&[("t", &names)]));
    world.push("t", 1000);
    let copies = |world: &World| world.engine.queues.iter().map(|(_, q)| q.by_state[State::Ready.index()]).sum::<u64>();
    let first = copies(&world);
    assert!((40_000..50_000).contains(&first), "{first}");
    while world.engine.next_wake().unwrap() == Some(Time::ZERO) {
        world.turn([]);
    }
    assert_eq!(copies(&world), 100_000);
}

#[test]
fn a_paused_topic_keeps_its_messages() {
    use windlass_core::overrides::{Key, Override, Target};
    let mut world = World::new(Vec::new());
    reload(&mut world, vec![serving("l")], router(&[("t", &["l"])]));
    let target = Target::Queues("t".into());
    let (by, reason) = (String::new(), String::new());
    let pause =
        Override { target: target.clone(), key: Key::Paused, value: 1, by, reason, since: Time(0), until: None };
    let steering = event::Steering { set: vec![pause], unset: Vec::new(), by: "me".into() };
    world.turn([Event::Steer { steering, answer: answer().0 }]);
    world.push("t", 1);
    assert!(world.under_way.is_empty());
    assert_eq!(world.engine.explain("t", None, b"").reason.code(), "paused");
    let steering = event::Steering { unset: vec![(target, None)], by: "me".into(), ..Default::default() };
    world.turn([Event::Steer { steering, answer: answer().0 }]);
    assert_eq!(flying(&world), pairs(&[("l", "data 1")]));
}

#[test]
fn copies_of_messages_that_lie_together_share_their_data() {
    let mut world = World::new(vec![serving("*")]);
    reload(&mut world, Vec::new(), router(&[("t", &["a", "b"]), ("b", &["c", "d"])]));
    let mut lot = world.lot("t", 1);
    let mut builder = ChunkBuilder::new(Origin::from_random(0x52));
    (0..20).for_each(|n| builder.push(n, format!("{n:0500}").as_bytes()));
    lot.jobs[0].jobs = Arc::new(builder.finish());
    world.turn([Event::Pushed { lot, durability: Durability::Full, answer: answer().0 }]);
    world.engine.store.commit(Durability::Full).unwrap();
    for listener in ["a", "c", "d"] {
        let (no, _) = world.engine.queues.iter().find(|(_, queue)| queue.name.as_str() == listener).unwrap();
        let lane = Lane { queue: no, priority: Priority::NORMAL, kind: LaneKind::Fresh };
        let held = world.engine.store.claim(&[Order { lane, most: 50 }], world.now).unwrap();
        let [held] = &held[..] else { panic!("{} stretches", held.len()) };
        assert!(held.jobs.shared().is_some() && held.count == 20, "{listener}");
        for (n, index) in held.range().enumerate() {
            assert_eq!(held.jobs.data(index), format!("{n:0500}").as_bytes());
            let parent = held.jobs.parent(index).unwrap();
            assert_eq!(listener == "a", parent == JobId { origin: Origin::from_random(0x52), offset: n as u64 });
        }
    }
}
