//! The door that needs no server, as the command line uses it; every contact with the inbox's writer is here.

use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::inbox::frame::Envelope;
use crate::inbox::writer::InboxWriter;
use crate::store::Durability;
use std::io::Read;
use windlass_core::job::{DATA_MAX, JobId, Priority, QueueName, RunId};
use windlass_core::time::Time;

/// How much of the input is taken at a time.
const PIECE: usize = 1 << 20;

/// What all jobs of one push have in common.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) queue: QueueName,
    pub(super) priority: Priority,
    pub(super) run: Option<RunId>,
    pub(super) not_before: Option<Time>,
    pub(super) durability: Durability,
}

/// The inbox, for one push and the seal behind it.
#[derive(Debug)]
pub(super) struct InboxDoor {
    writer: InboxWriter,
    envelope: Envelope,
    durability: Durability,
}

impl InboxDoor {
    pub(super) fn open(dir: &DataDir, terms: &Terms) -> Result<InboxDoor, Failure> {
        let Terms { queue, priority, run, not_before, durability } = terms.clone();
        let envelope = Envelope { queue, priority, run, not_before };
        Ok(InboxDoor { writer: InboxWriter::open(&dir.inbox())?, envelope, durability })
    }

    /// Accepts jobs together, all or none; durable as the terms say when it returns.
    pub(super) fn push(&mut self, data: &[Vec<u8>]) -> Result<Vec<JobId>, Failure> {
        let ids = self.writer.push_all(&self.envelope, data)?;
        self.sync()?;
        Ok(ids)
    }

    /// Accepts what `input` gives, one job per line; `accepted` hears of each id once it is durable.
    pub(super) fn push_lines(
        &mut self,
        separator: u8,
        input: &mut dyn Read,
        accepted: &mut dyn FnMut(JobId),
    ) -> Result<u64, Failure> {
        let mut buffer = vec![0; PIECE];
        let (mut filled, mut count) = (0, 0);
        loop {
            if filled == buffer.len() {
                buffer.resize(buffer.len() * 2, 0);
            }
            let read = input.read(&mut buffer[filled..]).map_err(|e| Failure::io("cannot read standard input", &e))?;
            filled += read;
            let whole = match memchr::memrchr(separator, &buffer[..filled]) {
                _ if read == 0 => filled,
                Some(last) => last + 1,
                None if filled > DATA_MAX => return Err(too_long(count)),
                None => continue,
            };
            count += self.take(separator, &buffer[..whole], accepted)?;
            buffer.copy_within(whole..filled, 0);
            filled -= whole;
            if read == 0 {
                return Ok(count);
            }
        }
    }

    /// Takes whole lines.
    fn take(&mut self, separator: u8, lines: &[u8], accepted: &mut dyn FnMut(JobId)) -> Result<u64, Failure> {
        if lines.is_empty() {
            return Ok(0);
        }
        if separator != b'\n' {
            let jobs: Vec<&[u8]> = lines.strip_suffix(&[separator]).unwrap_or(lines).split(|b| *b == separator).collect();
            let ids = self.writer.push_all(&self.envelope, &jobs)?;
            self.sync()?;
            ids.iter().for_each(|id| accepted(*id));
            return Ok(ids.len() as u64);
        }
        let ranges = self.writer.push_lines(&self.envelope, lines)?;
        self.sync()?;
        let mut count = 0;
        for range in ranges {
            count += u64::from(range.count);
            range.ids().for_each(&mut *accepted);
        }
        Ok(count)
    }

    /// No more jobs will join this run from outside; what this door took before is in.
    pub(super) fn seal(&mut self, run: RunId) -> Result<(), Failure> {
        self.writer.seal(run)?;
        self.sync()
    }

    fn sync(&mut self) -> Result<(), Failure> {
        match self.durability {
            Durability::Full => self.writer.sync(),
            Durability::Os => Ok(()),
        }
    }
}

fn too_long(before: u64) -> Failure {
    let text = format!("line {} is longer than {DATA_MAX} bytes; the {before} lines before it were accepted", before + 1);
    Failure::new(Kind::BadData, text)
}
