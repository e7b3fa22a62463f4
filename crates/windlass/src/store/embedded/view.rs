//! What pages, commands and metrics may see: the committed state, through a connection that can only read.
//!
//! Every call is one short snapshot with bounded work, copied out; nothing keeps a snapshot between calls, so that
//! readers do not make the log grow. It must not be used for decisions of the engine.

use super::super::{Cursor, Filter, JobInfo, Page, QueueInfo, RunInfo, StoreError, StoreView};
use super::bodies::Bodies;
use super::part::{Head, Mark};
use super::rows::{self, Row};
use super::schema::{self, failed};
use super::{chunks, runs, steer, strips, tally};
use crate::store::chunk::Chunk;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use windlass_core::job::{Arrival, JobId, Origin, QueueName, QueueNo, RunId, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::overrides::Override;

/// How many chunk heads, and how many rows, one page of a listing looks at.
const LOOKED_AT: usize = 1000;

/// A snapshot that refers to what is gone is taken again; damage is there each time.
const TRIES: u32 = 4;

/// A reader of the store; each has its own connection.
#[derive(Debug)]
pub struct View {
    db: Connection,
    bodies: Bodies,
}

impl View {
    /// Opens the store's file for reading; it must exist.
    pub fn open(path: &Path) -> Result<View, StoreError> {
        Ok(View { db: schema::open_reader(path)?, bodies: Bodies::beside(path) })
    }

    /// Runs one call inside one snapshot.
    fn snapshot<T>(&self, read: impl Fn(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut tries = TRIES;
        loop {
            let snapshot = self.db.unchecked_transaction().map_err(failed)?;
            let answer = read(&snapshot);
            snapshot.finish().map_err(failed)?;
            tries -= 1;
            // A body file goes when the store has forgotten what was in it; an older snapshot still refers to it.
            match answer {
                Err(StoreError::Corrupt(_)) if tries > 0 => {}
                answer => return answer,
            }
        }
    }
}

impl StoreView for View {
    fn job(&self, id: JobId) -> Result<Option<JobInfo>, StoreError> {
        self.snapshot(|db| {
            let mut names = Names::default();
            if let Some(row) = rows::by_id(db, id)? {
                return if row.state == State::Succeeded { Ok(None) } else { names.info(db, row).map(Some) };
            }
            let Some((head, jobs, index)) = chunks::find(db, &self.bodies, id)? else { return Ok(None) };
            let Some(state) = state_of(&head, strips::part_of(db, head)?.mark(index)) else { return Ok(None) };
            names.info(db, claimed(&head, &jobs, index, state)).map(Some)
        })
    }

    fn may_hold(&self, first: JobId, last: JobId) -> Result<bool, StoreError> {
        self.snapshot(|db| {
            let sql = "SELECT EXISTS (SELECT 1 FROM job WHERE origin = ?1 AND offset BETWEEN ?2 AND ?3) OR EXISTS \
                       (SELECT 1 FROM span WHERE origin = ?1 AND first_offset <= ?3 AND last_offset >= ?2)";
            let mut statement = db.prepare_cached(sql).map_err(failed)?;
            let range = params![first.origin.bits(), first.offset, last.offset];
            statement.query_row(range, |r| r.get(0)).map_err(failed)
        })
    }

    fn list(&self, filter: &Filter, from: Arrival, limit: usize) -> Result<Page, StoreError> {
        self.snapshot(|db| Listing::new(db, filter)?.page((db, &self.bodies), from.0, limit))
    }

    fn queues(&self) -> Result<Vec<QueueInfo>, StoreError> {
        self.snapshot(tally::infos)
    }

    fn run(&self, id: RunId) -> Result<Option<RunInfo>, StoreError> {
        self.snapshot(|db| runs::by_id(db, id))
    }

    fn runs(&self, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        self.snapshot(|db| runs::newest(db, limit))
    }

    fn cursors(&self) -> Result<Vec<Cursor>, StoreError> {
        self.snapshot(|db| {
            let sql = "SELECT origin, offset, tail FROM inbox WHERE closed IS NULL ORDER BY origin";
            let mut statement = db.prepare_cached(sql).map_err(failed)?;
            let cursors = statement.query_map([], |r| {
                Ok(Cursor { origin: Origin::from_random(r.get(0)?), offset: r.get(1)?, tail: r.get(2)? })
            });
            cursors.and_then(Iterator::collect).map_err(failed)
        })
    }

    fn overrides(&self) -> Result<Vec<Override>, StoreError> {
        self.snapshot(steer::overrides)
    }
}

/// Jobs of a run that have not ended, for the engine too: it looks each of them up again before it changes it.
pub(super) fn live_of(
    (db, bodies): Source<'_>,
    run: RunId,
    from: Arrival,
    limit: usize,
) -> Result<(Vec<JobId>, Option<Arrival>), StoreError> {
    let states = State::ALL.into_iter().filter(|state| !state.is_end()).collect();
    let filter = Filter { run: Some(run), states, queues: Vec::new() };
    let page = Listing::new(db, &filter)?.page((db, bodies), from.0, limit)?;
    Ok((page.jobs.into_iter().map(|job| job.id).collect(), page.next))
}

/// The state of a job that is still in its chunk.
fn state_of(head: &Head, mark: Mark) -> Option<State> {
    match mark {
        Mark::Gone => None,
        Mark::Claimed => Some(State::Running),
        Mark::Waiting if head.due.is_some() => Some(State::Scheduled),
        Mark::Waiting => Some(State::Ready),
    }
}

/// A job in its chunk, seen as a row: a claimed mark is its first start.
fn claimed(head: &Head, jobs: &Chunk, index: usize, state: State) -> Row {
    let mut row = Row::from_chunk(head, jobs, index, state);
    row.record.starts = u32::from(state == State::Running);
    row
}

/// Names of queues and runs by their numbers, fetched once per call.
#[derive(Default)]
pub(super) struct Names {
    queues: HashMap<u32, QueueName>,
    runs: HashMap<u32, Option<RunId>>,
}

impl Names {
    pub(super) fn info(&mut self, db: &Connection, row: Row) -> Result<JobInfo, StoreError> {
        let kind = row.kind();
        Ok(JobInfo {
            id: row.id,
            queue: self.queue(db, row.queue)?,
            priority: row.priority,
            kind,
            state: row.state,
            run: row.run.map(|no| self.run(db, no)).transpose()?.flatten(),
            record: row.record,
            admitted: row.admitted,
            not_before: row.due.filter(|due| *due != super::times::NEVER),
            ended: row.ended,
            reason: row.reason,
            errors: row.errors,
            particulars: row.particulars,
            data: row.data,
        })
    }

    fn queue(&mut self, db: &Connection, no: QueueNo) -> Result<QueueName, StoreError> {
        if let Some(name) = self.queues.get(&no.0) {
            return Ok(name.clone());
        }
        let name = tally::name_of(db, no)?;
        self.queues.insert(no.0, name.clone());
        Ok(name)
    }

    fn run(&mut self, db: &Connection, no: RunNo) -> Result<Option<RunId>, StoreError> {
        if let Some(id) = self.runs.get(&no.0) {
            return Ok(*id);
        }
        let id = runs::id_of(db, no)?;
        self.runs.insert(no.0, id);
        Ok(id)
    }
}

/// One snapshot, and where its bodies are.
pub(super) type Source<'a> = (&'a Connection, &'a Bodies);

/// A filter in the store's numbers; `None` means all.
struct Listing {
    queues: Option<HashSet<u32>>,
    states: Option<HashSet<State>>,
    /// `Some(None)` is a run that is not known: nothing matches.
    run: Option<Option<RunNo>>,
    names: Names,
}

impl Listing {
    fn new(db: &Connection, filter: &Filter) -> Result<Listing, StoreError> {
        let mut numbers = HashSet::new();
        let mut statement = db.prepare_cached("SELECT no FROM queue WHERE name = ?1").map_err(failed)?;
        for name in &filter.queues {
            numbers.extend(statement.query_row([name], |r| r.get::<_, u32>(0)).optional().map_err(failed)?);
        }
        let run = match filter.run {
            Some(id) => Some(runs::by_id(db, id)?.map(|run| run.no)),
            None => None,
        };
        let states = (!filter.states.is_empty()).then(|| filter.states.iter().copied().collect());
        let queues = (!filter.queues.is_empty()).then_some(numbers);
        Ok(Listing { queues, states, run, names: Names::default() })
    }

    fn wants(&self, queue: QueueNo, run: Option<RunNo>) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.contains(&queue.0))
            && self.run.is_none_or(|wanted| wanted.is_some() && wanted == run)
    }

    fn wants_state(&self, state: State) -> bool {
        self.states.as_ref().is_none_or(|states| states.contains(&state))
    }

    /// Jobs of chunks and rows in the order of their arrival, until the limit or the bound on work is reached.
    fn page(&mut self, (db, bodies): Source<'_>, from: u64, limit: usize) -> Result<Page, StoreError> {
        let (rows, rows_until) = self.rows(db, from, limit)?;
        let in_chunks = [State::Scheduled, State::Ready, State::Running].iter().any(|state| self.wants_state(*state));
        let (chunked, chunks_until) =
            if in_chunks { self.chunked((db, bodies), from, limit)? } else { (Vec::new(), None) };
        // Both parts are complete up to the lesser of the two ends.
        let until = match (rows_until, chunks_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let mut found: Vec<Row> = rows.into_iter().chain(chunked).collect();
        found.sort_by_key(|row| row.arrival);
        found.retain(|row| until.is_none_or(|until| row.arrival < until));
        let next = match found.get(limit) {
            Some(row) => Some(row.arrival),
            None => until,
        };
        found.truncate(limit);
        let jobs = found.into_iter().map(|row| self.names.info(db, row)).collect::<Result<_, _>>()?;
        Ok(Page { jobs, next: next.map(Arrival) })
    }

    /// Matching rows, and the arrival before which there are no others.
    fn rows(&self, db: &Connection, from: u64, limit: usize) -> Result<(Vec<Row>, Option<u64>), StoreError> {
        let sql = format!("SELECT {} FROM job WHERE arrival >= ?1 ORDER BY arrival LIMIT ?2", rows::COLUMNS);
        let mut statement = db.prepare_cached(&sql).map_err(failed)?;
        let mut rows = statement.query(params![from, LOOKED_AT]).map_err(failed)?;
        let (mut found, mut looked, mut last) = (Vec::new(), 0, from);
        while let Some(row) = rows.next().map_err(failed)? {
            let row = Row::read(row)?;
            (looked, last) = (looked + 1, row.arrival);
            if row.state != State::Succeeded && self.wants(row.queue, row.run) && self.wants_state(row.state) {
                found.push(row);
            }
            if found.len() > limit {
                return Ok((found, Some(last + 1)));
            }
        }
        Ok((found, (looked == LOOKED_AT).then_some(last + 1)))
    }

    /// Matching jobs that are still in chunks, and the arrival before which there are no others.
    fn chunked(
        &self,
        (db, bodies): Source<'_>,
        from: u64,
        limit: usize,
    ) -> Result<(Vec<Row>, Option<u64>), StoreError> {
        let begin = "SELECT coalesce(max(first), 0) FROM chunk WHERE first <= ?1";
        let begin: u64 = db.query_row(begin, [from], |r| r.get(0)).map_err(failed)?;
        let sql = format!("SELECT {} FROM chunk c WHERE c.first >= ?1 ORDER BY c.first LIMIT ?2", chunks::HEAD);
        let mut statement = db.prepare_cached(&sql).map_err(failed)?;
        let mut rows = statement.query(params![begin, LOOKED_AT]).map_err(failed)?;
        let (mut found, mut looked, mut last) = (Vec::new(), 0, from);
        while let Some(row) = rows.next().map_err(failed)? {
            let head = chunks::read_head(row)?;
            (looked, last) = (looked + 1, head.first + u64::from(head.count));
            if self.wants(head.lane.queue, head.run) {
                self.add_matching((db, bodies), head, from, &mut found)?;
            }
            if found.len() > limit {
                return Ok((found, Some(last)));
            }
        }
        Ok((found, (looked == LOOKED_AT).then_some(last)))
    }

    fn add_matching(
        &self,
        (db, bodies): Source<'_>,
        head: Head,
        from: u64,
        found: &mut Vec<Row>,
    ) -> Result<(), StoreError> {
        let part = strips::part_of(db, head)?;
        let wanted = |index: &usize| {
            head.first + *index as u64 >= from
                && state_of(&head, part.mark(*index)).is_some_and(|state| self.wants_state(state))
        };
        let wanted: Vec<usize> = (0..usize::from(head.count)).filter(wanted).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let Some((_, jobs)) = chunks::load(db, bodies, head.first)? else { return Ok(()) };
        for index in wanted {
            if let Some(state) = state_of(&head, part.mark(index)) {
                found.push(claimed(&head, &jobs, index, state));
            }
        }
        Ok(())
    }
}
