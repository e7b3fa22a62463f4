//! The times that plain lines carry: `_future<TAB>TIME<TAB>QUEUE<TAB>DATA`.
//!
//! TIME is RFC 3339, `@SECONDS` or plain seconds since 1970, with an optional fraction. It must not read a clock:
//! a time in the past is a job for now.

use memchr::memchr;
use windlass_core::time::Time;

/// Takes the data of a `_future` line apart: time, queue, data.
pub fn split(data: &[u8]) -> Option<(Time, &[u8], &[u8])> {
    let (time, rest) = data.split_at(memchr(b'\t', data)?);
    let rest = &rest[1..];
    let (queue, data) = rest.split_at(memchr(b'\t', rest)?);
    Some((parse(std::str::from_utf8(time).ok()?)?, queue, &data[1..]))
}

/// Reads a time as plain lines write it.
pub fn parse(text: &str) -> Option<Time> {
    let seconds = text.strip_prefix('@').unwrap_or(text);
    if seconds.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return parse_seconds(seconds);
    }
    let stamp: jiff::Timestamp = text.parse().ok()?;
    Some(Time(stamp.as_microsecond()))
}

fn parse_seconds(text: &str) -> Option<Time> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if fraction.contains('.') {
        return None;
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(6).collect();
    let micros: i64 = digits.parse().ok()?;
    Some(Time(seconds.checked_mul(1_000_000)?.checked_add(micros)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_plain_lines_write_them() {
        for (text, micros) in [
            ("1700000000", 1_700_000_000_000_000),
            ("@1700000000", 1_700_000_000_000_000),
            ("@1700000000.25", 1_700_000_000_250_000),
            ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
            ("2023-11-15T00:13:20+02:00", 1_700_000_000_000_000),
        ] {
            assert_eq!(parse(text), Some(Time(micros)), "{text}");
        }
        for text in ["", "@", "soon", "1.2.3", "99999999999999999999", "2023-11-14", "-5", "2023-13-14T22:13:20Z"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_line_has_three_parts() {
        assert_eq!(split(b"@1\tq\ta\tb"), Some((Time(1_000_000), &b"q"[..], &b"a\tb"[..])));
        assert_eq!(split(b"@1\tq"), None);
        assert_eq!(split(b"@1"), None);
    }
}
