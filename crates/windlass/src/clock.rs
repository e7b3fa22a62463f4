//! The clock: the only place that reads the time. Everything else is given it.

pub(crate) mod watch;

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use windlass_core::time::{Steady, Time};

/// The wall clock now.
#[expect(clippy::disallowed_methods, reason = "this is the one reader of the clock")]
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// A clock that nobody sets: since this was first asked.
pub fn steady() -> Steady {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    Steady::default().after(FIRST.get_or_init(Instant::now).elapsed())
}
