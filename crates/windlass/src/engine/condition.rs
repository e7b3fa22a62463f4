//! In one word, what the engine is up to: told to anyone who asks, without asking the engine.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What keeps new jobs from being started, the strongest reason first; `Serving` where nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Told to end at once.
    Halting,
    /// Told to end: nothing more is started.
    Draining,
    /// The disk is full: nothing is accepted or started, what runs is still settled.
    NoSpace,
    /// The database does not answer: what runs goes on, nothing is accepted or started.
    StoreAway,
    /// Finished attempts wait for the archive, too many of them.
    ArchiveBehind,
    /// Somebody paused the whole server: jobs are accepted, nothing is started.
    Paused,
    /// Somebody asked for quiet with a signal: jobs are accepted, nothing is started.
    Quiet,
    #[default]
    Serving,
}

impl Condition {
    pub const ALL: [Condition; 8] = [
        Condition::Halting,
        Condition::Draining,
        Condition::NoSpace,
        Condition::StoreAway,
        Condition::ArchiveBehind,
        Condition::Paused,
        Condition::Quiet,
        Condition::Serving,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Condition::Halting => "halting",
            Condition::Draining => "draining",
            Condition::NoSpace => "no_space",
            Condition::StoreAway => "store_away",
            Condition::ArchiveBehind => "archive_behind",
            Condition::Paused => "paused",
            Condition::Quiet => "quiet",
            Condition::Serving => "serving",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The condition where other threads can see it, with the number of stalemates and the time that turns have taken:
/// written after each turn.
#[derive(Debug)]
pub struct Shown {
    condition: AtomicU8,
    stalemates: AtomicU64,
    since: Instant,
    /// In nanoseconds.
    worked: AtomicU64,
}

impl Default for Shown {
    fn default() -> Shown {
        let (condition, stalemates, worked) = (AtomicU8::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let shown = Shown { condition, stalemates, since: Instant::now(), worked };
        shown.set(Condition::Serving, 0);
        shown
    }
}

impl Shown {
    pub fn set(&self, condition: Condition, stalemates: u64) {
        let at = Condition::ALL.iter().position(|known| *known == condition).unwrap_or_default();
        self.condition.store(at as u8, Ordering::Relaxed);
        self.stalemates.store(stalemates, Ordering::Relaxed);
    }

    pub fn get(&self) -> Condition {
        Condition::ALL.get(usize::from(self.condition.load(Ordering::Relaxed))).copied().unwrap_or_default()
    }

    /// How often ready work did not start although nothing held it.
    pub fn stalemates(&self) -> u64 {
        self.stalemates.load(Ordering::Relaxed)
    }

    /// A turn took so long, with all that it led to.
    pub fn worked(&self, time: Duration) {
        self.worked.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The share of the time since the start that turns have taken.
    pub fn busy(&self) -> f64 {
        let passed = self.since.elapsed().as_nanos().max(1);
        (self.worked.load(Ordering::Relaxed) as f64 / passed as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_condition_is_shown_as_itself() {
        let shown = Shown::default();
        assert_eq!(shown.get(), Condition::Serving);
        for condition in Condition::ALL {
            shown.set(condition, 3);
            assert_eq!((shown.get(), shown.stalemates()), (condition, 3));
        }
    }

    #[test]
    fn the_busy_share_is_that_of_the_time_which_turns_took() {
        let shown = Shown::default();
        assert_eq!(shown.busy(), 0.0);
        shown.worked(Duration::from_nanos(1));
        let little = shown.busy();
        shown.worked(Duration::from_secs(3600));
        assert!(little > 0.0 && little <= 1.0, "{little}");
        assert_eq!(shown.busy(), 1.0, "no more than all of it");
    }
}
