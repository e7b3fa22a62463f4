//! In one word, what the engine is up to: told to anyone who asks, without asking the engine.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

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

/// The condition where other threads can see it, with the number of stalemates: written after each turn.
#[derive(Debug)]
pub struct Shown {
    condition: AtomicU8,
    stalemates: AtomicU64,
}

impl Default for Shown {
    fn default() -> Shown {
        let shown = Shown { condition: AtomicU8::new(0), stalemates: AtomicU64::new(0) };
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
}
