//! The verbs of the model store. Each looks at everything first and changes nothing if it must refuse.
//!
//! Where the contract leaves room, this is how it is read: a claim that never began leaves no trace in the record;
//! the counters of a run that ended stay as they were at its end, also when one of its jobs is tried again in the
//! next generation; a suspended job has lost its time. It must not touch a table but through `Memory`'s writers.

use super::times::NEVER;
use super::{Job, Memory, Number};
use crate::store::{
    Amended, Amendment, Arriving, Changes, Deleted, Durability, Evidence, FollowUp, Held, JobInfo, Lot, MOVED, Move,
    NewJobs, NewRun, Order, Place, Recovered, RunInfo, Seal, Settlement, Steer, Store, StoreError, Told, Unarchived,
    Unheld,
};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::job::{Arrival, JobId, Lane, Record, RunId, RunNo};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::{Change, State};
use windlass_core::outcome::Outcome;
use windlass_core::overrides::Override;
use windlass_core::run::terms::Stopped;
use windlass_core::suspicion::{self, Ruling};
use windlass_core::time::Time;

impl Store for Memory {
    fn backlog(&mut self) -> Result<Changes, StoreError> {
        // What recovery or a dropped turn moved is in the backlog: it must not be counted a second time.
        self.changes.moves.clear();
        self.changes.queues.clear();
        let queues = self.queues.rows().iter().map(|(no, (name, _))| (*no, name.clone())).collect();
        let mut waiting: BTreeMap<(Lane, Option<RunNo>, State), u64> = BTreeMap::new();
        for job in self.jobs.rows().values().filter(|job| !job.state.is_end()) {
            *waiting.entry((job.lane(), job.run, job.state)).or_default() += 1;
        }
        let waiting = waiting.into_iter();
        let moves = waiting.map(|((lane, run, to), count)| Move { lane, run, from: None, to: Some(to), count });
        // What was to be told is in this answer; told again, it would be counted twice.
        self.changes.moves.clear();
        self.changes.queues.clear();
        Ok(Changes { queues, moves: moves.collect(), ..Changes::default() })
    }

    fn open_runs(&mut self) -> Result<Vec<RunInfo>, StoreError> {
        Ok(self.runs.rows().values().filter(|run| !run.counts.ended).cloned().collect())
    }

    fn recover(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        let mut recovered = Recovered::default();
        let held: Vec<_> = self.jobs.rows().iter().filter(|(_, job)| job.state == State::Running).collect();
        let held: Vec<_> = held.into_iter().map(|(arrival, job)| (*arrival, job.clone())).collect();
        let mut follow_ups = Vec::new();
        for (arrival, job) in held {
            if (evidence.elsewhere)(job.id, job.record.starts + 1) {
                continue;
            }
            // It may have missed its times meanwhile: where it ran past one, that was put off.
            self.list_waits(arrival, &job.chunk, &[]);
            if (evidence.begun)(job.id, job.record.starts + 1) {
                self.repeat(arrival, job, evidence.same_boot, now, &mut recovered);
                follow_ups.extend(self.said_of(arrival, evidence.convicted));
            } else {
                recovered.returned += 1;
                self.transit(arrival, job, Change::Interrupt);
            }
        }
        self.admit_follow_ups(&follow_ups, now);
        self.end_runs(now);
        self.commit(Durability::Full)?;
        Ok(recovered)
    }

