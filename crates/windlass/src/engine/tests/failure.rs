//! Jobs that failed for good and the queue that is told of them.

use super::*;
use serde_json::Value;
use windlass_core::job::RunId;
use windlass_core::notify::{Ending, Endings, Notify};
use windlass_core::particulars::{Particulars, Scope};

fn told_to(pattern: &str, handler: &str) -> Policy {
    Policy { on_failure: Some(QueueName::new(handler.as_bytes()).unwrap()), attempts: 2, ..serving(pattern) }
}

/// A table whose channel hears of these ends.
fn notifying(pattern: &str, on: &[Ending]) -> Policy {
    let channels = vec![QueueName::new(b"notify.ops").unwrap()];
    Policy { notify: Notify { channels, on: on.iter().copied().collect() }, attempts: 1, ..serving(pattern) }
}

/// Pushes a job that must have begun by then.
fn push_to_begin_by(world: &mut World, queue: &str, start_by: Time) {
    let mut lot = world.lot(queue, 1);
    let particulars = Particulars { start_by: Some(start_by), ..Particulars::default() };
    lot.jobs[0].jobs = Arc::new(lot.jobs[0].jobs.rebuilt(Some(Arc::new(particulars)), |_| true));
    world.turn([Event::Pushed { lot, durability: Durability::Full, answer: answer().0 }]);
}

fn words(start: &Start) -> Value {
    serde_json::from_slice(start.held.jobs.data(usize::from(start.held.first))).unwrap()
}

/// Pushes a job into a run that is sealed with it.
fn push_sealed(world: &mut World, queue: &str) -> (RunId, Receiver<Result<RunInfo, Failure>>) {
    let run = RunId::first(Origin::from_random(0x51));
    let mut lot = world.lot(queue, 1);
    lot.jobs[0].run = Some(run);
    world.turn([Event::Pushed { lot, durability: Durability::Full, answer: answer().0 }]);
    let (awaited, end) = answer();
    world.turn([Event::AwaitRun { run, answer: awaited }, Event::SealRun { run, answer: answer().0 }]);
    (run, end)
}

#[test]
fn what_is_told_of_ends_has_the_key_that_the_rule_of_its_queue_gives_it() {
    let errors = Policy { unique: Some(Scope::Active), ..serving("errors") };
    let mut world = World::new(vec![told_to("q", "errors"), errors]);
    world.push("q", 1);
    world.finish(Outcome::FailedForGood { error: "exit 2".into() });
    let scope = |start: &Start| start.held.jobs.particulars().unwrap().unique.as_ref().unwrap().scope;
    assert_eq!((world.under_way.len(), scope(&world.under_way[0])), (1, Scope::Active));
    world.finish(succeeded());
    // One that ends without a report is told of by the rules alone.
    world.push("q", 4);
    let until = world.now.after(Duration::from_secs(1));
    push_to_begin_by(&mut world, "q", until);
    world.now = until.after(Duration::from_secs(1));
    world.turn([]);
    world.finish(succeeded());
    let told: Vec<_> = world.under_way.iter().filter(|start| start.queue.as_str() == "errors").collect();
    assert_eq!((told.len(), scope(told[0])), (1, Scope::Active));
}

#[test]
fn a_handler_gets_the_failed_job_with_its_errors_and_the_run_waits_for_it() {
    let mut world = World::new(vec![told_to("q", "errors"), serving("errors")]);
    let (run, end) = push_sealed(&mut world, "q");
    let id = world.under_way[0].held.jobs.id(0);
    world.finish(Outcome::Failed { error: "exit 1: first".into() });
    assert!(world.under_way.is_empty(), "a failure that is tried again is nobody's business yet");
    world.now = world.now.after(Duration::from_secs(60));
    world.turn([]);
    world.finish(Outcome::Failed { error: "exit 1: last".into() });
    assert!(end.try_recv().is_err(), "the handler's job is of the run");
    let [handler] = &world.under_way[..] else { panic!("{:?}", world.under_way) };
    assert_eq!((handler.queue.as_str(), handler.run.as_str()), ("errors", run.to_string().as_str()));
    assert_eq!(handler.held.jobs.parent(0), Some(id));
    let told = words(handler);
    assert_eq!((&told["job"]["id"], &told["job"]["queue"]), (&id.to_string().into(), &"q".into()));
    assert_eq!((&told["job"]["data"], &told["job"]["reason"]), (&"data 1".into(), &"exhausted".into()));
    assert_eq!((&told["job"]["state"], &told["job"]["attempts"]["failures"]), (&"failed".into(), &2.into()));
    assert_eq!((&told["error"]["where"], &told["error"]["message"]), (&"q, start 2".into(), &"exit 1: last".into()));
    let errors: Vec<_> = told["error"]["attempts"].as_array().unwrap().iter().map(|e| e["text"].clone()).collect();
    assert_eq!(errors, ["exit 1: first", "exit 1: last"]);
    world.finish(succeeded());
    let counts = end.try_recv().unwrap().unwrap().counts;
    assert_eq!((counts.by_state[State::Failed.index()], counts.by_state[State::Succeeded.index()]), (1, 1));
}

