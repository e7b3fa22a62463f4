//! The verb `settle`: the end of starts, guarded by their tokens.
//!
//! Those that succeeded are one statement, or a few where they are very many; the others are read, changed and written
//! back. A start that is not held any more refuses the whole call and changes nothing.

use super::columns::Room;
use super::database::Value;
use super::dialect::{Dialect, Rows};
use super::outbox::starts;
use super::rows::{self, ERASED, Lock, MOVED_AWAY, Row};
use super::tally::Was;
use super::{Keep, SqlStore, StoreError};
use crate::sabotage::{self, Sabotage};
use crate::store::keys::{self, Step};
use crate::store::late;
use crate::store::{FollowUp, MOVED, Settlement};
use std::collections::{HashMap, HashSet};
use windlass_core::job::JobId;
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::{Change, State};
use windlass_core::suspicion::Ruling;
use windlass_core::time::Time;

/// What every row of a job that succeeded says.
const ENDED: &str = ":state = 5, :status = 'completed', :locked_queue_id = '', :holder = NULL";

/// And what it says besides of one that another server has now.
fn ended(part: &[(JobId, &Settlement)]) -> String {
    match part.first().is_some_and(|(_, first)| first.outcome == MOVED) {
        true => format!("{ENDED}, :reason = {MOVED_AWAY}"),
        false => ENDED.to_owned(),
    }
}

impl SqlStore {
    pub(super) fn settle_all(
        &mut self,
        settlements: &[Settlement],
        follow_ups: &[FollowUp],
        now: Time,
    ) -> Result<(), StoreError> {
        refuse_doubles(settlements)?;
        // What a turn ended that was in doubt is written already, with all that followed from it.
        let said = starts(settlements).filter(|start| self.done.ended.contains(start));
        let said: HashSet<JobId> = said.map(|(id, _)| id).collect();
        let left = (!said.is_empty()).then(|| late::without(settlements, follow_ups, &said));
        let (settlements, follow_ups) = match &left {
            Some(left) => (&left.settlements[..], &left.follow_ups[..]),
            None => (settlements, follow_ups),
        };
        self.begin()?;
        self.flush(now)?;
        let (done, others): (Vec<&Settlement>, Vec<&Settlement>) =
            settlements.iter().partition(|settlement| matches!(settlement.verdict, Verdict::Succeed { .. }));
        let mut rows = self.rows_of(&others)?;
        self.succeed(&done, now).map_err(|error| self.keep_rows_instead(error))?;
        self.settled_now(settlements);
        self.work.settled.extend(starts(settlements));
        for settlement in settlements {
            self.count_times(settlement);
            self.note_outcome(settlement);
        }
        for settlement in done {
            let held = &settlement.held;
            let count = u64::from(held.count);
            self.count(held.lane, held.run, Some(State::Running), Some(State::Succeeded), count, now);
            self.work.freed.extend(keys::freed(&held.jobs, held.range(), held.lane.queue, Step::Ended));
            // How one that was moved will end is not told here.
            self.work.ends.extend(held.ids().map(|id| (id, settlement.outcome != MOVED)));
        }
        for settlement in others {
            for id in settlement.held.ids() {
                if let Some(row) = rows.remove(&id) {
                    self.settle_row(row, settlement, now)?;
                }
            }
        }
        self.flush(now)?;
        self.admit_follow_ups(follow_ups, now)?;
        self.end_waits(now)?;
        // What ended makes room for as many.
        self.promise_more(settlements.iter().map(|settlement| u64::from(settlement.held.count)).sum());
        Ok(())
    }

    /// Where another table refers to rows that were to go with their end they stay until this server ends, and the turn
    /// is done again.
    fn keep_rows_instead(&mut self, error: StoreError) -> StoreError {
        match error {
            StoreError::Refused(why) if self.options.keep == Keep::None => {
                self.options.keep = Keep::Rows;
                self.remarks.push(format!("rows stay as `completed`, because another table refers to them: {why}"));
                StoreError::Busy(why)
            }
            error => error,
        }
    }

