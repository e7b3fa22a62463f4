//! Programs that append to the inbox: our writers, a foreign one, one that is slow, and those that die in the middle.
//!
//! They keep to the protocol of the shipped writer, on the simulated disk. It owns what was written where, and which of
//! it a producer was told to be safe. It must not know what the reader does.

use crate::disk::{FakeDisk, FakeFile};
use crate::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use windlass::inbox::disk::{Disk, OpenFile};
use windlass::inbox::files;
use windlass::inbox::frame::{self, Envelope, Kind, OPEN, STATE_AT};
use windlass_core::job::{JobId, Origin, QueueName, RunId};
use windlass_core::time::Time;

/// Where the inbox is on the simulated disk.
pub(crate) const INBOX: &str = "/inbox";
pub(crate) const QUARANTINE: &str = "/quarantine";

/// The files that a writer tries while others are busy.
const FILES_MAX: u32 = 4;

/// A writer that keeps its file open.
#[derive(Debug)]
struct Open {
    file: FakeFile,
    origin: Origin,
}

/// A record that is half written, under the lock.
#[derive(Debug)]
struct Half {
    open: Open,
    rest: Vec<u8>,
    id: JobId,
}

/// A record that is whole.
#[derive(Clone, Copy, Debug)]
struct Written {
    origin: Origin,
    /// Its producer synced it: from then on it is accepted, whatever happens.
    safe: bool,
}

#[derive(Debug)]
pub(crate) struct Producers {
    disk: FakeDisk,
    own: BTreeMap<u32, Open>,
    foreign: Option<Open>,
    half: Option<Half>,
    written: BTreeMap<JobId, Written>,
    /// Files that end in a torn record: only a fence may follow, or a plain line would become part of it.
    torn: BTreeSet<Origin>,
    ends: BTreeMap<Origin, u64>,
}

impl Producers {
    pub(crate) fn new(disk: &FakeDisk) -> Producers {
        Producers {
            disk: disk.clone(),
            own: BTreeMap::new(),
            foreign: None,
            half: None,
            written: BTreeMap::new(),
            torn: BTreeSet::new(),
            ends: BTreeMap::new(),
        }
    }

    /// Appends one record as our writers do: one lock, one look at the header, one write.
    fn append(&mut self, build: impl Fn(&mut Vec<u8>, Origin)) -> Option<(Origin, u64)> {
        let (number, open) = self.lock()?;
        let mut record = Vec::new();
        build(&mut record, open.origin);
        let at = open.file.facts().ok()?.length;
        let written = open.file.append(&record);
        let origin = open.origin;
        open.file.unlock().ok()?;
        self.own.insert(number, open);
        written.ok()?;
        self.torn.remove(&origin);
        self.ends.insert(origin, at + record.len() as u64);
        Some((origin, at))
    }

    /// An open file that is ours to append to, locked; none while there is no space or every lock is taken.
    fn lock(&mut self) -> Option<(u32, Open)> {
        for number in 1..=FILES_MAX {
            let open = match self.own.remove(&number).filter(|open| is_open(&open.file)) {
                Some(open) => open,
                None => self.open(number)?,
            };
            if open.file.try_lock().ok()? {
                return Some((number, open));
            }
            self.own.insert(number, open);
        }
        None
    }

    fn open(&self, number: u32) -> Option<Open> {
        let name = if number == 1 { "1000".to_owned() } else { format!("1000.{number}") };
        let path = PathBuf::from(INBOX).join(&name);
        loop {
            let Ok(file) = self.disk.open(&path) else {
                files::create(&self.disk, Path::new(INBOX), &name).ok()?;
                continue;
            };
            let header = files::read_header(&file).ok()?;
            match header {
                Some(header) if !header.sealed && header.boot == Some(self.disk.boot()) => {
                    return Some(Open { file, origin: header.origin });
                }
                other => {
                    let origin = other.map_or_else(|| files::random_origin(&self.disk), |header| Ok(header.origin));
                    files::seal(&self.disk, Path::new(INBOX), &name, origin.ok()?).ok()?;
                    self.disk.sync_dir(Path::new(INBOX)).ok()?;
                }
            }
        }
    }

    fn note(&mut self, origin: Origin, offset: u64) -> JobId {
        let id = JobId { origin, offset };
        self.written.insert(id, Written { origin, safe: false });
        id
    }

    pub(crate) fn job(&mut self, envelope: &Envelope, data: &[u8]) -> Option<JobId> {
        let (origin, at) = self.append(|record, origin| frame::write_job(record, origin, envelope, data))?;
        Some(self.note(origin, at))
    }

    /// Appends a block of lines; its jobs are numbered from its place on.
    pub(crate) fn block(&mut self, envelope: &Envelope, lines: &[Vec<u8>]) -> Vec<JobId> {
        let data = lines.join(&b'\n');
        let placed = self.append(|record, origin| {
            frame::write_front(record, origin, Kind::Block, envelope, &data, false);
            record.extend_from_slice(&data);
            record.push(b'\n');
        });
        let Some((origin, at)) = placed else { return Vec::new() };
        (1..=lines.len() as u64).map(|line| self.note(origin, at + line)).collect()
    }

