//! Each verb on chunks and on rows, and the order in which jobs come.

use super::*;

#[test]
fn claims_span_chunks_keep_order_and_respect_the_most() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..3), jobs("b", 1, 3..4), jobs("a", 1, 4..8)]);
    let held = bed.claim(0, LaneKind::Fresh, 5);
    assert_eq!(offsets(&held), [0, 1, 2, 4, 5]);
    assert_eq!(held.len(), 2, "one claim per chunk");
    assert_eq!(offsets(&bed.claim(0, LaneKind::Fresh, 9)), [6, 7]);
    assert!(bed.claim(0, LaneKind::Fresh, 9).is_empty());
    assert_eq!(offsets(&bed.claim(1, LaneKind::Fresh, 9)), [3]);
    bed.commit();
    assert_eq!(bed.stats("a").by_state[State::Running.index()], 7);
    assert_eq!(bed.stats("a").started, 7);
    bed.check();
}

#[test]
fn each_verdict_leaves_the_job_where_it_belongs() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..5)]);
    let held = bed.claim(0, LaneKind::Fresh, 5).remove(0);
    let verdicts = [succeed(), retry(5), fail(), Verdict::Return, Verdict::Cancel];
    for (index, verdict) in verdicts.into_iter().enumerate() {
        bed.settle(&held.part(index as u16, 1), verdict);
    }
    bed.commit();
    assert_eq!(bed.job(id(1, 0)), None, "what succeeded is the archive's");
    let retrying = bed.job(id(1, 1)).unwrap();
    assert_eq!((retrying.state, retrying.not_before), (State::Retrying, Some(at(5))));
    assert_eq!(retrying.record, Record { starts: 1, failures: 1, suspicions: 0 });
    assert_eq!(retrying.errors[0].text, "no luck");
    let failed = bed.job(id(1, 2)).unwrap();
    assert_eq!((failed.state, failed.reason, failed.ended), (State::Failed, Some(Reason::Refused), Some(NOW)));
    assert_eq!(failed.data, b"2");
    let back = bed.job(id(1, 3)).unwrap();
    assert_eq!((back.state, back.record.starts, back.record.failures), (State::Ready, 1, 0));
    assert_eq!(state_of(&bed, 1, 4), State::Cancelled);
    bed.check();
    let again = bed.claim(0, LaneKind::Fresh, 9);
    assert_eq!((offsets(&again), again[0].start()), (vec![3], 2));
}

#[test]
fn a_settled_or_foreign_claim_is_stale_and_changes_nothing() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..4)]);
    let held = bed.claim(0, LaneKind::Fresh, 4).remove(0);
    bed.settle(&held.part(0, 1), retry(0));
    bed.commit();
    let stale = bed.store().settle(&[settled(&held.part(2, 1), succeed()), settled(&held, succeed())], &[], NOW);
    assert!(matches!(stale, Err(StoreError::Stale(_))), "{stale:?}");
    assert_eq!(bed.commit(), 1, "nothing changed, so there was no turn");
    bed.store().release(at(1), 9, Evidence::UNTOLD).unwrap();
    let first = bed.claim(0, LaneKind::Retry, 1).remove(0);
    bed.settle(&first, retry(0));
    let twice = bed.store().settle(&[settled(&first, succeed())], &[], NOW);
    assert!(matches!(twice, Err(StoreError::Stale(_))), "{twice:?}");
    let rest = settled(&held.part(1, 3), succeed());
    let overlap = bed.store().settle(&[rest.clone(), settled(&held.part(3, 1), fail())], &[], NOW);
    assert!(matches!(overlap, Err(StoreError::Stale(_))), "{overlap:?}");
    bed.store().settle(&[rest], &[], NOW).unwrap();
    bed.commit();
    bed.check();
}

