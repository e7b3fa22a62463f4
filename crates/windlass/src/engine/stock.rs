//! Claims ahead: how long a crew's jobs take lately, and what that means for how many are claimed together.
//!
//! Slots must not stand idle while the engine turns. A crew of commands gets a stock of single jobs, one of batches
//! a batch more for each slot, and the short jobs of kept workers and calls are claimed many at a time. Core has
//! the arithmetic.

use super::Engine;
use super::flights::Load;
use super::turn::Progress;
use crate::runner::Finished;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::outcome::Outcome;
use windlass_core::policy::Service;
use windlass_core::scheduler::{CrewNo, Planned};
use windlass_core::time::Time;

/// The most jobs of a kept worker that are claimed as one.
const AT_ONCE_MOST: u32 = 32 << 10;
/// The same for jobs that are called for at a URL: a chunk's worth.
const CALLED_MOST: u32 = 1000;
/// The most data that is claimed ahead for a crew's kept workers; what runs is held beside it.
const STOCK_BYTES: u64 = 32 << 20;
/// So many batches of a slot wait while it has one, where processes are shorter than turns.
const BATCHES_AHEAD: u32 = 4;
/// The most claims of kept workers that wait: each is a lane of its own, and a turn has an end. It is twice what a turn
/// should have, so that workers have one half in hand while the engine turns with the other. Half as many were more
/// turns, and a turn has a sync of its own, and one of the archive.
const CLAIMS_MOST: u32 = 16 << 10;

/// What kept workers ended in one turn, by crew.
#[derive(Debug, Default)]
pub(super) struct Spells(BTreeMap<CrewNo, Spell>);

/// From the first begin to the last end.
#[derive(Debug)]
struct Spell {
    from: Time,
    to: Time,
    jobs: u64,
    starts: u32,
}

impl Spells {
    fn add(&mut self, crew: CrewNo, end: &Finished) {
        let spell = self.0.entry(crew).or_insert(Spell { from: end.started, to: end.finished, jobs: 0, starts: 0 });
        spell.from = spell.from.min(end.started);
        spell.to = spell.to.max(end.finished);
        spell.jobs += u64::from(end.count());
        spell.starts += 1;
    }
}

impl<S: Store> Engine<S> {
    /// Learns from an end how long jobs of its crew take; the time of a batch is that of all its jobs.
    pub(super) fn note_pace(&mut self, end: &Finished, spells: &mut Spells) {
        if !end.outcomes.iter().any(|(_, outcome)| begun(outcome)) {
            return;
        }
        let Some(crew) = self.flights.get(end.flight).map(|flight| flight.crew) else { return };
        let Some(policy) = self.scheduler.rules(crew) else { return };
        match &policy.service {
            Service::Command(_) | Service::Batch(_) => {
                self.paces.entry(crew).or_default().took(end.finished.since(end.started));
            }
            Service::Worker(_) => spells.add(crew, end),
            // Calls go side by side, so a slot ends as many of them in a turn as one of them is shorter.
            Service::Url(url) => {
                let (pace, size) = (self.paces.entry(crew).or_default(), url.size);
                pace.took(end.finished.since(end.started));
                let at_once = pace.at_once(self.turns, CALLED_MOST).saturating_mul(size).min(CALLED_MOST);
                self.scheduler.set_at_once(crew, at_once);
            }
            // A thread cannot be killed, so nothing may wait behind it; and elsewhere nothing is claimed ahead.
            Service::Handler { .. } | Service::Remote(_) | Service::Forward(_) => {}
        }
    }

    /// A worker has many starts in hand at once, so its pace is that of all of them together.
    pub(super) fn note_spells(&mut self, spells: Spells) {
        for (crew, spell) in spells.0 {
            let Some(policy) = self.scheduler.policy(crew) else { continue };
            let workers = policy.slots.min(spell.starts);
            let took = spell.to.since(spell.from) * workers / u32::try_from(spell.jobs).unwrap_or(u32::MAX).max(1);
            let pace = self.paces.entry(crew).or_default();
            pace.took_each(took, spell.jobs);
            self.scheduler.set_at_once(crew, pace.at_once(self.turns, AT_ONCE_MOST));
        }
    }

