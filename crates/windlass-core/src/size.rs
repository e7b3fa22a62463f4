//! Sizes as they are told to people.

/// A size for people, in the largest unit that divides it or with one decimal.
pub fn spoken(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 { format!("{value} {}", UNITS[unit]) } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        for (bytes, told) in [(0, "0 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (10 << 30, "10 GiB")] {
            assert_eq!(spoken(bytes), told);
        }
    }
}
