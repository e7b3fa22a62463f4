//! A segment file: its name, its header, and the walk over its whole frames.
//!
//! A frame whose checksum is wrong costs itself only: the walk goes on at the next mark behind which a frame is
//! right. The checksum begins with a seed drawn for the segment, so that a copy of an archive in some job's data is
//! never taken for a frame. This file must not know what the frames mean.

use super::frame::{self, Bytes, FRAME_MAX, HEAD, MARK};
use crate::error::{Failure, Kind};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use windlass_core::time::Time;

/// The length of the header.
pub(super) const HEADER: u64 = 40;

const MAGIC: [u8; 8] = *b"WINDLSEG";
const VERSION: u32 = 1;
/// How much is read at once.
const WINDOW: usize = 1 << 20;

/// What stands in front of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) number: u32,
    pub(super) created: Time,
    /// The last turn of the segments before this one, which may be gone.
    pub(super) turn_before: u64,
    pub(super) seed: u32,
}

impl Header {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.created.as_micros().to_le_bytes());
        bytes.extend_from_slice(&self.turn_before.to_le_bytes());
        bytes.extend_from_slice(&self.seed.to_le_bytes());
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header; `Ok(None)` where the bytes are damaged, an error where a newer program wrote them.
    pub(super) fn read(file: &File) -> Result<Option<Header>, Failure> {
        let mut bytes = [0; HEADER as usize];
        match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(Failure::io("cannot read an archive segment", &error)),
        }
        Header::parse(&bytes).transpose()
    }

    fn parse(bytes: &[u8]) -> Option<Result<Header, Failure>> {
        let mut fields = Bytes { bytes, at: 0 };
        if fields.take(8)? != MAGIC {
            return None;
        }
        let version = fields.u32()?;
        let (number, created) = (fields.u32()?, fields.time()?);
        let header = Header { number, created, turn_before: fields.u64()?, seed: fields.u32()? };
        if fields.u32()? != crc32fast::hash(&bytes[..HEADER as usize - 4]) {
            return None;
        }
        if version > VERSION {
            let text = format!("the archive has format {version}, this program knows formats up to {VERSION}");
            return Some(Err(Failure::new(Kind::Version, text)));
        }
        Some(Ok(header))
    }
}

pub(super) fn segment_name(number: u32) -> String {
    format!("{number:08}.seg")
}

pub(super) fn segment_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(segment_name(number))
}

pub(super) fn index_name(number: u32) -> String {
    format!("{number:08}.idx")
}

/// The numbers of all segments in a directory, rising; none where the directory is missing.
pub(super) fn numbers(dir: &Path) -> Result<Vec<u32>, Failure> {
    let cannot = |error: &io::Error| Failure::io(format_args!("cannot list {}", dir.display()), error);
    let listing = match fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot(&error)),
    };
    let mut numbers = Vec::new();
    for file in listing {
        let name = file.map_err(|e| cannot(&e))?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_suffix(".seg")).and_then(|n| n.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Walks over the whole frames of a segment, in order.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    file: &'a File,
    seed: u32,
    /// Where the next frame is expected.
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    buffer_at: u64,
    /// Bytes that were passed over between whole frames.
    pub(super) damaged: u64,
}

/// A frame found: where it begins, and where its payload lies in the walk's buffer.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) offset: u64,
    pub(super) end: u64,
    payload: Range<usize>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(file: &'a File, seed: u32, from: u64, end: u64) -> Walk<'a> {
        Walk { file, seed, at: from, end, buffer: Vec::new(), buffer_at: from, damaged: 0 }
    }

    pub(super) fn payload(&self, found: &Found) -> &[u8] {
        &self.buffer[found.payload.clone()]
    }

    /// The next whole frame; `None` behind the last one, whatever bytes still follow.
    pub(super) fn next(&mut self) -> io::Result<Option<Found>> {
        let expected = self.at;
        let mut candidate = Some(expected);
        while let Some(at) = candidate {
            if let Some(length) = self.whole_frame(at)? {
                self.damaged += at - expected;
                self.at = at + (HEAD + length) as u64;
                let begin = (at - self.buffer_at) as usize + HEAD;
                return Ok(Some(Found { offset: at, end: self.at, payload: begin..begin + length }));
            }
            candidate = self.next_mark(at + 1)?;
        }
        Ok(None)
    }

    /// The payload's length if a whole, undamaged frame begins there.
    fn whole_frame(&mut self, at: u64) -> io::Result<Option<usize>> {
        let seed = self.seed;
        let Some((length, crc)) = read_head(self.window(at, HEAD)?) else { return Ok(None) };
        let bytes = self.window(at, HEAD + length)?;
        let right = bytes.len() == HEAD + length && frame::checksum(seed, &bytes[HEAD..]) == crc;
        Ok(right.then_some(length))
    }

    fn next_mark(&mut self, mut from: u64) -> io::Result<Option<u64>> {
        while from + HEAD as u64 <= self.end {
            let bytes = self.window(from, WINDOW)?;
            if let Some(found) = memchr::memmem::find(bytes, &MARK) {
                return Ok(Some(from + found as u64));
            }
            // A mark may lie across the edge of the window.
            from += (bytes.len() - (MARK.len() - 1)) as u64;
        }
        Ok(None)
    }

    /// The bytes from there on, as many as asked for or as there are.
    fn window(&mut self, at: u64, length: usize) -> io::Result<&[u8]> {
        let length = length.min(usize::try_from(self.end.saturating_sub(at)).unwrap_or(usize::MAX));
        let buffered = self.buffer_at..self.buffer_at + self.buffer.len() as u64;
        if at < buffered.start || at + length as u64 > buffered.end {
            let want = length.max(WINDOW).min((self.end - at) as usize);
            self.buffer.resize(want, 0);
            self.buffer_at = at;
            if let Err(error) = self.file.read_exact_at(&mut self.buffer, at) {
                // Another process cut off a torn tail meanwhile: what is left is shorter, not damaged.
                self.buffer.clear();
                let end = self.file.metadata()?.len();
                if error.kind() != io::ErrorKind::UnexpectedEof || end >= self.end {
                    return Err(error);
                }
                self.end = end;
                return self.window(at, length);
            }
        }
        let begin = (at - self.buffer_at) as usize;
        Ok(&self.buffer[begin..begin + length])
    }
}

/// Length of the payload and checksum, where these bytes can be the head of a frame.
fn read_head(head: &[u8]) -> Option<(usize, u32)> {
    let mut fields = Bytes { bytes: head, at: 0 };
    let marked = fields.take(MARK.len())? == MARK;
    let length = fields.u32()? as usize;
    let crc = fields.u32()?;
    (marked && length > 0 && length <= FRAME_MAX).then_some((length, crc))
}

/// Reads the payload of the frame at a known place; `None` where it is damaged or not there.
pub(super) fn read_frame(file: &File, seed: u32, at: u64) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; HEAD];
    match file.read_exact_at(&mut head, at) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let Some((length, crc)) = read_head(&head) else { return Ok(None) };
    let mut payload = vec![0; length];
    match file.read_exact_at(&mut payload, at + HEAD as u64) {
        Ok(()) => Ok((frame::checksum(seed, &payload) == crc).then_some(payload)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
