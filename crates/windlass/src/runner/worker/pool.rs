//! The workers of one policy entry: who waits for them, how many there may be, and what became of the last ones.
//!
//! It owns the wait before a worker is made anew and the sentence about a worker that cannot serve. It must not start
//! or kill anything.

use crate::runner::{Flight, Start};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::policy::{Backoff, Policy, Service, Worker};
use windlass_core::retry;

/// The wait after a worker that did nothing before it died doubles from here to there.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(60) };
/// So many such deaths in a row are a trouble to be told.
const TROUBLE_AFTER: u32 = 3;

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
    /// Its workers by number, those that start or end included.
    pub(super) workers: Vec<u32>,
    /// Deaths in a row of workers that had answered nothing.
    deaths: u32,
    /// No worker is made before this.
    pub(super) not_before: Option<Instant>,
    pub(super) trouble: Option<String>,
}

impl Pool {
    pub(super) fn new(start: &Start) -> Pool {
        Pool {
            policy: Arc::clone(&start.policy),
            example: start.clone(),
            waiting: VecDeque::new(),
            jobs: 0,
            workers: Vec::new(),
            deaths: 0,
            not_before: None,
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
            | Service::Handler { .. } => None,
        }
    }

    /// All jobs of a start wait.
    pub(super) fn add(&mut self, start: &Start) {
        let (flight, positions) = (start.flight, 0..start.held.count);
        self.jobs += positions.len();
        self.waiting.push_back(Waiting { flight, positions });
    }

    /// How many jobs wait.
    pub(super) fn jobs(&self) -> usize {
        self.jobs
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
            (self.deaths, self.not_before) = (0, None);
        }
        changed
    }

    /// A worker answered: whatever ailed them is over. True where that is news.
    pub(super) fn recovered(&mut self) -> bool {
        self.deaths = 0;
        self.not_before = None;
        self.trouble.take().is_some()
    }

    /// A worker ended before it had answered anything, or could not start at all.
    pub(super) fn failed(&mut self, why: &str, hopeless: bool, now: Instant) {
        self.deaths = self.deaths.saturating_add(1);
        let wait = retry::ceiling(BACKOFF, self.deaths);
        self.not_before = now.checked_add(wait);
        if hopeless || self.deaths >= TROUBLE_AFTER {
            let (deaths, wait) = (self.deaths, wait.as_secs_f32());
            self.trouble = Some(format!("{why} ({deaths} times in a row; the next try is in {wait:.1} s)"));
        }
    }

    /// Whether one more may be made now.
    pub(super) fn may_hire(&self, now: Instant) -> bool {
        let limit = self.policy.slots as usize;
        self.workers.len() < limit && self.not_before.is_none_or(|at| at <= now)
    }
}
