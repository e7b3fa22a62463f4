//! The nouns of a job: its id, queue name, priority and lane, and the limits of each.
//!
//! This file owns the forms people see (`j-…`, `r-…`) and what is refused at every door. It must not know
//! where a job is stored.

use std::fmt;
use std::str::FromStr;

/// The largest data of one job, at every door.
pub const DATA_MAX: usize = 1 << 20;
/// The longest queue name in bytes.
pub const QUEUE_NAME_MAX: usize = 200;
/// The queue whose plain lines carry a time in front: `_future<TAB>TIME<TAB>QUEUE<TAB>DATA`.
pub const FUTURE: &str = "_future";

const ORIGIN_BITS: u32 = 50;
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Where ids come from: 50 random bits drawn once per inbox file, or per opening of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(u64);

impl Origin {
    /// Keeps the low 50 bits of whatever the random source gave.
    pub fn from_random(bits: u64) -> Origin {
        Origin(bits & ((1 << ORIGIN_BITS) - 1))
    }

    pub fn bits(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_base32(f, self.0, 10)
    }
}

impl FromStr for Origin {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Origin, BadId> {
        let bits = read_base32(text).filter(|bits| text.len() == 10 && *bits >> ORIGIN_BITS == 0);
        bits.map(Origin).ok_or(BadId)
    }
}

/// A job's name for ever: its origin and its place in it, so reading an inbox twice gives the same ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    pub origin: Origin,
    pub offset: u64,
}

impl JobId {
    /// Adds its text, as `Display` has it, in two parts: the first is the same for all jobs of an origin. For those who
    /// write many.
    pub fn write_origin(self, into: &mut Vec<u8>) {
        into.extend_from_slice(b"j-");
        into.extend_from_slice(base32(&mut [0; 13], self.origin.0, 10));
        into.push(b'-');
    }

    pub fn write_offset(self, into: &mut Vec<u8>) {
        into.extend_from_slice(base32(&mut [0; 13], self.offset, 1));
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "j-{}-", self.origin)?;
        write_base32(f, self.offset, 1)
    }
}

impl FromStr for JobId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<JobId, BadId> {
        let (origin, offset) = text.strip_prefix("j-").and_then(|rest| rest.split_once('-')).ok_or(BadId)?;
        Ok(JobId { origin: origin.parse()?, offset: read_base32(offset).ok_or(BadId)? })
    }
}

/// A run's name; late additions to an ended run open its next generation, printed `r-…​.2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    pub origin: Origin,
    pub generation: u32,
}

impl RunId {
    pub fn first(origin: Origin) -> RunId {
        RunId { origin, generation: 1 }
    }

    pub fn next_generation(self) -> RunId {
        RunId { generation: self.generation + 1, ..self }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r-{}", self.origin)?;
        if self.generation > 1 {
            write!(f, ".{}", self.generation)?;
        }
        Ok(())
    }
}

impl FromStr for RunId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<RunId, BadId> {
        let rest = text.strip_prefix("r-").ok_or(BadId)?;
        let (origin, generation) = match rest.split_once('.') {
            Some((origin, number)) => (origin, number.parse().ok().filter(|n| *n > 1).ok_or(BadId)?),
            None => (rest, 1),
        };
        Ok(RunId { origin: origin.parse()?, generation })
    }
}

/// A text that is not an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadId;

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an id (expected j-ORIGIN-NUMBER for a job or r-ORIGIN for a run, as they were printed)")
    }
}

impl std::error::Error for BadId {}

/// A checked queue name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Box<str>);

