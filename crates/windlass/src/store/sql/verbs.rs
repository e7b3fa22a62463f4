//! The verbs of the store, each in a file of its own; the turn's beginning and end are here.

use super::{SqlStore, rows, view};
use crate::store::{
    Amended, Amendment, Arriving, Changes, Deleted, Durability, Evidence, Fenced, FollowUp, Held, JobInfo, Lot, Move,
    NewJobs, NewRun, Occasion, Order, Recovered, Refused, RunInfo, Settlement, Steer, Store, StoreError, Told,
    Unarchived, Unheld,
};
use std::collections::HashMap;
use std::time::Instant;
use windlass_core::job::{Arrival, JobId, Lane, Priority, QueueNo, RunId, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::overrides::Override;
use windlass_core::run::terms::Stopped;
use windlass_core::time::Time;

impl Store for SqlStore {
    fn backlog(&mut self) -> Result<Changes, StoreError> {
        self.learn_queues()?;
        let mut moves = Vec::new();
        for [queue, priority, kind, state, count] in view::live(&mut self.db, &self.names)? {
            let kind = super::look::kind_from(kind)?;
            let priority = Priority::new(priority).unwrap_or_default();
            let lane = Lane { queue: QueueNo(queue as u32), priority, kind };
            moves.push(Move {
                lane,
                run: None,
                from: None,
                to: State::from_index(state as usize),
                count: count as u64,
            });
        }
        // What was to be told is in this answer; told again, it would be counted twice.
        self.looks.start_over(&moves);
        self.changes.moves.clear();
        self.changes.queues.clear();
        let mut queues: Vec<_> = self.queues.names.iter().map(|(no, name)| (*no, name.clone())).collect();
        queues.sort_unstable();
        Ok(Changes { queues, moves, ..Changes::default() })
    }

    fn open_runs(&mut self) -> Result<Vec<RunInfo>, StoreError> {
        let open = self.runs_where("WHERE ended_at IS NULL ORDER BY number", &[])?;
        self.open_runs = open.iter().map(|run| run.no).collect();
        Ok(open)
    }

    fn recover(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        let (now, begun) = (self.there(now), Instant::now());
        loop {
            match self.recover_once(evidence, now) {
                // Nobody else works here yet: who has something locked for a moment is waited for.
                Err(StoreError::Busy(_)) if begun.elapsed() < self.options.time_limit => self.rollback()?,
                recovered => return recovered,
            }
        }
    }

    fn admit(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError> {
        self.admit_lot(lot, self.there(now))
    }

    fn holders(&mut self, new: &NewJobs) -> Result<Vec<Option<JobId>>, StoreError> {
        self.key_holders(new)
    }

    fn refused(&mut self, lot: &Lot, now: Time) -> Result<Vec<Refused>, StoreError> {
        self.refused_of(lot, self.there(now))
    }

    fn open_run(&mut self, id: RunId, run: &NewRun, now: Time) -> Result<RunNo, StoreError> {
        if self.run_of(id)?.is_some() {
            return Err(StoreError::Stale(format!("{id} is there already")));
        }
        self.make_run(id, run, false, self.there(now))
    }

    fn stop_run(&mut self, no: RunNo, why: Stopped, now: Time) -> Result<(), StoreError> {
        self.stop(no, why, self.there(now))
    }

    fn claim(&mut self, orders: &[Order], now: Time) -> Result<Vec<Held>, StoreError> {
        let (mut claimed, now) = (Vec::new(), self.there(now));
        for order in orders {
            claimed.extend(self.claim_lane(order, now)?);
        }
        Ok(claimed)
    }

    fn held(&mut self, id: JobId) -> Result<Option<Held>, StoreError> {
        self.held_one(id)
    }

    fn hold(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Result<Held, Unheld>>, StoreError> {
        self.hold_all(ids, self.there(now))
    }

    fn takes_pasts(&self) -> bool {
        true
    }

    fn arrive(&mut self, jobs: &[Arriving], now: Time) -> Result<(), StoreError> {
        self.arrive_all(jobs, self.there(now))
    }

    fn settle(&mut self, settlements: &[Settlement], follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError> {
        self.settle_all(settlements, follow_ups, self.there(now))
    }

    fn release(&mut self, now: Time, limit: u32, late: Told<'_>) -> Result<(), StoreError> {
        self.release_due(self.there(now), limit, late)
    }

    fn next_due(&mut self) -> Result<Option<Time>, StoreError> {
        Ok(self.next_due_time()?.map(|due| self.here(due)))
    }

    /// What waits does so by the database's clock, whatever becomes of ours.
    fn shift_waits(&mut self, _by: i64) -> Result<bool, StoreError> {
        self.compare_clocks()?;
        Ok(false)
    }

    fn amend(&mut self, ids: &[JobId], amendment: Amendment, now: Time) -> Result<Vec<Amended>, StoreError> {
        self.amend_all(ids, amendment, self.there(now))
    }

    fn steer(&mut self, step: &Steer) -> Result<(), StoreError> {
        self.steer_by(step)
    }

    fn overrides(&mut self) -> Result<Vec<Override>, StoreError> {
        super::notes::overrides(&mut self.db, &self.names)
    }

    fn jobs(&mut self, ids: &[JobId]) -> Result<Vec<Option<JobInfo>>, StoreError> {
        let mut params = Vec::new();
        let source = self.db.dialect.rows(rows::identities(ids), &mut params);
        let is_job = self.db.dialect.is_job("t.o", "t.f");
        let condition = format!("JOIN {source} ON {is_job} WHERE j.:state <> 5");
        let found = view::infos(&mut self.db, &self.names, &condition, &params)?;
        let found: HashMap<JobId, JobInfo> = found.into_iter().map(|(_, info)| (info.id, info)).collect();
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }

    fn of_run(&mut self, run: RunId, from: Arrival, limit: usize) -> Result<(Vec<JobId>, Option<Arrival>), StoreError> {
        let Some(run) = self.run_of(run)? else { return Ok((Vec::new(), None)) };
        let mut found = self.live_of_run(run.no, from.0, limit.saturating_add(1))?;
        let next = (found.len() > limit).then(|| Arrival(found[limit].0));
        found.truncate(limit);
        Ok((found.into_iter().map(|(_, id)| id).collect(), next))
    }

    fn delete(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Deleted>, StoreError> {
        self.delete_all(ids, self.there(now))
    }

    fn joined(&mut self, run: RunId) -> Result<Option<RunInfo>, StoreError> {
        self.run_to_join(run)
    }

    fn run_numbered(&mut self, no: RunNo) -> Result<Option<RunInfo>, StoreError> {
        let run = self.runs_where("WHERE number = $1", &[i64::from(no.0).into()])?.pop();
        self.open_runs.extend(run.iter().filter(|run| run.ended_at.is_none()).map(|run| run.no));
        Ok(run)
    }

    fn note(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.put_note(key, value)
    }

    fn notes(&mut self, prefix: &str, limit: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.first_notes(prefix, limit)
    }

    fn forget(&mut self, before: Time, limit: u32) -> Result<u64, StoreError> {
        self.forget_old(self.there(before), limit)
    }

    fn archived(&mut self, turn: u64) -> Result<(), StoreError> {
        self.forget_outcomes(turn)
    }

    fn unarchived(&mut self) -> Result<Vec<Unarchived>, StoreError> {
        self.stored_outcomes()
    }

    fn changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// A database has one durability, its own: it answers a commit when it has it.
    fn commit(&mut self, _durability: Durability) -> Result<u64, StoreError> {
        if self.open {
            self.write_turn()?;
        } else {
            self.turn += 1;
        }
        let turn = self.turn;
        self.touched.append(&mut self.work.touched);
        self.work.ends.clear();
        let touched = std::mem::take(&mut self.touched);
        match self.end_runs(touched.clone()) {
            // The turn is there; its ends are looked for again.
            Err(StoreError::Away(_) | StoreError::Busy(_)) => self.touched = touched,
            other => other?,
        }
        let corrections = self.looks.take_corrections();
        self.changes.moves.extend(corrections);
        self.changes.moves.append(&mut self.work.told_later);
        self.looks.keep_turn();
        Ok(turn)
    }

    fn rollback(&mut self) -> Result<(), StoreError> {
        self.forget_turn();
        self.drop_transaction()
    }

    fn look(&mut self, why: Occasion, convicted: Told<'_>, now: Time) -> Result<bool, StoreError> {
        self.look_around(why, convicted, now)
    }

    fn next_look(&mut self) -> Option<Time> {
        Some(self.looks.next(self.promises()))
    }

    fn has_news(&self) -> bool {
        let Changes { queues, runs, moves, ended, duplicates, beyond_limit, expired, overdue } = &self.changes;
        let quiet = queues.is_empty() && runs.is_empty() && moves.is_empty() && ended.is_empty();
        !(quiet && duplicates.is_empty() && beyond_limit.is_empty() && expired.is_empty() && overdue.is_empty())
    }

    fn rest(&mut self) -> Result<(), StoreError> {
        if self.written { self.commit(Durability::Full).map(|_| ()) } else { self.drop_transaction() }
    }

    /// There is always room; what there is not always is a connection.
    fn has_room(&mut self) -> bool {
        self.come_back().is_ok()
    }

    fn set_aside(&mut self, settlements: &[Settlement], follow_ups: &[FollowUp]) -> Result<(), StoreError> {
        self.keep_in_outbox(settlements, follow_ups)
    }

    fn fenced_at(&self) -> Option<Fenced> {
        // What is told to end has as long again to do so, less what it takes to notice that nobody answers.
        let after = |time| self.renewed.after(time);
        Some(Fenced { told: after(self.options.lease / 2), overtaken: after(self.options.lease) })
    }

    fn controls(&self) -> bool {
        self.controls
    }

    fn drain_server(&mut self, name: &str) -> Result<bool, StoreError> {
        self.ask_to_drain(name)
    }

    fn drains(&self) -> bool {
        self.drains
    }

    fn leave(&mut self) -> Result<(), StoreError> {
        self.rollback()?;
        match self.strike_off() {
            // Then the lease ends by itself.
            Err(StoreError::Away(_) | StoreError::Busy(_)) => Ok(()),
            other => other,
        }
    }

    fn lost(&mut self, held: &[(JobId, u32)]) -> Result<Vec<JobId>, StoreError> {
        self.lost_of(held)
    }

    fn locked(&mut self, held: &[(JobId, u32)]) -> Result<Vec<JobId>, StoreError> {
        self.locked_of(held)
    }

    fn remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }
}
