//! Runs with a command of their own: who serves them, what they take, and when they end.

use super::*;
use windlass_core::job::RunId;

fn run_service(queue: &str) -> OpenRun {
    let command = Command { argv: vec![b"echo".to_vec(), b"{}".to_vec()], ..Command::default() };
    let service = RunService { queue: queue.into(), command, slots: 2, attempts: 1, output_max: 1 << 20 };
    OpenRun { name: "n".into(), service: Some(service), terms: Default::default() }
}

fn open(world: &mut World, request: OpenRun) -> Result<RunInfo, Failure> {
    let (opened, given) = answer();
    world.turn([Event::OpenRun { request, answer: opened }]);
    given.try_recv().unwrap()
}

#[test]
fn a_run_is_served_followed_found_again_and_ends_once() {
    let mut world = World::new(Vec::new());
    let run = open(&mut world, run_service("r")).unwrap();
    let (told, heard) = channel();
    let follower = Follower(Box::new(move |followed| told.send(followed).is_ok()));
    let (followed, _given) = answer();
    world.turn([Event::Follow { run: run.id, follower, answer: followed }]);
    let mut lot = world.lot("r", 3);
    lot.jobs[0].run = Some(run.id);
    let taken = Taken { lines: 3, hash: 9 };
    lot.taken = Some((run.id, Taken::default(), taken));
    let (pushed, _given) = answer();
    world.turn([Event::Pushed { lot, durability: Durability::Full, answer: pushed }]);
    assert_eq!(world.under_way.len(), 2, "the run's own slots");
    assert_eq!(open(&mut world, run_service("r")).unwrap().taken, taken, "found again by name");

    let (awaited, end) = answer();
    world.turn([Event::AwaitRun { run: run.id, answer: awaited }]);
    let (sealed, _given) = answer();
    world.turn([Event::SealRun { run: run.id, answer: sealed }]);
    for outcome in [succeeded(), failed(), succeeded()] {
        assert!(end.try_recv().is_err(), "not over yet");
        world.finish(outcome);
    }
    let info = end.try_recv().unwrap().unwrap();
    assert!(info.counts.ended && !info.counts.all_succeeded());
    let heard: Vec<Followed> = heard.try_iter().collect();
    assert_eq!(heard.len(), 4);
    assert!(matches!(&heard[3], Followed::Ended(ended) if ended.id == run.id));
}

#[test]
fn a_run_takes_no_line_twice_and_no_foreign_queue() {
    let mut world = World::new(vec![serving("served")]);
    assert_eq!(open(&mut world, run_service("served")).unwrap_err().kind, Kind::Conflict);
    world.push("foreign", 1);
    assert_eq!(open(&mut world, run_service("foreign")).unwrap_err().kind, Kind::Conflict);
    let run = open(&mut world, run_service("own")).unwrap();
    let mut lot = world.lot("own", 1);
    lot.taken = Some((run.id, Taken { lines: 5, hash: 5 }, Taken { lines: 6, hash: 6 }));
    let (pushed, given) = answer();
    world.turn([Event::Pushed { lot, durability: Durability::Full, answer: pushed }]);
    assert_eq!(given.try_recv().unwrap().unwrap_err().kind, Kind::Conflict);
    assert!(world.under_way.is_empty(), "nothing of a refused push was stored");
}

fn follow(world: &mut World, run: RunId) {
    let follower = Follower(Box::new(|_| true));
    let (followed, _given) = answer();
    world.turn([Event::Follow { run, follower, answer: followed }]);
}

/// Jobs for the run's own queue.
fn feed(world: &mut World, run: RunId, count: u64) {
    let mut lot = world.lot("r", count);
    lot.jobs[0].run = Some(run);
    let (pushed, _given) = answer();
    world.turn([Event::Pushed { lot, durability: Durability::Full, answer: pushed }]);
}

fn seal(world: &mut World, run: RunId) {
    let (sealed, _given) = answer();
    world.turn([Event::SealRun { run, answer: sealed }]);
}

#[test]
fn generations_of_a_run_share_its_slots() {
    for serves_what_it_finds in [true, false] {
        let mut world = World::new(Vec::new());
        world.engine.options.serve_open_runs = serves_what_it_finds;
        let run = open(&mut world, run_service("r")).unwrap();
        follow(&mut world, run.id);
        feed(&mut world, run.id, 5);
        seal(&mut world, run.id);
        feed(&mut world, run.id, 4);
        assert_eq!(world.under_way.len(), 2, "what came late opens a generation, not slots");
        world.finish(succeeded());
        assert_eq!(world.under_way.len(), 2);
    }
}

#[test]
fn a_generation_that_is_followed_late_knows_of_what_is_in_flight() {
    let mut world = World::new(Vec::new());
    let run = open(&mut world, run_service("r")).unwrap();
    follow(&mut world, run.id);
    feed(&mut world, run.id, 1);
    seal(&mut world, run.id);
    feed(&mut world, run.id, 5);
    assert_eq!(world.under_way.len(), 2, "the first generation's command serves the queue");
    world.finish(succeeded());
    assert_eq!(world.under_way.len(), 2, "the turn that ends the first generation filled its slot before");
    world.finish(succeeded());
    assert_eq!(world.under_way.len(), 1, "the first generation has ended, and the second has no follower");
    follow(&mut world, run.id.next_generation());
    assert_eq!(world.under_way.len(), 2, "one of its two slots was taken");
}

#[test]
fn the_slots_asked_for_last_hold_for_what_comes_late() {
    let mut world = World::new(Vec::new());
    world.engine.options.serve_open_runs = true;
    let run = open(&mut world, run_service("r")).unwrap();
    follow(&mut world, run.id);
    feed(&mut world, run.id, 9);
    let mut wider = run_service("r");
    wider.service.as_mut().unwrap().slots = 3;
    assert_eq!(open(&mut world, wider).unwrap().id, run.id);
    assert_eq!(world.under_way.len(), 3);
    seal(&mut world, run.id);
    feed(&mut world, run.id, 9);
    for _ in 0..9 {
        world.finish(succeeded());
    }
    assert!(world.engine.runs.by_id(run.id).is_none(), "the first generation has ended");
    assert_eq!(world.under_way.len(), 3);
}
