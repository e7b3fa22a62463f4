//! Many new jobs as the text of a COPY, which is how PostgreSQL takes rows fastest.
//!
//! Text, because a table that was there before us has columns of types that we do not know. Columns in which none of
//! the rows has anything are left out. It must not know why rows are inserted.

use super::columns::Room;
use super::database::Database;
use super::dialect::Dialect;
use super::names::Names;
use super::rows::{NewRow, encode_particulars, subject_id};
use crate::store::StoreError;
use crate::when;
use std::io::Write;
use windlass_core::particulars::Particulars;
use windlass_core::time::Time;

/// Fewer rows are not worth its two round trips more.
pub(super) const LEAST: usize = 64;

/// Whether the table takes rows so: only PostgreSQL's, and not where rules say of each row who may write it.
pub(super) fn is_taken(db: &mut Database, names: &Names) -> Result<bool, StoreError> {
    if names.dialect != Dialect::Postgres {
        return Ok(false);
    }
    let sql = "SELECT row_security_active($1)";
    Ok(db.one(sql, &[names.sql(":jobs").into()])?.int()? == 0)
}

/// Which columns are written that most jobs have nothing in.
#[derive(Clone, Copy, Debug, Default)]
struct Rare {
    body: bool,
    due: bool,
    run: bool,
    particulars: bool,
    subject: bool,
}

/// The statement, and the rows for it.
pub(super) fn statement(names: &Names, room: &Room, rows: &[NewRow], now: Time) -> (String, Vec<u8>) {
    let particulars: Vec<_> = rows.iter().map(|row| row.jobs.particulars_of(row.index)).collect();
    let rare = Rare {
        body: rows.iter().any(|row| text_of(room, row.jobs.data(row.index)).is_none()),
        due: rows.iter().any(|row| row.due.is_some()),
        run: rows.iter().any(|row| row.run.is_some()),
        particulars: particulars.iter().any(Option::is_some),
        subject: particulars.iter().flatten().any(|particulars| particulars.subject.is_some()),
    };
    let mut columns = vec![
        ":name, :queue_no, :priority, :state, :job_origin, :job_offset, :data, :status, :locked_queue_id, :attempts, \
         :lane_kind, :created_at, :updated_at, :admitted",
    ];
    columns.extend(rare.body.then_some(":body"));
    columns.extend(rare.due.then_some(":run_at"));
    columns.extend(rare.run.then_some(":run_no"));
    columns.extend(rare.particulars.then_some(":particulars, :start_by, :finish_by"));
    columns.extend(rare.subject.then_some(":taskable_id, :taskable_type"));
    let (time, micros) = (when::rfc3339(now), now.as_micros());
    let same = format!("\tpending\t\t0\t0\t{time}\t{time}\t{micros}");
    let mut text = Text { bytes: Vec::with_capacity(rows.len() * 256), room };
    for (row, particulars) in rows.iter().zip(&particulars) {
        text.line(row, particulars.as_deref(), &same, rare);
    }
    (names.sql(&format!("COPY :jobs ({}) FROM STDIN", columns.join(", "))), text.bytes)
}

/// Lines of cells with a tab between them; `\N` is nothing.
struct Text<'a> {
    bytes: Vec<u8>,
    room: &'a Room,
}

impl Text<'_> {
    fn line(&mut self, row: &NewRow, particulars: Option<&Particulars>, same: &str, rare: Rare) {
        let id = row.jobs.id(row.index);
        self.escaped(self.room.name.cut(&row.name).as_bytes());
        self.number(i64::from(row.queue.0));
        self.number(i64::from(row.priority.value()));
        self.number(row.state.index() as i64);
        self.number(id.origin.bits() as i64);
        self.number(id.offset as i64);
        self.bytes.push(b'\t');
        let data = row.jobs.data(row.index);
        match text_of(self.room, data) {
            Some(text) => self.escaped(text.as_bytes()),
            None => self.bytes.extend_from_slice(b"\\N"),
        }
        self.bytes.extend_from_slice(same.as_bytes());
        if rare.body {
            self.hex(text_of(self.room, data).is_none().then_some(data));
        }
        if rare.due {
            self.maybe_number(row.due.map(Time::as_micros));
        }
        if rare.run {
            self.maybe_number(row.run.map(|run| i64::from(run.0)));
        }
        if rare.particulars {
            self.hex(particulars.map(encode_particulars).as_deref());
            self.maybe_number(particulars.and_then(|of| of.start_by).map(Time::as_micros));
            self.maybe_number(particulars.and_then(|of| of.finish_by).map(Time::as_micros));
        }
        if rare.subject {
            let subject = particulars.and_then(|of| of.subject.as_ref());
            let id = subject.and_then(|subject| subject_id(self.room, subject));
            for text in [id, subject.map(|subject| self.room.subject_type.cut(&subject.kind))] {
                self.bytes.push(b'\t');
                match text {
                    Some(text) => self.escaped(text.as_bytes()),
                    None => self.bytes.extend_from_slice(b"\\N"),
                }
            }
        }
        self.bytes.push(b'\n');
    }

    fn number(&mut self, number: i64) {
        // Writing to memory does not fail.
        let _ = write!(self.bytes, "\t{number}");
    }

    fn maybe_number(&mut self, number: Option<i64>) {
        match number {
            Some(number) => self.number(number),
            None => self.bytes.extend_from_slice(b"\t\\N"),
        }
    }

    fn hex(&mut self, bytes: Option<&[u8]>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let Some(bytes) = bytes else { return self.bytes.extend_from_slice(b"\t\\N") };
        self.bytes.extend_from_slice(b"\t\\\\x");
        let digits = bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        self.bytes.extend(digits);
    }

    fn escaped(&mut self, text: &[u8]) {
        let special = |byte: &u8| matches!(byte, b'\\' | b'\t' | b'\n' | b'\r');
        let mut rest = text;
        while let Some(at) = rest.iter().position(special) {
            self.bytes.extend_from_slice(&rest[..at]);
            self.bytes.extend_from_slice(match rest[at] {
                b'\t' => b"\\t",
                b'\n' => b"\\n",
                b'\r' => b"\\r",
                _ => b"\\\\",
            });
            rest = &rest[at + 1..];
        }
        self.bytes.extend_from_slice(rest);
    }
}

/// Data as text, where everybody can read it as one.
fn text_of<'a>(room: &Room, data: &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(data).ok().filter(|text| room.data.takes(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_what_the_database_reads_back() {
        let room = Room::default();
        let mut text = Text { bytes: Vec::new(), room: &room };
        text.escaped("a\\N\tb\nc\rd\\.".as_bytes());
        text.hex(Some(&[0, 0x5c, 255]));
        text.hex(None);
        text.maybe_number(Some(-1));
        text.maybe_number(None);
        assert_eq!(String::from_utf8_lossy(&text.bytes), "a\\\\N\\tb\\nc\\rd\\\\.\t\\\\x005cff\t\\N\t-1\t\\N");
        assert_eq!(text_of(&room, b"a\0b"), None);
        assert_eq!(text_of(&room, b"a\xff"), None);
    }
}
