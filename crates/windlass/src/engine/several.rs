//! Fellows of a flight that succeeded together: one settlement for all of them.
//!
//! A settlement and an entry of the archive for each of tens of thousands of jobs that are alone in their queues would
//! be most of what their ends cost. Where an end leads to something, each is settled for itself.

use super::Engine;
use super::destinations::Heard;
use super::flights::InFlight;
use crate::archiver::Several;
use crate::runner::Finished;
use crate::store::{Store, Together};
use std::sync::Arc;
use windlass_core::judge::{Verdict, judge};
use windlass_core::notify::Ending;
use windlass_core::outcome::Outcome;
use windlass_core::time::Time;

impl<S: Store> Engine<S> {
    /// Those of the jobs from a position on, which all ended so, whose end is nothing but an end. They are the last of
    /// these jobs, because the fellows of a flight are behind its own.
    pub(super) fn several(
        &self,
        end: &Finished,
        flight: &InFlight,
        (first, count): (u16, u16),
        outcome: &Outcome,
        now: Time,
    ) -> Option<Several> {
        let which = flight.plain_among(first, count);
        if which.is_empty() || !end.emitted.is_empty() || !self.store.ends_together() {
            return None;
        }
        let policy = self.scheduler.rules(flight.crew)?;
        let leads_on = policy.flow.is_some() || self.handlers.may_hear(Ending::Succeeded);
        if leads_on || policy.rate_key.is_some() {
            return None;
        }
        let verdict = match outcome {
            // What comes back by chance is for those who try again.
            Outcome::Succeeded { .. } => judge(outcome.clone(), flight.held.record, flight.terms, now, 0),
            _ => return None,
        };
        if !matches!(verdict, Verdict::Succeed { .. }) {
            return None;
        }
        let (fellows, started, finished) = (Arc::clone(&flight.fellows), end.started, end.finished);
        let ends = Together { fellows, which, verdict, outcome: outcome.word(), started, finished };
        let run = flight.held.run.and_then(|no| self.runs.get(no)).map(|run| run.info.id);
        Some(Several { ends, run, ran: flight.ran })
    }
}

impl Heard {
    /// The same for jobs of a crew that does not tell its destinations apart.
    pub(super) fn of_several(flight: &InFlight, several: &Several, outcome: &Outcome) -> Heard {
        let jobs = several.ends.which.len() as u32;
        Heard { crew: flight.crew, jobs, sign: outcome.sign(), keyed: None }
    }
}
