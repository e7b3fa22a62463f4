//! What happens to single jobs, and who counts it: the one way in which a row changes its state.
//!
//! What waits and runs is counted by looking at the rows; what has ended, by each server in a row of its own, so that
//! servers do not wait for each other's counters. The engine is told of every move.

use super::SqlStore;
use super::dialect::Rows;
use super::rows::Row;
use crate::store::keys::{Step, key_of};
use crate::store::{Move, QueueStats, Settlement, StoreError};
use windlass_core::job::{Lane, QueueNo, RunNo};
use windlass_core::life_cycle::{self, Change, State};
use windlass_core::time::Time;

/// What a turn adds to a queue's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueDelta {
    pub(super) ended: [i64; 3],
    pub(super) started: i64,
    pub(super) waited: i64,
    pub(super) ran: i64,
}

/// What a turn adds to a run's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunDelta {
    pub(super) ended: [i64; 3],
    pub(super) dropped: i64,
}

/// The place of an end state among the counters.
fn end_index(state: State) -> Option<usize> {
    match state {
        State::Succeeded => Some(0),
        State::Failed => Some(1),
        State::Cancelled => Some(2),
        State::Scheduled | State::Ready | State::Running | State::Retrying | State::Suspended => None,
    }
}

/// The end states in the order of the counters.
pub(super) const ENDS: [State; 3] = [State::Succeeded, State::Failed, State::Cancelled];

/// What a job was before it changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Was {
    pub(super) state: State,
    lane: Lane,
    run: Option<RunNo>,
}

impl Was {
    pub(super) fn of(row: &Row) -> Was {
        Was { state: row.state, lane: row.lane(), run: row.run }
    }
}

impl SqlStore {
    /// The one way a job changes its state: the table is asked, counters, keys and moves follow. `row` is as it will
    /// be but for the state.
    pub(super) fn transit(&mut self, was: Was, row: &mut Row, change: Change, now: Time) -> Result<State, StoreError> {
        let to = life_cycle::next(was.state, change);
        let to = to.ok_or_else(|| StoreError::Corrupt(format!("{} is {} and cannot {change:?}", row.id, was.state)))?;
        self.set_state(was, row, to, now);
        Ok(to)
    }

    /// What follows from another state, whether the table has such a change or another program made it.
    pub(super) fn set_state(&mut self, was: Was, row: &mut Row, to: State, now: Time) {
        // A lane is about ready jobs: the one that is left, or the one that is entered.
        let lane = if was.state == State::Ready { was.lane } else { row.lane() };
        row.state = to;
        if to.is_end() {
            self.free_keys_of(row, Step::Ended);
            self.work.ends.push((row.id, to == State::Succeeded));
        }
        if was.lane.queue == row.queue {
            self.count_in_queue(lane, row.run, Some(was.state), Some(to), 1);
        } else {
            self.count_in_queue(was.lane, was.run, Some(was.state), None, 1);
            self.count_in_queue(row.lane(), row.run, None, Some(to), 1);
        }
        let left = Some(was.state).filter(|_| was.run == row.run);
        self.count_in_run(row.run, left, Some(to), 1, now);
        self.save(row);
    }

    pub(super) fn count(
        &mut self,
        lane: Lane,
        run: Option<RunNo>,
        from: Option<State>,
        to: Option<State>,
        count: u64,
        now: Time,
    ) {
        self.count_in_queue(lane, run, from, to, count);
        self.count_in_run(run, from, to, count, now);
    }

    pub(super) fn count_in_queue(
        &mut self,
        lane: Lane,
        run: Option<RunNo>,
        from: Option<State>,
        to: Option<State>,
        count: u64,
    ) {
        // What is forgotten had ended, and the end states count for ever.
        let left = from.and_then(end_index).filter(|_| to.is_some());
        let entered = to.and_then(end_index);
        if left.is_some() || entered.is_some() {
            let delta = self.work.queue_deltas.entry(lane.queue).or_default();
            left.into_iter().for_each(|at| delta.ended[at] -= count as i64);
            entered.into_iter().for_each(|at| delta.ended[at] += count as i64);
        }
        self.tell(Move { lane, run, from, to, count });
    }

    /// Tells the engine of a move.
    pub(super) fn tell(&mut self, step: Move) {
        self.looks.told(&step);
        match self.changes.moves.last_mut() {
            Some(last) if (last.lane, last.run, last.from, last.to) == (step.lane, step.run, step.from, step.to) => {
                last.count += step.count;
            }
            Some(_) | None => self.changes.moves.push(step),
        }
    }