    /// The rows of what did not succeed, if all of them are held.
    fn rows_of(&mut self, others: &[&Settlement]) -> Result<HashMap<JobId, Row>, StoreError> {
        let ids: Vec<JobId> = others.iter().flat_map(|settlement| settlement.held.ids()).collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let rows: HashMap<JobId, Row> =
            self.held_rows(&ids, Lock::Wait)?.into_iter().map(|row| (row.id, row)).collect();
        for settlement in others {
            let start = settlement.held.start();
            let held = |id: &JobId| {
                rows.get(id).is_some_and(|row| row.record.starts == start || sabotage::on(Sabotage::SettleWithoutToken))
            };
            if let Some(id) = settlement.held.ids().find(|id| !held(id)) {
                return Err(StoreError::Stale(format!("start {start} of {id} is not held any more")));
            }
        }
        Ok(rows)
    }

    fn succeed(&mut self, done: &[&Settlement], now: Time) -> Result<(), StoreError> {
        let each: Vec<(JobId, &Settlement)> =
            done.iter().flat_map(|settlement| settlement.held.ids().map(move |id| (id, *settlement))).collect();
        if each.is_empty() {
            return Ok(());
        }
        let guarded = self.written;
        if guarded {
            self.db.batch(&["SAVEPOINT settle"])?;
        }
        let mut ended = 0;
        let alike = each.chunk_by(|(_, one), (_, other)| (one.outcome == MOVED) == (other.outcome == MOVED));
        for part in alike.flat_map(|some| some.chunks(rows::ROWS_MOST)) {
            let mut found = 0;
            if let Some((sql, params)) = self.success_alike(part, now) {
                found = self.db.execute(&sql, &params)?;
            }
            // A job that went elsewhere and came back is in a row of another number.
            if found < part.len() as u64 {
                let (sql, params) = self.success_of(part, now);
                found += self.db.execute(&sql, &params)?;
            }
            ended += found;
        }
        if ended == each.len() as u64 {
            self.written = true;
            return Ok(());
        }
        // Nothing of a refused call may stay, and all that came before it must.
        if guarded {
            self.db.batch(&["ROLLBACK TO SAVEPOINT settle"])?
        } else {
            self.drop_transaction()?
        }
        Err(StoreError::Stale(format!("of {} starts that succeeded, some are not held any more", each.len())))
    }

    /// The same for rows of other programs that all ended alike, which is how most do: their ids are the rows'
    /// numbers, and nothing else has to be said of each. Only where a database takes an array for a list of numbers.
    fn success_alike(&self, part: &[(JobId, &Settlement)], now: Time) -> Option<(String, Vec<Value>)> {
        let (_, first) = part.first()?;
        let (start, took) = (first.held.start(), seconds(first));
        let alike = |(id, settlement): &(JobId, &Settlement)| {
            let told = message(settlement, &self.db.room).is_some();
            id.origin == self.origin && settlement.held.start() == start && seconds(settlement) == took && !told
        };
        if self.db.dialect != Dialect::Postgres || sabotage::on(Sabotage::HolderIgnored) || !part.iter().all(alike) {
            return None;
        }
        let numbers = part.iter().map(|(id, _)| Some(id.offset as i64)).collect();
        let mut params: Vec<Value> = vec![
            (self.speaks_for as i64).into(),
            Value::Ints(numbers),
            (self.origin.bits() as i64).into(),
            i64::from(start).into(),
        ];
        let holder = self.db.dialect.compared("j.:holder");
        let token = format!(
            "j.:id = ANY($2) AND coalesce(j.:job_origin, $3) = $3 AND coalesce(j.:job_offset, j.:id) = j.:id \
             AND j.:state = 2 AND j.:status = 'processing' AND {holder} = $1 AND j.:starts = $4"
        );
        let sql = match self.options.keep {
            Keep::None => format!("DELETE FROM :jobs AS j WHERE {token}"),
            Keep::Rows => {
                params.extend([now.as_micros().into(), took.into()]);
                let updated = self.db.dialect.timestamp("$5");
                format!(
                    "UPDATE :jobs AS j SET {}, :details = {ERASED}, :ended_at = $5, :duration = $6, \
                     :updated_at = {updated} WHERE {token}",
                    ended(part)
                )
            }
        };
        Some((self.names.sql(&sql), params))
    }

