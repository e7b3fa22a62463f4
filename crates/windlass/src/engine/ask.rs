//! Asks of remote workers: each waits until jobs of its queues can be claimed for it, without anybody looking.
//!
//! A claim for a worker elsewhere is a stored lease: notes beside the claim have its token and what its job said, until
//! it is settled. So it outlives this server: the next one goes on with it, and believes the same token. It must not
//! know how long a lease lasts: the runner does.

use super::Engine;
use super::effects::Effects;
use super::event::Answer;
use super::obey::Wrote;
use super::turn::Progress;
use crate::error::{Failure, Kind};
use crate::runner::progress::Channel;
use crate::runner::{Flight, Lent};
use crate::sabotage::{self, Sabotage};
use crate::store::{Held, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use windlass_core::job::{JobId, QueueNo};
use windlass_core::policy::{Policy, pattern_matches};
use windlass_core::time::Time;

/// One worker's wish for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What the jobs are handed over by.
    pub number: u64,
    /// Queues, by name or pattern.
    pub queues: Vec<String>,
    /// A token for each job that it may get, drawn by chance and used once.
    pub tokens: Vec<String>,
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
            let planned = self.scheduler.plan_asked(&queues, ask.tokens.len() as u32);
            let (got, _) = self.claim_all(planned, Some(&ask), now, progress, effects)?;
            let scheduler = &self.scheduler;
            self.asks.waiting.retain(|queue| scheduler.waiting(*queue) > 0);
            if got > 0 {
                self.asks.served.extend(self.asks.open.remove(&ask.number));
            }
        }
        Ok(())
    }

    /// Stores that a job is in the hands of a worker elsewhere, and whom to believe about it.
    pub(super) fn lease(&mut self, held: &Held, lent: &Lent) -> Result<(), StoreError> {
        let queue = self.queue_name(held.lane.queue).as_str();
        let value = format!("{} {} {} {queue}", held.start(), lent.since.as_micros(), lent.token);
        held.ids().try_for_each(|id| self.store.note(&lease_key(id), Some(value.as_bytes())))
    }

    /// Stores that it no longer is; what it said goes with it.
    pub(super) fn end_lease(&mut self, held: &Held, spoken: u32) -> Result<(), StoreError> {
        for id in held.ids() {
            self.store.note(&lease_key(id), None)?;
            (0..spoken).try_for_each(|word| self.store.note(&word_key(id, word), None))?;
        }
        Ok(())
    }

    /// Keeps what a job elsewhere says until its end, whichever server hears of that.
    pub(super) fn keep_spoken(
        &mut self,
        flight: Flight,
        channel: Channel,
        lines: &[u8],
        answer: Answer<()>,
        effects: &mut Effects,
    ) -> Result<Wrote, StoreError> {
        let Some(leased) = self.flights.get_mut(flight).filter(|flight| flight.leased) else {
            effects.answers.add(answer, Err(Failure::new(Kind::Conflict, "its start is over: nothing was changed")));
            return Ok(false);
        };
        let value = [&[word_mark(channel)], lines].concat();
        let word = leased.spoken;
        leased.spoken += 1;
        let ids: Vec<JobId> = leased.held.ids().collect();
        ids.into_iter().try_for_each(|id| self.store.note(&word_key(id, word), Some(&value)))?;
        effects.answers.add(answer, Ok(()));
        Ok(true)
    }

    /// Puts in flight again what workers elsewhere had when the last server ended.
    pub(super) fn resume(&mut self, leases: Leases) -> Result<(), StoreError> {
        if sabotage::on(Sabotage::LeaseForgotten) {
            return Ok(());
        }
        for (id, Leased { start, queue, lent }) in leases.0 {
            let policy = self.options.policies.iter().find(|policy| policy.matches(&queue)).cloned();
            let held = self.store.held(id)?.filter(|held| held.start() == start);
            let Some((policy, held)) = policy.filter(|policy| policy.service.is_remote()).zip(held) else { continue };
            let Some(crew) = self.scheduler.resumed(held.lane) else { continue };
            let policy = Arc::new(policy);
            let (claim, departed) = self.flights.depart(crew, &policy, vec![held], lent.since);
            for (flight, held) in departed {
                if let Some(flight) = self.flights.get_mut(flight) {
                    flight.spoken = lent.spoken.len() as u32;
                }
                let start = self.start(flight, claim, held, Arc::clone(&policy), Some(lent.clone()))?;
                self.resumed.push(start);
            }
        }
        Ok(())
    }
}

