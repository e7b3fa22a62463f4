//! Sizes and rates as people write them, and the nearest known name to a mistyped one.

pub use windlass_core::size::spoken as spoken_size;

use crate::when;
use std::time::Duration;
use windlass_core::rate::Rate;

/// Reads `512`, `64k`, `512M`, `2GiB`: binary steps, whatever the spelling.
pub fn size(text: &str) -> Result<u64, String> {
    let refused = || format!("cannot read the size {text:?}; expected a size such as 64KiB, 512M or 2GiB");
    let text_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(text_end);
    let count: u64 = digits.parse().map_err(|_| refused())?;
    let unit = unit.trim_start().to_ascii_lowercase();
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(refused()),
    };
    count.checked_mul(1 << shift).ok_or_else(refused)
}

/// `100/s`, `5/m`, `1/90s`: a number, and a time of which the number may be left out.
pub fn rate(text: &str) -> Result<Rate, String> {
    let refused = || format!("{text:?} is no rate, expected a number and a time such as 100/s, 5/m or 1/90s");
    let (count, per) = text.split_once('/').ok_or_else(refused)?;
    let count: u32 = count.trim().parse().map_err(|_| refused())?;
    let per = match per.trim() {
        unit @ ("s" | "m" | "h" | "d") => when::duration(&format!("1{unit}")),
        time => when::duration(time),
    };
    let per: Duration = per.map_err(|_| refused())?;
    match Rate::new(count, per) {
        Some(rate) if count <= 1_000_000 => Ok(rate),
        _ => Err(format!("{text:?} cannot be kept, expected 1 to 1000000 in a time of up to a year")),
    }
}

/// A size that reads back to the byte: in the largest unit that divides it.
pub fn exact_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["", "KiB", "MiB", "GiB", "TiB"];
    let steps = if bytes == 0 { 0 } else { (bytes.trailing_zeros() / 10).min(4) };
    format!("{}{}", bytes >> (10 * steps), UNITS[steps as usize])
}

/// The known name that a person most likely meant, if one is near enough to be worth saying.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known.iter().map(|name| (distance(word, name), *name));
    scored.min().filter(|(distance, name)| *distance <= 1 + name.len().max(word.len()) / 4).map(|(_, name)| name)
}

/// Letters to insert, drop, change or swap with a neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            if i == 0 || j == 0 {
                rows[i][j] = i + j;
                continue;
            }
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            rows[i][j] = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                rows[i][j] = rows[i][j].min(rows[i - 2][j - 2] + 1);
            }
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("0", 0),
            ("512", 512),
            ("64k", 65536),
            ("64KiB", 65536),
            ("512M", 512 << 20),
            ("2GiB", 2 << 30),
            ("1 TB", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(expected), "{text}");
        }
        for text in ["", "M", "-1", "1.5G", "1 minute", "99999999999999999999", "99999999999T", "1kk", "1ib5"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nearest_names() {
        let known = ["slots", "weight", "attempts", "time_limit"];
        assert_eq!(nearest("slot", &known), Some("slots"));
        assert_eq!(nearest("timelimit", &known), Some("time_limit"));
        assert_eq!(nearest("wieght", &known), Some("weight"));
        assert_eq!(nearest("colour", &known), None);
        assert_eq!(nearest("", &known), None);
    }
}
