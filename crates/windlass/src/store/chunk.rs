//! A chunk: up to a thousand jobs laid end to end in one value, with their ids and lengths in front.
//!
//! The unit of storage, of claiming and of handing to a runner. It is never changed after it was built; what
//! became of its jobs is kept beside it. This file owns the bytes (version 1, little endian):
//!
//! ```text
//! u8 version | u8 flags | u16 count | u32 crc32 of the rest | u64 origin | u64 base offset
//! count × varint   offset minus the one before (the first minus base)
//! count × varint   length of the data
//! the data, end to end
//! ```

use std::ops::Range;
use windlass_core::job::{DATA_MAX, JobId, Origin};

/// The most jobs in one chunk.
pub const JOBS_MAX: usize = 1000;
/// A chunk is closed once its data reaches this many bytes.
pub const BYTES_MAX: usize = 256 << 10;

const VERSION: u8 = 1;
const HEADER: usize = 24;

/// A built or read chunk; immutable.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    bytes: Vec<u8>,
    origin: Origin,
    /// Offset in the origin, per job.
    offsets: Vec<u64>,
    /// Where each job's data ends in `bytes`; the first begins at `data`.
    ends: Vec<u32>,
    data: u32,
}

/// Why bytes are not a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadChunk {
    Version(u8),
    Truncated,
    Checksum,
    Malformed,
}

impl Chunk {
    /// Reads stored bytes, checking everything that later accessors rely on.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Chunk, BadChunk> {
        if bytes.len() < HEADER {
            return Err(BadChunk::Truncated);
        }
        if bytes[0] != VERSION {
            return Err(BadChunk::Version(bytes[0]));
        }
        if crc32fast::hash(&bytes[8..]) != u32_at(&bytes, 4) {
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
        let data = u32::try_from(at).map_err(|_| BadChunk::Malformed)?;
        if u64::from(data).checked_add(length) != Some(bytes.len() as u64) {
            return Err(BadChunk::Malformed);
        }
        let ends = ends.into_iter().map(|end| data + end as u32).collect();
        Ok(Chunk { bytes, origin, offsets, ends, data })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    pub fn id(&self, index: usize) -> JobId {
        JobId { origin: self.origin, offset: self.offsets[index] }
    }

    /// The index of a job by its offset in the origin; offsets rise within a chunk.
    pub fn find(&self, id: JobId) -> Option<usize> {
        (id.origin == self.origin).then(|| self.offsets.binary_search(&id.offset).ok()).flatten()
    }

    pub fn offset_range(&self) -> (u64, u64) {
        (self.offsets.first().copied().unwrap_or(0), self.offsets.last().copied().unwrap_or(0))
    }

    pub fn data(&self, index: usize) -> &[u8] {
        &self.bytes[self.data_range(index..index + 1)]
    }

    /// Where the data of neighbouring jobs lies in `as_bytes`, end to end.
    pub fn data_range(&self, jobs: Range<usize>) -> Range<usize> {
        let from = if jobs.start == 0 { self.data } else { self.ends[jobs.start - 1] };
        let to = if jobs.end == 0 { self.data } else { self.ends[jobs.end - 1] };
        from as usize..to as usize
    }

    /// Memory held by this chunk, for budgets.
    pub fn footprint(&self) -> usize {
        self.bytes.len() + self.ends.len() * 12 + 96
    }
}

/// Gathers jobs of one lane and one origin, in rising offsets.
#[derive(Debug)]
pub struct ChunkBuilder {
    origin: Origin,
    offsets: Vec<u64>,
    lengths: Vec<u32>,
    data: Vec<u8>,
}

impl ChunkBuilder {
    pub fn new(origin: Origin) -> ChunkBuilder {
        ChunkBuilder { origin, offsets: Vec::new(), lengths: Vec::new(), data: Vec::new() }
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

    /// Builds the chunk and leaves the builder empty for the next one.
    pub fn finish(&mut self) -> Chunk {
        let base = self.offsets.first().copied().unwrap_or(0);
        let count = self.lengths.len();
        let mut bytes = Vec::with_capacity(HEADER + 4 * count + self.data.len());
        bytes.extend_from_slice(&[VERSION, 0]);
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
        let data = bytes.len() as u32;
        bytes.extend_from_slice(&self.data);
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        let mut end = data;
        let ends = self.lengths.iter().map(|length| {
            end += length;
            end
        });
        let ends = ends.collect();
        self.lengths.clear();
        self.data.clear();
        Chunk { bytes, origin: self.origin, offsets: std::mem::take(&mut self.offsets), ends, data }
    }
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
        assert_eq!(&read.as_bytes()[read.data_range(0..3)], b"first\0\xff\n\r");
        assert_eq!(read.find(read.id(2)), Some(2));
        assert_eq!(read.find(JobId { offset: 33, ..read.id(0) }), None);
    }

    #[test]
    fn every_damaged_byte_and_every_cut_is_noticed() {
        let whole = sample().as_bytes().to_vec();
        for cut in 0..whole.len() {
            assert!(Chunk::from_bytes(whole[..cut].to_vec()).is_err(), "cut at {cut}");
        }
        for at in (0..whole.len()).filter(|at| !(1..4).contains(at)) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(Chunk::from_bytes(damaged).is_err(), "flipped {at}");
        }
    }
}
