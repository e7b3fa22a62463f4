//! Finds the records in a stretch of an inbox file: bytes in, jobs and damage out.
//!
//! Pure: no I/O, no clock, so the same code is fuzzed, simulated and shipped. It never fails and never skips in
//! silence: every byte is part of a record, of a named damage, of an empty line, or of a tail that waits for
//! more. It must not check queue names; the gatherer does that once per name.

use super::frame::{self, CAN, Decoded, FENCE, Frame, HEAD, LINE_MAX, Reason, START};
use super::future;
use crate::sabotage::{self, Sabotage};
use memchr::{memchr, memmem};
use std::ops::Range;
use windlass_core::job::{DATA_MAX, FUTURE, Origin};
use windlass_core::time::Time;

/// What a lost sector reads as; no line of a sane writer holds so many.
const NUL_RUN: [u8; 16] = [0; 16];

/// What is known about the end of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A writer may be in the middle of a record.
    Open,
    /// The lock was held: no writer that takes it is in the middle of a record, but a bare `>>` may be.
    Locked,
    /// Nobody has the file open: what is not whole never will be.
    Closed,
}

/// What is being passed over, from one stretch to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The rest of a line that is too long.
    Line,
    /// Everything up to the next fence: the lines inside a damaged frame are data, not jobs.
    Fence,
}

/// One thing found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found<'a> {
    /// A plain line; its time is set for a `_future` line.
    Line {
        offset: u64,
        not_before: Option<Time>,
        queue: &'a [u8],
        data: &'a [u8],
    },
    Framed {
        offset: u64,
        frame: Frame<'a>,
    },
    Bad {
        offset: u64,
        reason: Reason,
        bytes: &'a [u8],
    },
}

/// Walks over one stretch.
#[derive(Debug)]
pub struct Scan<'a> {
    bytes: &'a [u8],
    base: u64,
    /// The origin in the file's header; frames are believed only under one.
    seed: Option<Origin>,
    end: End,
    at: usize,
    skip: Option<Skip>,
    has_nul: bool,
}

impl<'a> Scan<'a> {
    /// `base` is the offset of the first byte in its file; `skip` is what the stretch before left off in.
    pub fn new(bytes: &'a [u8], base: u64, seed: Option<Origin>, end: End, skip: Option<Skip>) -> Scan<'a> {
        let has_nul = memchr(0, bytes).is_some();
        Scan { bytes, base, seed, end, at: 0, skip, has_nul }
    }

    /// How many bytes are done with; the rest is to be shown again with more behind it.
    pub fn consumed(&self) -> usize {
        self.at
    }

    /// What the next stretch must go on passing over; while it is set, the consumed bytes end inside a record.
    pub fn skipping(&self) -> Option<Skip> {
        self.skip
    }

    fn bad(&mut self, length: usize, reason: Reason) -> Found<'a> {
        let found =
            Found::Bad { offset: self.base + self.at as u64, reason, bytes: &self.bytes[self.at..self.at + length] };
        self.at += length;
        found
    }

    /// Passes over what is being skipped; false when the bytes ended first.
    fn pass_over(&mut self, skip: Skip) -> bool {
        let rest = &self.bytes[self.at..];
        let end = match skip {
            Skip::Line => memchr(b'\n', rest).map(|lf| if lf > 0 && rest[lf - 1] == CAN { lf - 1 } else { lf + 1 }),
            Skip::Fence => memmem::find(rest, &FENCE),
        };
        match end {
            Some(end) => {
                self.at += end;
                self.skip = None;
                true
            }
            None => {
                // A last CAN may be the first half of a fence.
                let keep = usize::from(rest.last() == Some(&CAN) && self.end != End::Closed);
                self.at = self.bytes.len() - keep;
                false
            }
        }
    }

