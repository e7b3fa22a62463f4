//! Zones by name: from the machine's database or the one in the binary to the table that core decides by.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use windlass_core::hours::{Hours, Zone};
use windlass_core::time::Time;

/// Changes of the clock are tabled this far: longer than a server stands without a reload.
const YEARS: i64 = 20;

/// Reads a queue's `hours`; without a zone they are meant in the machine's.
pub(super) fn hours(text: &str) -> Result<Hours, String> {
    Hours::parse(text, |name| {
        let zone = match name {
            None => TimeZone::system(),
            Some(name) => TimeZone::get(name)
                .map_err(|_| format!("no such zone {name:?}; expected a name such as UTC or Europe/Berlin"))?,
        };
        Ok(table(&zone, Timestamp::now()))
    })
}

/// The offsets from a year before `now` on: a clock that is set back a little still finds its table.
fn table(zone: &TimeZone, now: Timestamp) -> Zone {
    const YEAR: i64 = 366 * 24 * 3600;
    let at = |years: i64| Timestamp::from_second(now.as_second().saturating_add(years * YEAR)).unwrap_or(now);
    let (from, to) = (at(-1), at(YEARS));
    let changes = zone.following(from).take_while(|change| change.timestamp() <= to);
    let minutes = |seconds: i32| seconds.div_euclid(60);
    Zone {
        first: minutes(zone.to_offset(from).seconds()),
        changes: changes
            .map(|change| (Time(change.timestamp().as_microsecond()), minutes(change.offset().seconds())))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_with_summer_time() {
        let now: Timestamp = "2026-11-16T00:00:00Z".parse().unwrap();
        let berlin = table(&TimeZone::get("Europe/Berlin").unwrap(), now);
        assert_eq!((berlin.first, berlin.changes[0].1), (60, 120));
        let spring: Timestamp = "2026-03-29T01:00:00Z".parse().unwrap();
        assert_eq!(berlin.changes[0].0, Time(spring.as_microsecond()));
        assert!((40..44).contains(&berlin.changes.len()), "{}", berlin.changes.len());
        assert_eq!(table(&TimeZone::UTC, now), Zone::UTC);
        assert_eq!(
            hours("1:00-2:00 Mars/Olympus").unwrap_err(),
            "no such zone \"Mars/Olympus\"; expected a name such as UTC or Europe/Berlin"
        );
        assert!(hours("Mon-Fri 22:00-06:00 Europe/Berlin").is_ok());
    }
}
