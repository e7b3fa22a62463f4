//! Small things by a key that the engine has begun and must know again after a restart.
//!
//! This file owns the table and its order. What a key says before its first bar is its subject: of a subject that had
//! no note when the store was opened, nor since, there is none, and nobody looks. It must not know what the bytes mean.

use super::super::StoreError;
use super::schema::failed;
use rusqlite::{Connection, params};
use std::collections::HashSet;

/// Which subjects may have notes.
#[derive(Debug)]
pub(super) struct Notes(HashSet<String>);

impl Notes {
    pub(super) fn load(db: &Connection) -> Result<Notes, StoreError> {
        let sql = "SELECT DISTINCT CASE instr(key, '/') WHEN 0 THEN key ELSE substr(key, 1, instr(key, '/')) END \
                   FROM note";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let subjects = statement.query_map([], |r| r.get(0)).map_err(failed)?;
        subjects.collect::<Result<_, _>>().map(Notes).map_err(failed)
    }

    /// False where there certainly is no note under this key.
    pub(super) fn may_have(&self, key: &str) -> bool {
        self.0.contains(subject(key))
    }

    pub(super) fn put(&mut self, db: &Connection, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        let done = match value {
            Some(value) => {
                if !self.may_have(key) {
                    self.0.insert(subject(key).to_owned());
                }
                db.prepare_cached("INSERT OR REPLACE INTO note (key, value) VALUES (?1, ?2)")
                    .and_then(|mut statement| statement.execute(params![key, value]))
            }
            None => {
                db.prepare_cached("DELETE FROM note WHERE key = ?1").and_then(|mut statement| statement.execute([key]))
            }
        };
        done.map_err(failed).map(|_| ())
    }

    /// The first notes whose keys begin so, in the order of their keys' bytes.
    pub(super) fn first(
        &self,
        db: &Connection,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        if prefix.contains('/') && !self.may_have(prefix) {
            return Ok(Vec::new());
        }
        let sql = "SELECT key, value FROM note WHERE key >= ?1 ORDER BY key LIMIT ?2";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = statement.query_map(params![prefix, limit], |r| Ok((r.get(0)?, r.get(1)?))).map_err(failed)?;
        let found: Vec<(String, Vec<u8>)> = found.collect::<Result<_, _>>().map_err(failed)?;
        Ok(found.into_iter().take_while(|(key, _)| key.starts_with(prefix)).collect())
    }
}

/// What a key says before its first bar, with the bar; all of one that has none.
fn subject(key: &str) -> &str {
    key.split_inclusive('/').next().unwrap_or(key)
}