const LEASES: &str = "lease/";

fn lease_key(job: JobId) -> String {
    format!("{LEASES}{job}")
}

/// What the job of a lease said, in order.
fn word_key(job: JobId, word: u32) -> String {
    format!("{LEASES}{job}/{word:08}")
}

fn word_mark(channel: Channel) -> u8 {
    match channel {
        Channel::Control => b'c',
        Channel::Emit => b'e',
    }
}

fn read_word(value: &[u8]) -> Option<(Channel, Vec<u8>)> {
    let (mark, lines) = value.split_first()?;
    let channel = [Channel::Control, Channel::Emit].into_iter().find(|channel| word_mark(*channel) == *mark)?;
    Some((channel, lines.to_vec()))
}

/// A lease as the store has it.
#[derive(Debug)]
struct Leased {
    start: u32,
    queue: String,
    lent: Lent,
}

impl Leased {
    fn read(value: &[u8]) -> Option<Leased> {
        let mut words = std::str::from_utf8(value).ok()?.splitn(4, ' ');
        let start = words.next()?.parse().ok()?;
        let since = Time(words.next()?.parse().ok()?);
        let (token, queue) = (words.next()?.to_owned(), words.next()?.to_owned());
        Some(Leased { start, queue, lent: Lent { token, since, ask: None, spoken: Vec::new() } })
    }
}

/// What workers elsewhere had when the last server ended.
#[derive(Debug, Default)]
pub(super) struct Leases(BTreeMap<JobId, Leased>);

impl Leases {
    /// Reads the leases that go on, and drops those of queues that workers elsewhere do not serve any more. A process
    /// without rules serves nothing of the config, and leaves them all to the next one.
    pub(super) fn read(store: &mut impl Store, policies: &[Policy]) -> Result<(Leases, Returned), StoreError> {
        let (mut kept, mut returned) = (Leases::default(), Returned::default());
        let goes_on = |leased: &Leased| {
            let policy = policies.iter().find(|policy| policy.matches(&leased.queue));
            policies.is_empty() || policy.is_some_and(|policy| policy.service.is_remote())
        };
        // A lease comes before what its job said, in the order of the keys.
        for (key, value) in store.notes(LEASES, usize::MAX)? {
            let (job, word) = key[LEASES.len()..].split_once('/').unwrap_or((&key[LEASES.len()..], ""));
            let job: Option<JobId> = job.parse().ok();
            let of_lease = job.and_then(|job| kept.0.get_mut(&job)).filter(|_| !word.is_empty());
            match (job.zip(Leased::read(&value)), of_lease) {
                (_, Some(leased)) => leased.lent.spoken.extend(read_word(&value)),
                (Some((job, leased)), None) if goes_on(&leased) => {
                    kept.0.insert(job, leased);
                }
                (leased, None) => {
                    returned.0.extend(leased.map(|(job, leased)| (job, leased.start)));
                    store.note(&key, None)?;
                }
            }
        }
        Ok((kept, returned))
    }

    pub(super) fn has(&self, job: JobId, start: u32) -> bool {
        self.0.get(&job).is_some_and(|leased| leased.start == start)
    }
}

/// Starts that were elsewhere and go back: they cannot have killed the server.
#[derive(Debug, Default)]
pub(super) struct Returned(HashSet<(JobId, u32)>);

impl Returned {
    pub(super) fn has(&self, job: JobId, start: u32) -> bool {
        self.0.contains(&(job, start))
    }
}
