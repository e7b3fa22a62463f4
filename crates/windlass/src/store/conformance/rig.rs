//! A store on the bench, with short words for what cases do to it, and the checks after every commit.
//!
//! It owns the time and the ids of the jobs it makes. It plays the engine as far as changes go: what they report is
//! mirrored and held against the view. It must not look behind the traits.

use super::Bench;
use super::audit::{self, Mirror};
use crate::store::chunk::ChunkBuilder;
use crate::store::{
    Amended, Amendment, Changes, Durability, Evidence, Filter, Held, JobInfo, Lot, NewJobs, Order, Recovered, RunInfo,
    Settlement, Store, StoreError, StoreView, Told,
};
use std::sync::Arc;
use std::time::Duration;
use windlass_core::job::{JobId, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, RunId};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// One store under test.
pub struct Rig<'b, B: Bench> {
    bench: &'b mut B,
    store: Option<B::Store>,
    pub now: Time,
    pub mirror: Mirror,
    next_offset: u64,
}

impl<B: Bench> std::fmt::Debug for Rig<'_, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rig").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Where the rig's own jobs come from.
pub const ORIGIN: u64 = 0xC0FFEE;

/// What a verb that must not fail gave.
#[track_caller]
pub(super) fn ok<T>(answer: Result<T, StoreError>) -> T {
    answer.unwrap_or_else(|e| panic!("a verb that must not fail did: {e}"))
}

#[track_caller]
pub(super) fn assert_stale<T>(answer: Result<T, StoreError>, what: &str) {
    assert!(matches!(answer, Err(StoreError::Stale(_))), "{what} must be refused as stale");
}

pub(super) fn succeed() -> Verdict {
    Verdict::Succeed { message: "done".into() }
}

pub(super) fn retry(at: Time) -> Verdict {
    Verdict::Retry { at, error: "exit 1".into() }
}

pub(super) fn fail() -> Verdict {
    Verdict::Fail { reason: Reason::Refused, error: "exit 65".into() }
}

