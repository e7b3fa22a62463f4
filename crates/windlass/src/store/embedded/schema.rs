//! The tables of the embedded store, format 5, and how its connections are opened.
//!
//! This file owns the SQL of the layout, the settings of every connection and the one table from SQLite's errors
//! to ours. The layout is explained in `docs/storage.md`. It must not know the verbs.

use super::super::StoreError;
use super::bodies;
use crate::data_dir::DataDir;
use crate::sabotage::{self, Sabotage};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use windlass_core::job::Origin;

/// The format this program writes and the newest it reads.
pub(super) const FORMAT: u32 = 6;
/// `Wndl`, so that tools and this program can tell the file from any other database.
const APPLICATION: u32 = 0x576e_646c;
/// Flood and lonely job both do well with it (measured: 4 KiB is slower in a flood, 64 KiB for a lonely job).
pub(super) const PAGE: u32 = 8192;
const CACHE_KIB: u32 = 16 << 10;

const TABLES: &str = "
CREATE TABLE state (
    id INTEGER PRIMARY KEY CHECK (id = 1), format INTEGER NOT NULL, epoch INTEGER NOT NULL, boot TEXT NOT NULL,
    next_arrival INTEGER NOT NULL, next_run INTEGER NOT NULL, turn INTEGER NOT NULL, parts INTEGER);
CREATE TABLE queue (no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, sum INTEGER);
CREATE TABLE tally (block INTEGER PRIMARY KEY, counts BLOB NOT NULL);
CREATE TABLE chunk (
    first INTEGER PRIMARY KEY, queue INTEGER NOT NULL, rank INTEGER NOT NULL, count INTEGER NOT NULL, run INTEGER,
    due INTEGER, admitted INTEGER NOT NULL, base INTEGER NOT NULL, last INTEGER NOT NULL,
    sum INTEGER, segment INTEGER, offset INTEGER, length INTEGER, bytes BLOB);
CREATE TABLE lane (
    queue INTEGER NOT NULL, rank INTEGER NOT NULL, first INTEGER NOT NULL,
    PRIMARY KEY (queue, rank, first)) WITHOUT ROWID;
CREATE TABLE due (due INTEGER NOT NULL, first INTEGER NOT NULL, PRIMARY KEY (due, first)) WITHOUT ROWID;
CREATE TABLE part (first INTEGER PRIMARY KEY, gone INTEGER, bits BLOB NOT NULL);
CREATE TABLE job (
    arrival INTEGER PRIMARY KEY, origin INTEGER NOT NULL, offset INTEGER NOT NULL, queue INTEGER NOT NULL,
    rank INTEGER NOT NULL, kind INTEGER NOT NULL, state INTEGER NOT NULL, run INTEGER, starts INTEGER NOT NULL,
    failures INTEGER NOT NULL, suspicions INTEGER NOT NULL, due INTEGER, placed INTEGER NOT NULL,
    admitted INTEGER NOT NULL, ended INTEGER, reason INTEGER, turn INTEGER NOT NULL, errors BLOB, data BLOB NOT NULL);
CREATE UNIQUE INDEX job_id ON job (origin, offset);
CREATE INDEX job_ready ON job (queue, rank, kind, placed) WHERE state = 1;
CREATE INDEX job_running ON job (arrival) WHERE state = 2;
CREATE INDEX job_due ON job (due) WHERE due IS NOT NULL;
CREATE INDEX job_ended ON job (ended) WHERE ended IS NOT NULL;
CREATE INDEX job_kept ON job (run) WHERE run IS NOT NULL AND ended IS NOT NULL;
CREATE TABLE run (
    no INTEGER PRIMARY KEY, origin INTEGER NOT NULL, generation INTEGER NOT NULL, name TEXT NOT NULL,
    spec BLOB NOT NULL, created INTEGER NOT NULL, sum INTEGER, UNIQUE (origin, generation));
CREATE TABLE progress (
    run INTEGER PRIMARY KEY, sealed INTEGER NOT NULL, seal_after BLOB, lines INTEGER NOT NULL, hash INTEGER NOT NULL,
    ended INTEGER, counts BLOB NOT NULL);
