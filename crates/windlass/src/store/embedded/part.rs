//! What became of the jobs of an opened chunk: waiting, claimed or gone, one mark a job.
//!
//! A claimed mark is the durable start of the job. This file owns the marks and their stored forms: one byte where
//! all are alike, else two bits a job, and a checksum in front; neighbouring chunks that are alike share a strip. It
//! must not know lanes or counters.

use super::super::StoreError;
use super::schema::corrupt;
use super::sums::{check, sum};
use crate::sabotage::{self, Sabotage};
use std::ops::Range;
use windlass_core::job::{Lane, RunNo};
use windlass_core::time::Time;

/// The stored forms, and what stands in front of the marks: the form and a checksum.
/// No single damaged bit turns one into another one or into the 1 and 2 of formats without a checksum.
const ALIKE: u8 = 4;
const PACKED: u8 = 7;
const STRIP: u8 = 8;
const FRONT: usize = 5;

/// The mark of one job of an opened chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mark {
    Waiting = 0,
    Claimed = 1,
    Gone = 2,
}

/// Everything about a chunk but its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) first: u64,
    pub(super) count: u16,
    pub(super) lane: Lane,
    pub(super) run: Option<RunNo>,
    pub(super) admitted: Time,
    /// Set while its time has not come.
    pub(super) due: Option<Time>,
}

/// An opened chunk: its head, and a mark for each job.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) head: Head,
    /// Empty where all jobs have the mark `all`: a chunk of one job, of which there may be very many, needs no more.
    marks: Vec<u8>,
    all: Mark,
    pub(super) waiting: u16,
    pub(super) claimed: u16,
    /// No job before this one waits.
    from: u16,
    pub(super) dirty: bool,
    /// Its marks are stored, in a row of their own or in a strip.
    pub(super) stored: bool,
    /// There is a row under its arrival: its own, or that of the strip that begins with it.
    pub(super) has_row: bool,
}

impl Part {
    /// A chunk that nobody touched yet.
    pub(super) fn fresh(head: Head) -> Part {
        Part { stored: false, has_row: false, ..Part::alike_in(head, Mark::Waiting) }
    }

    /// A chunk of which all jobs are claimed by the first that touch it.
    pub(super) fn claimed_whole(head: Head) -> Part {
        Part { dirty: true, stored: false, has_row: false, ..Part::alike_in(head, Mark::Claimed) }
    }

    /// A stored chunk whose jobs all have the same mark.
    fn alike_in(head: Head, all: Mark) -> Part {
        let number = |mark: Mark| if mark == all { head.count } else { 0 };
        let (waiting, claimed) = (number(Mark::Waiting), number(Mark::Claimed));
        Part { head, marks: Vec::new(), all, waiting, claimed, from: 0, dirty: false, stored: true, has_row: true }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.waiting == 0 && (self.claimed == 0 || sabotage::on(Sabotage::ChunkGoneEarly) && self.claimed == 1)
    }

    /// What all of its jobs are, if they are claimed or gone.
    pub(super) fn alike(&self) -> Option<Mark> {
        if self.is_gone() { Some(Mark::Gone) } else { (self.claimed == self.head.count).then_some(Mark::Claimed) }
    }

    pub(super) fn mark(&self, index: usize) -> Mark {
        match self.marks.get(index) {
            None => self.all,
            Some(0) => Mark::Waiting,
            Some(1) => Mark::Claimed,
            Some(_) => Mark::Gone,
        }
    }

    pub(super) fn all_are(&self, jobs: Range<usize>, mark: Mark) -> bool {
        if self.marks.is_empty() {
            return self.all == mark && jobs.end <= usize::from(self.head.count);
        }
        self.marks.get(jobs).is_some_and(|marks| marks.iter().all(|m| *m == mark as u8))
    }

    /// Changes neighbours that all have the mark `old`; the caller has checked that.
    pub(super) fn set(&mut self, jobs: Range<usize>, old: Mark, new: Mark) {
        debug_assert!(self.all_are(jobs.clone(), old), "marks are checked before they change");
        let count = jobs.len() as u16;
        match old {
            Mark::Waiting => self.waiting -= count,
            Mark::Claimed => self.claimed -= count,
            Mark::Gone => {}
        }
        match new {
            Mark::Waiting => {
                self.waiting += count;
                self.from = self.from.min(jobs.start as u16);
            }
            Mark::Claimed => self.claimed += count,
            Mark::Gone => {}
        }
        self.dirty = true;
        let whole = jobs.len() == usize::from(self.head.count);
        if whole || self.is_gone() {
            (self.marks, self.all) = (Vec::new(), if self.is_gone() { Mark::Gone } else { new });
            return;
        }
        if self.marks.is_empty() {
            self.marks = vec![self.all as u8; usize::from(self.head.count)];
        }
        self.marks[jobs].fill(new as u8);
    }

