//! A job as a row: read, written and inserted, many at once.
//!
//! This file owns what each column means. Data that is text lies in the seed's `data`, so that everybody can read it;
//! what is not lies in `body`. It must not know why a row changes.

use super::columns::{Ids, Room};
use super::copy;
use super::database::{Cells, Database, Value};
use super::dialect::{Dialect, Rows};
use super::names::Names;
use crate::store::chunk::{Chunk, ChunkBuilder};
use crate::store::embedded::rows::{decode_errors, encode_errors};
use crate::store::{AttemptError, Held, JobInfo, Place, StoreError};
use std::sync::Arc;
use windlass_core::job::{
    Arrival, DATA_MAX, JobId, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record, RunId, RunNo,
};
use windlass_core::judge::Reason;
use windlass_core::life_cycle::State;
use windlass_core::particulars::{Particulars, Subject};
use windlass_core::suspicion;
use windlass_core::time::Time;

/// How many errors of a job are kept.
const ERRORS_MAX: usize = 10;
/// One statement inserts no more bytes, and no more rows.
const INSERT_BYTES: usize = 2 << 20;
const INSERT_ROWS: usize = 10_000;

/// Stands in `reason` of a row whose job another server has now: it is no reason to fail, and none has this number.
pub(super) const MOVED_AWAY: i64 = 100;

/// What is so of the row of such a job until it comes back; another try that somebody wrote is one of its own.
pub(super) fn is_away() -> String {
    format!("j.:state = 5 AND j.:status = 'completed' AND j.:reason = {MOVED_AWAY}")
}

/// The seed's word for a state.
pub(super) fn status(state: State) -> &'static str {
    match state {
        State::Scheduled | State::Ready | State::Retrying | State::Suspended => "pending",
        State::Running => "processing",
        State::Succeeded => "completed",
        State::Failed | State::Cancelled => "error",
    }
}

/// A job that is in the table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) arrival: Arrival,
    pub(super) id: JobId,
    pub(super) queue: QueueNo,
    pub(super) priority: Priority,
    pub(super) state: State,
    pub(super) run: Option<RunNo>,
    /// While it runs, its start is counted.
    pub(super) record: Record,
    pub(super) admitted: Time,
    /// When it becomes due; for those that failed, also their place in the lane of retries.
    pub(super) due: Option<Time>,
    pub(super) ended: Option<Time>,
    pub(super) reason: Option<Reason>,
    pub(super) errors: Vec<AttemptError>,
    pub(super) particulars: Option<Arc<Particulars>>,
    pub(super) data: Vec<u8>,
    /// What another program wrote into it that makes no sense, in words.
    pub(super) odd: Option<String>,
    /// What people read in `details`, where this turn says something.
    pub(super) details: Option<String>,
    /// Whole seconds of the last start, where this turn knows them.
    pub(super) duration: Option<i64>,
}

/// The columns of a row, in the order in which `read` takes them. A row that says nothing of its job's id is known by
/// its number, among the ids that the table gives out (`Dialect::own_identity`).
pub(super) const COLUMNS: &str = "j.:id, coalesce(j.:job_origin, (SELECT origin FROM :meta)), \
     coalesce(j.:job_offset, j.:id), j.:queue_no, j.:priority, j.:state, j.:run_no, j.:starts, \
     j.:failures, j.:suspicions, j.:admitted, j.:run_at, j.:ended_at, j.:reason, j.:last_errors, \
     j.:particulars, j.:data, j.:body";

