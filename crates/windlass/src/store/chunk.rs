//! A chunk: up to a thousand jobs laid end to end in one value, with their ids and lengths in front.
//!
//! The unit of storage, of claiming and of handing to a runner. It is never changed after it was built; what
//! became of its jobs is kept beside it. This file owns the bytes (version 1, little endian):
//!
//! ```text
//! u8 version | u8 flags | u16 count | u32 crc32 of the rest | u64 origin | u64 base offset
//! count × varint   offset minus the one before (the first minus base)
//! count × varint   length of the data
//! [flag 1: varint length, the particulars that all of its jobs have]
//! [flag 2: u64 origin, count × varint: the job that each of them came from]
//! the data, end to end
//! ```
//!
//! Where there is a flag, the checksum goes on over the three bytes from the flags on.
//!
//! The jobs of a chunk may be copies of those that are laid in another one: then it shares their bytes (`copied`).

mod copied;

use copied::Copied;
use std::ops::Range;
use std::sync::Arc;
use windlass_core::job::{DATA_MAX, JobId, Origin};
use windlass_core::particulars::{BadParticulars, Particulars};

/// The most jobs in one chunk.
pub const JOBS_MAX: usize = 1000;
/// A chunk is closed once its data reaches this many bytes.
pub const BYTES_MAX: usize = 256 << 10;

const VERSION: u8 = 1;
const HEADER: usize = 24;
const HAS_PARTICULARS: u8 = 1;
const HAS_PARENTS: u8 = 2;

/// A built or read chunk; immutable.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    laid: Arc<Laid>,
    /// Its jobs are copies of those that are laid there.
    copied: Option<Box<Copied>>,
}

/// Jobs as they lie in their bytes; all that are copies of them share it.
#[derive(Debug, PartialEq, Eq)]
pub struct Laid {
    bytes: Vec<u8>,
    origin: Origin,
    /// Offset in the origin, per job.
    offsets: Vec<u64>,
    /// Where each job's data ends in `bytes`; the first begins at `data`.
    ends: Vec<u32>,
    data: u32,
    extra: Option<Box<Extra>>,
}

/// What most chunks lack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extra {
    particulars: Option<Arc<Particulars>>,
    parents: Option<Parents>,
}

/// The jobs that those of a chunk came from, all of one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parents {
    origin: Origin,
    offsets: Vec<u64>,
}

/// Why bytes are not a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadChunk {
    Particulars(BadParticulars),
    Version(u8),
    Truncated,
    Checksum,
    Malformed,
}

impl Laid {
    fn from_bytes(bytes: Vec<u8>) -> Result<Laid, BadChunk> {
        if bytes.len() < HEADER {
            return Err(BadChunk::Truncated);
        }
        if bytes[0] != VERSION {
            return Err(BadChunk::Version(bytes[0]));
        }
        if checksum(&bytes) != u32_at(&bytes, 4) {
            return Err(BadChunk::Checksum);
        }
        let count = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let origin = Origin::from_random(u64_at(&bytes, 8));
        let mut offset = u64_at(&bytes, 16);
        let mut at = HEADER;
        let mut offsets = Vec::with_capacity(count);
        for _ in 0..count {
            offset = offset.checked_add(read_varint(&bytes, &mut at)?).ok_or(BadChunk::Malformed)?;
            offsets.push(offset);
        }
        let mut ends = Vec::with_capacity(count);
        let mut length = 0u64;
        for _ in 0..count {
            length = length.checked_add(read_varint(&bytes, &mut at)?).ok_or(BadChunk::Malformed)?;
            ends.push(length);
        }
        let extra = read_extra(&bytes, count, &mut at)?;
        let data = u32::try_from(at).map_err(|_| BadChunk::Malformed)?;
        if u64::from(data).checked_add(length) != Some(bytes.len() as u64) {
            return Err(BadChunk::Malformed);
        }
        let ends = ends.into_iter().map(|end| data + end as u32).collect();
        Ok(Laid { bytes, origin, offsets, ends, data, extra })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn id(&self, index: usize) -> JobId {
        JobId { origin: self.origin, offset: self.offsets[index] }
    }

    fn parent(&self, index: usize) -> Option<JobId> {
        let Extra { particulars, parents } = &**self.extra.as_ref()?;
        match parents {
            Some(parents) => Some(JobId { origin: parents.origin, offset: parents.offsets[index] }),
            None => particulars.as_ref()?.parent,
        }
    }
}

impl Chunk {
    /// Reads stored bytes, checking everything that later accessors rely on.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Chunk, BadChunk> {
        Ok(Chunk { laid: Arc::new(Laid::from_bytes(bytes)?), copied: None })
    }