    /// The next neighbours that wait, at most `most` of them.
    pub(super) fn next_waiting(&mut self, most: usize) -> Option<Range<usize>> {
        if self.marks.is_empty() {
            return (self.all == Mark::Waiting).then(|| 0..most.min(usize::from(self.head.count)));
        }
        let start = self.marks[usize::from(self.from)..].iter().position(|m| *m == 0)? + usize::from(self.from);
        self.from = start as u16;
        let length = self.marks[start..].iter().take(most).take_while(|m| **m == 0).count();
        Some(start..start + length)
    }

    /// Runs of neighbours with this mark.
    pub(super) fn stretches(&self, mark: Mark) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        if self.marks.is_empty() && self.all == mark {
            found.push(0..usize::from(self.head.count));
        }
        let mut at = 0;
        for group in self.marks.chunk_by(|a, b| a == b) {
            if group[0] == mark as u8 {
                found.push(at..at + group.len());
            }
            at += group.len();
        }
        found
    }

    /// The stored form: `[4, sum, mark]` where all are alike, else `[7, sum, packed marks…]`; before format 3 it was
    /// `[1, mark]` and `[2, packed marks…]`.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![ALIKE, 0, 0, 0, 0];
        match self.alike() {
            Some(mark) => bytes.push(mark as u8),
            None => {
                bytes[0] = PACKED;
                // No marks and neither claimed nor gone: all of them wait, which is nought.
                bytes.resize(FRONT + usize::from(self.head.count).div_ceil(4), 0);
                for (index, mark) in self.marks.iter().enumerate() {
                    bytes[FRONT + index / 4] |= mark << (index % 4 * 2);
                }
            }
        }
        let sum = marks_sum(&self.head, &bytes[FRONT..]);
        bytes[1..FRONT].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(head: Head, bytes: &[u8]) -> Result<Part, StoreError> {
        let count = usize::from(head.count);
        if let [ALIKE | PACKED, a, b, c, d, stored @ ..] = bytes {
            let sum = u32::from_le_bytes([*a, *b, *c, *d]);
            check(sum, marks_sum(&head, stored), || format!("the marks of chunk {}", head.first))?;
        }
        let marks: Vec<u8> = match bytes {
            [ALIKE, _, _, _, _, mark] | [1, mark] => vec![*mark; count],
            [PACKED, _, _, _, _, packed @ ..] | [2, packed @ ..] if packed.len() == count.div_ceil(4) => {
                (0..count).map(|index| packed[index / 4] >> (index % 4 * 2) & 3).collect()
            }
            _ => return Err(corrupt(format!("the marks of chunk {} have an unknown form", head.first))),
        };
        if marks.iter().any(|mark| *mark > Mark::Gone as u8) {
            return Err(corrupt(format!("the marks of chunk {} hold an unknown one", head.first)));
        }
        let number = |mark: Mark| marks.iter().filter(|m| **m == mark as u8).count() as u16;
        let (waiting, claimed) = (number(Mark::Waiting), number(Mark::Claimed));
        let alike = [Mark::Waiting, Mark::Claimed, Mark::Gone].into_iter().find(|mark| number(*mark) == head.count);
        match alike {
            Some(mark) => Ok(Part::alike_in(head, mark)),
            None => Ok(Part { marks, waiting, claimed, ..Part::alike_in(head, Mark::Gone) }),
        }
    }

    /// A chunk as the strip says that it lies in.
    pub(super) fn within(head: Head, strip: Strip, has_row: bool) -> Part {
        Part { has_row, ..Part::alike_in(head, strip.mark) }
    }
}

/// One row of marks for neighbouring chunks whose jobs are all claimed, or all gone since the same turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strip {
    /// The first arrival of the last of these chunks.
    pub(super) last: u64,
    pub(super) mark: Mark,
}

