//! The door that needs no server, as the command line uses it; every contact with the inbox's writer is here.
//!
//! Input is handed on as it comes and made durable at the end of it: an id is told only when it is as safe as the
//! answer says.

use super::parts;
use crate::data_dir::DataDir;
use crate::error::Failure;
use crate::inbox::{Envelope, IdRange, InboxWriter};
use crate::store::Durability;
use std::io::Read;
use windlass_core::job::{JobId, RunId};
use windlass_core::run::terms::RunTerms;

/// An open inbox, and what all jobs of one push have in common.
#[derive(Debug)]
pub(super) struct InboxDoor<'t> {
    writer: InboxWriter,
    envelope: &'t Envelope,
    durability: Durability,
    count: u64,
    written: Vec<IdRange>,
}

impl<'t> InboxDoor<'t> {
    pub(super) fn open(
        dir: &DataDir,
        envelope: &'t Envelope,
        durability: Durability,
    ) -> Result<InboxDoor<'t>, Failure> {
        let writer = InboxWriter::open(&dir.inbox())?;
        Ok(InboxDoor { writer, envelope, durability, count: 0, written: Vec::new() })
    }

    /// Adds jobs with any bytes: all of them, or none.
    pub(super) fn push_all<D: AsRef<[u8]>>(&mut self, jobs: &[D]) -> Result<(), Failure> {
        let ids = self.writer.push_all(self.envelope, jobs)?;
        self.count += ids.len() as u64;
        self.written.extend(ids.into_iter().map(|first| IdRange { first, count: 1 }));
        Ok(())
    }

    /// Adds what the input gives, one job per part between separators; what came before a bad part is accepted.
    pub(super) fn push_input(&mut self, separator: u8, input: &mut dyn Read) -> Result<(), Failure> {
        let taken = parts::in_whole(separator, input, &mut |whole| self.take_whole(separator, whole));
        taken.map_err(|failure| {
            // What was written before is accepted whether or not it can be synced; the first failure is the one to
            // tell.
            let _ = self.sync();
            parts::after(failure, self.count)
        })
    }

    /// Opens the run that the jobs are of.
    pub(super) fn open_run(&mut self, run: RunId, terms: &RunTerms) -> Result<(), Failure> {
        self.writer.open_run(run, terms)
    }

    /// No more jobs will join this run from outside; what was pushed before is in.
    pub(super) fn seal(&mut self, run: RunId) -> Result<(), Failure> {
        self.writer.seal(run)
    }

    /// Makes everything as durable as the answer will say, and tells how much it was.
    pub(super) fn sync(&mut self) -> Result<u64, Failure> {
        if self.durability == Durability::Full {
            self.writer.sync()?;
        }
        Ok(self.count)
    }

    /// The ids, in the order of the input.
    pub(super) fn ids(&self) -> impl Iterator<Item = JobId> + '_ {
        self.written.iter().flat_map(|range| range.ids())
    }

    fn take_whole(&mut self, separator: u8, whole: &[u8]) -> Result<(), Failure> {
        if separator != b'\n' {
            let whole = whole.strip_suffix(&[separator]).unwrap_or(whole);
            let parts: Vec<&[u8]> = whole.split(|byte| *byte == separator).collect();
            return self.push_all(&parts);
        }
        let ranges = self.writer.push_lines(self.envelope, whole)?;
        self.count += ranges.iter().map(|range| u64::from(range.count)).sum::<u64>();
        self.written.extend(ranges);
        Ok(())
    }
}
