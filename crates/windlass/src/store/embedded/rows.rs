//! Single jobs off the common path: retrying, failed, cancelled, suspended, given back, re-prioritised.
//!
//! A job is either a mark in its chunk or a row here, never both: whoever makes a row has marked the job gone. This
//! file owns the row's columns and its errors. It must not change counters.

use super::super::chunk::{Chunk, ChunkBuilder};
use super::super::{AttemptError, Held, Place, StoreError};
use super::part::Head;
use super::schema::{corrupt, failed};
use super::wire::{Reader, Writer};
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::{Arc, LazyLock};
use windlass_core::job::{Arrival, JobId, Lane, LaneKind, Origin, Priority, QueueNo, Record, RunNo};
use windlass_core::judge::Reason;
use windlass_core::life_cycle::State;
use windlass_core::particulars::{Particulars, Unique};
use windlass_core::suspicion;
use windlass_core::time::Time;

/// How many errors a job keeps.
const ERRORS_KEPT: usize = 10;

pub(super) const COLUMNS: &str = "arrival, origin, offset, queue, rank, state, run, starts, failures, suspicions, due, \
                                  placed, admitted, ended, reason, turn, errors, particulars, sum, data";

/// All columns of a row, the kind among them.
const COLUMN_COUNT: usize = 21;
/// So many new rows go with one statement: to open the table and its indexes costs as much as a row.
const TOGETHER: usize = 16;

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
    pub(super) particulars: Option<Arc<Particulars>>,
    pub(super) data: Vec<u8>,
}

impl Row {
    pub(super) fn unique(&self) -> Option<&Unique> {
        self.particulars.as_ref().and_then(|particulars| particulars.unique.as_ref())
    }

    /// A job of a chunk, about to leave it.
    pub(super) fn from_chunk(head: &Head, jobs: &Chunk, index: usize, state: State) -> Row {
        let arrival = head.first + index as u64;
        Row {
            arrival,
            id: jobs.id(index),
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
            particulars: jobs.particulars_of(index),
            data: jobs.data(index).to_vec(),
        }
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
            jobs: alone(self.id, self.particulars.clone(), &self.data),
            first: 0,
            count: 1,
        }
    }

    pub(super) fn insert(&self, db: &Connection) -> Result<(), StoreError> {
        insert_all(db, std::slice::from_ref(self))
    }

    /// Gives a statement the values of all columns, from this parameter on.
    fn bind(&self, to: &mut rusqlite::Statement<'_>, from: usize) -> rusqlite::Result<()> {
        let (errors, kind) = (encode_errors(&self.errors), self.kind() as i64);
        let particulars = self.particulars.as_deref().map(encode_particulars);
        let besides = particulars.as_deref().unwrap_or_default();
        let values: [&dyn rusqlite::ToSql; COLUMN_COUNT] = [
            &self.arrival,
            &self.id.origin.bits(),
            &self.id.offset,
            &self.queue.0,
            &rank(self.priority),
            &kind,
            &self.state.index(),
            &self.run.map(|run| run.0),
            &self.record.starts,
            &self.record.failures,
            &self.record.suspicions,
            &self.due.map(Time::as_micros),
            &self.placed,
            &self.admitted.as_micros(),
            &self.ended.map(Time::as_micros),
            &self.reason.map(reason_number),
            &self.turn,
            &errors,
            &self.data,
            &sum(self.id, self.queue, &self.data, besides),
            &particulars,
        ];
        values.iter().enumerate().try_for_each(|(at, value)| to.raw_bind_parameter(from + at, value))
    }

    /// Writes everything that can change.
    pub(super) fn update(&self, db: &Connection) -> Result<(), StoreError> {
        let sql = "UPDATE job SET rank = ?2, kind = ?3, state = ?4, starts = ?5, failures = ?6, suspicions = ?7, \
                   due = ?8, placed = ?9, ended = ?10, reason = ?11, turn = ?12, errors = ?13, run = ?14 \
                   WHERE arrival = ?1";
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
            encode_errors(&self.errors),
            self.run.map(|run| run.0),
        ]);
        done.map_err(failed).map(|_| ())
    }

    /// Writes that it was deleted: as a job that succeeded it stays for the archive only, and no index may find it.
    pub(super) fn update_over(&self, db: &Connection, turn: u64) -> Result<(), StoreError> {
        let sql = "UPDATE job SET state = ?2, turn = ?3, due = NULL, ended = NULL WHERE arrival = ?1";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let key = params![self.arrival, State::Succeeded.index(), turn];
        statement.execute(key).map_err(failed).map(|_| ())
    }

    pub(super) fn read(row: &rusqlite::Row<'_>) -> Result<Row, StoreError> {
        read_row(row).map_err(failed)?
    }
}

