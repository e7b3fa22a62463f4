//! Single jobs off the common path: retrying, failed, cancelled, suspended, given back, re-prioritised.
//!
//! A job is either a mark in its chunk or a row here, never both: whoever makes a row has marked the job gone. Each row
//! has a checksum, written with every change and checked whenever the row is read, so that a damaged one is said to be
//! damaged and never handed out. This file owns the row's columns, its sum and its errors. It must not change counters.

use super::super::chunk::{Chunk, ChunkBuilder};
use super::super::{AttemptError, Held, Place, StoreError};
use super::part::Head;
use super::schema::{corrupt, failed};
use super::sums::{NONE, sum};
use super::wire::{Reader, Writer};
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::{Arc, LazyLock};
use windlass_core::job::{Arrival, JobId, Lane, LaneKind, Origin, Priority, QueueNo, Record, RunNo};
use windlass_core::judge::Reason;
use windlass_core::life_cycle::State;
use windlass_core::suspicion;
use windlass_core::time::Time;

/// How many errors a job keeps.
const ERRORS_KEPT: usize = 10;

pub(super) const COLUMNS: &str = "arrival, origin, offset, queue, rank, state, run, starts, failures, suspicions, due, \
                                  placed, admitted, ended, reason, turn, sum, errors, data";

/// How much of a row is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Whole,
    /// All but its data.
    Light,
    /// A row of format 2, which has no sum yet.
    Unsummed,
}

/// One job as a row.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) arrival: u64,
    pub(super) id: JobId,
    pub(super) queue: QueueNo,
    pub(super) priority: Priority,
    pub(super) state: State,
    pub(super) run: Option<RunNo>,
    pub(super) record: Record,
    /// When a scheduled or retrying job becomes ready.
    pub(super) due: Option<Time>,
    /// Its place in its lane: the arrival of fresh jobs, the due time of others.
    pub(super) placed: i64,
    pub(super) admitted: Time,
    pub(super) ended: Option<Time>,
    pub(super) reason: Option<Reason>,
    /// The last turn that settled it: the row stays until the archive has that turn.
    pub(super) turn: u64,
    pub(super) errors: Vec<AttemptError>,
    pub(super) data: Vec<u8>,
    /// The sum of what never changes, the data included. It stays with a row that is held without its data.
    pub(super) body: u32,
}

impl Row {
    /// A job of a chunk, about to leave it.
    pub(super) fn from_chunk(head: &Head, jobs: &Chunk, index: usize, state: State) -> Row {
        let (arrival, id, data) = (head.first + index as u64, jobs.id(index), jobs.data(index));
        Row {
            arrival,
            id,
            queue: head.lane.queue,
            priority: head.lane.priority,
            state,
            run: head.run,
            record: Record::default(),
            due: head.due,
            placed: arrival as i64,
            admitted: head.admitted,
            ended: None,
            reason: None,
            turn: 0,
            errors: Vec::new(),
            data: data.to_vec(),
            body: body_sum(id, head.lane.queue, head.admitted, data),
        }
    }

    /// The stored checksum: the sum of what never changes above, and below the sum of everything else and of that one.
    /// So it can be written anew, and all but the data be checked, without the data.
    fn sum(&self, errors: &[u8]) -> i64 {
        let time = |time: Option<Time>| time.map_or(NONE, Time::as_micros);
        let rest = [
            self.arrival as i64,
            rank(self.priority),
            self.state.index() as i64,
            self.run.map_or(NONE, |run| i64::from(run.0)),
            i64::from(self.record.starts),
            i64::from(self.record.failures),
            i64::from(self.record.suspicions),
            time(self.due),
            self.placed,
            time(self.ended),
            self.reason.map_or(NONE, |reason| reason_number(reason) as i64),
            self.turn as i64,
            i64::from(self.body),
        ];
        i64::from(self.body) << 32 | i64::from(sum(rest, errors))
    }

    /// The same for a row whose errors are not at hand as bytes.
    fn new_sum(&self) -> i64 {
        self.sum(encode_errors(&self.errors).as_deref().unwrap_or_default())
    }

    pub(super) fn lane(&self) -> Lane {
        Lane { queue: self.queue, priority: self.priority, kind: self.kind() }
    }

