//! After an opening: takes back what this server held before, and what dead servers hold, and suspects the jobs that
//! had begun. What a worker elsewhere has stays claimed, by this opening from now on.
//!
//! Who is dead is said by the database's clock. Of another machine's jobs nothing is known here, so they had begun.

use super::rows::{COLUMNS, Lock, Row};
use super::settle::obey;
use super::tally::Was;
use super::{SqlStore, StoreError};
use crate::store::{Durability, Evidence, FollowUp, Recovered, Settlement, Store, Told};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::{Change, State};
use windlass_core::outcome::Outcome;
use windlass_core::suspicion::{self, Ruling};
use windlass_core::time::Time;

impl SqlStore {
    pub(super) fn recover_once(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        self.write_what_was_set_aside(now)?;
        let recovered = self.recover_all(evidence, now)?;
        self.commit(Durability::Full)?;
        self.end_all_runs(now)?;
        Ok(recovered)
    }

    fn recover_all(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        self.begin()?;
        // Only now it can be told which of our jobs are on their way elsewhere: who has our row locked is waited for.
        let lock = match self.sends_jobs(&self.options.server.clone())? {
            true => self.db.dialect.for_update(),
            false => self.db.dialect.skip_locked(),
        };
        let (own, others) = self.buried(lock)?;
        let mut recovered = Recovered::default();
        let mut follow_ups = Vec::new();
        for (epochs, ours) in [(own, true), (others, false)] {
            for row in self.rows_held_by(&epochs)? {
                let told = if ours { evidence } else { unknown(evidence.convicted) };
                follow_ups.extend(self.take_back(row, told, now, &mut recovered)?);
            }
        }
        self.flush(now)?;
        self.admit_follow_ups(&follow_ups, now)?;
        self.end_waits(now)?;
        self.name_moved_queues()?;
        Ok(recovered)
    }

    /// What the dead hold, for whoever looks; tells how many jobs that were. An earlier opening of this server is among
    /// them where somebody had its row locked when this one began, and so is one that had gone from the list before.
    pub(super) fn take_over(&mut self, convicted: Told<'_>, now: Time) -> Result<u64, StoreError> {
        self.buried(self.db.dialect.skip_locked())?;
        let dead = self.unlisted()?;
        let (mut recovered, mut follow_ups) = (Recovered::default(), Vec::new());
        let evidence = unknown(convicted);
        for row in self.rows_held_by(&dead)? {
            follow_ups.extend(self.take_back(row, evidence, now, &mut recovered)?);
        }
        self.flush(now)?;
        self.admit_follow_ups(&follow_ups, now)?;
        self.end_waits(now)?;
        Ok(recovered.repeated + recovered.convicted)
    }

    /// Openings that hold jobs and are not on the list of the living, though nobody took their jobs back. None of them
    /// comes back: an opening is listed before it holds anything, and its number is given out once.
    fn unlisted(&mut self) -> Result<Vec<u64>, StoreError> {
        let sql = self.names.sql(
            "SELECT DISTINCT j.:holder FROM :jobs AS j WHERE j.:holder IS NOT NULL AND j.:state = 2 \
             AND NOT EXISTS (SELECT 1 FROM :servers AS s WHERE s.epoch = j.:holder)",
        );
        self.db.query(&sql, &[])?.into_iter().map(|mut row| Ok(row.int()? as u64)).collect()
    }

    fn rows_held_by(&mut self, epochs: &[u64]) -> Result<Vec<Row>, StoreError> {
        if epochs.is_empty() {
            return Ok(Vec::new());
        }
        let rows = super::dialect::Rows::default().ints("w_epoch", epochs.iter().map(|epoch| *epoch as i64));
        let mut params = Vec::new();
        let source = self.db.dialect.rows(rows, &mut params);
        let sql = self.names.sql(&format!(
            "SELECT {COLUMNS} FROM {} WHERE j.:state = 2 AND j.:status = 'processing' ORDER BY j.:id {}",
            self.db.dialect.found(":jobs", &source, "j.:holder = t.w_epoch"),
            Lock::Free.of(self.db.dialect)
        ));
        self.db.query(&sql, &params)?.iter_mut().map(Row::read).collect()
    }

    fn take_back(
        &mut self,
        mut row: Row,
        evidence: Evidence<'_>,
        now: Time,
        recovered: &mut Recovered,
    ) -> Result<Vec<FollowUp>, StoreError> {
        let (was, starts) = (Was::of(&row), row.record.starts);
        if (evidence.elsewhere)(row.id, starts) {
            self.save(&row);
            return Ok(Vec::new());
        }
        self.list_times_again(&row)?;
        if !(evidence.begun)(row.id, starts) {
            row.record.starts -= 1;
            recovered.returned += 1;
            self.transit(was, &mut row, Change::Interrupt, now)?;
            return Ok(Vec::new());
        }
        let held = SqlStore::held_of(&row);
        let ruling = match evidence.same_boot {
            true => suspicion::suspect(&mut row.record, now),
            false => Ruling::Ready(suspicion::lane_kind(row.record)),
        };
        let error = format!("{} servers died while it ran", row.record.suspicions);
        let change = obey(&mut row, ruling, now, &error);
        if change != Change::Fail {
            recovered.repeated += 1;
            self.note_due(row.due.filter(|_| change == Change::Retry));
            self.transit(was, &mut row, change, now)?;
            return Ok(Vec::new());
        }
        recovered.convicted += 1;
        row.ended = Some(now);
        self.transit(was, &mut row, change, now)?;
        let verdict = Verdict::Fail { reason: Reason::Poison, error };
        // Nobody is left who knows when it started.
        let outcome = Outcome::Lost.word();
        self.note_outcome(&Settlement { held, verdict, outcome, started: now, finished: now });
        self.said_of(row, evidence.convicted)
    }

    /// What is to be taken in with the end of a job that has failed.
    pub(super) fn said_of(&mut self, row: Row, told: Told<'_>) -> Result<Vec<FollowUp>, StoreError> {
        debug_assert_eq!(row.state, State::Failed);
        let (no, queue) = (row.run, self.queue_name(row.queue)?);
        let run = match no {
            Some(no) => self.runs_where("WHERE number = $1", &[i64::from(no.0).into()])?.pop().map(|run| run.id),
            None => None,
        };
        Ok(told(&row.info(queue, run), no))
    }
}

/// What can be said of another machine's jobs: they had begun, and nobody has them.
fn unknown(convicted: Told<'_>) -> Evidence<'_> {
    Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted }
}