    /// What is stored of it; for copies that is what they have of their own.
    pub fn as_bytes(&self) -> &[u8] {
        self.copied.as_ref().map_or(&self.laid.bytes, |copied| copied.as_bytes())
    }

    pub fn len(&self) -> usize {
        self.laid.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.laid.ends.is_empty()
    }

    pub fn origin(&self) -> Origin {
        self.copied.as_ref().map_or(self.laid.origin, |copied| copied.origin)
    }

    pub fn id(&self, index: usize) -> JobId {
        match &self.copied {
            None => self.laid.id(index),
            Some(copied) => JobId { origin: copied.origin, offset: copied.base + index as u64 },
        }
    }

    /// The index of a job by its offset in the origin; offsets rise within a chunk.
    pub fn find(&self, id: JobId) -> Option<usize> {
        let index = match &self.copied {
            None => self.laid.offsets.binary_search(&id.offset).ok(),
            Some(copied) => id.offset.checked_sub(copied.base).map(|index| index as usize),
        };
        index.filter(|index| id.origin == self.origin() && *index < self.len())
    }

    pub fn offset_range(&self) -> (u64, u64) {
        match self.len() {
            0 => (0, 0),
            count => (self.id(0).offset, self.id(count - 1).offset),
        }
    }

    pub fn data(&self, index: usize) -> &[u8] {
        self.data_of(index..index + 1)
    }

    /// The data of neighbouring jobs, end to end.
    pub fn data_of(&self, jobs: Range<usize>) -> &[u8] {
        let Laid { bytes, ends, data, .. } = &*self.laid;
        let from = if jobs.start == 0 { *data } else { ends[jobs.start - 1] };
        let to = if jobs.end == 0 { *data } else { ends[jobs.end - 1] };
        &bytes[from as usize..to as usize]
    }

    /// What all of its jobs have in common besides their lane.
    pub fn particulars(&self) -> Option<&Arc<Particulars>> {
        match &self.copied {
            None => self.laid.extra.as_ref()?.particulars.as_ref(),
            Some(copied) => copied.particulars.as_ref(),
        }
    }

    /// The job that one of its jobs came from.
    pub fn parent(&self, index: usize) -> Option<JobId> {
        if self.copied.is_some() { Some(self.laid.id(index)) } else { self.laid.parent(index) }
    }

    /// All particulars of one job, its parent among them.
    pub fn particulars_of(&self, index: usize) -> Option<Arc<Particulars>> {
        let shared = self.particulars();
        if !self.has_parents() {
            return shared.cloned();
        }
        let shared = shared.map(|shared| Particulars::clone(shared)).unwrap_or_default();
        Some(Arc::new(Particulars { parent: self.parent(index), ..shared }))
    }

    /// Its jobs came from one job each.
    fn has_parents(&self) -> bool {
        self.copied.is_some() || self.laid.extra.as_ref().is_some_and(|extra| extra.parents.is_some())
    }

    /// Some of its jobs in a chunk of their own, with these particulars.
    pub fn rebuilt(&self, particulars: Option<Arc<Particulars>>, kept: impl Fn(usize) -> bool) -> Chunk {
        let mut builder = ChunkBuilder::new(self.origin()).with(particulars);
        for index in (0..self.len()).filter(|index| kept(*index)) {
            builder.add(self, index);
        }
        builder.finish()
    }

    /// True where its jobs are nothing but lane and data, as most are.
    pub fn is_plain(&self) -> bool {
        self.copied.is_none() && self.laid.extra.is_none()
    }

    /// Memory held by this chunk, for budgets. What copies share counts for each of them, since any may be the last.
    pub fn footprint(&self) -> usize {
        let extra = self.laid.extra.as_ref().map_or(0, |_| self.laid.bytes.len());
        self.laid.bytes.len() + self.len() * 12 + 96 + extra
    }
}

/// Gathers jobs of one lane and one origin, in rising offsets.
#[derive(Debug)]
pub struct ChunkBuilder {
    origin: Origin,
    offsets: Vec<u64>,
    lengths: Vec<u32>,
    data: Vec<u8>,
    particulars: Option<Arc<Particulars>>,
    parents: Option<Parents>,
}

impl ChunkBuilder {
    pub fn new(origin: Origin) -> ChunkBuilder {
        let (offsets, lengths, data) = (Vec::new(), Vec::new(), Vec::new());
        ChunkBuilder { origin, offsets, lengths, data, particulars: None, parents: None }
    }

    /// All jobs of this chunk, and of those that are built after it, have these; none where they are empty.
    #[must_use]
    pub fn with(mut self, particulars: Option<Arc<Particulars>>) -> ChunkBuilder {
        self.set_particulars(particulars);
        self
    }

