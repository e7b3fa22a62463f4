//! Unique jobs and the terms of runs, as an engine with rules and a clock heeds them.

use super::*;
use windlass_core::job::RunId;
use windlass_core::particulars::{OnConflict, Particulars, Scope, Unique};
use windlass_core::router::{Router, Subscription};
use windlass_core::run::terms::{EndJob, RunTerms, Stopped, Tolerance};

fn open(world: &mut World, terms: RunTerms) -> RunId {
    let (opened, given) = answer();
    let request = OpenRun { name: String::new(), service: None, terms };
    world.turn([Event::OpenRun { request, answer: opened }]);
    given.try_recv().unwrap().unwrap().id
}

fn push(world: &mut World, lot: Lot) -> Result<usize, Failure> {
    let (pushed, given) = answer();
    world.turn([Event::Pushed { lot, durability: Durability::Full, answer: pushed }]);
    given.try_recv().unwrap().map(|duplicates| duplicates.len())
}

fn feed(world: &mut World, run: RunId, count: u64) -> Result<usize, Failure> {
    let mut lot = world.lot("q", count);
    lot.jobs[0].run = Some(run);
    push(world, lot)
}

fn info(world: &mut World, run: RunId) -> RunInfo {
    world.engine.store().run(run).unwrap().unwrap()
}

fn await_end(world: &mut World, run: RunId) -> Receiver<Result<RunInfo, Failure>> {
    let (awaited, end) = answer();
    world.turn([Event::AwaitRun { run, answer: awaited }]);
    end
}

/// Says of what runs that it was stopped, as a runner does that was told so.
fn obey_stops(world: &mut World) {
    for start in std::mem::take(&mut world.under_way) {
        let end = finished(&start, Outcome::Cancelled, world.now);
        world.turn([Event::Finished(end)]);
    }
}

#[test]
fn a_run_that_takes_too_long_is_stopped_and_ends() {
    let mut world = World::new(vec![serving("q")]);
    let run = open(&mut world, RunTerms { time_limit: Some(Duration::from_secs(60)), ..RunTerms::default() });
    feed(&mut world, run, 9).unwrap();
    let end = await_end(&mut world, run);
    let wake = world.engine.next_wake().unwrap().unwrap();
    assert!(wake <= world.now.after(Duration::from_secs(60)), "it wakes for the limit");
    // A wall clock that is set ahead stops nothing.
    world.engine.tell_steady(windlass_core::time::Steady(1));
    world.now = world.now.after(Duration::from_secs(86_400));
    world.turn([]);
    assert_eq!(info(&mut world, run).counts.stopped, None);
    world.engine.tell_steady(windlass_core::time::Steady::default().after(Duration::from_secs(70)));
    let told = world.turn([]);
    assert!(told.notes.iter().any(|note| note.contains("time limit")), "{:?}", told.notes);
    assert_eq!(info(&mut world, run).counts.stopped, Some(Stopped::TimeLimit));
    assert_eq!(feed(&mut world, run, 1).unwrap_err().kind, Kind::Conflict, "it takes no more");
    world.turn([]);
    obey_stops(&mut world);
    let ended = end.try_recv().unwrap().unwrap();
    assert_eq!((ended.counts.by_state[State::Cancelled.index()], ended.counts.live()), (9, 0));
    assert!(!ended.terms.succeeded(&ended.counts));
}

/// Once such a run was given its time only when there was space again, by a clock that had been set meanwhile.
#[test]
fn a_run_that_is_opened_while_there_is_no_space_has_its_time_from_then_on() {
    let mut world = World::new(vec![serving("q")]);
    world.engine.store().fail_commit(StoreError::Full("test".into()));
    let lot = world.lot("q", 1);
    assert_eq!(push(&mut world, lot).unwrap_err().kind, Kind::Full);
    let run = open(&mut world, RunTerms { time_limit: Some(Duration::from_secs(60)), ..RunTerms::default() });
    world.engine.tell_steady(windlass_core::time::Steady::default().after(Duration::from_secs(2)));
    world.now = world.now.after(Duration::from_secs(86_400));
    world.turn([]);
    world.turn([]);
    assert_eq!(info(&mut world, run).counts.stopped, None, "two seconds have passed");
    world.engine.tell_steady(windlass_core::time::Steady::default().after(Duration::from_secs(70)));
    world.turn([]);
    assert_eq!(info(&mut world, run).counts.stopped, Some(Stopped::TimeLimit));
}

