//! Turns on the model store: what is answered, started, settled and told, and when.

use super::event::{Answer, Drained, Followed, Follower, OpenRun, RunService};
use super::*;
use crate::error::{Failure, Kind};
use crate::runner::{Emitted, Finished, Output, Start, Stop};
use crate::store::chunk::ChunkBuilder;
use crate::store::memory::Memory;
use crate::store::{Amended, Amendment, Lot, NewJobs, RunInfo, StoreView, Taken};
use std::sync::mpsc::{Receiver, channel};
use windlass_core::job::{JobId, Origin, Priority, Record};
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Batch, Command, Service};

/// An engine on virtual time, whose runner is the test.
struct World {
    engine: Engine<Memory>,
    now: Time,
    pushed: u64,
    under_way: Vec<Start>,
}

impl World {
    fn new(policies: Vec<Policy>) -> World {
        let options = EngineOptions {
            policies,
            slots: 4,
            durability: Durability::Full,
            serve_open_runs: false,
            serves_runs: true,
            drain: Duration::from_secs(25),
            seed: 1,
            ids: Arc::new(IdSource::new(Origin::from_random(0xe317))),
        };
        let evidence = Evidence { begun: &|_, _| true, same_boot: true };
        let (engine, _) = Engine::new(Memory::new(1), options, evidence, Time(0)).unwrap();
        World { engine, now: Time(1_000_000), pushed: 0, under_way: Vec::new() }
    }

    fn turn(&mut self, events: impl IntoIterator<Item = Event>) -> Effects {
        let mut effects = self.engine.turn(self.now, events).unwrap();
        std::mem::take(&mut effects.answers).give();
        self.under_way.extend(effects.starts.iter().cloned());
        for waiter in &effects.read_inbox {
            // The inbox of this world is always empty.
            let more = self.turn([Event::InboxRead { waiter: *waiter }]);
            effects.stops.extend(more.stops);
        }
        effects
    }

    fn lot(&mut self, queue: &str, count: u64) -> Lot {
        let mut builder = ChunkBuilder::new(Origin::from_random(7));
        for _ in 0..count {
            self.pushed += 1;
            builder.push(self.pushed, format!("data {}", self.pushed).as_bytes());
        }
        let queue = QueueName::new(queue.as_bytes()).unwrap();
        let jobs = Arc::new(builder.finish());
        let new = NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs };
        Lot { jobs: vec![new], ..Lot::default() }
    }

    fn push(&mut self, queue: &str, count: u64) -> Receiver<Result<(), Failure>> {
        let lot = self.lot(queue, count);
        let (answer, given) = answer();
        self.turn([Event::Pushed { lot, durability: Durability::Full, answer }]);
        given
    }

    /// Ends the oldest start under way.
    fn finish(&mut self, outcome: Outcome) -> Effects {
        let start = self.under_way.remove(0);
        let end = finished(&start, outcome, self.now);
        self.turn([Event::Finished(end)])
    }
}

fn finished(start: &Start, outcome: Outcome, now: Time) -> Finished {
    let outcomes = vec![(start.held.count, outcome)];
    let (emitted, output) = (Vec::new(), Output::default());
    Finished { flight: start.flight, first: 0, outcomes, emitted, started: now, finished: now, output }
}

fn answer<T: Send + 'static>() -> (Answer<T>, Receiver<Result<T, Failure>>) {
    let (give, given) = channel();
    (Answer::new(move |value| give.send(value).unwrap()), given)
}

fn serving(pattern: &str) -> Policy {
    Policy::new(pattern, Service::Command(Command { argv: vec![b"true".to_vec()], ..Command::default() }))
}

fn succeeded() -> Outcome {
    Outcome::Succeeded { message: String::new() }
}

fn failed() -> Outcome {
    Outcome::Failed { error: "exit 1".into() }
}

#[test]
fn a_pushed_job_is_answered_started_settled_and_archived() {
    let mut world = World::new(vec![serving("q")]);
    let given = world.push("q", 2);
    assert_eq!(given.try_recv().unwrap(), Ok(()));
    assert_eq!(world.under_way.len(), 2);
    let effects = world.finish(succeeded());
    assert_eq!(effects.archive.len(), 1);
    assert_eq!(effects.archive[0].state, State::Succeeded);
    assert!(effects.turn > 0);
    world.finish(succeeded());
    assert!(world.engine.is_quiet());
}

#[test]
fn slots_bound_what_runs_and_a_freed_slot_is_filled_in_the_same_turn() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 10);
    assert_eq!(world.under_way.len(), 4);
    let effects = world.finish(succeeded());
    assert_eq!(effects.starts.len(), 1, "the turn that settles also starts");
}