#[test]
fn fresh_rows_come_between_chunks_by_arrival_and_retries_by_due_time() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..4), jobs("a", 1, 4..8)]);
    let held = bed.claim(0, LaneKind::Fresh, 6);
    bed.settle(&held[0].part(1, 1), Verdict::Return);
    bed.settle(&held[0].part(2, 1), retry(9));
    bed.settle(&held[0].part(3, 1), retry(7));
    bed.settle(&held[1].part(1, 1), Verdict::Return);
    bed.commit();
    assert_eq!(offsets(&bed.claim(0, LaneKind::Fresh, 9)), [1, 5, 6, 7]);
    assert_eq!(bed.store().next_due().unwrap(), Some(at(7)));
    bed.store().release(at(8), 100, Evidence::UNTOLD).unwrap();
    assert_eq!(bed.store().next_due().unwrap(), Some(at(9)));
    bed.store().release(at(20), 100, Evidence::UNTOLD).unwrap();
    assert_eq!(offsets(&bed.claim(0, LaneKind::Retry, 9)), [3, 2]);
    bed.commit();
    bed.check();
}

#[test]
fn scheduled_chunks_wait_and_are_released_as_a_whole() {
    let mut bed = Bed::new();
    let later = |offsets, seconds| NewJobs { not_before: Some(at(seconds)), ..jobs("a", 1, offsets) };
    bed.admit(vec![later(0..3, 50), later(3..5, 10), jobs("a", 1, 5..6), later(6..7, -5)]);
    bed.commit();
    assert_eq!(state_of(&bed, 1, 0), State::Scheduled);
    assert_eq!(bed.job(id(1, 3)).unwrap().not_before, Some(at(10)));
    assert_eq!(bed.ready(), 2, "a time that has passed is no time");
    assert_eq!(bed.store().next_due().unwrap(), Some(at(10)));
    bed.store().release(at(9), 100, Evidence::UNTOLD).unwrap();
    assert_eq!(bed.ready(), 2);
    bed.store().release(at(60), 1, Evidence::UNTOLD).unwrap();
    assert_eq!(bed.ready(), 4, "the earlier chunk, and it whole");
    bed.store().release(at(60), 100, Evidence::UNTOLD).unwrap();
    assert_eq!(bed.store().next_due().unwrap(), None);
    assert_eq!(offsets(&bed.claim(0, LaneKind::Fresh, 99)), [0, 1, 2, 3, 4, 5, 6]);
    bed.commit();
    bed.check();
}

#[test]
fn priorities_are_lanes_of_their_own() {
    let mut bed = Bed::new();
    let high = Priority::new(10).unwrap();
    bed.admit(vec![jobs("a", 1, 0..3), NewJobs { priority: high, ..jobs("a", 1, 3..5) }]);
    let moves = bed.store().changes().moves;
    assert_eq!(
        moves.iter().map(|m| (m.lane.priority, m.count)).collect::<Vec<_>>(),
        [(Priority::NORMAL, 3), (high, 2)]
    );
    let answers = bed.store().amend(&[id(1, 1), id(1, 4)], Amendment::Priority(high), NOW).unwrap();
    assert_eq!(answers, [Amended::Done { from: State::Ready, to: State::Ready }, Amended::Same(State::Ready)]);
    bed.commit();
    bed.kill("boot");
    let lane = Lane { queue: QueueNo(0), priority: high, kind: LaneKind::Fresh };
    let held = bed.store().claim(&[Order { lane, most: 9 }], NOW).unwrap();
    assert_eq!(offsets(&held), [1, 3, 4], "a raised job stands by its arrival");
    assert_eq!(offsets(&bed.claim(0, LaneKind::Fresh, 9)), [0, 2]);
    bed.commit();
    bed.check();
}

#[test]
fn a_person_cancels_retries_suspends_and_resumes() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..6)]);
    let running = bed.claim(0, LaneKind::Fresh, 1).remove(0);
    let mut amend = |ids: &[JobId], what| bed.store().amend(ids, what, NOW).unwrap();
    let done = |from, to| Amended::Done { from, to };
    let found = amend(&[id(1, 0), id(1, 1), id(1, 77), id(2, 0)], Amendment::Cancel);
    assert_eq!(found, [Amended::Running, done(State::Ready, State::Cancelled), Amended::Unknown, Amended::Unknown]);
    assert_eq!(amend(&[id(1, 1)], Amendment::Cancel), [Amended::Refused(State::Cancelled)]);
    assert_eq!(amend(&[id(1, 2)], Amendment::Suspend), [done(State::Ready, State::Suspended)]);
    assert_eq!(amend(&[id(1, 2)], Amendment::Resume), [done(State::Suspended, State::Ready)]);
    assert_eq!(amend(&[id(1, 3)], Amendment::Suspend), [done(State::Ready, State::Suspended)]);
    assert_eq!(amend(&[id(1, 1)], Amendment::Retry), [done(State::Cancelled, State::Ready)]);
    assert_eq!(amend(&[id(1, 4)], Amendment::Retry), [Amended::Refused(State::Ready)]);
    bed.settle(&running, fail());
    bed.commit();
    bed.check();
    let revived = bed.store().amend(&[id(1, 0)], Amendment::Retry, NOW).unwrap();
    assert_eq!(revived, [done(State::Failed, State::Ready)]);
    let held = bed.claim(0, LaneKind::Fresh, 9);
    assert_eq!(offsets(&held), [0, 1, 2, 4, 5]);
    assert_eq!((held[0].start(), held[0].record.failures), (2, 0));
    bed.commit();
    bed.check();
}