    pub(super) fn kind(&self) -> LaneKind {
        suspicion::lane_kind(self.record)
    }

    /// Makes it ready, in its place: fresh jobs by arrival, others by time.
    pub(super) fn make_ready(&mut self, at: Time) {
        self.state = State::Ready;
        self.placed = match self.kind() {
            LaneKind::Fresh => self.arrival as i64,
            LaneKind::Retry | LaneKind::Suspect => self.due.unwrap_or(at).as_micros(),
        };
        self.due = None;
        self.ended = None;
        self.reason = None;
    }

    /// Adds what went wrong in its latest start; the last ten are kept.
    pub(super) fn add_error(&mut self, at: Time, text: String) {
        self.errors.push(AttemptError { start: self.record.starts, at, text });
        let surplus = self.errors.len().saturating_sub(ERRORS_KEPT);
        self.errors.drain(..surplus);
    }

    /// This job as a claim of one; its record is as it was before the start that is stored with the claim.
    pub(super) fn held(&self, before: Record) -> Held {
        Held {
            place: Place::Row(Arrival(self.arrival)),
            lane: Lane { queue: self.queue, priority: self.priority, kind: suspicion::lane_kind(before) },
            run: self.run,
            record: before,
            admitted: self.admitted,
            jobs: alone(self.id, &self.data),
            first: 0,
            count: 1,
        }
    }

    pub(super) fn insert(&self, db: &Connection) -> Result<(), StoreError> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            format!(
                "INSERT INTO job ({COLUMNS}, kind) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, \
                 ?14, ?15, ?16, ?17, ?18, ?19, ?20)"
            )
        });
        let errors = encode_errors(&self.errors);
        let mut statement = db.prepare_cached(&SQL).map_err(failed)?;
        let done = statement.execute(params![
            self.arrival,
            self.id.origin.bits(),
            self.id.offset,
            self.queue.0,
            rank(self.priority),
            self.state.index(),
            self.run.map(|run| run.0),
            self.record.starts,
            self.record.failures,
            self.record.suspicions,
            self.due.map(Time::as_micros),
            self.placed,
            self.admitted.as_micros(),
            self.ended.map(Time::as_micros),
            self.reason.map(reason_number),
            self.turn,
            self.sum(errors.as_deref().unwrap_or_default()),
            errors,
            self.data,
            self.kind() as i64,
        ]);
        done.map_err(failed).map(|_| ())
    }

    /// Writes everything that can change.
    pub(super) fn update(&self, db: &Connection) -> Result<(), StoreError> {
        let sql = "UPDATE job SET rank = ?2, kind = ?3, state = ?4, starts = ?5, failures = ?6, suspicions = ?7, \
                   due = ?8, placed = ?9, ended = ?10, reason = ?11, turn = ?12, errors = ?13, run = ?14, sum = ?15 \
                   WHERE arrival = ?1";
        let errors = encode_errors(&self.errors);
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let done = statement.execute(params![
            self.arrival,
            rank(self.priority),
            self.kind() as i64,
            self.state.index(),
            self.record.starts,
            self.record.failures,
            self.record.suspicions,
            self.due.map(Time::as_micros),
            self.placed,
            self.ended.map(Time::as_micros),
            self.reason.map(reason_number),
            self.turn,
            errors,
            self.run.map(|run| run.0),
            self.sum(errors.as_deref().unwrap_or_default()),
        ]);
        done.map_err(failed).map(|_| ())
    }

    /// Writes that it began: its state and its start.
    pub(super) fn update_claimed(&self, db: &Connection) -> Result<(), StoreError> {
        let sql = "UPDATE job SET state = ?2, starts = ?3, sum = ?4 WHERE arrival = ?1";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let key = params![self.arrival, self.state.index(), self.record.starts, self.new_sum()];
        statement.execute(key).map_err(failed).map(|_| ())
    }

    /// Writes that its time has come: its state and its place.
    pub(super) fn update_released(&self, db: &Connection) -> Result<(), StoreError> {
        let sql = "UPDATE job SET state = ?2, placed = ?3, due = NULL, sum = ?4 WHERE arrival = ?1";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let key = params![self.arrival, self.state.index(), self.placed, self.new_sum()];
        statement.execute(key).map_err(failed).map(|_| ())
    }

    /// Writes that it was deleted: as a job that succeeded it stays for the archive only, and no index may find it.
    pub(super) fn update_over(self, db: &Connection, turn: u64) -> Result<(), StoreError> {
        let over = Row { state: State::Succeeded, turn, due: None, ended: None, ..self };
        let sql = "UPDATE job SET state = ?2, turn = ?3, due = NULL, ended = NULL, sum = ?4 WHERE arrival = ?1";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let key = params![over.arrival, over.state.index(), turn, over.new_sum()];
        statement.execute(key).map_err(failed).map(|_| ())
    }

    /// Writes that it succeeded; it stays for the archive only, so nothing else of it matters any more.
    pub(super) fn update_succeeded(&self, db: &Connection) -> Result<(), StoreError> {
        let sql = "UPDATE job SET state = ?2, turn = ?3, sum = ?4 WHERE arrival = ?1";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let key = params![self.arrival, self.state.index(), self.turn, self.new_sum()];
        statement.execute(key).map_err(failed).map(|_| ())
    }

    pub(super) fn read(row: &rusqlite::Row<'_>) -> Result<Row, StoreError> {
        read_row(row, Read::Whole).map_err(failed)?
    }
}