#[test]
fn a_run_that_the_server_before_has_stopped_costs_no_turns_while_its_last_jobs_wait() {
    let mut world = World::new(vec![serving("q")]);
    let run = open(&mut world, RunTerms { time_limit: Some(Duration::from_secs(60)), ..RunTerms::default() });
    feed(&mut world, run, 1).unwrap();
    let no = info(&mut world, run).no;
    world.engine.store().stop_run(no, Stopped::TimeLimit, world.now).unwrap();
    world.engine.store().commit(Durability::Full).unwrap();
    let World { engine, now, .. } = world;
    let evidence =
        Evidence { begun: &|_, _| true, elsewhere: &|_, _| true, same_boot: true, convicted: Evidence::UNTOLD };
    let options = EngineOptions { ids: Arc::new(IdSource::new(Origin::from_random(9))), ..engine.options.clone() };
    let later = now.after(Duration::from_secs(100));
    let (mut engine, _) = Engine::new(engine.store, options, evidence, later).unwrap();
    engine.turn(later, []).unwrap();
    engine.turn(later, []).unwrap();
    let wake = engine.next_wake().unwrap();
    assert!(wake.is_none_or(|wake| wake > later), "it turns again and again: {wake:?}");
}

#[test]
fn a_run_that_fails_more_often_than_it_bears_is_stopped() {
    let mut world = World::new(vec![Policy { attempts: 1, ..serving("q") }]);
    let run = open(&mut world, RunTerms { tolerate: Some(Tolerance::Jobs(1)), ..RunTerms::default() });
    feed(&mut world, run, 9).unwrap();
    world.finish(failed());
    assert_eq!(info(&mut world, run).counts.stopped, None, "one is borne");
    world.finish(failed());
    assert_eq!(info(&mut world, run).counts.stopped, Some(Stopped::Failures));
    world.turn([]);
    obey_stops(&mut world);
    let counts = info(&mut world, run).counts;
    assert_eq!((counts.by_state[State::Failed.index()], counts.live(), counts.ended), (2, 0, true));
}

#[test]
fn a_push_beyond_the_job_limit_is_refused_whole_and_what_is_emitted_beyond_it_is_dropped() {
    let mut world = World::new(vec![serving("q")]);
    let run = open(&mut world, RunTerms { job_limit: Some(4), ..RunTerms::default() });
    feed(&mut world, run, 3).unwrap();
    assert_eq!(feed(&mut world, run, 2).unwrap_err().kind, Kind::Conflict);
    assert_eq!(info(&mut world, run).counts.total(), 3);
    let start = world.under_way.remove(0);
    let queue = QueueName::new(b"q").unwrap();
    let emitted = ["a", "b"].map(|data| Emitted { by: 0, queue: queue.clone(), data: data.into() });
    let end = Finished { emitted: emitted.into(), ..finished(&start, succeeded(), world.now) };
    world.turn([Event::Finished(end)]);
    let counts = info(&mut world, run).counts;
    assert_eq!((counts.total(), counts.dropped), (4, 1));
}

#[test]
fn pushes_of_one_turn_share_what_room_there_is() {
    let mut world = World::new(vec![serving("q")]);
    let run = open(&mut world, RunTerms { job_limit: Some(4), ..RunTerms::default() });
    let mut given = Vec::new();
    let pushes: Vec<Event> = (0..3)
        .map(|_| {
            let mut lot = world.lot("q", 2);
            lot.jobs[0].run = Some(run);
            let (pushed, told) = answer();
            given.push(told);
            Event::Pushed { lot, durability: Durability::Full, answer: pushed }
        })
        .collect();
    world.turn(pushes);
    let told: Vec<bool> = given.iter().map(|given| given.try_recv().unwrap().is_ok()).collect();
    assert_eq!(told, [true, true, false]);
    let counts = info(&mut world, run).counts;
    assert_eq!((counts.total(), counts.dropped), (4, 0), "who was told that it is safe is in");
}

#[test]
fn what_comes_too_late_is_refused_where_the_next_generation_has_no_room_for_it() {
    let mut world = World::new(vec![serving("q")]);
    let run = open(&mut world, RunTerms { job_limit: Some(3), ..RunTerms::default() });
    let (sealed, _given) = answer();
    world.turn([Event::SealRun { run, answer: sealed }]);
    assert!(info(&mut world, run).counts.ended);
    let refused = feed(&mut world, run, 4).unwrap_err();
    assert_eq!(refused.to_string(), format!("rejected, nothing was stored: run {run}.2 takes 3 jobs and has 0"));
    feed(&mut world, run, 2).unwrap();
    assert_eq!(feed(&mut world, run, 2).unwrap_err().kind, Kind::Conflict);
    feed(&mut world, run, 1).unwrap();
    let counts = info(&mut world, run.next_generation()).counts;
    assert_eq!((counts.total(), counts.dropped), (3, 0));
}

