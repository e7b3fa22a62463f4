//! What only the model store can do: lose power, fail on request, and do the same thing twice.

use super::Memory;
use crate::store::chunk::ChunkBuilder;
use crate::store::{Durability, Filter, Lot, NewJobs, Order, Settlement, Store, StoreError, StoreView};
use std::sync::Arc;
use windlass_core::job::{Arrival, Lane, LaneKind, Origin, Priority, QueueName, QueueNo};
use windlass_core::judge::Verdict;
use windlass_core::time::Time;

const NOW: Time = Time(1_000);

fn lot(first: u64, count: u64) -> Lot {
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    (first..first + count).for_each(|offset| builder.push(offset, b"data"));
    let jobs = Arc::new(builder.finish());
    let queue = QueueName::new(b"q").unwrap();
    let new = NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs };
    Lot { jobs: vec![new], ..Lot::default() }
}

fn offsets(store: &Memory) -> Vec<u64> {
    let page = store.list(&Filter::default(), Arrival(0), 1000).unwrap();
    page.jobs.iter().map(|job| job.id.offset).collect()
}

fn fresh() -> Lane {
    Lane { queue: QueueNo(0), priority: Priority::NORMAL, kind: LaneKind::Fresh }
}

/// One full commit, then three that only the kernel has, then an open turn.
fn at_risk() -> Memory {
    let mut store = Memory::new(1);
    store.admit(&lot(10, 2), NOW).unwrap();
    store.commit(Durability::Full).unwrap();
    store.admit(&lot(20, 1), NOW).unwrap();
    store.commit(Durability::Os).unwrap();
    let held = store.claim(&[Order { lane: fresh(), most: 1 }], NOW).unwrap().remove(0);
    store.commit(Durability::Os).unwrap();
    let verdict = Verdict::Succeed { message: String::new() };
    let done = Settlement { held, verdict, outcome: "succeeded", started: NOW, finished: NOW };
    store.settle(&[done], &[], NOW).unwrap();
    store.commit(Durability::Os).unwrap();
    store.admit(&lot(30, 1), NOW).unwrap();
    store
}

#[test]
fn a_power_cut_keeps_full_commits_and_a_prefix_of_the_others() {
    assert_eq!(at_risk().at_risk(), 3);
    for (kept, expected, running, outcomes) in [
        (0, vec![10, 11], 0, 0),
        (1, vec![10, 11, 20], 0, 0),
        (2, vec![10, 11, 20], 1, 0),
        (3, vec![11, 20], 0, 1),
        (9, vec![11, 20], 0, 1),
    ] {
        let mut store = at_risk();
        let epoch = store.epoch();
        store.power_cut(kept);
        assert_eq!(offsets(&store), expected, "{kept} kept");
        let stats = store.queues().unwrap()[0].stats;
        assert_eq!(stats.by_state[windlass_core::life_cycle::State::Running.index()], running, "{kept} kept");
        assert_eq!(store.unarchived().unwrap().len(), outcomes, "{kept} kept");
        assert_ne!(store.epoch(), epoch);
        store.power_cut(0);
        assert_eq!(offsets(&store), expected, "what one power cut left survives the next");
    }
}

#[test]
fn a_crash_keeps_what_the_kernel_has() {
    let mut store = at_risk();
    store.crash();
    assert_eq!(offsets(&store), [11, 20]);
    assert_eq!(store.at_risk(), 3, "it is still not on disk");
    store.commit(Durability::Full).unwrap();
    store.power_cut(0);
    assert_eq!(offsets(&store), [11, 20], "a full commit takes all before it to disk");
}

#[test]
fn a_failed_commit_leaves_the_turn_before_it() {
    let mut store = at_risk();
    let full = StoreError::Full("planned".into());
    store.fail_commit(full.clone());
    assert_eq!(store.commit(Durability::Full), Err(full));
    assert_eq!(offsets(&store), [11, 20]);
    assert!(store.changes().moves.is_empty(), "nothing of the turn is told");
    store.admit(&lot(30, 1), NOW).unwrap();
    store.commit(Durability::Full).unwrap();
    assert_eq!(offsets(&store), [11, 20, 30], "only the next commit failed");
    store.fail_commits(2, true, StoreError::Io("planned".into()));
    let answers: Vec<bool> = (0..4).map(|_| store.commit(Durability::Os).is_ok()).collect();
    assert_eq!(answers, [true, false, false, false]);
    assert_eq!(store.failed_commits(), 4);
}

#[test]
fn thousands_of_commits_are_cheap() {
    let mut store = Memory::new(1);
    store.admit(&lot(0, 1000), NOW).unwrap();
    for turn in 0..5_000 {
        let held = store.claim(&[Order { lane: fresh(), most: 1 }], NOW).unwrap().remove(0);
        store.commit(Durability::Full).unwrap();
        let back = Settlement { held, verdict: Verdict::Return, outcome: "interrupted", started: NOW, finished: NOW };
        store.settle(&[back], &[], NOW).unwrap();
        let number = store.commit(Durability::Full).unwrap();
        store.archived(number).unwrap();
        assert_eq!(number, 2 * (turn + 1), "each commit is a turn");
    }
    assert_eq!(offsets(&store).len(), 1000);
}

#[test]
fn the_same_calls_do_the_same() {
    let (mut one, mut other) = (at_risk(), at_risk());
    for store in [&mut one, &mut other] {
        store.power_cut(2);
    }
    assert_eq!(one.epoch(), other.epoch());
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
}