impl Row {
    pub(super) fn read(cells: &mut Cells) -> Result<Row, StoreError> {
        let arrival = Arrival(cells.int()? as u64);
        let id = JobId { origin: Origin::from_random(cells.int()? as u64), offset: cells.int()? as u64 };
        let bad = |what: &str| StoreError::Corrupt(format!("{id} has {what}"));
        let queue = QueueNo(cells.number()?);
        let (priority, bad_priority) = priority_in(cells);
        let state = State::from_index(cells.number()?).ok_or_else(|| bad("an unknown state"))?;
        let run = cells.maybe_int()?.map(|no| RunNo(no as u32));
        let record = Record { starts: cells.number()?, failures: cells.number()?, suspicions: cells.number()? };
        let admitted = Time(cells.int()?);
        let ((due, bad_due), ended) = (time_in(cells), cells.maybe_int()?.map(Time));
        let reason = cells.maybe_int()?.filter(|at| *at != MOVED_AWAY).map(|at| Reason::ALL.get(at as usize).copied());
        let reason = reason.map(|reason| reason.ok_or_else(|| bad("an unknown reason"))).transpose()?;
        let errors = decode_errors(&cells.maybe_bytes()?.unwrap_or_default())?;
        let particulars = cells.maybe_bytes()?.map(|bytes| Particulars::decode(&bytes)).transpose();
        let particulars = particulars.map_err(|e| bad(&format!("bad particulars: {e:?}")))?.map(Arc::new);
        let (text, body) = (cells.maybe_bytes()?, cells.maybe_bytes()?);
        let mut data = body.or(text).unwrap_or_default();
        let too_long = (data.len() > DATA_MAX).then(|| too_long(data.len() as i64));
        if too_long.is_some() {
            // It is left where it is, and goes nowhere.
            data = Vec::new();
        }
        let (odd, details, duration) = (bad_priority.or(bad_due).or(too_long), None, None);
        Ok(Row {
            arrival,
            id,
            queue,
            priority,
            state,
            run,
            record,
            admitted,
            due,
            ended,
            reason,
            errors,
            particulars,
            data,
            odd,
            details,
            duration,
        })
    }

    pub(super) fn kind(&self) -> LaneKind {
        suspicion::lane_kind(self.record)
    }

    pub(super) fn lane(&self) -> Lane {
        Lane { queue: self.queue, priority: self.priority, kind: self.kind() }
    }

    pub(super) fn note_error(&mut self, at: Time, text: &str) {
        if self.errors.len() == ERRORS_MAX {
            self.errors.remove(0);
        }
        self.errors.push(AttemptError { start: self.record.starts, at, text: text.to_owned() });
        self.details = Some(text.to_owned());
    }

    /// What it waits for by a time: ready jobs that never failed stand by their arrival.
    fn stored_due(&self) -> Option<i64> {
        let placed = match self.state {
            State::Scheduled | State::Retrying => true,
            _ => self.kind() != LaneKind::Fresh,
        };
        self.due.filter(|_| placed).map(Time::as_micros)
    }

    /// A claim of this job alone; `record` is as it was before the start.
    pub(super) fn held(&self, record: Record) -> Held {
        let jobs = chunk_of(std::slice::from_ref(self));
        Held {
            place: Place::Row(self.arrival),
            lane: self.lane(),
            run: self.run,
            record,
            admitted: self.admitted,
            jobs: Arc::new(jobs),
            first: 0,
            count: 1,
        }
    }

    pub(super) fn info(self, queue: QueueName, run: Option<RunId>) -> JobInfo {
        let waits = matches!(self.state, State::Scheduled | State::Retrying);
        JobInfo {
            id: self.id,
            queue,
            priority: self.priority,
            kind: self.kind(),
            state: self.state,
            run,
            record: self.record,
            admitted: self.admitted,
            not_before: self.due.filter(|_| waits),
            ended: self.ended,
            reason: self.reason,
            errors: self.errors,
            particulars: self.particulars,
            data: self.data,
        }
    }
}

/// What is said of a row with more data than a job may have.
pub(super) fn too_long(bytes: i64) -> String {
    format!("the data has {bytes} bytes, expected at most {DATA_MAX}")
}

/// A priority as another program may have written it: the usual one where it makes no sense, and why.
pub(super) fn priority_in(cells: &mut Cells) -> (Priority, Option<String>) {
    let why = |got: String| format!("expected a priority between -100 and 100, got: {got}");
    match cells.maybe_foreign_int() {
        Ok(None) => (Priority::default(), None),
        Ok(Some(number)) => match Priority::new(number) {
            Some(priority) => (priority, None),
            None => (Priority::default(), Some(why(number.to_string()))),
        },
        Err(text) => (Priority::default(), Some(why(text))),
    }
}

