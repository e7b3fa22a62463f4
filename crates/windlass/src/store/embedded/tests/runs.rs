//! Runs: their counters, seals that wait for inbox positions, generations, and the end that comes once.

use super::*;
use windlass_core::particulars::{OnConflict, Particulars, Scope, Unique};

fn run(origin: u64) -> RunId {
    RunId::first(Origin::from_random(origin))
}

fn of_run(new: NewJobs, id: RunId) -> NewJobs {
    NewJobs { run: Some(id), ..new }
}

fn seal(bed: &mut Bed, id: RunId, after: Vec<(Origin, u64)>) {
    let lot = Lot { seals: vec![Seal { run: id, after }], ..Lot::default() };
    bed.store().admit(&lot, NOW).unwrap();
}

fn ended(bed: &mut Bed) -> Vec<RunId> {
    bed.store().changes().ended.into_iter().map(|info| info.id).collect()
}

#[test]
fn a_run_ends_once_when_sealed_and_done() {
    let mut bed = Bed::new();
    bed.admit(vec![of_run(jobs("a", 1, 0..3), run(9)), jobs("a", 1, 3..4)]);
    seal(&mut bed, run(9), Vec::new());
    let held = bed.claim(0, LaneKind::Fresh, 9);
    bed.settle(&held[0].part(0, 2), succeed());
    bed.settle(&held[0].part(2, 1), retry(1));
    bed.commit();
    assert!(ended(&mut bed).is_empty());
    bed.kill("boot");
    let open = bed.store().open_runs().unwrap();
    assert_eq!((open.len(), open[0].counts.live()), (1, 1));
    bed.store().release(at(2), 9, Evidence::UNTOLD).unwrap();
    let last = bed.claim(0, LaneKind::Retry, 9).remove(0);
    bed.settle(&last, fail());
    let changes = bed.store().changes();
    assert_eq!(changes.ended.len(), 1);
    assert_eq!((changes.ended[0].id, changes.ended[0].ended_at), (run(9), Some(NOW)));
    bed.commit();
    assert!(bed.store().open_runs().unwrap().is_empty());
    let info = bed.view().run(run(9)).unwrap().unwrap();
    assert_eq!(info.counts.by_state[State::Succeeded.index()], 2);
    assert_eq!(info.counts.by_state[State::Failed.index()], 1);
    let turn = bed.commit();
    bed.store().archived(turn).unwrap();
    assert_eq!(bed.store().forget(at(5), 9).unwrap(), 2, "the failed job, then its run");
    bed.commit();
    assert!(bed.view().runs(9).unwrap().is_empty());
}

#[test]
fn late_jobs_open_the_next_generation() {
    let mut bed = Bed::new();
    bed.admit(vec![of_run(jobs("a", 1, 0..1), run(9))]);
    seal(&mut bed, run(9), Vec::new());
    bed.admit(vec![of_run(jobs("a", 1, 1..2), run(9)), of_run(jobs("b", 1, 2..3), run(9))]);
    bed.commit();
    let second = run(9).next_generation();
    assert_eq!(bed.job(id(1, 0)).unwrap().run, Some(run(9)));
    assert_eq!(bed.job(id(1, 1)).unwrap().run, Some(second));
    assert_eq!(bed.job(id(1, 2)).unwrap().run, Some(second));
    for held in bed.claim(0, LaneKind::Fresh, 9).into_iter().chain(bed.claim(1, LaneKind::Fresh, 9)) {
        bed.settle(&held, succeed());
    }
    assert_eq!(ended(&mut bed), [run(9), second]);
    bed.admit(vec![of_run(jobs("a", 1, 5..6), run(9))]);
    bed.commit();
    assert_eq!(bed.job(id(1, 5)).unwrap().run, Some(second.next_generation()));
    assert_eq!(bed.store().open_runs().unwrap().len(), 1);
}

#[test]
fn a_seal_does_not_overtake_the_inbox() {
    let mut bed = Bed::new();
    let (file, other) = (Origin::from_random(1), Origin::from_random(2));
    let read = |bed: &mut Bed, origin, offset, jobs| {
        let cursors = vec![Cursor { origin, offset, tail: 5 }];
        bed.store().admit(&Lot { jobs, cursors, ..Lot::default() }, NOW).unwrap();
    };
    seal(&mut bed, run(9), vec![(file, 100), (other, 7)]);
    read(&mut bed, other, 7, Vec::new());
    read(&mut bed, file, 99, Vec::new());
    bed.commit();
    bed.kill("boot");
    assert!(ended(&mut bed).is_empty());
    assert_eq!(bed.store().open_runs().unwrap()[0].seal_after, [(file, 100)]);
    read(&mut bed, file, 100, vec![of_run(jobs("a", 1, 99..100), run(9))]);
    let held = bed.claim(0, LaneKind::Fresh, 1).remove(0);
    assert!(ended(&mut bed).is_empty());
    bed.settle(&held, succeed());
    assert_eq!(ended(&mut bed), [run(9)]);
    bed.store().admit(&Lot { closed: vec![file], ..Lot::default() }, NOW).unwrap();
    bed.commit();
    assert_eq!(bed.view().cursors().unwrap(), [Cursor { origin: other, offset: 7, tail: 5 }]);
    seal(&mut bed, run(10), vec![(file, 100)]);
    assert_eq!(ended(&mut bed), [run(10)], "a file that is gone was read to its end");
}

