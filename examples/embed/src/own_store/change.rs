//! How a job comes in and goes on: its state, the counters of its queue and its run, and what the engine is told.
//!
//! `transit` is the one way by which a job changes its state, and it asks the life cycle's table. It must not decide
//! what a person or an outcome means: the verbs do.

use super::JournalStore;
use super::tables::{Job, Laid, NEVER, Queue, Row};
use std::sync::Arc;
use windlass::store::chunk::Chunk;
use windlass::store::keys::{Step, end_jobs};
use windlass::store::{FollowUp, Held, Move, NewJobs, NewRun, Place as At, QueueStats, RunInfo, Settlement, Told};
use windlass_core::job::{Arrival, JobId, Lane, QueueName, QueueNo, Record, RunId, RunNo};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::{self, Change, State};
use windlass_core::suspicion::Ruling;
use windlass_core::time::Time;

/// The first arrival of the chunk that a claim is of.
pub(super) fn start_of(held: &Held) -> Arrival {
    let (At::Chunk(start) | At::Row(start)) = held.place;
    start
}

impl JournalStore {
    pub(super) fn job(&self, arrival: Arrival) -> Option<Job> {
        self.now.maps.jobs.get(&arrival).cloned()
    }

    pub(super) fn find(&self, id: JobId) -> Option<(Arrival, Job)> {
        let arrival = *self.now.ids.get(&id)?;
        Some((arrival, self.job(arrival)?))
    }

    /// Changes the state of a job; it is as it will be, but for that.
    pub(super) fn transit(&mut self, arrival: Arrival, mut job: Job, change: Change) -> State {
        let before = self.job(arrival).unwrap_or_else(|| job.clone());
        let to = life_cycle::next(before.state, change);
        let to = to.unwrap_or_else(|| panic!("a {} job cannot {change:?}; the verbs look first", before.state));
        // A lane is about ready jobs: the one that is left, or the one that is entered.
        let lane = if before.state == State::Ready { before.lane() } else { job.lane() };
        job.state = to;
        job.overdue = job.overdue.filter(|_| to == State::Running);
        if to.is_end() || to == State::Running {
            self.free_keys(&job, if to.is_end() { Step::Ended } else { Step::Begun });
        }
        if to.is_end() {
            self.ends.push((job.id(), to == State::Succeeded));
            job.awaits.clear();
        }
        self.tell(lane, job.run, Some(before.state), Some(to));
        // A run that it joins by this counts it as new; one that has ended stays as it was.
        let from = Some(before.state).filter(|_| before.run == job.run);
        self.count_in_run(job.run, from, to);
        self.put(Row::Job(arrival, (to != State::Succeeded).then_some(job)));
        to
    }

    /// Keeps the counters of a queue, and tells the engine.
    pub(super) fn tell(&mut self, lane: Lane, run: Option<RunNo>, from: Option<State>, to: Option<State>) {
        self.change_stats(lane.queue, |stats| {
            // What is forgotten had ended, and ends count for ever.
            if let (Some(from), Some(_)) = (from, to) {
                stats.by_state[from.index()] -= 1;
            }
            if let Some(to) = to {
                stats.by_state[to.index()] += 1;
            }
        });
        self.changes.moves.push(Move { lane, run, from, to, count: 1 });
    }

    fn count_in_run(&mut self, run: Option<RunNo>, from: Option<State>, to: State) {
        let Some(no) = run else { return };
        self.change_run(no, |run| match from {
            None => run.counts.admit(to, 1),
            Some(from) => {
                let shifted = run.counts.shift(from, to, 1);
                assert!(shifted.is_ok(), "{}: fewer {from} jobs are counted than there are", run.id);
            }
        });
    }

    pub(super) fn change_stats(&mut self, no: QueueNo, change: impl FnOnce(&mut QueueStats)) {
        let mut queue = self.now.maps.queues.get(&no).cloned().unwrap_or_else(|| panic!("no queue {}", no.0));
        change(&mut queue.stats);
        self.put(Row::Queue(no, Some(queue)));
    }

