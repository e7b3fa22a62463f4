//! Cases about runs: exact ends told once, generations, seals that wait for positions, input taken by one at a time.

use super::rig::{Rig, assert_stale, fail, ok, retry, succeed};
use super::{Bench, Case};
use crate::store::{Amendment, Cursor, Filter, FollowUp, Lot, NewJobs, NewRun, Seal, Store, Taken};
use windlass_core::job::{LaneKind, Origin, RunId};
use windlass_core::life_cycle::State;

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![
        ("a run ends when it is sealed and nothing of it lives, once", exact_end),
        ("what a job emits joins its run with its end, sealed or not", follow_ups),
        ("a run without jobs ends when it is sealed", empty_run),
        ("late jobs of a sealed run go to its next generation", generations),
        ("another try of an ended run's job goes to the next generation", retried_after_the_end),
        ("a seal does not overtake the positions it names", seals_wait),
        ("a removed inbox file was read to its end", seals_and_closed_files),
        ("the input of a run is taken by compare and set", taken),
        ("an opened run keeps its name and what serves it", opened),
        ("a run is forgotten when nothing of it is left", forgotten),
        ("cursors are kept and go with their files", cursors),
    ]
}

fn run_id(number: u64) -> RunId {
    RunId::first(Origin::from_random(number))
}

fn seal(run: RunId, after: Vec<(Origin, u64)>) -> Lot {
    Lot { seals: vec![Seal { run, after }], ..Lot::default() }
}

fn cursor(origin: Origin, offset: u64) -> Cursor {
    Cursor { origin, offset, tail: 7 }
}

fn follow_ups<B: Bench>(rig: &mut Rig<'_, B>) {
    let id = run_id(3);
    rig.push_to_run("q", 1, id);
    rig.admit_lot(&seal(id, vec![]));
    for round in 0..3 {
        let held = rig.claim("q", 1);
        assert_eq!(held.len(), 1, "round {round}: what was emitted can be claimed");
        let run = held[0].run;
        assert_eq!(run, Some(rig.run(id).no), "round {round}: it is in the run of the job that emitted it");
        let NewJobs { queue, priority, jobs, .. } = rig.new_jobs("q", 1);
        let emitted = if round < 2 { vec![FollowUp { queue, priority, run, jobs }] } else { Vec::new() };
        let (settlement, now) = (rig.settlement(&held[0], succeed()), rig.now);
        ok(rig.store().settle(&[settlement], &emitted, now));
        rig.step();
        assert_eq!(rig.run(id).counts.ended, round == 2, "round {round}: it ends with the last one");
    }
    assert_eq!(rig.run(id).counts.by_state[State::Succeeded.index()], 3, "its successes");
    assert_eq!(rig.mirror.ended.get(&id), Some(&1), "its end is told once");
    assert!(ok(rig.view().run(id.next_generation())).is_none(), "nothing went to a next generation");
    let held = rig.job_in("single", State::Running).1.unwrap_or_else(|| panic!("a running job is held"));
    let NewJobs { queue, priority, jobs, .. } = rig.new_jobs("other", 3);
    let (settlement, now) = (rig.settlement(&held, succeed()), rig.now);
    ok(rig.store().settle(std::slice::from_ref(&settlement), &[FollowUp { queue, priority, run: None, jobs }], now));
    rig.step();
    assert_eq!(rig.claim("other", 9).iter().map(|held| held.count).sum::<u16>(), 3, "without a run they have none");
    let NewJobs { queue, priority, jobs, .. } = rig.new_jobs("other", 1);
    let stale = rig.store().settle(&[settlement], &[FollowUp { queue, priority, run: None, jobs }], now);
    assert_stale(stale, "a settlement that is stale");
    ok(rig.store().rollback());
    assert!(rig.claim("other", 9).is_empty(), "a stale settlement emits nothing");
}