fn read_row(r: &rusqlite::Row<'_>, read: Read) -> rusqlite::Result<Result<Row, StoreError>> {
    let (state, reason): (usize, Option<usize>) = (r.get(5)?, r.get(14)?);
    let priority = Priority::new(-r.get::<_, i64>(4)?);
    let (Some(state), Some(priority)) = (State::from_index(state), priority) else {
        return Ok(Err(corrupt(format!("job {} has an unknown state or priority", r.get::<_, i64>(0)?))));
    };
    let reason = match reason.map(|number| Reason::ALL.get(number).copied()) {
        Some(None) => return Ok(Err(corrupt(format!("job {} has an unknown reason", r.get::<_, i64>(0)?)))),
        Some(Some(reason)) => Some(reason),
        None => None,
    };
    let stored_errors = r.get_ref(17)?.as_blob_or_null()?.unwrap_or_default();
    let errors = match decode_errors(stored_errors) {
        Ok(errors) => errors,
        Err(error) => return Ok(Err(error)),
    };
    let stored: i64 = if read == Read::Unsummed { 0 } else { r.get(16)? };
    let mut row = Row {
        arrival: r.get(0)?,
        id: JobId { origin: Origin::from_random(r.get(1)?), offset: r.get(2)? },
        queue: QueueNo(r.get(3)?),
        priority,
        state,
        run: r.get::<_, Option<u32>>(6)?.map(RunNo),
        record: Record { starts: r.get(7)?, failures: r.get(8)?, suspicions: r.get(9)? },
        due: r.get::<_, Option<i64>>(10)?.map(Time),
        placed: r.get(11)?,
        admitted: Time(r.get(12)?),
        ended: r.get::<_, Option<i64>>(13)?.map(Time),
        reason,
        turn: r.get(15)?,
        errors,
        data: r.get(18)?,
        body: (stored >> 32) as u32,
    };
    if read != Read::Light {
        row.body = body_sum(row.id, row.queue, row.admitted, &row.data);
    }
    if read != Read::Unsummed && row.sum(stored_errors) != stored {
        return Ok(Err(corrupt(format!("the row of job {} ({}) is not as it was stored", row.arrival, row.id))));
    }
    Ok(Ok(row))
}

/// The sum of what never changes in a row, but for its arrival.
fn body_sum(id: JobId, queue: QueueNo, admitted: Time, data: &[u8]) -> u32 {
    sum([id.origin.bits() as i64, id.offset as i64, i64::from(queue.0), admitted.as_micros()], data)
}

/// The row of a job by its arrival.
pub(super) fn by_arrival(db: &Connection, arrival: u64) -> Result<Option<Row>, StoreError> {
    static SQL: LazyLock<String> = LazyLock::new(|| format!("SELECT {COLUMNS} FROM job WHERE arrival = ?1"));
    one(db, &SQL, params![arrival])
}

