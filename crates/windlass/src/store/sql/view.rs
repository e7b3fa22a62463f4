//! What everyone but the engine sees: the committed state, on a connection of its own.

use super::database::{Cells, Database, Value};
use super::names::Names;
use super::rows::{COLUMNS, Row};
use super::{SqlOptions, StoreError, notes, runs, servers, tally, travel};
use crate::store::{Cursor, Filter, Gone, JobInfo, Page, QueueInfo, QueueStats, RunInfo, ServerInfo, StoreView};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use windlass_core::job::{Arrival, JobId, Origin, QueueName, QueueNo, RunId};
use windlass_core::life_cycle::State;
use windlass_core::overrides::Override;

/// A read-only look at the table. A connection that broke is opened again by the next question.
#[derive(Debug)]
pub struct SqlView {
    db: Mutex<Database>,
    names: Names,
    options: SqlOptions,
}

impl SqlView {
    pub fn open(options: SqlOptions) -> Result<SqlView, StoreError> {
        let (db, names) = (options.connect()?, options.names()?);
        Ok(SqlView { db: Mutex::new(db), names, options })
    }

    fn ask<T>(&self, question: impl FnOnce(&mut Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        // Nobody waits behind another's question for an answer that is known.
        if let Some(away) = self.options.pace.refusal() {
            return Err(away);
        }
        let mut db: MutexGuard<'_, _> = self.db.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        db.reconnect()?;
        question(&mut db)
    }
}

/// Jobs with the names of their queues and runs, by a condition on `j`.
pub(super) fn infos(
    db: &mut Database,
    names: &Names,
    condition: &str,
    params: &[Value],
) -> Result<Vec<(Arrival, JobInfo)>, StoreError> {
    let sql = names.sql(&format!(
        "SELECT (SELECT q.name FROM :queues AS q WHERE q.number = j.:queue_no), \
         (SELECT r.origin FROM :runs AS r WHERE r.number = j.:run_no), \
         (SELECT r.generation FROM :runs AS r WHERE r.number = j.:run_no), {COLUMNS} FROM :jobs AS j {condition}"
    ));
    db.query(&sql, params)?.iter_mut().map(info).collect()
}

fn info(cells: &mut Cells) -> Result<(Arrival, JobInfo), StoreError> {
    let queue = cells.text()?;
    let (origin, generation) = (cells.maybe_int()?, cells.maybe_int()?);
    let row = Row::read(cells)?;
    let queue = QueueName::new(queue.as_bytes()).map_err(|e| StoreError::Corrupt(format!("queue {queue}: {e}")))?;
    let run = origin.zip(generation).map(|(origin, generation)| RunId {
        origin: Origin::from_random(origin as u64),
        generation: generation as u32,
    });
    Ok((row.arrival, row.info(queue, run)))
}

/// How many jobs wait and run, by queue, priority, kind and state. Each part has an index of just its rows.
pub(super) fn live(db: &mut Database, names: &Names) -> Result<Vec<[i64; 5]>, StoreError> {
    let part = |rows: &str| {
        // A priority that makes no sense is no lane: the next look marks its row.
        format!(
            "SELECT :queue_no, :priority, :lane_kind, :state, count(*) FROM :jobs WHERE {rows} \
             AND :priority BETWEEN -100 AND 100 \
             GROUP BY :queue_no, :priority, :lane_kind, :state"
        )
    };
    let parts = [
        part(":state = 1 AND :status = 'pending'"),
        part(":state IN (0, 3, 4) AND :status = 'pending'"),
        part(":holder IS NOT NULL AND :state = 2 AND :status = 'processing'"),
    ];
    let sql = names.sql(&parts.join(" UNION ALL "));
    let read = db.query(&sql, &[])?.into_iter().map(|mut row| {
        let (queue, priority, kind, state) = (row.int()?, row.int()?, row.int()?, row.int()?);
        Ok([queue, priority, kind, state, row.int()?])
    });
    read.collect()
}

impl StoreView for SqlView {
    fn job(&self, id: JobId) -> Result<Option<JobInfo>, StoreError> {
        let params = [(id.origin.bits() as i64).into(), (id.offset as i64).into()];
        let condition = format!("WHERE {} AND j.:state <> 5", self.names.dialect.is_job("$1", "$2"));
        let found = self.ask(|db| infos(db, &self.names, &condition, &params))?;
        Ok(found.into_iter().next().map(|(_, info)| info))
    }

    fn may_hold(&self, first: JobId, last: JobId) -> Result<bool, StoreError> {
        let (Ok(from), Ok(to)) = (i64::try_from(first.offset), i64::try_from(last.offset)) else { return Ok(true) };
        if first.origin != last.origin {
            return Ok(true);
        }
        let sql = "SELECT 1 FROM :jobs WHERE :job_origin = $1 AND :job_offset BETWEEN $2 AND $3 \
             UNION ALL SELECT 1 FROM :jobs AS j CROSS JOIN :meta AS m WHERE m.origin = $1 AND j.:id BETWEEN $2 AND $3 \
             AND j.:job_origin IS NULL AND j.:state IS NOT NULL LIMIT 1";
        let params = [(first.origin.bits() as i64).into(), from.into(), to.into()];
        Ok(self.ask(|db| db.maybe_one(&self.names.sql(sql), &params))?.is_some())
    }