fn read_row(r: &rusqlite::Row<'_>) -> rusqlite::Result<Result<Row, StoreError>> {
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
    let errors = match decode_errors(r.get_ref(16)?.as_blob_or_null()?.unwrap_or_default()) {
        Ok(errors) => errors,
        Err(error) => return Ok(Err(error)),
    };
    let id = JobId { origin: Origin::from_random(r.get(1)?), offset: r.get(2)? };
    let (queue, data): (QueueNo, Vec<u8>) = (QueueNo(r.get(3)?), r.get(19)?);
    // Rows of format 2 have no sum.
    let besides = r.get_ref(17)?.as_blob_or_null()?;
    let found = |data: &[u8]| sum(id, queue, data, besides.unwrap_or_default());
    if r.get::<_, Option<u32>>(18)?.is_some_and(|stored| stored != found(&data)) {
        return Ok(Err(corrupt(format!("job {id} is not as it was stored"))));
    }
    let particulars = match besides.map(Particulars::decode) {
        Some(Err(bad)) => return Ok(Err(corrupt(format!("job {id}: {bad}")))),
        Some(Ok(particulars)) => Some(Arc::new(particulars)),
        None => None,
    };
    Ok(Ok(Row {
        arrival: r.get(0)?,
        id,
        queue,
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
        particulars,
        data,
    }))
}

/// Stores new rows.
pub(super) fn insert_all(db: &Connection, rows: &[Row]) -> Result<(), StoreError> {
    static ONE: LazyLock<String> = LazyLock::new(|| insertion(1));
    static MANY: LazyLock<String> = LazyLock::new(|| insertion(TOGETHER));
    for some in together(rows) {
        let sql: &str = if some.len() == TOGETHER { &MANY } else { &ONE };
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let bound = some.iter().enumerate().try_for_each(|(at, row)| row.bind(&mut statement, 1 + at * COLUMN_COUNT));
        bound.and_then(|()| statement.raw_execute()).map_err(failed)?;
    }
    Ok(())
}

fn insertion(rows: usize) -> String {
    let row = format!("({})", vec!["?"; COLUMN_COUNT].join(", "));
    // A statement that fails ends its turn, so what it did before need not be taken back by itself.
    format!("INSERT OR FAIL INTO job VALUES {}", vec![row.as_str(); rows].join(", "))
}

/// Writes the starts of rows.
pub(super) fn claim_all(db: &Connection, arrivals: &[u64]) -> Result<(), StoreError> {
    // What is due has just been released, and that was not written.
    let change = "UPDATE OR FAIL job SET state = 2, starts = starts + 1, placed = coalesce(due, placed), due = NULL";
    let changed = change_all(db, change, None, arrivals)?;
    all_were_there(changed, arrivals)
}

/// Writes that rows are ready: fresh jobs in the place of their arrival, others in that of their time.
pub(super) fn release_all(db: &Connection, arrivals: &[u64]) -> Result<(), StoreError> {
    let change = "UPDATE OR FAIL job SET state = 1, placed = CASE kind WHEN 0 THEN arrival ELSE due END, due = NULL";
    all_were_there(change_all(db, change, None, arrivals)?, arrivals)
}

/// Moves the times of rows that wait for another start; those of fresh jobs somebody has named.
pub(super) fn shift_waits(db: &Connection, by: i64) -> Result<(), StoreError> {
    let sql = "UPDATE job SET due = due + ?1 WHERE due IS NOT NULL AND starts > 0";
    db.prepare_cached(sql).and_then(|mut statement| statement.execute([by])).map_err(failed).map(|_| ())
}

/// Writes that rows succeeded in this turn; they stay for the archive only, so nothing else of them matters any more.
pub(super) fn succeed_all(db: &Connection, turn: u64, arrivals: &[u64]) -> Result<(), StoreError> {
    let changed = change_all(db, "UPDATE OR FAIL job SET state = 5, turn = ?", Some(turn), arrivals)?;
    all_were_there(changed, arrivals)
}

pub(super) fn delete_all(db: &Connection, arrivals: &[u64]) -> Result<(), StoreError> {
    change_all(db, "DELETE FROM job", None, arrivals).map(|_| ())
}

