//! Runs: made, joined, sealed, stopped and counted.
//!
//! How many of a run's jobs live is asked of the rows, when somebody asks; what has ended is the sum of the servers'
//! counters. A row of a run is locked by whoever adds to it, so that nobody ends it meanwhile.

use super::database::{Cells, Value};
use super::{SqlStore, StoreError};
use crate::store::embedded::runs::{decode_seal, encode_seal};
use crate::store::{NewRun, RunInfo, Seal, Taken};
use std::collections::HashMap;
use windlass_core::job::{Origin, RunId, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::run::RunCounts;
use windlass_core::run::terms::{RunTerms, Stopped};
use windlass_core::time::Time;

const COLUMNS: &str = "number, origin, generation, name, spec, terms, sealed, stopped, taken_lines, taken_hash, \
     seal_after, created, ended_at";

/// A run as its row has it; `counts` lacks what the rows of jobs say.
fn read(row: &mut Cells) -> Result<RunInfo, StoreError> {
    let no = RunNo(row.number()?);
    let id = RunId { origin: Origin::from_random(row.int()? as u64), generation: row.number()? };
    let (name, spec) = (row.text()?, row.maybe_bytes()?.unwrap_or_default());
    let terms = RunTerms::decode(&row.maybe_bytes()?.unwrap_or_default());
    let terms = terms.ok_or_else(|| StoreError::Corrupt(format!("{id} has terms that cannot be read")))?;
    let sealed = row.int()? != 0;
    let stopped = row.maybe_int()?.and_then(|at| Stopped::ALL.get(at as usize).copied());
    let taken = Taken { lines: row.int()? as u64, hash: row.int()? as u64 };
    let seal_after = decode_seal(row.maybe_bytes()?.as_deref())?;
    let (created, ended_at) = (Time(row.int()?), row.maybe_int()?.map(Time));
    let counts = RunCounts { sealed, stopped, ended: ended_at.is_some(), ..RunCounts::default() };
    Ok(RunInfo { no, id, name, spec, terms, counts, taken, seal_after, created, ended_at })
}

/// Runs that a condition names, with their counts.
pub(super) fn load(
    db: &mut super::Database,
    names: &super::Names,
    condition: &str,
    params: &[Value],
) -> Result<Vec<RunInfo>, StoreError> {
    let sql = names.sql(&format!("SELECT {COLUMNS} FROM :runs {condition}"));
    let mut runs = db.query(&sql, params)?.iter_mut().map(read).collect::<Result<Vec<_>, _>>()?;
    if runs.is_empty() {
        return Ok(runs);
    }
    let places: HashMap<RunNo, usize> = runs.iter().enumerate().map(|(at, run)| (run.no, at)).collect();
    let numbers = super::dialect::Rows::default().ints("w_run", runs.iter().map(|run| i64::from(run.no.0)));
    let mut params = Vec::new();
    let source = db.dialect.rows(numbers, &mut params);
    let live = names.sql(&format!(
        "SELECT j.:run_no, j.:state, count(*) FROM :jobs AS j JOIN {source} ON j.:run_no = t.w_run \
         WHERE j.:state IN (0, 1, 2, 3, 4) GROUP BY j.:run_no, j.:state"
    ));
    for mut row in db.query(&live, &params)? {
        let (no, state, count) = (RunNo(row.number()?), State::from_index(row.number()?), row.int()? as u64);
        if let (Some(at), Some(state)) = (places.get(&no), state) {
            runs[*at].counts.by_state[state.index()] = count;
        }
    }
    let sum = |column: &str| db.dialect.integer(&format!("sum(c.{column})"));
    let ended = names.sql(&format!(
        "SELECT c.run, {}, {}, {}, {} FROM :run_counts AS c JOIN {source} ON c.run = t.w_run GROUP BY c.run",
        sum("succeeded"),
        sum("failed"),
        sum("cancelled"),
        sum("dropped")
    ));
    for mut row in db.query(&ended, &params)? {
        let Some(at) = places.get(&RunNo(row.number()?)) else { continue };
        let counts = &mut runs[*at].counts;
        for state in super::tally::ENDS {
            counts.by_state[state.index()] = u64::try_from(row.int()?).unwrap_or(0);
        }
        counts.dropped = u64::try_from(row.int()?).unwrap_or(0);
    }
    Ok(runs)
}

impl SqlStore {
    /// Runs with their counts, as the open turn has them.
    pub(super) fn runs_where(&mut self, condition: &str, params: &[Value]) -> Result<Vec<RunInfo>, StoreError> {
        self.flush_run_deltas()?;
        load(&mut self.db, &self.names, condition, params)
    }

    pub(super) fn run_of(&mut self, id: RunId) -> Result<Option<RunInfo>, StoreError> {
        let params = [(id.origin.bits() as i64).into(), i64::from(id.generation).into()];
        Ok(self.runs_where("WHERE origin = $1 AND generation = $2", &params)?.pop())
    }

    pub(super) fn make_run(&mut self, id: RunId, run: &NewRun, sealed: bool, now: Time) -> Result<RunNo, StoreError> {
        self.begin()?;
        self.written = true;
        let sql = self.names.sql(
            "INSERT INTO :runs (origin, generation, name, spec, terms, sealed, taken_lines, taken_hash, created) \
             VALUES ($1, $2, $3, $4, $5, $6, 0, 0, $7)",
        );
        let params = [
            (id.origin.bits() as i64).into(),
            i64::from(id.generation).into(),
            run.name.as_str().into(),
            run.spec.clone().into(),
            run.terms.encode().into(),
            i64::from(sealed).into(),
            now.as_micros().into(),
        ];
        self.db.execute(&sql, &params)?;
        let made = self.run_of(id)?;
        let made = made.ok_or_else(|| StoreError::Corrupt(format!("{id} was made and is not there")))?;
        let no = made.no;
        self.changes.runs.push(made);
        self.open_runs.insert(no);
        self.touch(no, now);
        Ok(no)
    }

    /// The run that a job added from outside joins: the one named while it is open, else its youngest living
    /// generation, else a new one. Later generations are sealed from the start and take what comes until they end.
    pub(super) fn joined_run(&mut self, id: RunId, now: Time) -> Result<RunNo, StoreError> {
        self.begin()?;
        let lock = self.db.dialect.for_share();
        let params = [(id.origin.bits() as i64).into(), i64::from(id.generation).into()];
        let sql = self
            .names
            .sql(&format!("SELECT number FROM :runs WHERE origin = $1 AND generation = $2 AND sealed = 0 {lock}"));
        if let Some(mut row) = self.db.maybe_one(&sql, &params)? {
            return Ok(RunNo(row.number()?));
        }
        let Some(newest) = self.newest_generation(id, lock)? else {
            return self.make_run(id, &NewRun::default(), false, now);
        };
        if self.takes_late_jobs(&newest) {
            return Ok(newest.no);
        }
        let RunInfo { id, name, spec, terms, .. } = newest.next_generation();
        self.make_run(id, &NewRun { name, spec, terms }, true, now)
    }

    /// The run that a job would join, or the next generation as it would begin; another server may be faster.
    pub(super) fn run_to_join(&mut self, id: RunId) -> Result<Option<RunInfo>, StoreError> {
        let named = self.run_of(id)?.filter(|run| !run.counts.sealed);
        let newest = if named.is_none() { self.newest_generation(id, "")? } else { None };
        let late = |newest: RunInfo| if self.takes_late_jobs(&newest) { newest } else { newest.next_generation() };
        Ok(named.or_else(|| newest.map(late)))
    }

    fn newest_generation(&mut self, id: RunId, lock: &str) -> Result<Option<RunInfo>, StoreError> {
        let newest = format!("WHERE origin = $1 ORDER BY generation DESC LIMIT 1 {lock}");
        Ok(self.runs_where(&newest, &[(id.origin.bits() as i64).into()])?.pop())
    }

    /// One whose last job has ended is over, also while nobody has written it down.
    fn takes_late_jobs(&self, run: &RunInfo) -> bool {
        let unsaved = || self.work.inserts.iter().any(|row| row.run == Some(run.no));
        run.takes_late_jobs() && (run.counts.live() > 0 || unsaved())
    }

    /// A run that is over takes nothing back, also where its end is not written yet.
    pub(super) fn is_over(&mut self, no: RunNo, now: Time) -> Result<Option<RunId>, StoreError> {
        self.flush(now)?;
        let run = self.runs_where("WHERE number = $1", &[i64::from(no.0).into()])?.pop();
        let over = |run: &RunInfo| run.counts.ended || run.counts.sealed && run.counts.live() == 0;
        Ok(run.filter(over).map(|run| run.id))
    }

    /// How many more jobs a run takes; any number where nobody set a limit.
    pub(super) fn room_in(&mut self, no: RunNo) -> Result<Option<u64>, StoreError> {
        let sql = self.names.sql("SELECT terms, stopped FROM :runs WHERE number = $1");
        let Some(mut row) = self.db.maybe_one(&sql, &[i64::from(no.0).into()])? else { return Ok(None) };
        let limited = RunTerms::decode(&row.maybe_bytes()?.unwrap_or_default()).is_some_and(|t| t.job_limit.is_some());
        if !limited && row.maybe_int()?.is_none() {
            return Ok(None);
        }
        self.flush(Time::ZERO)?;
        let lock = format!("WHERE number = $1 {}", self.db.dialect.for_update());
        let run = self.runs_where(&lock, &[i64::from(no.0).into()])?.pop();
        Ok(run.and_then(|run| run.terms.room(&run.counts)))
    }

    /// Notes what the seal waits for; a run that has nothing else is made, so that its end can be told.
    pub(super) fn seal(&mut self, seal: &Seal, now: Time) -> Result<(), StoreError> {
        let no = match self.run_of(seal.run)? {
            Some(run) if run.counts.sealed => {
                self.touch(run.no, now);
                return Ok(());
            }
            Some(run) => run.no,
            None => self.make_run(seal.run, &NewRun::default(), false, now)?,
        };
        let before = self.run_of(seal.run)?.map(|run| run.seal_after).unwrap_or_default();
        let sealed = seal.after.is_empty();
        let after = if sealed { Vec::new() } else { [before, seal.after.clone()].concat() };
        self.write_seal(no, sealed, &after, now)
    }

    fn write_seal(&mut self, no: RunNo, sealed: bool, after: &[(Origin, u64)], now: Time) -> Result<(), StoreError> {
        self.begin()?;
        self.written = true;
        let sql = self.names.sql("UPDATE :runs SET sealed = $1, seal_after = $2 WHERE number = $3");
        self.db.execute(&sql, &[i64::from(sealed).into(), encode_seal(after).into(), i64::from(no.0).into()])?;
        self.touch(no, now);
        Ok(())
    }

    /// Drops the positions that were reached, or whose file was read to its end and removed; none left seals. Positions
    /// in another server's inbox are that server's to look at.
    pub(super) fn look_at_seals(&mut self, now: Time) -> Result<(), StoreError> {
        let waiting = self.runs_where("WHERE sealed = 0 AND seal_after IS NOT NULL", &[])?;
        if waiting.is_empty() {
            return Ok(());
        }
        let cursors: HashMap<Origin, (u64, bool)> = self.all_cursors()?;
        for run in waiting {
            let mut after = run.seal_after.clone();
            after.retain(|(origin, offset)| {
                let reached = cursors.get(origin).is_some_and(|(at, closed)| *closed || at >= offset);
                !reached
            });
            if after.len() < run.seal_after.len() {
                self.write_seal(run.no, after.is_empty(), &after, now)?;
            }
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, no: RunNo, why: Stopped, now: Time) -> Result<(), StoreError> {
        self.begin()?;
        self.written = true;
        let at = Stopped::ALL.iter().position(|known| *known == why).map(|at| at as i64);
        let sql = self
            .names
            .sql("UPDATE :runs SET stopped = $1, sealed = 1, seal_after = NULL WHERE number = $2 AND ended_at IS NULL");
        self.db.execute(&sql, &[at.into(), i64::from(no.0).into()])?;
        self.touch(no, now);
        Ok(())
    }

    pub(super) fn take(&mut self, id: RunId, to: Taken) -> Result<(), StoreError> {
        self.begin()?;
        self.written = true;
        let sql =
            self.names.sql("UPDATE :runs SET taken_lines = $1, taken_hash = $2 WHERE origin = $3 AND generation = $4");
        let params = [
            (to.lines as i64).into(),
            (to.hash as i64).into(),
            (id.origin.bits() as i64).into(),
            i64::from(id.generation).into(),
        ];
        self.db.execute(&sql, &params).map(|_| ())
    }
}
