//! Jobs that are alone in their queues and share a flight: each ends for itself, whatever becomes of the others.

use super::*;
use crate::data_dir::DataDir;
use crate::store::embedded::Embedded;
use std::path::Path;
use windlass_core::policy::{Framing, Worker};

/// The jobs behind the first, which showed how short they are: one in each of four queues, all in one flight.
const JOBS: [u64; 4] = [2, 3, 4, 5];

fn id(offset: u64) -> JobId {
    JobId { origin: Origin::from_random(7), offset }
}

fn in_one_flight() -> (World, Start) {
    in_one_flight_on(Memory::new(1))
}

fn in_one_flight_on<S: Store>(store: S) -> (World<S>, Start) {
    let worker = Worker {
        command: Command { argv: vec![b"cat".to_vec()], ..Command::default() },
        framing: Framing::Raw,
        in_flight: 1,
        jobs: 0,
        age: None,
        memory: 0,
        idle: Duration::from_secs(60),
        lua: None,
    };
    let mut world = World::on(store, vec![Policy { attempts: 2, ..Policy::new("*", Service::Worker(worker)) }]);
    world.push("first", 1);
    world.engine.turn_took(Duration::from_millis(1));
    world.finish(succeeded());
    let lots: Vec<Lot> = JOBS.iter().map(|n| world.lot(&format!("q.{n}"), 1)).collect();
    let lot = Lot { jobs: lots.into_iter().flat_map(|lot| lot.jobs).collect(), ..Lot::default() };
    world.turn([Event::Ingested(lot)]);
    let start = world.under_way.remove(0);
    assert_eq!((world.under_way.len(), ids(&start)), (0, JOBS.map(id).to_vec()), "they share one flight");
    (world, start)
}

fn ids(start: &Start) -> Vec<JobId> {
    let job = |position| {
        let (_, held, index) = start.job(position);
        held.jobs.id(index)
    };
    (0..start.count()).map(job).collect()
}

/// A report of the jobs from a position on, one outcome each.
fn report<S: Store>(world: &World<S>, start: &Start, first: u16, outcomes: &[Outcome]) -> Event {
    let outcomes = outcomes.iter().map(|outcome| (1, outcome.clone())).collect();
    Event::Finished(Finished { first, outcomes, ..finished(start, succeeded(), world.now) })
}

fn state(world: &mut World, offset: u64) -> State {
    world.engine.store().job(id(offset)).unwrap().unwrap().state
}

fn archived(effects: &Effects) -> Vec<(Vec<JobId>, State)> {
    effects.ends().map(|end| (end.held.ids().collect(), end.verdict.state())).collect()
}

#[test]
fn jobs_of_different_queues_that_share_a_flight_end_each_for_itself() {
    let (mut world, start) = in_one_flight();
    let for_good = Outcome::FailedForGood { error: "no".into() };
    let middle = report(&world, &start, 1, &[failed(), for_good.clone()]);
    world.turn([middle]);
    assert_eq!([3, 4].map(|n| state(&mut world, n)), [State::Retrying, State::Failed]);
    assert_eq!([2, 5].map(|n| state(&mut world, n)), [State::Running; 2], "the others are under way");
    let again = report(&world, &start, 1, &[succeeded(), succeeded()]);
    let ignored = world.turn([again]);
    assert_eq!((archived(&ignored).len(), ignored.notes.len()), (0, 1), "a second report changes nothing");
    let last = report(&world, &start, 3, &[succeeded()]);
    assert_eq!(archived(&world.turn([last])), [(vec![id(5)], State::Succeeded)]);
    let first = report(&world, &start, 0, &[succeeded()]);
    assert_eq!(archived(&world.turn([first])), [(vec![id(2)], State::Succeeded)]);
    world.now = world.engine.next_wake().unwrap().expect("a retry waits for its time");
    world.turn([]);
    let retried = world.under_way.remove(0);
    assert_eq!((ids(&retried), retried.held.record.failures), (vec![id(3)], 1), "it is tried again by itself");
    let ended = report(&world, &retried, 0, &[succeeded()]);
    world.turn([ended]);
    assert!(world.engine.is_quiet());
}

