//! The model store: small, obviously right, in memory; other stores and the simulator are measured against it.
//!
//! Jobs are rows by arrival, everything else is derived from them in `write`. Transactions, crashes and power cuts
//! are those of `table`. It owns the reading of the contract where `store` leaves room, stated beside each verb
//! in `memory/verbs.rs`. It must not draw a number by chance: given the same calls it does the same.

use super::chunk::Chunk;
use super::keys::{Key, Step, end_jobs};
use super::{AttemptError, Changes, Cursor, Durability, Move, NewRun, QueueStats, RunInfo, Settlement, StoreError};
use std::collections::BTreeSet;
use std::sync::Arc;
use table::Table;
use windlass_core::job::{Arrival, JobId, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record, RunId, RunNo};
use windlass_core::judge::Reason;
use windlass_core::life_cycle::{self, Change, State};
use windlass_core::overrides::{self, Override, Target};
use windlass_core::suspicion::{self, Ruling};
use windlass_core::time::Time;

mod amend;
mod keys;
mod table;
#[cfg(test)]
mod tests;
mod times;
mod travel;
mod verbs;
mod view;

/// How many errors of a job are kept.
const ERRORS_MAX: usize = 10;

/// A job that has not succeeded.
#[derive(Clone, Debug)]
struct Job {
    id: JobId,
    queue: QueueNo,
    priority: Priority,
    state: State,
    run: Option<RunNo>,
    /// While it runs: as it was before this start.
    record: Record,
    admitted: Time,
    /// When it became or becomes due: the order in the lanes of retries and suspects.
    due: Time,
    ended: Option<Time>,
    reason: Option<Reason>,
    errors: Vec<AttemptError>,
    /// Its data: this index of this chunk, which began at this arrival.
    chunk: Arc<Chunk>,
    index: u16,
    chunk_start: Arrival,
}

impl Job {
    fn lane(&self) -> Lane {
        Lane { queue: self.queue, priority: self.priority, kind: suspicion::lane_kind(self.record) }
    }

    /// Its place in its lane while it is ready.
    fn ready_key(&self, arrival: Arrival) -> Option<(Lane, Time, Arrival)> {
        let lane = self.lane();
        let time = match lane.kind {
            LaneKind::Fresh => Time::ZERO,
            LaneKind::Retry | LaneKind::Suspect => self.due,
        };
        (self.state == State::Ready).then_some((lane, time, arrival))
    }

    /// Its place among the jobs that wait for a time.
    fn due_key(&self, arrival: Arrival) -> Option<(Time, Arrival)> {
        matches!(self.state, State::Scheduled | State::Retrying).then_some((self.due, arrival))
    }

    fn note_error(&mut self, at: Time, text: &str) {
        if self.errors.len() == ERRORS_MAX {
            self.errors.remove(0);
        }
        self.errors.push(AttemptError { start: self.record.starts, at, text: text.to_owned() });
    }

    /// Writes down what follows from a suspicion that is counted already.
    fn obey(&mut self, ruling: Ruling, at: Time, text: &str) -> Change {
        match ruling {
            Ruling::Ready(_) => Change::Interrupt,
            Ruling::Wait(until) => {
                self.due = until;
                Change::Retry
            }
            Ruling::Convicted => {
                self.reason = Some(Reason::Poison);
                self.note_error(at, text);
                Change::Fail
            }
        }
    }
}

/// Numbers that are given out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Number {
    Arrival,
    Run,
    Turn,
}

/// A commit that is to fail after `left` more that do not.
#[derive(Clone, Debug)]
struct Failure {
    left: u64,
    from_then_on: bool,
    error: StoreError,
}

