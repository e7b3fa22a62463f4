//! After an opening: takes back what a dead server held, and suspects the jobs that had begun. What a worker elsewhere
//! has stays claimed.
//!
//! The work is bounded by what was in flight: claimed marks and running rows. Whom to suspect and what follows from
//! it is decided by `windlass_core::suspicion`.

use super::super::{End, Evidence, Recovered, StoreError, Told};
use super::part::{Head, Mark};
use super::rows::{self, Row};
use super::schema::corrupt;
use super::view::Names;
use super::{Turn, chunks};
use crate::sabotage::{self, Sabotage};
use std::collections::HashSet;
use windlass_core::job::Record;
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::{Change, State};
use windlass_core::outcome::Outcome;
use windlass_core::suspicion::{self, Ruling};
use windlass_core::time::Time;

impl Turn<'_> {
    pub(super) fn recover(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        let (mut recovered, mut convicted) = (Recovered::default(), Vec::new());
        let mut claimed: Vec<u64> =
            self.m.parts.values().filter(|part| part.claimed > 0).map(|part| part.head.first).collect();
        claimed.retain(|_| !sabotage::on(Sabotage::ClaimsForgotten));
        claimed.sort_unstable();
        for first in claimed {
            self.recover_chunk(first, evidence, now, &mut recovered, &mut convicted)?;
        }
        let mut elsewhere = HashSet::new();
        let running = rows::many(self.db, "WHERE state = 2", [])?;
        for mut row in rows::expect(running, "running", |row| row.state == State::Running)? {
            if (evidence.elsewhere)(row.id, row.record.starts) {
                elsewhere.insert(row.arrival);
                continue;
            }
            let particulars = row.particulars.clone().unwrap_or_default();
            self.list_times(row.arrival, 1, &particulars)?;
            if (evidence.begun)(row.id, row.record.starts) {
                let change = self.rule(&mut row, evidence.same_boot, now, &mut recovered);
                self.free_keys_of(&row)?;
                self.change(row.lane(), row.run, State::Running, change, 1, true)?;
            } else {
                row.record.starts -= 1;
                row.state = State::Ready;
                recovered.returned += 1;
                self.change(row.lane(), row.run, State::Running, Change::Interrupt, 1, true)?;
            }
            row.update(self.db)?;
            convicted.extend(Some(row).filter(|row| row.state == State::Failed));
        }
        self.m.running.retain(|arrival, _| elsewhere.contains(arrival));
        self.m.windows.clear();
        self.tell_of(convicted, evidence.convicted, now)?;
        self.end_runs(now)?;
        Ok(recovered)
    }

    /// Takes in what is to be said of those who failed, before any run is looked at.
    pub(super) fn tell_of(&mut self, failed: Vec<Row>, told: Told<'_>, now: Time) -> Result<(), StoreError> {
        let mut names = Names::default();
        let mut follow_ups = Vec::new();
        for row in failed {
            let run = row.run;
            follow_ups.extend(told(&names.info(self.db, row)?, run));
        }
        self.admit_follow_ups(&follow_ups, now)
    }

    fn recover_chunk(
        &mut self,
        first: u64,
        evidence: Evidence<'_>,
        now: Time,
        recovered: &mut Recovered,
        convicted: &mut Vec<Row>,
    ) -> Result<(), StoreError> {
        let (head, jobs) =
            chunks::load(self.db, self.bodies, first)?.ok_or_else(|| corrupt(format!("chunk {first} is missing")))?;
        let stretches = self.m.parts.get(&first).map(|part| part.stretches(Mark::Claimed)).unwrap_or_default();
        let mut back = 0;
        for index in stretches.into_iter().flatten() {
            let jobs_range = index..index + 1;
            if (evidence.elsewhere)(jobs.id(index), Record::default().starts + 1) {
                continue;
            }
            if !(evidence.begun)(jobs.id(index), Record::default().starts + 1) {
                self.mark(first, jobs_range, Mark::Claimed, Mark::Waiting)?;
                back += 1;
                continue;
            }
            let mut row = Row::from_chunk(&Head { due: None, ..head }, &jobs, index, State::Running);
            row.record.starts = 1;
            let change = self.rule(&mut row, evidence.same_boot, now, recovered);
            self.free_keys_of(&row)?;
            self.mark(first, jobs_range, Mark::Claimed, Mark::Gone)?;
            row.insert(self.db)?;
            self.change(row.lane(), row.run, State::Running, change, 1, true)?;
            convicted.extend(Some(row).filter(|row| row.state == State::Failed));
        }
        let particulars = jobs.particulars().cloned().unwrap_or_default();
        self.list_times(first, u64::from(head.count), &particulars)?;
        if back > 0 {
            self.change(head.lane, head.run, State::Running, Change::Interrupt, back, false)?;
        }
        recovered.returned += back;
        Ok(())
    }

    /// What becomes of a job whose start had begun; the start is counted already. A conviction is an outcome.
    fn rule(&mut self, row: &mut Row, same_boot: bool, now: Time, recovered: &mut Recovered) -> Change {
        let before = Record { starts: row.record.starts - 1, ..row.record };
        let ruling = if same_boot {
            suspicion::suspect(&mut row.record, now)
        } else {
            Ruling::Ready(suspicion::lane_kind(row.record))
        };
        match ruling {
            Ruling::Ready(_) => {
                recovered.repeated += 1;
                row.state = State::Ready;
                Change::Interrupt
            }
            Ruling::Wait(until) => {
                recovered.repeated += 1;
                row.state = State::Retrying;
                row.due = Some(until);
                Change::Retry
            }
            Ruling::Convicted => {
                recovered.convicted += 1;
                let times = row.record.suspicions;
                let error = format!("{times} servers died while it ran, lately with no other suspect beside it");
                row.state = State::Failed;
                row.reason = Some(Reason::Poison);
                row.ended = Some(now);
                row.turn = self.number();
                row.add_error(now, error.clone());
                let verdict = Verdict::Fail { reason: Reason::Poison, error };
                // Nobody is left who knows when it started.
                let (outcome, started) = (Outcome::Lost.word(), now);
                let held = row.held(before);
                self.note_outcome(End { held: &held, verdict: &verdict, outcome, started, finished: now });
                Change::Fail
            }
        }
    }
}
