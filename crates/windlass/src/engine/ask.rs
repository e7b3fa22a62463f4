//! Asks of remote workers: each waits until jobs of its queues can be claimed for it, without anybody looking.
//!
//! A claim for a worker elsewhere is a stored lease: a note beside the claim says so until it is settled. A worker
//! elsewhere cannot have killed this server, so after a death such a job goes back at once and is suspected of nothing.
//! It must not know how long a lease lasts: the runner does.

use super::Engine;
use super::effects::Effects;
use super::turn::Progress;
use crate::store::{Held, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use windlass_core::job::{JobId, QueueNo};
use windlass_core::policy::pattern_matches;
use windlass_core::time::Time;

/// One worker's wish for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What the jobs are handed over by.
    pub number: u64,
    /// Queues, by name or pattern.
    pub queues: Vec<String>,
    pub most: u32,
}

/// Who asks, and what waits to be asked for.
#[derive(Debug, Default)]
pub(super) struct Asks {
    /// The oldest first.
    open: BTreeMap<u64, Ask>,
    /// Those that the open turn serves.
    served: Vec<Ask>,
    /// Queues of remote workers that have something ready.
    waiting: BTreeSet<QueueNo>,
}

impl Asks {
    /// The turn is on disk.
    pub(super) fn keep(&mut self) {
        self.served.clear();
    }

    /// The turn never was: who was served in it asks on.
    pub(super) fn give_back(&mut self) {
        self.waiting.clear();
        let served = std::mem::take(&mut self.served);
        self.open.extend(served.into_iter().map(|ask| (ask.number, ask)));
    }
}

impl<S: Store> Engine<S> {
    pub(super) fn ask(&mut self, ask: Ask, now: Time) {
        self.scheduler.note_ask(&ask.queues, now);
        self.asks.open.insert(ask.number, ask);
    }

    /// Whoever asked has gone away, or waits no longer.
    pub(super) fn unask(&mut self, number: u64) {
        self.asks.open.remove(&number);
    }

    /// Notes which queues have something for remote workers; called before anybody else looks at what has changed.
    pub(super) fn note_what_is_asked_for(&mut self) {
        for queue in &self.changed {
            let remote = self.scheduler.policy_of(*queue).is_some_and(|(_, policy)| policy.service.is_remote());
            match remote && self.scheduler.waiting(*queue) > 0 {
                true => self.asks.waiting.insert(*queue),
                false => self.asks.waiting.remove(queue),
            };
        }
    }

    /// Claims what is there for those who ask, the oldest ask first; each is served once, with all that it can get now.
    pub(super) fn serve_asks(
        &mut self,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        if self.asks.waiting.is_empty() {
            return Ok(());
        }
        let asks: Vec<Ask> = self.asks.open.values().cloned().collect();
        for ask in asks {
            let covers = |queue: &&QueueNo| {
                let name = self.queues[**queue].name.as_str().as_bytes();
                ask.queues.iter().any(|pattern| pattern_matches(pattern.as_bytes(), name))
            };
            let queues: Vec<QueueNo> = self.asks.waiting.iter().filter(covers).copied().collect();
            if queues.is_empty() {
                continue;
            }
            let planned = self.scheduler.plan_asked(&queues, ask.most);
            let (got, _) = self.claim_all(planned, Some(ask.number), now, progress, effects)?;
            let scheduler = &self.scheduler;
            self.asks.waiting.retain(|queue| scheduler.waiting(*queue) > 0);
            if got > 0 {
                self.asks.served.extend(self.asks.open.remove(&ask.number));
            }
        }
        Ok(())
    }

    /// Stores that these jobs are in the hands of a worker elsewhere.
    pub(super) fn lease(&mut self, held: &Held) -> Result<(), StoreError> {
        held.ids().try_for_each(|id| self.store.note(&lease_key(id), Some(&held.start().to_le_bytes())))
    }

    /// Stores that they no longer are.
    pub(super) fn end_lease(&mut self, held: &Held) -> Result<(), StoreError> {
        held.ids().try_for_each(|id| self.store.note(&lease_key(id), None))
    }
}

const LEASES: &str = "lease/";

fn lease_key(job: JobId) -> String {
    format!("{LEASES}{job}")
}

/// Takes the leases of an earlier server out of the store: the starts that were elsewhere when it ended.
pub(super) fn take_leases(store: &mut impl Store) -> Result<HashSet<(JobId, u32)>, StoreError> {
    let mut leases = HashSet::new();
    for (key, value) in store.notes(LEASES, usize::MAX)? {
        let job = key.strip_prefix(LEASES).and_then(|id| id.parse().ok());
        let start = value.try_into().ok().map(u32::from_le_bytes);
        leases.extend(job.zip(start));
        store.note(&key, None)?;
    }
    Ok(leases)
}