impl QueueName {
    pub fn new(name: &[u8]) -> Result<QueueName, BadQueueName> {
        let text = std::str::from_utf8(name).map_err(|_| BadQueueName::NotText)?;
        match name {
            [] => Err(BadQueueName::Empty),
            [b'-' | b'.', ..] => Err(BadQueueName::Leading(name[0] as char)),
            _ if name.len() > QUEUE_NAME_MAX => Err(BadQueueName::TooLong(name.len())),
            _ if text.chars().any(char::is_control) => Err(BadQueueName::Control),
            _ if text == FUTURE => Err(BadQueueName::Reserved),
            _ => Ok(QueueName(text.into())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a queue name is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadQueueName {
    Empty,
    Leading(char),
    TooLong(usize),
    Control,
    NotText,
    Reserved,
}

impl fmt::Display for BadQueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadQueueName::Empty => f.write_str("the queue name is empty"),
            BadQueueName::Leading(c) => write!(f, "a queue name may not begin with `{c}`"),
            BadQueueName::TooLong(n) => {
                write!(f, "the queue name has {n} bytes, expected at most {QUEUE_NAME_MAX}")
            }
            BadQueueName::Control => f.write_str("a queue name may not hold control characters"),
            BadQueueName::NotText => f.write_str("the queue name is not UTF-8 text"),
            BadQueueName::Reserved => {
                write!(f, "`{FUTURE}` is reserved for plain inbox lines that carry a time; use --at or --in")
            }
        }
    }
}

impl std::error::Error for BadQueueName {}

/// A job's rank: larger is sooner, strict across all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(i8);

impl Priority {
    pub const NORMAL: Priority = Priority(0);

    pub fn new(value: i64) -> Option<Priority> {
        i8::try_from(value).ok().filter(|v| (-100..=100).contains(v)).map(Priority)
    }

    pub fn value(self) -> i8 {
        self.0
    }
}

impl FromStr for Priority {
    type Err = String;
    fn from_str(text: &str) -> Result<Priority, String> {
        let value = match text {
            "high" => Some(10),
            "normal" => Some(0),
            "low" => Some(-10),
            number => number.parse().ok(),
        };
        value
            .and_then(Priority::new)
            .ok_or_else(|| format!("expected a priority between -100 and 100, or high, normal, low; got: {text}"))
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The store's number for a queue; given out when the queue's first job arrives and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueNo(pub u32);

/// The store's number for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunNo(pub u32);

/// The order in which jobs were taken in; larger is later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival(pub u64);

/// Why a ready job stands where it stands: fresh work by arrival, due retries by due time, suspects alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaneKind {
    Fresh,
    Retry,
    /// Jobs that were in flight when a server died, twice or more: started one at a time.
    Suspect,
}

/// One line of ready jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    pub queue: QueueNo,
    pub priority: Priority,
    pub kind: LaneKind,
}

/// The three numbers of a job that decide its fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How often it was started; only rises, and is the fence of the token.
    pub starts: u32,
    /// Recorded bad outcomes, compared with the policy's `attempts`.
    pub failures: u32,
    /// How often a server died, in the same boot, while it had begun.
    pub suspicions: u32,
}

/// The right to change a running job: only the current start of the current opening of the store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    pub job: JobId,
    pub epoch: u64,
    pub start: u32,
}

fn write_base32(f: &mut fmt::Formatter<'_>, value: u64, width: usize) -> fmt::Result {
    f.write_str(std::str::from_utf8(base32(&mut [0; 13], value, width)).unwrap_or_default())
}

/// The digits of a number, at least so many.
fn base32(digits: &mut [u8; 13], value: u64, width: usize) -> &[u8] {
    *digits = [b'0'; 13];
    let mut at = digits.len();
    let mut rest = value;
    while rest > 0 {
        at -= 1;
        digits[at] = ALPHABET[(rest & 31) as usize];
        rest >>= 5;
    }
    &digits[at.min(digits.len() - width)..]
}

fn read_base32(text: &str) -> Option<u64> {
    let mut value = 0u64;
    if text.is_empty() || text.len() > 13 {
        return None;
    }
    for byte in text.bytes() {
        let digit = ALPHABET.iter().position(|c| *c == byte)? as u64;
        value = value.checked_mul(32)?.checked_add(digit)?;
    }
    Some(value)
}

#[cfg(test)]
mod tests;