    fn frame(&mut self, seed: Origin) -> Option<Found<'a>> {
        let rest = &self.bytes[self.at..];
        let (from, damage, length) = match frame::decode(rest, seed) {
            Decoded::Whole { frame, length } => {
                let offset = self.base + self.at as u64;
                self.at += length;
                return Some(Found::Framed { offset, frame });
            }
            Decoded::Short { head } if self.end == End::Open && rest.len() < head => return None,
            // A writer may be at it, and its front may hold anything: only its data tells that it is torn.
            Decoded::Short { head } if self.end == End::Open => (head, Reason::Torn, None),
            Decoded::Short { .. } => (if rest.len() < HEAD { START.len() } else { HEAD }, Reason::Torn, None),
            Decoded::DamagedData { length } => (HEAD, Reason::Checksum, Some(length)),
            Decoded::DamagedHead => (START.len(), Reason::Checksum, None),
        };
        // A write may also have stopped in front of its data: a whole frame that begins there is the next record.
        let whole = self.whole_frame_within(HEAD..from, seed);
        let next = whole.or_else(|| memmem::find(&rest[from..], &FENCE).map(|at| at + from));
        match (next, length) {
            (_, Some(length)) if self.ends_well(length, next, seed) => Some(self.bad(length, damage)),
            (Some(next), _) => Some(self.bad(next, Reason::Torn)),
            (None, None) if damage == Reason::Torn && self.end == End::Open => None,
            (None, _) => {
                self.skip = Some(Skip::Fence);
                Some(self.bad(rest.len(), damage))
            }
        }
    }

    /// Whether a frame with damaged data was written to its end, so that the next record begins behind it. A
    /// fence within it could be its own damaged data, unless what follows some fence is a frame beyond doubt.
    fn ends_well(&self, length: usize, next: Option<usize>, seed: Origin) -> bool {
        let rest = &self.bytes[self.at..];
        if next.is_none_or(|next| next >= length) {
            return rest[length - 1] == b'\n';
        }
        let torn = self.whole_frame_within(HEAD..length, seed).is_some();
        !torn && rest[length - 1] == b'\n' && (rest.len() == length || rest[length] == CAN)
    }

    /// Where the first frame that passes its checksums begins, looking only at fences in this stretch of the rest.
    fn whole_frame_within(&self, stretch: Range<usize>, seed: Origin) -> Option<usize> {
        let rest = &self.bytes[self.at..];
        let starts = memmem::find_iter(rest.get(stretch.start..)?, &START).map(|at| at + stretch.start);
        let mut within = starts.take_while(|at| *at < stretch.end);
        within.find(|at| matches!(frame::decode(&rest[*at..], seed), Decoded::Whole { .. }))
    }

    fn line(&mut self) -> Option<Found<'a>> {
        let rest = &self.bytes[self.at..];
        let Some(length) = memchr(b'\n', rest) else {
            return self.unterminated();
        };
        let line = &rest[..length];
        if line.last() == Some(&CAN) && !sabotage::on(Sabotage::TornLineRun) {
            return Some(self.bad(length - 1, Reason::Torn));
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let tab = memchr(b'\t', line);
        let name = &line[..tab.unwrap_or(line.len())];
        if self.seed.is_some() && name.iter().take(3).any(|byte| *byte < b' ') {
            // The remains of a frame whose start is damaged.
            return Some(self.up_to_fence(0, Reason::Garbage));
        }
        if self.has_nul && memmem::find(line, &NUL_RUN).is_some() {
            // A lost sector reads so. In a file of ours it may have held the start of a frame.
            return Some(match self.seed {
                Some(_) => self.up_to_fence(length, Reason::NulRun),
                None => self.bad(length + 1, Reason::NulRun),
            });
        }
        let Some(tab) = tab else {
            return Some(self.bad(length + 1, Reason::NoTab));
        };
        let offset = self.base + self.at as u64;
        let (queue, data) = (name, &line[tab + 1..]);
        if data.len() > DATA_MAX {
            return Some(self.bad(length + 1, Reason::TooLong));
        }
        if queue == FUTURE.as_bytes() {
            return match future::split(data) {
                Some((time, queue, data)) => {
                    self.at += length + 1;
                    Some(Found::Line { offset, not_before: Some(time), queue, data })
                }
                None => Some(self.bad(length + 1, Reason::FutureTime)),
            };
        }
        self.at += length + 1;
        Some(Found::Line { offset, not_before: None, queue, data })
    }

    /// Sets everything aside up to the next fence, which is looked for from there on: it may be the inside of a frame,
    /// whose lines must not pass for jobs.
    fn up_to_fence(&mut self, from: usize, reason: Reason) -> Found<'a> {
        let rest = &self.bytes[self.at..];
        let to = memmem::find(&rest[from..], &FENCE).map(|at| at + from);
        self.skip = if to.is_none() { Some(Skip::Fence) } else { None };
        self.bad(to.unwrap_or(rest.len()), reason)
    }

    /// The front of a file of ours that has lost its header, and with it perhaps the start of its first frame: up to the
    /// first fence nothing tells a line of that frame from a line of a foreign program. A file of plain lines holds no
    /// start of a frame, and one that begins with a lost sector is not taken for one.
    fn lost_front(&mut self) -> Option<Found<'a>> {
        let reason = if self.bytes.starts_with(&NUL_RUN) { Reason::NulRun } else { Reason::NoHeader };
        let ours = reason == Reason::NulRun || memmem::find(self.bytes, &START).is_some();
        let lost = ours && !self.bytes.starts_with(&FENCE);
        lost.then(|| self.up_to_fence(0, reason))
    }

    /// A line without its end.
    fn unterminated(&mut self) -> Option<Found<'a>> {
        let rest = &self.bytes[self.at..];
        if rest.len() > LINE_MAX {
            self.skip = Some(Skip::Line);
            let keep = usize::from(rest.last() == Some(&CAN));
            return Some(self.bad(rest.len() - keep, Reason::TooLong));
        }
        match self.end {
            End::Open | End::Locked => None,
            End::Closed => Some(self.bad(rest.len(), Reason::Torn)),
        }
    }
}

impl<'a> Iterator for Scan<'a> {
    type Item = Found<'a>;

    fn next(&mut self) -> Option<Found<'a>> {
        if let Some(skip) = self.skip
            && !self.pass_over(skip)
        {
            return None;
        }
        if self.base == 0
            && self.at == 0
            && self.seed.is_none()
            && let Some(lost) = self.lost_front()
        {
            return Some(lost);
        }
        loop {
            let rest = &self.bytes[self.at..];
            match rest {
                [] => return None,
                [b'\n', ..] => self.at += 1,
                [b'\r', b'\n', ..] => self.at += 2,
                [CAN, ..] if rest.starts_with(&START) => {
                    return match self.seed {
                        Some(seed) => self.frame(seed),
                        // Nothing proves it.
                        None => Some(self.up_to_fence(FENCE.len(), Reason::NoHeader)),
                    };
                }
                [CAN, ..] if self.end == End::Open && rest.len() < START.len() && START.starts_with(rest) => {
                    return None;
                }
                [CAN, b'\n', ..] => self.at += FENCE.len(),
                [CAN] if self.end == End::Locked => return None,
                [0xef, 0xbb, 0xbf, ..] if self.base == 0 && self.at == 0 => self.at = 3,
                _ => return self.line(),
            }
        }
    }
}

#[cfg(test)]
mod tests;
