//! Which jobs of a lot the table does not take: found out by inserting them in a transaction that is dropped.
//!
//! Halves are tried until it is known of each job, or until that has taken so long that the server would be missed:
//! then what is left of a part counts as refused. It must not decide what becomes of a job.

use super::rows::{self, NewRow};
use super::{Dialect, SqlStore, StoreError};
use crate::store::{Lot, NewJobs, Refused};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::job::QueueNo;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// Nothing else is done meanwhile; never longer than this part of a lease.
const SEARCH_MOST: Duration = Duration::from_secs(2);
const OF_LEASE: u32 = 6;

/// Rows that were refused, by their places, and the database's words.
type Found = Vec<(usize, String)>;

impl SqlStore {
    pub(super) fn refused_of(&mut self, lot: &Lot, now: Time) -> Result<Vec<Refused>, StoreError> {
        self.begin()?;
        let (mut places, mut rows) = (Vec::new(), Vec::new());
        for (group, new) in lot.jobs.iter().enumerate() {
            places.extend((0..new.jobs.len()).map(|index| (group, index)));
            rows.extend(self.rows_of_new(new, now));
        }
        let until = Instant::now() + SEARCH_MOST.min(self.options.lease / OF_LEASE);
        let mut found = Vec::new();
        let searched = self.search(&rows, 0, now, until, &mut found);
        let dropped = self.drop_transaction();
        searched.and(dropped)?;
        let mut parts: BTreeMap<(usize, String), BTreeSet<usize>> = BTreeMap::new();
        for (place, why) in found {
            let (group, index) = places[place];
            parts.entry((group, why)).or_default().insert(index);
        }
        let part = |((group, why), jobs): ((usize, String), BTreeSet<usize>)| {
            let new = &lot.jobs[group];
            let some = new.jobs.rebuilt(new.jobs.particulars().cloned(), |index| jobs.contains(&index));
            Refused { jobs: NewJobs { jobs: Arc::new(some), ..new.clone() }, why }
        };
        Ok(parts.into_iter().map(part).collect())
    }

    /// As they would be inserted. A queue that is not known yet has no number, and none is made.
    fn rows_of_new(&self, new: &NewJobs, now: Time) -> Vec<NewRow> {
        let queue = self.queues.numbers.get(new.queue.as_str()).copied().unwrap_or(QueueNo(0));
        let (name, priority): (Arc<str>, _) = (new.queue.as_str().into(), new.priority);
        let due = new.not_before.filter(|time| *time > now);
        let state = if due.is_some() { State::Scheduled } else { State::Ready };
        let row = |index| NewRow {
            jobs: new.jobs.clone(),
            index,
            queue,
            name: name.clone(),
            priority,
            state,
            run: None,
            due,
        };
        (0..new.jobs.len()).map(row).collect()
    }

    fn search(
        &mut self,
        rows: &[NewRow],
        first: usize,
        now: Time,
        until: Instant,
        found: &mut Found,
    ) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.db.batch(&["SAVEPOINT part"])?;
        match self.try_rows(rows, now) {
            // They stay, because those behind may be refused for them.
            Ok(()) => self.db.batch(&["RELEASE SAVEPOINT part"]),
            Err(StoreError::Refused(why)) => {
                self.db.batch(&["ROLLBACK TO SAVEPOINT part"])?;
                if rows.len() == 1 || Instant::now() >= until {
                    found.extend((first..first + rows.len()).map(|place| (place, why.clone())));
                    return Ok(());
                }
                let (one, other) = rows.split_at(rows.len() / 2);
                self.search(one, first, now, until, found)?;
                self.search(other, first + one.len(), now, until, found)
            }
            Err(error) => Err(error),
        }
    }

    /// Also what the database would look at only with the commit.
    fn try_rows(&mut self, rows: &[NewRow], now: Time) -> Result<(), StoreError> {
        rows::insert(&mut self.db, &self.names, rows, now)?;
        match self.db.dialect {
            Dialect::Postgres => self.db.batch(&["SET CONSTRAINTS ALL IMMEDIATE", "SET CONSTRAINTS ALL DEFERRED"]),
            Dialect::Mariadb | Dialect::Sqlite => Ok(()),
        }
    }
}
