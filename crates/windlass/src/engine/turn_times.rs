//! How long turns take: a histogram that the engine's thread fills and anyone may read.
//!
//! Each power of two of microseconds is cut in sixteen, so a percentile is at most a sixteenth too large. Noting costs
//! one relaxed addition.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Enough for turns of many days.
const BUCKETS: usize = 640;

/// Counts of turns by their length.
#[derive(Debug)]
pub struct TurnTimes([AtomicU64; BUCKETS]);

impl Default for TurnTimes {
    fn default() -> TurnTimes {
        TurnTimes(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl TurnTimes {
    pub fn note(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0[bucket(micros).min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes another histogram's turns in, as of several servers or runs.
    pub fn add(&self, other: &TurnTimes) {
        for (mine, theirs) in self.0.iter().zip(&other.0) {
            mine.fetch_add(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The time that this share of the turns took at most; nothing before the first turn.
    pub fn percentile(&self, share: f64) -> Duration {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let wanted = (counts.iter().sum::<u64>() as f64 * share).ceil() as u64;
        let mut seen = 0;
        let at = counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        Duration::from_micros(at.filter(|_| wanted > 0).map_or(0, |at| ends_before(at) - 1))
    }
}

/// The first sixteen hold 0 to 15 µs exactly; then sixteen for each power of two.
fn bucket(micros: u64) -> usize {
    if micros < 16 {
        return micros as usize;
    }
    let power = micros.ilog2();
    let sixteenth = (micros >> (power - 4)) & 15;
    (16 * (power - 3)) as usize + sixteenth as usize
}

/// The first length that is too long for a bucket.
fn ends_before(bucket: usize) -> u64 {
    if bucket < 16 {
        return bucket as u64 + 1;
    }
    let (power, sixteenth) = (bucket / 16 + 3, bucket as u64 % 16);
    (sixteenth + 17) << (power - 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_the_bucket_that_ends_behind_it() {
        for micros in (0..5000).chain([1 << 20, (1 << 20) + 1, (1 << 35) - 1]) {
            let at = bucket(micros);
            assert!(micros < ends_before(at), "{micros}");
            assert!(at == 0 || micros >= ends_before(at - 1), "{micros}");
        }
    }

    #[test]
    fn percentiles_are_at_most_a_sixteenth_too_large() {
        let times = TurnTimes::default();
        assert_eq!(times.percentile(0.99), Duration::ZERO);
        (1..=1000).for_each(|n| times.note(Duration::from_micros(n)));
        times.note(Duration::MAX);
        for (share, exact) in [(0.5, 500.0), (0.99, 990.0)] {
            let found = times.percentile(share).as_micros() as f64;
            assert!((exact..=exact * 1.0625).contains(&found), "{share}: {found}");
        }
    }
}
