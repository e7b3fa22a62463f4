//! What lies where in a segment: one entry per frame, and a summary that tells whether to look at all.
//!
//! An index covers its segment up to some length; what was appended later is found by walking on from there, so
//! one file serves closed and open segments alike. It can be made again from the segment at any time: a
//! missing, stale or damaged one costs time and nothing else.
//!
//! ```text
//! magic | u32 version | u32 length and u32 crc32 of the summary | u32 crc32 of the entries | summary | entries
//! ```

use super::frame::{self, AttemptsHead, Bytes, Frame};
use super::segment::{HEADER, Walk, index_name};
use crate::data_dir::write_durably;
use crate::store::chunk::write_varint;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use windlass_core::job::{JobId, Origin, RunId};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

const MAGIC: [u8; 8] = *b"WINDLIDX";
const VERSION: u32 = 1;
const PREFIX: usize = 24;
const ENTRY: usize = 56;
/// An index that grows keeps so many entries; one that has more is made from its segment when that is closed.
const ENTRIES_KEPT: usize = 4096;
/// Stands for no run.
const NO_RUN: u32 = u32::MAX;

/// One frame of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) origin: Origin,
    /// The lowest and the highest offset of its jobs in the origin.
    pub(super) first: u64,
    pub(super) last: u64,
    /// Where the frame begins.
    pub(super) at: u64,
    pub(super) finished: Time,
    pub(super) queue: u32,
    run: u32,
    pub(super) state: State,
    pub(super) count: u16,
}

/// What a segment holds, up to a length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) seed: u32,
    pub(super) length: u64,
    pub(super) last_turn: u64,
    /// Bytes between whole frames that were no frame.
    pub(super) damaged: u64,
    pub(super) oldest: Time,
    pub(super) newest: Time,
    /// The newest end of a failed or cancelled job; long ago where there is none.
    pub(super) newest_failed: Time,
    /// How many attempts led to each state.
    pub(super) by_state: [u64; State::ALL.len()],
    pub(super) queues: Vec<QueueUse>,
    pub(super) runs: Vec<RunId>,
    /// The lowest and highest offset per origin.
    origins: Vec<(Origin, u64, u64)>,
}

/// What a segment holds of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueUse {
    pub(super) name: Box<str>,
    pub(super) attempts: u64,
}

impl Summary {
    pub(super) fn empty(seed: u32, turn_before: u64) -> Summary {
        Summary {
            seed,
            length: HEADER,
            last_turn: turn_before,
            damaged: 0,
            oldest: Time(i64::MAX),
            newest: Time(i64::MIN),
            newest_failed: Time(i64::MIN),
            by_state: [0; State::ALL.len()],
            queues: Vec::new(),
            runs: Vec::new(),
            origins: Vec::new(),
        }
    }

    /// False where the segment certainly has nothing of this job.
    pub(super) fn may_hold(&self, id: JobId) -> bool {
        self.origins.iter().any(|(origin, low, high)| *origin == id.origin && (*low..=*high).contains(&id.offset))
    }

    pub(super) fn run_of(&self, entry: &IndexEntry) -> Option<RunId> {
        self.runs.get(entry.run as usize).copied()
    }