fn exact_end<B: Bench>(rig: &mut Rig<'_, B>) {
    let id = run_id(1);
    let made = rig.push_to_run("q", 5, id);
    rig.push("q", 3);
    let held = rig.claim("q", 5);
    assert!(held.iter().all(|held| held.run == Some(rig.run(id).no)), "a claim names its run");
    rig.settle(&held[0].part(0, 1), succeed());
    assert!(!rig.run(id).counts.ended, "an open run does not end");
    rig.admit_lot(&seal(id, vec![]));
    assert!(rig.run(id).counts.sealed, "it is sealed at once");
    rig.settle(&held[0].part(1, 1), retry(rig.in_seconds(1)));
    rig.settle(&held[0].part(2, 2), fail());
    rig.settle(&held[0].part(4, 1), succeed());
    rig.later(1);
    rig.release(10);
    assert!(!rig.run(id).counts.ended, "a retry is still to come");
    let lane = rig.lane("q", 0, LaneKind::Retry);
    let last = rig.claim_lane(lane, 1);
    rig.later(5);
    rig.settle(&last[0], succeed());
    let run = rig.run(id);
    assert_eq!((run.counts.ended, run.ended_at), (true, Some(rig.now)), "the last outcome ends it");
    assert_eq!(run.counts.by_state[State::Succeeded.index()], 3, "its successes");
    assert_eq!(run.counts.by_state[State::Failed.index()], 2, "its failures");
    assert_eq!(rig.mirror.ended.get(&id), Some(&1), "its end is told once");
    assert!(ok(rig.store().open_runs()).is_empty(), "no run is open");
    assert_eq!(rig.job(made[2]).run, Some(id), "a failed job still names its run");
    let filter = Filter { run: Some(id), ..Filter::default() };
    assert_eq!(rig.list(&filter, 1).len(), 2, "the run's kept jobs are listed");
}

fn empty_run<B: Bench>(rig: &mut Rig<'_, B>) {
    let now = rig.now;
    ok(rig.store().open_run(run_id(1), &NewRun::default(), now));
    rig.step();
    assert!(!rig.run(run_id(1)).counts.ended, "an open run does not end");
    rig.admit_lot(&seal(run_id(1), vec![]));
    assert_eq!(rig.mirror.ended.get(&run_id(1)), Some(&1), "a sealed empty run ends");
    let jobs = NewJobs { run: Some(run_id(2)), ..rig.new_jobs("q", 1) };
    rig.admit_lot(&Lot { jobs: vec![jobs], ..seal(run_id(2), vec![]) });
    assert!(!rig.run(run_id(2)).counts.ended, "jobs that come with their seal are in the run");
    rig.amend(rig.list(&Filter::default(), 9)[0].id, Amendment::Cancel);
    assert!(rig.run(run_id(2)).counts.ended, "a cancelled job has ended");
}

fn generations<B: Bench>(rig: &mut Rig<'_, B>) {
    let first = run_id(1);
    rig.push_to_run("q", 1, first);
    rig.admit_lot(&seal(first, vec![]));
    let second = first.next_generation();
    let late = [rig.push_to_run("q", 2, first), rig.push_to_run("r", 1, first)].concat();
    assert!(late.iter().all(|id| rig.job(*id).run == Some(second)), "late jobs are in generation 2 while it lives");
    assert!(rig.run(second).counts.sealed, "a late generation is sealed from the start");
    assert_eq!(rig.run(first).counts.total(), 1, "the first generation has what it had");
    let held = rig.claim("q", 3);
    for held in &held {
        rig.settle(held, succeed());
    }
    assert!(rig.run(first).counts.ended && !rig.run(second).counts.ended, "each has its own end");
    let held = rig.claim("r", 1);
    rig.settle(&held[0], succeed());
    assert!(rig.run(second).counts.ended, "the second generation has ended");
    let later = rig.push_to_run("q", 1, first)[0];
    assert_eq!(rig.job(later).run, Some(second.next_generation()), "an ended generation is never opened again");
    assert_eq!(rig.mirror.ended.len(), 2, "two ends were told");
}

