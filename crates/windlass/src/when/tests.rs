//! What people write as a time or a duration, and what is refused.

use super::*;

const NOW: Time = Time(0);

fn read(text: &str, zone: &str) -> Result<String, Failure> {
    time_in(text, NOW, TimeZone::get(zone).unwrap()).map(rfc3339)
}

#[test]
fn the_forms_of_a_time() {
    for (text, expected) in [
        ("2026-11-15T10:00:00Z", "2026-11-15T10:00:00Z"),
        ("2026-11-15t10:00:00z", "2026-11-15T10:00:00Z"),
        ("2026-11-15T10:00:00.5+02:00", "2026-11-15T08:00:00.5Z"),
        ("2026-11-15T10:00-05:00", "2026-11-15T15:00:00Z"),
        ("2026-11-15 10:00", "2026-11-15T09:00:00Z"),
        ("2026-07-15 10:00:30", "2026-07-15T08:00:30Z"),
        ("2026-11-15", "2026-11-14T23:00:00Z"),
        ("2026-11-15T10:00[America/New_York]", "2026-11-15T15:00:00Z"),
        ("@1794736800", "2026-11-15T10:00:00Z"),
        (" 1794736800 ", "2026-11-15T10:00:00Z"),
        // Digits alone are seconds, never a date without its hyphens.
        ("20261115", "1970-08-23T12:05:15Z"),
    ] {
        assert_eq!(read(text, "Europe/Berlin").as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn clock_changes() {
    assert_eq!(read("2026-03-29 02:30", "Europe/Berlin").unwrap(), "2026-03-29T01:30:00Z", "moved on by the gap");
    assert_eq!(read("2026-10-25 02:30", "Europe/Berlin").unwrap(), "2026-10-25T00:30:00Z", "the earlier of two");
}

#[test]
fn impossible_times_are_refused() {
    for text in [
        "",
        "soon",
        "2026-02-30 10:00",
        "2026-13-01T00:00:00Z",
        "2026-11-15T25:00:00Z",
        "10000-01-01T00:00:00Z",
        "@99999999999999999999",
        "@",
        "@-",
        "2026-11-15T10:00:00+99:00",
        "1e9",
        "0x10",
        "2026-11-15 10:00 Z extra",
    ] {
        let failure = read(text, "UTC").expect_err(text);
        assert_eq!(failure.kind, Kind::Usage, "{text}");
        assert!(failure.text.starts_with(&format!("cannot read the time {text:?}")), "{}", failure.text);
    }
}

#[test]
fn the_past_is_now() {
    let now = Time(1_794_736_800_000_000);
    for text in ["1999-01-01T00:00:00Z", "@0", "@-5", "2026-11-15T09:59:59Z"] {
        assert_eq!(time_in(text, now, TimeZone::UTC).unwrap(), now, "{text}");
    }
}

#[test]
fn durations() {
    for (text, seconds) in [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("PT20M", 1200),
        ("P1D", 86400),
        ("0s", 0),
        ("1w", 604_800),
    ] {
        assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
    }
    assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
    for text in ["", "5", "10 minuts", "-5s", "5s ago", "1y", "2mo", "1e9s", "99999999999999999999h", "NaN"] {
        assert!(duration(text).is_err(), "{text}");
    }
}

#[test]
fn spoken_durations() {
    for (seconds, expected) in
        [(0, "0.0s"), (42, "42s"), (60, "1m"), (90, "1m 30s"), (5400, "1h 30m"), (90_000, "1d 1h")]
    {
        assert_eq!(spoken(Duration::from_secs(seconds)), expected);
    }
}

#[test]
fn times_for_people() {
    let berlin = jiff::tz::TimeZone::get("Europe/Berlin").unwrap();
    let now = Time(1_794_736_800_000_000);
    let told = |seconds: i64| told_at(Time(now.0 + seconds * 1_000_000), now, berlin.clone());
    assert_eq!(told(-180), "2026-11-15 10:57:00, 3m ago");
    assert_eq!(told(90), "2026-11-15 11:01:30, in 1m 30s");
    assert_eq!(told_text("never"), "never");
}

#[test]
fn an_end_is_a_time_or_a_length() {
    let now = Time(1_000_000_000);
    assert_eq!(until("1h", now).unwrap(), Time(4_600_000_000));
    assert_eq!(until("PT1M", now).unwrap(), Time(1_060_000_000));
    assert_eq!(until("1970-01-01T00:30:00Z", now).unwrap(), Time(1_800_000_000));
    assert!(until("soon", now).unwrap_err().text.contains("cannot read the time"));
}

#[test]
fn a_time_of_day_is_the_next_one() {
    let berlin = || jiff::tz::TimeZone::get("Europe/Berlin").unwrap();
    let now = Time(1_794_736_800_000_000);
    let next = |text: &str| time_in(text, now, berlin()).map(rfc3339);
    assert_eq!(next("11:30").unwrap(), "2026-11-15T10:30:00Z", "it is eleven now");
    assert_eq!(next("07:00").unwrap(), "2026-11-16T06:00:00Z");
    assert_eq!(next("11:00").unwrap(), "2026-11-16T10:00:00Z", "now is not the next");
    for bad in ["24:01", "7:0", ":", "07:00 tomorrow"] {
        assert!(next(bad).is_err(), "{bad}");
    }
}
