//! Points in time as the engine sees them: microseconds of the wall clock since 1970, always passed in.
//!
//! This file owns the type and its arithmetic. It must not read a clock; parsing what people write as a time
//! needs zones and lives at the edge.

use std::time::Duration;

/// A moment on the wall clock, in microseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    pub const ZERO: Time = Time(0);

    /// The moment `by` later; the far end of the range is sticky, never a wrap into the past.
    pub fn after(self, by: Duration) -> Time {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Time(self.0.saturating_add(micros))
    }

    /// How long from `earlier` to `self`; nothing if the clock went back in between.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    pub fn as_micros(self) -> i64 {
        self.0
    }
}

/// A wall clock is taken for set where it is off by more than this and by more than clocks are slowed down or sped up,
/// which is far less than one part in five hundred.
const SET_LEAST: i64 = 1_000_000;
const SLEWED_MOST: i64 = 500;

/// By how many microseconds the wall clock was set between two looks at both clocks, if it was.
pub fn jump(before: (Time, Steady), now: (Time, Steady)) -> Option<i64> {
    let passed = i64::try_from(now.1.since(before.1).as_micros()).unwrap_or(i64::MAX);
    let by = now.0.0.saturating_sub(before.0.0).saturating_sub(passed);
    (by.saturating_abs() > (passed / SLEWED_MOST).saturating_add(SET_LEAST)).then_some(by)
}

/// A moment on a clock that nobody sets: nanoseconds since some beginning that only this process knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Steady(pub u64);

impl Steady {
    pub fn after(self, by: Duration) -> Steady {
        Steady(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long from `earlier` to `self`; nothing where it is not earlier.
    pub fn since(self, earlier: Steady) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_is_told_from_one_that_goes_a_little_wrong() {
        let (second, hour) = (1_000_000, 3_600_000_000);
        for (wall, steady, jumped) in [
            (hour, hour, None),
            (hour + 2 * second, hour, None),
            (hour - 7 * second, hour, None),
            (second / 2, 0, None),
            (2 * second, 0, Some(2 * second)),
            (3 * hour, hour, Some(2 * hour)),
            (-hour, hour, Some(-2 * hour)),
            (i64::MAX, hour, Some(i64::MAX - hour)),
        ] {
            let at = (Time(wall), Steady::default().after(Duration::from_micros(steady as u64)));
            assert_eq!(jump((Time::ZERO, Steady::default()), at), jumped, "{wall} beside {steady}");
        }
    }
}
