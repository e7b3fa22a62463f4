//! The door that needs no server, as the command line uses it; every contact with the inbox's writer is here.
//!
//! Input is handed on as it comes and made durable at the end of it: an id is told only when it is as safe as the
//! answer says.

use super::print::jobs;
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::inbox::{Envelope, IdRange, InboxWriter};
use crate::store::Durability;
use std::io::{ErrorKind, Read};
use windlass_core::job::{DATA_MAX, JobId, RunId};

const READ: usize = 1 << 20;

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
        let pushed = self.take_all(separator, input);
        pushed.map_err(|mut failure| {
            // What was written before is accepted whether or not it can be synced; the first failure is the one to
            // tell.
            let _ = self.sync();
            failure.text = format!("{}; {} before that were accepted", failure.text, jobs(self.count));
            failure
        })
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

    fn take_all(&mut self, separator: u8, input: &mut dyn Read) -> Result<(), Failure> {
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            let held = buffer.len();
            buffer.resize(held + READ, 0);
            let read = match input.read(&mut buffer[held..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
                read => read.map(Some),
            };
            let read = read.map_err(|e| match e.kind() {
                // Said by who takes the input apart.
                ErrorKind::InvalidData => Failure::new(Kind::BadData, e.to_string()),
                _ => Failure::io("cannot read standard input", &e),
            })?;
            buffer.truncate(held + read.unwrap_or(0));
            if read == Some(0) {
                return self.take_whole(separator, &buffer);
            }
            let whole = memchr::memrchr(separator, &buffer).map_or(0, |at| at + 1);
            self.take_whole(separator, &buffer[..whole])?;
            buffer.drain(..whole);
            if buffer.len() > DATA_MAX {
                return Err(Failure::new(Kind::BadData, format!("a job of the input has more than {DATA_MAX} bytes")));
            }
        }
    }

    fn take_whole(&mut self, separator: u8, parts: &[u8]) -> Result<(), Failure> {
        if parts.is_empty() {
            return Ok(());
        }
        if separator != b'\n' {
            let parts = parts.strip_suffix(&[separator]).unwrap_or(parts);
            let parts: Vec<&[u8]> = parts.split(|byte| *byte == separator).collect();
            return self.push_all(&parts);
        }
        let ranges = self.writer.push_lines(self.envelope, parts)?;
        self.count += ranges.iter().map(|range| u64::from(range.count)).sum::<u64>();
        self.written.extend(ranges);
        Ok(())
    }
}