#[test]
fn a_handler_that_fails_is_not_handled_though_a_pattern_names_a_handler_for_it() {
    let mut world = World::new(vec![told_to("*", "errors")]);
    world.push("q", 1);
    world.finish(Outcome::FailedForGood { error: "no".into() });
    assert_eq!(world.under_way[0].queue.as_str(), "errors");
    world.finish(Outcome::FailedForGood { error: "nor this".into() });
    assert!(world.under_way.is_empty() && world.engine.is_quiet());
}

#[test]
fn every_job_of_a_batch_that_fails_as_a_whole_is_told_and_what_is_cancelled_or_poison_as_it_is() {
    let mut world = World::new(vec![
        Policy { on_failure: told_to("q", "errors").on_failure, ..batching("q", 10, Duration::ZERO) },
        Policy { service: batching("errors", 100, Duration::ZERO).service, ..serving("errors") },
    ]);
    world.push("q", 3);
    world.finish(Outcome::FailedForGood { error: "all of them".into() });
    let handler = world.under_way.remove(0);
    let told: Vec<Value> =
        handler.held.range().map(|at| serde_json::from_slice(handler.held.jobs.data(at)).unwrap()).collect();
    assert_eq!(told.iter().map(|told| told["job"]["data"].clone()).collect::<Vec<_>>(), ["data 1", "data 2", "data 3"]);
    world.push("q", 1);
    world.finish(Outcome::Cancelled);
    assert!(world.under_way.is_empty(), "a cancelled job has not failed");
    world.push("q", 1);
    for _ in 0..4 {
        world.finish(Outcome::Lost);
        world.now = world.now.after(Duration::from_secs(60));
        world.turn([]);
    }
    world.finish(Outcome::Lost);
    let told = words(&world.under_way[0]);
    assert_eq!((&told["job"]["reason"], &told["job"]["attempts"]["suspicions"]), (&"poison".into(), &5.into()));
}

/// Lets servers die of a job until it is convicted, and tells what its handler gets.
fn convicted(table: Policy, files: &HandlerFiles) -> Value {
    let mut world = World::new(vec![table, serving("errors")]);
    world.turn([Event::HandlerFiles(files.clone())]);
    let (_, _end) = push_sealed(&mut world, "q");
    let mut deaths = 0;
    while world.under_way[0].queue.as_str() == "q" {
        let World { engine, now, .. } = world;
        let options = EngineOptions { files: files.clone(), ..engine.options.clone() };
        let evidence =
            Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD };
        let (engine, _) = Engine::new(engine.store, options, evidence, now).unwrap();
        world = World { engine, now: now.after(Duration::from_secs(60)), pushed: 9, under_way: Vec::new() };
        world.turn([Event::HandlerFiles(files.clone())]);
        world.now = world.now.after(Duration::from_secs(60));
        world.turn([]);
        deaths += 1;
        assert!(deaths <= 5, "five convict");
    }
    assert!(!world.under_way[0].run.is_empty(), "in the run of the convicted");
    words(&world.under_way[0])
}

#[test]
fn a_job_that_a_restart_convicts_is_told_in_the_turn_that_does() {
    assert_eq!(convicted(told_to("q", "errors"), &HandlerFiles::new())["job"]["reason"], "poison");
    // The same where a file serves the queue: which files there are is known before anybody is convicted.
    let by_file = Policy { by_file: Some(HandlerFile::Program), ..told_to("handlers", "errors") };
    let files = HandlerFiles::from([("q".into(), HandlerFile::Program)]);
    assert_eq!(convicted(by_file, &files)["job"]["reason"], "poison");
}

