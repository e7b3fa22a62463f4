//! One connection to a database, whichever it is: statements with `$1`, `$2`, … and values of three kinds.
//!
//! `Driver` has three implementers, one for each database. A driver knows how to send a statement and what its
//! failures mean; it must not know our tables. A connection that failed is gone: whoever uses it opens another.

use super::columns::Room;
use super::dialect::Dialect;
use super::pace::Pace;
use super::{mariadb, postgres, sqlite};
use crate::store::StoreError;
use std::time::Duration;

/// How long things may take, and whether anything may change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Whoever only looks makes no file and changes none.
    pub(super) reads: bool,
    /// Who does not answer for so long is not there: the engine waits for it, and tries again a second later.
    pub(super) connect: Duration,
    pub(super) call: Duration,
    /// Of that, how long a call waits for a lock.
    pub(super) lock: Duration,
    /// A transaction in which nothing happens for so long is dropped by the database, with its locks: whoever opened it
    /// stands still, and others wait.
    pub(super) idle: Duration,
}

/// What goes into a statement and comes out of it. Times are microseconds, truths are 0 and 1.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    /// A column of many rows, where the database takes arrays.
    Ints(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
    Blobs(Vec<Option<Vec<u8>>>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(Some(value))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Value {
        Value::Int(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(Some(value.to_owned()))
    }
}

impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::Text(Some(value))
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Value {
        Value::Bytes(Some(value))
    }
}

impl From<Option<Vec<u8>>> for Value {
    fn from(value: Option<Vec<u8>>) -> Value {
        Value::Bytes(value)
    }
}

/// One row of an answer, read from left to right.
#[derive(Clone, Debug)]
pub(super) struct Cells(std::vec::IntoIter<Value>);

impl Cells {
    pub(super) fn new(values: Vec<Value>) -> Cells {
        Cells(values.into_iter())
    }

    pub(super) fn maybe_int(&mut self) -> Result<Option<i64>, StoreError> {
        match self.0.next() {
            Some(Value::Int(value)) => Ok(value),
            // A null has no type everywhere.
            Some(Value::Text(None) | Value::Bytes(None)) => Ok(None),
            other => Err(unexpected("a number", other)),
        }
    }

    pub(super) fn int(&mut self) -> Result<i64, StoreError> {
        self.maybe_int()?.ok_or_else(|| unexpected("a number", None))
    }

    /// A number in the range of what is wanted.
    pub(super) fn number<T: TryFrom<i64>>(&mut self) -> Result<T, StoreError> {
        let value = self.int()?;
        T::try_from(value).map_err(|_| StoreError::Corrupt(format!("a column holds {value}, which is out of range")))
    }

    pub(super) fn maybe_text(&mut self) -> Result<Option<String>, StoreError> {
        match self.0.next() {
            Some(Value::Text(value)) => Ok(value),
            Some(Value::Int(None) | Value::Bytes(None)) => Ok(None),
            Some(Value::Bytes(Some(bytes))) => match String::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(StoreError::Corrupt("a column holds a text that is not UTF-8".into())),
            },
            other => Err(unexpected("a text", other)),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, StoreError> {
        self.maybe_text()?.ok_or_else(|| unexpected("a text", None))
    }

    /// A number that another program may have written; what is there instead, where it is none.
    pub(super) fn maybe_foreign_int(&mut self) -> Result<Option<i64>, String> {
        match self.0.next() {
            Some(Value::Int(value)) => Ok(value),
            Some(Value::Text(Some(text))) => Err(text),
            Some(Value::Bytes(Some(bytes))) => Err(String::from_utf8_lossy(&bytes).into_owned()),
            Some(Value::Text(None) | Value::Bytes(None)) => Ok(None),
            Some(Value::Ints(_) | Value::Texts(_) | Value::Blobs(_)) | None => Err("nothing".into()),
        }
    }

    /// What another program wrote, as words.
    pub(super) fn words(&mut self) -> Option<String> {
        match self.maybe_foreign_int() {
            Ok(number) => number.map(|number| number.to_string()),
            Err(text) => Some(text),
        }
    }

    pub(super) fn maybe_bytes(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        match self.0.next() {
            Some(Value::Bytes(value)) => Ok(value),
            Some(Value::Text(value)) => Ok(value.map(String::into_bytes)),
            // SQLite lets a number stand where text belongs.
            Some(Value::Int(value)) => Ok(value.map(|value| value.to_string().into_bytes())),
            other => Err(unexpected("bytes", other)),
        }
    }
}

fn unexpected(wanted: &str, found: Option<Value>) -> StoreError {
    StoreError::Corrupt(format!("a column holds {found:?}, expected {wanted}"))
}

/// Sends statements to one database.
pub(super) trait Driver: Send {
    fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Cells>, StoreError>;

    /// How many rows the statement found.
    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64, StoreError>;

    /// Statements without values, one after another.
    fn batch(&mut self, statements: &[&str]) -> Result<(), StoreError>;

    /// A statement of which only a failure counts. Where the database can be told several things at once it goes with
    /// the next call, which then tells of the failure.
    fn execute_ahead(&mut self, sql: String, params: Vec<Value>) -> Result<(), StoreError> {
        self.execute(&sql, &params).map(|_| ())
    }

    fn batch_ahead(&mut self, statements: &[&str]) -> Result<(), StoreError> {
        self.batch(statements)
    }

    /// Rows as text behind a statement that reads them; only where `Database::copies` says so.
    fn copy(&mut self, sql: &str, _text: Vec<u8>) -> Result<(), StoreError> {
        Err(StoreError::Io(format!("this database reads no rows as text: {sql}")))
    }
}

/// A connection, open until a call failed on the way.
pub(super) struct Database {
    pub(super) dialect: Dialect,
    /// Whether the jobs table takes rows as text.
    pub(super) copies: bool,
    /// What the columns of the jobs table have room for.
    pub(super) room: Room,
    /// Whether the database has a fast way to make long values shorter.
    packs: bool,
    driver: Option<Box<dyn Driver>>,
    url: String,
    limits: Limits,
    pace: Pace,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("dialect", &self.dialect).finish_non_exhaustive()
    }
}

impl Database {
    /// Connects; every later call ends within the time limit, too.
    pub(super) fn connect(url: &str, limits: Limits, pace: Pace) -> Result<Database, StoreError> {
        let (dialect, url, room) = (Dialect::of(url)?, url.to_owned(), Room::default());
        let mut db = Database { dialect, copies: false, room, packs: false, driver: None, url, limits, pace };
        db.reconnect()?;
        Ok(db)
    }

    /// Opens a connection where there is none.
    pub(super) fn reconnect(&mut self) -> Result<(), StoreError> {
        if self.driver.is_none() {
            let attempt = self.pace.enter()?;
            self.driver = Some(attempt.ended(self.open())?);
            self.packs = self.dialect == Dialect::Postgres && self.knows_lz4()?;
        }
        Ok(())
    }

    /// PostgreSQL can be built without it, and older ones do not know it; another may answer at the same address.
    fn knows_lz4(&mut self) -> Result<bool, StoreError> {
        let setting = "SELECT count(*) FROM pg_settings WHERE name = 'default_toast_compression' \
             AND 'lz4' = ANY(enumvals)";
        Ok(self.one(setting, &[])?.int()? > 0)
    }

    fn open(&self) -> Result<Box<dyn Driver>, StoreError> {
        Ok(match self.dialect {
            Dialect::Postgres => Box::new(postgres::Postgres::connect(&self.url, self.limits)?),
            Dialect::Mariadb => Box::new(mariadb::Mariadb::connect(&self.url, self.limits)?),
            Dialect::Sqlite => Box::new(sqlite::Sqlite::open(&self.url, self.limits)?),
        })
    }

    /// Gives the connection up; the database drops what was open on it.
    pub(super) fn hang_up(&mut self) {
        self.driver = None;
    }

    /// One call; a connection on which it failed on the way is not used again.
    fn call<T>(&mut self, call: impl FnOnce(&mut Box<dyn Driver>) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let gone = || StoreError::Away("there is no connection".into());
        let answer = call(self.driver.as_mut().ok_or_else(gone)?);
        if matches!(answer, Err(StoreError::Away(_))) {
            self.driver = None;
        }
        answer
    }

    pub(super) fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Cells>, StoreError> {
        self.call(|driver| driver.query(sql, params))
    }

    /// The only row of an answer that has at most one.
    pub(super) fn maybe_one(&mut self, sql: &str, params: &[Value]) -> Result<Option<Cells>, StoreError> {
        Ok(self.query(sql, params)?.into_iter().next())
    }

    pub(super) fn one(&mut self, sql: &str, params: &[Value]) -> Result<Cells, StoreError> {
        let found = self.maybe_one(sql, params)?;
        found.ok_or_else(|| StoreError::Corrupt(format!("a row is missing: {sql}")))
    }

    pub(super) fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64, StoreError> {
        self.call(|driver| driver.execute(sql, params))
    }

    pub(super) fn batch(&mut self, statements: &[&str]) -> Result<(), StoreError> {
        self.call(|driver| driver.batch(statements))
    }

    /// A statement of which only a failure counts, before the next call or with it.
    pub(super) fn execute_ahead(&mut self, sql: String, params: Vec<Value>) -> Result<(), StoreError> {
        self.call(|driver| driver.execute_ahead(sql, params))
    }

    pub(super) fn copy(&mut self, sql: &str, text: Vec<u8>) -> Result<(), StoreError> {
        self.call(|driver| driver.copy(sql, text))
    }

    /// Within a transaction, a part of it that waits for no lock. SQLite has none that others could hold by then, and
    /// in MariaDB nobody asks for it.
    pub(super) fn begin_impatiently(&mut self) -> Result<(), StoreError> {
        self.in_postgres(&["SAVEPOINT impatient", "SET LOCAL lock_timeout = 1"])
    }

    /// It stays, and what comes after it waits again.
    pub(super) fn end_impatiently(&mut self) -> Result<(), StoreError> {
        let lock = self.lock_timeout();
        self.in_postgres(&["RELEASE SAVEPOINT impatient", &lock])
    }

    /// It found something locked.
    pub(super) fn undo_impatiently(&mut self) -> Result<(), StoreError> {
        self.batch(&["ROLLBACK TO SAVEPOINT impatient"])
    }

    fn in_postgres(&mut self, statements: &[&str]) -> Result<(), StoreError> {
        match self.dialect {
            Dialect::Postgres => self.call(|driver| driver.batch_ahead(statements)),
            Dialect::Mariadb | Dialect::Sqlite => Ok(()),
        }
    }

    fn lock_timeout(&self) -> String {
        format!("SET LOCAL lock_timeout = {}", self.limits.lock.as_millis())
    }

    pub(super) fn begin(&mut self) -> Result<(), StoreError> {
        let idle = format!("SET LOCAL idle_in_transaction_session_timeout = {}", self.limits.idle.as_millis());
        // What we wait for no longer must not go on there: whoever tries again would wait for its locks.
        let statement = format!("SET LOCAL statement_timeout = {}", self.limits.call.as_millis());
        let lock = self.lock_timeout();
        let mut begin = match self.dialect {
            // The seed's columns have no zone; a column that has one must not shift them. Every statement has an index
            // whose order is its own, and what is known of a table through which a million rows pass is always old:
            // with it a look for new rows was planned as a scan of the whole table, and a sort.
            Dialect::Postgres => vec![
                "BEGIN ISOLATION LEVEL READ COMMITTED",
                "SET LOCAL TIME ZONE 'UTC'",
                "SET LOCAL enable_seqscan = off",
                "SET LOCAL enable_bitmapscan = off",
                "SET LOCAL enable_sort = off",
                // Costs of what is switched off count as large, and each statement would be compiled for them.
                "SET LOCAL jit = off",
                &idle,
                &statement,
                &lock,
            ],
            Dialect::Mariadb => vec!["START TRANSACTION"],
            Dialect::Sqlite => vec!["BEGIN IMMEDIATE"],
        };
        if self.packs {
            // A turn's outcomes are a long value, and PostgreSQL's own way to pack it costs up to 1.4 µs a job more.
            begin.push("SET LOCAL default_toast_compression = 'lz4'");
        }
        self.call(|driver| driver.batch_ahead(&begin))
    }
}

/// A runtime for the drivers that need one: it runs only while a statement is under way.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, StoreError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| StoreError::Io(format!("cannot start a runtime for the database: {error}")))
}

/// What a call that took too long is worth.
pub(super) fn too_slow(limit: Duration) -> StoreError {
    StoreError::Away(format!("no answer within {} s", limit.as_secs()))
}
