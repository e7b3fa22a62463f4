//! When a queue may start jobs: times of the day and days of the week on a zone's clock.
//!
//! Written `[DAYS] FROM-TO …` such as `Mon-Fri 22:00-06:00`; times past midnight belong to the day they begin on. What
//! counts is what the clock on the wall shows: an hour that comes twice is open twice, one that is left out never
//! comes. The zone is a table of offsets made at the edge. This file must not know zones by name.

use crate::time::Time;
use std::fmt;

const DAY_MINUTES: i64 = 24 * 60;
const MINUTE: i64 = 60 * 1_000_000;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const EXPECTED: &str = "expected hours such as 22:00-06:00 or Mon-Fri 08:00-18:00 Europe/Berlin";

/// How far a zone's clock is ahead of UTC, and from when on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// In minutes, before the first change.
    pub first: i32,
    /// Each change and the offset after it, oldest first; the last one holds for ever.
    pub changes: Vec<(Time, i32)>,
}

impl Zone {
    pub const UTC: Zone = Zone { first: 0, changes: Vec::new() };

    fn offset(&self, at: Time) -> i64 {
        let after = self.changes.partition_point(|(from, _)| *from <= at);
        i64::from(after.checked_sub(1).map_or(self.first, |last| self.changes[last].1))
    }
}

/// A stretch of the day on some days of the week; one that ends before it begins goes past midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    /// Bit 0 is Monday.
    days: u8,
    from: i64,
    to: i64,
}

impl Span {
    fn covers(&self, day: i64, minute: i64) -> bool {
        let on = |day: i64| self.days >> day.rem_euclid(7) & 1 == 1;
        if self.from < self.to {
            on(day) && (self.from..self.to).contains(&minute)
        } else {
            on(day) && minute >= self.from || on(day - 1) && minute < self.to
        }
    }
}

/// Checked hours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hours {
    spans: Vec<Span>,
    zone: Zone,
    text: String,
}

impl Hours {
    /// Reads what a person wrote; `zone` knows zones by name, and by none the machine's own.
    pub fn parse(text: &str, zone: impl Fn(Option<&str>) -> Result<Zone, String>) -> Result<Hours, String> {
        let mut spans = Vec::new();
        let mut days = None;
        let mut named = None;
        for word in text.split_whitespace() {
            if named.is_some() {
                return Err(format!("{word:?} stands behind the zone; {EXPECTED}"));
            } else if word.starts_with(|c: char| c.is_ascii_digit()) {
                let days = days.unwrap_or(0x7f);
                for stretch in word.split(',') {
                    let (from, to) = read_stretch(stretch)?;
                    spans.push(Span { days, from, to });
                }
            } else if let Some(read) = read_days(word) {
                days = Some(read);
            } else {
                named = Some(word);
            }
        }
        if spans.is_empty() {
            return Err(format!("{text:?} has no times; {EXPECTED}"));
        }
        Ok(Hours { spans, zone: zone(named)?, text: text.split_whitespace().collect::<Vec<_>>().join(" ") })
    }

    pub fn is_open(&self, at: Time) -> bool {
        let local = at.0.div_euclid(MINUTE) + self.zone.offset(at);
        // The first of January 1970 was a Thursday.
        let (day, minute) = (local.div_euclid(DAY_MINUTES) + 3, local.rem_euclid(DAY_MINUTES));
        self.spans.iter().any(|span| span.covers(day, minute))
    }

    /// The next moment at which it opens or closes; none where it never does.
    pub fn next_change(&self, at: Time) -> Option<Time> {
        let open = self.is_open(at);
        let mut moments = self.moments(at);
        moments.retain(|moment| *moment > at);
        moments.sort_unstable();
        moments.into_iter().find(|moment| self.is_open(*moment) != open)
    }

    /// Every moment of the coming week at which something may change: the ends of all spans, read with every offset
    /// that holds by then, and the changes of the offset themselves.
    fn moments(&self, at: Time) -> Vec<Time> {
        let horizon = at.0.saturating_add(9 * DAY_MINUTES * MINUTE);
        let changes = self.zone.changes.iter().filter(|(from, _)| *from > at && from.0 <= horizon);
        let mut offsets = vec![self.zone.offset(at)];
        offsets.extend(changes.clone().map(|(_, offset)| i64::from(*offset)));
        let mut moments: Vec<Time> = changes.map(|(from, _)| *from).collect();
        let today = (at.0.div_euclid(MINUTE) + offsets[0]).div_euclid(DAY_MINUTES);
        for day in today - 1..=today + 8 {
            for minute in self.spans.iter().flat_map(|span| [span.from, span.to]) {
                let local = day * DAY_MINUTES + minute;
                moments.extend(offsets.iter().map(|offset| Time((local - offset).saturating_mul(MINUTE))));
            }
        }
        moments
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// `Mon`, `Mon-Fri`, `Sat,Sun`, `Fri-Mon`; none where a word is not about days.
fn read_days(text: &str) -> Option<u8> {
    let day = |name: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(name));
    let mut days = 0;
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (day(from)?, day(to)?);
        let count = (to + 7 - from) % 7;
        (0..=count).for_each(|step| days |= 1u8 << ((from + step) % 7));
    }
    Some(days)
}

fn read_stretch(text: &str) -> Result<(i64, i64), String> {
    let refused = || format!("cannot read the times {text:?}; {EXPECTED}");
    let (from, to) = text.split_once('-').ok_or_else(refused)?;
    let (from, to) = (read_time(from).ok_or_else(refused)?, read_time(to).ok_or_else(refused)?);
    if from == to || from == DAY_MINUTES {
        return Err(format!("{text:?} is no time at all; a whole day is 00:00-24:00"));
    }
    Ok((from, to))
}

/// `HH:MM`; 24:00 is the end of the day.
fn read_time(text: &str) -> Option<i64> {
    let (hour, minute) = text.split_once(':')?;
    let plain = |text: &str| text.len() <= 2 && minute.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
    let (hour, minute): (i64, i64) = match plain(hour) && plain(minute) {
        true => (hour.parse().ok()?, minute.parse().ok()?),
        false => return None,
    };
    let fits = hour < 24 && minute < 60 || (hour, minute) == (24, 0);
    fits.then_some(hour * 60 + minute)
}

#[cfg(test)]
mod tests;