#[test]
fn errors_are_kept_ten_deep() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..1)]);
    let mut kind = LaneKind::Fresh;
    for _ in 0..12 {
        let held = bed.claim(0, kind, 1).remove(0);
        bed.settle(&held, retry(0));
        bed.store().release(NOW, 1, Evidence::UNTOLD).unwrap();
        kind = LaneKind::Retry;
    }
    bed.commit();
    let info = bed.job(id(1, 0)).unwrap();
    assert_eq!(info.errors.iter().map(|e| e.start).collect::<Vec<_>>(), (3..=12).collect::<Vec<_>>());
    assert_eq!(info.record.failures, 12);
}

#[test]
fn what_ended_long_ago_is_forgotten_but_still_counted() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..3)]);
    let held = bed.claim(0, LaneKind::Fresh, 3).remove(0);
    bed.settle(&held, fail());
    let turn = bed.commit();
    bed.store().archived(turn).unwrap();
    bed.commit();
    assert_eq!(bed.store().forget(NOW, 9).unwrap(), 0);
    assert_eq!(bed.store().forget(at(1), 2).unwrap(), 2);
    assert_eq!(bed.store().forget(at(1), 2).unwrap(), 1);
    bed.commit();
    assert_eq!(bed.stats("a").by_state[State::Failed.index()], 3);
    for table in ["job", "chunk", "part", "span", "turn", "lane"] {
        assert_eq!(row_count(&bed, table), 0, "{table}");
    }
}

#[test]
fn a_turn_without_changes_writes_nothing() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..1)]);
    assert_eq!(bed.commit(), 1);
    let log = bed.dir.root().join("state.db-wal");
    let before = std::fs::read(&log).unwrap();
    bed.store().admit(&Lot::default(), NOW).unwrap();
    bed.claim(7, LaneKind::Fresh, 1);
    bed.store().amend(&[id(3, 3)], Amendment::Cancel, NOW).unwrap();
    bed.store().archived(99).unwrap();
    bed.store().release(NOW, 9, Evidence::UNTOLD).unwrap();
    assert_eq!(bed.commit(), 1);
    assert_eq!(std::fs::read(&log).unwrap(), before);
}

#[test]
fn a_listing_pages_through_chunks_and_rows_in_order() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..40), jobs("b", 1, 40..60), jobs("a", 1, 60..100)]);
    let held = bed.claim(0, LaneKind::Fresh, 10).remove(0);
    bed.settle(&held.part(2, 2), fail());
    bed.commit();
    let all = |filter: &Filter, limit| {
        let (view, mut found, mut from) = (bed.view(), Vec::new(), Arrival(0));
        loop {
            let page = view.list(filter, from, limit).unwrap();
            assert!(page.jobs.len() <= limit);
            found.extend(page.jobs.iter().map(|job| job.id.offset));
            match page.next {
                Some(next) => from = next,
                None => return found,
            }
        }
    };
    assert_eq!(all(&Filter::default(), 7), (0..100).collect::<Vec<_>>());
    let failed = Filter { states: vec![State::Failed], ..Filter::default() };
    assert_eq!(all(&failed, 1), [2, 3]);
    let running = Filter { states: vec![State::Running], queues: vec!["a".into()], ..Filter::default() };
    assert_eq!(all(&running, 3), [0, 1, 4, 5, 6, 7, 8, 9]);
    let other = Filter { queues: vec!["b".into(), "nobody".into()], ..Filter::default() };
    assert_eq!(all(&other, 9), (40..60).collect::<Vec<_>>());
}
