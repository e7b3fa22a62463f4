//! The verb `claim`: the head of a lane is taken in one statement, and the start is stored with it.
//!
//! What another server is about to take is passed over, never waited for. Rows that came in together are handed out
//! together, as one claim.

use super::database::Value;
use super::rows::{self, COLUMNS, Row};
use super::{SqlStore, StoreError};
use crate::store::keys::Step;
use crate::store::{Held, Order, Place};
use std::sync::Arc;
use windlass_core::job::{JobId, Record};
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
            true => self.claim_written(order, now)?,
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

    /// The head of a lane as the table has it.
    fn claim_written(&mut self, order: &Order, now: Time) -> Result<Vec<Row>, StoreError> {
        let lane = order.lane;
        let params: Vec<Value> = vec![
            i64::from(lane.queue.0).into(),
            (lane.kind as i64).into(),
            i64::from(lane.priority.value()).into(),
            i64::from(order.most).into(),
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
        self.start_head(&head_of_lane("j.:id", 4, lock), ":state = 2", &params)
    }

    /// Who starts rows, and when: the first three values of such a statement.
    pub(super) fn start_values(&self, now: Time) -> [Value; 3] {
        [(self.epoch as i64).into(), self.lock.as_str().into(), now.as_micros().into()]
    }

    /// Starts the rows that a selection locks, and gives them back.
    pub(super) fn start_head(&mut self, head: &str, set: &str, params: &[Value]) -> Result<Vec<Row>, StoreError> {
        let dialect = self.db.dialect;
        let updated = dialect.timestamp("$3");
        let (with, from, matching) = match dialect {
            super::Dialect::Sqlite => (String::new(), "", format!("j.:id IN ({head})")),
            // The head is found once, whatever the planner thinks of it.
            _ => (format!("WITH head AS MATERIALIZED ({head}) "), "FROM head", "j.:id = head.:id".to_owned()),
        };
        let sql = self.names.sql(&format!(
            "{with}UPDATE :jobs AS j SET {set}, :status = 'processing', :starts = j.:starts + 1, \
             :attempts = j.:starts + 1, :holder = $1, :locked_queue_id = $2, :updated_at = {updated} {from} \
             WHERE {matching} RETURNING {}",
            if dialect == super::Dialect::Sqlite { COLUMNS.replace("j.:", ":") } else { COLUMNS.to_owned() }
        ));
        self.db.query(&sql, params)?.iter_mut().map(Row::read).collect()
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
        let rows = self.held_rows(&[id], false)?;
        Ok(rows.first().map(|row| row.held(before(row.record))))
    }

    /// Of these jobs those that this opening holds.
    pub(super) fn held_rows(&mut self, ids: &[JobId], lock: bool) -> Result<Vec<Row>, StoreError> {
        let mut params: Vec<Value> = vec![(self.speaks_for as i64).into()];
        let source = self.db.dialect.rows(rows::identities(ids), &mut params);
        let lock = if lock { rows::lock_of(self.db.dialect) } else { "" };
        let holder = self.db.dialect.compared("j.:holder");
        let sql = self.names.sql(&format!(
            "SELECT {COLUMNS} FROM :jobs AS j JOIN {source} ON j.:job_origin = t.o AND j.:job_offset = t.f \
             WHERE j.:state = 2 AND j.:status = 'processing' AND {holder} = $1 {lock}"
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
