//! How long until the next look at a table that others write to: soon after something was found, ever later while
//! nothing is.
//!
//! A wake-up may be lost; then the work waits for the next look, so the wait has an end. The steps are the seed's.

use std::time::Duration;

/// After something was found, or somebody said that there is work.
pub const FIRST: Duration = Duration::from_secs(5);
/// No wait is longer.
pub const LONGEST: Duration = Duration::from_secs(64);

/// The wait after one of this length that found nothing.
pub fn longer(wait: Duration) -> Duration {
    let (now, most) = (wait.as_secs_f64(), LONGEST.as_secs_f64());
    let next = now + (most * most - now * now).log10().abs();
    if next.is_finite() && most - next >= 1.0 { Duration::from_secs_f64(next) } else { LONGEST }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_as_the_seeds_does_and_has_an_end() {
        let mut wait = FIRST;
        let mut hundredths = Vec::new();
        for _ in 0..20 {
            hundredths.push((wait.as_secs_f64() * 100.0).round() as u64);
            wait = longer(wait);
        }
        let expected = [
            500, 861, 1221, 1581, 1940, 2297, 2652, 3005, 3355, 3703, 4046, 4385, 4719, 5046, 5365, 5674, 5968, 6241,
            6400, 6400,
        ];
        assert_eq!(hundredths, expected);
    }
}
