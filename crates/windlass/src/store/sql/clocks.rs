//! The database's clock is the one that counts: of many servers each may have a wrong one, and one is enough.
//!
//! Times in rows are the database's. A server compares its own clock with it whenever it says that it lives; where they
//! differ, what the engine says and hears is put from one clock to the other here and at the verbs. Clocks that are in
//! step are left alone. A time that somebody named is the database's already. Where the database's own clock is set,
//! who waits for another try waits as long as before: whoever controls sees to that.

use super::{SqlStore, StoreError};
use windlass_core::time::{Steady, Time};

/// Clocks that differ by less than this, in microseconds, are in step.
const IN_STEP: i64 = 1_000_000;

/// What is known of the two clocks.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// So many microseconds the database's is ahead of this server's; zero where they are in step.
    ahead: i64,
    /// The database's time when it was last asked for, by a clock that nobody sets.
    asked: Option<(i64, Steady)>,
}

impl Clocks {
    /// Hears what the database's clock says; tells by how much it was set since the last time.
    fn hear(&mut self, theirs: i64, ours: Time, steady: Steady) -> i64 {
        let ahead = theirs.saturating_sub(ours.as_micros());
        self.ahead = if ahead.abs() < IN_STEP { 0 } else { ahead };
        let before = self.asked.replace((theirs, steady));
        let set = before.map_or(0, |(then, at)| {
            let passed = i64::try_from(steady.since(at).as_micros()).unwrap_or(i64::MAX);
            theirs.saturating_sub(then).saturating_sub(passed)
        });
        if set.abs() < IN_STEP { 0 } else { set }
    }
}

impl SqlStore {
    /// A time of this server's as the database has it.
    pub(super) fn there(&self, ours: Time) -> Time {
        Time(ours.as_micros().saturating_add(self.clocks.ahead))
    }

    /// And back.
    pub(super) fn here(&self, theirs: Time) -> Time {
        Time(theirs.as_micros().saturating_sub(self.clocks.ahead))
    }

    /// Looks at both clocks. Where the database's was set, those that wait for another try are moved with it, by the
    /// server that controls.
    pub(super) fn compare_clocks(&mut self) -> Result<(), StoreError> {
        let (ours, steady) = (crate::clock::now(), crate::clock::steady());
        let theirs = self.db.one(&format!("SELECT {}", self.db.dialect.now()), &[])?.int()?;
        let set = self.clocks.hear(theirs, ours, steady);
        if set != 0 && self.controls {
            self.begin()?;
            self.written = true;
            let sql = "UPDATE :jobs SET :run_at = :run_at + $1 WHERE :state IN (0, 3) AND :status = 'pending' \
                 AND :run_at IS NOT NULL AND :starts > 0";
            self.db.execute(&self.names.sql(sql), &[set.into()])?;
            self.due = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn clocks_in_step_are_left_alone_and_one_that_was_set_is_noticed() {
        let (mut clocks, steady) = (Clocks::default(), Steady::default());
        let later = |seconds| steady.after(Duration::from_secs(seconds));
        for (theirs, ours, at, ahead, set) in [
            (100_900_000, 100_000_000, 0, 0, 0),
            (110_000_000, 110_000_000, 10, 0, 0),
            // This server's clock is set back.
            (120_000_000, 60_000_000, 20, 60_000_000, 0),
            // The database's is set forward, and back again.
            (430_000_000, 70_000_000, 30, 360_000_000, 300_000_000),
            (140_000_000, 80_000_000, 40, 60_000_000, -300_000_000),
        ] {
            assert_eq!(clocks.hear(theirs, Time(ours), later(at)), set, "{theirs}");
            assert_eq!(clocks.ahead, ahead, "{theirs}");
        }
    }
}
