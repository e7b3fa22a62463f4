//! How often something may start: so many in a time, evenly spread.
//!
//! A meter is one moment: when the next start is due. A start on time moves it on by the rate's interval, so the rate
//! is kept exactly over any long time. What a start was late is made up for, but never more than `CREDIT`, and time in
//! which nothing waited is not credited at all: there are no bursts after a rest. It must not know what it meters.

use crate::time::Steady;
use std::fmt;
use std::time::Duration;

/// So much of a delay is made up for: more than a turn takes, far less than anybody would notice as a burst.
const CREDIT: Duration = Duration::from_millis(200);
/// Meters say when to look again only at whole multiples of this, so that a thousand of them make one turn together.
const GRAIN: Duration = Duration::from_millis(10);

/// So many starts in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    per: Duration,
}

impl Rate {
    /// None where the count is nought, or the time is no time or too long to count in.
    pub fn new(count: u32, per: Duration) -> Option<Rate> {
        let sensible = count > 0 && !per.is_zero() && per <= Duration::from_secs(366 * 24 * 3600);
        sensible.then_some(Rate { count, per })
    }

    pub fn count(self) -> u32 {
        self.count
    }

    pub fn per(self) -> Duration {
        self.per
    }

    /// From one start to the next, in nanoseconds; never nought.
    fn interval(self) -> u64 {
        let per = u64::try_from(self.per.as_nanos()).unwrap_or(u64::MAX);
        (per / u64::from(self.count)).max(1)
    }

    /// The place behind this one.
    pub fn next(self, place: Steady) -> Steady {
        Steady(place.0.saturating_add(self.interval()))
    }

    /// The most that may start at one moment.
    pub fn at_once(self) -> u32 {
        u32::try_from(CREDIT.as_nanos() as u64 / self.interval()).unwrap_or(u32::MAX).saturating_add(1)
    }
}

/// As the config has it: `100/s`, `5/m`, `1/90s`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, rest) = (self.per.as_secs(), self.per.subsec_millis());
        let unit = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
        match unit.iter().find(|(size, _)| rest == 0 && seconds % size == 0) {
            Some((size, name)) if seconds == *size => write!(f, "{}/{name}", self.count),
            Some((size, name)) => write!(f, "{}/{}{name}", self.count, seconds / size),
            None => write!(f, "{}/{}ms", self.count, self.per.as_millis()),
        }
    }
}

/// When the next start of something is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    due: Steady,
}

impl Meter {
    /// How many may start now.
    pub fn free(self, rate: Rate, now: Steady) -> u32 {
        let due = self.credited(now);
        let late = match now.0.checked_sub(due.0) {
            None => return 0,
            Some(late) => late / rate.interval(),
        };
        u32::try_from(late).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// So many start now.
    pub fn take(&mut self, rate: Rate, count: u32, now: Steady) {
        let cost = rate.interval().saturating_mul(u64::from(count));
        self.due = Steady(self.credited(now).0.saturating_add(cost));
    }

    /// So many that were taken did not start after all.
    pub fn give_back(&mut self, rate: Rate, count: u32) {
        self.due = Steady(self.due.0.saturating_sub(rate.interval().saturating_mul(u64::from(count))));
    }

    /// Something waits again after a time in which nothing did.
    pub fn rested(&mut self, now: Steady) {
        self.due = self.due.max(now);
    }

    /// When so many may start together, at most as many as ever may.
    pub fn next(self, rate: Rate, count: u32) -> Steady {
        let more = u64::from(count.clamp(1, rate.at_once()) - 1);
        let exact = self.due.0.saturating_add(rate.interval().saturating_mul(more));
        Steady(exact.div_ceil(GRAIN_NANOS).saturating_mul(GRAIN_NANOS))
    }

    /// When the next is due, to the nanosecond.
    pub fn due(self) -> Steady {
        self.due
    }

    fn credited(self, now: Steady) -> Steady {
        self.due.max(Steady(now.0.saturating_sub(CREDIT.as_nanos() as u64)))
    }
}

const GRAIN_NANOS: u64 = GRAIN.as_nanos() as u64;

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(count: u32, seconds: u64) -> Rate {
        Rate::new(count, Duration::from_secs(seconds)).unwrap()
    }