#[test]
fn the_input_of_a_run_is_taken_line_by_line_and_never_twice() {
    let mut bed = Bed::new();
    let new = NewRun { name: "thumbs".into(), spec: vec![1, 2, 3], ..NewRun::default() };
    let no = bed.store().open_run(run(9), &new, NOW).unwrap();
    let lot = |taken| Lot { jobs: vec![of_run(jobs("a", 1, 0..1), run(9))], taken: Some(taken), ..Lot::default() };
    let zero = (run(9), Taken::default(), Taken { lines: 1, hash: u64::MAX - 5 });
    bed.store().admit(&lot(zero), NOW).unwrap();
    bed.commit();
    let stale = bed.store().admit(&lot(zero), NOW);
    assert!(matches!(stale, Err(StoreError::Stale(_))), "{stale:?}");
    bed.commit();
    bed.kill("boot");
    let open = bed.store().open_runs().unwrap();
    assert_eq!((open[0].no, open[0].name.as_str(), &open[0].spec[..]), (no, "thumbs", &[1, 2, 3][..]));
    assert_eq!((open[0].taken, open[0].counts.total()), (zero.2, 1));
    assert!(matches!(bed.store().open_run(run(9), &new, NOW), Err(StoreError::Stale(_))));
}

#[test]
fn cancelling_the_last_job_ends_the_run_and_its_chunk_goes() {
    let mut bed = Bed::new();
    bed.admit(vec![of_run(jobs("a", 1, 0..2), run(9))]);
    seal(&mut bed, run(9), Vec::new());
    bed.commit();
    bed.store().amend(&[id(1, 0), id(1, 1)], Amendment::Cancel, NOW).unwrap();
    assert_eq!(ended(&mut bed), [run(9)]);
    bed.commit();
    bed.kill("boot");
    let no = bed.store().run_numbered(RunNo(1)).unwrap().map(|info| info.id);
    assert_eq!(no, Some(run(9)), "an ended run is known by its number, for outcomes that the archive lacks");
    assert_eq!(row_count(&bed, "chunk"), 0, "no outcome waits for the archive, so nothing is kept for it");
    let revived = bed.store().amend(&[id(1, 0)], Amendment::Retry, NOW).unwrap();
    assert_eq!(revived, [Amended::Done { from: State::Cancelled, to: State::Ready }]);
    bed.commit();
    bed.check();
    let held = bed.claim(0, LaneKind::Fresh, 1).remove(0);
    bed.settle(&held, succeed());
    assert_eq!(
        ended(&mut bed),
        [run(9).next_generation()],
        "an ended run stays ended; the next generation has its own"
    );
}

#[test]
fn the_keys_of_a_run_go_with_it_a_few_at_a_time() {
    let mut bed = Bed::new();
    let unique = Unique { scope: Scope::Run, on_conflict: OnConflict::Ignore, key: None };
    let particulars = Arc::new(Particulars { unique: Some(unique), ..Particulars::default() });
    let new = of_run(jobs("a", 1, 0..10), run(9));
    let keyed = Arc::new(new.jobs.rebuilt(Some(particulars), |_| true));
    bed.admit(vec![NewJobs { jobs: keyed, ..new }]);
    seal(&mut bed, run(9), Vec::new());
    let held = bed.claim(0, LaneKind::Fresh, 99);
    held.iter().for_each(|held| bed.settle(held, succeed()));
    let turn = bed.commit();
    assert_eq!(row_count(&bed, "unique_key"), 10);
    bed.store().archived(turn).unwrap();
    assert_eq!(bed.store().forget(at(9_000), 4).unwrap(), 4, "four keys, and the run stays");
    bed.commit();
    assert_eq!((row_count(&bed, "unique_key"), row_count(&bed, "run")), (6, 1));
    assert_eq!(bed.store().forget(at(9_000), 99).unwrap(), 7);
    bed.commit();
    assert_eq!((row_count(&bed, "unique_key"), row_count(&bed, "run")), (0, 0));
}