    /// Says that the run gets no more, behind everything that was written so far.
    pub(crate) fn seal(&mut self, run: RunId) {
        let after: Vec<(Origin, u64)> = self.ends.iter().map(|(origin, end)| (*origin, *end)).collect();
        // Without space nothing is sealed; somebody will try again.
        let _ = self.append(|record, origin| frame::write_seal(record, origin, run, &after));
    }

    /// A plain line from a program that knows nothing of locks and keeps its file open.
    pub(crate) fn line(&mut self, queue: &QueueName, not_before: Option<Time>, data: &[u8]) -> Option<JobId> {
        if self.foreign.is_none() {
            let file = self.disk.open(&Path::new(INBOX).join("1000")).ok()?;
            let header = files::read_header(&file).ok()??;
            // A file of another boot may end in a torn record, which would swallow a line without a fence.
            let origin = Some(header.origin).filter(|_| header.boot == Some(self.disk.boot()))?;
            self.foreign = Some(Open { file, origin });
        }
        let Open { file, origin } = self.foreign.as_ref()?;
        let origin = *origin;
        let busy = self.half.as_ref().is_some_and(|half| half.open.origin == origin);
        if busy || self.torn.contains(&origin) {
            return None;
        }
        let mut line = Vec::new();
        if let Some(time) = not_before {
            line.extend_from_slice(format!("_future\t@{}.{:06}\t", time.0 / 1_000_000, time.0 % 1_000_000).as_bytes());
        }
        line.extend_from_slice(queue.as_str().as_bytes());
        line.push(b'\t');
        line.extend_from_slice(data);
        line.push(b'\n');
        let at = file.facts().ok()?.length;
        file.append(&line).ok()?;
        self.ends.insert(origin, at + line.len() as u64);
        Some(self.note(origin, at))
    }

    pub(crate) fn close_foreign(&mut self) {
        self.foreign = None;
    }

    /// A writer that takes its time: half a record under the lock. Its id, if it will ever be whole.
    pub(crate) fn begin_half(&mut self, envelope: &Envelope, data: &[u8], random: &mut Random) -> Option<JobId> {
        if self.half.is_some() {
            return None;
        }
        let (_, open) = self.lock()?;
        let mut record = Vec::new();
        frame::write_job(&mut record, open.origin, envelope, data);
        let id = JobId { origin: open.origin, offset: open.file.facts().ok()?.length };
        let rest = record.split_off(random.between(1, record.len() as u64 - 1) as usize);
        open.file.append(&record).ok()?;
        self.half = Some(Half { open, rest, id });
        Some(id)
    }

    /// The slow writer finishes, or it dies and leaves a torn record.
    pub(crate) fn end_half(&mut self, dies: bool) {
        let Some(Half { open, rest, id }) = self.half.take() else { return };
        if dies || open.file.append(&rest).is_err() {
            self.torn.insert(open.origin);
            return;
        }
        self.torn.remove(&open.origin);
        if let Ok(facts) = open.file.facts() {
            self.ends.insert(open.origin, facts.length);
        }
        self.written.insert(id, Written { origin: open.origin, safe: false });
    }

    /// Bytes that make no sense: no tab, so that none of them can be taken for a job.
    pub(crate) fn garbage(&mut self, random: &mut Random) {
        let Some((number, open)) = self.lock() else { return };
        let noise = (0..random.between(1, 80)).map(|_| match random.next() as u8 {
            b'\t' => b'?',
            byte => byte,
        });
        let noise: Vec<u8> = noise.collect();
        let done = open.file.append(&noise).and_then(|()| open.file.unlock());
        if done.is_ok() {
            self.torn.insert(open.origin);
            self.own.insert(number, open);
        }
    }

    /// A producer syncs: what stands in its file is accepted from now on, though no engine may know it.
    pub(crate) fn sync(&mut self) {
        for open in self.own.values().chain(&self.foreign) {
            let synced = open.file.sync().and_then(|()| self.disk.sync_dir(Path::new(INBOX)));
            if synced.is_ok() {
                let here = self.written.values_mut().filter(|written| written.origin == open.origin);
                here.for_each(|written| written.safe = true);
            }
        }
    }

    /// Everybody is gone; what nobody was told to be safe is not expected any more.
    pub(crate) fn power_cut(&mut self) {
        self.own.clear();
        self.foreign = None;
        self.half = None;
        self.torn.clear();
        self.written.retain(|_, written| written.safe);
    }

    /// What must become a job, or is one.
    pub(crate) fn ids_written(&self) -> Vec<JobId> {
        self.written.keys().copied().collect()
    }
}

/// The byte of the header that a writer maps and looks at.
fn is_open(file: &FakeFile) -> bool {
    let mut byte = [0];
    file.read_at(&mut byte, STATE_AT as u64).is_ok_and(|read| read == 1 && byte[0] == OPEN)
}