/// The same for the time before which a job is not run.
pub(super) fn time_in(cells: &mut Cells) -> (Option<Time>, Option<String>) {
    match cells.maybe_foreign_int() {
        Ok(time) => (time.map(Time), None),
        Err(text) => (None, Some(format!("expected a time in microseconds since 1970 in `run_at`, got: {text}"))),
    }
}

/// Claimed rows that are neighbours in every way, as one claim. They have one origin and rising offsets.
pub(super) fn chunk_of(rows: &[Row]) -> Chunk {
    let origin = rows.first().map_or(Origin::from_random(0), |row| row.id.origin);
    let shared = rows.first().and_then(|row| row.particulars.as_deref()).cloned();
    let parents = shared.as_ref().is_some_and(|shared| shared.parent.is_some());
    let shared = shared.map(|shared| Arc::new(Particulars { parent: None, ..shared }));
    let mut builder = ChunkBuilder::new(origin).with(shared);
    for row in rows {
        match row.particulars.as_ref().and_then(|particulars| particulars.parent).filter(|_| parents) {
            Some(parent) => builder.push_from(parent, row.id.offset, &row.data),
            None => builder.push(row.id.offset, &row.data),
        }
    }
    builder.finish()
}

/// True where a row can lie in one chunk behind another.
pub(super) fn joins(before: &Row, row: &Row) -> bool {
    let like = |row: &Row| (row.id.origin, row.queue, row.priority, row.run, row.record, row.admitted);
    let parent = |row: &Row| row.particulars.as_ref().and_then(|particulars| particulars.parent);
    let parents = match (parent(before), parent(row)) {
        (Some(one), Some(other)) => one.origin == other.origin,
        (None, None) => true,
        _ => false,
    };
    let shared = || match (&before.particulars, &row.particulars) {
        (None, None) => true,
        (Some(one), Some(other)) => {
            Particulars { parent: None, ..(**one).clone() } == Particulars { parent: None, ..(**other).clone() }
        }
        _ => false,
    };
    like(before) == like(row) && before.id.offset < row.id.offset && parents && shared()
}

/// Rows by the ids of their jobs, in any order; locked where they are to be changed.
pub(super) fn by_ids(db: &mut Database, names: &Names, ids: &[JobId], lock: bool) -> Result<Vec<Row>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut params = Vec::new();
    let source = db.dialect.rows(identities(ids), &mut params);
    let lock = if lock { Lock::Wait.of(db.dialect) } else { "" };
    let sql = names.sql(&format!(
        "SELECT {COLUMNS} FROM {} WHERE j.:state <> 5 {lock}",
        db.dialect.found(":jobs", &source, &db.dialect.is_job("t.o", "t.f"))
    ));
    db.query(&sql, &params)?.iter_mut().map(Row::read).collect()
}

/// How the rows of a selection are locked, `j` among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    None,
    /// Who has one locked is waited for, for a moment.
    Wait,
    /// What others have locked is passed over.
    Free,
}

impl Lock {
    /// Only our table's rows are locked, not those of the statement.
    pub(super) fn of(self, dialect: Dialect) -> &'static str {
        match (self, dialect) {
            (Lock::None, _) | (_, Dialect::Sqlite) => "",
            (Lock::Wait, Dialect::Postgres) => "FOR UPDATE OF j",
            (Lock::Free, Dialect::Postgres) => "FOR UPDATE OF j SKIP LOCKED",
            (Lock::Wait, Dialect::Mariadb) => "FOR UPDATE",
            (Lock::Free, Dialect::Mariadb) => "FOR UPDATE SKIP LOCKED",
        }
    }
}