impl Strip {
    /// The stored form: `[8, sum, mark, last]`.
    pub(super) fn encode(self, first: u64) -> Vec<u8> {
        let mut bytes = vec![STRIP, 0, 0, 0, 0, self.mark as u8];
        bytes.extend(self.last.to_le_bytes());
        let sum = sum([first as i64], &bytes[FRONT..]);
        bytes[1..FRONT].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// None where the row has the marks of a single chunk.
    pub(super) fn decode(first: u64, bytes: &[u8]) -> Result<Option<Strip>, StoreError> {
        let [STRIP, a, b, c, d, stored @ ..] = bytes else { return Ok(None) };
        check(u32::from_le_bytes([*a, *b, *c, *d]), sum([first as i64], stored), || {
            format!("the marks of chunk {first}")
        })?;
        let unknown = || corrupt(format!("the marks of chunk {first} and its neighbours have an unknown form"));
        let (mark, last) = stored.split_first().ok_or_else(unknown)?;
        let mark = match mark {
            1 => Mark::Claimed,
            2 => Mark::Gone,
            _ => return Err(unknown()),
        };
        let last = u64::from_le_bytes(last.try_into().map_err(|_| unknown())?);
        if last > first { Ok(Some(Strip { last, mark })) } else { Err(unknown()) }
    }
}

/// The checksum of stored marks; those of another chunk do not pass.
fn marks_sum(head: &Head, stored: &[u8]) -> u32 {
    sum([head.first as i64], stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::job::{LaneKind, Priority, QueueNo};

    fn head(count: u16) -> Head {
        let lane = Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh };
        Head { first: 7, count, lane, run: None, admitted: Time(5), due: None }
    }

    #[test]
    fn marks_survive_storing_in_both_forms() {
        let mut part = Part::fresh(head(10));
        part.set(0..10, Mark::Waiting, Mark::Claimed);
        assert_eq!(part.encode()[FRONT..], [1]);
        part.set(2..5, Mark::Claimed, Mark::Gone);
        part.set(9..10, Mark::Claimed, Mark::Waiting);
        let read = Part::decode(head(10), &part.encode()).unwrap();
        assert_eq!((read.waiting, read.claimed), (1, 6));
        assert_eq!(read.stretches(Mark::Claimed), [0..2, 5..9]);
        assert_eq!(read.stretches(Mark::Waiting), std::slice::from_ref(&(9..10)));
        assert!(Part::decode(head(10), &[2, 0]).is_err());
        assert!(Part::decode(head(1), &[2, 3]).is_err());
    }

    #[test]
    fn every_flipped_bit_of_stored_marks_is_noticed_and_older_forms_are_read() {
        for count in [9, 18] {
            let mut part = Part::fresh(head(count));
            part.set(3..5, Mark::Waiting, Mark::Gone);
            let packed = part.encode();
            part.set(0..3, Mark::Waiting, Mark::Gone);
            part.set(5..usize::from(count), Mark::Waiting, Mark::Gone);
            for stored in [packed, part.encode()] {
                for bit in 0..8 * stored.len() {
                    let mut damaged = stored.clone();
                    damaged[bit / 8] ^= 1 << (bit % 8);
                    assert!(Part::decode(head(count), &damaged).is_err(), "bit {bit} of {stored:?}");
                }
                assert!(Part::decode(Head { first: 8, ..head(count) }, &stored).is_err(), "they are of another chunk");
            }
        }
        assert_eq!(Part::decode(head(9), &[1, 1]).unwrap().claimed, 9);
        assert_eq!(Part::decode(head(5), &[2, 0b10_01_00_00, 2]).unwrap().waiting, 2);
    }

    #[test]
    fn every_flipped_bit_of_a_stored_strip_is_noticed() {
        for mark in [Mark::Claimed, Mark::Gone] {
            let strip = Strip { last: 300, mark };
            let stored = strip.encode(7);
            assert_eq!(Strip::decode(7, &stored).unwrap(), Some(strip));
            assert!(Strip::decode(8, &stored).is_err(), "it is another one's");
            assert!(Strip::decode(7, &stored[..13]).is_err() && Strip::decode(7, &strip.encode(301)[..]).is_err());
            for bit in 0..8 * stored.len() {
                let mut damaged = stored.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let noticed = Strip::decode(7, &damaged).map_or(true, |strip| strip.is_none())
                    && Part::decode(head(1), &damaged).is_err();
                assert!(noticed, "bit {bit} of {stored:?}");
            }
        }
    }

    #[test]
    fn waiting_jobs_are_found_from_the_head_and_after_a_return() {
        let mut part = Part::fresh(head(6));
        let first = part.next_waiting(4).unwrap();
        assert_eq!(first, 0..4);
        part.set(first, Mark::Waiting, Mark::Claimed);
        part.set(1..2, Mark::Claimed, Mark::Waiting);
        assert_eq!(part.next_waiting(9), Some(1..2));
        part.set(1..2, Mark::Waiting, Mark::Gone);
        assert_eq!(part.next_waiting(9), Some(4..6));
    }
}
