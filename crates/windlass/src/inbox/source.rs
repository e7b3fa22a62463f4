//! One inbox file as the reader sees it: how far it was read, handed over and committed.
//!
//! It owns the descriptor and the positions. Ids come from `id`, checksums are seeded by `seed`; they differ where
//! a file is read again under a new name. It must not deliver anything.

use super::disk::OpenFile;
use super::frame::{CAN, FILE_HEADER, FileHeader, STATE_AT};
use super::scan::Skip;
use crate::sabotage::{self, Sabotage};
use crate::store::Cursor;
use std::collections::VecDeque;
use windlass_core::job::Origin;

/// The bytes before a cursor that it remembers a checksum of.
const TAIL: u64 = 64;
/// What is committed is given back to the file system in steps of this size.
const PUNCH_STEP: u64 = 4 << 20;
const PUNCH_ALIGN: u64 = 4096;

/// One file being read.
#[derive(Debug)]
pub(super) struct Source<F> {
    pub(super) name: String,
    pub(super) file: F,
    pub(super) id: Origin,
    pub(super) seed: Option<Origin>,
    /// Still under a name that programs append to.
    pub(super) appended: bool,
    /// The next byte to read.
    pub(super) position: u64,
    pub(super) skip: Option<Skip>,
    /// Everything up to here was looked at; what is between `position` and here is a tail that waits.
    pub(super) seen: u64,
    /// Handed over up to here.
    pub(super) cursor: u64,
    pub(super) committed: u64,
    /// Synced up to here.
    pub(super) synced: u64,
    /// Cursors of lots that are under way.
    marks: VecDeque<(u64, u64)>,
    punched: u64,
    /// Left alone until the next wake-up, after a failure.
    pub(super) held: bool,
    /// The tail was looked at under the lock and nobody has touched it since.
    pub(super) tail_judged: u64,
}

impl<F: OpenFile> Source<F> {
    pub(super) fn new(name: String, file: F, id: Origin, header: Option<&FileHeader>, appended: bool) -> Source<F> {
        let start = if header.is_some() { FILE_HEADER as u64 } else { 0 };
        Source {
            name,
            file,
            id,
            seed: header.map(|header| header.origin),
            appended,
            position: start,
            skip: None,
            seen: start,
            cursor: start,
            committed: start,
            synced: 0,
            marks: VecDeque::new(),
            punched: PUNCH_ALIGN,
            held: false,
            tail_judged: 0,
        }
    }

    /// Goes on where the store left off; false when the file is not the one the cursor knew.
    pub(super) fn resume(&mut self, cursor: &Cursor) -> std::io::Result<bool> {
        let known = self.size()? >= cursor.offset && self.tail_before(cursor.offset)? == cursor.tail;
        if !known && !sabotage::on(Sabotage::TailHashIgnored) {
            return Ok(false);
        }
        for place in [&mut self.position, &mut self.seen, &mut self.cursor, &mut self.committed, &mut self.synced] {
            *place = cursor.offset;
        }
        Ok(true)
    }

    pub(super) fn size(&self) -> std::io::Result<u64> {
        Ok(self.file.facts()?.length)
    }

    /// How much was added since it was looked at.
    pub(super) fn unread(&self) -> u64 {
        self.size().map_or(0, |size| size.saturating_sub(self.seen))
    }

    /// Reads from the position on until the buffer is full or the file ends.
    pub(super) fn read(&self, buffer: &mut Vec<u8>, most: usize) -> std::io::Result<()> {
        // No larger than what is there: filling megabytes with zeros would cost more than reading a few records.
        let most = usize::try_from(self.size()?.saturating_sub(self.position)).map_or(most, |unread| most.min(unread));
        buffer.resize(most, 0);
        let mut length = 0;
        while length < most {
            match self.file.read_at(&mut buffer[length..], self.position + length as u64) {
                Ok(0) => break,
                Ok(n) => length += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        buffer.truncate(length);
        Ok(())
    }

    /// Brings the file to disk up to the end of what was looked at. A failure is final.
    pub(super) fn sync(&mut self) -> std::io::Result<()> {
        if self.synced < self.position {
            let size = self.size()?;
            if !sabotage::on(Sabotage::CursorBeforeSync) {
                self.file.sync()?;
            }
            self.synced = size;
        }
        Ok(())
    }

    /// The cursor as the store keeps it.
    pub(super) fn as_cursor(&self) -> std::io::Result<Cursor> {
        Ok(Cursor { origin: self.id, offset: self.cursor, tail: self.tail_before(self.cursor)? })
    }

    fn tail_before(&self, offset: u64) -> std::io::Result<u32> {
        let mut bytes = [0; TAIL as usize];
        let length = offset.min(TAIL);
        let bytes = &mut bytes[..length as usize];
        read_exact_at(&self.file, bytes, offset - length)?;
        if let Some(state) = (STATE_AT as u64).checked_sub(offset - length).filter(|_| self.seed.is_some())
            && let Some(byte) = bytes.get_mut(state as usize)
        {
            // The one byte of a file that ever changes.
            *byte = 0;
        }
        Ok(crc32fast::hash(bytes))
    }

    pub(super) fn handed_over(&mut self, lot: u64) {
        self.marks.push_back((lot, self.cursor));
    }

    /// Takes note of what is committed by now.
    pub(super) fn note_commits(&mut self, committed: u64) {
        while let Some((lot, offset)) = self.marks.front().copied().filter(|(lot, _)| *lot <= committed) {
            assert!(lot <= committed && offset >= self.committed, "lots are committed in order");
            self.committed = offset;
            self.marks.pop_front();
        }
    }

    pub(super) fn is_under_way(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Whether everything that was handed over is on the store's disk.
    pub(super) fn is_committed(&self) -> bool {
        !self.is_under_way() && self.committed == self.cursor
    }

    /// Whether a frame without its end stands last, which a look under the lock can tell to be torn.
    pub(super) fn has_frame_tail(&self) -> bool {
        let mut first = [0];
        self.position < self.seen
            && self.skip.is_none()
            && self.seed.is_some()
            && self.tail_judged != self.seen
            && read_exact_at(&self.file, &mut first, self.position).is_ok()
            && first[0] == CAN
    }

    /// Gives the space of committed bytes back, but for the header and the bytes a cursor remembers.
    pub(super) fn punch(&mut self) {
        let end = self.committed.saturating_sub(TAIL) / PUNCH_ALIGN * PUNCH_ALIGN;
        if self.appended || end < self.punched + PUNCH_STEP {
            return;
        }
        self.file.punch(self.punched, end - self.punched);
        self.punched = end;
    }
}

fn read_exact_at(file: &impl OpenFile, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], offset + length as u64) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => length += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
