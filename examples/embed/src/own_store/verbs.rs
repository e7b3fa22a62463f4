//! The verbs. Each looks at everything first, and changes nothing if it must refuse.
//!
//! Left out are `hold` and `arrive`, by which jobs with a past move between servers: a store need not have them, says
//! so by leaving the trait's own words in their place, and gives away ready jobs all the same. So is what is for stores
//! that several servers share.

use super::change::{obey, start_of};
use super::tables::{Job, Row};
use super::{JournalStore, Tables};
use std::collections::{BTreeMap, BTreeSet};
use windlass::store::{
    Amended, Amendment, Changes, DELETED, Deleted, Durability, Evidence, FollowUp, Held, JobInfo, Lot, MOVED, Move,
    NewJobs, NewRun, Order, Recovered, RunInfo, Seal, Settlement, Steer, Store, StoreError, Told, Unarchived,
};
use windlass_core::job::{Arrival, JobId, Lane, Priority, Record, RunId, RunNo};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::{self, Change, State};
use windlass_core::outcome::Outcome;
use windlass_core::overrides::Override;
use windlass_core::run::terms::Stopped;
use windlass_core::suspicion::{self, Ruling};
use windlass_core::time::Time;

impl Store for JournalStore {
    fn backlog(&mut self) -> Result<Changes, StoreError> {
        // What recovery or a dropped turn moved is in the backlog: it must not be counted a second time.
        self.changes.moves.clear();
        self.changes.queues.clear();
        let mut waiting: BTreeMap<(Lane, Option<RunNo>, State), u64> = BTreeMap::new();
        for job in self.now.maps.jobs.values().filter(|job| !job.state.is_end()) {
            *waiting.entry((job.lane(), job.run, job.state)).or_default() += 1;
        }
        let told = |((lane, run, to), count)| Move { lane, run, from: None, to: Some(to), count };
        let queues = self.now.maps.queues.iter().map(|(no, queue)| (*no, queue.name.clone())).collect();
        Ok(Changes { queues, moves: waiting.into_iter().map(told).collect(), ..Changes::default() })
    }

    fn open_runs(&mut self) -> Result<Vec<RunInfo>, StoreError> {
        Ok(self.now.maps.runs.values().filter(|run| !run.counts.ended).cloned().collect())
    }

    fn recover(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        let (mut recovered, mut follow_ups) = (Recovered::default(), Vec::new());
        let running = self.now.maps.jobs.iter().filter(|(_, job)| job.state == State::Running);
        for (arrival, job) in running.map(|(arrival, job)| (*arrival, job.clone())).collect::<Vec<_>>() {
            let start = job.record.starts + 1;
            if (evidence.elsewhere)(job.id(), start) {
                continue;
            }
            if (evidence.begun)(job.id(), start) {
                self.repeat(arrival, job, evidence.same_boot, now, &mut recovered);
                follow_ups.extend(self.said_of(arrival, evidence.convicted));
            } else {
                recovered.returned += 1;
                self.transit(arrival, job, Change::Interrupt);
            }
        }
        self.admit_follow_ups(&follow_ups, now);
        self.finish(now);
        self.commit(Durability::Full)?;
        Ok(recovered)
    }

