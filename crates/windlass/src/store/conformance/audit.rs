//! The checkers: what must be true of the committed state of any store at any moment, whatever came before.
//!
//! They only look, through the view, and panic with a sentence. Also used after injected faults.

use crate::store::{Changes, Filter, JobInfo, StoreView};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::job::{Arrival, JobId, Lane, QueueNo, RunId};
use windlass_core::life_cycle::{State, TRANSITIONS};

/// More than any case makes.
pub const ALL: usize = 1_000_000;

/// All jobs that the view lists, by arrival; read in pages of this many.
pub fn list(view: &dyn StoreView, filter: &Filter, page: usize) -> Vec<JobInfo> {
    let mut jobs = Vec::new();
    let mut from = Arrival(0);
    loop {
        let page_read = view.list(filter, from, page).unwrap_or_else(|e| panic!("the view cannot list: {e}"));
        assert!(page_read.jobs.len() <= page, "a page of {page} holds {} jobs", page_read.jobs.len());
        jobs.extend(page_read.jobs);
        match page_read.next {
            Some(next) => assert!(next > from, "a listing goes on at {next:?}, not after {from:?}"),
            None => return jobs,
        }
        from = page_read.next.unwrap_or(from);
    }
}

/// Holds listing, single lookups, queue counters and run counters against each other; returns the listing.
pub fn check(view: &dyn StoreView) -> Vec<JobInfo> {
    let jobs = list(view, &Filter::default(), 1000);
    let mut seen = BTreeSet::new();
    for job in &jobs {
        assert!(seen.insert(job.id), "{} is listed twice", job.id);
        assert_ne!(job.state, State::Succeeded, "{} succeeded and is still listed", job.id);
        assert_eq!(job.ended.is_some(), job.state.is_end(), "{}: {} with end {:?}", job.id, job.state, job.ended);
        let waits_for_time = match job.state {
            State::Scheduled => job.particulars.as_ref().is_none_or(|particulars| particulars.after.is_empty()),
            state => state == State::Retrying,
        };
        assert!(!waits_for_time || job.not_before.is_some(), "{} is {} without a time", job.id, job.state);
        assert!(job.reason.is_none() || job.state.is_end(), "{} is {} with a reason", job.id, job.state);
    }
    check_queues(view, &jobs);
    check_runs(view, &jobs);
    jobs
}

fn check_queues(view: &dyn StoreView, jobs: &[JobInfo]) {
    let queues = view.queues().unwrap_or_else(|e| panic!("the view cannot show queues: {e}"));
    let names: BTreeSet<_> = queues.iter().map(|queue| &queue.name).collect();
    assert_eq!(names.len(), queues.len(), "a queue is shown twice");
    assert!(jobs.iter().all(|job| names.contains(&job.queue)), "a job is in a queue that is not shown");
    for queue in &queues {
        for state in State::ALL {
            let listed = jobs.iter().filter(|job| job.queue == queue.name && job.state == state).count() as u64;
            let counted = queue.stats.by_state[state.index()];
            let right = if state.is_end() { counted >= listed } else { counted == listed };
            assert!(right, "queue {} counts {counted} {state} jobs, {listed} are listed", queue.name);
        }
    }
}

fn check_runs(view: &dyn StoreView, jobs: &[JobInfo]) {
    let runs = view.runs(ALL).unwrap_or_else(|e| panic!("the view cannot show runs: {e}"));
    let ids: BTreeSet<_> = runs.iter().map(|run| run.id).collect();
    assert_eq!(ids.len(), runs.len(), "a run is shown twice");
    assert!(jobs.iter().all(|job| job.run.is_none_or(|id| ids.contains(&id))), "a job is in a run that is not shown");
    for run in &runs {
        for state in State::ALL {
            let listed = jobs.iter().filter(|job| job.run == Some(run.id) && job.state == state).count() as u64;
            let counted = run.counts.by_state[state.index()];
            let right = if state.is_end() { counted >= listed } else { counted == listed };
            assert!(right, "{} counts {counted} {state} jobs, {listed} are listed", run.id);
        }
        let over = run.counts.sealed && run.counts.live() == 0;
        assert_eq!(run.counts.ended, over, "{} has {} live jobs and the wrong end", run.id, run.counts.live());
        assert_eq!(run.ended_at.is_some(), over, "{} ended without a time, or has one too early", run.id);
    }
}

