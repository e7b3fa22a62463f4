//! The bytes of one frame: attempts that ended alike, or the end of a turn.
//!
//! Writing is the hot path and costs little more than copying the data: nothing is allocated or formatted per
//! job. Reading trusts nothing: every length is checked, and bytes that make no sense are `None`.
//!
//! ```text
//! 4 bytes mark | u32 length of the rest after the checksum | u32 crc32, begun with the segment's seed
//! kind 1: u8 state, u8 flags | varint start, turn | i64 admitted, started, finished | text outcome, queue
//!         [u64 run, varint generation] | [i8 priority] | u64 origin | varint count
//!         count × varint offset minus the one before | [count × varint length of data] | [text reason, note]
//!         [2 × output] | [text particulars] | [u64 origin, count × varint: their parents] | the data, end to end
//! kind 2: varint turn, length of the segment that was synced before
//! ```

use super::Entry;
use crate::runner::Stream;
use crate::store::Held;
use crate::store::chunk::{read_varint, write_varint};
use windlass_core::job::{JobId, Origin, Priority, RunId};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::State;
use windlass_core::particulars::Particulars;
use windlass_core::suspicion::Ruling;
use windlass_core::time::Time;

/// In front of every frame, so that the next one is found behind a damaged one.
pub(super) const MARK: [u8; 4] = *b"\x96WAf";
/// Mark, length and checksum.
pub(super) const HEAD: usize = 12;
/// No frame is longer: a full chunk, its directory, two heads and a note are well below.
pub(super) const FRAME_MAX: usize = 8 << 20;
/// So much of a note and of each output stream is kept in the frame.
pub(super) const INLINE_MAX: usize = 64 << 10;

const KIND_ATTEMPTS: u8 = 1;
const KIND_TURN: u8 = 2;

const HAS_RUN: u8 = 1;
const HAS_DATA: u8 = 2;
const HAS_NOTE: u8 = 4;
const NOTE_IS_ERROR: u8 = 8;
const HAS_OUTPUT: u8 = 16;
/// Another priority than the normal one.
const HAS_PRIORITY: u8 = 32;
const HAS_PARTICULARS: u8 = 64;
const HAS_PARENTS: u8 = 128;

/// Appends the frame of one entry.
pub(super) fn write_attempts(into: &mut Vec<u8>, seed: u32, turn: u64, entry: &Entry, keep_bodies: bool) {
    let begin = open(into, KIND_ATTEMPTS);
    let settlement = &entry.settlement;
    let held = &settlement.held;
    let (reason, note, is_error) = note_of(&settlement.verdict);
    let has_note = !note.is_empty() || !reason.is_empty();
    let has_output = [&entry.output.stdout, &entry.output.stderr].iter().any(|stream| stream.total > 0);
    let (particulars, parents) = (held.jobs.particulars(), parents_of(held));
    let flags = [
        (entry.run.is_some(), HAS_RUN),
        (keep_bodies, HAS_DATA),
        (has_note, HAS_NOTE),
        (is_error, NOTE_IS_ERROR),
        (has_output, HAS_OUTPUT),
        (held.lane.priority != Priority::NORMAL, HAS_PRIORITY),
        (particulars.is_some(), HAS_PARTICULARS),
        (parents.is_some(), HAS_PARENTS),
    ];
    into.push(entry.state.index() as u8);
    into.push(flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum());
    write_varint(into, u64::from(held.start()));
    write_varint(into, turn);
    for time in [held.admitted, settlement.started, settlement.finished] {
        into.extend_from_slice(&time.as_micros().to_le_bytes());
    }
    write_text(into, settlement.outcome.as_bytes());
    write_text(into, entry.queue.as_str().as_bytes());
    if let Some(run) = entry.run {
        into.extend_from_slice(&run.origin.bits().to_le_bytes());
        write_varint(into, u64::from(run.generation));
    }
    if held.lane.priority != Priority::NORMAL {
        into.push(held.lane.priority.value() as u8);
    }
    let jobs = &*held.jobs;
    into.extend_from_slice(&jobs.origin().bits().to_le_bytes());
    write_varint(into, u64::from(held.count));
    let mut before = 0;
    for index in held.range() {
        let offset = jobs.id(index).offset;
        write_varint(into, offset - before);
        before = offset;
    }
    if keep_bodies {
        for index in held.range() {
            write_varint(into, jobs.data(index).len() as u64);
        }
    }
    if has_note {
        write_text(into, reason.as_bytes());
        write_text(into, clipped(note).as_bytes());
    }
    if has_output {
        write_stream(into, &entry.output.stdout);
        write_stream(into, &entry.output.stderr);
    }
    if let Some(particulars) = particulars {
        let mut encoded = Vec::new();
        particulars.encode(&mut encoded);
        write_text(into, &encoded);
    }
    if let Some((origin, offsets)) = parents {
        into.extend_from_slice(&origin.bits().to_le_bytes());
        offsets.iter().for_each(|offset| write_varint(into, *offset));
    }
    if keep_bodies {
        into.extend_from_slice(jobs.data_of(held.range()));
    }
    close(into, begin, seed);
}