    fn count(&mut self, entry: &IndexEntry) {
        let attempts = u64::from(entry.count);
        self.oldest = self.oldest.min(entry.finished);
        self.newest = self.newest.max(entry.finished);
        if matches!(entry.state, State::Failed | State::Cancelled) {
            self.newest_failed = self.newest_failed.max(entry.finished);
        }
        self.by_state[entry.state.index()] += attempts;
        self.queues[entry.queue as usize].attempts += attempts;
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.seed.to_le_bytes().to_vec();
        let times = [self.oldest, self.newest, self.newest_failed].map(|time| time.as_micros() as u64);
        for number in [self.length, self.last_turn, self.damaged].into_iter().chain(times) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for attempts in self.by_state {
            write_varint(&mut bytes, attempts);
        }
        write_varint(&mut bytes, self.queues.len() as u64);
        for queue in &self.queues {
            write_varint(&mut bytes, queue.name.len() as u64);
            bytes.extend_from_slice(queue.name.as_bytes());
            write_varint(&mut bytes, queue.attempts);
        }
        write_varint(&mut bytes, self.runs.len() as u64);
        for run in &self.runs {
            bytes.extend_from_slice(&run.origin.bits().to_le_bytes());
            write_varint(&mut bytes, u64::from(run.generation));
        }
        write_varint(&mut bytes, self.origins.len() as u64);
        for (origin, low, high) in &self.origins {
            for number in [origin.bits(), *low, *high] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Summary> {
        let mut fields = Bytes { bytes, at: 0 };
        let mut summary = Summary::empty(fields.u32()?, 0);
        summary.length = fields.u64()?;
        summary.last_turn = fields.u64()?;
        summary.damaged = fields.u64()?;
        summary.oldest = fields.time()?;
        summary.newest = fields.time()?;
        summary.newest_failed = fields.time()?;
        for attempts in &mut summary.by_state {
            *attempts = fields.varint()?;
        }
        for _ in 0..fields.varint()? {
            summary.queues.push(QueueUse { name: fields.text()?.into(), attempts: fields.varint()? });
        }
        for _ in 0..fields.varint()? {
            let origin = Origin::from_random(fields.u64()?);
            summary.runs.push(RunId { origin, generation: u32::try_from(fields.varint()?).ok()? });
        }
        for _ in 0..fields.varint()? {
            summary.origins.push((Origin::from_random(fields.u64()?), fields.u64()?, fields.u64()?));
        }
        Some(summary)
    }
}

impl IndexEntry {
    fn write(&self, into: &mut Vec<u8>) {
        for number in [self.origin.bits(), self.first, self.last, self.at, self.finished.as_micros() as u64] {
            into.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.queue, self.run, self.state.index() as u32, u32::from(self.count)] {
            into.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn parse(bytes: &[u8], summary: &Summary) -> Option<IndexEntry> {
        let mut fields = Bytes { bytes, at: 0 };
        let entry = IndexEntry {
            origin: Origin::from_random(fields.u64()?),
            first: fields.u64()?,
            last: fields.u64()?,
            at: fields.u64()?,
            finished: fields.time()?,
            queue: fields.u32()?,
            run: fields.u32()?,
            state: State::from_index(fields.u32()? as usize)?,
            count: u16::try_from(fields.u32()?).ok()?,
        };
        ((entry.queue as usize) < summary.queues.len()).then_some(entry)
    }
}

/// The index of a segment, growing with it.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) summary: Summary,
    /// By place in the segment while it grows; sorted by id in the file.
    pub(super) entries: Vec<IndexEntry>,
    /// From here on the entries belong to a turn whose end has not been seen.
    whole: usize,
    /// Some frames have no entry any more.
    lacks: bool,
    queues: HashMap<Box<str>, u32>,
    runs: HashMap<RunId, u32>,
    origins: HashMap<Origin, usize>,
}

impl Index {
    pub(super) fn new(seed: u32, turn_before: u64) -> Index {
        Index::with(Summary::empty(seed, turn_before), Vec::new())
    }

    fn with(summary: Summary, entries: Vec<IndexEntry>) -> Index {
        let queues = summary.queues.iter().zip(0..).map(|(queue, no)| (queue.name.clone(), no)).collect();
        let runs = summary.runs.iter().copied().zip(0..).collect();
        let origins = summary.origins.iter().zip(0..).map(|((origin, _, _), no)| (*origin, no)).collect();
        Index { summary, whole: entries.len(), entries, lacks: false, queues, runs, origins }
    }

    /// Notes a frame of the turn that is being written.
    pub(super) fn add(&mut self, at: u64, queue: &str, run: Option<RunId>, entry: IndexFields) {
        let queue = self.queues.get(queue).copied().unwrap_or_else(|| self.new_queue(queue));
        let run = run.map_or(NO_RUN, |run| {
            let next = self.summary.runs.len() as u32;
            *self.runs.entry(run).or_insert_with(|| {
                self.summary.runs.push(run);
                next
            })
        });
        let IndexFields { origin, first, last, finished, state, count } = entry;
        self.entries.push(IndexEntry { origin, first, last, at, finished, queue, run, state, count });
    }

    fn new_queue(&mut self, name: &str) -> u32 {
        let next = self.summary.queues.len() as u32;
        self.summary.queues.push(QueueUse { name: name.into(), attempts: 0 });
        self.queues.insert(name.into(), next);
        next
    }

    /// The turn that the last frames belong to is whole, and ends there.
    pub(super) fn end_turn(&mut self, turn: u64, end: u64) {
        self.take_pending();
        self.summary.last_turn = self.summary.last_turn.max(turn);
        self.summary.length = end;
    }

    fn take_pending(&mut self) {
        for entry in &self.entries[self.whole..] {
            self.summary.count(entry);
            let origins = &mut self.summary.origins;
            let no = *self.origins.entry(entry.origin).or_insert_with(|| {
                origins.push((entry.origin, entry.first, entry.last));
                origins.len() - 1
            });
            let (_, low, high) = &mut origins[no];
            (*low, *high) = ((*low).min(entry.first), (*high).max(entry.last));
        }
        self.whole = self.entries.len();
    }

    /// Walks on from where the index ends and takes in every whole turn; returns whether bytes were left over.
    pub(super) fn catch_up(&mut self, file: &File, end: u64) -> io::Result<bool> {
        let mut walk = Walk::new(file, self.summary.seed, self.summary.length, end);
        while let Some(found) = walk.next()? {
            match frame::read(walk.payload(&found)) {
                Some(Frame::Attempts(attempts)) => {
                    let Some(fields) = IndexFields::of(&attempts.head) else { continue };
                    self.add(found.offset, attempts.head.queue, attempts.head.run, fields);
                }
                Some(Frame::Turn { turn, .. }) => {
                    self.end_turn(turn, found.end);
                    self.summary.damaged += std::mem::take(&mut walk.damaged);
                }
                // A kind that a later version of this format may have: passed over.
                None => {}
            }
        }
        Ok(self.summary.length < end)
    }

    /// Up to where what a crash left may be believed, seen from where the index ends.
    ///
    /// Pages reach the disk in any order before a sync, so a turn's end may be there and its beginning not. The
    /// ends of turns tell how much was synced before them: a gap in that is damage done later and costs what is in
    /// it, but behind it the first gap ends everything.
    pub(super) fn sound_end(&self, file: &File, end: u64) -> io::Result<u64> {
        let mut walk = Walk::new(file, self.summary.seed, self.summary.length, end);
        let mut synced = 0;
        let mut gaps = Vec::new();
        let mut expected = self.summary.length;
        while let Some(found) = walk.next()? {
            if found.offset > expected {
                gaps.push(expected);
            }
            expected = found.end;
            if let Some(Frame::Turn { synced: before, .. }) = frame::read(walk.payload(&found)) {
                synced = synced.max(before);
            }
        }
        Ok(gaps.into_iter().find(|gap| *gap >= synced).unwrap_or(end))
    }

    /// Drops the frames of a turn that has no end.
    pub(super) fn drop_unfinished(&mut self) {
        self.entries.truncate(self.whole);
    }

    /// Lets go of the frames of whole turns where they are many, and keeps the summary: a segment that grows has its
    /// frames on disk, and memory must not grow with what was archived. Such an index cannot be saved any more.
    pub(super) fn keep_few(&mut self) {
        self.lacks |= self.entries.len() > ENTRIES_KEPT;
        if self.lacks {
            self.entries.drain(..self.whole);
            self.entries.shrink_to(ENTRIES_KEPT);
            self.whole = 0;
        }
    }

    /// Whether it has let go of frames.
    pub(super) fn lacks_some(&self) -> bool {
        self.lacks
    }

    /// Takes the frames of a turn that has no end yet for what they are: attempts that did end.
    pub(super) fn keep_unfinished(&mut self) {
        self.take_pending();
    }

    /// Covers a segment that will not grow any more to its end, whatever lies there.
    pub(super) fn close(&mut self, end: u64) {
        self.take_pending();
        self.summary.damaged += end - self.summary.length;
        self.summary.length = end;
    }

    /// Writes the index file, whole or not at all.
    pub(super) fn save(&self, dir: &Path, number: u32) -> io::Result<()> {
        let mut sorted: Vec<&IndexEntry> = self.entries[..self.whole].iter().collect();
        sorted.sort_unstable_by_key(|entry| (entry.origin, entry.first, entry.at));
        let mut entries = Vec::with_capacity(sorted.len() * ENTRY);
        for entry in sorted {
            entry.write(&mut entries);
        }
        let summary = self.summary.to_bytes();
        let mut bytes = Vec::with_capacity(PREFIX + summary.len() + entries.len());
        bytes.extend_from_slice(&MAGIC);
        for number in [VERSION, summary.len() as u32, crc32fast::hash(&summary), crc32fast::hash(&entries)] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&summary);
        bytes.extend_from_slice(&entries);
        write_durably(dir, &index_name(number), &bytes)
    }
}

/// What an index keeps of a frame besides its names.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexFields {
    pub(super) origin: Origin,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) finished: Time,
    pub(super) state: State,
    pub(super) count: u16,
}

