//! Marks of neighbouring chunks in one row, and lanes that empty together.

use super::*;
use crate::store::Evidence;

fn one_each(bed: &mut Bed, queues: u64) {
    let lonely = |n: u64| jobs(&format!("q{n}"), 1, n..n + 1);
    bed.admit((0..queues).map(lonely).collect());
    bed.commit();
}

fn never_begun(bed: &mut Bed) -> Recovered {
    let evidence =
        Evidence { begun: &|_, _| false, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD };
    bed.store().recover(evidence, NOW).unwrap()
}

#[test]
fn jobs_that_are_alone_in_their_queues_share_their_marks() {
    let mut bed = Bed::new();
    one_each(&mut bed, 10);
    let held: Vec<Held> = (0..10).flat_map(|queue| bed.claim(queue, LaneKind::Fresh, 9)).collect();
    bed.commit();
    assert_eq!((row_count(&bed, "part"), row_count(&bed, "lane")), (1, 0));
    assert_eq!(state_of(&bed, 1, 9), State::Running);
    bed.check();
    // The middle ends: what is left on both sides is still claimed.
    (3..6).for_each(|n| bed.settle(&held[n], succeed()));
    bed.settle(&held[6], retry(5));
    let turn = bed.commit();
    assert_eq!(row_count(&bed, "part"), 3);
    assert_eq!(
        (bed.job(id(1, 4)).is_none(), state_of(&bed, 1, 2), state_of(&bed, 1, 7)),
        (true, State::Running, State::Running)
    );
    bed.check();
    bed.kill("boot");
    bed.store().archived(turn).unwrap();
    bed.commit();
    assert_eq!((row_count(&bed, "part"), row_count(&bed, "chunk")), (2, 6));
    bed.kill("boot");
    assert_eq!(never_begun(&mut bed).returned, 6);
    bed.check();
    assert_eq!(row_count(&bed, "lane"), 6);
    assert_eq!((0..10).flat_map(|queue| bed.claim(queue, LaneKind::Fresh, 9)).count(), 6);
}

#[test]
fn a_strip_is_of_a_bounded_number_of_chunks() {
    let mut bed = Bed::new();
    one_each(&mut bed, 600);
    let held: Vec<Held> = (0..600).flat_map(|queue| bed.claim(queue, LaneKind::Fresh, 1)).collect();
    bed.commit();
    assert_eq!(row_count(&bed, "part"), 3);
    held.iter().for_each(|held| bed.settle(held, succeed()));
    let turn = bed.commit();
    assert_eq!(row_count(&bed, "part"), 3);
    bed.store().archived(turn).unwrap();
    bed.commit();
    assert_eq!((row_count(&bed, "part"), row_count(&bed, "chunk"), row_count(&bed, "lane")), (0, 0, 0));
    bed.kill("boot");
    bed.check();
}

#[test]
fn a_queue_that_still_has_work_keeps_its_place_when_its_neighbours_empty() {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("a", 1, 0..1), jobs("b", 1, 1..2), jobs("b", 1, 2..3), jobs("c", 1, 3..4)]);
    bed.commit();
    (0..3).for_each(|queue| assert_eq!(bed.claim(queue, LaneKind::Fresh, 1).len(), 1));
    // The rest of the second queue is read while its first chunk is still listed.
    bed.store().memory.windows.clear();
    assert_eq!(offsets(&bed.claim(1, LaneKind::Fresh, 1)), [2]);
    bed.admit(vec![jobs("b", 1, 4..5)]);
    bed.commit();
    assert_eq!(row_count(&bed, "lane"), 1);
    bed.check();
    bed.kill("boot");
    assert_eq!(offsets(&bed.claim(1, LaneKind::Fresh, 9)), [4]);
}

/// What the test knows of a job.
#[derive(Clone, Debug)]
enum Known {
    Ready,
    Held(Held),
    Over,
}

#[test]
fn in_whatever_order_neighbours_are_claimed_and_end_no_mark_is_lost() {
    for seed in 1..=12u64 {
        let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut roll = |below: u64| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            dice % below
        };
        let mut bed = Bed::new();
        one_each(&mut bed, 24);
        let mut known = vec![Known::Ready; 24];
        for _ in 0..40 {
            for _ in 0..1 + roll(12) {
                let at = roll(24) as usize;
                known[at] = match (&known[at], roll(8)) {
                    (Known::Ready, 0) => {
                        bed.store().amend(&[id(1, at as u64)], Amendment::Cancel, NOW).unwrap();
                        Known::Over
                    }
                    (Known::Ready, _) => Known::Held(bed.claim(at as u32, LaneKind::Fresh, 1).remove(0)),
                    (Known::Held(held), kind) => {
                        let held = held.clone();
                        bed.settle(&held, if kind == 0 { fail() } else { succeed() });
                        Known::Over
                    }
                    (Known::Over, _) => Known::Over,
                };
            }
            let turn = bed.commit();
            if roll(3) == 0 {
                bed.store().archived(turn).unwrap();
                bed.commit();
            }
            if roll(3) == 0 {
                bed.kill("boot");
            }
            for (at, known) in known.iter().enumerate() {
                let found = bed.job(id(1, at as u64)).map(|job| job.state);
                let as_known = match known {
                    Known::Ready => found == Some(State::Ready),
                    Known::Held(_) => found == Some(State::Running),
                    Known::Over => found.is_none_or(State::is_end),
                };
                assert!(as_known, "seed {seed}, job {at}: {known:?}, found {found:?}");
            }
            let ready = known.iter().filter(|known| matches!(known, Known::Ready)).count() as u64;
            assert_eq!((row_count(&bed, "lane"), bed.ready()), (ready, ready));
            bed.check();
        }
        let held = known.iter().filter(|known| matches!(known, Known::Held(_))).count() as u64;
        bed.kill("boot");
        assert_eq!(never_begun(&mut bed).returned, held);
        bed.check();
    }
}

#[test]
fn a_strip_whose_chunk_is_missing_is_damage() {
    let mut bed = Bed::new();
    one_each(&mut bed, 4);
    (0..4).for_each(|queue| drop(bed.claim(queue, LaneKind::Fresh, 1)));
    bed.commit();
    bed.store = None;
    let db = rusqlite::Connection::open(bed.dir.state_db()).unwrap();
    db.execute_batch("DELETE FROM chunk WHERE first = 3").unwrap();
    drop(db);
    let told = Embedded::open(&bed.dir, "boot").unwrap_err().to_string();
    assert_eq!(told, "the store is damaged: chunk 3 has marks and is missing");
}
