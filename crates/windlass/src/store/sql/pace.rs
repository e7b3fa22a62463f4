//! One try a second: a database that is away is not asked by each who wants something of it.
//!
//! Whoever comes soon after a try that failed, or during the next one, is told what that one was told. It must not know
//! what a try is.

use crate::store::StoreError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A little less than a second, so that who comes once a second is not sent away by its own last try.
const BETWEEN_TRIES: Duration = Duration::from_millis(900);

/// How the last try went; shared by all its clones.
#[derive(Clone, Debug, Default)]
pub struct Pace(Arc<Mutex<Tries>>);

#[derive(Debug, Default)]
struct Tries {
    /// When somebody began to try in vain, and what came of it.
    failed: Option<(Instant, String)>,
    under_way: u32,
}

/// A try that is under way.
#[derive(Debug)]
pub(super) struct Try {
    pace: Pace,
    begun: Instant,
}

impl Pace {
    fn tries(&self) -> MutexGuard<'_, Tries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What whoever comes now is told without a try.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        let tries = self.tries();
        let (at, why) = tries.failed.as_ref()?;
        let rests = tries.under_way > 0 || at.elapsed() < BETWEEN_TRIES;
        rests.then(|| StoreError::Away(why.clone()))
    }

    /// Lets somebody try, unless that was done in vain a moment ago.
    pub(super) fn enter(&self) -> Result<Try, StoreError> {
        if let Some(refused) = self.refusal() {
            return Err(refused);
        }
        self.tries().under_way += 1;
        Ok(Try { pace: self.clone(), begun: Instant::now() })
    }
}

impl Try {
    /// Notes what came of it.
    pub(super) fn ended<T>(self, tried: Result<T, StoreError>) -> Result<T, StoreError> {
        self.pace.tries().failed = match &tried {
            Err(StoreError::Away(why)) => Some((self.begun, why.clone())),
            Ok(_) | Err(_) => None,
        };
        tried
    }
}

impl Drop for Try {
    fn drop(&mut self) {
        self.pace.tries().under_way -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_try_in_vain_is_enough_for_all_who_come_with_it() {
        let pace = Pace::default();
        let away = || StoreError::Away("nobody answers".into());
        let (one, other) = (pace.enter().unwrap(), pace.clone().enter().unwrap());
        assert_eq!(other.ended(Ok(1)), Ok(1), "who is there is not waited for");
        assert_eq!(one.ended(Err::<(), _>(away())), Err(away()));
        assert_eq!(pace.clone().enter().map(drop), Err(away()));
        pace.tries().failed = Some((Instant::now().checked_sub(BETWEEN_TRIES).unwrap(), "nobody answers".into()));
        let next = pace.enter().unwrap();
        assert_eq!(pace.enter().map(drop), Err(away()), "one tries for all");
        assert_eq!(next.ended(Ok(2)), Ok(2));
        assert_eq!(pace.refusal(), None);
    }
}
