//! The verb `settle`: the end of starts.
//!
//! Success is a mark. Every other verdict makes the job a row, or changes the row that it is: retrying with its due
//! time, failed and cancelled with their data, given back with its start counted (a job that was stopped may have
//! begun, so its next start must have another number). It must not judge.

use super::super::{Held, Place, Settlement, StoreError};
use super::Turn;
use super::part::{Head, Mark};
use super::rows::{self, Row};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::{Change, State};
use windlass_core::suspicion::Ruling;
use windlass_core::time::Time;

impl Turn<'_> {
    pub(super) fn settle(&mut self, settlements: &[Settlement], now: Time) -> Result<(), StoreError> {
        let mut rows = Vec::new();
        for settlement in settlements {
            rows.push(self.check_held(&settlement.held)?);
        }
        for (settlement, row) in settlements.iter().zip(rows) {
            self.save_times(settlement);
            self.note_outcome(settlement);
            match row {
                Some(row) => self.settle_row(row, settlement, now)?,
                None => self.settle_range(settlement, now)?,
            }
        }
        self.end_runs(now);
        Ok(())
    }

    /// Checks that a claim is still held, before anything changes; returns the row where it is one.
    fn check_held(&self, held: &Held) -> Result<Option<Row>, StoreError> {
        let stale = || {
            let id = held.jobs.id(usize::from(held.first));
            StoreError::Stale(format!("start {} of {id} is no longer held", held.start()))
        };
        match held.place {
            Place::Chunk(first) => {
                let part = self.m.parts.get(&first.0).ok_or_else(stale)?;
                let ours = held.count > 0 && held.record.starts == 0 && part.all_are(held.range(), Mark::Claimed);
                if ours { Ok(None) } else { Err(stale()) }
            }
            Place::Row(arrival) => {
                let row = rows::by_arrival(self.db, arrival.0)?.ok_or_else(stale)?;
                let ours = row.state == State::Running && row.record.starts == held.start();
                if ours { Ok(Some(row)) } else { Err(stale()) }
            }
        }
    }

    fn settle_range(&mut self, settlement: &Settlement, now: Time) -> Result<(), StoreError> {
        let held = &settlement.held;
        let Place::Chunk(first) = held.place else { return Ok(()) };
        let count = u64::from(held.count);
        // A claim that the same call settles twice is noticed here.
        let part = self.m.parts.get(&first.0).filter(|part| part.all_are(held.range(), Mark::Claimed));
        let head = part.map(|part| part.head).ok_or_else(|| StoreError::Io("a claim was settled twice".into()))?;
        self.mark(first.0, held.range(), Mark::Claimed, Mark::Gone)?;
        let change = change_of(&settlement.verdict);
        let mut lane = held.lane;
        if change != Change::Succeed {
            for index in held.range() {
                let mut row = Row::from_chunk(&head_of(&head), &held.jobs, index, State::Running);
                row.record.starts = held.start();
                apply(&mut row, &settlement.verdict, now);
                row.insert(self.db)?;
                lane = row.lane();
            }
        }
        self.change(lane, head.run, State::Running, change, count, true)?;
        Ok(())
    }

    fn settle_row(&mut self, mut row: Row, settlement: &Settlement, now: Time) -> Result<(), StoreError> {
        let change = change_of(&settlement.verdict);
        row.turn = self.number();
        apply(&mut row, &settlement.verdict, now);
        row.update(self.db)?;
        if change == Change::Succeed {
            self.m.finished.push_back((row.turn, settlement.held.place));
        }
        self.change(row.lane(), row.run, State::Running, change, 1, true)?;
        Ok(())
    }

    /// Adds to the sums of waiting and running times of the queue.
    fn save_times(&mut self, settlement: &Settlement) {
        let Settlement { held, started, finished, .. } = settlement;
        let count = u64::from(held.count);
        let micros = |time: std::time::Duration| time.as_micros() as u64;
        let stats = &mut self.m.queues.tally(held.lane.queue).stats;
        stats.waited = stats.waited.saturating_add(count.saturating_mul(micros(started.since(held.admitted))));
        stats.ran = stats.ran.saturating_add(count.saturating_mul(micros(finished.since(*started))));
    }
}

/// A claimed chunk's time has come long ago.
fn head_of(head: &Head) -> Head {
    Head { due: None, ..*head }
}

fn change_of(verdict: &Verdict) -> Change {
    match verdict {
        Verdict::Succeed { .. } => Change::Succeed,
        Verdict::Retry { .. } => Change::Retry,
        Verdict::Fail { .. } => Change::Fail,
        Verdict::Return | Verdict::Suspect(Ruling::Ready(_)) => Change::Interrupt,
        Verdict::Suspect(Ruling::Wait(_)) => Change::Retry,
        Verdict::Suspect(Ruling::Convicted) => Change::Fail,
        Verdict::Cancel => Change::Cancel,
    }
}

/// Writes a verdict into a row whose start is counted already.
fn apply(row: &mut Row, verdict: &Verdict, now: Time) {
    match verdict {
        Verdict::Succeed { .. } => row.state = State::Succeeded,
        Verdict::Retry { at, error } => {
            row.record.failures += 1;
            row.add_error(now, error.clone());
            row.state = State::Retrying;
            row.due = Some(*at);
        }
        Verdict::Fail { reason, error } => {
            row.record.failures += 1;
            row.add_error(now, error.clone());
            row.state = State::Failed;
            row.reason = Some(*reason);
            row.ended = Some(now);
        }
        // A retry that was given back keeps its place; a fresh job has its arrival as place anyway.
        Verdict::Return => row.state = State::Ready,
        Verdict::Suspect(ruling) => {
            row.record.suspicions += 1;
            match ruling {
                Ruling::Ready(_) => row.state = State::Ready,
                Ruling::Wait(until) => {
                    row.state = State::Retrying;
                    row.due = Some(*until);
                }
                Ruling::Convicted => {
                    row.state = State::Failed;
                    row.reason = Some(Reason::Poison);
                    row.ended = Some(now);
                    row.add_error(now, format!("its worker died {} times while it ran", row.record.suspicions));
                }
            }
        }
        Verdict::Cancel => {
            row.state = State::Cancelled;
            row.ended = Some(now);
        }
    }
}
