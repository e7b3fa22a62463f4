//! Statements to SQLite, in a file that others may have open as well.

use super::database::{Cells, Driver, Limits, Value};
use super::dialect::numbered;
use crate::store::StoreError;
use crate::store::embedded::schema::failed;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, ToSql, params_from_iter};
use std::path::Path;

pub(super) struct Sqlite(Connection);

impl Sqlite {
    pub(super) fn open(url: &str, limits: Limits) -> Result<Sqlite, StoreError> {
        let path = url.strip_prefix("sqlite:").unwrap_or(url);
        let path = path.strip_prefix("//").unwrap_or(path);
        let opened = match (limits.reads, Path::new(path).exists()) {
            (false, _) => Connection::open(path),
            (true, true) => Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY),
            // What is not there yet is empty.
            (true, false) => Connection::open_in_memory(),
        };
        let db = opened.map_err(|e| StoreError::Away(format!("cannot open {path}: {e}")))?;
        db.busy_timeout(limits.call).map_err(failed)?;
        // What is in a file is only looked at with the first statement.
        let looked = db.query_row("PRAGMA schema_version", [], |_| Ok(()));
        if looked.is_err_and(|e| e.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase)) {
            return Err(StoreError::Io(format!("{path} is no SQLite database")));
        }
        if limits.reads {
            return Ok(Sqlite(db));
        }
        db.set_prepared_statement_cache_capacity(64);
        db.pragma_update(None, "journal_mode", "WAL").map_err(away)?;
        db.pragma_update(None, "synchronous", "FULL").map_err(away)?;
        Ok(Sqlite(db))
    }
}

impl Driver for Sqlite {
    fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Cells>, StoreError> {
        let mut statement = self.0.prepare_cached(&numbered(sql)).map_err(away)?;
        let count = statement.column_count();
        let mut rows = statement.query(params_from_iter(params)).map_err(away)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(away)? {
            let values = (0..count).map(|at| row.get_ref(at).map(value).map_err(away));
            found.push(Cells::new(values.collect::<Result<_, _>>()?));
        }
        Ok(found)
    }

    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64, StoreError> {
        let mut statement = self.0.prepare_cached(&numbered(sql)).map_err(away)?;
        statement.execute(params_from_iter(params)).map(|found| found as u64).map_err(away)
    }

    fn batch(&mut self, statements: &[&str]) -> Result<(), StoreError> {
        statements.iter().try_for_each(|sql| self.0.execute_batch(sql).map_err(away))
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Int(Some(value)) => ValueRef::Integer(*value),
            Value::Text(Some(text)) => ValueRef::Text(text.as_bytes()),
            Value::Bytes(Some(bytes)) => ValueRef::Blob(bytes),
            Value::Int(None) | Value::Text(None) | Value::Bytes(None) => ValueRef::Null,
            // Rows come as one text of JSON here.
            Value::Ints(_) | Value::Texts(_) | Value::Blobs(_) => ValueRef::Null,
        }))
    }
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Int(None),
        ValueRef::Integer(value) => Value::Int(Some(value)),
        ValueRef::Real(value) => Value::Int(Some(value as i64)),
        // A text is what somebody called so; data comes back byte for byte.
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Value::Text(Some(text.to_owned())),
            Err(_) => Value::Bytes(Some(text.to_vec())),
        },
        ValueRef::Blob(bytes) => Value::Bytes(Some(bytes.to_vec())),
    }
}

/// As for the embedded store, but others write here, too: who waited too long for them tries again.
fn away(error: rusqlite::Error) -> StoreError {
    if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) {
        return StoreError::Refused(error.to_string());
    }
    match failed(error) {
        StoreError::Locked(what) => StoreError::Away(what),
        other => other,
    }
}