    fn count_in_run(&mut self, run: Option<RunNo>, from: Option<State>, to: Option<State>, count: u64, now: Time) {
        let (Some(no), Some(to)) = (run, to) else { return };
        let (left, entered) = (from.and_then(end_index), end_index(to));
        if left.is_none() && entered.is_none() {
            return;
        }
        let delta = self.work.run_deltas.entry(no).or_default();
        left.into_iter().for_each(|at| delta.ended[at] -= count as i64);
        entered.into_iter().for_each(|at| delta.ended[at] += count as i64);
        self.touch(no, now);
    }

    /// The run may have ended with this turn.
    pub(super) fn touch(&mut self, run: RunNo, now: Time) {
        self.work.touched.insert(run, now);
    }

    pub(super) fn drop_from_run(&mut self, run: RunNo, count: u64, now: Time) {
        self.work.run_deltas.entry(run).or_default().dropped += count as i64;
        self.touch(run, now);
    }

    /// Adds to the sums of waiting and running times of the queue.
    pub(super) fn count_times(&mut self, settlement: &Settlement) {
        let Settlement { held, started, finished, .. } = settlement;
        let waited = self.there(*started).since(held.admitted);
        let (count, delta) = (i64::from(held.count), self.work.queue_deltas.entry(held.lane.queue).or_default());
        let micros = |time: std::time::Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        delta.waited = delta.waited.saturating_add(count.saturating_mul(micros(waited)));
        delta.ran = delta.ran.saturating_add(count.saturating_mul(micros(finished.since(*started))));
    }

    pub(super) fn count_starts(&mut self, queue: QueueNo, count: u64) {
        self.work.queue_deltas.entry(queue).or_default().started += count as i64;
    }

    /// The keys that a job gives up with this step.
    pub(super) fn free_keys_of(&mut self, row: &Row, step: Step) {
        let unique = row.particulars.as_deref().and_then(|particulars| particulars.unique.as_ref());
        let unique = unique.filter(|unique| step.frees(unique.scope));
        let key = unique.and_then(|unique| key_of(unique, row.queue, None, &row.data));
        self.work.freed.extend(key.map(|key| (key, row.id)));
    }

    /// Writes what the turn added to the counters of runs, so that the statements after it see it.
    pub(super) fn flush_run_deltas(&mut self) -> Result<(), StoreError> {
        let deltas = std::mem::take(&mut self.work.run_deltas);
        if deltas.is_empty() {
            return Ok(());
        }
        self.begin()?;
        self.written = true;
        let server = self.options.server.clone();
        let ended = |at: usize| deltas.values().map(move |delta| delta.ended[at]).collect::<Vec<_>>();
        let rows = Rows::default()
            .ints("run", deltas.keys().map(|no| i64::from(no.0)))
            .texts("server", deltas.keys().map(|_| Some(server.clone())))
            .ints("succeeded", ended(0))
            .ints("failed", ended(1))
            .ints("cancelled", ended(2))
            .ints("dropped", deltas.values().map(|delta| delta.dropped));
        let columns = ["succeeded", "failed", "cancelled", "dropped"];
        self.add_up(":run_counts", &["run", "server"], &columns, rows)
    }

    pub(super) fn flush_queue_deltas(&mut self) -> Result<(), StoreError> {
        let deltas = std::mem::take(&mut self.work.queue_deltas);
        if deltas.is_empty() {
            return Ok(());
        }
        self.begin()?;
        let server = self.options.server.clone();
        let ended = |at: usize| deltas.values().map(move |delta| delta.ended[at]).collect::<Vec<_>>();
        let rows = Rows::default()
            .ints("queue", deltas.keys().map(|no| i64::from(no.0)))
            .texts("server", deltas.keys().map(|_| Some(server.clone())))
            .ints("succeeded", ended(0))
            .ints("failed", ended(1))
            .ints("cancelled", ended(2))
            .ints("started", deltas.values().map(|delta| delta.started))
            .ints("waited", deltas.values().map(|delta| delta.waited))
            .ints("ran", deltas.values().map(|delta| delta.ran));
        let columns = ["succeeded", "failed", "cancelled", "started", "waited", "ran"];
        self.add_up(":queue_counts", &["queue", "server"], &columns, rows)
    }

    fn add_up(&mut self, table: &str, key: &[&str], columns: &[&str], rows: Rows) -> Result<(), StoreError> {
        let mut params = Vec::new();
        let source = self.db.dialect.rows(rows, &mut params);
        let sql = self.names.sql(&self.db.dialect.upsert(table, key, columns, true, &source));
        self.db.execute_ahead(sql, params)
    }
}

/// The counters of a queue from its stored sums; what waits and runs is added by whoever counted it.
pub(super) fn stats(ended: [i64; 3], [started, waited, ran]: [i64; 3]) -> QueueStats {
    let mut stats =
        QueueStats { started: started as u64, waited: waited as u64, ran: ran as u64, ..Default::default() };
    for (state, count) in ENDS.iter().zip(ended) {
        stats.by_state[state.index()] = u64::try_from(count).unwrap_or(0);
    }
    stats
}