#[test]
fn jobs_shorter_than_a_turn_are_claimed_ahead_and_a_drain_takes_back_what_has_not_begun() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 300);
    assert_eq!(world.finish(succeeded()).starts.len(), 1, "nothing is known of turns yet");
    world.engine.turn_took(Duration::from_millis(1));
    assert_eq!(world.finish(succeeded()).starts.len(), 1 + 4 * 64, "for jobs that take no time at all");
    let second = world.finish(succeeded());
    assert_eq!(second.starts.len(), 1, "what the slots took from the stock is claimed again");
    let effects = world.turn([Event::Drain]);
    assert_eq!(effects.stops.len(), world.under_way.len());
    assert!(effects.stops.iter().all(|(_, why)| *why == Stop::Withdraw));
    while world.under_way.len() > 4 {
        let start = world.under_way.pop().unwrap();
        let end = finished(&start, Outcome::Interrupted, world.now);
        assert_eq!(world.turn([Event::Finished(end)]).starts.len(), 0);
    }
    while !world.under_way.is_empty() {
        assert!(!world.engine.is_over());
        world.finish(succeeded());
    }
    assert!(world.engine.is_over());
    let waiting = world.engine.queues.iter().next().unwrap().1.by_state[State::Ready.index()];
    assert_eq!(waiting, 300 - 7, "three ended before the drain and four during it");
}

#[test]
fn a_queue_that_nobody_serves_accumulates_and_runs_after_a_reload() {
    let mut world = World::new(Vec::new());
    world.push("q", 3);
    assert!(world.under_way.is_empty());
    let (reloaded, given) = answer();
    world.turn([Event::Reload { policies: vec![serving("q")], slots: 4, answer: reloaded }]);
    assert_eq!(given.try_recv().unwrap(), Ok(()));
    assert_eq!(world.under_way.len(), 3);
}

#[test]
fn a_failure_waits_for_its_time_and_the_last_one_is_kept() {
    let mut policy = serving("q");
    policy.attempts = 2;
    let mut world = World::new(vec![policy]);
    world.push("q", 1);
    world.finish(failed());
    assert!(world.under_way.is_empty(), "a retry waits");
    let due = world.engine.next_wake().unwrap().unwrap();
    world.now = due;
    world.turn([]);
    assert_eq!(world.under_way[0].held.record.failures, 1);
    world.finish(failed());
    let id = JobId { origin: Origin::from_random(7), offset: 1 };
    let job = world.engine.store().job(id).unwrap().unwrap();
    assert_eq!((job.state, job.record.failures, job.errors.len()), (State::Failed, 2, 2));
    assert_eq!(job.data, b"data 1");
}

#[test]
fn a_report_that_comes_twice_changes_nothing() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 1);
    let start = world.under_way[0].clone();
    world.finish(succeeded());
    let again = world.turn([Event::Finished(finished(&start, failed(), Time(2_000_000)))]);
    assert!(again.archive.is_empty());
    assert_eq!(again.notes.len(), 1);
}

#[test]
fn no_space_rejects_the_push_keeps_the_outcome_and_goes_on_later() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 1);
    let start = world.under_way.remove(0);
    world.engine.store().fail_commit(StoreError::Full("test".into()));
    let lot = world.lot("q", 1);
    let (pushed, given) = answer();
    let end = finished(&start, succeeded(), world.now);
    let dropped =
        world.turn([Event::Finished(end), Event::Pushed { lot, durability: Durability::Full, answer: pushed }]);
    assert!(dropped.archive.is_empty() && dropped.starts.is_empty());
    assert_eq!(given.try_recv().unwrap().unwrap_err().kind, Kind::Full);
    world.now = world.engine.next_wake().unwrap().unwrap();
    let settled = world.turn([]);
    assert_eq!(settled.archive.len(), 1, "the outcome was kept and is settled once there is space");
    world.push("q", 1);
    assert_eq!(world.under_way.len(), 1);
}

#[test]
fn cancelling_a_running_job_is_an_intent_until_it_is_dead() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 1);
    let id = JobId { origin: Origin::from_random(7), offset: 1 };
    let (amended, given) = answer();
    let effects = world.turn([Event::Amend { ids: vec![id], amendment: Amendment::Cancel, answer: amended }]);
    assert_eq!(given.try_recv().unwrap(), Ok(vec![Amended::Running]));
    assert_eq!(effects.stops, [(world.under_way[0].flight, Stop::Cancel)]);
    world.finish(Outcome::Cancelled);
    assert_eq!(world.engine.store().job(id).unwrap().unwrap().state, State::Cancelled);
}

