//! What a death leaves behind: uncommitted turns, claims of dead servers, outcomes that the archive lacks.

use super::*;
use crate::store::Evidence;

fn begun(bed: &mut Bed, same_boot: bool, yes: impl Fn(JobId, u32) -> bool) -> Recovered {
    bed.store()
        .recover(Evidence { begun: &yes, elsewhere: &|_, _| false, same_boot, convicted: Evidence::UNTOLD }, NOW)
        .unwrap()
}

#[test]
fn an_uncommitted_turn_never_happened() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..10)]);
    bed.commit();
    let held = bed.claim(0, LaneKind::Fresh, 4).remove(0);
    bed.settle(&held, succeed());
    bed.admit(vec![jobs("new", 1, 10..20)]);
    let opened = bed.kill("boot");
    assert!(opened.same_boot);
    assert_eq!(bed.ready(), 10);
    assert_eq!(bed.store().backlog().unwrap().queues.len(), 1);
    bed.check();
    assert_eq!(offsets(&bed.claim(0, LaneKind::Fresh, 99)).len(), 10);
}

#[test]
fn a_rollback_takes_memory_back_too() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..10)]);
    bed.commit();
    let kept = bed.claim(0, LaneKind::Fresh, 2).remove(0);
    bed.commit();
    let lost = bed.claim(0, LaneKind::Fresh, 4).remove(0);
    bed.settle(&kept, retry(1));
    bed.store().rollback().unwrap();
    assert_eq!(bed.ready(), 8);
    assert!(matches!(bed.store().settle(&[settled(&lost, succeed())], &[], NOW), Err(StoreError::Stale(_))));
    bed.settle(&kept, succeed());
    assert_eq!(offsets(&bed.claim(0, LaneKind::Fresh, 3)), [2, 3, 4]);
    bed.commit();
    bed.check();
}

#[test]
fn claims_that_never_began_go_back_as_they_were() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..6)]);
    let held = bed.claim(0, LaneKind::Fresh, 6).remove(0);
    bed.settle(&held.part(0, 1), retry(0));
    bed.store().release(NOW, 9, Evidence::UNTOLD).unwrap();
    bed.claim(0, LaneKind::Retry, 1);
    bed.commit();
    let epoch = bed.store().epoch();
    bed.kill("boot");
    assert_ne!(bed.store().epoch(), epoch);
    let recovered = begun(&mut bed, true, |job, start| {
        assert_eq!(start, if job.offset == 0 { 2 } else { 1 });
        job.offset == 3
    });
    assert_eq!(recovered, Recovered { returned: 5, repeated: 1, convicted: 0 });
    assert_eq!(bed.job(id(1, 0)).unwrap().record.starts, 1);
    assert_eq!(bed.job(id(1, 3)).unwrap().record, Record { starts: 1, failures: 0, suspicions: 1 });
    bed.check();
    assert_eq!(offsets(&bed.claim(0, LaneKind::Fresh, 9)), [1, 2, 3, 4, 5]);
    assert_eq!(offsets(&bed.claim(0, LaneKind::Retry, 9)), [0]);
    bed.commit();
    bed.kill("boot");
    assert_eq!(begun(&mut bed, true, |_, _| false).returned, 6);
    bed.check();
}

#[test]
fn a_reboot_accuses_nobody_and_a_killer_is_convicted() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..1)]);
    bed.claim(0, LaneKind::Fresh, 1);
    bed.commit();
    assert!(!bed.kill("another boot").same_boot);
    assert_eq!(begun(&mut bed, false, |_, _| true).repeated, 1);
    assert_eq!(bed.job(id(1, 0)).unwrap().record, Record { starts: 1, failures: 0, suspicions: 0 });
    for death in 1..=suspicion::CONVICTED_AT {
        bed.store().release(at(1000), 9, Evidence::UNTOLD).unwrap();
        let kind = if death > suspicion::ALONE_AFTER { LaneKind::Suspect } else { LaneKind::Fresh };
        assert_eq!(bed.claim(0, kind, 1).len(), 1, "death {death}");
        bed.commit();
        bed.kill("another boot");
        begun(&mut bed, true, |_, _| true);
        let info = bed.job(id(1, 0)).unwrap();
        assert_eq!((info.record.suspicions, info.record.starts), (death, death + 1));
        bed.check();
    }
    let info = bed.job(id(1, 0)).unwrap();
    assert_eq!((info.state, info.reason, info.record.failures), (State::Failed, Some(Reason::Poison), 0));
    assert_eq!(info.errors.len(), 1);
    assert_eq!(bed.stats("a").by_state[State::Failed.index()], 1);
}