pub(super) fn identities(ids: &[JobId]) -> Rows {
    let rows = Rows::default().ints("o", ids.iter().map(|id| id.origin.bits() as i64));
    rows.ints("f", ids.iter().map(|id| id.offset as i64))
}

/// Who holds rows that run: an opening of the store, and how it is written in the seed's column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder<'a> {
    pub(super) epoch: u64,
    pub(super) lock: &'a str,
}

/// Each statement has its time limit, so none changes more rows than a slow database does in it.
pub(super) const ROWS_MOST: usize = 2_000;

/// Writes rows back.
pub(super) fn save(
    db: &mut Database,
    names: &Names,
    rows: &[Row],
    holder: Holder<'_>,
    now: Time,
) -> Result<(), StoreError> {
    rows.chunks(ROWS_MOST).try_for_each(|part| save_part(db, names, part, holder, now))
}

fn save_part(db: &mut Database, names: &Names, rows: &[Row], holder: Holder<'_>, now: Time) -> Result<(), StoreError> {
    let running = |row: &Row| row.state == State::Running;
    let of = Rows::default()
        .ints("w_id", rows.iter().map(|row| row.arrival.0 as i64))
        .ints("w_state", rows.iter().map(|row| row.state.index() as i64))
        .texts("w_status", rows.iter().map(|row| Some(status(row.state).to_owned())))
        .texts("w_lock", rows.iter().map(|row| Some(if running(row) { holder.lock } else { "" }.to_owned())))
        .maybe_ints("w_holder", rows.iter().map(|row| running(row).then_some(holder.epoch as i64)))
        .ints("w_priority", rows.iter().map(|row| i64::from(row.priority.value())))
        .ints("w_kind", rows.iter().map(|row| row.kind() as i64))
        .maybe_ints("w_run", rows.iter().map(|row| row.run.map(|run| i64::from(run.0))))
        .ints("w_starts", rows.iter().map(|row| i64::from(row.record.starts)))
        .ints("w_failures", rows.iter().map(|row| i64::from(row.record.failures)))
        .ints("w_suspicions", rows.iter().map(|row| i64::from(row.record.suspicions)))
        .maybe_ints("w_due", rows.iter().map(Row::stored_due))
        .maybe_ints("w_ended", rows.iter().map(|row| row.ended.map(Time::as_micros)))
        .maybe_ints("w_reason", rows.iter().map(|row| row.reason.map(|reason| reason as i64)))
        .blobs("w_errors", rows.iter().map(|row| encode_errors(&row.errors)))
        .texts("w_details", rows.iter().map(|row| row.details.as_deref().map(|text| db.room.details.cut(text))))
        .maybe_ints("w_duration", rows.iter().map(|row| row.duration));
    let mut params = vec![now.as_micros().into()];
    let source = db.dialect.rows(of, &mut params);
    let updated = db.dialect.timestamp("$1");
    let set = format!(
        ":state = t.w_state, :status = t.w_status, :locked_queue_id = t.w_lock, :holder = t.w_holder, \
         :priority = t.w_priority, :lane_kind = t.w_kind, :run_no = t.w_run, :starts = t.w_starts, \
         :attempts = t.w_starts, :failures = t.w_failures, :suspicions = t.w_suspicions, :run_at = t.w_due, \
         :ended_at = t.w_ended, :reason = t.w_reason, :last_errors = t.w_errors, \
         :details = coalesce(t.w_details, j.:details), :duration = coalesce(t.w_duration, j.:duration), \
         :updated_at = {updated}"
    );
    let sql = names.sql(&db.dialect.update_from(":jobs", &set, &source, "j.:id = t.w_id"));
    db.execute(&sql, &params).map(|_| ())
}

/// A job that is to become a row.
#[derive(Clone, Debug)]
pub(super) struct NewRow {
    pub(super) jobs: Arc<Chunk>,
    pub(super) index: usize,
    pub(super) queue: QueueNo,
    pub(super) name: Arc<str>,
    pub(super) priority: Priority,
    pub(super) state: State,
    pub(super) run: Option<RunNo>,
    pub(super) due: Option<Time>,
}