    fn at(millis: u64) -> Steady {
        Steady::after(Steady::default(), Duration::from_millis(millis))
    }

    /// Starts whatever is free whenever it is looked at, as the scheduler does.
    fn starts(meter: &mut Meter, rate: Rate, moments: impl Iterator<Item = Steady>) -> u64 {
        let mut count = 0;
        for now in moments {
            let free = meter.free(rate, now);
            assert!(free <= rate.at_once(), "{free} at once");
            meter.take(rate, free, now);
            count += u64::from(free);
        }
        count
    }

    #[test]
    fn a_rate_is_kept_exactly_however_late_it_is_looked_at() {
        for (rate, step) in [(rate(100, 1), 10), (rate(100, 1), 37), (rate(7, 1), 199), (rate(1_000_000, 1), 3)] {
            let mut meter = Meter::default();
            meter.rested(at(0));
            let seconds = 20;
            let count = starts(&mut meter, rate, (0..seconds * 1000 / step).map(|n| at(n * step)));
            let exact = seconds * u64::from(rate.count());
            let off = count.abs_diff(exact) as f64 / exact as f64;
            assert!(off < 0.02 && count <= exact + 1, "{rate}: {count} in {seconds} s, looked at every {step} ms");
        }
    }

    #[test]
    fn a_rest_earns_nothing_and_a_delay_little() {
        let (rate, mut meter) = (rate(100, 1), Meter::default());
        meter.rested(at(10_000));
        assert_eq!(meter.free(rate, at(10_000)), 1, "no burst to begin with");
        meter.take(rate, 1, at(10_000));
        assert_eq!(meter.free(rate, at(10_009)), 0);
        assert_eq!(meter.next(rate, 1), at(10_010));
        assert_eq!(meter.free(rate, at(10_010)), 1);
        assert_eq!(meter.free(rate, at(60_000)), 21, "a fifth of a second's worth");
        meter.rested(at(60_000));
        assert_eq!(meter.free(rate, at(60_000)), 1);
    }

    #[test]
    fn what_did_not_start_is_not_lost() {
        let (rate, mut meter) = (rate(1, 60), Meter::default());
        meter.rested(at(5000));
        meter.take(rate, 1, at(5000));
        assert_eq!(meter.free(rate, at(64_999)), 0);
        meter.give_back(rate, 1);
        assert_eq!(meter.free(rate, at(5000)), 1);
        meter.take(rate, 1, at(5000));
        assert_eq!((meter.free(rate, at(64_999)), meter.free(rate, at(65_000))), (0, 1));
    }

    #[test]
    fn a_batch_is_waited_for() {
        let (rate, mut meter) = (rate(100, 1), Meter::default());
        meter.rested(at(0));
        assert_eq!(meter.next(rate, 10), at(90));
        assert_eq!(meter.free(rate, at(90)), 10);
        assert_eq!(meter.next(rate, 500), at(200), "more than may ever start together is not waited for");
        assert_eq!(meter.free(rate, at(200)), 21);
    }

    #[test]
    fn words() {
        for (rate, text) in [
            (rate(100, 1), "100/s"),
            (rate(5, 60), "5/m"),
            (rate(1, 90), "1/90s"),
            (rate(3, 7200), "3/2h"),
            (rate(3, 86_400), "3/d"),
            (Rate::new(2, Duration::from_millis(1500)).unwrap(), "2/1500ms"),
        ] {
            assert_eq!(rate.to_string(), text);
        }
        assert_eq!(Rate::new(0, Duration::from_secs(1)), None);
        assert_eq!(Rate::new(1, Duration::ZERO), None);
    }
}
