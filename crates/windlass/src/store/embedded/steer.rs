//! What people changed while running: one row for each target and key.
//!
//! There are few of them, so the engine reads them all at its start and keeps them itself.

use super::super::{Steer, StoreError};
use super::Turn;
use super::schema::{corrupt, failed};
use rusqlite::{Connection, params};
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::time::Time;

impl Turn<'_> {
    pub(super) fn steer(&mut self, step: &Steer) -> Result<(), StoreError> {
        match step {
            Steer::Set(new) => {
                let sql = "INSERT OR REPLACE INTO override (target, key, value, made_by, since, until, reason)
                           VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
                let Override { target, key, value, by, since, until, reason } = new;
                let until = until.map(|until| until.0);
                let row = params![target.as_text(), key.word(), value, by, since.0, until, reason];
                self.db.prepare_cached(sql).and_then(|mut insert| insert.execute(row)).map_err(failed)?;
            }
            Steer::Unset(target, key) => {
                let sql = "DELETE FROM override WHERE target = ?1 AND key = ?2";
                let row = params![target.as_text(), key.word()];
                self.db.prepare_cached(sql).and_then(|mut delete| delete.execute(row)).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// All overrides, in the order of their targets and keys.
pub(super) fn overrides(db: &Connection) -> Result<Vec<Override>, StoreError> {
    let sql = "SELECT target, key, value, made_by, since, until, reason FROM override ORDER BY target, key";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let (target, key): (String, String) = (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
        let key = Key::from_word(&key).ok_or_else(|| corrupt(format!("an override has the key {key:?}")))?;
        all.push(Override {
            target: Target::from_text(&target),
            key,
            value: row.get(2).map_err(failed)?,
            by: row.get(3).map_err(failed)?,
            since: Time(row.get(4).map_err(failed)?),
            until: row.get::<_, Option<i64>>(5).map_err(failed)?.map(Time),
            reason: row.get(6).map_err(failed)?,
        });
    }
    Ok(all)
}