fn run_service(queue: &str) -> OpenRun {
    let command = Command { argv: vec![b"echo".to_vec(), b"{}".to_vec()], ..Command::default() };
    let service = RunService { queue: queue.into(), command, slots: 2, attempts: 1, output_max: 1 << 20 };
    OpenRun { name: "n".into(), service: Some(service) }
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

#[test]
fn drained_means_that_nothing_which_can_run_is_left() {
    let mut world = World::new(vec![serving("q")]);
    world.push("unserved", 5);
    world.push("q", 1);
    let (drained, given) = answer();
    world.turn([Event::AwaitDrained { answer: drained }]);
    assert!(given.try_recv().is_err());
    world.finish(Outcome::FailedForGood { error: "no".into() });
    assert_eq!(given.try_recv().unwrap(), Ok(Drained { failed: 1 }));
}

#[test]
fn a_drain_starts_nothing_and_ends_what_overstays() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 9);
    world.turn([Event::Drain]);
    assert!(world.finish(succeeded()).starts.is_empty());
    world.now = world.now.after(Duration::from_secs(26));
    assert_eq!(world.turn([]).stops.len(), 3);
    for _ in 0..3 {
        assert!(!world.engine.is_over());
        world.finish(Outcome::Interrupted);
    }
    assert!(world.engine.is_over());
}

#[test]
fn a_job_whose_worker_dies_again_and_again_ends_as_poison() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 1);
    for death in 1..=5 {
        if world.under_way.is_empty() {
            world.now = world.engine.next_wake().unwrap().expect("a suspect waits for its time");
            world.turn([]);
        }
        assert_eq!(world.under_way[0].held.start(), death);
        world.finish(Outcome::Lost);
    }
    let id = JobId { origin: Origin::from_random(7), offset: 1 };
    let job = world.engine.store().job(id).unwrap().unwrap();
    assert_eq!((job.state, job.reason), (State::Failed, Some(windlass_core::judge::Reason::Poison)));
}

fn batching(pattern: &str, size: u32, linger: Duration) -> Policy {
    let command = Command { argv: vec![b"cat".to_vec()], ..Command::default() };
    Policy::new(pattern, Service::Batch(Batch { size, linger, ..Batch::new(command) }))
}

#[test]
fn a_start_is_over_when_all_its_jobs_have_been_told_and_each_is_told_once() {
    let mut world = World::new(vec![Policy { slots: 1, ..batching("q", 100, Duration::ZERO) }]);
    world.push("q", 10);
    let [start] = &world.under_way[..] else { panic!("one start of ten") };
    let part = |first: u16, count: u16| Finished {
        first,
        ..Finished::all(start.flight, count, succeeded(), Time(0), Time(1))
    };
    let (reports, more) = ([part(3, 2), part(0, 3), part(4, 1), part(5, 9), part(5, 5), part(0, 10)], part(5, 1));
    world.push("q", 1);
    let told: Vec<usize> = reports.map(|report| world.turn([Event::Finished(report)]).archive.len()).to_vec();
    assert_eq!(told, [1, 1, 0, 0, 1, 0], "overlapping and impossible reports are ignored");
    assert_eq!(world.turn([Event::Finished(more)]).notes.len(), 1);
    assert_eq!(world.under_way.len(), 2, "the slot was free only when all ten had ended");
}

#[test]
fn what_a_job_emits_is_started_with_its_success_and_dropped_with_its_failure() {
    let mut world = World::new(vec![serving("q"), serving("next")]);
    world.push("q", 2);
    let emitted = vec![Emitted { by: 0, queue: QueueName::new(b"next").unwrap(), data: b"x".to_vec() }];
    for (outcome, starts) in [(failed(), 0), (succeeded(), 1)] {
        let start = world.under_way.remove(0);
        let end = Finished { emitted: emitted.clone(), ..finished(&start, outcome, world.now) };
        let effects = world.turn([Event::Finished(end)]);
        assert_eq!(effects.starts.len(), starts);
    }
    assert_eq!(world.under_way[0].held.jobs.data(0), b"x");
}

#[test]
fn a_snoozed_job_comes_back_at_its_time_without_a_charge() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 1);
    world.finish(Outcome::Snoozed { after: Duration::from_secs(60) });
    assert!(world.under_way.is_empty());
    world.now = world.now.after(Duration::from_secs(60));
    world.turn([]);
    assert_eq!(world.under_way[0].held.record, Record { starts: 1, failures: 0, suspicions: 0 });
}

#[test]
fn a_batch_waits_for_more_no_longer_than_its_linger() {
    let mut world = World::new(vec![batching("q", 10, Duration::from_secs(5))]);
    world.push("q", 3);
    assert!(world.under_way.is_empty());
    let by = world.engine.next_wake().unwrap().unwrap();
    assert!(by <= world.now.after(Duration::from_secs(5)), "{by:?}");
    world.push("q", 7);
    let [first, second] = &world.under_way[..] else { panic!("two stretches, since they were pushed apart") };
    assert_eq!(first.held.count + second.held.count, 10, "a full batch waits for nobody");
    assert_eq!(first.claim, second.claim, "and goes to one process");
    world.under_way.clear();
    world.push("q", 2);
    assert!(world.under_way.is_empty());
    world.now = world.now.after(Duration::from_secs(5));
    world.turn([]);
    assert_eq!(world.under_way.remove(0).held.count, 2, "and one that is not full no longer than that");
}