    fn admit(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError> {
        if let Some((id, from, _)) = lot.taken {
            let at = self.run(id).map(|run| run.taken);
            if at != Some(from) {
                return Err(StoreError::Stale(format!("{id} has taken {at:?}, expected {from:?}")));
            }
        }
        for (id, terms) in &lot.opens {
            if self.run(*id).is_none() {
                self.make_run(*id, &NewRun { terms: terms.clone(), ..NewRun::default() }, false, now);
            }
        }
        for new in lot.jobs.iter().filter(|new| !new.jobs.is_empty()) {
            let run = new.run.map(|id| self.join(id, now));
            self.admit_jobs(new, run, now);
        }
        for cursor in &lot.cursors {
            self.put(Row::Cursor(cursor.origin, Some(*cursor)));
        }
        for origin in &lot.closed {
            self.put(Row::Cursor(*origin, None));
            self.put(Row::Closed(*origin, Some(())));
        }
        // A seal that waited is older than the seals of this lot, so it is looked at before them.
        self.look_at_seals();
        for seal in &lot.seals {
            self.seal(seal, now);
            self.look_at_seals();
        }
        if let Some((id, _, to)) = lot.taken
            && let Some(no) = self.now.run_ids.get(&id).copied()
        {
            self.change_run(no, |run| run.taken = to);
        }
        self.finish(now);
        Ok(())
    }

    fn holders(&mut self, new: &NewJobs) -> Result<Vec<Option<JobId>>, StoreError> {
        Ok(self.key_holders(new))
    }

    fn joined(&mut self, run: RunId) -> Result<Option<RunInfo>, StoreError> {
        Ok(self.joins(run).map(|run| run.unwrap_or_else(|would_be| would_be)))
    }

    fn open_run(&mut self, id: RunId, run: &NewRun, now: Time) -> Result<RunNo, StoreError> {
        match self.run(id) {
            Some(_) => Err(StoreError::Stale(format!("{id} is there already"))),
            None => Ok(self.make_run(id, run, false, now)),
        }
    }

    fn stop_run(&mut self, no: RunNo, why: Stopped, now: Time) -> Result<(), StoreError> {
        if self.now.maps.runs.get(&no).is_some_and(|run| !run.counts.ended) {
            self.change_run(no, |run| {
                (run.counts.stopped, run.counts.sealed) = (Some(why), true);
                run.seal_after.clear();
            });
        }
        self.finish(now);
        Ok(())
    }

    fn claim(&mut self, orders: &[Order], _now: Time) -> Result<Vec<Held>, StoreError> {
        let mut claimed: Vec<Held> = Vec::new();
        for order in orders {
            let lane_on = self.now.ready.range((order.lane, Time(i64::MIN), Arrival(0))..);
            let head = lane_on.take_while(|(lane, ..)| *lane == order.lane).take(order.most as usize);
            for arrival in head.map(|(.., arrival)| *arrival).collect::<Vec<_>>() {
                let Some(job) = self.job(arrival) else { continue };
                let held = job.held();
                self.change_stats(job.queue, |stats| stats.started += 1);
                self.transit(arrival, job, Change::Claim);
                match claimed.last_mut() {
                    Some(last) if joins(last, &held) => last.count += 1,
                    Some(_) | None => claimed.push(held),
                }
            }
        }
        Ok(claimed)
    }

    fn held(&mut self, id: JobId) -> Result<Option<Held>, StoreError> {
        Ok(self.find(id).filter(|(_, job)| job.state == State::Running).map(|(_, job)| job.held()))
    }

    fn settle(&mut self, settlements: &[Settlement], follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError> {
        let mut seen = BTreeSet::new();
        for Settlement { held, .. } in settlements {
            for (arrival, id) in members(held) {
                let job = self.now.maps.jobs.get(&arrival).filter(|job| job.state == State::Running && job.id() == id);
                if job.is_none_or(|job| job.record.starts != held.record.starts) || !seen.insert(arrival) {
                    return Err(StoreError::Stale(format!("start {} of {id} is not held any more", held.start())));
                }
            }
        }
        for settlement in settlements {
            for (arrival, _) in members(&settlement.held).collect::<Vec<_>>() {
                self.settle_one(arrival, settlement, now);
                // How a job ends that another server has now is not told here.
                if let Some(end) = self.ends.last_mut().filter(|_| settlement.outcome == MOVED) {
                    end.1 = false;
                }
            }
            self.note_outcome(settlement.clone());
        }
        self.admit_follow_ups(follow_ups, now);
        self.finish(now);
        Ok(())
    }

    fn release(&mut self, now: Time, limit: u32, late: Told<'_>) -> Result<(), StoreError> {
        self.expire(now, limit, late);
        let due = self.now.due.iter().take_while(|(time, _)| *time <= now).take(limit as usize);
        for (_, arrival) in due.copied().collect::<Vec<_>>() {
            if let Some(job) = self.job(arrival) {
                self.transit(arrival, job, Change::Release);
            }
        }
        self.finish(now);
        Ok(())
    }

    fn next_due(&mut self) -> Result<Option<Time>, StoreError> {
        Ok(self.next_time())
    }

    fn shift_waits(&mut self, by: i64) -> Result<bool, StoreError> {
        for (_, arrival) in self.now.due.clone() {
            if let Some(job) = self.job(arrival).filter(|job| job.record.starts > 0) {
                let due = Time(job.due.0.saturating_add(by));
                self.put(Row::Job(arrival, Some(Job { due, ..job })));
            }
        }
        Ok(true)
    }

    fn amend(&mut self, ids: &[JobId], amendment: Amendment, now: Time) -> Result<Vec<Amended>, StoreError> {
        let mut amend = |id: &JobId| match self.find(*id) {
            Some((arrival, job)) => self.amend_one(arrival, job, amendment, now),
            None => Amended::Unknown,
        };
        let answers = ids.iter().map(&mut amend).collect();
        self.finish(now);
        Ok(answers)
    }

    fn steer(&mut self, step: &Steer) -> Result<(), StoreError> {
        self.put(match step {
            Steer::Set(new) => Row::Override((new.target.clone(), new.key), Some(new.clone())),
            Steer::Unset(target, key) => Row::Override((target.clone(), *key), None),
        });
        Ok(())
    }

    fn overrides(&mut self) -> Result<Vec<Override>, StoreError> {
        Ok(self.now.maps.overrides.values().cloned().collect())
    }

    fn jobs(&mut self, ids: &[JobId]) -> Result<Vec<Option<JobInfo>>, StoreError> {
        ids.iter().map(|id| self.find(*id).map(|(_, job)| self.now.info(&job)).transpose()).collect()
    }

    fn of_run(&mut self, run: RunId, from: Arrival, limit: usize) -> Result<(Vec<JobId>, Option<Arrival>), StoreError> {
        let Some(no) = self.now.run_ids.get(&run).copied() else { return Ok((Vec::new(), None)) };
        let live = self.now.of_run.range((no, from)..).take_while(|(of, _)| *of == no);
        let mut live = live.map(|(_, arrival)| *arrival);
        let ids = live.by_ref().take(limit).filter_map(|arrival| self.job(arrival)).map(|job| job.id()).collect();
        Ok((ids, live.next()))
    }

    fn delete(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Deleted>, StoreError> {
        let mut delete = |id: &JobId| match self.find(*id) {
            Some((_, job)) if job.state == State::Running => Deleted::Running,
            Some((arrival, job)) => self.delete_one(arrival, job, now),
            None => Deleted::Unknown,
        };
        let answers = ids.iter().map(&mut delete).collect();
        self.finish(now);
        Ok(answers)
    }

    fn run_numbered(&mut self, no: RunNo) -> Result<Option<RunInfo>, StoreError> {
        Ok(self.now.maps.runs.get(&no).cloned())
    }

    fn note(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.put(Row::Note(key.to_owned(), value.map(<[u8]>::to_vec)));
        Ok(())
    }

    fn notes(&mut self, prefix: &str, limit: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let from = self.now.maps.notes.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        Ok(from.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn forget(&mut self, before: Time, limit: u32) -> Result<u64, StoreError> {
        let old = self.now.maps.jobs.iter().filter(|(_, job)| job.ended.is_some_and(|ended| ended < before));
        let old: Vec<_> = old.take(limit as usize).map(|(arrival, job)| (*arrival, job.clone())).collect();
        for (arrival, job) in &old {
            self.tell(job.lane(), job.run, Some(job.state), None);
            self.put(Row::Job(*arrival, None));
        }
        let runs = empty_runs(&self.now, before, limit as usize - old.len());
        for no in &runs {
            self.put(Row::Run(*no, None));
            self.forget_keys(*no);
        }
        Ok((old.len() + runs.len()) as u64)
    }

    fn archived(&mut self, turn: u64) -> Result<(), StoreError> {
        let done: Vec<u64> = self.now.maps.outcomes.range(..=turn).map(|(turn, _)| *turn).collect();
        done.into_iter().for_each(|turn| self.put(Row::Outcomes(turn, None)));
        Ok(())
    }

    fn unarchived(&mut self) -> Result<Vec<Unarchived>, StoreError> {
        let turns = self.committed.maps.outcomes.iter();
        Ok(turns.map(|(turn, settlements)| Unarchived { turn: *turn, settlements: settlements.clone() }).collect())
    }

    fn changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    fn commit(&mut self, durability: Durability) -> Result<u64, StoreError> {
        self.end_turn(durability)
    }

    fn rollback(&mut self) -> Result<(), StoreError> {
        self.drop_turn();
        Ok(())
    }

    fn epoch(&self) -> u64 {
        self.now.numbers().epoch
    }
}

impl JournalStore {
    /// Notes what the seal waits for; a run that has nothing else is made, so that its end can be told.
    fn seal(&mut self, seal: &Seal, now: Time) {
        let known = self.now.run_ids.get(&seal.run).copied();
        let no = known.unwrap_or_else(|| self.make_run(seal.run, &NewRun::default(), false, now));
        self.change_run(no, |run| run.note_seal(seal));
    }

    /// Drops the positions that were reached, or whose file was read to its end and removed; none left seals.
    fn look_at_seals(&mut self) {
        let pending = self.now.maps.runs.values().filter(|run| !run.seal_after.is_empty());
        for mut run in pending.cloned().collect::<Vec<_>>() {
            let (before, maps) = (run.seal_after.len(), &self.now.maps);
            let reached = |(origin, offset): &(_, u64)| {
                maps.cursors.get(origin).is_some_and(|cursor| cursor.offset >= *offset)
                    || maps.closed.contains_key(origin)
            };
            run.seal_after.retain(|position| !reached(position));
            if run.seal_after.len() < before {
                self.change_run(run.no, |changed| {
                    changed.counts.sealed = run.seal_after.is_empty();
                    changed.seal_after = run.seal_after;
                });
            }
        }
    }

    /// Gives back a job that had begun when its server died.
    fn repeat(&mut self, arrival: Arrival, mut job: Job, same_boot: bool, now: Time, recovered: &mut Recovered) {
        let held = job.held();
        job.record.starts += 1;
        let ruling = match same_boot {
            true => suspicion::suspect(&mut job.record, now),
            false => Ruling::Ready(suspicion::lane_kind(job.record)),
        };
        let error = "the server died while it ran";
        let change = obey(&mut job, ruling, now, error);
        if change == Change::Fail {
            job.ended = Some(now);
            recovered.convicted += 1;
            let verdict = Verdict::Fail { reason: Reason::Poison, error: error.into() };
            self.note_outcome(Settlement { held, verdict, outcome: Outcome::Lost.word(), started: now, finished: now });
        } else {
            recovered.repeated += 1;
        }
        self.transit(arrival, job, change);
    }

    pub(super) fn amend_one(&mut self, arrival: Arrival, mut job: Job, amendment: Amendment, now: Time) -> Amended {
        let from = job.state;
        let change = match amendment {
            Amendment::Cancel if from == State::Running => return Amended::Running,
            Amendment::Priority(priority) => return self.rank(arrival, job, priority),
            Amendment::Cancel => Change::Cancel,
            Amendment::Retry => Change::Revive,
            Amendment::Suspend => Change::Suspend,
            Amendment::Resume => Change::Resume,
        };
        if life_cycle::next(from, change).is_none() {
            return Amended::Refused(from);
        }
        if let Some(of) = self.key_held_beside(&job).filter(|_| change == Change::Revive) {
            return Amended::Taken(of);
        }
        job.ended = (change == Change::Cancel).then_some(now);
        job.reason = None;
        if change == Change::Revive {
            job.record = Record { starts: job.record.starts, ..Record::default() };
            let over = job.run.and_then(|no| self.now.maps.runs.get(&no)).filter(|run| run.counts.ended);
            if let Some(id) = over.map(|run| run.id) {
                job.run = Some(self.join(id, now));
            }
            if from.is_end() {
                self.retake_key(&job);
            }
        }
        Amended::Done { from, to: self.transit(arrival, job, change) }
    }

    /// Moves a waiting job to the lane of another priority: no change of state, so no counter changes.
    fn rank(&mut self, arrival: Arrival, mut job: Job, priority: Priority) -> Amended {
        let state = job.state;
        if state.is_end() || state == State::Running {
            return Amended::Refused(state);
        }
        if job.priority == priority {
            return Amended::Same(state);
        }
        let (lane, run) = (job.lane(), job.run);
        job.priority = priority;
        self.changes.moves.push(Move { lane, run, from: Some(state), to: None, count: 1 });
        self.changes.moves.push(Move { lane: job.lane(), run, from: None, to: Some(state), count: 1 });
        self.put(Row::Job(arrival, Some(job)));
        Amended::Done { from: state, to: state }
    }

    /// A waiting job is given up first; then it is gone, and the archive has its last line.
    fn delete_one(&mut self, arrival: Arrival, job: Job, now: Time) -> Deleted {
        let (from, lane, held) = (job.state, job.lane(), job.held());
        let ended = if from.is_end() { from } else { self.transit(arrival, job, Change::Cancel) };
        self.tell(lane, None, Some(ended), None);
        self.put(Row::Job(arrival, None));
        let last = Settlement { held, verdict: Verdict::Cancel, outcome: DELETED, started: now, finished: now };
        self.note_outcome(last.clone());
        Deleted::Done { from, last }
    }
}

/// Runs that ended before that with nothing left. The oldest generation goes first, so that no number is given twice.
fn empty_runs(tables: &Tables, before: Time, most: usize) -> Vec<RunNo> {
    let kept: BTreeSet<_> = tables.maps.jobs.values().filter_map(|job| job.run).collect();
    let is_older = |one: RunId, other: RunId| one.origin == other.origin && one.generation < other.generation;
    let has_older = |run: &RunInfo| tables.run_ids.keys().any(|id| is_older(*id, run.id));
    let over =
        |run: &&RunInfo| run.ended_at.is_some_and(|at| at < before) && !kept.contains(&run.no) && !has_older(run);
    tables.maps.runs.values().filter(over).take(most).map(|run| run.no).collect()
}

/// True where a job follows the last one of a claim and is like it.
fn joins(last: &Held, next: &Held) -> bool {
    let like = |held: &Held| (held.place, held.lane, held.run, held.record, held.admitted);
    like(last) == like(next) && last.range().end == usize::from(next.first)
}

/// The jobs of a claim, by where they are stored.
fn members(held: &Held) -> impl Iterator<Item = (Arrival, JobId)> + '_ {
    let start = start_of(held);
    held.range().map(move |index| (Arrival(start.0 + index as u64), held.jobs.id(index)))
}
