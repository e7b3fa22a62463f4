//! Copies that share the data of their messages: stored once, read by all, and gone with the last of them.

use super::*;
use crate::store::FollowUp;

const LISTENERS: [&str; 3] = ["mail", "bill", "log"];

/// Takes messages out of queue 0 and hands a copy of each to every listener, as the engine does.
fn hand_on(bed: &mut Bed) {
    let held = bed.claim(0, LaneKind::Fresh, 100);
    let messages = held[0].jobs.laid(held[0].range());
    let copy = |(n, queue): (u64, &str)| FollowUp {
        queue: QueueName::new(queue.as_bytes()).unwrap(),
        priority: Priority::NORMAL,
        run: held[0].run,
        jobs: Arc::new(messages.copied(Origin::from_random(9), 1000 * n, None)),
    };
    let copies: Vec<FollowUp> = (1..).zip(LISTENERS).map(copy).collect();
    bed.store().settle(&[settled(&held[0], succeed())], &copies, NOW).unwrap();
}

fn filled() -> Bed {
    let mut bed = Bed::new();
    bed.admit(vec![jobs("topic", 1, 0..10)]);
    hand_on(&mut bed);
    let turn = bed.commit();
    bed.store().archived(turn).unwrap();
    bed.commit();
    bed
}

fn check_data(held: &Held, listener: u64) {
    for (n, index) in (0..).zip(held.range()) {
        assert_eq!(held.jobs.data(index), n.to_string().as_bytes());
        assert_eq!(held.jobs.id(index), id(9, 1000 * listener + n));
        assert_eq!(held.jobs.parent(index), Some(id(1, n)));
    }
}

#[test]
fn what_copies_share_goes_with_the_last_of_them() {
    let mut bed = filled();
    assert_eq!((row_count(&bed, "shared"), row_count(&bed, "chunk")), (1, 3), "the messages themselves are gone");
    for listener in 1..=3 {
        bed.kill("boot");
        assert_eq!(row_count(&bed, "shared"), 1, "listener {listener} has not read it");
        assert_eq!(bed.job(id(9, 1000 * u64::from(listener) + 7)).unwrap().data, b"7");
        let held = bed.claim(listener, LaneKind::Fresh, 100);
        assert_eq!(held.len(), 1);
        check_data(&held[0], u64::from(listener));
        bed.settle(&held[0], succeed());
        let turn = bed.commit();
        bed.kill("boot");
        let unarchived = bed.store().unarchived().unwrap();
        check_data(&unarchived[0].settlements[0].held, u64::from(listener));
        bed.store().archived(turn).unwrap();
        bed.commit();
        bed.check();
    }
    assert_eq!((row_count(&bed, "shared"), row_count(&bed, "chunk")), (0, 0));
}

#[test]
fn a_copy_that_fails_is_a_row_with_its_own_data() {
    let mut bed = filled();
    let held = bed.claim(1, LaneKind::Fresh, 3);
    bed.settle(&held[0].part(1, 1), fail());
    bed.settle(&held[0].part(0, 1), succeed());
    bed.settle(&held[0].part(2, 1), retry(0));
    bed.commit();
    bed.kill("boot");
    let failed = bed.job(id(9, 1001)).unwrap();
    assert_eq!((failed.state, &failed.data[..], state_of(&bed, 9, 1002)), (State::Failed, &b"1"[..], State::Retrying));
    assert_eq!(failed.particulars.unwrap().parent, Some(id(1, 1)));
    let rest = bed.claim(1, LaneKind::Fresh, 100);
    assert_eq!(offsets(&rest), (1003..1010).collect::<Vec<_>>());
    bed.check();
}

#[test]
fn damage_to_what_copies_share_is_told_and_none_of_them_is_handed_out() {
    let damages = [
        "UPDATE shared SET bytes = zeroblob(60)",
        "DELETE FROM shared",
        "UPDATE chunk SET offset = offset + 1",
        "UPDATE chunk SET offset = NULL",
        "UPDATE chunk SET bytes = zeroblob(28)",
        "UPDATE shared SET bytes = CAST(substr(bytes, 1, 40) || substr(bytes, 42) AS BLOB)",
    ];
    for damage in damages {
        let mut bed = filled();
        bed.kill("boot");
        assert!(bed.store().db.execute(damage, []).unwrap() > 0);
        let lane = Lane { queue: QueueNo(2), priority: Priority::NORMAL, kind: LaneKind::Fresh };
        let claimed = bed.store().claim(&[Order { lane, most: 1 }], NOW).map(|held| held.len());
        assert!(matches!(claimed, Err(StoreError::Corrupt(_))), "{damage}: {claimed:?}");
    }
}
