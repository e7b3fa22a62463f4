//! What the values of options must be: each refusal says the value and what was expected.

use crate::clock;
use crate::when;
use std::str::FromStr;
use windlass_core::time::Time;

/// The most of anything that an option can ask for.
const MOST: u64 = 1_000_000;

/// Slots: at least one.
pub(super) fn slots(text: &str) -> Result<u32, String> {
    number(text, 1, MOST)
}

/// A number of times; none is one.
pub(super) fn times(text: &str) -> Result<u32, String> {
    number(text, 0, MOST)
}

/// The number of a start.
pub(super) fn start(text: &str) -> Result<u32, String> {
    number(text, 1, u64::from(u32::MAX))
}

/// How many times of a schedule.
pub(super) fn coming(text: &str) -> Result<u32, String> {
    number(text, 1, 1000)
}

/// How many jobs, at least one.
pub(super) fn most(text: &str) -> Result<u64, String> {
    number(text, 1, u64::MAX)
}

/// How many jobs, perhaps none.
pub(super) fn count(text: &str) -> Result<u64, String> {
    number(text, 0, u64::MAX)
}

/// A time that has passed: a span ago, or a moment.
pub(super) fn since(text: &str) -> Result<Time, String> {
    let now = clock::now();
    if let Ok(span) = when::duration(text) {
        return Ok(Time(now.as_micros().saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX))));
    }
    let refused =
        || format!("expected a span such as 30m, 1h or 7d, or a time such as 2026-11-15T10:00:00Z, got: {text}");
    let moment = when::time(text, Time(i64::MIN)).map_err(|_| refused())?;
    if moment > now { Err(format!("expected a time that has passed, got: {text}")) } else { Ok(moment) }
}

fn number<T: FromStr>(text: &str, from: u64, to: u64) -> Result<T, String> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = plain.then(|| text.parse::<u64>().ok()).flatten().filter(|value| (from..=to).contains(value));
    // A number within the bounds fits its type: it is read once more as that.
    value.and_then(|value| value.to_string().parse().ok()).ok_or_else(|| match to {
        u64::MAX => format!("expected a whole number from {from} on, got: {text}"),
        to => format!("expected a whole number from {from} to {to}, got: {text}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_plain_and_within_their_bounds() {
        assert_eq!((slots("8"), times("0"), most("9")), (Ok(8), Ok(0), Ok(9)));
        for bad in ["", "x", "0", "-1", "1.5", "1e3", "+1", " 1", "1000001", "99999999999999999999999"] {
            let refused = slots(bad).unwrap_err();
            assert_eq!(refused, format!("expected a whole number from 1 to 1000000, got: {bad}"));
        }
        assert_eq!(count("x").unwrap_err(), "expected a whole number from 0 on, got: x");
    }

    #[test]
    fn the_past_is_a_span_or_a_moment() {
        assert!(since("1h").unwrap() < clock::now());
        assert_eq!(since("1970-01-01T00:00:01Z"), Ok(Time(1_000_000)));
        for bad in ["", "soon", "-1h", "2999-01-01T00:00:00Z"] {
            assert!(since(bad).unwrap_err().starts_with("expected a "), "{bad}");
        }
    }
}