#[test]
fn data_that_leaves_no_room_for_the_rest_is_told_by_its_beginning_and_its_length() {
    let mut world = World::new(vec![Policy { attempts: 1, ..told_to("q", "errors") }, serving("errors")]);
    let mut builder = ChunkBuilder::new(Origin::from_random(7));
    builder.push(1, &vec![b'\n'; windlass_core::job::DATA_MAX]);
    let jobs = Arc::new(builder.finish());
    let queue = QueueName::new(b"q").unwrap();
    let lot = Lot { jobs: vec![NewJobs { queue, jobs, ..world.lot("q", 1).jobs.remove(0) }], ..Lot::default() };
    world.turn([Event::Pushed { lot, durability: Durability::Full, answer: answer().0 }]);
    world.finish(failed());
    let told = words(&world.under_way[0]);
    assert_eq!(told["job"]["data_bytes"], windlass_core::job::DATA_MAX);
    assert_eq!(told["job"]["data"].as_str().unwrap().len(), 64 << 10);
}

#[test]
fn a_handler_hears_of_a_job_whose_time_passed_while_it_waited() {
    let mut world = World::new(vec![Policy { enabled: false, ..told_to("q", "errors") }, serving("errors")]);
    let by = world.now.after(Duration::from_secs(60));
    push_to_begin_by(&mut world, "q", by);
    assert_eq!(world.engine.next_wake().unwrap(), Some(by));
    world.now = by;
    world.turn([]);
    let told = words(&world.under_way[0]);
    assert_eq!((&told["event"], &told["job"]["reason"]), (&"late".into(), &"expired".into()));
    assert_eq!(told["error"]["message"], "the time by which it had to begin has passed");
    world.finish(succeeded());
    assert!(world.engine.is_quiet());
}

#[test]
fn a_channel_is_told_of_the_ends_that_were_asked_for_and_no_run_waits_for_it() {
    let mut world = World::new(vec![
        notifying("q", &Endings::default().iter().collect::<Vec<_>>()),
        notifying("good", &[Ending::Succeeded]),
        serving("notify.ops"),
    ]);
    let (_, end) = push_sealed(&mut world, "q");
    world.finish(Outcome::Failed { error: "exit 1: no".into() });
    assert!(end.try_recv().is_ok(), "the run has ended, whoever is told of it");
    let told = words(&world.under_way[0]);
    assert_eq!((&told["event"], &told["job"]["data"]), (&"failed".into(), &"data 1".into()));
    assert_eq!(told["error"]["message"], "exit 1: no");
    assert_eq!((world.under_way[0].queue.as_str(), world.under_way[0].run.as_str()), ("notify.ops", ""));
    world.finish(failed());
    world.push("q", 1);
    world.finish(succeeded());
    assert!(world.under_way.iter().all(|start| start.queue.as_str() != "notify.ops"), "nobody asked for that");
    world.push("good", 1);
    world.finish(Outcome::Succeeded { message: "fine".into() });
    let told = words(&world.under_way[0]);
    assert_eq!((&told["event"], &told["message"]), (&"succeeded".into(), &"fine".into()));
    assert_eq!((&told["job"]["state"], told.get("error")), (&"succeeded".into(), None));
}

#[test]
fn a_channel_that_fails_is_told_of_to_nobody_and_one_hears_of_what_was_too_late() {
    let mut world = World::new(vec![notifying("*", &[Ending::Failed, Ending::Late])]);
    world.push("q", 1);
    world.finish(failed());
    assert_eq!(world.under_way[0].queue.as_str(), "notify.ops");
    world.finish(failed());
    assert!(world.under_way.is_empty() && world.engine.is_quiet());
    let mut world =
        World::new(vec![Policy { enabled: false, ..notifying("q", &[Ending::Late]) }, serving("notify.ops")]);
    let by = world.now.after(Duration::from_secs(60));
    push_to_begin_by(&mut world, "q", by);
    world.now = by;
    world.turn([]);
    assert_eq!(words(&world.under_way[0])["event"], "late");
}
