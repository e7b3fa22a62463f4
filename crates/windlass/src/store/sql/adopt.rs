//! Rows that other programs inserted become jobs: each gets an id, a queue and a state, and is then like any other.
//! One that makes no sense is marked with an error, in words, and left.
//!
//! To take a row in is an UPDATE, and so is its claim; where both happen in one turn they are one. So rows that are
//! ready wait in memory, locked, until the turn claims them or has to write them, and a turn takes in about as many
//! as it claims. Where turns claim many, they are not even looked at (`promise`). It must not know what a claim is for.

use super::database::{Cells, Value};
use super::dialect::Rows;
use super::look::strange;
use super::rows::{self, COLUMNS, Row, encode_particulars};
use super::{Dialect, SqlStore, StoreError};
use std::collections::BTreeMap;
use windlass_core::job::{DATA_MAX, Lane, LaneKind, Priority, QueueName, QueueNo};
use windlass_core::life_cycle::State;
use windlass_core::particulars::{Particulars, Subject};
use windlass_core::time::Time;

/// A row that another program inserted, as it will be.
#[derive(Debug)]
pub(super) struct Adopted {
    id: i64,
    queue: QueueNo,
    priority: Priority,
    state: State,
    due: Option<Time>,
    admitted: Time,
    particulars: Option<Particulars>,
}

impl Adopted {
    fn lane(&self) -> Lane {
        Lane { queue: self.queue, priority: self.priority, kind: LaneKind::Fresh }
    }
}

impl SqlStore {
    /// Takes in rows that others inserted; tells how many.
    pub(super) fn adopt_new(&mut self, now: Time) -> Result<u64, StoreError> {
        if self.promises() {
            self.promise_more(0);
            return Ok(0);
        }
        let (dialect, most) = (self.db.dialect, self.looks.most_new());
        let sql = self.names.sql(&format!(
            "SELECT :id, :name, :status, octet_length(:data), :priority, :run_at, {}, :taskable_type, {} \
             FROM :jobs WHERE {} AND :state IS NULL AND :id > $1 AND coalesce(:locked_queue_id, '') = '' \
             ORDER BY :id LIMIT {most} {}",
            dialect.micros(":created_at"),
            dialect.as_text(":taskable_id"),
            strange(dialect),
            dialect.skip_locked()
        ));
        let found = self.db.query(&sql, &[self.looks.after.into()])?;
        let count = found.len() as u64;
        self.looks.more = count >= most;
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        for cells in found {
            match self.adopted(cells, now)? {
                Ok(row) => taken.push(row),
                Err((id, why)) => refused.push((id, why)),
            }
        }
        let last: Option<i64> = taken.last().map(|row: &Adopted| row.id).max(refused.last().map(|(id, _)| *id));
        if let Some(last) = last {
            self.looks.after = last;
        }
        let mut lanes: BTreeMap<(Lane, State), u64> = BTreeMap::new();
        for row in &taken {
            *lanes.entry((row.lane(), row.state)).or_default() += 1;
        }
        self.looks.promises.learn(&lanes, self.looks.after);
        self.refuse(&refused, now)?;
        self.written |= !taken.is_empty();
        let waits = |row: &Adopted| row.state == State::Ready && dialect.returns_updated();
        let (ready, others): (Vec<_>, Vec<_>) = taken.into_iter().partition(waits);
        self.write_as_they_are(&others)?;
        for row in ready {
            self.work.adopted.entry(row.lane()).or_default().push_back(row);
        }
        for ((lane, state), count) in lanes {
            self.count(lane, None, None, Some(state), count, now);
        }
        Ok(count)
    }

    /// What becomes of a row that another program inserted: a job, or its number and why it cannot be one.
    fn adopted(&mut self, mut cells: Cells, now: Time) -> Result<Result<Adopted, (i64, String)>, StoreError> {
        let (id, name, status) = (cells.int()?, cells.maybe_bytes()?, cells.words());
        let length = cells.maybe_int()?.unwrap_or(0);
        let ((priority, bad_priority), (due, bad_due)) = (rows::priority_in(&mut cells), rows::time_in(&mut cells));
        let created = cells.maybe_foreign_int().ok().flatten();
        let (kind, subject) = (cells.words(), cells.words());
        if status.as_deref() != Some("pending") {
            let what = status.map_or("it has no status".into(), |status| format!("unknown status `{status}`"));
            return Ok(Err((id, format!("{what}, expected pending for a job that is to be run"))));
        }
        let name = match QueueName::new(&name.unwrap_or_default()) {
            Ok(name) => name,
            Err(bad) => return Ok(Err((id, bad.to_string()))),
        };
        if length > DATA_MAX as i64 {
            return Ok(Err((id, rows::too_long(length))));
        }
        if let Some(why) = bad_priority.or(bad_due) {
            return Ok(Err((id, why)));
        }
        let due = due.filter(|due| *due > now);
        let subject = kind.filter(|kind| !kind.is_empty()).zip(subject).map(|(kind, id)| Subject { kind, id });
        let particulars = subject.map(|subject| Particulars { subject: Some(subject), ..Particulars::default() });
        if let Some(Err(bad)) = particulars.as_ref().map(Particulars::check) {
            return Ok(Err((id, bad.to_string())));
        }
        self.note_due(due);
        let state = if due.is_some() { State::Scheduled } else { State::Ready };
        let admitted = created.map(Time).filter(|created| *created <= now).unwrap_or(now);
        let queue = self.queue_no(&name)?;
        Ok(Ok(Adopted { id, queue, priority, state, due, admitted, particulars }))
    }

