//! The arithmetic of back-off: exponential, full jitter, capped.
//!
//! It must not draw random numbers: the caller passes 64 random bits.

use crate::policy::Backoff;
use std::time::Duration;

/// The wait after the `failures`-th failure: uniform in [0, min(cap, base·2ⁿ⁻¹)], never under `at_least`.
pub fn delay(backoff: Backoff, failures: u32, at_least: Option<Duration>, random: u64) -> Duration {
    let ceiling = ceiling(backoff, failures);
    let nanos = ceiling.as_nanos().saturating_mul(u128::from(random)) >> 64;
    let jittered = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    jittered.max(at_least.unwrap_or_default())
}

/// The longest wait after the `failures`-th failure.
pub fn ceiling(backoff: Backoff, failures: u32) -> Duration {
    let factor = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    backoff.base.saturating_mul(factor).min(backoff.cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(3600) };

    #[test]
    fn doubles_to_the_cap_and_never_wraps() {
        assert_eq!(ceiling(BACKOFF, 1), Duration::from_secs(1));
        assert_eq!(ceiling(BACKOFF, 4), Duration::from_secs(8));
        for failures in [13, 31, 32, 33, 64, u32::MAX] {
            assert_eq!(ceiling(BACKOFF, failures), Duration::from_secs(3600), "{failures}");
        }
    }

    #[test]
    fn jitter_spans_the_whole_range_and_heeds_the_least() {
        assert_eq!(delay(BACKOFF, 3, None, 0), Duration::ZERO);
        let most = delay(BACKOFF, 3, None, u64::MAX);
        assert!(most <= Duration::from_secs(4) && most > Duration::from_millis(3999));
        assert_eq!(delay(BACKOFF, 1, Some(Duration::from_secs(90)), 5), Duration::from_secs(90));
    }
}
