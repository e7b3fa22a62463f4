//! The workers of one policy entry: who waits for them, how many there may be, and what became of the last ones.
//!
//! It owns the sentence about workers that cannot serve; how long to wait before another is made is core's. It must not
//! start or kill anything.

use crate::clock;
use crate::runner::{Flight, Start};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::policy::{Backoff, Policy, Service, Worker};
use windlass_core::supervisor::{Budget, Regeneration};
use windlass_core::time::Steady;

/// The wait after a worker that did nothing before it died doubles; three of those in a row are a trouble to be told,
/// and so are more than a hundred deaths within a minute of those that did something.
const BUDGET: Budget = Budget {
    backoff: Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(60) },
    free: 0,
    fruitless: 3,
    deaths: 100,
    window: Duration::from_secs(60),
};

/// Fewer jobs are not worth a turn of their own while there is more to do.
const HALF_LEAST: usize = 1000;

/// How a worker died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// After it had answered jobs.
    AfterWork,
    /// Before it had answered anything.
    Fruitless,
    /// It could not even be started.
    Hopeless,
}

/// Neighbouring jobs of one flight that wait, by their positions in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) flight: Flight,
    pub(super) positions: Range<u16>,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) policy: Arc<Policy>,
    /// A start of it, as an example of what its workers are for.
    pub(super) example: Start,
    waiting: VecDeque<Waiting>,
    /// How many jobs those are.
    jobs: usize,
    /// How many that share a flight with jobs of other queues have ended since the engine was told last.
    pub(super) ended: usize,
    /// Its workers by number, those that start or end included.
    pub(super) workers: Vec<u32>,
    /// What its workers may still cost.
    regeneration: Regeneration,
    pub(super) trouble: Option<String>,
}

impl Pool {
    pub(super) fn new(start: &Start) -> Pool {
        Pool {
            policy: Arc::clone(&start.policy),
            example: start.clone(),
            waiting: VecDeque::new(),
            jobs: 0,
            ended: 0,
            workers: Vec::new(),
            regeneration: Regeneration::new(BUDGET),
            trouble: None,
        }
    }

    pub(super) fn rules(&self) -> Option<&Worker> {
        match &self.policy.service {
            Service::Worker(worker) => Some(worker),
            Service::Command(_)
            | Service::Batch(_)
            | Service::Url(_)
            | Service::Remote(_)
            | Service::Forward(_)
            | Service::Handler { .. } => None,
        }
    }

    /// All jobs of a start wait.
    pub(super) fn add(&mut self, start: &Start) {
        let (flight, positions) = (start.flight, 0..start.count());
        self.jobs += positions.len();
        self.waiting.push_back(Waiting { flight, positions });
    }

    /// How many jobs wait.
    pub(super) fn jobs(&self) -> usize {
        self.jobs
    }

    /// Whether the engine should be told now that a start is over: where the workers have nothing more to do, and where
    /// half of many jobs that are alone in their queues has ended. A turn with those takes about as long as the
    /// workers do for them, so one half is the engine's while the workers have the other.
    pub(super) fn has_enough_to_tell(&self) -> bool {
        self.jobs == 0 || self.ended >= self.jobs.max(HALF_LEAST)
    }

    /// Up to so many neighbours that have waited longest.
    pub(super) fn take(&mut self, most: u16) -> Option<Waiting> {
        let front = self.waiting.front_mut()?;
        let Range { start, end } = front.positions;
        let positions = start..end.min(start.saturating_add(most));
        let taken = Waiting { flight: front.flight, positions };
        self.jobs -= taken.positions.len();
        front.positions.start = taken.positions.end;
        if front.positions.is_empty() {
            self.waiting.pop_front();
        }
        Some(taken)
    }

    /// Takes out what of a flight waits.
    pub(super) fn withdraw(&mut self, flight: Flight) -> Vec<Waiting> {
        let withdrawn: Vec<Waiting> = self.waiting.iter().filter(|waiting| waiting.flight == flight).cloned().collect();
        self.waiting.retain(|waiting| waiting.flight != flight);
        self.jobs -= withdrawn.iter().map(|waiting| waiting.positions.len()).sum::<usize>();
        withdrawn
    }

    /// Takes out one job of a flight; false where it does not wait.
    pub(super) fn withdraw_one(&mut self, flight: Flight, position: u16) -> bool {
        let is_in = |waiting: &Waiting| waiting.flight == flight && waiting.positions.contains(&position);
        let Some(at) = self.waiting.iter().position(is_in) else { return false };
        let Range { start, end } = self.waiting[at].positions;
        let behind = Waiting { flight, positions: position + 1..end };
        self.jobs -= 1;
        self.waiting[at].positions = start..position;
        self.waiting.insert(at + 1, behind);
        self.waiting.retain(|waiting| !waiting.positions.is_empty());
        true
    }

    /// Takes the rules of a start; true where they are new, so that workers of the old ones are to go.
    pub(super) fn learn(&mut self, start: &Start) -> bool {
        if Arc::ptr_eq(&self.policy, &start.policy) {
            return false;
        }
        let changed = self.policy.service != start.policy.service;
        self.policy = Arc::clone(&start.policy);
        self.example = start.clone();
        if changed {
            // Other rules may do what the old ones could not.
            self.regeneration.forgive();
        }
        changed
    }

    /// A worker answered. True where what ailed them is over by that.
    pub(super) fn worked(&mut self) -> bool {
        if self.regeneration.is_well() && self.trouble.is_none() {
            return false;
        }
        self.regeneration.worked(clock::steady());
        !self.regeneration.is_spent() && self.trouble.take().is_some()
    }

    /// A worker died that nobody had told to, or could not start at all.
    pub(super) fn died(&mut self, why: &str, how: Death, now: Steady) {
        let wait = self.regeneration.died(how == Death::AfterWork, now);
        if how == Death::Hopeless || self.regeneration.is_spent() {
            let (times, wait) = (self.regeneration.in_words(), wait.as_secs_f32());
            self.trouble = Some(format!("{why} ({times}; the next try is in {wait:.1} s)"));
        }
    }

    /// No worker is made before this.
    pub(super) fn not_before(&self) -> Option<Steady> {
        self.regeneration.not_before()
    }

    pub(super) fn may_make(&self, now: Steady) -> bool {
        self.regeneration.may_make(now)
    }

    /// Whether one more may be made now.
    pub(super) fn may_hire(&self) -> bool {
        let limit = self.policy.slots as usize;
        self.workers.len() < limit && self.may_make(clock::steady())
    }
}