    /// Writes those that the turn has not claimed.
    pub(super) fn write_adopted(&mut self) -> Result<(), StoreError> {
        let mut left: Vec<Adopted> = std::mem::take(&mut self.work.adopted).into_values().flatten().collect();
        left.sort_unstable_by_key(|row| row.id);
        self.write_as_they_are(&left)
    }

    fn write_as_they_are(&mut self, taken: &[Adopted]) -> Result<(), StoreError> {
        if taken.is_empty() {
            return Ok(());
        }
        let mut params = Vec::new();
        let source = self.db.dialect.rows(columns(taken), &mut params);
        let set = format!("{}, {SET}, :locked_queue_id = ''", self.db.dialect.own_identity());
        let sql = self.names.sql(&self.db.dialect.update_from(":jobs", &set, &source, "j.:id = t.w_id"));
        self.db.execute(&sql, &params).map(|_| ())
    }

    /// How many of a lane this turn took in and has not written.
    pub(super) fn adopted_in(&self, lane: Lane) -> usize {
        self.work.adopted.get(&lane).map_or(0, std::collections::VecDeque::len)
    }

    /// Takes in and claims the first of them in one statement.
    pub(super) fn claim_adopted(&mut self, lane: Lane, most: usize, now: Time) -> Result<Vec<Row>, StoreError> {
        let Some(waiting) = self.work.adopted.get_mut(&lane).filter(|_| most > 0) else { return Ok(Vec::new()) };
        let mut first: Vec<Adopted> = waiting.drain(..most.min(waiting.len())).collect();
        if first.is_empty() {
            return Ok(Vec::new());
        }
        first.iter_mut().for_each(|row| row.state = State::Running);
        let dialect = self.db.dialect;
        let mut params: Vec<Value> = self.start_values(now).into();
        let source = dialect.rows(columns(&first), &mut params);
        let set = format!(
            "{}, {SET}, :status = 'processing', :starts = j.:starts + 1, :attempts = j.:starts + 1, :holder = $1, \
             :locked_queue_id = $2, :updated_at = {}",
            dialect.own_identity(),
            dialect.timestamp("$3")
        );
        let update = dialect.update_from(":jobs", &set, &source, "j.:id = t.w_id");
        let returned = if dialect == Dialect::Sqlite { COLUMNS.replace("j.:", ":") } else { COLUMNS.to_owned() };
        let sql = self.names.sql(&format!("{update} RETURNING {returned}"));
        self.db.query(&sql, &params)?.iter_mut().map(Row::read).collect()
    }

    /// Marks rows that make no sense and leaves them.
    fn refuse(&mut self, refused: &[(i64, String)], now: Time) -> Result<(), StoreError> {
        if refused.is_empty() {
            return Ok(());
        }
        self.written = true;
        let rows = Rows::default()
            .ints("w_id", refused.iter().map(|(id, _)| *id))
            .texts("w_why", refused.iter().map(|(_, why)| Some(self.db.room.details.cut(why))));
        let mut params = vec![now.as_micros().into()];
        let source = self.db.dialect.rows(rows, &mut params);
        let set = format!(":status = 'error', :details = t.w_why, :updated_at = {}", self.db.dialect.timestamp("$1"));
        let sql = self.names.sql(&self.db.dialect.update_from(":jobs", &set, &source, "j.:id = t.w_id"));
        self.db.execute(&sql, &params).map(|_| ())
    }
}

/// What a row is given that is taken in.
const SET: &str = ":queue_no = t.w_queue, :state = t.w_state, :lane_kind = 0, \
     :run_at = t.w_due, :admitted = t.w_admitted, :particulars = coalesce(t.w_particulars, j.:particulars)";

fn columns(taken: &[Adopted]) -> Rows {
    Rows::default()
        .ints("w_id", taken.iter().map(|row| row.id))
        .ints("w_queue", taken.iter().map(|row| i64::from(row.queue.0)))
        .ints("w_state", taken.iter().map(|row| row.state.index() as i64))
        .maybe_ints("w_due", taken.iter().map(|row| row.due.map(Time::as_micros)))
        .ints("w_admitted", taken.iter().map(|row| row.admitted.as_micros()))
        .blobs("w_particulars", taken.iter().map(|row| row.particulars.as_ref().map(encode_particulars)))
}