/// The row of a job by its id.
pub(super) fn by_id(db: &Connection, id: JobId) -> Result<Option<Row>, StoreError> {
    static SQL: LazyLock<String> =
        LazyLock::new(|| format!("SELECT {COLUMNS} FROM job WHERE origin = ?1 AND offset = ?2"));
    let row = one(db, &SQL, params![id.origin.bits(), id.offset])?;
    // The index led there, and only the row has a sum.
    match row {
        Some(row) if row.id != id => Err(corrupt(format!("the index of ids has another job for {id}"))),
        row => Ok(row),
    }
}

fn one(db: &Connection, sql: &str, key: impl rusqlite::Params) -> Result<Option<Row>, StoreError> {
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    statement.query_row(key, |r| read_row(r, Read::Whole)).optional().map_err(failed)?.transpose()
}

/// The rows that a query with these columns and this key gives.
pub(super) fn many(db: &Connection, rest: &str, key: impl rusqlite::Params) -> Result<Vec<Row>, StoreError> {
    select(db, &format!("SELECT {COLUMNS} FROM job {rest}"), key, Read::Whole)
}

/// The same without their data, for what only changes their states; `update` does not write data.
pub(super) fn light(db: &Connection, rest: &str, key: impl rusqlite::Params) -> Result<Vec<Row>, StoreError> {
    let columns = COLUMNS.strip_suffix("data").unwrap_or(COLUMNS);
    select(db, &format!("SELECT {columns} x'' FROM job {rest}"), key, Read::Light)
}

fn select(db: &Connection, sql: &str, key: impl rusqlite::Params, read: Read) -> Result<Vec<Row>, StoreError> {
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let mut rows = statement.query(key).map_err(failed)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        found.push(read_row(row, read).map_err(failed)??);
    }
    Ok(found)
}

/// An index has no sum: what it led to must be what was looked for.
pub(super) fn expect(rows: Vec<Row>, what: &str, fits: impl Fn(&Row) -> bool) -> Result<Vec<Row>, StoreError> {
    match rows.iter().find(|row| !fits(row)) {
        Some(row) => Err(corrupt(format!("the index of {what} jobs has job {}, which is none", row.arrival))),
        None => Ok(rows),
    }
}

/// Gives the rows of an older format their sums, a thousand at a time.
pub(super) fn add_sums(db: &Connection) -> Result<(), StoreError> {
    let mut from = 0;
    loop {
        let sql = format!("SELECT {COLUMNS} FROM job WHERE arrival >= ?1 ORDER BY arrival LIMIT 1000");
        let rows = select(db, &sql, [from], Read::Unsummed)?;
        let Some(last) = rows.last() else { return Ok(()) };
        from = last.arrival + 1;
        for row in &rows {
            row.update(db)?;
        }
    }
}

pub(super) fn delete(db: &Connection, arrival: u64) -> Result<(), StoreError> {
    let mut statement = db.prepare_cached("DELETE FROM job WHERE arrival = ?1").map_err(failed)?;
    statement.execute([arrival]).map_err(failed)?;
    Ok(())
}

/// A chunk of one, made for a job that left its chunk.
fn alone(id: JobId, data: &[u8]) -> Arc<Chunk> {
    let mut builder = ChunkBuilder::new(id.origin);
    builder.push(id.offset, data);
    Arc::new(builder.finish())
}

/// Priorities are stored negated, so that the best comes first in an index.
pub(super) fn rank(priority: Priority) -> i64 {
    -i64::from(priority.value())
}

pub(super) fn reason_number(reason: Reason) -> usize {
    reason as usize
}

fn encode_errors(errors: &[AttemptError]) -> Option<Vec<u8>> {
    if errors.is_empty() {
        return None;
    }
    let mut writer = Writer::begin();
    for error in errors {
        writer.number(u64::from(error.start));
        writer.signed(error.at.as_micros());
        writer.text(&error.text);
    }
    Some(writer.finish())
}

fn decode_errors(bytes: &[u8]) -> Result<Vec<AttemptError>, StoreError> {
    let mut errors = Vec::new();
    if bytes.is_empty() {
        return Ok(errors);
    }
    let mut reader = Reader::open(bytes, "a job's list of errors")?;
    while !reader.is_done() {
        errors.push(AttemptError { start: reader.small()?, at: Time(reader.signed()?), text: reader.text()? });
    }
    Ok(errors)
}