/// Where the parents of a claim's jobs are their own and not shared.
fn parents_of(held: &Held) -> Option<(Origin, Vec<u64>)> {
    let shared = held.jobs.particulars().and_then(|particulars| particulars.parent);
    let parents: Option<Vec<JobId>> = held.range().map(|index| held.jobs.parent(index)).collect();
    let parents = parents.filter(|_| !held.jobs.is_plain() && shared.is_none())?;
    Some((parents.first()?.origin, parents.iter().map(|parent| parent.offset).collect()))
}

/// Appends the frame that ends a turn; `synced` is the length of the segment that is surely on disk.
pub(super) fn write_turn(into: &mut Vec<u8>, seed: u32, turn: u64, synced: u64) {
    let begin = open(into, KIND_TURN);
    write_varint(into, turn);
    write_varint(into, synced);
    close(into, begin, seed);
}

/// The checksum over a frame's bytes behind its head.
pub(super) fn checksum(seed: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(payload);
    hasher.finalize()
}

fn open(into: &mut Vec<u8>, kind: u8) -> usize {
    let begin = into.len();
    into.extend_from_slice(&MARK);
    into.extend_from_slice(&[0; 8]);
    into.push(kind);
    begin
}

fn close(into: &mut [u8], begin: usize, seed: u32) {
    let length = into.len() - begin - HEAD;
    assert!(length <= FRAME_MAX, "a claim is at most a chunk, and everything else in a frame is clipped");
    let crc = checksum(seed, &into[begin + HEAD..]);
    into[begin + 4..begin + 8].copy_from_slice(&(length as u32).to_le_bytes());
    into[begin + 8..begin + HEAD].copy_from_slice(&crc.to_le_bytes());
}

/// The reason's word, the text, and whether the text tells of an error.
fn note_of(verdict: &Verdict) -> (&'static str, &str, bool) {
    match verdict {
        Verdict::Succeed { message } => ("", message, false),
        Verdict::Retry { error, .. } => ("", error, true),
        Verdict::Fail { reason, error } => (reason.word(), error, true),
        Verdict::Suspect(Ruling::Convicted) => (Reason::Poison.word(), "its worker died while it ran", true),
        Verdict::Suspect(_) => ("", "its worker died while it ran", true),
        Verdict::Return | Verdict::Snooze { .. } | Verdict::Cancel => ("", "", false),
    }
}

fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(INLINE_MAX)]
}

fn write_text(into: &mut Vec<u8>, text: &[u8]) {
    write_varint(into, text.len() as u64);
    into.extend_from_slice(text);
}

fn write_stream(into: &mut Vec<u8>, stream: &Stream) {
    write_varint(into, stream.total);
    write_text(into, stream.file.as_deref().unwrap_or_default().as_bytes());
    write_text(into, &stream.head[..stream.head.len().min(INLINE_MAX)]);
}

/// What a frame says.
#[derive(Debug)]
pub(super) enum Frame<'a> {
    Attempts(Box<Attempts<'a>>),
    Turn { turn: u64, synced: u64 },
}

/// The attempts of one frame, still lying in its bytes.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    pub(super) head: AttemptsHead<'a>,
    pub(super) reason: &'a str,
    pub(super) note: &'a str,
    pub(super) note_is_error: bool,
    pub(super) stdout: StreamBytes<'a>,
    pub(super) stderr: StreamBytes<'a>,
    pub(super) particulars: Option<Particulars>,
    pub(super) parents: Option<Vec<JobId>>,
    /// Where each job's data lies in `data`; `None` where bodies are not kept.
    pub(super) lengths: Option<Vec<u32>>,
    pub(super) data: &'a [u8],
}

/// The front of such a frame: enough to know whose it is.
#[derive(Debug)]
pub(super) struct AttemptsHead<'a> {
    flags: u8,
    pub(super) state: State,
    pub(super) start: u32,
    pub(super) admitted: Time,
    pub(super) started: Time,
    pub(super) finished: Time,
    pub(super) outcome: &'a str,
    pub(super) queue: &'a str,
    pub(super) run: Option<RunId>,
    pub(super) priority: Priority,
    pub(super) origin: Origin,
    /// Rising, as in every chunk.
    pub(super) offsets: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamBytes<'a> {
    pub(super) total: u64,
    pub(super) file: &'a str,
    pub(super) head: &'a [u8],
}

