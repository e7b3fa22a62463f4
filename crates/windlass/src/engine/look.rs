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
use crate::runner::{Finished, Stop};
use crate::store::late::{self, Ends};
use crate::store::{FollowUp, JobInfo, Occasion, Settlement, Store, StoreError};
use std::collections::HashSet;
use std::time::Duration;
use windlass_core::job::JobId;
use windlass_core::time::{Steady, Time};

/// How far a server is with stopping what others may soon run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fence {
    /// It was told to end, and is killed at this time.
    Told {
        kill_at: Steady,
    },
    Killed,
}

/// What ended in rows that another program has locked.
#[derive(Debug, Default)]
pub(super) struct Locked {
    pub(super) ends: Vec<Finished>,
    /// When they are tried next; none where no row was found to be locked.
    pub(super) again_at: Option<Time>,
}

/// How often locked rows are tried.
const LOCKED_RETRY: Duration = Duration::from_secs(1);

impl<S: Store> Engine<S> {
    /// Looks for what others did to the store, where it is time or somebody said that there is work.
    pub(super) fn look(&mut self, now: Time, progress: &mut Progress) -> Result<(), StoreError> {
        // Nobody looks at a store that is away or full; whoever asked for it is remembered.
        let Some(at) = self.store.next_look().filter(|_| self.full_until.is_none()) else { return Ok(()) };
        if self.look_because > Occasion::Time || at <= now {
            let (options, handlers) = (&self.options, &self.handlers);
            let convicted = |info: &JobInfo, run| failure::of_failed(info, run, options, handlers);
            if self.store.look(self.look_because, &convicted, now)? {
                // What people said to another server holds here, too.
                self.fill_overrides()?;
            }
            if self.store.controls() && !std::mem::replace(&mut self.controls, true) {
                // What the one before has fired is in the notes.
                self.schedules.load(&self.options.schedules, &mut self.store, now)?;
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
            (self.away, self.fence) = (false, None);
        }
        Ok(true)
    }

    /// Where this server could not say for too long that it lives, others will run what it runs: that has to end
    /// first. It is told to, has half of the time that is left, and is killed then; meanwhile the store is not tried,
    /// because who does not answer is waited for. True where the runner has to hear of it at once.
    pub(super) fn stop_before_others_start(&mut self, now: Time, effects: &mut Effects) -> bool {
        let Some(at) = self.store.fenced_at().filter(|_| self.away) else { return false };
        let why = match self.fence {
            None if at.told <= self.steady => Stop::Interrupt,
            Some(Fence::Told { kill_at }) if kill_at <= self.steady => Stop::Kill,
            None | Some(Fence::Told { .. } | Fence::Killed) => return false,
        };
        let stopped = self.flights.stop(|flight| !flight.leased, why);
        if why == Stop::Kill {
            self.fence = Some(Fence::Killed);
        } else {
            let left = at.overtaken.since(self.steady) / 2;
            self.fence = Some(Fence::Told { kill_at: self.steady.after(left) });
            self.full_until = Some(now.after(left));
            effects.notes.push(format!(
                "the database is away for too long: {} starts are stopped, before another server runs their jobs",
                stopped.len()
            ));
        }
        effects.stops.extend(stopped);
        true
    }

    /// After a turn that could not have some rows: what ended there waits, and is tried once a second, so that all else
    /// goes on.
    pub(super) fn leave_what_is_locked(&mut self, ended: &mut Vec<Finished>, now: Time) -> Result<(), StoreError> {
        let Some(again_at) = self.locked.again_at.filter(|_| self.full_until.is_none()) else { return Ok(()) };
        let due = again_at <= now || again_at > now.after(LOCKED_RETRY);
        if due {
            ended.append(&mut self.locked.ends);
        }
        let starts_of = |end: &Finished| {
            let parts =
                self.flights.get(end.flight).into_iter().flat_map(|flight| flight.parts(end.first, end.count()));
            parts.flat_map(|(_, held)| held.ids().map(|id| (id, held.start())).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let starts: Vec<Vec<(JobId, u32)>> = ended.iter().map(starts_of).collect();
        if !ended.is_empty() {
            let locked: HashSet<JobId> = self.store.locked(&starts.concat())?.into_iter().collect();
            let mut starts = starts.iter();
            let waits = |_: &mut Finished| starts.next().is_some_and(|of| of.iter().any(|(id, _)| locked.contains(id)));
            self.locked.ends.extend(ended.extract_if(.., waits));
        }
        self.locked.again_at = match self.locked.ends.is_empty() {
            true => None,
            false if due => Some(now.after(LOCKED_RETRY)),
            false => Some(again_at),
        };
        Ok(())
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