impl IndexFields {
    fn of(head: &AttemptsHead<'_>) -> Option<IndexFields> {
        let (first, last) = (*head.offsets.first()?, *head.offsets.last()?);
        let count = head.offsets.len() as u16;
        Some(IndexFields { origin: head.origin, first, last, finished: head.finished, state: head.state, count })
    }
}

/// An index file whose summary has been read and found whole.
#[derive(Debug)]
pub(super) struct Stored {
    file: File,
    pub(super) summary: Summary,
    entries_at: u64,
    entries_crc: u32,
}

impl Stored {
    /// Opens the index of a segment; `None` where there is none that can be used.
    pub(super) fn open(dir: &Path, number: u32) -> Option<Stored> {
        let file = File::open(dir.join(index_name(number))).ok()?;
        let mut prefix = [0; PREFIX];
        file.read_exact_at(&mut prefix, 0).ok()?;
        let mut fields = Bytes { bytes: &prefix, at: 0 };
        if fields.take(8)? != MAGIC || fields.u32()? != VERSION {
            return None;
        }
        let (length, crc, entries_crc) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let entries_at = PREFIX as u64 + u64::from(length);
        if entries_at > file.metadata().ok()?.len() {
            return None;
        }
        let mut summary = vec![0; length as usize];
        file.read_exact_at(&mut summary, PREFIX as u64).ok()?;
        let summary = (crc32fast::hash(&summary) == crc).then(|| Summary::parse(&summary)).flatten()?;
        Some(Stored { file, summary, entries_at, entries_crc })
    }

    /// Reads the entries, sorted by id; `None` where they are damaged.
    pub(super) fn load(self) -> Option<Index> {
        let length = self.file.metadata().ok()?.len().checked_sub(self.entries_at)?;
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.file.read_exact_at(&mut bytes, self.entries_at).ok()?;
        if crc32fast::hash(&bytes) != self.entries_crc || bytes.len() % ENTRY != 0 {
            return None;
        }
        let entries = bytes.chunks_exact(ENTRY).map(|entry| IndexEntry::parse(entry, &self.summary));
        let entries = entries.collect::<Option<Vec<_>>>()?;
        Some(Index::with(self.summary, entries))
    }
}
