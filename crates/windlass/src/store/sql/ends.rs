//! The ends of runs: after the commit of a turn, because only then it is seen what others have committed.
//!
//! Two servers may settle the last two jobs of a run at once. Neither sees the other's before its own commit; the
//! later one to look does. The run's row is locked first and its jobs are looked for in a statement after that, so
//! that what was added meanwhile is seen; `ended_at` makes it once. An end that a crash kept from being written is
//! written by the next look.

use super::{SqlStore, StoreError};
use crate::store::keys::end_jobs;
use std::collections::BTreeMap;
use windlass_core::job::RunNo;
use windlass_core::time::Time;

impl SqlStore {
    /// Ends those of these runs that are over, in a transaction of its own, and tells of them.
    pub(super) fn end_runs(&mut self, touched: BTreeMap<RunNo, Time>) -> Result<(), StoreError> {
        let sealed = self.sealed_of(&touched)?;
        if sealed.is_empty() {
            return Ok(());
        }
        self.begin()?;
        let mut ended = false;
        for (no, now) in sealed {
            ended |= self.end_run(no, now)?;
        }
        if ended { self.write_turn() } else { self.drop_transaction() }
    }

    /// Those that could end at all: most touched runs are open, and need no lock.
    fn sealed_of(&mut self, touched: &BTreeMap<RunNo, Time>) -> Result<Vec<(RunNo, Time)>, StoreError> {
        if touched.is_empty() {
            return Ok(Vec::new());
        }
        let rows = super::dialect::Rows::default().ints("w_run", touched.keys().map(|no| i64::from(no.0)));
        let mut params = Vec::new();
        let source = self.db.dialect.rows(rows, &mut params);
        let sql = self.names.sql(&format!(
            "SELECT r.number FROM :runs AS r JOIN {source} ON r.number = t.w_run \
             WHERE r.sealed = 1 AND r.ended_at IS NULL AND NOT EXISTS \
             (SELECT 1 FROM :jobs AS j WHERE j.:run_no = r.number AND j.:state IN (0, 1, 2, 3, 4)) ORDER BY r.number"
        ));
        let found = self.db.query(&sql, &params)?;
        let numbers = found.into_iter().map(|mut row| Ok(RunNo(row.number()?)));
        let numbers = numbers.collect::<Result<Vec<_>, StoreError>>()?;
        Ok(numbers.into_iter().filter_map(|no| Some((no, *touched.get(&no)?))).collect())
    }

    fn end_run(&mut self, no: RunNo, now: Time) -> Result<bool, StoreError> {
        let number = i64::from(no.0);
        let lock = self.names.sql(&format!(
            "SELECT number FROM :runs WHERE number = $1 AND sealed = 1 AND ended_at IS NULL {}",
            self.db.dialect.for_update()
        ));
        if self.db.maybe_one(&lock, &[number.into()])?.is_none() {
            return Ok(false);
        }
        let sql = self.names.sql(
            "UPDATE :runs SET ended_at = $1 WHERE number = $2 AND ended_at IS NULL AND NOT EXISTS \
             (SELECT 1 FROM :jobs AS j WHERE j.:run_no = $2 AND j.:state IN (0, 1, 2, 3, 4))",
        );
        if self.db.execute(&sql, &[now.as_micros().into(), number.into()])? == 0 {
            return Ok(false);
        }
        let Some(run) = self.runs_where("WHERE number = $1", &[number.into()])?.pop() else { return Ok(false) };
        for new in end_jobs(&run) {
            self.admit_jobs(&new, None, now)?;
            self.flush(now)?;
        }
        self.open_runs.remove(&no);
        self.changes.ended.push(run);
        Ok(true)
    }

    /// Tells of runs that another server ended; who waits here for their end is to hear of it.
    pub(super) fn hear_of_ends(&mut self) -> Result<(), StoreError> {
        if self.open_runs.is_empty() {
            return Ok(());
        }
        let numbers: Vec<String> = self.open_runs.iter().map(|no| no.0.to_string()).collect();
        let condition = format!("WHERE ended_at IS NOT NULL AND number IN ({})", numbers.join(", "));
        for run in self.runs_where(&condition, &[])? {
            self.open_runs.remove(&run.no);
            self.changes.ended.push(run);
        }
        Ok(())
    }

    /// Sealed runs are looked at again after this turn: a crash may have left one without its end.
    pub(super) fn touch_sealed(&mut self, now: Time) -> Result<(), StoreError> {
        let sql = self.names.sql("SELECT number FROM :runs WHERE sealed = 1 AND ended_at IS NULL");
        for mut row in self.db.query(&sql, &[])? {
            self.touch(RunNo(row.number()?), now);
        }
        Ok(())
    }

    /// Every run that is over and was not ended: what a crash between a turn and its ends left behind.
    pub(super) fn end_all_runs(&mut self, now: Time) -> Result<(), StoreError> {
        self.touch_sealed(now)?;
        let open = std::mem::take(&mut self.work.touched);
        self.end_runs(open)
    }
}
