//! Time limits of jobs on machines of any speed.
//!
//! A test of a limit has jobs that must come to their end within it, and how long a machine takes for that is its own
//! affair. So such a test is made with ever longer limits, for as long as all that is wrong is that somebody was late.

use std::time::Duration;

const SHORT: Duration = Duration::from_millis(300);
/// With this nobody who can be in time at all is late.
const LONG: Duration = Duration::from_secs(60);

/// Fails where what was heard is not as expected; where it is only that jobs were late, a longer limit is tried first.
#[track_caller]
pub(crate) fn in_time(expected: &[&str], mut hear: impl FnMut(Duration) -> Vec<String>) {
    let mut limit = SHORT;
    loop {
        let heard = hear(limit);
        if heard == expected {
            return;
        }
        let as_expected_or_late = |(heard, expected): (&String, &&str)| heard == expected || heard == "timed_out";
        let only_late = heard.len() == expected.len() && heard.iter().zip(expected).all(as_expected_or_late);
        assert!(only_late && limit < LONG, "{heard:?}, expected {expected:?} within {limit:?}");
        limit *= 4;
    }
}