CREATE INDEX progress_open ON progress (run) WHERE ended IS NULL;
CREATE INDEX progress_ended ON progress (ended) WHERE ended IS NOT NULL;
CREATE TABLE inbox (origin INTEGER PRIMARY KEY, offset INTEGER NOT NULL, tail INTEGER NOT NULL, closed INTEGER);
CREATE TABLE span (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, origin INTEGER NOT NULL, first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL);
CREATE INDEX span_origin ON span (origin, first_offset);
CREATE TABLE turn (no INTEGER PRIMARY KEY, outcomes BLOB NOT NULL);
";

/// What format 2 has and format 1 had not.
const SINCE_2: &str = "
CREATE TABLE override (
    target TEXT NOT NULL, key TEXT NOT NULL, value INTEGER NOT NULL, made_by TEXT NOT NULL, since INTEGER NOT NULL,
    until INTEGER, reason TEXT NOT NULL, PRIMARY KEY (target, key)) WITHOUT ROWID;
CREATE TABLE note (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
";

/// What format 3 has and format 2 had not.
const SINCE_3: &str = "
CREATE TABLE body (
    no INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, size INTEGER NOT NULL,
    live INTEGER NOT NULL);
ALTER TABLE job ADD COLUMN sum INTEGER;
";

/// What format 4 has and format 3 had not: checksums of names, heads and runs, and the number of chunks that have
/// marks. What was stored before has no checksum, and is believed. A new store has them in front of what may be long.
const SINCE_4: &str = "
ALTER TABLE state ADD COLUMN parts INTEGER;
UPDATE state SET parts = (SELECT count(*) FROM part);
ALTER TABLE queue ADD COLUMN sum INTEGER;
ALTER TABLE chunk ADD COLUMN sum INTEGER;
ALTER TABLE run ADD COLUMN sum INTEGER;
";

/// What format 4 adds to a new store and to an older one alike.
const BESIDE_4: &str = "
ALTER TABLE job ADD COLUMN particulars BLOB;
ALTER TABLE run ADD COLUMN terms BLOB;
CREATE TABLE unique_key (
    scope INTEGER NOT NULL, of INTEGER NOT NULL, hash BLOB NOT NULL, origin INTEGER NOT NULL, offset INTEGER NOT NULL,
    sum INTEGER NOT NULL, PRIMARY KEY (scope, of, hash)) WITHOUT ROWID;
CREATE TABLE expiry (
    at INTEGER NOT NULL, first INTEGER NOT NULL, to_begin INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (at, first, to_begin)) WITHOUT ROWID;
CREATE TABLE waits_for (
    origin INTEGER NOT NULL, offset INTEGER NOT NULL, first INTEGER NOT NULL,
    PRIMARY KEY (origin, offset, first)) WITHOUT ROWID;
CREATE INDEX waits_for_first ON waits_for (first);
";

/// What format 5 has and format 4 had not: bytes that copies share.
const SINCE_5: &str = "
CREATE TABLE shared (no INTEGER PRIMARY KEY, last INTEGER NOT NULL, bytes BLOB NOT NULL);
";

// Format 6 has no table that format 5 had not: a row of `part` may be a strip of several chunks.

/// The one row of small numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateRow {
    pub(super) next_arrival: u64,
    pub(super) next_run: u32,
    pub(super) turn: u64,
    /// The chunks that have marks.
    pub(super) parts: u64,
}

/// What opening found besides the store itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// False after a reboot and for a new store: what was claimed then was not killed by its jobs.
    pub same_boot: bool,
    /// Random, for the ids that this opening gives out.
    pub origin: Origin,
}

