//! Turns on the model store: what is answered, started, settled and told, and when.

mod asks;
mod away;
mod checkpoint;
mod clock;
mod failure;
mod forget;
mod lonely;
mod lots;
mod nightly;
mod rates;
mod route;
mod runs;
mod schedules;
mod stalemate;
mod steer;
mod terms;

use super::event::{
    Answer, Drained, FlightInfo, Followed, Follower, NewOperation, NewRules, OpenRun, Report, RunService, Wish,
};
use super::*;
use crate::audit::Audited;
use crate::error::{Failure, Kind};
use crate::runner::{Emitted, Finished, Start, Stop};
use crate::store::chunk::ChunkBuilder;
use crate::store::keys::Duplicate;
use crate::store::memory::Memory;
use crate::store::{Amended, Amendment, Lot, NewJobs, RunInfo, StoreView, Taken};
use std::sync::mpsc::{Receiver, channel};
use windlass_core::job::{JobId, Origin, Priority, Record};
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Batch, Command, HandlerFile, HandlerFiles, Service};

/// An engine on virtual time, whose runner is the test.
struct World<S: Store = Memory> {
    engine: Engine<S>,
    now: Time,
    pushed: u64,
    under_way: Vec<Start>,
}

impl World {
    fn new(policies: Vec<Policy>) -> World {
        World::on(Memory::new(1), policies)
    }
}

impl<S: Store> World<S> {
    fn on(store: S, policies: Vec<Policy>) -> World<S> {
        let options = EngineOptions {
            policies,
            slots: 4,
            memory: None,
            schedules: Vec::new(),
            router: Default::default(),
            durability: Durability::Full,
            serve_open_runs: false,
            serves_runs: true,
            drain: Duration::from_secs(25),
            seed: 1,
            ids: Arc::new(IdSource::new(Origin::from_random(0xe317))),
            files: HandlerFiles::new(),
        };
        let evidence =
            Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD };
        let (engine, _) = Engine::new(store, options, evidence, Time(0)).unwrap();
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

