//! The bytes of an inbox file, version 1: the header of our files and the framed records of our writers.
//!
//! ```text
//! file    "windlass-inbox 1 " ORIGIN " " ORIGIN " " ORIGIN " " BOOT " " o|s " " LF          64 bytes
//! frame   CAN LF STX GS 1 | u32 crc of the head | u32 crc of the rest |
//!         u8 kind | u8 flags | i8 priority | u8 queue length | u32 data length |            end of the head
//!         [u64 run, u32 generation] [i64 not before] queue [particulars] data LF             little endian
//! ```
//!
//! Particulars count as data: three bytes of seven bits with their length, then their encoding, always escaped.
//! Both checksums are seeded with the file's origin. No frame holds CAN LF behind its head: data that would is
//! escaped, so CAN LF is always the start of a record. This file must not do I/O.

use crate::sabotage::{self, Sabotage};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use windlass_core::job::{DATA_MAX, Origin, Priority, QUEUE_NAME_MAX, QueueName, RunId};
use windlass_core::particulars::{self, Particulars};
use windlass_core::time::Time;

/// The length of the header of our files.
pub const FILE_HEADER: usize = 64;
/// Where the header says whether writers may go on: the one byte that they map and look at.
pub const STATE_AT: usize = 61;
pub const OPEN: u8 = b'o';
pub const SEALED: u8 = b's';
/// Ends whatever a torn write left behind.
pub const CAN: u8 = 0x18;
/// What every record of ours begins with.
pub const FENCE: [u8; 2] = [CAN, b'\n'];
/// A frame begins with the fence, two control characters that no queue name may hold, and the version.
pub const START: [u8; 5] = [CAN, b'\n', 0x02, 0x1d, 1];
/// The checksummed head of a frame, in front of its optional fields.
pub const HEAD: usize = 21;
/// The most lines in one block.
pub const BLOCK_LINES: usize = 1000;
/// The longest frame: a block is closed at this many bytes of data, and its last line may be a whole job.
pub const FRAME_MAX: usize = HEAD + 20 + QUEUE_NAME_MAX + PARTICULARS_MAX + BLOCK_BYTES + DATA_MAX + 1;
/// The longest particulars: their length, and every byte escaped.
const PARTICULARS_MAX: usize = 3 + 2 * particulars::ENCODED_MAX;
/// A block is closed once it holds this many bytes.
pub const BLOCK_BYTES: usize = 256 << 10;

/// A line without an end is not waited for beyond this.
pub const LINE_MAX: usize = DATA_MAX + 512;

const MAGIC: &[u8; 17] = b"windlass-inbox 1 ";
const BOOT_AT: usize = 50;
/// Escapes are letters, so that no single damaged bit turns one into what it stands for.
const DLE: u8 = 0x10;
const ESCAPED_CAN: u8 = b'c';
const ESCAPED_DLE: u8 = b'd';
const HAS_RUN: u8 = 1;
const HAS_TIME: u8 = 2;
const ESCAPED: u8 = 4;
const HAS_PARTICULARS: u8 = 8;

/// What the header of one of our files says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    pub origin: Origin,
    /// 50 bits of the boot under which it was made; `None` where they are damaged.
    pub boot: Option<Origin>,
    pub sealed: bool,
}

impl FileHeader {
    pub fn encode(&self) -> [u8; FILE_HEADER] {
        let mut bytes = [b' '; FILE_HEADER];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        let origin = self.origin.to_string();
        for copy in 0..3 {
            let at = MAGIC.len() + 11 * copy;
            bytes[at..at + 10].copy_from_slice(origin.as_bytes());
        }
        if let Some(boot) = self.boot {
            bytes[BOOT_AT..BOOT_AT + 10].copy_from_slice(boot.to_string().as_bytes());
        }
        bytes[STATE_AT] = if self.sealed { SEALED } else { OPEN };
        bytes[FILE_HEADER - 1] = b'\n';
        bytes
    }

