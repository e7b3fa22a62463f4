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