    /// The statement that ends these starts, as far as they are held.
    fn success_of(&self, part: &[(JobId, &Settlement)], now: Time) -> (String, Vec<Value>) {
        let mut rows = Rows::default()
            .ints("o", part.iter().map(|(id, _)| id.origin.bits() as i64))
            .ints("f", part.iter().map(|(id, _)| id.offset as i64))
            .ints("w_start", part.iter().map(|(_, settlement)| i64::from(settlement.held.start())));
        let mut params: Vec<Value> = vec![(self.speaks_for as i64).into()];
        let dialect = self.db.dialect;
        let holder = match sabotage::on(Sabotage::HolderIgnored) {
            true => "coalesce($1, 0) > 0".to_owned(),
            false => format!("{} = $1", dialect.compared("j.:holder")),
        };
        let token = format!(
            "{} AND j.:state = 2 AND j.:status = 'processing' AND {holder} AND j.:starts = t.w_start",
            dialect.is_job("t.o", "t.f")
        );
        let sql = match self.options.keep {
            Keep::None => {
                let source = dialect.rows(rows, &mut params);
                dialect.delete_from(":jobs", &source, &token)
            }
            Keep::Rows => {
                rows = rows
                    .ints("w_seconds", part.iter().map(|(_, settlement)| seconds(settlement)))
                    .texts("w_message", part.iter().map(|(_, settlement)| message(settlement, &self.db.room)));
                params.push(now.as_micros().into());
                let source = dialect.rows(rows, &mut params);
                let set = format!(
                    "{}, :ended_at = $2, :duration = t.w_seconds, \
                     :details = coalesce(t.w_message, {ERASED}), :updated_at = {}",
                    ended(part),
                    dialect.timestamp("$2")
                );
                dialect.update_from(":jobs", &set, &source, &token)
            }
        };
        (self.names.sql(&sql), params)
    }

    fn settle_row(&mut self, mut row: Row, settlement: &Settlement, now: Time) -> Result<(), StoreError> {
        let was = Was::of(&row);
        row.duration = Some(seconds(settlement));
        let change = apply(&mut row, settlement, now);
        if matches!(change, Change::Retry | Change::Snooze) {
            row.due = row.due.map(|due| self.there(due));
        }
        self.note_due(row.due.filter(|_| matches!(change, Change::Retry | Change::Snooze)));
        self.transit(was, &mut row, change, now)?;
        Ok(())
    }
}

/// A job that one call settles twice is held no more the second time.
fn refuse_doubles(settlements: &[Settlement]) -> Result<(), StoreError> {
    let mut seen = HashSet::new();
    for id in settlements.iter().flat_map(|settlement| settlement.held.ids()) {
        if !seen.insert(id) {
            return Err(StoreError::Stale(format!("{id} is settled twice in one call")));
        }
    }
    Ok(())
}

fn seconds(settlement: &Settlement) -> i64 {
    settlement.finished.since(settlement.started).as_secs() as i64
}

fn message(settlement: &Settlement, room: &Room) -> Option<String> {
    match &settlement.verdict {
        Verdict::Succeed { message } if !message.is_empty() => Some(room.details.cut(message)),
        _ => None,
    }
}

/// Writes a verdict into a row whose start is counted already.
fn apply(row: &mut Row, settlement: &Settlement, now: Time) -> Change {
    let finished = settlement.finished;
    let change = match &settlement.verdict {
        Verdict::Succeed { .. } => Change::Succeed,
        Verdict::Return => Change::Interrupt,
        Verdict::Cancel => Change::Cancel,
        Verdict::Snooze { at } => {
            row.due = Some(*at);
            Change::Snooze
        }
        Verdict::Retry { at, error } => {
            row.record.failures += 1;
            row.due = Some(*at);
            row.note_error(finished, error);
            Change::Retry
        }
        Verdict::Fail { reason, error } => {
            row.record.failures += 1;
            row.reason = Some(*reason);
            row.note_error(finished, error);
            Change::Fail
        }
        Verdict::Suspect(ruling) => {
            row.record.suspicions += 1;
            let times = row.record.suspicions;
            obey(row, *ruling, finished, &format!("its worker died {times} times while it ran"))
        }
    };
    if matches!(change, Change::Cancel | Change::Fail) {
        row.ended = Some(now);
    }
    change
}

/// Writes down what follows from a suspicion that is counted already.
pub(super) fn obey(row: &mut Row, ruling: Ruling, at: Time, text: &str) -> Change {
    match ruling {
        Ruling::Ready(_) => Change::Interrupt,
        Ruling::Wait(until) => {
            row.due = Some(until);
            Change::Retry
        }
        Ruling::Convicted => {
            row.reason = Some(Reason::Poison);
            row.note_error(at, text);
            Change::Fail
        }
    }
}
