//! The verb `settle`: the end of starts.
//!
//! Success is a mark. Every other verdict makes the job a row, or changes the row that it is: retrying with its due
//! time, failed and cancelled with their data, given back with its start counted (a job that was stopped may have
//! begun, so its next start must have another number). It must not judge.

use super::super::keys::{Step, end_jobs};
use super::super::{End, FollowUp, Held, MOVED, NewJobs, Place, StoreError};
use super::Turn;
use super::part::{Head, Mark};
use super::rows::{self, Row};
use super::schema::corrupt;
use crate::sabotage::{self, Sabotage};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::{Change, State};
use windlass_core::suspicion::Ruling;
use windlass_core::time::Time;

impl Turn<'_> {
    pub(super) fn settle<'e>(
        &mut self,
        ends: impl Iterator<Item = End<'e>> + Clone,
        follow_ups: &[FollowUp],
        now: Time,
    ) -> Result<(), StoreError> {
        refuse_overlaps(ends.clone())?;
        let mut count = 0;
        for end in ends.clone() {
            self.check_held(end.held)?;
            count += 1;
        }
        self.begin_outcomes(count);
        let (mut left, mut over) = (Vec::new(), Vec::new());
        for end in ends {
            self.save_times(end);
            self.note_outcome(end);
            match end.held.place {
                Place::Chunk(first) => self.settle_range(first.0, end, now, &mut left)?,
                Place::Row(arrival) => self.settle_row(arrival.0, end, now, &mut over)?,
            }
        }
        rows::insert_all(self.db, &left)?;
        rows::succeed_all(self.db, self.number(), &over)?;
        self.admit_follow_ups(follow_ups, now)?;
        self.end_runs(now)
    }

    /// Checks that a claim is still held, before anything changes.
    fn check_held(&self, held: &Held) -> Result<(), StoreError> {
        let stale = || {
            let id = held.jobs.id(usize::from(held.first));
            StoreError::Stale(format!("start {} of {id} is no longer held", held.start()))
        };
        match held.place {
            Place::Chunk(first) => {
                let part = self.m.parts.get(&first.0).ok_or_else(stale)?;
                let ours = held.count > 0 && held.record.starts == 0 && part.all_are(held.range(), Mark::Claimed);
                if ours { Ok(()) } else { Err(stale()) }
            }
            Place::Row(arrival) => {
                let ours = |row: &&Row| row.record.starts == held.start() || sabotage::on(Sabotage::SettleWithoutToken);
                let row = self.m.running.get(&arrival.0).filter(ours);
                row.map(|_| ()).ok_or_else(stale)
            }
        }
    }

    /// Marks jobs of a chunk as gone; those that leave it for a row of their own are added to `left`.
    fn settle_range(&mut self, first: u64, end: End<'_>, now: Time, left: &mut Vec<Row>) -> Result<(), StoreError> {
        let held = end.held;
        let count = u64::from(held.count);
        let part = self.m.parts.get(&first);
        let head = part.map(|part| part.head).ok_or_else(|| corrupt(format!("chunk {first} is not open")))?;
        self.mark(first, held.range(), Mark::Claimed, Mark::Gone)?;
        let change = change_of(end.verdict);
        self.free_ended(end)?;
        let mut lane = held.lane;
        if change != Change::Succeed {
            for index in held.range() {
                let mut row = Row::from_chunk(&head_of(&head), &held.jobs, index, State::Running);
                row.record.starts = held.start();
                apply(&mut row, end.verdict, now);
                lane = row.lane();
                left.push(row);
            }
        }
        self.change(lane, head.run, State::Running, change, count, true)?;
        Ok(())
    }

    /// Writes a verdict to a row; those that succeeded are added to `over`.
    fn settle_row(&mut self, arrival: u64, end: End<'_>, now: Time, over: &mut Vec<u64>) -> Result<(), StoreError> {
        let row = self.m.running.remove(&arrival);
        let mut row = row.ok_or_else(|| corrupt(format!("job {arrival} does not run")))?;
        let change = change_of(end.verdict);
        row.turn = self.number();
        self.free_ended(end)?;
        apply(&mut row, end.verdict, now);
        if change != Change::Succeed {
            row.update(self.db)?;
        } else {
            over.push(arrival);
            self.m.finished.push_back((row.turn, end.held.place));
        }
        self.change(row.lane(), row.run, State::Running, change, 1, true)?;
        Ok(())
    }

    fn free_ended(&mut self, End { held, verdict, outcome, .. }: End<'_>) -> Result<(), StoreError> {
        let state = verdict.state();
        if !state.is_end() {
            return Ok(());
        }
        if !self.m.awaited.is_empty() {
            // How one that was moved will end is not told here.
            let succeeded = state == State::Succeeded && outcome != MOVED;
            held.ids().for_each(|id| self.note_end(id, succeeded));
        }
        self.free_keys(&held.jobs, held.range(), held.lane.queue, Step::Ended)
    }

    /// Ends the runs that this verb finished, and takes in the jobs that announce it.
    pub(super) fn end_runs(&mut self, now: Time) -> Result<(), StoreError> {
        self.end_waits(now)?;
        let ended = self.m.runs.take_ended(now);
        let announced: Vec<NewJobs> = ended.iter().flat_map(end_jobs).collect();
        self.m.changes.ended.extend(ended);
        self.admit_all(&announced, now)
    }

    /// Adds to the sums of waiting and running times of the queue.
    fn save_times(&mut self, End { held, started, finished, .. }: End<'_>) {
        let count = u64::from(held.count);
        let micros = |time: std::time::Duration| time.as_micros() as u64;
        let stats = &mut self.m.queues.tally(held.lane.queue).stats;
        stats.waited = stats.waited.saturating_add(count.saturating_mul(micros(started.since(held.admitted))));
        stats.ran = stats.ran.saturating_add(count.saturating_mul(micros(finished.since(started))));
    }
}

/// A job that one call settles twice is held no more the second time.
fn refuse_overlaps<'e>(ends: impl Iterator<Item = End<'e>>) -> Result<(), StoreError> {
    let mut ranges: Vec<_> = ends.map(|end| (end.held.place, end.held.first, end.held.count)).collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].1 + pair[0].2 > pair[1].1) {
        Some(pair) => Err(StoreError::Stale(format!("{:?} is settled twice in one call", pair[1].0))),
        None => Ok(()),
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
        Verdict::Snooze { .. } => Change::Snooze,
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
        Verdict::Snooze { at } => {
            row.state = State::Scheduled;
            row.due = Some(*at);
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