    /// Reads a header. One damaged byte must not cost every frame of the file, so the origin stands there three
    /// times and two must agree, and the magic may have one wrong byte.
    pub fn decode(bytes: &[u8]) -> Option<FileHeader> {
        let bytes = bytes.get(..FILE_HEADER)?;
        let wrong = MAGIC.iter().zip(bytes).filter(|(a, b)| a != b).count();
        if wrong > 1 {
            return None;
        }
        let field = |at: usize| std::str::from_utf8(&bytes[at..at + 10]).ok().and_then(|s| Origin::from_str(s).ok());
        let copies = [0, 1, 2].map(|copy| field(MAGIC.len() + 11 * copy));
        let origin = match copies {
            [Some(a), Some(b), _] if a == b => a,
            [Some(a), _, Some(c)] if a == c => a,
            [_, Some(b), Some(c)] if b == c => b,
            _ => return None,
        };
        Some(FileHeader { origin, boot: field(BOOT_AT), sealed: bytes[STATE_AT] != OPEN })
    }
}

/// Whether a file begins like one of ours, but of a version that this program does not know.
pub fn is_other_version(bytes: &[u8]) -> bool {
    bytes.starts_with(b"windlass-inbox ") && FileHeader::decode(bytes).is_none()
}

/// What a job, or every line of a block, is addressed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    pub queue: QueueName,
    pub priority: Priority,
    pub run: Option<RunId>,
    /// Not before that time; `None` is at once.
    pub not_before: Option<Time>,
    pub particulars: Option<Arc<Particulars>>,
}

impl Envelope {
    pub fn new(queue: QueueName) -> Envelope {
        Envelope { queue, priority: Priority::NORMAL, run: None, not_before: None, particulars: None }
    }
}

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Job = 1,
    Block = 2,
    Seal = 3,
}

/// A frame that passed its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: Kind,
    pub priority: Priority,
    pub run: Option<RunId>,
    pub not_before: Option<Time>,
    pub queue: &'a [u8],
    particulars: &'a [u8],
    data: &'a [u8],
    escaped: bool,
}

impl<'a> Frame<'a> {
    /// The data as it lies in the file, if it lies there as it was given.
    pub fn plain_data(&self) -> Option<&'a [u8]> {
        (!self.escaped).then_some(self.data)
    }

    /// Appends the data as it was given.
    pub fn unescape_into(&self, into: &mut Vec<u8>) {
        unescape(self.data, into);
    }

    /// What the job has besides; none where it cannot be understood, and the job must not be run in ignorance of it.
    pub fn particulars(&self) -> Option<Option<Arc<Particulars>>> {
        if self.particulars.is_empty() {
            return Some(None);
        }
        let mut encoded = Vec::with_capacity(self.particulars.len());
        unescape(self.particulars, &mut encoded);
        Particulars::decode(&encoded).ok().map(|particulars| Some(Arc::new(particulars)))
    }

    /// What a seal says: the positions it must not overtake.
    pub fn seal_positions(&self) -> Vec<(Origin, u64)> {
        let mut bytes = Vec::new();
        match self.plain_data() {
            Some(data) => bytes.extend_from_slice(data),
            None => self.unescape_into(&mut bytes),
        }
        let pairs = bytes.chunks_exact(16);
        pairs.map(|pair| (Origin::from_random(u64_at(pair, 0)), u64_at(pair, 8))).collect()
    }
}

/// What stands at the start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    Whole {
        frame: Frame<'a>,
        length: usize,
    },
    /// Its end is not here yet; the data begins after this many bytes.
    Short {
        head: usize,
    },
    /// The head is sound, so the length can be believed, but the rest is not what was written.
    DamagedData {
        length: usize,
    },
    DamagedHead,
}

