//! The verb `claim`: the head of a lane is taken in one statement, and the start is stored with it.
//!
//! What another server is about to take is passed over, never waited for. Rows that came in together are handed out
//! together, as one claim.

use super::database::{Cells, Value};
use super::rows::{self, COLUMNS, Lock, Row};
use super::tally::Was;
use super::{Dialect, SqlStore, StoreError};
use crate::store::keys::Step;
use crate::store::{Held, Order, Place};
use std::sync::Arc;
use windlass_core::job::{JobId, Lane, LaneKind, Record};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

use super::super::chunk::{BYTES_MAX, JOBS_MAX};

/// The rows of a lane, which is three values from this one on, and the most of them, which is the next.
fn head_of_lane(columns: &str, first: usize, lock: &str) -> String {
    let [kind, priority, most] = [1, 2, 3].map(|more| first + more);
    format!(
        "SELECT {columns} FROM :jobs AS j WHERE j.:state = 1 AND j.:status = 'pending' AND j.:queue_no = ${first} \
         AND j.:lane_kind = ${kind} AND j.:priority = ${priority} ORDER BY j.:run_at, j.:id LIMIT ${most} {lock}"
    )
}

impl SqlStore {
    pub(super) fn claim_lane(&mut self, order: &Order, now: Time) -> Result<Vec<Held>, StoreError> {
        self.begin()?;
        self.flush_own(now)?;
        let (lane, most) = (order.lane, order.most as usize);
        // New rows of others, which are not written yet, stand behind what the table has.
        let new = self.adopted_in(lane) + self.looks.promises.count_in(lane) as usize;
        let mut rows = match new == 0 || self.looks.has_more_in(lane, new) {
            true => self.claim_what_may_start(lane, most, now)?,
            false => Vec::new(),
        };
        rows.extend(self.claim_adopted(lane, most - rows.len(), now)?);
        rows.extend(self.claim_promised(lane, most - rows.len(), now)?);
        // The order of rows that a statement changed is nobody's promise.
        rows.sort_by_key(|row| (row.due, row.arrival));
        self.looks.ordered(lane, most as u64);
        self.written |= !rows.is_empty();
        for row in &rows {
            self.free_keys_of(row, Step::Begun);
            self.work.claimed.push(row.id);
        }
        self.flush_freed_keys()?;
        self.count_starts(lane.queue, rows.len() as u64);
        for same_run in rows.chunk_by(|one, other| one.run == other.run) {
            let (run, count) = (same_run[0].run, same_run.len() as u64);
            self.count(lane, run, Some(State::Ready), Some(State::Running), count, now);
        }
        if rows.len() < most {
            self.looks.came_short(lane);
        }
        Ok(held(&rows))
    }

    /// The head of a lane without what another program changed so that it must not start.
    fn claim_what_may_start(&mut self, lane: Lane, most: usize, now: Time) -> Result<Vec<Row>, StoreError> {
        let mut rows = Vec::new();
        loop {
            let mut found = self.claim_written(lane, most - rows.len(), now)?;
            let put_back = self.put_back(&mut found, now)?;
            rows.append(&mut found);
            if put_back == 0 || rows.len() == most {
                return Ok(rows);
            }
        }
    }

    /// Another program may write to a row that waits and leave its status alone, which no look finds: what makes no
    /// sense now is marked in words, and what is to start later waits. Tells how many those were.
    fn put_back(&mut self, claimed: &mut Vec<Row>, now: Time) -> Result<usize, StoreError> {
        let later = |row: &Row| row.kind() == LaneKind::Fresh && row.due.is_some_and(|due| due > now);
        let changed: Vec<Row> = claimed.extract_if(.., |row| row.odd.is_some() || later(row)).collect();
        let count = changed.len();
        if count == 0 {
            return Ok(0);
        }
        self.written = true;
        // What became of jobs that the engine ordered it is told after the commit, as of a lane that came short.
        let told = std::mem::take(&mut self.changes.moves);
        for mut row in changed {
            (row.state, row.record) = (State::Ready, before(row.record));
            let was = Was::of(&row);
            let to = match row.odd.take() {
                Some(why) => {
                    row.ended = Some(now);
                    row.note_error(now, &why);
                    State::Failed
                }
                None => {
                    self.note_due(row.due);
                    State::Scheduled
                }
            };
            self.set_state(was, &mut row, to, now);
        }
        self.flush_own(now)?;
        self.end_waits(now)?;
        let after = std::mem::replace(&mut self.changes.moves, told);
        self.work.told_later.extend(after);
        Ok(count)
    }

    /// The head of a lane as the table has it.
    fn claim_written(&mut self, lane: Lane, most: usize, now: Time) -> Result<Vec<Row>, StoreError> {
        let params: Vec<Value> = vec![
            i64::from(lane.queue.0).into(),
            (lane.kind as i64).into(),
            i64::from(lane.priority.value()).into(),
            (most as i64).into(),
        ];
        match self.db.dialect.returns_updated() {
            true => self.claim_at_once(params, now),
            false => self.claim_in_two(params, now),
        }
    }

    /// One statement where the database gives back what it changed.
    fn claim_at_once(&mut self, mut params: Vec<Value>, now: Time) -> Result<Vec<Row>, StoreError> {
        let lock = self.db.dialect.skip_locked();
        params.splice(0..0, self.start_values(now));
        let claimed = self.start_head(&head_of_lane("j.:id", 4, lock), ":state = 2", COLUMNS, &params)?;
        claimed.into_iter().map(|mut cells| Row::read(&mut cells)).collect()
    }

