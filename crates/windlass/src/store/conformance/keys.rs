//! Cases about unique keys: who has one, until when, and what becomes of those who come too late.

use super::rig::{Rig, fail, ok, retry, succeed};
use super::{Bench, Case};
use crate::store::chunk::ChunkBuilder;
use crate::store::keys::Duplicate;
use crate::store::{Amended, Amendment, Durability, FollowUp, Lot, NewJobs, Seal, Store};
use std::sync::Arc;
use windlass_core::job::{JobId, Origin, RunId};
use windlass_core::life_cycle::State;
use windlass_core::particulars::{OnConflict, Particulars, Scope, Unique};

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![
        ("a key is taken until its job starts, until it ends, or for its run, as its scope says", scopes),
        ("whatever ends a job that waits frees its key", freed),
        ("a key is there if and only if the turn that took it is", with_the_turn),
        ("a job is replaced while it waits, and not while it runs", replaced),
        ("who lives again takes its key again, or is refused while another has it", retaken),
        ("the same key in another queue or run is another key", apart),
        ("what is emitted a second time vanishes, and the run ends once", emitted),
        ("the keys of a run are forgotten with it", forgotten),
    ]
}

fn unique(scope: Scope, key: Option<&str>) -> Unique {
    Unique { scope, on_conflict: OnConflict::Ignore, key: key.map(|key| key.as_bytes().to_vec()) }
}

impl<B: Bench> Rig<'_, B> {
    /// A job with this key, and what came of it.
    fn push_unique(&mut self, queue: &str, run: Option<RunId>, unique: Unique) -> (JobId, Option<JobId>) {
        let new = NewJobs { run, ..self.new_jobs(queue, 1) };
        let particulars = Particulars { unique: Some(unique), ..Particulars::default() };
        let jobs = Arc::new(new.jobs.rebuilt(Some(Arc::new(particulars)), |_| true));
        let id = jobs.id(0);
        let new = NewJobs { jobs, ..new };
        let holders = ok(self.store().holders(&new));
        let now = self.now;
        ok(self.store().admit(&Lot { jobs: vec![new], ..Lot::default() }, now));
        let told = self.duplicates();
        assert!(told.iter().all(|found| found.id == id) && told.len() < 2, "only this job is new: {told:?}");
        let of = told.first().map(|found| found.of);
        assert!(of.is_none() || holders == [of], "{holders:?} were said to have the key");
        (id, of)
    }

    /// Commits, and tells what was dropped.
    fn duplicates(&mut self) -> Vec<Duplicate> {
        ok(self.store().commit(Durability::Full));
        let changes = self.store().changes();
        self.learn(&changes);
        changes.duplicates
    }
}

fn scopes<B: Bench>(rig: &mut Rig<'_, B>) {
    for scope in Scope::ALL {
        let (queue, run) = (scope.word(), RunId::first(Origin::from_random(70 + scope as u64)));
        let unique = || unique(scope, Some("key"));
        let (first, of) = rig.push_unique(queue, Some(run), unique());
        assert_eq!(of, None);
        let mut taken = 0;
        let mut expect = |rig: &mut Rig<'_, B>, held: bool, when: &str| {
            let (id, of) = rig.push_unique(queue, Some(run), unique());
            assert_eq!(of.is_some(), held, "{queue}: {when}");
            taken += u64::from(held);
            assert_eq!(rig.run(run).counts.dropped, taken, "{queue}: {when}");
            if !held {
                // The next look is to find the key as the first job left it.
                assert!(matches!(rig.amend(id, Amendment::Cancel), Amended::Done { .. }));
            }
        };
        expect(rig, true, "it waits");
        let held = rig.claim(queue, 1);
        assert_eq!(held[0].ids().next(), Some(first));
        expect(rig, scope != Scope::Waiting, "it runs");
        rig.settle(&held[0], retry(rig.now));
        expect(rig, scope != Scope::Waiting, "it retries");
        rig.release(9);
        let lane = rig.lane(queue, 0, windlass_core::job::LaneKind::Retry);
        let held = rig.claim_lane(lane, 1);
        rig.step();
        rig.settle(&held[0], succeed());
        expect(rig, scope == Scope::Run, "it has ended");
    }
}

