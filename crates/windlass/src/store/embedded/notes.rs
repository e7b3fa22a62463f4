//! Small things by a key that the engine has begun and must know again after a restart.
//!
//! This file owns the table and its order. It must not know what the bytes mean.

use super::super::StoreError;
use super::schema::failed;
use rusqlite::{Connection, params};

pub(super) fn put(db: &Connection, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
    let done = match value {
        Some(value) => db
            .prepare_cached("INSERT OR REPLACE INTO note (key, value) VALUES (?1, ?2)")
            .and_then(|mut statement| statement.execute(params![key, value])),
        None => db.prepare_cached("DELETE FROM note WHERE key = ?1").and_then(|mut statement| statement.execute([key])),
    };
    done.map_err(failed).map(|_| ())
}

/// The first notes whose keys begin so, in the order of their keys' bytes.
pub(super) fn first(db: &Connection, prefix: &str, limit: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    let sql = "SELECT key, value FROM note WHERE key >= ?1 ORDER BY key LIMIT ?2";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = statement.query_map(params![prefix, limit], |r| Ok((r.get(0)?, r.get(1)?))).map_err(failed)?;
    let found: Vec<(String, Vec<u8>)> = found.collect::<Result<_, _>>().map_err(failed)?;
    Ok(found.into_iter().take_while(|(key, _)| key.starts_with(prefix)).collect())
}