    /// The same for a builder between two chunks.
    pub fn set_particulars(&mut self, particulars: Option<Arc<Particulars>>) {
        assert!(self.is_empty(), "what is shared is known before the first job");
        self.particulars = particulars.filter(|particulars| !particulars.is_empty());
    }

    /// True once the chunk should be finished and a new one begun.
    pub fn is_full(&self) -> bool {
        self.lengths.len() >= JOBS_MAX || self.data.len() >= BYTES_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Adds one job; its offset must be above the one before, its data within the limit, the chunk not full.
    pub fn push(&mut self, offset: u64, data: &[u8]) {
        assert!(!self.is_full() && data.len() <= DATA_MAX, "the doors check sizes before they build chunks");
        assert!(self.offsets.last().is_none_or(|last| *last < offset), "offsets rise within an origin");
        self.offsets.push(offset);
        self.lengths.push(data.len() as u32);
        self.data.extend_from_slice(data);
    }

    /// Adds one job that came from another one. All jobs of the chunk do then, and their parents have one origin.
    pub fn push_from(&mut self, parent: JobId, offset: u64, data: &[u8]) {
        let first = || Parents { origin: parent.origin, offsets: Vec::new() };
        let parents = self.parents.get_or_insert_with(first);
        assert!(parents.origin == parent.origin && parents.offsets.len() == self.offsets.len(), "one kind of jobs");
        parents.offsets.push(parent.offset);
        self.push(offset, data);
    }

    /// Adds one job of another chunk, and the job that it came from.
    fn add(&mut self, chunk: &Chunk, index: usize) {
        match chunk.parent(index).filter(|_| chunk.has_parents()) {
            Some(parent) => self.push_from(parent, chunk.id(index).offset, chunk.data(index)),
            None => self.push(chunk.id(index).offset, chunk.data(index)),
        }
    }

    /// Builds the chunk and leaves the builder empty for the next one.
    pub fn finish(&mut self) -> Chunk {
        let base = self.offsets.first().copied().unwrap_or(0);
        let count = self.lengths.len();
        let mut bytes = Vec::with_capacity(HEADER + 4 * count + self.data.len());
        let extra = Extra { particulars: self.particulars.clone(), parents: self.parents.take() };
        bytes.extend_from_slice(&[VERSION, extra.flags()]);
        bytes.extend_from_slice(&(count as u16).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.origin.bits().to_le_bytes());
        bytes.extend_from_slice(&base.to_le_bytes());
        let mut before = base;
        for offset in &self.offsets {
            write_varint(&mut bytes, offset - before);
            before = *offset;
        }
        for length in &self.lengths {
            write_varint(&mut bytes, u64::from(*length));
        }
        let extra = (extra.flags() != 0).then(|| {
            extra.write(&mut bytes);
            Box::new(extra)
        });
        let data = bytes.len() as u32;
        bytes.extend_from_slice(&self.data);
        let crc = checksum(&bytes);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        let mut end = data;
        let ends = self.lengths.iter().map(|length| {
            end += length;
            end
        });
        let ends = ends.collect();
        self.lengths.clear();
        self.data.clear();
        let offsets = std::mem::take(&mut self.offsets);
        Chunk { laid: Arc::new(Laid { bytes, origin: self.origin, offsets, ends, data, extra }), copied: None }
    }
}

impl Extra {
    fn flags(&self) -> u8 {
        let flag = |there: bool, flag: u8| if there { flag } else { 0 };
        flag(self.particulars.is_some(), HAS_PARTICULARS) | flag(self.parents.is_some(), HAS_PARENTS)
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        if let Some(particulars) = &self.particulars {
            let mut encoded = Vec::new();
            particulars.encode(&mut encoded);
            write_varint(bytes, encoded.len() as u64);
            bytes.extend_from_slice(&encoded);
        }
        if let Some(Parents { origin, offsets }) = &self.parents {
            bytes.extend_from_slice(&origin.bits().to_le_bytes());
            offsets.iter().for_each(|offset| write_varint(bytes, *offset));
        }
    }
}

fn read_extra(bytes: &[u8], count: usize, at: &mut usize) -> Result<Option<Box<Extra>>, BadChunk> {
    let (flags, mut extra) = (bytes[1], Extra::default());
    if flags == 0 {
        return Ok(None);
    }
    if flags & HAS_PARTICULARS != 0 {
        let length = usize::try_from(read_varint(bytes, at)?).map_err(|_| BadChunk::Malformed)?;
        let end = at.checked_add(length).ok_or(BadChunk::Malformed)?;
        let encoded = bytes.get(*at..end).ok_or(BadChunk::Truncated)?;
        extra.particulars = Some(Arc::new(Particulars::decode(encoded).map_err(BadChunk::Particulars)?));
        *at = end;
    }
    if flags & HAS_PARENTS != 0 {
        let end = *at + 8;
        let origin = bytes.get(*at..end).map(|eight| u64_at(eight, 0)).ok_or(BadChunk::Truncated)?;
        *at = end;
        let offsets = (0..count).map(|_| read_varint(bytes, at)).collect::<Result<_, _>>()?;
        extra.parents = Some(Parents { origin: Origin::from_random(origin), offsets });
    }
    if flags == extra.flags() { Ok(Some(Box::new(extra))) } else { Err(BadChunk::Malformed) }
}

/// Flags decide how the rest is read, so they are in the sum where there are any.
fn checksum(bytes: &[u8]) -> u32 {
    if bytes[1] == 0 {
        return crc32fast::hash(&bytes[8..]);
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[8..]);
    hasher.update(&bytes[1..4]);
    hasher.finalize()
}

pub(crate) fn write_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

pub(crate) fn read_varint(bytes: &[u8], at: &mut usize) -> Result<u64, BadChunk> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at).ok_or(BadChunk::Truncated)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(BadChunk::Malformed)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::particulars::Subject;

    fn sample() -> Chunk {
        let mut builder = ChunkBuilder::new(Origin::from_random(77));
        builder.push(32, b"first");
        builder.push(1000, b"");
        builder.push(70_000, &[0, 255, 10, 13]);
        builder.finish()
    }

    #[test]
    fn reads_back_what_was_built() {
        let built = sample();
        let read = Chunk::from_bytes(built.as_bytes().to_vec()).unwrap();
        assert_eq!(read, built);
        assert_eq!(read.data(0), b"first");
        assert_eq!(read.data(1), b"");
        assert_eq!(read.data(2), &[0, 255, 10, 13]);
        assert_eq!(read.data_of(0..3), b"first\0\xff\n\r");
        assert_eq!(read.find(read.id(2)), Some(2));
        assert_eq!(read.find(JobId { offset: 33, ..read.id(0) }), None);
    }

    /// Two jobs about one subject that came from two others.
    fn particular() -> Chunk {
        let subject = Subject { kind: "customer".into(), id: "42".into() };
        let particulars = Particulars { subject: Some(subject), ..Particulars::default() };
        let mut builder = ChunkBuilder::new(Origin::from_random(77)).with(Some(Arc::new(particulars)));
        let parent = |offset| JobId { origin: Origin::from_random(5), offset };
        builder.push_from(parent(900), 32, b"first");
        builder.push_from(parent(3), 1000, b"second");
        builder.finish()
    }

    #[test]
    fn particulars_and_parents_lie_with_the_jobs_and_others_pay_nothing() {
        let built = particular();
        let read = Chunk::from_bytes(built.as_bytes().to_vec()).unwrap();
        assert_eq!(read, built);
        assert_eq!((read.data(0), read.data(1)), (&b"first"[..], &b"second"[..]));
        assert_eq!(read.parent(1).unwrap().offset, 3);
        let of_first = read.particulars_of(0).unwrap();
        assert_eq!((of_first.parent, of_first.subject.is_some()), (read.parent(0), true));
        assert_eq!(read.particulars().unwrap().parent, None, "what is shared names no parent");
        let plain = sample();
        assert!(plain.is_plain() && plain.particulars_of(0).is_none() && plain.parent(0).is_none());
        let mut builder = ChunkBuilder::new(plain.origin()).with(Some(Arc::default()));
        (0..3).for_each(|index| builder.push(plain.id(index).offset, plain.data(index)));
        assert_eq!(builder.finish(), plain, "empty ones are none");
    }

    #[test]
    fn every_damaged_byte_and_every_cut_is_noticed() {
        for whole in [sample(), particular()].map(|chunk| chunk.as_bytes().to_vec()) {
            for cut in 0..whole.len() {
                assert!(Chunk::from_bytes(whole[..cut].to_vec()).is_err(), "cut at {cut}");
            }
            // The count of a plain chunk is in its head, which has a sum of its own.
            for at in (0..whole.len()).filter(|at| whole[1] != 0 || !(2..4).contains(at)) {
                for bit in 0..8 {
                    let mut damaged = whole.clone();
                    damaged[at] ^= 1 << bit;
                    assert!(Chunk::from_bytes(damaged).is_err(), "flipped bit {bit} of {at}");
                }
            }
        }
    }
}