/// Opens the writer's connection, makes the tables where they are missing and draws a new epoch.
pub(super) fn open_writer(dir: &DataDir, boot: &str) -> Result<(Connection, u64, Opened), StoreError> {
    let path = dir.state_db();
    refuse_newer(&path)?;
    let db = Connection::open(&path).map_err(failed)?;
    db.set_prepared_statement_cache_capacity(128);
    db.busy_timeout(std::time::Duration::from_secs(5)).map_err(failed)?;
    db.pragma_update(None, "page_size", PAGE).map_err(failed)?;
    db.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
    settings(&db)?;
    db.pragma_update(None, "journal_size_limit", 64 << 20).map_err(failed)?;
    let made = db.query_row("SELECT count(*) FROM sqlite_master WHERE name = 'state'", [], |r| r.get::<_, i64>(0));
    if made.map_err(failed)? == 0 {
        make_tables(&db, dir)?;
    }
    let found = known_format(&db)?;
    if found < FORMAT {
        bring_up_to_date(&db, dir, found)?;
    }
    bodies::check(&db, &path)?;
    let before: String = db.query_row("SELECT boot FROM state", [], |r| r.get(0)).map_err(failed)?;
    let epoch = if sabotage::on(Sabotage::EpochReused) { 1 } else { random()? };
    // The epoch is synced here; after that a commit syncs the log itself when its turn asks for it, because the
    // pragma cannot change inside a transaction.
    db.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    let opening = db.unchecked_transaction().map_err(failed)?;
    opening.execute("UPDATE state SET epoch = ?1, boot = ?2", params![epoch as i64, boot]).map_err(failed)?;
    // No lot is under way, so what nothing lives in can go.
    let empty = "DELETE FROM body WHERE live = 0 AND no < (SELECT max(no) FROM body)";
    opening.execute(empty, []).map_err(failed)?;
    opening.commit().map_err(failed)?;
    db.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
    let opened = Opened { same_boot: before == boot && !boot.is_empty(), origin: Origin::from_random(random()?) };
    Ok((db, epoch, opened))
}

/// A connection that can only read; each reader has its own.
///
/// The file's header is not read by hand here: closing a second descriptor of the file would drop the locks that
/// SQLite holds on it for the writer of the same process.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.busy_timeout(std::time::Duration::from_secs(5)).map_err(failed)?;
    steady_plans(&db)?;
    db.pragma_update(None, "cache_size", -2048).map_err(failed)?;
    // A reader changes nothing, so an older store looks to it as if it were up to date.
    let found = known_format(&db)?;
    let of_jobs = if found < 3 { "NULL AS sum, NULL AS particulars" } else { "NULL AS particulars" };
    let lacking =
        [("job", of_jobs), ("queue", "NULL AS sum"), ("chunk", "NULL AS sum"), ("run", "NULL AS sum, NULL AS terms")];
    for (table, columns) in lacking.iter().filter(|_| found < 4) {
        let view = format!("CREATE TEMP VIEW {table} AS SELECT *, {columns} FROM main.{table}");
        db.execute_batch(&view).map_err(failed)?;
    }
    if found < 5 {
        let view = "CREATE TEMP VIEW shared AS SELECT NULL AS no, NULL AS last, NULL AS bytes WHERE 0";
        db.execute_batch(view).map_err(failed)?;
    }
    db.pragma_update(None, "query_only", true).map_err(failed)?;
    Ok(db)
}

/// The connection of the thread that checkpoints.
pub(super) fn open_checkpointer(path: &Path) -> Result<Connection, StoreError> {
    let db = Connection::open(path).map_err(failed)?;
    settings(&db)?;
    db.pragma_update(None, "cache_size", -256).map_err(failed)?;
    Ok(db)
}

pub(super) fn known_format(db: &Connection) -> Result<u32, StoreError> {
    let found = db.query_row("SELECT format FROM state", [], |r| r.get(0)).map_err(failed)?;
    if found > FORMAT { Err(StoreError::Newer { found, known: FORMAT }) } else { Ok(found) }
}

/// Adds what an older format lacks, in one transaction; nothing that was there is changed.
fn bring_up_to_date(db: &Connection, dir: &DataDir, found: u32) -> Result<(), StoreError> {
    let head = format!("BEGIN IMMEDIATE; PRAGMA user_version = {FORMAT}; UPDATE state SET format = {FORMAT};");
    let lacking: String = [(2, SINCE_2), (3, SINCE_3), (4, SINCE_4), (4, BESIDE_4), (5, SINCE_5)]
        .iter()
        .filter(|(since, _)| found < *since)
        .map(|(_, sql)| *sql)
        .collect();
    db.execute_batch(&format!("{head}{lacking}COMMIT;")).map_err(failed)?;
    into_main_file(db, dir)
}