    fn gone(&self, ids: &[JobId]) -> Result<Vec<(JobId, Gone)>, StoreError> {
        self.ask(|db| travel::gone(db, &self.names, ids))
    }

    fn list(&self, filter: &Filter, from: Arrival, limit: usize) -> Result<Page, StoreError> {
        let all = State::ALL.into_iter().filter(|state| *state != State::Succeeded);
        let wanted = all.filter(|state| filter.states.is_empty() || filter.states.contains(state));
        let states: Vec<String> = wanted.map(|state| state.index().to_string()).collect();
        if states.is_empty() {
            return Ok(Page::default());
        }
        let mut params: Vec<Value> = vec![(from.0 as i64).into(), i64::try_from(limit + 1).unwrap_or(i64::MAX).into()];
        let mut condition = format!("WHERE j.:id >= $1 AND j.:state IN ({})", states.join(", "));
        if !filter.queues.is_empty() {
            let names = filter.queues.iter().map(|name| {
                params.push(name.as_str().into());
                format!("${}", params.len())
            });
            let names = names.collect::<Vec<_>>().join(", ");
            condition += &format!(" AND j.:queue_no IN (SELECT number FROM :queues WHERE name IN ({names}))");
        }
        if let Some(run) = filter.run {
            params.extend([(run.origin.bits() as i64).into(), i64::from(run.generation).into()]);
            let (origin, generation) = (params.len() - 1, params.len());
            condition += &format!(
                " AND j.:run_no IN (SELECT number FROM :runs WHERE origin = ${origin} AND generation = ${generation})"
            );
        }
        condition += " ORDER BY j.:id LIMIT $2";
        let mut found = self.ask(|db| infos(db, &self.names, &condition, &params))?;
        let next = (found.len() > limit).then(|| found[limit].0);
        found.truncate(limit);
        Ok(Page { jobs: found.into_iter().map(|(_, info)| info).collect(), next })
    }

    fn queues(&self) -> Result<Vec<QueueInfo>, StoreError> {
        self.ask(|db| {
            let sum = |column: &str| db.dialect.integer(&format!("coalesce(sum(c.{column}), 0)"));
            let sums = ["succeeded", "failed", "cancelled", "started", "waited", "ran"].map(sum).join(", ");
            let sql = self.names.sql(&format!(
                "SELECT q.number, q.name, {sums} FROM :queues AS q LEFT JOIN :queue_counts AS c ON c.queue = q.number \
                 GROUP BY q.number, q.name ORDER BY q.number"
            ));
            let mut found: BTreeMap<i64, (QueueName, QueueStats)> = BTreeMap::new();
            for mut row in db.query(&sql, &[])? {
                let (no, name) = (row.int()?, row.text()?);
                let bad = |e| StoreError::Corrupt(format!("queue {name}: {e}"));
                let name = QueueName::new(name.as_bytes()).map_err(bad)?;
                let ended = [row.int()?, row.int()?, row.int()?];
                found.insert(no, (name, tally::stats(ended, [row.int()?, row.int()?, row.int()?])));
            }
            for [queue, _, _, state, count] in live(db, &self.names)? {
                if let (Some((_, stats)), Some(state)) = (found.get_mut(&queue), State::from_index(state as usize)) {
                    stats.by_state[state.index()] += count as u64;
                }
            }
            let infos = found.into_iter();
            Ok(infos.map(|(no, (name, stats))| QueueInfo { no: QueueNo(no as u32), name, stats }).collect())
        })
    }

    fn run(&self, id: RunId) -> Result<Option<RunInfo>, StoreError> {
        let params = [(id.origin.bits() as i64).into(), i64::from(id.generation).into()];
        let condition = "WHERE origin = $1 AND generation = $2";
        Ok(self.ask(|db| runs::load(db, &self.names, condition, &params))?.pop())
    }

    fn runs(&self, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        // The youngest first: those are what people ask for.
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.ask(|db| runs::load(db, &self.names, "ORDER BY number DESC LIMIT $1", &[limit.into()]))
    }

    fn cursors(&self) -> Result<Vec<Cursor>, StoreError> {
        let sql = self
            .names
            .sql("SELECT origin, file_offset, tail FROM :cursors WHERE server = $1 AND closed = 0 ORDER BY origin");
        let rows = self.ask(|db| db.query(&sql, &[self.options.server.as_str().into()]))?;
        let read = rows.into_iter().map(|mut row| {
            let origin = Origin::from_random(row.int()? as u64);
            Ok(Cursor { origin, offset: row.int()? as u64, tail: row.number()? })
        });
        read.collect()
    }

    fn overrides(&self) -> Result<Vec<Override>, StoreError> {
        self.ask(|db| notes::overrides(db, &self.names))
    }

    fn servers(&self) -> Result<Vec<ServerInfo>, StoreError> {
        self.ask(|db| servers::list(db, &self.names))
    }
}