impl NewRow {
    pub(super) fn lane(&self) -> Lane {
        Lane { queue: self.queue, priority: self.priority, kind: LaneKind::Fresh }
    }
}

/// Inserts rows in their order, in as few statements as their size allows.
pub(super) fn insert(db: &mut Database, names: &Names, rows: &[NewRow], now: Time) -> Result<(), StoreError> {
    let (mut rest, mut count) = (rows, 0);
    let mut bytes = 0;
    for (at, row) in rows.iter().enumerate() {
        bytes += row.jobs.data(row.index).len() + 64;
        count += 1;
        if bytes >= INSERT_BYTES || count >= INSERT_ROWS || at + 1 == rows.len() {
            let (some, others) = rest.split_at(count);
            insert_some(db, names, some, now)?;
            (rest, count, bytes) = (others, 0, 0);
        }
    }
    Ok(())
}

/// The columns that an insert fills, and those of the statement's rows that fill them.
const INSERTED: &str = ":name, :data, :body, :status, :locked_queue_id, :attempts, :created_at, :updated_at, \
     :priority, :run_at, :state, :queue_no, :lane_kind, :run_no, :job_origin, :job_offset, \
     :admitted, :particulars, :start_by, :finish_by";

fn insert_some(db: &mut Database, names: &Names, rows: &[NewRow], now: Time) -> Result<(), StoreError> {
    if db.copies && rows.len() >= copy::LEAST {
        let (sql, text) = copy::statement(names, &db.room, rows, now);
        return db.copy(&sql, text);
    }
    let dialect = db.dialect;
    let (source, about) = (values_of(db, rows), subjects_of(db, rows));
    let mut params: Vec<Value> = vec![now.as_micros().into()];
    let (rows_of, time) = (dialect.rows(source, &mut params), dialect.timestamp("$1"));
    let (about, subjects) = about;
    let sql = names.sql(&format!(
        "INSERT INTO :jobs ({INSERTED}{about}) SELECT t.w_name, t.w_data, t.w_body, 'pending', '', 0, {time}, {time}, \
         t.w_priority, t.w_due, t.w_state, t.w_queue, 0, t.w_run, t.w_origin, t.w_offset, $1, t.w_particulars, \
         t.w_start_by, t.w_finish_by{subjects} FROM {rows_of} ORDER BY t.n"
    ));
    db.execute(&sql, &params).map(|_| ())
}

/// The application's columns may be of any kind; most jobs have nothing to say in them.
fn subjects_of(db: &Database, rows: &[NewRow]) -> (&'static str, &'static str) {
    let subject = |row: &NewRow| row.jobs.particulars_of(row.index).is_some_and(|of| of.subject.is_some());
    match rows.iter().any(subject) {
        true if db.room.subject_id == Ids::None => (", :taskable_type", ", t.w_subject_type"),
        true => (", :taskable_type, :taskable_id", ", t.w_subject_type, t.w_subject"),
        false => ("", ""),
    }
}

/// Jobs that come back to the rows that they once left: each row is that of its job again, and its starts go on being
/// counted, so that no end of an earlier start can be one of a later. How many rows were theirs is told.
pub(super) fn revive(db: &mut Database, names: &Names, rows: &[NewRow], now: Time) -> Result<u64, StoreError> {
    let mut revived = 0;
    for part in rows.chunks(ROWS_MOST) {
        let mut params: Vec<Value> = vec![now.as_micros().into()];
        let source = values_of(db, part);
        let (source, time) = (db.dialect.rows(source, &mut params), db.dialect.timestamp("$1"));
        let set = format!(
            ":name = t.w_name, :data = t.w_data, :body = t.w_body, :status = 'pending', :locked_queue_id = '', \
             :updated_at = {time}, :priority = t.w_priority, :run_at = t.w_due, :state = t.w_state, \
             :queue_no = t.w_queue, :lane_kind = 0, :run_no = NULL, :holder = NULL, :failures = 0, :suspicions = 0, \
             :admitted = $1, :ended_at = NULL, :reason = NULL, :last_errors = NULL, :particulars = t.w_particulars, \
             :start_by = t.w_start_by, :finish_by = t.w_finish_by, :details = {ERASED}"
        );
        let matching = format!("{} AND {}", db.dialect.is_job("t.w_origin", "t.w_offset"), is_away());
        let sql = names.sql(&db.dialect.update_from(":jobs", &set, &source, &matching));
        revived += db.execute(&sql, &params)?;
    }
    Ok(revived)
}

