//! Ids read back as they were written; names and priorities are refused by rule.

use super::*;

#[test]
fn ids_round_trip() {
    for bits in [0, 1, 31, 32, (1 << 50) - 1, 0x2_5555_aaaa_0000] {
        for offset in [0, 1, 1 << 20, u64::MAX] {
            let id = JobId { origin: Origin::from_random(bits), offset };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let run = RunId::first(Origin::from_random(bits));
        assert_eq!(run.to_string().parse(), Ok(run));
        assert_eq!(run.next_generation().to_string().parse(), Ok(run.next_generation()));
    }
}

#[test]
fn what_is_not_an_id_is_refused() {
    for text in ["", "j-", "j-0", "j-0000000000", "j-0000000000-", "j-zzzzzzzzzzz-1", "j-000000000u-1", "r-1", "x"] {
        assert_eq!(text.parse::<JobId>(), Err(BadId), "{text}");
    }
    for text in ["r-0000000000.1", "r-0000000000.x", "r-000000000", "j-0000000000-1"] {
        assert_eq!(text.parse::<RunId>(), Err(BadId), "{text}");
    }
}

#[test]
fn queue_names_are_checked() {
    assert!(QueueName::new(b"img.thumbnail").is_ok());
    assert!(QueueName::new("grün und weiß".as_bytes()).is_ok());
    assert_eq!(QueueName::new(b""), Err(BadQueueName::Empty));
    assert_eq!(QueueName::new(b"-x"), Err(BadQueueName::Leading('-')));
    assert_eq!(QueueName::new(b".x"), Err(BadQueueName::Leading('.')));
    assert_eq!(QueueName::new(b"a\nb"), Err(BadQueueName::Control));
    assert_eq!(QueueName::new(b"\xff"), Err(BadQueueName::NotText));
    assert_eq!(QueueName::new(&[b'a'; 201]), Err(BadQueueName::TooLong(201)));
    assert_eq!(QueueName::new(b"_future"), Err(BadQueueName::Reserved));
}

#[test]
fn priorities_have_a_range_and_words() {
    assert_eq!("high".parse(), Ok(Priority(10)));
    assert_eq!("-100".parse(), Ok(Priority(-100)));
    for bad in ["101", "-101", "", "1.5", "urgent", "99999999999999999999"] {
        assert!(bad.parse::<Priority>().is_err(), "{bad}");
    }
}