fn settings(db: &Connection) -> Result<(), StoreError> {
    steady_plans(db)?;
    db.pragma_update(None, "cache_size", -i64::from(CACHE_KIB)).map_err(failed)?;
    db.pragma_update(None, "wal_autocheckpoint", 0).map_err(failed)?;
    if sabotage::on(Sabotage::SynchronousOff) {
        db.pragma_update(None, "synchronous", "OFF").map_err(failed)?;
    }
    db.pragma_update(None, "temp_store", "MEMORY").map_err(failed)
}

/// Plans must not depend on bound values: else SQLite parses a statement again whenever its limit changes.
fn steady_plans(db: &Connection) -> Result<(), StoreError> {
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(failed).map(|_| ())
}

/// Makes everything in one transaction.
fn make_tables(db: &Connection, dir: &DataDir) -> Result<(), StoreError> {
    let head = format!("BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT};");
    let first = format!("INSERT INTO state VALUES (1, {FORMAT}, 0, '', 1, 1, 0, 0); COMMIT;");
    db.execute_batch(&format!("{head}{TABLES}{SINCE_2}{SINCE_3}{BESIDE_4}{SINCE_5}{first}")).map_err(failed)?;
    into_main_file(db, dir)
}

/// Brings the log into the main file, where the format is read before opening.
fn into_main_file(db: &Connection, dir: &DataDir) -> Result<(), StoreError> {
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(failed)?;
    let synced = File::open(dir.root()).and_then(|dir| dir.sync_all());
    synced.map_err(|error| StoreError::Io(format!("cannot sync {}: {error}", dir.root().display())))
}

/// Reads the format from the file's header without SQLite, which would replay a log before it could say no.
fn refuse_newer(path: &Path) -> Result<(), StoreError> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    let mut header = [0; 72];
    if file.read_exact_at(&mut header, 0).is_err() {
        return Ok(());
    }
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (found, application) = (number(60), number(68));
    if &header[..16] != b"SQLite format 3\0" || (found != 0 && application != APPLICATION) {
        return Err(StoreError::Corrupt(format!("{} is not a windlass store", path.display())));
    }
    if found > FORMAT {
        return Err(StoreError::Newer { found, known: FORMAT });
    }
    Ok(())
}

impl StateRow {
    pub(super) fn load(db: &Connection) -> Result<StateRow, StoreError> {
        db.query_row("SELECT next_arrival, next_run, turn, parts FROM state", [], |r| {
            Ok(StateRow { next_arrival: r.get(0)?, next_run: r.get(1)?, turn: r.get(2)?, parts: r.get(3)? })
        })
        .map_err(failed)
    }

    pub(super) fn save(&self, db: &Connection) -> Result<(), StoreError> {
        let sql = "UPDATE state SET next_arrival = ?1, next_run = ?2, turn = ?3, parts = ?4";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        statement.execute(params![self.next_arrival, self.next_run, self.turn, self.parts]).map_err(failed)?;
        Ok(())
    }
}

pub(in crate::store) fn random() -> Result<u64, StoreError> {
    getrandom::u64().map_err(|error| StoreError::Io(format!("no random numbers: {error}")))
}

/// The one table from SQLite's errors to ours.
pub(in crate::store) fn failed(error: rusqlite::Error) -> StoreError {
    use rusqlite::Error as E;
    match &error {
        E::SqliteFailure(code, _) => match code.code {
            ErrorCode::DiskFull => StoreError::Full(error.to_string()),
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Corrupt(error.to_string()),
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreError::Locked(error.to_string()),
            _ => StoreError::Io(error.to_string()),
        },
        E::FromSqlConversionFailure(..) | E::IntegralValueOutOfRange(..) | E::InvalidColumnType(..) => {
            StoreError::Corrupt(error.to_string())
        }
        _ => StoreError::Io(error.to_string()),
    }
}

pub(super) fn corrupt(what: impl Into<String>) -> StoreError {
    StoreError::Corrupt(what.into())
}