/// Does the same to rows, several with one statement; tells to how many. The change may have a value of its own.
fn change_all(db: &Connection, change: &str, value: Option<u64>, arrivals: &[u64]) -> Result<usize, StoreError> {
    let mut changed = 0;
    for some in together(arrivals) {
        let mut statement = db.prepare_cached(&format!("{change} {}", among(some))).map_err(failed)?;
        let values = value.iter().chain(some);
        changed += statement.execute(rusqlite::params_from_iter(values)).map_err(failed)?;
    }
    Ok(changed)
}

/// As many at once as one statement takes, then one by one, so that there are two statements for each purpose.
fn together<T>(all: &[T]) -> impl Iterator<Item = &[T]> {
    let many = all.chunks_exact(TOGETHER);
    let few = many.remainder().chunks(1);
    many.chain(few)
}

fn among(arrivals: &[u64]) -> String {
    format!("WHERE arrival IN ({})", vec!["?"; arrivals.len()].join(", "))
}

fn all_were_there(changed: usize, arrivals: &[u64]) -> Result<(), StoreError> {
    let missing = || corrupt(format!("{changed} of {} rows were there to be changed", arrivals.len()));
    if changed == arrivals.len() { Ok(()) } else { Err(missing()) }
}

/// The row of a job by its arrival.
pub(super) fn by_arrival(db: &Connection, arrival: u64) -> Result<Option<Row>, StoreError> {
    static SQL: LazyLock<String> = LazyLock::new(|| format!("SELECT {COLUMNS} FROM job WHERE arrival = ?1"));
    one(db, &SQL, params![arrival])
}

/// The rows of these jobs, in no order.
pub(super) fn by_arrivals(db: &Connection, arrivals: &[u64]) -> Result<Vec<Row>, StoreError> {
    let mut rows = Vec::with_capacity(arrivals.len());
    for some in together(arrivals) {
        rows.append(&mut many(db, &among(some), rusqlite::params_from_iter(some))?);
    }
    let missing = || corrupt(format!("{} of {} due rows are there", rows.len(), arrivals.len()));
    if rows.len() == arrivals.len() { Ok(rows) } else { Err(missing()) }
}

/// The row of a job by its id.
pub(super) fn by_id(db: &Connection, id: JobId) -> Result<Option<Row>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM job WHERE origin = ?1 AND offset = ?2");
    // The index led there, and only the row has a sum.
    match one(db, &sql, params![id.origin.bits(), id.offset])? {
        Some(row) if row.id != id => Err(corrupt(format!("the index of ids has another job for {id}"))),
        row => Ok(row),
    }
}

fn one(db: &Connection, sql: &str, key: impl rusqlite::Params) -> Result<Option<Row>, StoreError> {
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    statement.query_row(key, read_row).optional().map_err(failed)?.transpose()
}

/// The rows that a query with these columns and this key gives.
pub(super) fn many(db: &Connection, rest: &str, key: impl rusqlite::Params) -> Result<Vec<Row>, StoreError> {
    select(db, &format!("SELECT {COLUMNS} FROM job {rest}"), key)
}

/// The same without their data, for what only changes their states; `update` does not write data.
pub(super) fn light(db: &Connection, rest: &str, key: impl rusqlite::Params) -> Result<Vec<Row>, StoreError> {
    let columns = COLUMNS.strip_suffix("sum, data").unwrap_or(COLUMNS);
    select(db, &format!("SELECT {columns} NULL, x'' FROM job {rest}"), key)
}

fn select(db: &Connection, sql: &str, key: impl rusqlite::Params) -> Result<Vec<Row>, StoreError> {
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let mut rows = statement.query(key).map_err(failed)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        found.push(Row::read(row)?);
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

/// A chunk of one, made for a job that left its chunk.
fn alone(id: JobId, particulars: Option<Arc<Particulars>>, data: &[u8]) -> Arc<Chunk> {
    let mut builder = ChunkBuilder::new(id.origin).with(particulars);
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

/// The checksum of what never changes in a row.
fn sum(id: JobId, queue: QueueNo, data: &[u8], particulars: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&id.origin.bits().to_le_bytes());
    hasher.update(&id.offset.to_le_bytes());
    hasher.update(&queue.0.to_le_bytes());
    hasher.update(data);
    if !particulars.is_empty() {
        hasher.update(&data.len().to_le_bytes());
        hasher.update(particulars);
    }
    hasher.finalize()
}

fn encode_particulars(particulars: &Particulars) -> Vec<u8> {
    let mut bytes = Vec::new();
    particulars.encode(&mut bytes);
    bytes
}

pub(in crate::store) fn encode_errors(errors: &[AttemptError]) -> Option<Vec<u8>> {
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

pub(in crate::store) fn decode_errors(bytes: &[u8]) -> Result<Vec<AttemptError>, StoreError> {
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