#[test]
fn the_end_of_a_run_is_announced_by_a_job_that_starts_at_once() {
    let mut world = World::new(vec![serving("q"), serving("done")]);
    let queue = QueueName::new(b"done").unwrap();
    let end_job = Some(EndJob { queue, priority: Priority::NORMAL, data: Vec::new() });
    let run = open(&mut world, RunTerms { end_job, ..RunTerms::default() });
    feed(&mut world, run, 1).unwrap();
    let (sealed, _given) = answer();
    world.turn([Event::SealRun { run, answer: sealed }]);
    let effects = world.finish(succeeded());
    assert_eq!(effects.starts.len(), 1, "in the turn that ended the run");
    let held = &effects.starts[0].held;
    assert!(held.jobs.data(usize::from(held.first)).starts_with(b"{\"run\":\"r-"));
}

#[test]
fn what_a_unique_queue_has_seen_in_a_run_is_not_taken_in_again_whoever_brings_it() {
    let mut world = World::new(vec![Policy { unique: Some(Scope::Run), ..serving("q") }]);
    let run = open(&mut world, RunTerms::default());
    feed(&mut world, run, 2).unwrap();
    // The same data, pushed and emitted.
    world.pushed = 0;
    let mut lot = world.lot("q", 3);
    lot.jobs[0].run = Some(run);
    let mut renumbered = ChunkBuilder::new(Origin::from_random(99));
    let jobs = lot.jobs[0].jobs.clone();
    (0..jobs.len()).for_each(|n| renumbered.push(jobs.id(n).offset, jobs.data(n)));
    lot.jobs[0].jobs = Arc::new(renumbered.finish());
    assert_eq!(push(&mut world, lot), Ok(2), "two were there, one is new");
    let start = world.under_way.remove(0);
    let queue = QueueName::new(b"q").unwrap();
    let emitted =
        ["data 1", "data 2", "data 3", "x", "x"].map(|data| Emitted { by: 0, queue: queue.clone(), data: data.into() });
    let end = Finished { emitted: emitted.into(), ..finished(&start, succeeded(), world.now) };
    world.turn([Event::Finished(end)]);
    let counts = info(&mut world, run).counts;
    assert_eq!((counts.total(), counts.dropped), (4, 6));
}

/// A message of these data, whose id is not that of any before.
fn message(world: &mut World, queue: &str, data: &str) -> Lot {
    let mut lot = world.lot(queue, 1);
    let mut builder = ChunkBuilder::new(Origin::from_random(7));
    builder.push(world.pushed, data.as_bytes());
    lot.jobs[0].jobs = Arc::new(builder.finish());
    lot
}

#[test]
fn a_listener_whose_jobs_are_unique_gets_a_message_that_comes_again_once() {
    let bill = Policy { unique: Some(Scope::Active), ..serving("bill") };
    let mut world = World::new(vec![bill.clone(), serving("mail")]);
    let name = |text: &str| QueueName::new(text.as_bytes()).unwrap();
    let listeners = vec![name("bill"), name("mail")];
    let router = Router::new(vec![Subscription { pattern: "order.*".into(), listeners }]).unwrap();
    let new = NewRules { policies: vec![bill, serving("mail")], slots: 4, router, ..NewRules::default() };
    world.turn([Event::Reload { new, answer: answer().0 }]);
    for _ in 0..2 {
        let lot = message(&mut world, "order.new", "order 7");
        world.turn([Event::Pushed { lot, durability: Durability::Full, answer: answer().0 }]);
    }
    let mut queues: Vec<String> = world.under_way.iter().map(|start| start.queue.to_string()).collect();
    queues.sort();
    assert_eq!(queues, ["bill", "mail", "mail"], "the bill of that order is under way already");
}

#[test]
fn a_push_that_must_not_be_a_duplicate_is_refused_as_a_whole() {
    let mut world = World::new(Vec::new());
    let mut strict = || {
        let mut lot = world.lot("q", 2);
        let unique = Unique { scope: Scope::Active, on_conflict: OnConflict::Reject, key: None };
        let particulars = Particulars { unique: Some(unique), ..Particulars::default() };
        lot.jobs[0].jobs = Arc::new(lot.jobs[0].jobs.rebuilt(Some(Arc::new(particulars)), |_| true));
        lot
    };
    let first = strict();
    let again = first.clone();
    let other = strict();
    assert_eq!(push(&mut world, first), Ok(0));
    assert_eq!(push(&mut world, again).unwrap_err().kind, Kind::Conflict);
    assert_eq!(push(&mut world, other), Ok(0));
}