pub(super) fn queue_name(name: &str) -> QueueName {
    QueueName::new(name.as_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

impl<'b, B: Bench> Rig<'b, B> {
    pub fn new(bench: &'b mut B) -> Rig<'b, B> {
        let store = bench.fresh();
        let mut rig =
            Rig { bench, store: Some(store), now: Time(1_000_000_000), mirror: Mirror::default(), next_offset: 32 };
        rig.recover(&|_, _| true, true);
        rig
    }

    /// Puts an empty store on the bench in place of this one.
    pub fn restart(&mut self) {
        self.store = None;
        self.store = Some(self.bench.fresh());
        self.mirror = Mirror::default();
        self.recover(&|_, _| true, true);
    }

    pub fn store(&mut self) -> &mut B::Store {
        self.store.as_mut().unwrap_or_else(|| panic!("the store is being reopened"))
    }

    pub fn view(&self) -> Box<dyn StoreView + '_> {
        let store = self.store.as_ref().unwrap_or_else(|| panic!("the store is being reopened"));
        self.bench.view(store)
    }

    pub fn later(&mut self, seconds: u64) -> Time {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.now
    }

    pub fn in_seconds(&self, seconds: u64) -> Time {
        self.now.after(Duration::from_secs(seconds))
    }

    /// Jobs of this rig's own origin, with data that names queue and number.
    pub fn new_jobs(&mut self, queue: &str, count: usize) -> NewJobs {
        let mut builder = ChunkBuilder::new(Origin::from_random(ORIGIN));
        for number in 0..count {
            builder.push(self.next_offset, format!("{queue}/{number}").as_bytes());
            self.next_offset += 17;
        }
        let jobs = Arc::new(builder.finish());
        NewJobs { queue: queue_name(queue), priority: Priority::NORMAL, run: None, not_before: None, jobs }
    }

    /// Admits and commits.
    pub fn admit(&mut self, jobs: Vec<NewJobs>) -> Vec<JobId> {
        let ids = jobs.iter().flat_map(|new| (0..new.jobs.len()).map(|index| new.jobs.id(index))).collect();
        self.admit_lot(&Lot { jobs, ..Lot::default() });
        ids
    }

    pub fn admit_lot(&mut self, lot: &Lot) {
        let now = self.now;
        ok(self.store().admit(lot, now));
        self.step();
    }

    pub fn push(&mut self, queue: &str, count: usize) -> Vec<JobId> {
        let jobs = self.new_jobs(queue, count);
        self.admit(vec![jobs])
    }

    pub fn push_to_run(&mut self, queue: &str, count: usize, run: RunId) -> Vec<JobId> {
        let jobs = NewJobs { run: Some(run), ..self.new_jobs(queue, count) };
        self.admit(vec![jobs])
    }

    /// Commits, takes the changes, and holds everything against everything.
    pub fn step(&mut self) -> u64 {
        let turn = ok(self.store().commit(Durability::Full));
        let changes = self.store().changes();
        self.learn(&changes);
        turn
    }

    /// Takes over what a committed turn changed, and holds everything against everything.
    pub fn learn(&mut self, changes: &Changes) {
        self.mirror.apply(changes);
        let jobs = audit::check(&*self.view());
        self.mirror.check(&jobs);
    }

    /// Ends the turn and says that the archive holds everything, so that what ended may be forgotten.
    pub fn archive_all(&mut self) {
        let turn = self.step();
        ok(self.store().archived(turn));
        self.step();
    }

    /// Dies without a commit and comes up again, with this evidence about what had begun.
    pub fn crash(&mut self, begun: &dyn Fn(JobId, u32) -> bool, same_boot: bool) -> Recovered {
        self.crash_only();
        self.recover(begun, same_boot)
    }

    /// Dies and opens again, not yet recovered.
    pub fn crash_only(&mut self) {
        if let Some(store) = self.store.take() {
            self.store = Some(self.bench.crash(store));
        }
    }

    pub fn recover(&mut self, begun: &dyn Fn(JobId, u32) -> bool, same_boot: bool) -> Recovered {
        self.recover_but(&[], begun, same_boot)
    }

    /// Recovers where workers elsewhere have these starts.
    pub fn recover_but(
        &mut self,
        theirs: &[(JobId, u32)],
        begun: &dyn Fn(JobId, u32) -> bool,
        same_boot: bool,
    ) -> Recovered {
        let now = self.now;
        let elsewhere = |id, start| theirs.contains(&(id, start));
        let recovered = ok(self
            .store()
            .recover(Evidence { begun, elsewhere: &elsewhere, same_boot, convicted: Evidence::UNTOLD }, now));
        self.start_over_with(theirs);
        recovered
    }

    /// Recovers and takes in what this says of those who are convicted.
    pub fn recover_telling(&mut self, begun: &dyn Fn(JobId, u32) -> bool, convicted: Told<'_>) -> Recovered {
        let now = self.now;
        let evidence = Evidence { begun, elsewhere: &|_, _| false, same_boot: true, convicted };
        let recovered = ok(self.store().recover(evidence, now));
        self.start_over();
        recovered
    }

    pub fn start_over(&mut self) {
        self.start_over_with(&[]);
    }

    /// Rebuilds the mirror as an engine does that starts over from the store; only these may run.
    fn start_over_with(&mut self, elsewhere: &[(JobId, u32)]) {
        let backlog = ok(self.store().backlog());
        let changes = self.store().changes();
        assert!(changes.moves.is_empty(), "what the backlog tells is told again as a change");
        self.mirror.forget_jobs();
        self.mirror.apply(&backlog);
        self.mirror.apply(&changes);
        let jobs = audit::check(&*self.view());
        let here = |job: &&JobInfo| job.state == State::Running && !elsewhere.contains(&(job.id, job.record.starts));
        assert_eq!(jobs.iter().filter(here).count(), 0, "jobs that run after recovery");
        self.mirror.check(&jobs);
    }

    pub fn queue(&self, name: &str) -> QueueNo {
        self.mirror.queue_no(name).unwrap_or_else(|| panic!("queue {name} was never reported"))
    }

    pub fn lane(&self, queue: &str, priority: i64, kind: LaneKind) -> Lane {
        let priority = Priority::new(priority).unwrap_or_else(|| panic!("no priority: {priority}"));
        Lane { queue: self.queue(queue), priority, kind }
    }

    /// Claims from one lane, not committed; a store may give less at once, so it is asked until it gives nothing.
    pub fn claim_lane(&mut self, lane: Lane, most: u32) -> Vec<Held> {
        let mut claimed = Vec::new();
        let mut left = most;
        while left > 0 {
            let now = self.now;
            let held = ok(self.store().claim(&[Order { lane, most: left }], now));
            let count: u32 = held.iter().map(|held| u32::from(held.count)).sum();
            assert!(count <= left, "{count} jobs were claimed where at most {left} were ordered");
            assert!(held.iter().all(|held| held.count > 0), "a claim of nothing was given");
            if count == 0 {
                break;
            }
            left -= count;
            claimed.extend(held);
        }
        claimed
    }

    /// Claims fresh jobs of normal priority and commits.
    pub fn claim(&mut self, queue: &str, most: u32) -> Vec<Held> {
        let lane = self.lane(queue, 0, LaneKind::Fresh);
        let held = self.claim_lane(lane, most);
        self.step();
        held
    }

    pub fn settlement(&self, held: &Held, verdict: Verdict) -> Settlement {
        let started = Time(self.now.0 - 2_000_000);
        Settlement { held: held.clone(), verdict, outcome: "test", started, finished: self.now }
    }

    /// Settles and commits.
    pub fn settle(&mut self, held: &Held, verdict: Verdict) {
        let settlement = self.settlement(held, verdict);
        self.settle_all(&[settlement]);
    }

    pub fn settle_all(&mut self, settlements: &[Settlement]) {
        let now = self.now;
        ok(self.store().settle(settlements, &[], now));
        self.step();
    }

    pub fn try_settle(&mut self, held: &Held, verdict: Verdict) -> Result<(), StoreError> {
        let settlement = self.settlement(held, verdict);
        let now = self.now;
        self.store().settle(&[settlement], &[], now)
    }

    pub fn amend(&mut self, id: JobId, amendment: Amendment) -> Amended {
        let now = self.now;
        let answers = ok(self.store().amend(&[id], amendment, now));
        assert_eq!(answers.len(), 1, "one amendment has one answer");
        self.step();
        answers[0]
    }

    pub fn release(&mut self, limit: u32) {
        self.release_telling(limit, Evidence::UNTOLD);
    }

    /// Releases and takes in what this says of those that are too late.
    pub fn release_telling(&mut self, limit: u32, late: Told<'_>) {
        let now = self.now;
        ok(self.store().release(now, limit, late));
        self.step();
    }

    pub fn job(&self, id: JobId) -> JobInfo {
        ok(self.view().job(id)).unwrap_or_else(|| panic!("{id} is not there"))
    }

    /// Succeeded and forgotten jobs have none.
    pub fn state(&self, id: JobId) -> Option<State> {
        ok(self.view().job(id)).map(|job| job.state)
    }

    pub fn list(&self, filter: &Filter, page: usize) -> Vec<JobInfo> {
        audit::list(&*self.view(), filter, page)
    }

    pub fn run(&self, id: RunId) -> RunInfo {
        ok(self.view().run(id)).unwrap_or_else(|| panic!("{id} is not there"))
    }

    /// A job of its own queue, brought to this state by the shortest legal way.
    pub fn job_in(&mut self, queue: &str, state: State) -> (JobId, Option<Held>) {
        self.job_of(queue, state, None)
    }

    /// The same in a run.
    pub fn job_in_run(&mut self, queue: &str, state: State, run: RunId) -> (JobId, Option<Held>) {
        self.job_of(queue, state, Some(run))
    }

    fn job_of(&mut self, queue: &str, state: State, run: Option<RunId>) -> (JobId, Option<Held>) {
        let later = (state == State::Scheduled).then(|| self.in_seconds(60));
        let jobs = NewJobs { not_before: later, run, ..self.new_jobs(queue, 1) };
        let id = self.admit(vec![jobs])[0];
        let mut held = None;
        let mut settled = |rig: &mut Self, verdict: Option<Verdict>| {
            let claimed = rig.claim(queue, 1);
            assert_eq!(claimed.len(), 1, "a ready job of {queue} can be claimed");
            verdict.into_iter().for_each(|verdict| rig.settle(&claimed[0], verdict));
            held = claimed.into_iter().next();
        };
        match state {
            State::Scheduled | State::Ready => {}
            State::Running => settled(self, None),
            State::Succeeded => settled(self, Some(succeed())),
            State::Retrying => settled(self, Some(retry(self.in_seconds(60)))),
            State::Failed => settled(self, Some(fail())),
            State::Suspended => drop(self.amend(id, Amendment::Suspend)),
            State::Cancelled => drop(self.amend(id, Amendment::Cancel)),
        }
        let expected = (state != State::Succeeded).then_some(state);
        assert_eq!(self.state(id), expected, "a job was brought to {state}");
        (id, held)
    }
}

/// The ids of some claims, in order.
pub(super) fn ids(held: &[Held]) -> Vec<JobId> {
    held.iter().flat_map(|held| held.ids()).collect()
}