fn retried_after_the_end<B: Bench>(rig: &mut Rig<'_, B>) {
    let first = run_id(1);
    let made = rig.push_to_run("q", 2, first);
    let held = rig.claim("q", 2);
    rig.settle(&held[0], fail());
    rig.amend(made[0], Amendment::Retry);
    assert_eq!(rig.job(made[0]).run, Some(first), "an open run keeps its job");
    rig.amend(made[0], Amendment::Cancel);
    rig.admit_lot(&seal(first, vec![]));
    let end = rig.run(first);
    assert!(end.counts.ended, "sealed, and nothing lives");
    rig.amend(made[1], Amendment::Retry);
    let second = first.next_generation();
    assert_eq!(rig.job(made[1]).run, Some(second), "the job is in the next generation");
    assert!(rig.run(first).counts.ended && !rig.run(second).counts.ended, "an ended run is not opened again");
    let held = rig.claim("q", 2);
    rig.settle(&held[0], succeed());
    assert_eq!(rig.mirror.ended.get(&second), Some(&1), "the next generation has its own end");
    assert_eq!(rig.run(first).ended_at, end.ended_at, "the end of the first stays what it was");
}

fn seals_wait<B: Bench>(rig: &mut Rig<'_, B>) {
    let (a, b) = (Origin::from_random(100), Origin::from_random(200));
    let id = run_id(1);
    rig.admit_lot(&Lot { cursors: vec![cursor(a, 50)], ..Lot::default() });
    rig.admit_lot(&seal(id, vec![(a, 60), (b, 10)]));
    assert!(!rig.run(id).counts.sealed, "neither position is reached");
    assert!(!rig.run(id).seal_after.is_empty(), "it is known what the seal waits for");
    let jobs = NewJobs { run: Some(id), ..rig.new_jobs("q", 1) };
    rig.admit_lot(&Lot { jobs: vec![jobs], cursors: vec![cursor(a, 60)], ..Lot::default() });
    assert!(!rig.run(id).counts.sealed, "one position is reached");
    let jobs = NewJobs { run: Some(id), ..rig.new_jobs("q", 1) };
    rig.admit_lot(&Lot { jobs: vec![jobs], cursors: vec![cursor(b, 99)], ..Lot::default() });
    let run = rig.run(id);
    assert!(run.counts.sealed && run.seal_after.is_empty(), "both positions are reached");
    assert_eq!(run.counts.total(), 2, "the jobs before the seal are all in the run itself");
    let held = rig.claim("q", 2);
    for held in &held {
        rig.settle(held, succeed());
    }
    assert_eq!(rig.mirror.ended.get(&id), Some(&1), "it ends");
    rig.admit_lot(&seal(run_id(2), vec![(a, 60)]));
    assert_eq!(rig.mirror.ended.get(&run_id(2)), Some(&1), "a position that was reached before is no wait");
}

fn seals_and_closed_files<B: Bench>(rig: &mut Rig<'_, B>) {
    let a = Origin::from_random(100);
    rig.admit_lot(&seal(run_id(1), vec![(a, 60)]));
    rig.admit_lot(&Lot { cursors: vec![cursor(a, 60)], closed: vec![a], ..Lot::default() });
    assert!(rig.run(run_id(1)).counts.sealed, "the file was read and removed in one lot");
    assert!(ok(rig.view().cursors()).is_empty(), "its cursor is gone");
    rig.admit_lot(&seal(run_id(2), vec![(a, 60)]));
    assert!(rig.run(run_id(2)).counts.sealed, "a seal that names the removed file late waits for nothing");
}