    pub(super) fn change_run(&mut self, no: RunNo, change: impl FnOnce(&mut RunInfo)) {
        let mut run = self.now.maps.runs.get(&no).cloned().unwrap_or_else(|| panic!("no run {}", no.0));
        change(&mut run);
        self.put(Row::Run(no, Some(run)));
        self.changed_runs.insert(no);
    }

    pub(super) fn queue_no(&mut self, name: &QueueName) -> QueueNo {
        if let Some(no) = self.now.queue_names.get(name) {
            return *no;
        }
        let no = QueueNo(self.now.maps.queues.len() as u32);
        self.put(Row::Queue(no, Some(Queue { name: name.clone(), stats: QueueStats::default() })));
        self.changes.queues.push((no, name.clone()));
        no
    }

    pub(super) fn run(&self, id: RunId) -> Option<&RunInfo> {
        self.now.maps.runs.get(self.now.run_ids.get(&id)?)
    }

    pub(super) fn make_run(&mut self, id: RunId, run: &NewRun, sealed: bool, now: Time) -> RunNo {
        let no = RunNo(self.draw(|numbers| numbers.run += 1).run);
        let mut info = RunInfo::begin(no, id, run, now);
        info.counts.sealed = sealed;
        self.changes.runs.push(info.clone());
        self.put(Row::Run(no, Some(info)));
        self.changed_runs.insert(no);
        no
    }

    /// The run that late jobs go to: the one named while it is open, else its youngest generation while that lives.
    /// The answer is what is there, or what would be made.
    pub(super) fn joins(&self, id: RunId) -> Option<Result<RunInfo, RunInfo>> {
        if let Some(open) = self.run(id).filter(|run| !run.counts.sealed) {
            return Some(Ok(open.clone()));
        }
        let generations = self.now.maps.runs.values().filter(|run| run.id.origin == id.origin);
        let newest = generations.max_by_key(|run| run.id.generation)?.clone();
        Some(if newest.takes_late_jobs() { Ok(newest) } else { Err(newest.next_generation()) })
    }

    pub(super) fn join(&mut self, id: RunId, now: Time) -> RunNo {
        match self.joins(id) {
            None => self.make_run(id, &NewRun::default(), false, now),
            Some(Ok(run)) => run.no,
            Some(Err(RunInfo { id, name, spec, terms, .. })) => {
                self.make_run(id, &NewRun { name, spec, terms }, true, now)
            }
        }
    }

    /// Jobs come in, but for those whose key is taken or whose run is full.
    pub(super) fn admit_jobs(&mut self, new: &NewJobs, run: Option<RunNo>, now: Time) {
        let queue = self.queue_no(&new.queue);
        let (awaits, doomed) = self.unmet(&new.jobs);
        let held_back = !awaits.is_empty() || doomed.is_some();
        let later = if held_back { Some(NEVER) } else { new.not_before.filter(|time| *time > now) };
        let state = if later.is_some() { State::Scheduled } else { State::Ready };
        let jobs = self.take_keys(&new.jobs, queue, run, now);
        let first = self.lay(&jobs);
        for index in 0..jobs.len() {
            let job = Job {
                laid: Laid { start: first, jobs: Arc::clone(&jobs) },
                index: index as u16,
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
                awaits: awaits.clone(),
                overdue: None,
            };
            self.tell(job.lane(), run, None, Some(state));
            self.count_in_run(run, None, state);
            let arrival = Arrival(first.0 + index as u64);
            self.put(Row::Job(arrival, Some(job)));
            doomed.into_iter().for_each(|because| self.give_up(arrival, because, now));
        }
    }

    /// Stores a chunk; its jobs have the arrivals from the answer on.
    fn lay(&mut self, jobs: &Arc<Chunk>) -> Arrival {
        let count = jobs.len() as u64;
        let first = Arrival(self.draw(|numbers| numbers.arrival += count).arrival + 1 - count);
        if count > 0 {
            self.put(Row::Chunk(first, Some(Arc::clone(jobs))));
        }
        first
    }