/// Reads the frame at the start of these bytes, which begin with `START`.
pub fn decode(bytes: &[u8], seed: Origin) -> Decoded<'_> {
    if bytes.len() < HEAD {
        return Decoded::Short { head: HEAD };
    }
    let known = sum(seed, &[&bytes[13..HEAD]]) == u32_at(bytes, 5);
    let kind = match bytes[13] {
        1 => Kind::Job,
        2 => Kind::Block,
        3 => Kind::Seal,
        _ => return Decoded::DamagedHead,
    };
    let (flags, queue_length, data_length) = (bytes[14], usize::from(bytes[16]), u32_at(bytes, 17) as usize);
    let priority = Priority::new(i64::from(bytes[15] as i8));
    let (Some(priority), true) = (priority, known && flags < 16 && data_length <= DATA_LENGTH_MAX) else {
        return Decoded::DamagedHead;
    };
    let run_length = if flags & HAS_RUN != 0 { 12 } else { 0 };
    let time_length = if flags & HAS_TIME != 0 { 8 } else { 0 };
    let head = HEAD + run_length + time_length + queue_length;
    let length = head + data_length + 1;
    if bytes.len() < length {
        return Decoded::Short { head };
    }
    let right = sum(seed, &[&bytes[HEAD..length - 1]]) == u32_at(bytes, 9) || sabotage::on(Sabotage::NoChecksum);
    if !right || bytes[length - 1] != b'\n' {
        return Decoded::DamagedData { length };
    }
    let run = (run_length > 0)
        .then(|| RunId { origin: Origin::from_random(u64_at(bytes, HEAD)), generation: u32_at(bytes, HEAD + 8) });
    let not_before = (time_length > 0).then(|| Time(u64_at(bytes, HEAD + run_length) as i64));
    let queue = &bytes[head - queue_length..head];
    let (data, escaped) = (&bytes[head..length - 1], flags & ESCAPED != 0);
    let parts = if flags & HAS_PARTICULARS != 0 { split_particulars(data) } else { Some((&[][..], data)) };
    let Some((particulars, data)) = parts else { return Decoded::DamagedData { length } };
    Decoded::Whole { frame: Frame { kind, priority, run, not_before, queue, particulars, data, escaped }, length }
}

/// The longest data of a frame: every byte of a job escaped, or a block, with particulars in front.
const DATA_LENGTH_MAX: usize = PARTICULARS_MAX + 2 * DATA_MAX + BLOCK_BYTES;

/// Particulars, still escaped, and what is behind them.
fn split_particulars(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (front, rest) = data.split_at_checked(3)?;
    let length = front.iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
    rest.split_at_checked(length)
}

/// The length in bytes that are neither CAN nor LF, so that they make no fence with each other or their neighbours.
fn write_particulars(into: &mut Vec<u8>, particulars: &Particulars) {
    let mut encoded = Vec::new();
    particulars.encode(&mut encoded);
    let escaped = escape(&encoded);
    into.extend([0, 7, 14].map(|shift| (escaped.len() >> shift) as u8 | 0x80));
    into.extend_from_slice(&escaped);
}

/// The optional fields and the queue, as they stand between a frame's head and its data.
fn write_fields(into: &mut Vec<u8>, envelope: &Envelope) {
    if let Some(run) = envelope.run {
        into.extend_from_slice(&run.origin.bits().to_le_bytes());
        into.extend_from_slice(&run.generation.to_le_bytes());
    }
    if let Some(time) = envelope.not_before {
        into.extend_from_slice(&time.0.to_le_bytes());
    }
    into.extend_from_slice(envelope.queue.as_str().as_bytes());
}

/// Writes the front of a frame; the data and a line feed come behind it.
pub fn write_front(into: &mut Vec<u8>, seed: Origin, kind: Kind, envelope: &Envelope, data: &[u8], escaped: bool) {
    let start = into.len();
    into.extend_from_slice(&START);
    into.extend_from_slice(&[0; 8]);
    let flags = if envelope.run.is_some() { HAS_RUN } else { 0 }
        | if envelope.not_before.is_some() { HAS_TIME } else { 0 }
        | if escaped { ESCAPED } else { 0 }
        | if envelope.particulars.is_some() { HAS_PARTICULARS } else { 0 };
    let queue_length = envelope.queue.as_str().len() as u8;
    into.extend_from_slice(&[kind as u8, flags, envelope.priority.value() as u8, queue_length]);
    into.extend_from_slice(&[0; 4]);
    write_fields(into, envelope);
    let front = into.len();
    if let Some(particulars) = &envelope.particulars {
        write_particulars(into, particulars);
    }
    let data_length = (into.len() - front + data.len()) as u32;
    let frame = &mut into[start..];
    frame[17..HEAD].copy_from_slice(&data_length.to_le_bytes());
    let head_sum = sum(seed, &[&frame[13..HEAD]]);
    let rest_sum = sum(seed, &[&frame[HEAD..], data]);
    frame[5..9].copy_from_slice(&head_sum.to_le_bytes());
    frame[9..13].copy_from_slice(&rest_sum.to_le_bytes());
}