fn freed<B: Bench>(rig: &mut Rig<'_, B>) {
    for (number, scope) in [Scope::Waiting, Scope::Active].into_iter().enumerate() {
        let queue = format!("q{number}");
        let unique = || unique(scope, None);
        let (id, _) = rig.push_unique(&queue, None, unique());
        rig.amend(id, Amendment::Cancel);
        let (id, of) = rig.push_unique(&queue, None, unique());
        assert_eq!(of, None, "it was cancelled");
        let now = rig.now;
        ok(rig.store().delete(&[id], now));
        rig.step();
        let (_, of) = rig.push_unique(&queue, None, unique());
        assert_eq!(of, None, "it was deleted");
        let held = rig.claim(&queue, 1);
        rig.settle(&held[0], fail());
        let (_, of) = rig.push_unique(&queue, None, unique());
        assert_eq!(of, None, "it failed");
    }
}

fn with_the_turn<B: Bench>(rig: &mut Rig<'_, B>) {
    let by_data = unique(Scope::Active, None);
    let new = rig.new_jobs("q", 1);
    let particulars = Particulars { unique: Some(by_data.clone()), ..Particulars::default() };
    let jobs = Arc::new(new.jobs.rebuilt(Some(Arc::new(particulars)), |_| true));
    let now = rig.now;
    ok(rig.store().admit(&Lot { jobs: vec![NewJobs { jobs, ..new }], ..Lot::default() }, now));
    rig.crash(&|_, _| true, true);
    let (id, of) = rig.push_unique("q", None, by_data.clone());
    assert_eq!(of, None, "the turn that took it never was");
    rig.crash(&|_, _| true, true);
    assert_eq!(rig.push_unique("q", None, by_data).1, Some(id), "the turn that took it is there");
}

fn replaced<B: Bench>(rig: &mut Rig<'_, B>) {
    let replace = || Unique { on_conflict: OnConflict::Replace, ..unique(Scope::Active, Some("key")) };
    let (first, _) = rig.push_unique("q", None, replace());
    let (second, of) = rig.push_unique("q", None, replace());
    assert_eq!((of, rig.state(first), rig.state(second)), (None, Some(State::Cancelled), Some(State::Ready)));
    let held = rig.claim("q", 2);
    assert_eq!(held[0].ids().collect::<Vec<_>>(), [second]);
    let (third, of) = rig.push_unique("q", None, replace());
    assert_eq!((of, rig.state(third)), (Some(second), None), "what runs stays");
    rig.settle(&held[0], succeed());
    assert_eq!(rig.push_unique("q", None, replace()).1, None);
}

fn retaken<B: Bench>(rig: &mut Rig<'_, B>) {
    for scope in Scope::ALL {
        // By its data, as by a rule: another of its kind would be another key.
        let (queue, unique) = (scope.word(), || unique(scope, Some("key")));
        let run = RunId::first(Origin::from_random(40 + scope as u64));
        let (first, _) = rig.push_unique(queue, Some(run), unique());
        let held = rig.claim(queue, 1);
        rig.settle(&held[0], fail());
        if scope != Scope::Run {
            let (second, of) = rig.push_unique(queue, Some(run), unique());
            assert_eq!(of, None, "{queue}: it has failed");
            assert_eq!(rig.amend(first, Amendment::Retry), Amended::Taken(second), "{queue}");
            assert_eq!(rig.state(first), Some(State::Failed), "{queue}: as it was");
            rig.amend(second, Amendment::Cancel);
        }
        assert!(matches!(rig.amend(first, Amendment::Retry), Amended::Done { .. }), "{queue}: the key is free");
        assert_eq!(rig.push_unique(queue, Some(run), unique()).1, Some(first), "{queue}: and taken again");
        let held = rig.claim(queue, 1);
        assert_eq!(held[0].ids().collect::<Vec<_>>(), [first]);
        rig.settle(&held[0], succeed());
        assert_eq!(rig.push_unique(queue, Some(run), unique()).1.is_some(), scope == Scope::Run, "{queue}: it ended");
    }
    // Two that once had the same key in a run that has ended: what lives again is in the next generation of the run.
    let run = RunId::first(Origin::from_random(60));
    let (first, _) = rig.push_unique("late", Some(run), unique(Scope::Run, Some("one")));
    rig.admit_lot(&Lot { seals: vec![Seal { run, after: Vec::new() }], ..Lot::default() });
    let held = rig.claim("late", 1);
    rig.settle(&held[0], fail());
    assert!(rig.run(run).counts.ended);
    assert!(matches!(rig.amend(first, Amendment::Retry), Amended::Done { .. }));
    let again = rig.push_unique("late", Some(run), unique(Scope::Run, Some("one"))).1;
    assert_eq!(again, Some(first), "the key is its own in the run where it lives");
}