    fn push(&mut self, queue: &str, count: u64) -> Receiver<Result<Vec<Duplicate>, Failure>> {
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
    Finished::all(start.flight, start.held.count, outcome, now, now)
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
    assert_eq!(given.try_recv().unwrap(), Ok(Vec::new()));
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
    let (flights, given) = answer::<Vec<FlightInfo>>();
    world.turn([Event::Flights { answer: flights }]);
    let stocked = given.try_recv().unwrap().unwrap().iter().filter(|flight| flight.stocked).count();
    assert_eq!(stocked, world.under_way.len() - 4, "all but four wait for a slot");
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
    world.turn([Event::Reload {
        new: NewRules { policies: vec![serving("q")], slots: 4, ..NewRules::default() },
        answer: reloaded,
    }]);
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
    let effects =
        world.turn([Event::Amend { ids: vec![id], amendment: Amendment::Cancel, by: "ada".into(), answer: amended }]);
    assert_eq!(given.try_recv().unwrap(), Ok(vec![Amended::Running]));
    assert_eq!(effects.stops, [(world.under_way[0].flight, Stop::Cancel)]);
    world.finish(Outcome::Cancelled);
    assert_eq!(world.engine.store().job(id).unwrap().unwrap().state, State::Cancelled);
}

#[test]
fn drained_means_that_nothing_which_can_run_is_left() {
    let mut world = World::new(vec![serving("q")]);
    world.push("unserved", 5);
    world.push("q", 2);
    let (drained, given) = answer();
    world.turn([Event::AwaitDrained { due_only: false, here_only: false, answer: drained }]);
    assert!(given.try_recv().is_err());
    world.finish(Outcome::Cancelled);
    world.finish(Outcome::FailedForGood { error: "no".into() });
    assert_eq!(given.try_recv().unwrap(), Ok(Drained { failed: 1, cancelled: 1 }));
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

#[test]
fn a_turn_that_takes_in_very_many_chunks_leaves_the_starts_to_the_next() {
    let mut world = World::new(vec![serving("*")]);
    let mut wide = || {
        let lots: Vec<Lot> = (0..600).map(|n| world.lot(&format!("q.{n}"), 1)).collect();
        Lot { jobs: lots.into_iter().flat_map(|lot| lot.jobs).collect(), ..Lot::default() }
    };
    let (first, second) = (wide(), wide());
    let effects = world.turn([Event::Ingested(first), Event::Archived { turn: 0 }, Event::Ingested(second)]);
    assert_eq!((effects.ingested, effects.starts.len()), (2, 0), "small lots fit into one turn");
    assert_eq!(world.engine.next_wake().unwrap(), Some(Time::ZERO), "no event is needed for the next turn");
    let third = world.lot("q.0", 1);
    let effects = world.turn([Event::Ingested(third)]);
    assert_eq!((effects.ingested, effects.starts.len()), (0, 4), "the next one starts and takes nothing in");
    assert_eq!(world.engine.next_wake().unwrap(), Some(Time::ZERO));
    assert_eq!(world.turn([]).ingested, 1);
    assert!(world.engine.pending.is_empty());
}

#[test]
fn a_turn_takes_in_lots_that_came_together_while_they_are_few_chunks() {
    let full = |chunks: u64| {
        let chunk = |n| {
            let mut builder = ChunkBuilder::new(Origin::from_random(n));
            (0..5).for_each(|k| builder.push(k, &vec![b'.'; (5 << 20) / (5 * chunks as usize)]));
            NewJobs { jobs: Arc::new(builder.finish()), ..World::new(Vec::new()).lot("q", 1).jobs.remove(0) }
        };
        Event::Ingested(Lot { jobs: (0..chunks).map(chunk).collect(), ..Lot::default() })
    };
    for (chunks, taken) in [([20, 20, 20, 20], 3), ([20, 600, 20, 20], 1), ([600, 20, 20, 20], 1)] {
        let mut world = World::new(Vec::new());
        let effects = world.turn(chunks.map(full));
        assert_eq!((effects.ingested, world.engine.pending.len() as u64), (taken, 4 - u64::from(taken)), "{chunks:?}");
    }
}

#[test]
fn a_cancel_that_finds_no_space_stops_nothing() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 1);
    let id = world.under_way[0].held.ids().next().unwrap();
    world.engine.store().fail_commit(StoreError::Full("test".into()));
    let (refused, given) = answer::<Vec<Amended>>();
    let effects = world.engine.turn(
        world.now,
        [Event::Amend { ids: vec![id], amendment: Amendment::Cancel, by: "ada".into(), answer: refused }],
    );
    let effects = effects.unwrap();
    effects.answers.give();
    assert_eq!(given.try_recv().unwrap().unwrap_err().kind, Kind::Full);
    assert!(effects.stops.is_empty(), "what was refused has not happened");
    world.now = world.now.after(FULL_RETRY);
    let (told, given) = answer::<Vec<Amended>>();
    let effects =
        world.turn([Event::Amend { ids: vec![id], amendment: Amendment::Cancel, by: "ada".into(), answer: told }]);
    let line = effects.audit[0].to_json();
    assert_eq!((&line["job"], &line["from"], &line["to"]), (&id.to_string().into(), &"running".into(), &().into()));
    assert_eq!((given.try_recv().unwrap().unwrap(), effects.stops.len()), (vec![Amended::Running], 1));
}

fn wish(wish: Wish) -> NewOperation {
    NewOperation { wish, selector: Some("queue:q".into()), asked: Time(2_000_000), by: "ada".into() }
}