/// Writes one whole job.
pub fn write_job(into: &mut Vec<u8>, seed: Origin, envelope: &Envelope, data: &[u8]) {
    write_whole(into, seed, Kind::Job, envelope, data);
}

/// Writes a seal: no job of the run comes after these positions.
pub fn write_seal(into: &mut Vec<u8>, seed: Origin, run: RunId, after: &[(Origin, u64)]) {
    let mut data = Vec::with_capacity(16 * after.len());
    for (origin, offset) in after {
        data.extend_from_slice(&origin.bits().to_le_bytes());
        data.extend_from_slice(&offset.to_le_bytes());
    }
    let Ok(queue) = QueueName::new(b"seal") else { unreachable!("a fixed and fine name") };
    write_whole(into, seed, Kind::Seal, &Envelope { run: Some(run), ..Envelope::new(queue) }, &data);
}

fn write_whole(into: &mut Vec<u8>, seed: Origin, kind: Kind, envelope: &Envelope, data: &[u8]) {
    if holds_fence(data) {
        let escaped = escape(data);
        write_front(into, seed, kind, envelope, &escaped, true);
        into.extend_from_slice(&escaped);
    } else {
        write_front(into, seed, kind, envelope, data, false);
        into.extend_from_slice(data);
    }
    into.push(b'\n');
}

/// Whether these bytes, with a line feed behind them, would hold the fence.
pub fn holds_fence(data: &[u8]) -> bool {
    let fence = |at: usize| data.get(at + 1).is_none_or(|next| *next == b'\n');
    memchr::memchr_iter(CAN, data).any(fence) && !sabotage::on(Sabotage::FenceNotEscaped)
}

fn escape(data: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(data.len() + 16);
    for byte in data {
        match *byte {
            CAN => escaped.extend_from_slice(&[DLE, ESCAPED_CAN]),
            DLE => escaped.extend_from_slice(&[DLE, ESCAPED_DLE]),
            other => escaped.push(other),
        }
    }
    escaped
}

fn unescape(escaped: &[u8], into: &mut Vec<u8>) {
    let mut bytes = escaped.iter();
    while let Some(byte) = bytes.next() {
        into.push(match byte {
            &DLE if bytes.next() == Some(&ESCAPED_CAN) => CAN,
            other => *other,
        });
    }
}

fn sum(seed: Origin, parts: &[&[u8]]) -> u32 {
    let bits = seed.bits();
    let mut hasher = crc32fast::Hasher::new_with_initial(bits as u32 ^ (bits >> 18) as u32);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

/// Why bytes of an inbox are not a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The write stopped in the middle.
    Torn,
    Checksum,
    /// Bytes that make neither a line nor a frame.
    Garbage,
    NoTab,
    QueueName,
    FutureTime,
    TooLong,
    NulRun,
    /// Particulars that this program does not understand.
    Particulars,
    /// What belongs to a file of ours whose header is gone: nothing proves it.
    NoHeader,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Torn => "the write stopped in the middle",
            Reason::Checksum => "the checksum does not match",
            Reason::Garbage => "neither a line nor a record",
            Reason::NoTab => "no tab between queue and data",
            Reason::QueueName => "not a queue name",
            Reason::FutureTime => "not a time: expected RFC 3339, @SECONDS or SECONDS, then a tab and a queue",
            Reason::TooLong => "longer than a job may be",
            Reason::NulRun => "a run of NUL bytes",
            Reason::Particulars => "the job has particulars that this program does not know",
            Reason::NoHeader => "the file's header is lost, so nothing proves this record",
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
