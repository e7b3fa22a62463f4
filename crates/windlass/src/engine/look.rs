//! What only a store with others beside the engine needs: a look at what they did, reports that come too late, and
//! turns that are dropped because nobody answers.
//!
//! Others may take a job away from a server that they take for dead, and another program may write what it likes into
//! a table. Neither is a fault of this engine: what is not held any more is dropped, and said.

use super::effects::Effects;
use super::event::Event;
use super::turn::Progress;
use super::{Engine, Stopping, failure};
use crate::archiver::Entry;
use crate::error::{Failure, Kind};
use crate::runner::Stop;
use crate::store::late::{self, Ends};
use crate::store::{FollowUp, JobInfo, Settlement, Store, StoreError};
use std::collections::HashSet;
use windlass_core::job::JobId;
use windlass_core::time::Time;

/// Why a turn was dropped.
#[derive(Debug)]
pub(super) enum Dropped {
    Full(String),
    Away(String),
}

impl Dropped {
    /// What those are told who asked for something in it.
    pub(super) fn failure(&self) -> Failure {
        match self {
            Dropped::Full(what) => {
                Failure::new(Kind::Full, format!("rejected, nothing was stored: no space left: {what}"))
            }
            Dropped::Away(what) => {
                Failure::new(Kind::TryLater, format!("rejected, nothing was stored: the database is away: {what}"))
            }
        }
    }

    pub(super) fn note(&self) -> String {
        match self {
            Dropped::Full(what) => format!("no space left ({what}): nothing is admitted or started until there is"),
            Dropped::Away(what) => {
                format!(
                    "the database is away ({what}): what runs goes on, nothing is admitted or started until it answers"
                )
            }
        }
    }
}

impl<S: Store> Engine<S> {
    /// Why nothing is taken in while `full_until` holds.
    pub(super) fn dropped_before(&self) -> Dropped {
        match self.away {
            true => Dropped::Away("a moment ago".into()),
            false => Dropped::Full("the disk was full a moment ago".into()),
        }
    }

    /// Looks for what others did to the store, where it is time or somebody said that there is work.
    pub(super) fn look(&mut self, now: Time, progress: &mut Progress) -> Result<(), StoreError> {
        let Some(at) = self.store.next_look() else { return Ok(()) };
        if self.asked_to_look || at <= now {
            let (options, handlers) = (&self.options, &self.handlers);
            let convicted = |info: &JobInfo, run| failure::of_failed(info, run, options, handlers);
            self.store.look(self.asked_to_look, &convicted, now)?;
            // What people said to another server holds here, too.
            self.fill_overrides()?;
            if self.store.controls() && !std::mem::replace(&mut self.controls, true) {
                // What the one before has fired is in the notes.
                self.schedules.load(&self.options.schedules, &mut self.store)?;
            }
            self.controls = self.store.controls();
            if self.store.drains() && self.stopping == Stopping::No {
                self.pending.push_back(Event::Drain);
                self.turn_again = true;
            }
            progress.needs(self.options.durability);
        }
        Ok(())
    }

    /// The store answers again: what memory holds of it may be old. False where it is away again already.
    pub(super) fn read_what_was_missed(&mut self) -> Result<bool, StoreError> {
        if self.away {
            match self.read_anew() {
                Err(StoreError::Away(_)) => return Ok(false),
                read => read?,
            }
            (self.away, self.fenced) = (false, false);
        }
        Ok(true)
    }

    /// Where this server could not say for too long that it lives, others will run what it runs: that has to end first.
    pub(super) fn stop_before_others_start(&mut self, effects: &mut Effects) {
        let late = self.away && self.store.fenced_at().is_some_and(|at| at <= self.steady);
        if late && !self.fenced {
            self.fenced = true;
            let stopped = self.flights.stop(|flight| !flight.leased, Stop::Interrupt);
            effects.notes.push(format!(
                "the database is away for too long: {} starts are stopped, before another server runs their jobs",
                stopped.len()
            ));
            effects.stops.extend(stopped);
        }
    }

    /// Writes the ends of those starts that are still held; the others came too late, and that is said.
    pub(super) fn write_what_is_held(
        &mut self,
        ends: Vec<Settlement>,
        follow_ups: &[FollowUp],
        why: String,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Vec<Settlement>, StoreError> {
        let starts = ends.iter().flat_map(|end| end.held.ids().map(|id| (id, end.held.start())));
        let lost: HashSet<JobId> = self.store.lost(&starts.collect::<Vec<_>>())?.into_iter().collect();
        if lost.is_empty() {
            return Err(StoreError::Stale(why));
        }
        effects.notes.push(format!(
            "{} reports came too late, their jobs were taken away meanwhile: they are ignored",
            lost.len()
        ));
        let Ends { settlements, follow_ups } = late::without(&ends, follow_ups, &lost);
        for entry in std::mem::take(&mut effects.archive) {
            let left = late::without(std::slice::from_ref(&entry.settlement), &[], &lost).settlements;
            effects.archive.extend(left.into_iter().map(|settlement| Entry { settlement, ..entry.clone() }));
        }
        self.store.settle(&settlements, &follow_ups, now)?;
        Ok(settlements)
    }
}
