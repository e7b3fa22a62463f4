//! How far the files of an archive go: up to a turn for a backup, and whether their frames are whole for the doctor.
//!
//! Both only read, beside a writer. A backup takes the archive as of a turn of the store: what was archived later
//! belongs to turns whose numbers the restored store gives out again.

use super::frame::{self, Frame};
use super::segment::{self, HEADER, Header, Walk, segment_name, segment_path};
use crate::error::Failure;
use std::fs::File;
use std::io;
use std::path::Path;

/// The segments that hold turns up to this one, each with how many of its bytes belong to them.
pub fn up_to(dir: &Path, turn: u64) -> Result<Vec<(String, u64)>, Failure> {
    let mut found = Vec::new();
    let numbers = segment::numbers(dir)?;
    for (at, number) in numbers.iter().enumerate() {
        let Some(file) = open(dir, *number)? else { continue };
        let cannot = |e: io::Error| Failure::io(format_args!("cannot read {}", segment_name(*number)), &e);
        let length = file.metadata().map_err(cannot)?.len();
        let header = Header::read(&file)?;
        if header.is_some_and(|header| header.turn_before > turn) {
            break;
        }
        let next = numbers.get(at + 1).map(|next| turn_before(dir, *next)).transpose()?.flatten();
        let length = match header {
            Some(header) if next.is_none_or(|before| before > turn) => {
                end_of(&file, header.seed, length, turn).map_err(cannot)?
            }
            // All of it is older, or nothing in it can be told from noise.
            Some(_) | None => length,
        };
        found.push((segment_name(*number), length));
    }
    Ok(found)
}

/// Where the last turn up to this one ends.
fn end_of(file: &File, seed: u32, length: u64, turn: u64) -> io::Result<u64> {
    let mut walk = Walk::new(file, seed, HEADER, length);
    let mut end = HEADER;
    while let Some(found) = walk.next()? {
        match frame::read(walk.payload(&found)) {
            Some(Frame::Turn { turn: ended, .. }) if ended <= turn => end = found.end,
            Some(Frame::Turn { .. }) => break,
            Some(Frame::Attempts(_)) | None => {}
        }
    }
    Ok(end)
}

fn turn_before(dir: &Path, number: u32) -> Result<Option<u64>, Failure> {
    let Some(file) = open(dir, number)? else { return Ok(None) };
    Ok(Header::read(&file)?.map(|header| header.turn_before))
}

/// `None` where retention was here first.
fn open(dir: &Path, number: u32) -> Result<Option<File>, Failure> {
    match File::open(segment_path(dir, number)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io(format_args!("cannot read {}", segment_name(number)), &error)),
    }
}

/// What a look at the newest segments found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Soundness {
    pub segments: usize,
    pub frames: u64,
    /// Bytes between whole frames that are none, and segments without a readable header.
    pub damaged: u64,
    pub unreadable: usize,
    /// Older segments that were not looked at.
    pub left_out: usize,
}

/// Checks the checksum of every frame of the newest segments, up to so many bytes.
pub fn soundness(dir: &Path, budget: u64) -> Result<Soundness, Failure> {
    let mut found = Soundness::default();
    let mut left = budget;
    for number in segment::numbers(dir)?.into_iter().rev() {
        if left == 0 {
            found.left_out += 1;
            continue;
        }
        let Some(file) = open(dir, number)? else { continue };
        let cannot = |e: io::Error| Failure::io(format_args!("cannot read {}", segment_name(number)), &e);
        let length = file.metadata().map_err(cannot)?.len();
        left = left.saturating_sub(length);
        found.segments += 1;
        let Some(header) = Header::read(&file)? else {
            found.unreadable += 1;
            continue;
        };
        let mut walk = Walk::new(&file, header.seed, HEADER, length);
        while walk.next().map_err(cannot)?.is_some() {
            found.frames += 1;
        }
        found.damaged += walk.damaged;
    }
    Ok(found)
}
