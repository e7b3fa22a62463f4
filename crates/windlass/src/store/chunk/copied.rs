//! Copies: jobs with the data of those that are laid in another chunk, in the same order, and with ids of their own.
//!
//! A message for a hundred listeners is a hundred chunks that share one body. Each knows the job that it is a copy of
//! as its parent. This file owns what is stored of a copy (version 2, little endian); the bytes it shares are stored
//! once, beside it:
//!
//! ```text
//! u8 version | u8 flags | u16 count | u32 crc32 of the rest and of the four bytes in front | u64 origin
//! u64 offset of the first, the others follow without a gap | u32 crc32 in the head of the chunk whose data it shares
//! [flag 1: varint length, the particulars that all of its jobs have]
//! ```

use super::{BadChunk, Chunk, Extra, HAS_PARTICULARS, Laid, read_extra, u32_at, u64_at};
use std::sync::Arc;
use windlass_core::job::Origin;
use windlass_core::particulars::Particulars;

const VERSION: u8 = 2;
const HEADER: usize = 28;

/// What copies have of their own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) origin: Origin,
    pub(super) base: u64,
    pub(super) particulars: Option<Arc<Particulars>>,
    bytes: Vec<u8>,
}

impl Copied {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Chunk {
    /// A copy of each of its jobs, with the ids from `base` on; these are laid here, and not copies themselves.
    pub fn copied(&self, origin: Origin, base: u64, particulars: Option<Arc<Particulars>>) -> Chunk {
        assert!(self.copied.is_none(), "copies are made of what is laid");
        let particulars = particulars.filter(|particulars| !particulars.is_empty());
        let extra = Extra { particulars, parents: None };
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend_from_slice(&[VERSION, extra.flags()]);
        bytes.extend_from_slice(&(self.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&origin.bits().to_le_bytes());
        bytes.extend_from_slice(&base.to_le_bytes());
        bytes.extend_from_slice(&self.laid.bytes[4..8]);
        extra.write(&mut bytes);
        let crc = checksum(&bytes);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        let copied = Copied { origin, base, particulars: extra.particulars, bytes };
        Chunk { laid: Arc::clone(&self.laid), copied: Some(Box::new(copied)) }
    }

    /// Reads copies: what is stored of them, and the bytes that they share.
    pub fn copied_from_bytes(bytes: Vec<u8>, shared: Vec<u8>) -> Result<Chunk, BadChunk> {
        if bytes.len() < HEADER {
            return Err(BadChunk::Truncated);
        }
        if bytes[0] != VERSION {
            return Err(BadChunk::Version(bytes[0]));
        }
        if checksum(&bytes) != u32_at(&bytes, 4) || shared.get(4..8) != Some(&bytes[24..HEADER]) {
            return Err(BadChunk::Checksum);
        }
        let laid = Laid::from_bytes(shared)?;
        let (origin, base) = (Origin::from_random(u64_at(&bytes, 8)), u64_at(&bytes, 16));
        let (count, mut at) = (laid.ends.len(), HEADER);
        let extra = read_extra(&bytes, count, &mut at)?;
        let fits = usize::from(u16::from_le_bytes([bytes[2], bytes[3]])) == count && at == bytes.len();
        if !fits || bytes[1] & !HAS_PARTICULARS != 0 || base.checked_add(count as u64).is_none() {
            return Err(BadChunk::Malformed);
        }
        let particulars = extra.and_then(|extra| extra.particulars);
        Ok(Chunk { laid: Arc::new(laid), copied: Some(Box::new(Copied { origin, base, particulars, bytes })) })
    }

    /// The bytes that it shares with others, where its jobs are copies.
    pub fn shared(&self) -> Option<&Arc<Laid>> {
        self.copied.as_ref().map(|_| &self.laid)
    }

    /// Itself where it is laid as a whole; else these of its jobs, laid for themselves.
    pub fn laid(self: &Arc<Chunk>, jobs: std::ops::Range<usize>) -> Arc<Chunk> {
        if self.copied.is_none() && jobs == (0..self.len()) {
            return Arc::clone(self);
        }
        Arc::new(self.rebuilt(self.particulars().cloned(), |index| jobs.contains(&index)))
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[8..]);
    hasher.update(&bytes[..4]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::super::ChunkBuilder;
    use super::*;
    use windlass_core::job::JobId;
    use windlass_core::particulars::Subject;

    fn messages() -> Chunk {
        let mut builder = ChunkBuilder::new(Origin::from_random(77));
        for (offset, data) in [(32, "first"), (1000, ""), (70_000, "third")] {
            builder.push(offset, data.as_bytes());
        }
        builder.finish()
    }

    fn of_customer() -> Option<Arc<Particulars>> {
        let subject = Some(Subject { kind: "customer".into(), id: "42".into() });
        Some(Arc::new(Particulars { subject, ..Particulars::default() }))
    }

    #[test]
    fn copies_have_the_data_of_their_messages_and_ids_of_their_own() {
        let messages = Arc::new(messages());
        for particulars in [None, Some(Arc::default()), of_customer()] {
            let built = messages.copied(Origin::from_random(5), 900, particulars.clone());
            let read = Chunk::copied_from_bytes(built.as_bytes().to_vec(), messages.as_bytes().to_vec()).unwrap();
            assert_eq!(read, built);
            assert_eq!((read.len(), read.offset_range(), read.is_plain()), (3, (900, 902), false));
            for index in 0..3 {
                assert_eq!(read.data(index), messages.data(index));
                assert_eq!(read.id(index), JobId { origin: Origin::from_random(5), offset: 900 + index as u64 });
                assert_eq!(read.find(read.id(index)), Some(index));
                let all = read.particulars_of(index).unwrap();
                let subject = particulars.as_ref().and_then(|particulars| particulars.subject.clone());
                assert_eq!((all.parent, &all.subject), (Some(messages.id(index)), &subject));
            }
            assert_eq!(read.find(messages.id(0)), None);
            assert_eq!(read.find(JobId { offset: 903, ..read.id(0) }), None);
            assert_eq!(read.find(JobId { offset: 899, ..read.id(0) }), None);
            assert!(Arc::ptr_eq(built.shared().unwrap(), &messages.laid), "nothing is copied");
            let alone = Arc::new(built).laid(1..3);
            assert_eq!((alone.len(), alone.data(1), alone.parent(1)), (2, &b"third"[..], Some(messages.id(2))));
            assert!(alone.shared().is_none() && Arc::ptr_eq(&messages.laid(0..3), &messages));
        }
    }

    #[test]
    fn every_damaged_byte_every_cut_and_every_other_body_is_noticed() {
        let messages = messages();
        let copy = messages.copied(Origin::from_random(5), 900, of_customer());
        let (whole, shared) = (copy.as_bytes().to_vec(), messages.as_bytes().to_vec());
        let is_read = |bytes: &[u8], shared: &[u8]| Chunk::copied_from_bytes(bytes.to_vec(), shared.to_vec()).is_ok();
        assert!(is_read(&whole, &shared));
        for cut in 0..whole.len() {
            assert!(!is_read(&whole[..cut], &shared), "cut at {cut}");
        }
        for bit in 0..8 * whole.len() {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_read(&damaged, &shared), "flipped bit {bit}");
        }
        let other = messages.rebuilt(None, |index| index != 1);
        assert!(!is_read(&whole, other.as_bytes()) && !is_read(&whole, &[]) && !is_read(&shared, &shared));
        assert!(Chunk::from_bytes(whole).is_err(), "without its body it is no chunk");
    }
}