    /// Crews of which something has just ended, and those of kept workers of which something is about to begin, claim
    /// ahead where their jobs are short.
    pub(super) fn plan_stock(&mut self, progress: &Progress, planned: &[Planned]) -> Vec<Planned> {
        let landed = progress.reports.iter().filter_map(|(flight, ..)| self.flights.get(*flight));
        let kept = |crew: &CrewNo| {
            self.scheduler.rules(*crew).is_some_and(|policy| matches!(policy.service, Service::Worker(_)))
        };
        let begin = planned.iter().map(|planned| planned.crew).filter(kept);
        let crews: BTreeSet<CrewNo> = landed.map(|flight| flight.crew).chain(begin).collect();
        let mut planned = Vec::new();
        for crew in crews {
            let (Some(pace), Some(policy)) = (self.paces.get(&crew), self.scheduler.policy(crew)) else { continue };
            let stock = pace.stock(self.turns, policy.slots);
            let load = self.flights.load_of(crew);
            let (claims, jobs) = match policy.service {
                Service::Command(_) => (stock, u64::MAX),
                // One lot more for each slot is there by the time the last one has ended.
                Service::Batch(_) | Service::Url(_) => (stock.min(policy.slots), u64::MAX),
                // The same counted in jobs, because a lot may lie in as many queues as it has jobs.
                Service::Worker(_) if stock > 0 => {
                    let lots = 2 * u64::from(policy.slots) * u64::from(pace.at_once(self.turns, AT_ONCE_MOST));
                    (CLAIMS_MOST, within(lots, load))
                }
                Service::Worker(_) | Service::Handler { .. } | Service::Remote(_) | Service::Forward(_) => (0, 0),
            };
            let slots = policy.slots;
            let is_batch = matches!(policy.service, Service::Batch(_));
            planned.extend(self.scheduler.plan_stock(crew, claims, jobs));
            if is_batch {
                // A process may be shorter than a turn: more than one for each slot wait while their data is little.
                let ahead = stock.min(slots.saturating_mul(BATCHES_AHEAD));
                planned.extend(self.scheduler.plan_stock(crew, ahead, within(u64::MAX, load)));
            }
        }
        planned
    }
}

/// How many more jobs a crew may have, so that they are no more than `most` and their data, if it is like what is
/// there, is no more than may be claimed ahead.
fn within(most: u64, load: Load) -> u64 {
    let each = (load.bytes / load.jobs.max(1)).max(1);
    most.saturating_sub(load.jobs).min(STOCK_BYTES.saturating_sub(load.bytes) / each)
}

/// Whether what ended says how long a job of its kind takes.
fn begun(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Succeeded { .. }
        | Outcome::Snoozed { .. }
        | Outcome::RetryLater { .. }
        | Outcome::FailedForGood { .. }
        | Outcome::Failed { .. }
        | Outcome::Crashed { .. }
        | Outcome::TimedOut { .. }
        | Outcome::Moved { .. } => true,
        Outcome::Interrupted | Outcome::Cancelled | Outcome::Lost | Outcome::NotMoved { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lot_is_bounded_by_jobs_and_by_data() {
        for (most, jobs, bytes, more) in [
            (4000, 0, 0, 4000),
            (4000, 1000, 100 << 10, 3000),
            (4000, 4001, 100 << 10, 0),
            (4000, 10, 10 << 20, 22),
            (4000, 32, 32 << 20, 0),
            (4000, 40, 40 << 20, 0),
        ] {
            assert_eq!(within(most, Load { jobs, bytes }), more, "{most} {jobs} {bytes}");
        }
    }
}
