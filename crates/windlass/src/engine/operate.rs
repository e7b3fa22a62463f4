//! The engine's part in bulk operations: their events, and one slice a turn.

use super::Engine;
use super::effects::Effects;
use super::event::{Event, OperationInfo};
use super::obey::Wrote;
use super::operations::{self, SliceDone};
use super::turn::{Progress, entry};
use crate::runner::Output;
use crate::store::{Durability, Settlement, Store, StoreError};
use windlass_core::time::Time;

impl<S: Store> Engine<S> {
    pub(super) fn operate(&mut self, event: Event, now: Time, effects: &mut Effects) -> Result<Wrote, StoreError> {
        match event {
            Event::Operate { operation, ids, expect, answer } => {
                match operations::at_once(&mut self.store, &operation, ids, expect, now)? {
                    Ok((report, done)) => {
                        effects.answers.add(answer, Ok(report));
                        self.take_over(done, effects)?;
                        return Ok(true);
                    }
                    Err(failure) => effects.answers.add(answer, Err(failure)),
                }
            }
            Event::OpenOperation { operation, answer } => {
                let opened = self.operations.open(&mut self.store, &operation)?;
                effects.answers.add(answer, opened);
            }
            Event::StageOperation { number, ids, answer } => {
                let staged = self.operations.stage(&mut self.store, number, ids)?;
                effects.answers.add(answer, staged);
                return Ok(true);
            }
            Event::AcceptOperation { number, expect, answer } => {
                if let Some((answer, failure)) = self.operations.accept(&mut self.store, number, expect, answer)? {
                    effects.answers.add(answer, Err(failure));
                } else {
                    effects.audit.extend(self.operations.accepted(number, now));
                }
                return Ok(true);
            }
            Event::AbandonOperation { number } => self.operations.abandon(number),
            Event::Operations { answer } => {
                let info = |(number, action, selector, report)| OperationInfo { number, action, selector, report };
                effects.answers.add(answer, Ok(self.operations.reports().into_iter().map(info).collect()));
            }
            _ => unreachable!("not about operations"),
        }
        Ok(false)
    }

    /// One slice a turn, so that millions of jobs hold nobody up; the next turn comes at once.
    pub(super) fn go_on_with_operations(
        &mut self,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        if self.full_until.is_some() {
            return Ok(());
        }
        let Some(done) = self.operations.act(&mut self.store, now)? else {
            if self.operations.drop_orphans(&mut self.store)? {
                progress.needs(Durability::Os);
                self.operations_wait = true;
            }
            return Ok(());
        };
        // What is stored of its progress goes with what it did, so only its end has to be on disk before it is told.
        let durable = done.over || !done.deleted.is_empty();
        progress.needs(if durable { Durability::Full } else { Durability::Os });
        self.operations_wait |= done.more;
        self.take_over(done, effects)
    }

    /// Operations that ended with the turn are told when it is committed: one that is dropped goes on, and whoever
    /// waits for it goes on waiting.
    pub(super) fn tell_of_operations(&mut self, effects: &mut Effects) {
        for (number, answer, report) in self.operations.take_over() {
            match answer {
                Some(answer) => effects.answers.add(answer, Ok(report)),
                None => effects.notes.push(format!(
                    "operation {number} went on after a restart and is done: {} changed, {} refused",
                    report.changed, report.refused
                )),
            }
        }
    }

    /// What follows once the turn is committed.
    fn take_over(&mut self, done: SliceDone, effects: &mut Effects) -> Result<(), StoreError> {
        effects.cancelled.extend(done.cancelled);
        effects.audit.extend(done.audit);
        effects.amended.extend(done.amended);
        for last in done.deleted {
            let line = self.last_line(&last)?;
            effects.archive.push(line);
        }
        Ok(())
    }

    /// The archive's line of a deleted job; its run may have ended long ago.
    fn last_line(&mut self, last: &Settlement) -> Result<crate::archiver::Entry, StoreError> {
        let mut line = entry(&self.queues, &self.runs, last, Output::default());
        if let (None, Some(no)) = (line.run, last.held.run) {
            line.run = self.store.run_numbered(no)?.map(|info| info.id);
        }
        Ok(line)
    }
}