/// Stages jobs `1..=count` in slices of ten and accepts them.
fn staged(world: &mut World, count: u64, expect: Option<u64>) -> Receiver<Result<Report, Failure>> {
    let (opened, number) = answer::<u64>();
    world.turn([Event::OpenOperation { operation: wish(Wish::Amend(Amendment::Suspend)), answer: opened }]);
    let number = number.try_recv().unwrap().unwrap();
    let ids: Vec<JobId> = (1..=count).map(|offset| JobId { origin: Origin::from_random(7), offset }).collect();
    for slice in ids.chunks(10) {
        let (stage, given) = answer::<()>();
        world.turn([Event::StageOperation { number, ids: slice.to_vec(), answer: stage }]);
        assert_eq!(given.try_recv().unwrap(), Ok(()));
    }
    let (accepted, report) = answer::<Report>();
    world.turn([Event::AcceptOperation { number, expect, answer: accepted }]);
    report
}

#[test]
fn an_operation_is_done_a_slice_a_turn_and_survives_a_crash() {
    let mut world = World::new(Vec::new());
    world.push("q", 35);
    let given = staged(&mut world, 35, Some(35));
    let suspended =
        |world: &mut World| world.engine.store().queues().unwrap()[0].stats.by_state[State::Suspended.index()];
    assert_eq!(suspended(&mut world), 10, "one slice in the turn that accepted it");
    assert_eq!(world.engine.next_wake().unwrap(), Some(Time::ZERO), "and the next turn comes at once");
    world.turn([]);
    assert_eq!((suspended(&mut world), given.try_recv().is_err()), (20, true), "not over, not answered");
    let mut store = world.engine.store().clone();
    store.crash();
    let evidence =
        Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD };
    let options = world.engine.options.clone();
    let (engine, _) = Engine::new(store, options, evidence, Time(0)).unwrap();
    world.engine = engine;
    let (mut notes, mut audit) = (Vec::new(), Vec::new());
    for effects in (0..4).map(|_| world.turn([])) {
        notes.extend(effects.notes);
        audit.extend(effects.audit.iter().map(Audited::to_json));
    }
    let told: Vec<_> = audit.iter().map(|line| (&line["by"], &line["stage"], &line["counts"]["changed"])).collect();
    assert_eq!(told, [(&"ada".into(), &"done".into(), &35.into())], "whoever asked is known after the restart");
    assert_eq!(notes, ["operation 1 went on after a restart and is done: 35 changed, 0 refused"]);
    assert_eq!(suspended(&mut world), 35);
    assert!(world.engine.store().notes("", 9).unwrap().is_empty(), "nothing of it is kept");
    assert_ne!(world.engine.next_wake().unwrap(), Some(Time::ZERO));
}

#[test]
fn an_operation_that_finds_no_space_for_its_end_goes_on_and_is_told_when_it_is_done() {
    let mut world = World::new(Vec::new());
    world.push("q", 20);
    let given = staged(&mut world, 20, Some(20));
    world.engine.store().fail_commit(StoreError::Full("test".into()));
    world.turn([]);
    assert!(given.try_recv().is_err(), "half of it is done, so nobody may hear that nothing was stored");
    world.now = world.now.after(Duration::from_secs(2));
    for _ in 0..2 {
        world.turn([]);
    }
    let report = given.try_recv().unwrap().unwrap();
    assert_eq!((report.matched, report.changed), (20, 20));
    // One that was not accepted for want of space is told so.
    world.engine.store().fail_commit(StoreError::Full("test".into()));
    let (told, given) = answer::<Report>();
    let (opened, number) = answer::<u64>();
    world.turn([Event::OpenOperation { operation: wish(Wish::Amend(Amendment::Resume)), answer: opened }]);
    let number = number.try_recv().unwrap().unwrap();
    world.turn([Event::AcceptOperation { number, expect: None, answer: told }]);
    assert_eq!(given.try_recv().unwrap().unwrap_err().kind, Kind::Full);
}

