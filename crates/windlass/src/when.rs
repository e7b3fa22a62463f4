//! What people write as a time or a duration, read at the edge; inside there are only `Time` and `Duration`.
//!
//! A time is RFC 3339 (`2026-11-15T10:00:00Z`), a local date and time (`2026-11-15 10:00`), a time of day (`07:00`, the
//! next one) or seconds since 1970 (`@1794736800` or `1794736800`). A local time in the gap of a clock change is moved
//! on by the gap, one that comes twice is the earlier one; a day alone is its first minute. A time in the past means
//! now. Impossible dates are refused, never mended.

use crate::error::{Failure, Kind};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp, Zoned};
use std::time::Duration;
use windlass_core::time::Time;

const TIME_FORMS: &str =
    "expected 2026-11-15T10:00:00Z, \"2026-11-15 10:00\" (local), 07:00 (the next), or @SECONDS since 1970";
const DURATION_FORMS: &str = "expected a duration such as 30s, 5m, 2h, 1d, 1h30m or PT20M";

/// Reads a time as the machine's zone sees it; one that has passed becomes `now`.
pub fn time(text: &str, now: Time) -> Result<Time, Failure> {
    time_in(text, now, TimeZone::system())
}

/// Reads a time in a given zone.
pub fn time_in(text: &str, now: Time, zone: TimeZone) -> Result<Time, Failure> {
    let refuse = |why: &str| {
        // Of what does not even begin like a time, the forms say more than the place of the first wrong letter.
        let begun = text.trim_start_matches(['@', '-']).starts_with(|first: char| first.is_ascii_digit());
        let why = if begun { format!(" ({why})") } else { String::new() };
        Failure::new(Kind::Usage, format!("cannot read the time {text:?}{why}")).hint(TIME_FORMS)
    };
    let text = text.trim();
    if let Some(moment) = next_time_of_day(text, now, &zone) {
        return Ok(moment);
    }
    let seconds = text.strip_prefix('@').unwrap_or(text);
    let moment = if is_integer(seconds) {
        let seconds = seconds.parse().map_err(|_| refuse("too far away"))?;
        Timestamp::from_second(seconds).map_err(|_| refuse("too far away"))?
    } else if text.contains('[') {
        text.parse::<Zoned>().map_err(|e| refuse(&e.to_string()))?.timestamp()
    } else if has_offset(text) {
        text.parse::<Timestamp>().map_err(|e| refuse(&e.to_string()))?
    } else {
        let local: DateTime = text.parse().map_err(|e: jiff::Error| refuse(&e.to_string()))?;
        local.to_zoned(zone).map_err(|e| refuse(&e.to_string()))?.timestamp()
    };
    Ok(Time(moment.as_microsecond()).max(now))
}

/// Reads when something ends: a time, or how long from now, whichever somebody wrote.
pub fn until(text: &str, now: Time) -> Result<Time, Failure> {
    match duration(text) {
        Ok(length) => Ok(now.after(length)),
        Err(_) => time(text, now),
    }
}

/// Reads a duration; days have 24 hours, and nothing longer than a week has a fixed length.
pub fn duration(text: &str) -> Result<Duration, String> {
    let refused = || format!("cannot read the duration {text:?}; {DURATION_FORMS}");
    let span: Span = text.trim().parse().map_err(|_| refused())?;
    let exact = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| refused())?;
    Duration::try_from(exact).map_err(|_| format!("the duration {text:?} is negative; {DURATION_FORMS}"))
}

/// RFC 3339 in UTC, for machines.
pub fn rfc3339(time: Time) -> String {
    Timestamp::from_microsecond(time.0).map_or_else(|_| format!("@{}", time.0 / 1_000_000), |t| t.to_string())
}

/// A time for people: on the clock of the machine's zone, and how far away it is (`2026-11-16 10:57:53, 3m ago`).
pub fn told(time: Time) -> String {
    told_at(time, crate::clock::now(), TimeZone::system())
}

/// The same, out of the RFC 3339 of an answer; another text is left as it is.
pub fn told_text(text: &str) -> String {
    text.parse::<Timestamp>().map_or_else(|_| text.to_owned(), |time| told(Time(time.as_microsecond())))
}

/// The time of day of an RFC 3339 text, on the clock of the machine's zone.
pub fn time_of_day(text: &str) -> String {
    let time = text.parse::<Timestamp>().map(|time| time.to_zoned(TimeZone::system()));
    time.map_or_else(|_| text.to_owned(), |time| time.strftime("%H:%M:%S").to_string())
}

fn told_at(time: Time, now: Time, zone: TimeZone) -> String {
    let Ok(moment) = Timestamp::from_microsecond(time.0) else { return rfc3339(time) };
    let local = moment.to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S").to_string();
    match time > now {
        true => format!("{local}, in {}", spoken(time.since(now))),
        false => format!("{local}, {} ago", spoken(now.since(time))),
    }
}

/// A duration for people: its two largest units at most (`1h 30m`, `4.2s`, `3d`).
pub fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (large, small) = match seconds {
        0..10 => return format!("{:.1}s", duration.as_secs_f64()),
        10..60 => return format!("{seconds}s"),
        60..3600 => ((seconds / 60, "m"), (seconds % 60, "s")),
        3600..86400 => ((seconds / 3600, "h"), (seconds % 3600 / 60, "m")),
        _ => ((seconds / 86400, "d"), (seconds % 86400 / 3600, "h")),
    };
    match small.0 {
        0 => format!("{}{}", large.0, large.1),
        rest => format!("{}{} {rest}{}", large.0, large.1, small.1),
    }
}

/// A duration that reads back to the microsecond (`1h30m`, `1500ms`).
pub fn exact(duration: Duration) -> String {
    let units =
        [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("us", 1)];
    let mut left = duration.as_micros();
    let mut text = String::new();
    for (unit, length) in units {
        if left >= length {
            text.push_str(&format!("{}{unit}", left / length));
            left %= length;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

/// `07:00`: the next time that the clock on the wall shows it.
fn next_time_of_day(text: &str, now: Time, zone: &TimeZone) -> Option<Time> {
    let form = text.len() <= 8 && text.contains(':') && text.bytes().all(|b| b.is_ascii_digit() || b == b':');
    let wanted: jiff::civil::Time = text.parse().ok().filter(|_| form)?;
    let today = Timestamp::from_microsecond(now.0).ok()?.to_zoned(zone.clone()).date();
    let on = |day: jiff::civil::Date| {
        let moment = day.to_datetime(wanted).to_zoned(zone.clone()).ok()?.timestamp();
        Some(Time(moment.as_microsecond())).filter(|moment| *moment > now)
    };
    on(today).or_else(|| on(today.tomorrow().ok()?))
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// True where the time of day is followed by a zone's offset; the hyphens of the date are not one.
fn has_offset(text: &str) -> bool {
    let day_and_time = text.split_once(['T', 't', ' ']);
    day_and_time.is_some_and(|(_, time)| time.contains(['Z', 'z', '+', '-', '\u{2212}']))
}

#[cfg(test)]
mod tests;