/// Reads the bytes behind a frame's head, whose checksum was right.
pub(super) fn read(payload: &[u8]) -> Option<Frame<'_>> {
    let mut bytes = Bytes { bytes: payload, at: 0 };
    match bytes.byte()? {
        KIND_ATTEMPTS => {}
        KIND_TURN => return Some(Frame::Turn { turn: bytes.varint()?, synced: bytes.varint()? }),
        _ => return None,
    }
    let head = read_attempts_head(&mut bytes)?;
    let count = head.offsets.len();
    let lengths = match head.flags & HAS_DATA != 0 {
        true => Some((0..count).map(|_| u32::try_from(bytes.varint()?).ok()).collect::<Option<Vec<_>>>()?),
        false => None,
    };
    let (reason, note) = match head.flags & HAS_NOTE != 0 {
        true => (bytes.text()?, bytes.text()?),
        false => ("", ""),
    };
    let (stdout, stderr) = match head.flags & HAS_OUTPUT != 0 {
        true => (bytes.stream()?, bytes.stream()?),
        false => Default::default(),
    };
    let particulars = match head.flags & HAS_PARTICULARS != 0 {
        true => Some(Particulars::decode(bytes.slice()?).ok()?),
        false => None,
    };
    let parents = match head.flags & HAS_PARENTS != 0 {
        true => {
            let origin = Origin::from_random(bytes.u64()?);
            let parent = |bytes: &mut Bytes<'_>| Some(JobId { origin, offset: bytes.varint()? });
            Some((0..count).map(|_| parent(&mut bytes)).collect::<Option<Vec<_>>>()?)
        }
        false => None,
    };
    let data = bytes.rest();
    let expected: u64 = lengths.iter().flatten().map(|length| u64::from(*length)).sum();
    let note_is_error = head.flags & NOTE_IS_ERROR != 0;
    let attempts = Attempts { head, reason, note, note_is_error, stdout, stderr, particulars, parents, lengths, data };
    (attempts.data.len() as u64 == expected).then(|| Frame::Attempts(Box::new(attempts)))
}

/// Reads the front of a frame of attempts out of bytes that may end anywhere behind it.
pub(super) fn peek(payload: &[u8]) -> Option<AttemptsHead<'_>> {
    let mut bytes = Bytes { bytes: payload, at: 0 };
    (bytes.byte()? == KIND_ATTEMPTS).then(|| read_attempts_head(&mut bytes)).flatten()
}

fn read_attempts_head<'a>(bytes: &mut Bytes<'a>) -> Option<AttemptsHead<'a>> {
    let state = State::from_index(usize::from(bytes.byte()?))?;
    let flags = bytes.byte()?;
    let start = u32::try_from(bytes.varint()?).ok()?;
    // The turn is there for whoever repairs an archive by hand; the frame that ends a turn is what counts.
    bytes.varint()?;
    let [admitted, started, finished] = [bytes.time()?, bytes.time()?, bytes.time()?];
    let (outcome, queue) = (bytes.text()?, bytes.text()?);
    let run = match flags & HAS_RUN != 0 {
        true => {
            Some(RunId { origin: Origin::from_random(bytes.u64()?), generation: u32::try_from(bytes.varint()?).ok()? })
        }
        false => None,
    };
    let priority = match flags & HAS_PRIORITY != 0 {
        true => Priority::new(i64::from(bytes.byte()? as i8))?,
        false => Priority::NORMAL,
    };
    let origin = Origin::from_random(bytes.u64()?);
    let count = usize::from(u16::try_from(bytes.varint()?).ok()?);
    let mut offset = 0u64;
    let mut offsets = Vec::with_capacity(count);
    for _ in 0..count {
        offset = offset.checked_add(bytes.varint()?)?;
        offsets.push(offset);
    }
    Some(AttemptsHead {
        flags,
        state,
        start,
        admitted,
        started,
        finished,
        outcome,
        queue,
        run,
        priority,
        origin,
        offsets,
    })
}

/// A position in bytes that are read front to back.
pub(super) struct Bytes<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Bytes<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take(4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take(8).and_then(|eight| eight.try_into().ok()).map(u64::from_le_bytes)
    }

    pub(super) fn time(&mut self) -> Option<Time> {
        self.u64().map(|bits| Time(bits as i64))
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        read_varint(self.bytes, &mut self.at).ok()
    }

    fn slice(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        self.slice().and_then(|text| std::str::from_utf8(text).ok())
    }

    fn stream(&mut self) -> Option<StreamBytes<'a>> {
        Some(StreamBytes { total: self.varint()?, file: self.text()?, head: self.slice()? })
    }

    fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }
}