    fn admit(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError> {
        if let Some((id, from, _)) = lot.taken {
            let at = self.run_ids.get(&id).and_then(|no| self.runs.get(no)).map(|run| run.taken);
            if at != Some(from) {
                return Err(StoreError::Stale(format!("{id} has taken {at:?}, expected {from:?}")));
            }
        }
        for (id, terms) in &lot.opens {
            if self.run_ids.get(id).is_none() {
                self.make_run(*id, &NewRun { terms: terms.clone(), ..NewRun::default() }, false, now);
            }
        }
        for new in lot.jobs.iter().filter(|new| !new.jobs.is_empty()) {
            let run = new.run.map(|id| self.joined_run(id, now));
            self.admit_jobs(new, run, now);
        }
        for cursor in &lot.cursors {
            self.cursors.put(cursor.origin, Some(*cursor));
        }
        for origin in &lot.closed {
            self.cursors.put(*origin, None);
            self.closed.put(*origin, Some(()));
        }
        // A seal that waited is older than the seals of this lot, so it is looked at before them.
        self.look_at_seals();
        for seal in &lot.seals {
            self.seal(seal, now);
            self.look_at_seals();
        }
        if let Some((id, _, to)) = lot.taken
            && let Some(no) = self.run_ids.get(&id).copied()
        {
            self.change_run(no, |run| run.taken = to);
        }
        self.end_runs(now);
        Ok(())
    }

    fn holders(&mut self, new: &NewJobs) -> Result<Vec<Option<JobId>>, StoreError> {
        Ok(self.key_holders(new))
    }

    fn open_run(&mut self, id: RunId, run: &NewRun, now: Time) -> Result<RunNo, StoreError> {
        if self.run_ids.get(&id).is_some() {
            return Err(StoreError::Stale(format!("{id} is there already")));
        }
        Ok(self.make_run(id, run, false, now))
    }

    fn stop_run(&mut self, no: RunNo, why: Stopped, now: Time) -> Result<(), StoreError> {
        if self.runs.get(&no).is_some_and(|run| !run.counts.ended) {
            self.change_run(no, |run| {
                run.counts.stopped = Some(why);
                run.counts.sealed = true;
                run.seal_after.clear();
            });
        }
        self.end_runs(now);
        Ok(())
    }

    fn claim(&mut self, orders: &[Order], _now: Time) -> Result<Vec<Held>, StoreError> {
        self.may_fail()?;
        let mut claimed: Vec<Held> = Vec::new();
        for order in orders {
            for id in self.head(order.lane, order.most) {
                let Ok(held) = self.claim_job(id) else { continue };
                match claimed.last_mut() {
                    Some(last) if joins(last, &held) => last.count += 1,
                    Some(_) | None => claimed.push(held),
                }
            }
        }
        Ok(claimed)
    }

    fn held(&mut self, id: JobId) -> Result<Option<Held>, StoreError> {
        let job = self.ids.get(&id).and_then(|arrival| self.jobs.get(arrival));
        Ok(job.filter(|job| job.state == State::Running).map(hold))
    }

    fn hold(&mut self, ids: &[JobId], _now: Time) -> Result<Vec<Result<Held, Unheld>>, StoreError> {
        Ok(ids.iter().map(|id| self.hold_one(*id)).collect())
    }

    fn takes_pasts(&self) -> bool {
        true
    }

    fn arrive(&mut self, jobs: &[Arriving], now: Time) -> Result<(), StoreError> {
        jobs.iter().for_each(|job| self.arrive_one(job, now));
        Ok(())
    }

    fn ends_together(&self) -> bool {
        true
    }

    fn settle(&mut self, settlements: &[Settlement], follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError> {
        let mut seen = BTreeSet::new();
        for settlement in settlements {
            for (arrival, id) in members(&settlement.held) {
                let held = self.jobs.get(&arrival).filter(|job| job.state == State::Running && job.id == id);
                let held = held.filter(|job| job.record.starts == settlement.held.record.starts);
                if held.is_none() || !seen.insert(arrival) {
                    let start = settlement.held.start();
                    return Err(StoreError::Stale(format!("start {start} of {id} is not held any more")));
                }
            }
        }
        for settlement in settlements {
            for (arrival, id) in members(&settlement.held).collect::<Vec<_>>() {
                self.settle_one(arrival, settlement, now);
                if settlement.outcome == MOVED
                    && let Some(end) = self.ends.iter_mut().find(|(ended, _)| *ended == id)
                {
                    // How it will end is not told here.
                    end.1 = false;
                }
            }
        }
        if !settlements.is_empty() {
            self.note_outcomes(settlements);
        }
        self.admit_follow_ups(follow_ups, now);
        self.end_runs(now);
        Ok(())
    }

    fn release(&mut self, now: Time, limit: u32, late: Told<'_>) -> Result<(), StoreError> {
        self.expire(now, limit, late);
        let due = self.due.rows().keys().take_while(|(time, _)| *time <= now).take(limit as usize);
        for (_, arrival) in due.copied().collect::<Vec<_>>() {
            if let Some(job) = self.jobs.get(&arrival).cloned() {
                self.transit(arrival, job, Change::Release);
            }
        }
        self.end_runs(now);
        Ok(())
    }

    fn next_due(&mut self) -> Result<Option<Time>, StoreError> {
        let due = self.due.rows().keys().next().map(|(time, _)| *time).filter(|due| *due != NEVER);
        let expiry = self.expiry.rows().keys().next().map(|(time, ..)| *time);
        Ok(due.into_iter().chain(expiry).min())
    }

    fn shift_waits(&mut self, by: i64) -> Result<bool, StoreError> {
        let waiting: Vec<Arrival> = self.due.rows().keys().map(|(_, arrival)| *arrival).collect();
        for arrival in waiting {
            if let Some(job) = self.jobs.get(&arrival).filter(|job| job.record.starts > 0).cloned() {
                self.write(arrival, Some(Job { due: Time(job.due.0.saturating_add(by)), ..job }));
            }
        }
        Ok(true)
    }

    fn amend(&mut self, ids: &[JobId], amendment: Amendment, now: Time) -> Result<Vec<Amended>, StoreError> {
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(arrival) = self.ids.get(id).copied() else {
                answers.push(Amended::Unknown);
                continue;
            };
            let Some(job) = self.jobs.get(&arrival).cloned() else { continue };
            answers.push(self.amend_one(arrival, job, amendment, now));
        }
        self.end_runs(now);
        Ok(answers)
    }

    fn steer(&mut self, step: &Steer) -> Result<(), StoreError> {
        match step {
            Steer::Set(new) => self.overrides.put((new.target.clone(), new.key), Some(new.clone())),
            Steer::Unset(target, key) => self.overrides.put((target.clone(), *key), None),
        }
        Ok(())
    }

    fn overrides(&mut self) -> Result<Vec<Override>, StoreError> {
        Ok(self.overrides.rows().values().cloned().collect())
    }

    fn jobs(&mut self, ids: &[JobId]) -> Result<Vec<Option<JobInfo>>, StoreError> {
        let found = |id: &JobId| self.ids.get(id).and_then(|arrival| self.jobs.get(arrival));
        let info = |job: &Job| {
            let (name, _) = self.queues.get(&job.queue)?;
            Some(job.info(name, job.run.and_then(|no| self.runs.get(&no)).map(|run| run.id)))
        };
        Ok(ids.iter().map(|id| found(id).and_then(info)).collect())
    }

    fn of_run(&mut self, run: RunId, from: Arrival, limit: usize) -> Result<(Vec<JobId>, Option<Arrival>), StoreError> {
        let Some(no) = self.run_ids.get(&run).copied() else { return Ok((Vec::new(), None)) };
        let mut live = self.jobs.rows().range(from..).filter(|(_, job)| job.run == Some(no) && !job.state.is_end());
        let ids = live.by_ref().take(limit).map(|(_, job)| job.id).collect();
        Ok((ids, live.next().map(|(arrival, _)| *arrival)))
    }

    fn delete(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Deleted>, StoreError> {
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            let arrival = self.ids.get(id).copied();
            let found = arrival.and_then(|arrival| Some((arrival, self.jobs.get(&arrival)?.clone())));
            answers.push(match found {
                Some((_, job)) if job.state == State::Running => Deleted::Running,
                Some((arrival, job)) => self.delete_one(arrival, job, now),
                None => Deleted::Unknown,
            });
        }
        self.end_runs(now);
        Ok(answers)
    }

    fn joined(&mut self, run: RunId) -> Result<Option<RunInfo>, StoreError> {
        let named = self.run_ids.get(&run).and_then(|no| self.runs.get(no));
        if let Some(run) = named.filter(|run| !run.counts.sealed) {
            return Ok(Some(run.clone()));
        }
        let late = |newest: RunInfo| if newest.takes_late_jobs() { newest } else { newest.next_generation() };
        Ok(self.newest_generation(run).map(late))
    }

    fn run_numbered(&mut self, no: RunNo) -> Result<Option<RunInfo>, StoreError> {
        Ok(self.runs.get(&no).cloned())
    }

    fn note(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.may_fail()?;
        self.notes.put(key.to_owned(), value.map(<[u8]>::to_vec));
        Ok(())
    }

    fn notes(&mut self, prefix: &str, limit: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let from = self.notes.rows().range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        Ok(from.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn forget(&mut self, before: Time, limit: u32) -> Result<u64, StoreError> {
        let ended = |job: &Job| job.ended.is_some_and(|ended| ended < before);
        let old = self.jobs.rows().iter().filter(|(_, job)| ended(job)).take(limit as usize);
        let old: Vec<_> = old.map(|(arrival, job)| (*arrival, job.clone())).collect();
        for (arrival, job) in &old {
            self.count(job.lane(), job.run, Some(job.state), None);
            self.write(*arrival, None);
        }
        let kept: BTreeSet<_> = self.jobs.rows().values().filter_map(|job| job.run).collect();
        // The oldest generation goes first, so that no generation's number is given twice.
        let older = |run: &RunInfo| self.runs.rows().values().any(|other| is_older(other.id, run.id));
        let over =
            |run: &&RunInfo| run.ended_at.is_some_and(|at| at < before) && !kept.contains(&run.no) && !older(run);
        let runs = self.runs.rows().values().filter(over).take(limit as usize - old.len());
        let runs: Vec<_> = runs.map(|run| (run.no, run.id)).collect();
        for (no, id) in &runs {
            self.runs.put(*no, None);
            self.run_ids.put(*id, None);
            self.forget_keys(*no);
        }
        Ok((old.len() + runs.len()) as u64)
    }

    fn archived(&mut self, turn: u64) -> Result<(), StoreError> {
        for done in self.outcomes.rows().range(..=turn).map(|(turn, _)| *turn).collect::<Vec<_>>() {
            self.outcomes.put(done, None);
        }
        Ok(())
    }

    fn unarchived(&mut self) -> Result<Vec<Unarchived>, StoreError> {
        let turns = self.outcomes.committed().into_iter();
        Ok(turns.map(|(turn, settlements)| Unarchived { turn: *turn, settlements: settlements.clone() }).collect())
    }

    fn changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    fn commit(&mut self, durability: Durability) -> Result<u64, StoreError> {
        if let Some(error) = self.planned_failure() {
            self.rollback()?;
            return Err(error);
        }
        let turn = self.draw(Number::Turn, 1);
        self.end_turn(durability);
        Ok(turn)
    }

    fn rollback(&mut self) -> Result<(), StoreError> {
        self.each_table(&mut |table| table.rollback());
        self.forget_turn();
        Ok(())
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Memory {
    /// The jobs that a claim from this lane would take.
    pub fn head(&self, lane: Lane, most: u32) -> Vec<JobId> {
        let lane_on = self.ready.rows().range((lane, Time(i64::MIN), Arrival(0))..).map(|(key, ())| *key);
        let head = lane_on.take_while(|(at, ..)| *at == lane).take(most as usize);
        head.filter_map(|(.., arrival)| self.jobs.get(&arrival)).map(|job| job.id).collect()
    }

    /// Claims just this job, wherever it stands in its lane: for a model that follows another store.
    pub fn claim_job(&mut self, id: JobId) -> Result<Held, StoreError> {
        let ready = |arrival: &Arrival| self.jobs.get(arrival).is_some_and(|job| job.state == State::Ready);
        let arrival = self.ids.get(&id).copied().filter(ready);
        let stale = || StoreError::Stale(format!("{id} is not ready"));
        let arrival = arrival.ok_or_else(stale)?;
        let job = self.jobs.get(&arrival).cloned().ok_or_else(stale)?;
        let held = hold(&job);
        self.change_stats(job.queue, |stats| stats.started += 1);
        self.transit(arrival, job, Change::Claim);
        Ok(held)
    }

    pub(super) fn note_outcomes(&mut self, settlements: &[Settlement]) {
        let turn = self.number(Number::Turn) + 1;
        let before = self.outcomes.get(&turn).cloned().unwrap_or_default();
        self.outcomes.put(turn, Some([before, settlements.to_vec()].concat()));
    }

    pub(super) fn admit_jobs(&mut self, new: &NewJobs, run: Option<RunNo>, now: Time) {
        let queue = self.queue_no(&new.queue);
        let (unmet, doomed) = self.unmet(&new.jobs);
        let waits = !unmet.is_empty() || doomed.is_some();
        let later = if waits { Some(NEVER) } else { new.not_before.filter(|time| *time > now) };
        let state = if later.is_some() { State::Scheduled } else { State::Ready };
        let jobs = self.take_keys(&new.jobs, queue, run, now);
        let first = self.draw(Number::Arrival, jobs.len() as u64);
        for index in 0..jobs.len() {
            let job = Job {
                id: jobs.id(index),
                queue,
                priority: new.priority,
                state,
                run,
                record: Record::default(),
                admitted: now,
                due: later.unwrap_or(now),
                ended: None,
                reason: None,
                errors: Vec::new(),
                chunk: jobs.clone(),
                index: index as u16,
                chunk_start: Arrival(first),
            };
            self.count(job.lane(), run, None, Some(state));
            let arrival = Arrival(first + index as u64);
            self.write(arrival, Some(job));
            self.list_waits(arrival, &jobs, &unmet);
            doomed.into_iter().for_each(|because| self.give_up(arrival, because, now));
        }
    }

    /// Notes what the seal waits for; a run that has nothing else is made, so that its end can be told.
    fn seal(&mut self, seal: &Seal, now: Time) {
        let known = self.run_ids.get(&seal.run).copied();
        let no = known.unwrap_or_else(|| self.make_run(seal.run, &NewRun::default(), false, now));
        self.change_run(no, |run| run.note_seal(seal));
    }

    /// Drops the positions that were reached, or whose file was read to its end and removed; none left seals.
    fn look_at_seals(&mut self) {
        let pending = self.runs.rows().values().filter(|run| !run.seal_after.is_empty());
        for mut run in pending.cloned().collect::<Vec<_>>() {
            let before = run.seal_after.len();
            run.seal_after.retain(|(origin, offset)| {
                let reached = self.cursors.get(origin).is_some_and(|cursor| cursor.offset >= *offset);
                !reached && self.closed.get(origin).is_none()
            });
            if run.seal_after.len() < before {
                let after = run.seal_after;
                self.change_run(run.no, |run| {
                    run.counts.sealed = after.is_empty();
                    run.seal_after = after;
                });
            }
        }
    }

    fn settle_one(&mut self, arrival: Arrival, settlement: &Settlement, now: Time) {
        let Some(mut job) = self.jobs.get(&arrival).cloned() else { return };
        let Settlement { verdict, started, finished, .. } = settlement;
        let micros = |later: Time, earlier| later.since(earlier).as_micros() as u64;
        self.change_stats(job.queue, |stats| {
            stats.waited += micros(*started, job.admitted);
            stats.ran += micros(*finished, *started);
        });
        job.record.starts += 1;
        let change = match verdict {
            Verdict::Succeed { .. } => Change::Succeed,
            Verdict::Return => Change::Interrupt,
            Verdict::Cancel => Change::Cancel,
            Verdict::Snooze { at } => {
                job.due = *at;
                Change::Snooze
            }
            Verdict::Retry { at, error } => {
                job.record.failures += 1;
                job.due = *at;
                job.note_error(*finished, error);
                Change::Retry
            }
            Verdict::Fail { reason, error } => {
                job.record.failures += 1;
                job.reason = Some(*reason);
                job.note_error(*finished, error);
                Change::Fail
            }
            Verdict::Suspect(ruling) => {
                job.record.suspicions += 1;
                job.obey(*ruling, *finished, "its worker died while it ran")
            }
        };
        if matches!(change, Change::Cancel | Change::Fail) {
            job.ended = Some(now);
        }
        self.transit(arrival, job, change);
    }

    /// What is to be taken in with the end of a job, if it has failed.
    pub(super) fn said_of(&self, arrival: Arrival, told: Told<'_>) -> Vec<FollowUp> {
        let failed = self.jobs.get(&arrival).filter(|job| job.state == State::Failed);
        let Some((job, queue)) = failed.and_then(|job| Some((job, self.queues.get(&job.queue)?))) else {
            return Vec::new();
        };
        let run = job.run.and_then(|no| self.runs.get(&no)).map(|run| run.id);
        told(&job.info(&queue.0, run), job.run)
    }

    pub(super) fn admit_follow_ups(&mut self, follow_ups: &[FollowUp], now: Time) {
        for new in follow_ups.iter().filter(|new| !new.jobs.is_empty()) {
            let FollowUp { queue, priority, run, jobs } = new.clone();
            self.admit_jobs(&NewJobs { queue, priority, run: None, not_before: None, jobs }, run, now);
        }
    }

    /// Gives back a job that had begun when its server died.
    fn repeat(&mut self, arrival: Arrival, mut job: Job, same_boot: bool, now: Time, recovered: &mut Recovered) {
        let held = hold(&job);
        job.record.starts += 1;
        let ruling = if same_boot {
            suspicion::suspect(&mut job.record, now)
        } else {
            Ruling::Ready(suspicion::lane_kind(job.record))
        };
        let error = "the server died while it ran";
        let change = job.obey(ruling, now, error);
        if change == Change::Fail {
            job.ended = Some(now);
            recovered.convicted += 1;
            let verdict = Verdict::Fail { reason: Reason::Poison, error: error.into() };
            let outcome = Outcome::Lost.word();
            self.note_outcomes(&[Settlement { held, verdict, outcome, started: now, finished: now }]);
        } else {
            recovered.repeated += 1;
        }
        self.transit(arrival, job, change);
    }
}

/// True for an earlier generation of the same run.
fn is_older(one: RunId, other: RunId) -> bool {
    one.origin == other.origin && one.generation < other.generation
}

pub(super) fn hold(job: &Job) -> Held {
    Held {
        place: Place::Chunk(job.chunk_start),
        lane: job.lane(),
        run: job.run,
        record: job.record,
        admitted: job.admitted,
        jobs: job.chunk.clone(),
        first: job.index,
        count: 1,
    }
}

/// True where a job follows the last one of a claim and is like it.
fn joins(last: &Held, next: &Held) -> bool {
    let like = |held: &Held| (held.place, held.lane, held.run, held.record, held.admitted);
    like(last) == like(next) && last.range().end == usize::from(next.first)
}

/// The jobs of a claim, by where they are stored.
fn members(held: &Held) -> impl Iterator<Item = (Arrival, JobId)> + '_ {
    let (Place::Chunk(Arrival(start)) | Place::Row(Arrival(start))) = held.place;
    held.range().map(move |index| (Arrival(start + index as u64), held.jobs.id(index)))
}