/// The reference store. A clone is another store with the same past.
#[derive(Clone, Debug)]
pub struct Memory {
    jobs: Table<Arrival, Job>,
    ids: Table<JobId, Arrival>,
    keys: Table<Key, JobId>,
    /// Jobs that must have begun (true) or ended by a time.
    expiry: Table<(Time, Arrival, bool), ()>,
    /// Jobs that wait, by what they wait for.
    waits_for: Table<(JobId, Arrival), ()>,
    ready: Table<(Lane, Time, Arrival), ()>,
    due: Table<(Time, Arrival), ()>,
    queues: Table<QueueNo, (QueueName, QueueStats)>,
    queue_names: Table<QueueName, QueueNo>,
    runs: Table<RunNo, RunInfo>,
    run_ids: Table<RunId, RunNo>,
    cursors: Table<Origin, Cursor>,
    /// Inbox files that were read to their end and removed; a seal may name one late.
    closed: Table<Origin, ()>,
    outcomes: Table<u64, Vec<Settlement>>,
    overrides: Table<(Target, overrides::Key), Override>,
    numbers: Table<Number, u64>,
    notes: Table<String, Vec<u8>>,
    changes: Changes,
    /// Runs whose counters this verb changed.
    touched: BTreeSet<RunNo>,
    /// Jobs that this verb ended, and whether they succeeded.
    ends: Vec<(JobId, bool)>,
    failure: Option<Failure>,
    failed_commits: u64,
    /// A claim or note that is to fail after so many more that do not.
    failing_verb: Option<(u64, StoreError)>,
    epoch: u64,
}

impl Memory {
    /// An empty store; the seed only decides the epochs.
    pub fn new(seed: u64) -> Memory {
        Memory {
            jobs: Table::default(),
            ids: Table::default(),
            keys: Table::default(),
            expiry: Table::default(),
            waits_for: Table::default(),
            ready: Table::default(),
            due: Table::default(),
            queues: Table::default(),
            queue_names: Table::default(),
            runs: Table::default(),
            run_ids: Table::default(),
            cursors: Table::default(),
            closed: Table::default(),
            outcomes: Table::default(),
            overrides: Table::default(),
            numbers: Table::default(),
            notes: Table::default(),
            changes: Changes::default(),
            touched: BTreeSet::new(),
            ends: Vec::new(),
            failure: None,
            failed_commits: 0,
            failing_verb: None,
            epoch: next_epoch(seed),
        }
    }

    /// The process died, as by `kill -9`, and the next one opened the store: every commit holds, the turn is gone.
    pub fn crash(&mut self) {
        self.each_table(&mut |table| table.rollback());
        self.reopen();
    }

    /// The machine lost power: the last full commit holds, and the first `kept` of the commits that came after it.
    pub fn power_cut(&mut self, kept: usize) {
        self.each_table(&mut |table| table.power_cut(kept));
        self.reopen();
    }

    /// How many commits a power cut could take: more than this cannot be `kept`.
    pub fn at_risk(&self) -> usize {
        self.jobs.at_risk()
    }

    /// The next commit fails with this error, and nothing of its turn happens.
    pub fn fail_commit(&mut self, error: StoreError) {
        self.fail_commits(1, false, error);
    }

    /// The `nth` commit from here fails with this error, and all later ones if `from_then_on`.
    pub fn fail_commits(&mut self, nth: u64, from_then_on: bool, error: StoreError) {
        assert!(nth > 0, "the next commit is the first");
        self.failure = Some(Failure { left: nth - 1, from_then_on, error });
    }

    /// How many commits failed because they were meant to.
    pub fn failed_commits(&self) -> u64 {
        self.failed_commits
    }

    /// The `nth` claim or note from here fails with this error; its turn is to be rolled back, as after any error.
    pub fn fail_verb(&mut self, nth: u64, error: StoreError) {
        assert!(nth > 0, "the next one is the first");
        self.failing_verb = Some((nth - 1, error));
    }

    /// Fails where this verb is meant to.
    fn may_fail(&mut self) -> Result<(), StoreError> {
        match self.failing_verb.take() {
            Some((0, error)) => Err(error),
            later => {
                self.failing_verb = later.map(|(left, error)| (left - 1, error));
                Ok(())
            }
        }
    }

    /// The error that this commit is meant to have, if any.
    fn planned_failure(&mut self) -> Option<StoreError> {
        let mut planned = self.failure.take()?;
        if planned.left > 0 {
            planned.left -= 1;
            self.failure = Some(planned);
            return None;
        }
        self.failed_commits += 1;
        let error = planned.error.clone();
        self.failure = planned.from_then_on.then_some(planned);
        Some(error)
    }

    fn reopen(&mut self) {
        self.forget_turn();
        self.failure = None;
        self.failing_verb = None;
        self.epoch = next_epoch(self.epoch);
    }