#[test]
fn an_operation_that_is_not_what_was_expected_or_was_left_changes_nothing() {
    let mut world = World::new(Vec::new());
    world.push("q", 30);
    let given = staged(&mut world, 30, Some(29));
    assert_eq!(given.try_recv().unwrap().unwrap_err().kind, Kind::Conflict);
    world.turn([]);
    assert!(world.engine.store().notes("", 9).unwrap().is_empty(), "its slices are gone");
    let ids: Vec<JobId> = (1..=3).map(|offset| JobId { origin: Origin::from_random(7), offset }).collect();
    let operate = |world: &mut World, operation, expect| {
        let (told, given) = answer::<Report>();
        world.turn([Event::Operate { operation, ids: ids.clone(), expect, answer: told }]);
        given.try_recv().unwrap()
    };
    let elsewhere = NewOperation { selector: Some("queue:other".into()), ..wish(Wish::Delete) };
    let report = operate(&mut world, elsewhere, None).unwrap();
    assert_eq!((report.matched, report.changed, report.left), (0, 0, 3), "none is meant in the turn that acts");
    assert!(operate(&mut world, wish(Wish::Delete), Some(4)).is_err());
    let report = operate(&mut world, wish(Wish::Delete), Some(3)).unwrap();
    assert_eq!((report.matched, report.changed), (3, 3));
    let counts = world.engine.store().queues().unwrap()[0].stats.by_state;
    assert_eq!((counts[State::Ready.index()], counts[State::Cancelled.index()]), (27, 3));
}

#[test]
fn retries_and_weights_get_their_share_of_the_starts() {
    let weighted = |pattern: &str, weight| Policy { weight, slots: 4, ..serving(pattern) };
    let mut world = World::new(vec![weighted("heavy", 3), weighted("light", 1)]);
    world.push("heavy", 200);
    world.push("light", 200);
    let mut heavy = 0;
    for _ in 0..100 {
        heavy += u64::from(world.under_way[0].queue.as_str() == "heavy");
        world.finish(succeeded());
    }
    assert!((73..=78).contains(&heavy), "{heavy} of 100 starts went to the queue of three shares in four");

    let backoff = windlass_core::policy::Backoff { base: Duration::ZERO, cap: Duration::ZERO };
    let mut world = World::new(vec![Policy { backoff, slots: 1, ..serving("q") }]);
    world.push("q", 200);
    (0..10).for_each(|_| drop(world.finish(failed())));
    let mut retries = 0;
    for _ in 0..50 {
        retries += u64::from(world.under_way[0].held.lane.kind == windlass_core::job::LaneKind::Retry);
        world.finish(succeeded());
    }
    assert!((8..=10).contains(&retries), "{retries} of 50 starts were retries, one in five is their share");
}

/// The archive and the inbox reader act on what they are told: neither may know more than a power cut leaves.
#[test]
fn what_was_settled_or_ingested_survives_a_power_cut_once_others_know_of_it() {
    let mut world = World::new(vec![serving("q")]);
    world.engine.options.durability = Durability::Os;
    let lot = world.lot("nobody", 3);
    assert_eq!(world.turn([Event::Ingested(lot)]).ingested, 1, "the reader may remove its file");
    world.engine.store.power_cut(0);
    let ready: u64 = world.engine.store.queues().unwrap().iter().map(|q| q.stats.by_state[State::Ready.index()]).sum();
    assert_eq!(ready, 3, "the reader removed a file whose jobs are nowhere");

    let mut world = World::new(vec![serving("q")]);
    world.engine.options.durability = Durability::Os;
    let lot = world.lot("q", 1);
    world.turn([Event::Pushed { lot, durability: Durability::Os, answer: answer().0 }]);
    let effects = world.finish(succeeded());
    assert_eq!(effects.archive.len(), 1, "the archive may write it");
    world.engine.store.power_cut(0);
    let turns: Vec<u64> = world.engine.store.unarchived().unwrap().iter().map(|told| told.turn).collect();
    assert_eq!(turns, [effects.turn], "the archive knows of a turn that never was");
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
    assert_eq!(world.engine.explain("q", None, b"").reason, windlass_core::scheduler::Reason::Lingering);
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
    world.push("q", 2);
    assert!(world.under_way.is_empty());
    world.turn([Event::Reload {
        new: NewRules { policies: vec![serving("q")], slots: 4, ..NewRules::default() },
        answer: answer().0,
    }]);
    assert_eq!(world.under_way.len(), 2, "rules without batches wait for nothing");
}
