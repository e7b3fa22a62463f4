//! The clock: the only place that reads the time. Everything else is given it.

use std::time::{SystemTime, UNIX_EPOCH};
use windlass_core::time::Time;

/// The wall clock now.
#[expect(clippy::disallowed_methods, reason = "this is the only reader of the clock")]
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
