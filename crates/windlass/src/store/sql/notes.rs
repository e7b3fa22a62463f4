//! Small things by a key: what a server has begun, what people changed, how far its inbox was read.
//!
//! Notes and cursors are each server's own, but for what all have to know: schedules, and lots that were taken. What
//! people changed is everybody's.

use super::dialect::Rows;
use super::{SqlStore, StoreError};
use crate::store::{Cursor, LOTS, SHARED, Steer};
use std::collections::HashMap;
use windlass_core::job::Origin;
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::time::Time;

impl SqlStore {
    pub(super) fn put_note(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.begin()?;
        self.written = true;
        self.needs_control |= key.starts_with(SHARED);
        let whose = self.whose(key);
        let Some(value) = value else {
            let sql = self.names.sql("DELETE FROM :notes WHERE server = $1 AND note = $2");
            return self.db.execute(&sql, &[whose.into(), key.into()]).map(|_| ());
        };
        let rows = Rows::default()
            .texts("server", [Some(whose)])
            .texts("note", [Some(key.to_owned())])
            .blobs("kept", [Some(value.to_vec())]);
        self.replace(":notes", &["server", "note"], &["kept"], rows)
    }

    /// The server that a note belongs to; those that are shared have none.
    fn whose(&self, key: &str) -> String {
        if [SHARED, LOTS].iter().any(|shared| key.starts_with(shared)) {
            String::new()
        } else {
            self.options.server.clone()
        }
    }

    fn replace(&mut self, table: &str, key: &[&str], columns: &[&str], rows: Rows) -> Result<(), StoreError> {
        let mut params = Vec::new();
        let source = self.db.dialect.rows(rows, &mut params);
        let sql = self.names.sql(&self.db.dialect.upsert(table, key, columns, false, &source));
        self.db.execute(&sql, &params).map(|_| ())
    }

    pub(super) fn first_notes(&mut self, prefix: &str, limit: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let sql =
            self.names.sql("SELECT note, kept FROM :notes WHERE server = $1 AND note >= $2 ORDER BY note LIMIT $3");
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut found = Vec::new();
        for mut row in self.db.query(&sql, &[self.whose(prefix).into(), prefix.into(), limit.into()])? {
            found.push((row.text()?, row.maybe_bytes()?.unwrap_or_default()));
        }
        Ok(found.into_iter().take_while(|(key, _)| key.starts_with(prefix)).collect())
    }

    pub(super) fn steer_by(&mut self, step: &Steer) -> Result<(), StoreError> {
        self.begin()?;
        self.written = true;
        match step {
            Steer::Unset(target, key) => {
                let sql = self.names.sql("DELETE FROM :overrides WHERE target = $1 AND word = $2");
                self.db.execute(&sql, &[target.as_text().as_ref().into(), key.word().into()]).map(|_| ())
            }
            Steer::Set(new) => {
                let rows = Rows::default()
                    .texts("target", [Some(new.target.as_text().into_owned())])
                    .texts("word", [Some(new.key.word().to_owned())])
                    .ints("kept", [i64::from(new.value)])
                    .texts("made_by", [Some(new.by.clone())])
                    .ints("since", [new.since.as_micros()])
                    .maybe_ints("ends_at", [new.until.map(Time::as_micros)])
                    .texts("reason", [Some(new.reason.clone())]);
                let columns = ["kept", "made_by", "since", "ends_at", "reason"];
                self.replace(":overrides", &["target", "word"], &columns, rows)
            }
        }
    }

    pub(super) fn keep_cursors(&mut self, cursors: &[Cursor], closed: &[Origin]) -> Result<(), StoreError> {
        if cursors.is_empty() && closed.is_empty() {
            return Ok(());
        }
        self.begin()?;
        self.written = true;
        // The last word of a lot on a file holds.
        let mut last: HashMap<Origin, (Cursor, bool)> = HashMap::new();
        for cursor in cursors {
            last.insert(cursor.origin, (*cursor, false));
        }
        for origin in closed {
            let gone = Cursor { origin: *origin, offset: 0, tail: 0 };
            last.entry(*origin).or_insert((gone, true)).1 = true;
        }
        let server = self.options.server.clone();
        let rows = Rows::default()
            .texts("server", last.values().map(|_| Some(server.clone())))
            .ints("origin", last.keys().map(|origin| origin.bits() as i64))
            .ints("file_offset", last.values().map(|(cursor, _)| cursor.offset as i64))
            .ints("tail", last.values().map(|(cursor, _)| i64::from(cursor.tail)))
            .ints("closed", last.values().map(|(_, closed)| i64::from(*closed)));
        self.replace(":cursors", &["server", "origin"], &["file_offset", "tail", "closed"], rows)
    }

    /// How far this server has read its inbox files; those that are closed have no end.
    pub(super) fn own_cursors(&mut self) -> Result<HashMap<Origin, u64>, StoreError> {
        let sql = self.names.sql("SELECT origin, file_offset, closed FROM :cursors WHERE server = $1");
        let rows = self.db.query(&sql, &[self.options.server.as_str().into()])?;
        let read = rows.into_iter().map(|mut row| {
            let (origin, offset) = (Origin::from_random(row.int()? as u64), row.int()? as u64);
            Ok((origin, if row.int()? == 0 { offset } else { u64::MAX }))
        });
        read.collect()
    }

    /// How far each inbox file of any server was read, and whether it was read to its end and removed.
    pub(super) fn all_cursors(&mut self) -> Result<HashMap<Origin, (u64, bool)>, StoreError> {
        let mut cursors = HashMap::new();
        for mut row in self.db.query(&self.names.sql("SELECT origin, file_offset, closed FROM :cursors"), &[])? {
            let origin = Origin::from_random(row.int()? as u64);
            cursors.insert(origin, (row.int()? as u64, row.int()? != 0));
        }
        Ok(cursors)
    }
}

pub(super) fn overrides(db: &mut super::Database, names: &super::Names) -> Result<Vec<Override>, StoreError> {
    let sql =
        names.sql("SELECT target, word, kept, made_by, since, ends_at, reason FROM :overrides ORDER BY target, word");
    let read = db.query(&sql, &[])?.into_iter().map(|mut row| {
        let (target, word) = (Target::from_text(&row.text()?), row.text()?);
        let bad = || StoreError::Corrupt(format!("an override is about {word}, which is unknown"));
        let (key, value) = (Key::from_word(&word).ok_or_else(bad)?, row.number()?);
        let (by, since, until) = (row.text()?, Time(row.int()?), row.maybe_int()?.map(Time));
        Ok(Override { target, key, value, by, since, until, reason: row.text()? })
    });
    read.collect()
}
