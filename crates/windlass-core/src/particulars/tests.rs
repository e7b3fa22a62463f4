//! Everything that particulars hold comes back, and what a door must refuse is refused.

use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn id(offset: u64) -> JobId {
    JobId { origin: Origin::from_random(7), offset }
}

fn full() -> Particulars {
    let trace = Trace { parent: PARENT.into(), state: "a=1".into(), baggage: "user=5".into() };
    Particulars {
        trace: Some(trace),
        subject: Some(Subject { kind: "customer".into(), id: "42".into() }),
        parent: Some(id(1)),
        unique: Some(Unique { scope: Scope::Run, on_conflict: OnConflict::Replace, key: Some(b"k\xff".to_vec()) }),
        start_by: Some(Time(-5)),
        finish_by: Some(Time(i64::MAX)),
        after: vec![id(2), id(u64::MAX)],
        notify: Some(Notify::from_words(&["ops".into(), "ü".into()], &["late".into()]).unwrap()),
    }
}

fn encoded(particulars: &Particulars) -> Vec<u8> {
    let mut bytes = Vec::new();
    particulars.encode(&mut bytes);
    bytes
}

#[test]
fn everything_comes_back() {
    let by_data = Unique { scope: Scope::Waiting, on_conflict: OnConflict::Ignore, key: None };
    let few = Particulars { unique: Some(by_data), ..Particulars::default() };
    for particulars in [Particulars::default(), full(), few] {
        assert_eq!(Particulars::decode(&encoded(&particulars)), Ok(particulars));
    }
    assert!(encoded(&Particulars::default()).is_empty());
    assert!(full().check().is_ok());
}

#[test]
fn the_largest_fit_the_limit() {
    let long = "x".repeat(TEXT_MAX);
    let channels: Vec<String> = (0..notify::MOST).map(|n| format!("{n:x}{}", "x".repeat(192))).collect();
    let trace = Trace { parent: PARENT.into(), state: "s".repeat(STATE_MAX), baggage: "b".repeat(BAGGAGE_MAX) };
    let particulars = Particulars {
        trace: Some(trace),
        subject: Some(Subject { kind: long.clone(), id: long.clone() }),
        unique: Some(Unique { key: Some(long.into_bytes()), ..full().unique.unwrap() }),
        after: (0..AFTER_MAX as u64).map(id).collect(),
        notify: Some(Notify::from_words(&channels, &[]).unwrap()),
        ..full()
    };
    assert!(particulars.check().is_ok());
    assert_eq!(encoded(&particulars).len(), ENCODED_MAX);
}

#[test]
fn no_cut_is_taken_for_a_whole_with_everything_in_it() {
    let whole = encoded(&full());
    for cut in 0..whole.len() {
        assert_ne!(Particulars::decode(&whole[..cut]), Ok(full()), "cut at {cut}");
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x80;
        // A checksum is the owner's business: here nothing may panic, and the text stays text.
        let _ = Particulars::decode(&damaged);
    }
}

#[test]
fn unknown_and_repeated_tags_are_refused() {
    let mut newer = encoded(&full());
    newer.extend_from_slice(&[12, 0, 0]);
    assert_eq!(Particulars::decode(&newer), Err(BadParticulars::Unknown { tag: 12 }));
    let twice = [8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0].repeat(2);
    assert_eq!(Particulars::decode(&twice), Err(BadParticulars::Malformed));
}

#[test]
fn what_doors_refuse() {
    let subject = |kind: &str, id: &str| Particulars {
        subject: Some(Subject { kind: kind.into(), id: id.into() }),
        ..Particulars::default()
    };
    let trace = |parent: &str, state: &str| Particulars {
        trace: Some(Trace { parent: parent.into(), state: state.into(), baggage: String::new() }),
        ..Particulars::default()
    };
    let key = |key: Vec<u8>| Particulars {
        unique: Some(Unique { key: Some(key), ..full().unique.unwrap() }),
        ..Particulars::default()
    };
    for bad in [
        subject("", "1"),
        subject("a", ""),
        subject("a\n", "1"),
        subject(&"a".repeat(501), "1"),
        trace("", ""),
        trace(&PARENT.to_uppercase(), ""),
        trace(&PARENT.replace("b7ad6b7169203331", "0000000000000000"), ""),
        trace(&PARENT.replacen("00", "ff", 1), ""),
        trace(&format!("{PARENT}-00"), ""),
        trace(PARENT, "a\u{7f}"),
        trace(PARENT, &"s".repeat(513)),
        key(Vec::new()),
        key(vec![1; 501]),
        Particulars { after: vec![id(1); 101], ..Particulars::default() },
        Particulars { notify: Some(Notify::default()), ..Particulars::default() },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
    assert!("ever".parse::<Scope>().unwrap_err().contains("waiting, active, run"));
    assert_eq!("reject".parse(), Ok(OnConflict::Reject));
}

#[test]
fn a_trace_is_heard_as_its_specification_says() {
    let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let parent = format!("00-{trace}-{span}-01");
    let heard = Trace::heard(&parent, "a=1", "user=42").unwrap();
    assert_eq!(
        (heard.parent.as_str(), heard.state.as_str(), heard.baggage.as_str()),
        (parent.as_str(), "a=1", "user=42")
    );
    assert_eq!((heard.id(), heard.span()), (trace, span));
    for (flags, sampled) in [("01", true), ("00", false), ("02", false), ("ff", true)] {
        let heard = Trace::heard(&format!("00-{trace}-{span}-{flags}"), "", "").unwrap();
        assert_eq!(heard.is_sampled(), sampled, "{flags}");
    }
    let later = Trace::heard(&format!("cc-{trace}-{span}-01-what-comes"), "", "").unwrap();
    assert_eq!(later.parent, parent, "of a later version what is known");
    let long = "x".repeat(BAGGAGE_MAX + 1);
    let cut = Trace::heard(&parent, "a\nb", &long).unwrap();
    assert_eq!((cut.state.as_str(), cut.baggage.as_str()), ("", ""));
    for bad in [
        "",
        "nonsense",
        &format!("ff-{trace}-{span}-01"),
        &format!("00-{trace}-{span}-01-more"),
        &format!("00-{}-{span}-01", "0".repeat(32)),
        &format!("00-{trace}-{}-01", "0".repeat(16)),
        &format!("00-{}-{span}-01", trace.to_uppercase()),
    ] {
        assert_eq!(Trace::heard(bad, "a=1", ""), None, "{bad}");
    }
}
