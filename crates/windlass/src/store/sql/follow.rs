//! Rows of ours that another program changed: each gets the state that its status says.
//!
//! Who writes `pending` wants another try, of the queue and about the record that the row names by then. It must not
//! decide what a status means for a row that is not a job yet (`adopt`).

use super::database::{Cells, Value};
use super::dialect::Rows;
use super::look::{ROWS_MOST, strange};
use super::rows::{self, COLUMNS, Row, encode_particulars};
use super::tally::Was;
use super::{SqlStore, StoreError};
use std::sync::Arc;
use windlass_core::job::{QueueName, Record, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::particulars::{Particulars, Subject};
use windlass_core::time::Time;

/// What people know a row by, as it is written now.
struct Known {
    name: Vec<u8>,
    kind: Option<String>,
    subject: Option<String>,
}

impl Known {
    fn read(cells: &mut Cells) -> Result<Known, StoreError> {
        let name = cells.maybe_bytes()?.unwrap_or_default();
        Ok(Known { name, kind: cells.words().filter(|kind| !kind.is_empty()), subject: cells.words() })
    }
}

impl SqlStore {
    /// Gives jobs whose status another program changed the state that it says; tells how many.
    pub(super) fn follow_changes(&mut self, now: Time) -> Result<u64, StoreError> {
        let dialect = self.db.dialect;
        let sql = self.names.sql(&format!(
            "SELECT j.:status, j.:holder, j.:name, j.:taskable_type, {}, {COLUMNS} FROM :jobs AS j \
             WHERE {} AND :state IS NOT NULL ORDER BY :id LIMIT {ROWS_MOST} {}",
            dialect.as_text("j.:taskable_id"),
            strange(dialect),
            dialect.skip_locked()
        ));
        let changed = self.db.query(&sql, &[])?;
        let count = changed.len() as u64;
        self.looks.more_changed = count >= ROWS_MOST;
        let mut renamed = Vec::new();
        for mut cells in changed {
            let (status, holder, known) = (cells.words(), cells.maybe_int()?, Known::read(&mut cells)?);
            let mut row = Row::read(&mut cells)?;
            if holder == Some(self.epoch as i64) {
                // What another program took away from us is stopped; its report will come too late.
                self.changes.overdue.push(row.id);
            }
            let was = Was::of(&row);
            if status.as_deref() == Some("pending") && self.know_again(&mut row, known)? {
                renamed.push(row.clone());
            }
            self.follow(row, was, status.as_deref(), now)?;
        }
        self.write_known(&renamed)?;
        self.flush(now)?;
        self.end_waits(now)?;
        Ok(count)
    }

    /// Another try is one of what the row says now; true where that is another queue or another record. What our
    /// columns had no room for is as it was.
    fn know_again(&mut self, row: &mut Row, known: Known) -> Result<bool, StoreError> {
        let room = self.db.room.clone();
        let (queue, mut changed) = (self.queue_name(row.queue)?, false);
        if known.name != queue.as_str().as_bytes() && known.name != room.name.cut(queue.as_str()).as_bytes() {
            match QueueName::new(&known.name) {
                Ok(name) => {
                    row.queue = self.queue_no(&name)?;
                    changed = true;
                }
                Err(bad) => row.odd = Some(bad.to_string()),
            }
        }
        let before = row.particulars.as_ref().and_then(|particulars| particulars.subject.as_ref());
        let written = before.map(|subject| (room.subject_type.cut(&subject.kind), rows::subject_id(&room, subject)));
        let same = match (&written, &known.kind) {
            (None, None) => true,
            (Some((kind, id)), Some(now)) => kind == now && (id.is_none() || *id == known.subject),
            (None, Some(_)) => known.subject.is_none(),
            (Some(_), None) => false,
        };
        if !same {
            let subject = known.kind.zip(known.subject).map(|(kind, id)| Subject { kind, id });
            let particulars = row.particulars.as_deref().cloned().unwrap_or_default();
            let particulars = Particulars { subject, ..particulars };
            match particulars.check() {
                Ok(()) => {
                    row.particulars = (particulars != Particulars::default()).then(|| Arc::new(particulars));
                    changed = true;
                }
                Err(bad) => row.odd = Some(bad.to_string()),
            }
        }
        Ok(changed)
    }

    fn write_known(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        for part in rows.chunks(rows::ROWS_MOST) {
            let of = Rows::default()
                .ints("w_id", part.iter().map(|row| row.arrival.0 as i64))
                .ints("w_queue", part.iter().map(|row| i64::from(row.queue.0)))
                .blobs("w_particulars", part.iter().map(|row| row.particulars.as_deref().map(encode_particulars)));
            let mut params: Vec<Value> = Vec::new();
            let source = self.db.dialect.rows(of, &mut params);
            let set = ":queue_no = t.w_queue, :particulars = t.w_particulars";
            let sql = self.names.sql(&self.db.dialect.update_from(":jobs", set, &source, "j.:id = t.w_id"));
            self.written = true;
            self.db.execute(&sql, &params)?;
        }
        Ok(())
    }

    fn follow(&mut self, mut row: Row, was: Was, status: Option<&str>, now: Time) -> Result<(), StoreError> {
        let to = match (status.unwrap_or(""), row.odd.take()) {
            ("pending", Some(why)) => {
                row.ended = Some(now);
                row.note_error(now, &why);
                State::Failed
            }
            ("pending", None) => {
                row.record = Record { starts: row.record.starts, ..Record::default() };
                (row.ended, row.reason, row.due) = (None, None, row.due.filter(|due| *due > now));
                row.run = self.run_for_another_try(&row, now)?;
                self.note_due(row.due);
                if row.due.is_some() { State::Scheduled } else { State::Ready }
            }
            ("processing" | "loading", _) => return self.lend(row, was, now),
            ("completed" | "complete", _) => {
                row.ended = Some(now);
                State::Succeeded
            }
            ("error", _) => {
                row.ended = Some(now);
                row.note_error(now, "another program marked it with an error");
                State::Failed
            }
            ("", _) => {
                row.ended = Some(now);
                row.note_error(now, "another program took its status away");
                State::Failed
            }
            (other, _) => {
                row.ended = Some(now);
                row.note_error(now, &format!("another program gave it the unknown status `{other}`"));
                State::Failed
            }
        };
        self.set_state(was, &mut row, to, now);
        Ok(())
    }

    /// A job of a run that is over, or forgotten, is not of it any more.
    fn run_for_another_try(&mut self, row: &Row, now: Time) -> Result<Option<RunNo>, StoreError> {
        let Some(no) = row.run else { return Ok(None) };
        if self.runs_where("WHERE number = $1", &[i64::from(no.0).into()])?.is_empty() {
            return Ok(None);
        }
        match self.is_over(no, now)? {
            Some(id) => self.joined_run(id, now).map(Some),
            None => Ok(Some(no)),
        }
    }

    /// Another program works at it, without us.
    fn lend(&mut self, row: Row, was: Was, now: Time) -> Result<(), StoreError> {
        self.written = true;
        let sql = self.names.sql("UPDATE :jobs SET :state = 2, :holder = NULL WHERE :id = $1");
        self.db.execute(&sql, &[(row.arrival.0 as i64).into()])?;
        self.count(row.lane(), row.run, Some(was.state), Some(State::Running), 1, now);
        Ok(())
    }
}