    pub(super) fn admit_follow_ups(&mut self, follow_ups: &[FollowUp], now: Time) {
        for new in follow_ups.iter().filter(|new| !new.jobs.is_empty()) {
            let FollowUp { queue, priority, run, jobs } = new.clone();
            self.admit_jobs(&NewJobs { queue, priority, run: None, not_before: None, jobs }, run, now);
        }
    }

    /// What is to be taken in with the end of a job, if it has failed.
    pub(super) fn said_of(&self, arrival: Arrival, told: Told<'_>) -> Vec<FollowUp> {
        let failed = self.job(arrival).filter(|job| job.state == State::Failed);
        let said = failed.and_then(|job| Some(told(&self.now.info(&job).ok()?, job.run)));
        said.unwrap_or_default()
    }

    pub(super) fn note_outcome(&mut self, settlement: Settlement) {
        let turn = self.now.numbers().turn + 1;
        let mut outcomes = self.now.maps.outcomes.get(&turn).cloned().unwrap_or_default();
        outcomes.push(settlement);
        self.put(Row::Outcomes(turn, Some(outcomes)));
    }

    /// One job of a claim has ended so.
    pub(super) fn settle_one(&mut self, arrival: Arrival, settlement: &Settlement, now: Time) {
        let Some(mut job) = self.job(arrival) else { return };
        let Settlement { verdict, started, finished, .. } = settlement;
        self.change_stats(job.queue, |stats| {
            stats.waited += started.since(job.admitted).as_micros() as u64;
            stats.ran += finished.since(*started).as_micros() as u64;
        });
        let failure = verdict.failure(job.record);
        job.record.starts += 1;
        job.record.failures += u32::from(matches!(verdict, Verdict::Retry { .. } | Verdict::Fail { .. }));
        job.record.suspicions += u32::from(matches!(verdict, Verdict::Suspect(_)));
        if let Verdict::Retry { at, .. } | Verdict::Snooze { at } | Verdict::Suspect(Ruling::Wait(at)) = verdict {
            job.due = *at;
        }
        if let Verdict::Retry { error, .. } = verdict {
            job.note_error(*finished, error);
        }
        if let Some((reason, error)) = failure {
            job.reason = Some(reason);
            job.note_error(*finished, &error);
        }
        let change = match verdict.state() {
            State::Succeeded => Change::Succeed,
            State::Retrying => Change::Retry,
            State::Failed => Change::Fail,
            State::Cancelled => Change::Cancel,
            State::Scheduled => Change::Snooze,
            State::Ready | State::Running | State::Suspended => Change::Interrupt,
        };
        job.ended = matches!(change, Change::Cancel | Change::Fail).then_some(now).or(job.ended);
        self.transit(arrival, job, change);
    }

    /// The end of a verb: tells what ended with it, and takes in what follows from that.
    pub(super) fn finish(&mut self, now: Time) {
        self.end_waits(now);
        for no in std::mem::take(&mut self.changed_runs) {
            let Some(mut run) = self.now.maps.runs.get(&no).cloned() else { continue };
            if run.counts.take_end() {
                run.ended_at = Some(now);
                self.put(Row::Run(no, Some(run.clone())));
                for new in end_jobs(&run) {
                    self.admit_jobs(&new, None, now);
                }
                self.changes.ended.push(run);
            }
        }
    }
}

/// What follows from a suspicion that is counted already.
pub(super) fn obey(job: &mut Job, ruling: Ruling, at: Time, error: &str) -> Change {
    match ruling {
        Ruling::Ready(_) => Change::Interrupt,
        Ruling::Wait(until) => {
            job.due = until;
            Change::Retry
        }
        Ruling::Convicted => {
            job.reason = Some(Reason::Poison);
            job.note_error(at, error);
            Change::Fail
        }
    }
}
