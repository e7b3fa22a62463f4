//! Hours as tables: what is read, when they are open, and the next change against a naive walk by minutes.

use super::*;

const HOUR: i64 = 60 * MINUTE;
/// 2026-11-16, a Monday, 00:00 UTC.
const MONDAY: i64 = 20_773 * DAY_MINUTES * MINUTE;

fn utc(text: &str) -> Hours {
    Hours::parse(text, |_| Ok(Zone::UTC)).unwrap()
}

#[test]
fn what_is_read_and_what_is_refused() {
    for text in
        ["22:00-06:00", "Mon-Fri 08:00-18:00", "sat,SUN 00:00-24:00", "9:00-12:00,13:00-17:30 UTC", "Fri-Mon 1:00-2:00"]
    {
        assert!(Hours::parse(text, |_| Ok(Zone::UTC)).is_ok(), "{text}");
    }
    for (text, why) in [
        ("", "has no times"),
        ("Mon-Fri", "has no times"),
        ("22:00", "cannot read the times"),
        ("24:00-06:00", "no time at all"),
        ("06:00-06:00", "no time at all"),
        ("6:0-7:00", "cannot read the times"),
        ("25:00-26:00", "cannot read the times"),
        ("08:00-18:60", "cannot read the times"),
        ("+8:00-18:00", "has no times"),
        ("08:00-18:00 UTC Mon", "stands behind the zone"),
        ("08:00-18:00 Mars/Olympus", "no such zone"),
    ] {
        let zone = |name: Option<&str>| match name {
            None | Some("UTC") => Ok(Zone::UTC),
            Some(_) => Err("no such zone".to_owned()),
        };
        let refused = Hours::parse(text, zone).unwrap_err();
        assert!(refused.contains(why), "{text:?}: {refused}");
    }
    assert_eq!(utc("  Mon-Fri   1:00-2:00 ").to_string(), "Mon-Fri 1:00-2:00");
}

#[test]
fn days_times_and_midnight() {
    let at = |day: i64, hour: i64, minute: i64| Time(MONDAY + day * 24 * HOUR + hour * HOUR + minute * MINUTE);
    let night = utc("Mon-Fri 22:00-06:00");
    for (day, hour, minute, open) in [
        (0, 0, 0, false), // Sunday's night is not one of them
        (0, 21, 59, false),
        (0, 22, 0, true),
        (1, 5, 59, true),
        (1, 6, 0, false),
        (5, 5, 59, true), // Friday's night ends on Saturday
        (5, 22, 0, false),
    ] {
        assert_eq!(night.is_open(at(day, hour, minute)), open, "day {day} {hour}:{minute}");
    }
    assert_eq!(night.next_change(at(0, 0, 0)), Some(at(0, 22, 0)));
    assert_eq!(night.next_change(at(0, 22, 0)), Some(at(1, 6, 0)));
    assert_eq!(night.next_change(at(5, 6, 0)), Some(at(7, 22, 0)));
    assert_eq!(utc("00:00-24:00").next_change(at(0, 0, 0)), None);
    let two = utc("Sat,Sun 00:00-24:00 Mon 00:00-01:00");
    assert_eq!(two.next_change(at(5, 3, 0)), Some(at(7, 1, 0)), "stretches that touch are one");
    assert_eq!(utc("Wed 10:00-10:01").next_change(at(2, 10, 1)), Some(at(9, 10, 0)), "a whole week away");
}

#[test]
fn the_clock_on_the_wall_counts_where_it_changes() {
    // Summer time from Tuesday 01:00 UTC (02:00 becomes 03:00), back on Thursday 01:00 UTC (03:00 becomes 02:00).
    let (spring, autumn) = (Time(MONDAY + 25 * HOUR), Time(MONDAY + 73 * HOUR));
    let zone = || Zone { first: 60, changes: vec![(spring, 120), (autumn, 60)] };
    let hours = |text: &str| Hours::parse(text, |_| Ok(zone())).unwrap();
    let night = hours("02:00-03:00");
    let minutes = |from: i64, to: i64| {
        let of = |m: &i64| night.is_open(Time(MONDAY + m * MINUTE));
        (from * 60..to * 60).filter(of).count()
    };
    assert_eq!((minutes(-1, 23), minutes(23, 46), minutes(46, 70), minutes(70, 95)), (60, 0, 60, 120));
    for text in ["02:00-03:00", "02:30-03:30", "22:00-02:30", "Tue,Thu 02:15-02:45", "Mon-Wed 23:00-03:00,12:00-13:00"]
    {
        let hours = hours(text);
        let mut expected = None;
        for minute in (-60 * 24..60 * 24 * 8).rev() {
            let (now, next) = (Time(MONDAY + minute * MINUTE), Time(MONDAY + (minute + 1) * MINUTE));
            if hours.is_open(now) != hours.is_open(next) {
                expected = Some(next);
            }
            if let Some(expected) = expected {
                assert_eq!(hours.next_change(now), Some(expected), "{text} minute {minute}");
            }
        }
    }
}