#[test]
fn outcomes_that_the_archive_lacks_come_back_with_their_data() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..4), jobs("a", 1, 4..6)]);
    let held = bed.claim(0, LaneKind::Fresh, 6);
    bed.settle(&held[0].part(0, 3), succeed());
    bed.settle(&held[0].part(3, 1), retry(0));
    let first = bed.commit();
    bed.store().release(NOW, 9, Evidence::UNTOLD).unwrap();
    let again = bed.claim(0, LaneKind::Retry, 1).remove(0);
    bed.settle(&again, Verdict::Succeed { message: "at last".into() });
    bed.settle(&held[1], Verdict::Fail { reason: Reason::Exhausted, error: "x".into() });
    let second = bed.commit();
    let told = |bed: &mut Bed| -> Vec<(u64, Vec<String>)> {
        let words = |s: &Settlement| {
            let text = |index| String::from_utf8_lossy(s.held.jobs.data(index)).into_owned();
            let data: Vec<_> = s.held.range().map(text).collect();
            format!("{} {} {:?} {:?}", s.held.start(), s.outcome, s.verdict, data)
        };
        let all = bed.store().unarchived().unwrap();
        all.iter().map(|u| (u.turn, u.settlements.iter().map(words).collect())).collect()
    };
    let before = told(&mut bed);
    assert_eq!(before.iter().map(|(turn, _)| *turn).collect::<Vec<_>>(), [first, second]);
    assert!(before[0].1[0].ends_with(r#"["0", "1", "2"]"#), "{before:?}");
    assert!(before[1].1[0].starts_with(r#"2 failed Succeed { message: "at last" } ["3"]"#), "{before:?}");
    bed.kill("boot");
    assert_eq!(told(&mut bed), before);
    assert_eq!(bed.store().forget(at(9), 9).unwrap(), 2, "these rows may go: their chunk still has the data");
    assert_eq!(bed.job(id(1, 3)), None);
    bed.commit();
    assert_eq!(told(&mut bed), before);
    bed.store().archived(first).unwrap();
    bed.commit();
    assert_eq!(told(&mut bed), before[1..]);
    assert_eq!(row_count(&bed, "chunk"), 1, "the first chunk was over with the first turn");
    bed.kill("boot");
    bed.store().archived(second).unwrap();
    bed.commit();
    assert!(told(&mut bed).is_empty());
    for table in ["job", "chunk", "part", "span", "turn", "lane", "due"] {
        assert_eq!(row_count(&bed, table), 0, "{table}");
    }
}

#[test]
fn a_newer_store_is_refused_and_not_touched() {
    let mut bed = Bed::new();
    bed.store = None;
    let path = bed.dir.state_db();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[60..64].copy_from_slice(&9u32.to_be_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let refused = Embedded::open(&bed.dir, "boot").map(|_| ()).unwrap_err();
    assert_eq!(refused, StoreError::Newer { found: 9, known: 6 });
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert!(!bed.dir.root().join("state.db-wal").exists());
    std::fs::write(&path, vec![7; 9000]).unwrap();
    assert!(matches!(Embedded::open(&bed.dir, "boot"), Err(StoreError::Corrupt(_))));
}

#[test]
fn a_damaged_chunk_is_an_error_and_never_a_job() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..10)]);
    bed.commit();
    bed.store().db.execute("UPDATE chunk SET bytes = zeroblob(60)", []).unwrap();
    bed.kill("boot");
    let lane = Lane { queue: QueueNo(0), priority: Priority::NORMAL, kind: LaneKind::Fresh };
    let claimed = bed.store().claim(&[Order { lane, most: 1 }], NOW);
    assert!(matches!(claimed, Err(StoreError::Corrupt(_))), "{claimed:?}");
}

#[test]
fn a_full_disk_costs_the_turn_and_nothing_else() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..10)]);
    bed.commit();
    let pages: i64 = bed.store().db.query_row("PRAGMA page_count", [], |r| r.get(0)).unwrap();
    bed.store().db.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap();
    let mut builder = ChunkBuilder::new(Origin::from_random(5));
    builder.push(1, &vec![1; 200_000]);
    let big = NewJobs { jobs: Arc::new(builder.finish()), ..jobs("a", 1, 0..1) };
    let full = bed.store().admit(&Lot { jobs: vec![big], ..Lot::default() }, NOW);
    assert!(matches!(full, Err(StoreError::Full(_))), "{full:?}");
    assert!(bed.store().commit(Durability::Full).is_err());
    bed.store().rollback().unwrap();
    assert_eq!(bed.ready(), 10);
    let held = bed.claim(0, LaneKind::Fresh, 10).remove(0);
    bed.settle(&held, succeed());
    bed.commit();
    bed.check();
}

#[test]
fn fifty_thousand_queues_open_by_their_counters() {
    let mut bed = Bed::new();
    let lot: Vec<NewJobs> = (0..50_000).map(|n| jobs(&format!("queue-{n}"), 1, n..n + 1)).collect();
    bed.admit(lot);
    bed.commit();
    assert_eq!(row_count(&bed, "tally"), 782);
    bed.kill("boot");
    let backlog = bed.store().backlog().unwrap();
    assert_eq!((backlog.queues.len(), backlog.moves.len()), (50_000, 50_000));
    let held = bed.claim(49_999, LaneKind::Fresh, 5);
    assert_eq!(offsets(&held), [49_999]);
    bed.settle(&held[0], succeed());
    bed.commit();
    bed.kill("boot");
    assert_eq!(bed.ready(), 49_999);
}