    fn forget_turn(&mut self) {
        self.changes = Changes::default();
        self.touched.clear();
        self.ends.clear();
    }

    fn end_turn(&mut self, durability: Durability) {
        self.each_table(&mut |table| table.commit(durability == Durability::Full));
    }

    /// The one list of tables, so that none is left out when going back.
    fn each_table(&mut self, act: &mut dyn FnMut(&mut dyn Journaled)) {
        act(&mut self.jobs);
        act(&mut self.ids);
        act(&mut self.keys);
        act(&mut self.expiry);
        act(&mut self.waits_for);
        act(&mut self.ready);
        act(&mut self.due);
        act(&mut self.queues);
        act(&mut self.queue_names);
        act(&mut self.runs);
        act(&mut self.run_ids);
        act(&mut self.cursors);
        act(&mut self.closed);
        act(&mut self.outcomes);
        act(&mut self.overrides);
        act(&mut self.numbers);
        act(&mut self.notes);
    }

    fn number(&self, which: Number) -> u64 {
        self.numbers.get(&which).copied().unwrap_or(0)
    }

    /// Gives out `count` numbers and returns the first; they begin at 1.
    fn draw(&mut self, which: Number, count: u64) -> u64 {
        let last = self.number(which);
        self.numbers.put(which, Some(last + count));
        last + 1
    }

    /// Writes or removes a job, keeping the derived tables in step.
    fn write(&mut self, arrival: Arrival, job: Option<Job>) {
        if let Some(before) = self.jobs.get(&arrival).cloned() {
            before.ready_key(arrival).into_iter().for_each(|key| self.ready.put(key, None));
            before.due_key(arrival).into_iter().for_each(|key| self.due.put(key, None));
            self.ids.put(before.id, None);
        }
        if let Some(after) = &job {
            after.ready_key(arrival).into_iter().for_each(|key| self.ready.put(key, Some(())));
            after.due_key(arrival).into_iter().for_each(|key| self.due.put(key, Some(())));
            self.ids.put(after.id, Some(arrival));
        }
        self.jobs.put(arrival, job);
    }

    /// The one way a stored job changes its state: the table is asked, the counters and the moves follow. `job` is
    /// the job as it will be but for the state.
    fn transit(&mut self, arrival: Arrival, mut job: Job, change: Change) -> State {
        let before = self.jobs.get(&arrival).cloned().unwrap_or_else(|| job.clone());
        let to = life_cycle::next(before.state, change);
        let to = to.unwrap_or_else(|| panic!("a {} job cannot {change:?}; the verbs look first", before.state));
        // A lane is about ready jobs: the one that is left, or the one that is entered.
        let lane = if before.state == State::Ready { before.lane() } else { job.lane() };
        job.state = to;
        if to.is_end() || to == State::Running {
            let step = if to.is_end() { Step::Ended } else { Step::Begun };
            self.free_keys(&job, step);
        }
        if to.is_end() {
            self.ends.push((job.id, to == State::Succeeded));
        }
        let run = job.run;
        if before.run == run {
            self.count(lane, run, Some(before.state), Some(to));
        } else {
            self.count_in_queue(lane, run, Some(before.state), Some(to));
            self.count_in_run(run, None, Some(to));
        }
        self.write(arrival, (to != State::Succeeded).then_some(job));
        to
    }

    /// Keeps the counters of queue and run, and tells the engine.
    fn count(&mut self, lane: Lane, run: Option<RunNo>, from: Option<State>, to: Option<State>) {
        self.count_in_queue(lane, run, from, to);
        self.count_in_run(run, from, to);
    }

    fn count_in_queue(&mut self, lane: Lane, run: Option<RunNo>, from: Option<State>, to: Option<State>) {
        self.change_stats(lane.queue, |stats| {
            // What is forgotten had ended, and the end states count for ever.
            if let (Some(from), Some(_)) = (from, to) {
                stats.by_state[from.index()] -= 1;
            }
            if let Some(to) = to {
                stats.by_state[to.index()] += 1;
            }
        });
        match self.changes.moves.last_mut() {
            Some(last) if (last.lane, last.run, last.from, last.to) == (lane, run, from, to) => last.count += 1,
            Some(_) | None => self.changes.moves.push(Move { lane, run, from, to, count: 1 }),
        }
    }