fn taken<B: Bench>(rig: &mut Rig<'_, B>) {
    let id = run_id(1);
    let now = rig.now;
    ok(rig.store().open_run(id, &NewRun::default(), now));
    rig.step();
    let (zero, one, two) = (Taken::default(), Taken { lines: 5, hash: 77 }, Taken { lines: 9, hash: 78 });
    let jobs = NewJobs { run: Some(id), ..rig.new_jobs("q", 5) };
    rig.admit_lot(&Lot { jobs: vec![jobs], taken: Some((id, zero, one)), ..Lot::default() });
    assert_eq!(rig.run(id).taken, one, "five lines are taken");
    for (from, to) in [(zero, one), (two, one), (Taken { lines: 5, hash: 1 }, two)] {
        let jobs = vec![NewJobs { run: Some(id), ..rig.new_jobs("new", 5) }];
        let cursors = vec![cursor(Origin::from_random(3), 1)];
        let lot = Lot { jobs, cursors, taken: Some((id, from, to)), ..seal(id, vec![]) };
        assert_stale(rig.store().admit(&lot, now), "a lot from another place of the input");
        rig.step();
    }
    let run = rig.run(id);
    assert_eq!((run.taken, run.counts.total(), run.counts.sealed), (one, 5, false), "refused lots left nothing");
    assert!(ok(rig.view().cursors()).is_empty(), "not even a cursor");
    rig.admit_lot(&Lot { taken: Some((id, one, two)), ..Lot::default() });
    assert_eq!(rig.run(id).taken, two, "the next lines are taken");
    rig.crash(&|_, _| true, true);
    assert_eq!(rig.run(id).taken, two, "also after a crash");
}

fn opened<B: Bench>(rig: &mut Rig<'_, B>) {
    let new = NewRun { name: "nightly".into(), spec: vec![0, 255, 3], ..NewRun::default() };
    let now = rig.now;
    let no = ok(rig.store().open_run(run_id(1), &new, now));
    rig.step();
    rig.crash(&|_, _| true, true);
    let open = ok(rig.store().open_runs());
    assert_eq!(open, [rig.run(run_id(1))], "the open runs are those of the view");
    let found: Vec<_> = open.iter().map(|run| (run.no, run.name.as_str(), &run.spec[..], run.created)).collect();
    assert_eq!(found, [(no, "nightly", &[0, 255, 3][..], now)], "the run as it was opened");
}

fn forgotten<B: Bench>(rig: &mut Rig<'_, B>) {
    for number in 1..=2 {
        rig.push_to_run("q", 1, run_id(number));
        let held = rig.claim("q", 1);
        rig.settle(&held[0], fail());
        if number == 1 {
            rig.admit_lot(&seal(run_id(1), vec![]));
        }
    }
    rig.later(10);
    rig.archive_all();
    let now = rig.now;
    for _ in 0..10 {
        ok(rig.store().forget(now, 10));
        rig.step();
    }
    assert_eq!(ok(rig.view().run(run_id(1))), None, "an ended run without jobs goes");
    assert!(!rig.run(run_id(2)).counts.ended, "an open run stays");
    assert!(rig.list(&Filter::default(), 10).is_empty(), "its failed job goes");
}

fn cursors<B: Bench>(rig: &mut Rig<'_, B>) {
    let (a, b) = (Origin::from_random(100), Origin::from_random(200));
    rig.admit_lot(&Lot { cursors: vec![cursor(a, 1), cursor(b, 1)], ..Lot::default() });
    rig.admit_lot(&Lot { cursors: vec![cursor(a, u64::MAX >> 1)], ..Lot::default() });
    rig.admit_lot(&Lot { closed: vec![b], ..Lot::default() });
    let now = rig.now;
    ok(rig.store().admit(&Lot { cursors: vec![cursor(b, 5)], ..Lot::default() }, now));
    rig.crash(&|_, _| true, true);
    assert_eq!(ok(rig.view().cursors()), [cursor(a, u64::MAX >> 1)], "the cursors of the last commit");
}