fn apart<B: Bench>(rig: &mut Rig<'_, B>) {
    let runs = [1, 2].map(|n| RunId::first(Origin::from_random(n)));
    for scope in Scope::ALL {
        let unique = || unique(scope, Some("key"));
        let (queue, other) = (format!("a-{}", scope.word()), format!("b-{}", scope.word()));
        rig.push_unique(&queue, Some(runs[0]), unique());
        assert_eq!(rig.push_unique(&queue, Some(runs[1]), unique()).1.is_some(), scope != Scope::Run);
        assert_eq!(rig.push_unique(&other, Some(runs[0]), unique()).1.is_some(), scope == Scope::Run);
        assert_eq!(rig.push_unique(&queue, None, unique()).1.is_some(), scope != Scope::Run, "no run, no key of it");
    }
}

fn emitted<B: Bench>(rig: &mut Rig<'_, B>) {
    let run = RunId::first(Origin::from_random(5));
    let seed = rig.new_jobs("crawl", 1);
    rig.admit_lot(&Lot {
        jobs: vec![NewJobs { run: Some(run), ..seed }],
        seals: vec![Seal { run, after: Vec::new() }],
        ..Lot::default()
    });
    let particulars = Particulars { unique: Some(unique(Scope::Run, None)), ..Particulars::default() };
    let particulars = Arc::new(particulars);
    let links = |first: u64| {
        let mut builder = ChunkBuilder::new(Origin::from_random(8)).with(Some(particulars.clone()));
        (0..1000).for_each(|n| builder.push(first + n, format!("http://x/{}", n % 500).as_bytes()));
        Arc::new(builder.finish())
    };
    let no = rig.run(run).no;
    let NewJobs { queue, priority, .. } = rig.new_jobs("crawl", 1);
    let link = |jobs| FollowUp { queue: queue.clone(), priority, run: Some(no), jobs };
    let held = rig.claim("crawl", 1);
    let (end, now) = (rig.settlement(&held[0], succeed()), rig.now);
    ok(rig.store().settle(&[end], &[link(links(0))], now));
    assert_eq!(rig.duplicates().len(), 500, "each is there once");
    let counts = rig.run(run).counts;
    assert_eq!((counts.total(), counts.dropped, counts.ended), (501, 500, false));
    let mut held = rig.claim("crawl", 1000);
    let last = held.pop().map(|held| rig.settlement(&held, succeed()));
    let ends: Vec<_> = held.iter().map(|held| rig.settlement(held, succeed())).collect();
    rig.settle_all(&ends);
    assert!(!rig.run(run).counts.ended);
    let now = rig.now;
    ok(rig.store().settle(last.as_slice(), &[link(links(5_000)), link(links(9_000))], now));
    assert_eq!(rig.duplicates().len(), 2000, "all were there before");
    assert!(rig.run(run).counts.ended, "the last emitted nothing that is new");
    assert_eq!(rig.run(run).counts.total(), 501);
}

fn forgotten<B: Bench>(rig: &mut Rig<'_, B>) {
    let run = RunId::first(Origin::from_random(5));
    for key in ["a", "b", "c"] {
        rig.push_unique("q", Some(run), unique(Scope::Run, Some(key)));
    }
    rig.admit_lot(&Lot { seals: vec![Seal { run, after: Vec::new() }], ..Lot::default() });
    let held = rig.claim("q", 3);
    held.iter().for_each(|held| rig.settle(held, succeed()));
    assert!(rig.run(run).counts.ended);
    rig.archive_all();
    let before = rig.later(60);
    // One thing at a time, so that a run with many keys is no long turn.
    let steps = (0..9).take_while(|_| ok(rig.store().forget(before, 1)) > 0).count();
    assert!(steps < 9, "it comes to an end");
    rig.step();
    assert!(ok(rig.view().run(run)).is_none(), "it is forgotten");
}