/// What the engine knows from the reported changes alone.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    pub queues: BTreeMap<QueueNo, String>,
    pub ready: BTreeMap<Lane, i64>,
    live: BTreeMap<(QueueNo, State), i64>,
    /// Runs that were reported as ended, and how often.
    pub ended: BTreeMap<RunId, u32>,
}

impl Mirror {
    /// Applies changes, each of which must be a legal one.
    pub fn apply(&mut self, changes: &Changes) {
        for (no, name) in &changes.queues {
            let before = self.queues.insert(*no, name.to_string());
            assert!(before.is_none_or(|before| before == name.as_str()), "queue number {} has two names", no.0);
        }
        for change in &changes.moves {
            assert!(change.count > 0, "a move of no jobs was reported");
            assert!(self.queues.contains_key(&change.lane.queue), "jobs moved in a queue that was never reported");
            if let (Some(from), Some(to)) = (change.from, change.to) {
                let legal = TRANSITIONS.iter().any(|(f, _, t)| (*f, *t) == (from, to));
                assert!(legal, "a move from {from} to {to} was reported");
            }
            for (state, sign) in [(change.from, -1), (change.to, 1)] {
                let Some(state) = state.filter(|state| !state.is_end()) else { continue };
                let count = sign * i64::try_from(change.count).unwrap_or(i64::MAX);
                *self.live.entry((change.lane.queue, state)).or_default() += count;
                if state == State::Ready {
                    *self.ready.entry(change.lane).or_default() += count;
                }
            }
        }
        for run in &changes.ended {
            assert!(run.counts.ended && run.ended_at.is_some(), "{} was reported as ended and is not", run.id);
            *self.ended.entry(run.id).or_default() += 1;
            assert_eq!(self.ended[&run.id], 1, "the end of {} was reported twice", run.id);
        }
    }

    /// Forgets jobs, as after a crash; what was reported of runs stays reported.
    pub fn forget_jobs(&mut self) {
        self.ready.clear();
        self.live.clear();
    }

    /// Holds what was reported against what is listed.
    pub fn check(&self, jobs: &[JobInfo]) {
        let mut ready: BTreeMap<Lane, i64> = BTreeMap::new();
        let mut live: BTreeMap<(QueueNo, State), i64> = BTreeMap::new();
        for job in jobs.iter().filter(|job| !job.state.is_end()) {
            let queue = self.queue_no(job.queue.as_str());
            let queue = queue.unwrap_or_else(|| panic!("queue {} was never reported", job.queue));
            *live.entry((queue, job.state)).or_default() += 1;
            if job.state == State::Ready {
                *ready.entry(Lane { queue, priority: job.priority, kind: job.kind }).or_default() += 1;
            }
        }
        assert_eq!(without_zeros(&self.ready), ready, "ready jobs by lane: reported (left) and listed (right)");
        assert_eq!(without_zeros(&self.live), live, "jobs by queue and state: reported (left) and listed (right)");
    }

    pub fn queue_no(&self, name: &str) -> Option<QueueNo> {
        self.queues.iter().find(|(_, known)| *known == name).map(|(no, _)| *no)
    }
}

fn without_zeros<K: Ord + Copy>(counts: &BTreeMap<K, i64>) -> BTreeMap<K, i64> {
    counts.iter().filter(|(_, count)| **count != 0).map(|(key, count)| (*key, *count)).collect()
}

/// Every job is accounted for exactly once: listed, or said to be gone.
pub fn check_none_lost(jobs: &[JobInfo], promised: &BTreeSet<JobId>, gone: &BTreeSet<JobId>) {
    let listed: BTreeSet<JobId> = jobs.iter().map(|job| job.id).collect();
    for id in promised {
        assert!(listed.contains(id) || gone.contains(id), "{id} was committed and is lost");
        assert!(!(listed.contains(id) && gone.contains(id)), "{id} is finished and still listed");
    }
}
