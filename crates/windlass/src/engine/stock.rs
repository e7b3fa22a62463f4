//! Claims ahead: how long a crew's jobs take lately, and what that means for how many are claimed together.
//!
//! Slots must not stand idle while the engine turns. A crew of commands gets a stock of single jobs, one of batches
//! a batch more for each slot, and the short jobs of kept workers and calls are claimed many at a time. Core has
//! the arithmetic.

use super::Engine;
use super::turn::Progress;
use crate::runner::Finished;
use crate::store::Store;
use std::collections::BTreeSet;
use windlass_core::outcome::Outcome;
use windlass_core::policy::Service;
use windlass_core::scheduler::{CrewNo, Planned};

/// The most jobs of a kept worker that are claimed as one: a chunk's worth.
const AT_ONCE_MOST: u32 = 1000;

impl<S: Store> Engine<S> {
    /// Learns from an end how long jobs of its crew take; the time of a batch is that of all its jobs.
    pub(super) fn note_pace(&mut self, end: &Finished) {
        if !end.outcomes.iter().any(|(_, outcome)| begun(outcome)) {
            return;
        }
        let Some(crew) = self.flights.get(end.flight).map(|flight| flight.crew) else { return };
        let Some(policy) = self.scheduler.policy(crew) else { return };
        let took = end.finished.since(end.started);
        match policy.service {
            Service::Command(_) | Service::Batch(_) => self.paces.entry(crew).or_default().took(took),
            Service::Worker(_) => {
                let pace = self.paces.entry(crew).or_default();
                pace.took(took / u32::from(end.count()).max(1));
                self.scheduler.set_at_once(crew, pace.at_once(self.turns, AT_ONCE_MOST));
            }
            // Calls go side by side, so a slot ends as many of them in a turn as one of them is shorter.
            Service::Url(ref url) => {
                let pace = self.paces.entry(crew).or_default();
                pace.took(took);
                let at_once = pace.at_once(self.turns, AT_ONCE_MOST).saturating_mul(url.size).min(AT_ONCE_MOST);
                self.scheduler.set_at_once(crew, at_once);
            }
            // A thread cannot be killed, so nothing may wait behind it; and elsewhere nothing is claimed ahead.
            Service::Handler { .. } | Service::Remote(_) => {}
        }
    }

    /// Crews of which something has just ended claim ahead where their jobs are short.
    pub(super) fn plan_stock(&mut self, progress: &Progress) -> Vec<Planned> {
        let landed = progress.reports.iter().filter_map(|(flight, ..)| self.flights.get(*flight));
        let crews: BTreeSet<CrewNo> = landed.map(|flight| flight.crew).collect();
        let mut planned = Vec::new();
        for crew in crews {
            let (Some(pace), Some(policy)) = (self.paces.get(&crew), self.scheduler.policy(crew)) else { continue };
            let stock = pace.stock(self.turns, policy.slots);
            let stock = match policy.service {
                Service::Command(_) => stock,
                // One lot more for each slot is there by the time the last one has ended.
                Service::Batch(_) | Service::Worker(_) | Service::Url(_) => stock.min(policy.slots),
                Service::Handler { .. } | Service::Remote(_) => 0,
            };
            planned.extend(self.scheduler.plan_stock(crew, stock));
        }
        planned
    }
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
        | Outcome::TimedOut { .. } => true,
        Outcome::Interrupted | Outcome::Cancelled | Outcome::Lost => false,
    }
}