    fn count_in_run(&mut self, run: Option<RunNo>, from: Option<State>, to: Option<State>) {
        let (Some(no), Some(to)) = (run, to) else { return };
        self.change_run(no, |run| match from {
            None => run.counts.admit(to, 1),
            Some(from) => {
                let shifted = run.counts.shift(from, to, 1);
                assert!(shifted.is_ok(), "{}: fewer {from} jobs are counted than there are", run.id);
            }
        });
    }

    fn change_stats(&mut self, queue: QueueNo, change: impl FnOnce(&mut QueueStats)) {
        let (name, mut stats) = self.queues.get(&queue).cloned().unwrap_or_else(|| panic!("no queue {}", queue.0));
        change(&mut stats);
        self.queues.put(queue, Some((name, stats)));
    }

    fn change_run(&mut self, no: RunNo, change: impl FnOnce(&mut RunInfo)) {
        let mut run = self.runs.get(&no).cloned().unwrap_or_else(|| panic!("no run {}", no.0));
        change(&mut run);
        self.runs.put(no, Some(run));
        self.touched.insert(no);
    }

    /// Announces the end of every run that this verb brought to it.
    fn end_runs(&mut self, now: Time) {
        self.end_waits(now);
        for no in std::mem::take(&mut self.touched) {
            let Some(mut run) = self.runs.get(&no).cloned() else { continue };
            if run.counts.take_end() {
                run.ended_at = Some(now);
                self.runs.put(no, Some(run.clone()));
                for new in end_jobs(&run) {
                    self.admit_jobs(&new, None, now);
                }
                self.changes.ended.push(run);
            }
        }
    }

    fn queue_no(&mut self, name: &QueueName) -> QueueNo {
        if let Some(no) = self.queue_names.get(name) {
            return *no;
        }
        let no = QueueNo(self.queues.rows().len() as u32);
        self.queues.put(no, Some((name.clone(), QueueStats::default())));
        self.queue_names.put(name.clone(), Some(no));
        self.changes.queues.push((no, name.clone()));
        no
    }

    fn make_run(&mut self, id: RunId, run: &NewRun, sealed: bool, now: Time) -> RunNo {
        let no = RunNo(self.draw(Number::Run, 1) as u32);
        let mut info = RunInfo::begin(no, id, run, now);
        info.counts.sealed = sealed;
        self.changes.runs.push(info.clone());
        self.runs.put(no, Some(info));
        self.run_ids.put(id, Some(no));
        self.touched.insert(no);
        no
    }

    /// The run that a job added from outside joins: the one named while it is open, else its youngest living
    /// generation, else a new one. Later generations are sealed from the start and take what comes until they end.
    fn joined_run(&mut self, id: RunId, now: Time) -> RunNo {
        let named = self.run_ids.get(&id).and_then(|no| self.runs.get(no));
        if let Some(run) = named.filter(|run| !run.counts.sealed) {
            return run.no;
        }
        let Some(newest) = self.newest_generation(id) else {
            return self.make_run(id, &NewRun::default(), false, now);
        };
        if newest.takes_late_jobs() {
            return newest.no;
        }
        let RunInfo { id, name, spec, terms, .. } = newest.next_generation();
        self.make_run(id, &NewRun { name, spec, terms }, true, now)
    }

    fn newest_generation(&self, id: RunId) -> Option<RunInfo> {
        let generations = self.runs.rows().values().filter(|run| run.id.origin == id.origin);
        generations.max_by_key(|run| run.id.generation).cloned()
    }
}

/// What going back needs of a table, whatever it holds.
trait Journaled {
    fn commit(&mut self, full: bool);
    fn rollback(&mut self);
    fn power_cut(&mut self, kept: usize);
}

impl<K: Ord + Clone, V: Clone> Journaled for Table<K, V> {
    fn commit(&mut self, full: bool) {
        Table::commit(self, full);
    }

    fn rollback(&mut self) {
        Table::rollback(self);
    }

    fn power_cut(&mut self, kept: usize) {
        Table::power_cut(self, kept);
    }
}

/// A full-period step (splitmix64), so that no two openings in a row share an epoch.
fn next_epoch(from: u64) -> u64 {
    let mut bits = from.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