/// What people read of an earlier start is no detail of a later one. The column may be one that is never null.
pub(super) const ERASED: &str = "substr(j.:details, 1, 0)";

/// New rows as rows of a statement.
fn values_of(db: &Database, rows: &[NewRow]) -> Rows {
    let room = &db.room;
    let particulars: Vec<_> = rows.iter().map(|row| row.jobs.particulars_of(row.index)).collect();
    let of = |at: usize| particulars[at].as_deref();
    let data = |row: &NewRow| split_data(room, row.jobs.data(row.index));
    let subject = |at: usize| of(at).and_then(|of| of.subject.as_ref());
    let places = 0..rows.len();
    let micros = |time: Option<Time>| time.map(Time::as_micros);
    let source = Rows::default()
        .ints("w_origin", rows.iter().map(|row| row.jobs.origin().bits() as i64))
        .ints("w_offset", rows.iter().map(|row| row.jobs.id(row.index).offset as i64))
        .texts("w_name", rows.iter().map(|row| Some(room.name.cut(&row.name))))
        .ints("w_queue", rows.iter().map(|row| i64::from(row.queue.0)))
        .ints("w_priority", rows.iter().map(|row| i64::from(row.priority.value())))
        .ints("w_state", rows.iter().map(|row| row.state.index() as i64))
        .maybe_ints("w_run", rows.iter().map(|row| row.run.map(|run| i64::from(run.0))))
        .maybe_ints("w_due", rows.iter().map(|row| micros(row.due)))
        .texts("w_data", rows.iter().map(|row| data(row).0))
        .blobs("w_body", rows.iter().map(|row| data(row).1))
        .blobs("w_particulars", places.clone().map(|at| of(at).map(encode_particulars)))
        .maybe_ints("w_start_by", places.clone().map(|at| micros(of(at).and_then(|of| of.start_by))))
        .maybe_ints("w_finish_by", places.clone().map(|at| micros(of(at).and_then(|of| of.finish_by))))
        .texts("w_subject_type", places.clone().map(|at| subject(at).map(|of| room.subject_type.cut(&of.kind))));
    let id = |at| subject(at).and_then(|subject| subject_id(room, subject));
    match &room.subject_id {
        Ids::Numbers(_) => source.maybe_ints("w_subject", places.map(|at| id(at).and_then(|id| id.parse().ok()))),
        Ids::Texts(_) | Ids::None => source.texts("w_subject", places.map(id)),
    }
}

/// Data as text where it is one that everybody can read, else as bytes.
fn split_data(room: &Room, data: &[u8]) -> (Option<String>, Option<Vec<u8>>) {
    match std::str::from_utf8(data).ok().filter(|text| room.data.takes(text)) {
        Some(text) => (Some(text.to_owned()), None),
        None => (None, Some(data.to_vec())),
    }
}

pub(super) fn encode_particulars(particulars: &Particulars) -> Vec<u8> {
    let mut bytes = Vec::new();
    particulars.encode(&mut bytes);
    bytes
}

/// The record that a job is about, as its column can hold it; the job's particulars have it in any case.
pub(super) fn subject_id(room: &Room, subject: &Subject) -> Option<String> {
    match &room.subject_id {
        Ids::None => None,
        Ids::Numbers(range) => subject.id.parse().ok().filter(|id| range.contains(id)).map(|id: i64| id.to_string()),
        Ids::Texts(holds) => Some(subject.id.clone()).filter(|id| holds.takes(id)),
    }
}