#[test]
fn one_of_a_shared_flight_is_cancelled_and_no_other() {
    let (mut world, start) = in_one_flight();
    let (amended, given) = answer();
    let cancel = Event::Amend { ids: vec![id(4)], amendment: Amendment::Cancel, by: "ada".into(), answer: amended };
    let effects = world.turn([cancel]);
    assert_eq!(given.try_recv().unwrap(), Ok(vec![Amended::Running]));
    assert_eq!((effects.stops, effects.cancels), (vec![], vec![(start.flight, 2)]));
    let cancelled = report(&world, &start, 2, &[Outcome::Cancelled]);
    world.turn([cancelled]);
    assert_eq!([2, 3, 4, 5].map(|n| state(&mut world, n) == State::Cancelled), [false, false, true, false]);
    let front = report(&world, &start, 0, &[succeeded(), succeeded()]);
    let back = report(&world, &start, 3, &[succeeded()]);
    assert_eq!(archived(&world.turn([front, back])).len(), 3);
    assert!(world.engine.is_quiet());
}

#[test]
fn one_of_a_large_flight_is_cancelled_there_or_where_it_is_by_now() {
    let mut world = World::new(vec![batching("q", 10, Duration::ZERO)]);
    world.push("q", 10);
    let start = world.under_way[0].clone();
    let one_fails = report(&world, &start, 6, &[failed()]);
    world.turn([one_fails]);
    world.now = world.engine.next_wake().unwrap().expect("a retry waits for its time");
    world.turn([]);
    let retried = world.under_way.last().unwrap().flight;
    for (offset, stops, cancels) in [(4, vec![], vec![(start.flight, 3)]), (7, vec![(retried, Stop::Cancel)], vec![])] {
        let (answer, _given) = answer();
        let cancel = Event::Amend { ids: vec![id(offset)], amendment: Amendment::Cancel, by: "ada".into(), answer };
        let effects = world.turn([cancel]);
        assert_eq!((effects.stops, effects.cancels), (stops, cancels), "{offset}");
    }
}

#[test]
fn outcomes_of_a_shared_flight_are_kept_while_there_is_no_space() {
    let (mut world, start) = in_one_flight();
    world.engine.store().fail_commit(StoreError::Full("test".into()));
    let ends = report(&world, &start, 0, &[succeeded(), succeeded(), succeeded(), succeeded()]);
    assert!(!world.turn([ends]).has_ends());
    world.now = world.engine.next_wake().unwrap().unwrap();
    assert_eq!(archived(&world.turn([])).len(), 4);
    assert!(world.engine.is_quiet());
}

#[test]
fn a_crash_within_a_shared_flight_loses_and_doubles_none() {
    crash(Memory::new(1), |store| store);
    let (place, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |at: &Path| Embedded::open(&DataDir::open(at).unwrap(), "this boot").unwrap().0;
    // The files as the kernel has them at that moment; what the store does when it is closed is not among it.
    crash(open(place.path()), |_store| {
        copy(place.path(), aside.path());
        open(aside.path())
    });
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let (entry, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if entry.is_dir() {
            std::fs::create_dir_all(to.join(&name)).unwrap();
            copy(&entry, &to.join(name));
        } else if !name.to_string_lossy().ends_with("-shm") {
            std::fs::copy(&entry, to.join(name)).unwrap();
        }
    }
}

/// Two of four have ended, and then the server is gone: what the next one begins.
fn crash<S: Store>(store: S, reopen: impl FnOnce(S) -> S) {
    let (mut world, start) = in_one_flight_on(store);
    let ended = report(&world, &start, 1, &[succeeded(), succeeded()]);
    assert_eq!(archived(&world.turn([ended])).len(), 2);
    let World { engine, now, .. } = world;
    let evidence =
        Evidence { begun: &|_, _| false, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD };
    let options = EngineOptions { ids: Arc::new(IdSource::new(Origin::from_random(9))), ..engine.options.clone() };
    let (mut engine, _) = Engine::new(reopen(engine.store), options, evidence, now).unwrap();
    let mut begun: Vec<JobId> = Vec::new();
    for _ in 0..3 {
        begun.extend(engine.turn(now, []).unwrap().starts.iter().flat_map(ids));
    }
    begun.sort();
    assert_eq!(begun, [id(2), id(5)], "what had ended stays so, and what had not begins again, once");
}