    /// Who starts rows, and when: the first three values of such a statement.
    pub(super) fn start_values(&self, now: Time) -> [Value; 3] {
        [(self.epoch as i64).into(), self.lock.as_str().into(), now.as_micros().into()]
    }

    /// Starts the rows that a selection locks, and gives back these columns of them.
    pub(super) fn start_head(
        &mut self,
        head: &str,
        set: &str,
        columns: &str,
        params: &[Value],
    ) -> Result<Vec<Cells>, StoreError> {
        if self.db.dialect == Dialect::Sqlite {
            return self.start_where(&format!("j.:id IN ({head})"), set, columns, params);
        }
        // The head is found once, whatever the planner thinks of it.
        let (with, start) = (format!("WITH head AS MATERIALIZED ({head})"), self.start(set));
        let sql = format!("{with} {start} FROM head WHERE j.:id = head.:id RETURNING {columns}");
        self.db.query(&self.names.sql(&sql), params)
    }

    /// Starts the rows that a condition finds, and gives back these columns of them.
    pub(super) fn start_where(
        &mut self,
        condition: &str,
        set: &str,
        columns: &str,
        params: &[Value],
    ) -> Result<Vec<Cells>, StoreError> {
        let returned = match self.db.dialect {
            Dialect::Sqlite => columns.replace("j.:", ":"),
            Dialect::Postgres | Dialect::Mariadb => columns.to_owned(),
        };
        let sql = format!("{} WHERE {condition} RETURNING {returned}", self.start(set));
        self.db.query(&self.names.sql(&sql), params)
    }

    /// What every start writes, and this.
    fn start(&self, set: &str) -> String {
        let updated = self.db.dialect.timestamp("$3");
        format!(
            "UPDATE :jobs AS j SET {set}, :status = 'processing', :starts = j.:starts + 1, \
             :attempts = j.:starts + 1, :holder = $1, :locked_queue_id = $2, :updated_at = {updated}"
        )
    }

    fn claim_in_two(&mut self, params: Vec<Value>, now: Time) -> Result<Vec<Row>, StoreError> {
        let lock = self.db.dialect.skip_locked();
        let sql = self.names.sql(&head_of_lane(COLUMNS, 1, lock));
        let mut rows: Vec<Row> = self.db.query(&sql, &params)?.iter_mut().map(Row::read).collect::<Result<_, _>>()?;
        if rows.is_empty() {
            return Ok(rows);
        }
        let ids = super::dialect::Rows::default().ints("w_id", rows.iter().map(|row| row.arrival.0 as i64));
        let mut params: Vec<Value> = self.start_values(now).into();
        let source = self.db.dialect.rows(ids, &mut params);
        let updated = self.db.dialect.timestamp("$3");
        let set = format!(
            ":attempts = j.:starts + 1, :starts = j.:starts + 1, :state = 2, :status = 'processing', \
             :holder = $1, :locked_queue_id = $2, :updated_at = {updated}"
        );
        let sql = self.names.sql(&self.db.dialect.update_from(":jobs", &set, &source, "j.:id = t.w_id"));
        self.db.execute(&sql, &params)?;
        for row in &mut rows {
            row.record.starts += 1;
            row.state = State::Running;
        }
        Ok(rows)
    }

    /// The claim of a job that this opening holds.
    pub(super) fn held_one(&mut self, id: JobId) -> Result<Option<Held>, StoreError> {
        let rows = self.held_rows(&[id], Lock::None)?;
        Ok(rows.first().map(|row| row.held(before(row.record))))
    }

    /// Of these jobs those that this opening holds.
    pub(super) fn held_rows(&mut self, ids: &[JobId], lock: Lock) -> Result<Vec<Row>, StoreError> {
        let mut params: Vec<Value> = vec![(self.speaks_for as i64).into()];
        let source = self.db.dialect.rows(rows::identities(ids), &mut params);
        let lock = lock.of(self.db.dialect);
        let holder = self.db.dialect.compared("j.:holder");
        let sql = self.names.sql(&format!(
            "SELECT {COLUMNS} FROM {} WHERE j.:state = 2 AND j.:status = 'processing' AND {holder} = $1 {lock}",
            self.db.dialect.found(":jobs", &source, &self.db.dialect.is_job("t.o", "t.f"))
        ));
        self.db.query(&sql, &params)?.iter_mut().map(Row::read).collect()
    }
}

/// A record without the start that a claim stored.
pub(super) fn before(record: Record) -> Record {
    Record { starts: record.starts - 1, ..record }
}

/// Rows in the order of their lane, as claims of neighbours.
fn held(rows: &[Row]) -> Vec<Held> {
    let mut claims = Vec::new();
    let mut rest = rows;
    while let Some(first) = rest.first() {
        let mut bytes = first.data.len();
        let joined = rest.windows(2).take(JOBS_MAX - 1).take_while(|pair| {
            bytes += pair[1].data.len();
            rows::joins(&pair[0], &pair[1]) && bytes <= BYTES_MAX
        });
        let count = 1 + joined.count();
        let (some, others) = rest.split_at(count);
        let jobs = Arc::new(rows::chunk_of(some));
        let place = if count == 1 { Place::Row(first.arrival) } else { Place::Chunk(first.arrival) };
        let (record, count) = (before(first.record), count as u16);
        let (lane, run, admitted) = (first.lane(), first.run, first.admitted);
        claims.push(Held { place, lane, run, record, admitted, jobs, first: 0, count });
        rest = others;
    }
    claims
}
