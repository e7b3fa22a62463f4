//! A lot: jobs that go from one server to another together, under one number, and the bytes in which they go.
//!
//! The number is drawn by the server that gives and remembered by the one that takes, in the transaction that takes the
//! jobs: so a lot arrives once, however often it is sent. Chunks go as they lie in the store. This file owns the bytes
//! (version 1, little endian) and checks everything in them; it must not know stores, sockets or policies.
//!
//! ```text
//! u8 version | u8 manner | groups | u8 nought, which no queue's name begins with
//! group: text queue | i8 priority | u8 state | [state is not ready: i64 due, or the least number for none]
//!        varint starts, failures, suspicions | varint errors, each: varint start, i64 time, text | text checkpoint
//!        varint length, a chunk
//! ```
//!
//! A text is a varint length and UTF-8. Jobs that have a past are alone in their group.

use crate::store::chunk::{BadChunk, Chunk, JOBS_MAX, read_varint, write_varint};
use crate::store::{AttemptError, Past};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use windlass_core::job::{DATA_MAX, JobId, Priority, QueueName, Record};
use windlass_core::life_cycle::State;
use windlass_core::policy::Forward;
use windlass_core::time::Time;

/// The version this program writes and the newest it reads.
pub const VERSION: u8 = 1;
/// The media type of the bytes.
pub const MEDIA: &str = "application/x-windlass-lot";
/// A claim is cut into lots of about so many bytes of data.
pub const BYTES: u64 = 4 << 20;
/// The most errors of one job.
const ERRORS_MOST: u64 = 100;
/// Stands for no time.
const NO_TIME: i64 = i64::MIN;

/// The number of a lot: drawn by chance, so that no two lots anywhere share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LotNo(pub u128);

impl fmt::Display for LotNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l-{:032x}", self.0)
    }
}

impl FromStr for LotNo {
    type Err = String;
    fn from_str(text: &str) -> Result<LotNo, String> {
        let digits = text.strip_prefix("l-").filter(|digits| digits.len() == 32);
        let number = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
        number.map(LotNo).ok_or_else(|| format!("expected a lot, l- and 32 digits, got: {text}"))
    }
}

/// Why a lot goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// The config has its queue forwarded: what comes back to a server that forwarded it goes in a circle.
    Forward,
    /// A person moved it, and may move it back.
    Move,
}

/// A lot on its way from here: what is stored of it beside the claims of its jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departing {
    pub number: LotNo,
    pub to: Forward,
    pub manner: Manner,
    /// Of the jobs that have one.
    pub pasts: HashMap<JobId, Travelled>,
    /// It was on its way when the last server ended, so the other one may have it.
    pub resumed: bool,
}

/// The past of one job, and how far it had come for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Travelled {
    pub past: Past,
    pub checkpoint: String,
}

/// Jobs that are alike, as they travel.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub queue: QueueName,
    pub priority: Priority,
    /// None for jobs that were never begun and are ready; else the chunk has one job.
    pub past: Option<Travelled>,
    pub jobs: Arc<Chunk>,
}

/// What the taking server says of a lot, and says again when it is asked again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// True: its jobs are there now, on disk. False: none of them is, and `why` says why.
    pub taken: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Jobs that were there before, and were left as they are.
    #[serde(default)]
    pub known: u64,
    /// Jobs that were not taken in, and the jobs that have their unique keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub duplicates: Vec<(String, String)>,
}

/// Why bytes are no lot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadLot {
    Version(u8),
    Malformed(&'static str),
    Chunk(BadChunk),
}

impl fmt::Display for BadLot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadLot::Version(found) => write!(f, "the lot has version {found}, this program knows up to {VERSION}"),
            BadLot::Malformed(what) => write!(f, "the lot cannot be read: {what}"),
            BadLot::Chunk(bad) => write!(f, "the lot cannot be read: {bad:?}"),
        }
    }
}

/// Begins the bytes of a lot.
pub fn begin(manner: Manner, capacity: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(capacity);
    let manner = match manner {
        Manner::Forward => 0,
        Manner::Move => 1,
    };
    bytes.extend_from_slice(&[VERSION, manner]);
    bytes
}

/// Adds a group; its chunk is given as its bytes, so that one that lies in the store goes as it is.
pub fn add(bytes: &mut Vec<u8>, queue: &QueueName, priority: Priority, past: Option<&Travelled>, chunk: &[u8]) {
    write_text(bytes, queue.as_str());
    bytes.push(priority.value() as u8);
    let state = past.map_or(State::Ready, |travelled| travelled.past.state);
    bytes.push(state.index() as u8);
    if state != State::Ready {
        let due = past.and_then(|travelled| travelled.past.due).map_or(NO_TIME, Time::as_micros);
        bytes.extend_from_slice(&due.to_le_bytes());
    }
    let record = past.map(|travelled| travelled.past.record).unwrap_or_default();
    for number in [record.starts, record.failures, record.suspicions] {
        write_varint(bytes, u64::from(number));
    }
    let errors = past.map(|travelled| &travelled.past.errors[..]).unwrap_or_default();
    write_varint(bytes, errors.len() as u64);
    for error in errors {
        write_varint(bytes, u64::from(error.start));
        bytes.extend_from_slice(&error.at.as_micros().to_le_bytes());
        write_text(bytes, &error.text);
    }
    write_text(bytes, past.map_or("", |travelled| &travelled.checkpoint));
    write_varint(bytes, chunk.len() as u64);
    bytes.extend_from_slice(chunk);
}

/// Ends the bytes of a lot.
pub fn end(bytes: &mut Vec<u8>) {
    bytes.push(0);
}

/// Reads a lot, and checks everything that a store relies on.
pub fn read(bytes: &[u8]) -> Result<(Manner, Vec<Group>), BadLot> {
    let mut reader = Reader { bytes, at: 0 };
    let version = reader.byte()?;
    if version != VERSION {
        return Err(BadLot::Version(version));
    }
    let manner = match reader.byte()? {
        0 => Manner::Forward,
        1 => Manner::Move,
        _ => return Err(BadLot::Malformed("it goes for an unknown reason")),
    };
    let mut groups = Vec::new();
    while *bytes.get(reader.at).ok_or(BadLot::Malformed("it has no end"))? != 0 {
        groups.push(reader.group()?);
    }
    match bytes.len() - reader.at {
        1 => Ok((manner, groups)),
        _ => Err(BadLot::Malformed("something stands behind its end")),
    }
}

fn write_text(bytes: &mut Vec<u8>, text: &str) {
    write_varint(bytes, text.len() as u64);
    bytes.extend_from_slice(text.as_bytes());
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], BadLot> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end)).ok_or(BadLot::Malformed("it is cut off"))?;
        self.at += count;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, BadLot> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u64, BadLot> {
        read_varint(self.bytes, &mut self.at).map_err(|_| BadLot::Malformed("a number is cut off"))
    }

    fn small(&mut self) -> Result<u32, BadLot> {
        u32::try_from(self.number()?).map_err(|_| BadLot::Malformed("a number is too large"))
    }

    fn time(&mut self) -> Result<Time, BadLot> {
        let mut eight = [0; 8];
        eight.copy_from_slice(self.take(8)?);
        Ok(Time(i64::from_le_bytes(eight)))
    }

    fn text(&mut self) -> Result<&'a str, BadLot> {
        let length = usize::try_from(self.number()?).map_err(|_| BadLot::Malformed("a text is too long"))?;
        std::str::from_utf8(self.take(length)?).map_err(|_| BadLot::Malformed("a text is not UTF-8"))
    }

    fn group(&mut self) -> Result<Group, BadLot> {
        let queue = QueueName::new(self.text()?.as_bytes()).map_err(|_| BadLot::Malformed("a queue has no name"))?;
        let priority = Priority::new(i64::from(self.byte()? as i8));
        let priority = priority.ok_or(BadLot::Malformed("a priority is out of range"))?;
        let state = match State::from_index(usize::from(self.byte()?)) {
            Some(state @ (State::Scheduled | State::Ready | State::Retrying | State::Suspended)) => state,
            Some(State::Running | State::Succeeded | State::Failed | State::Cancelled) | None => {
                return Err(BadLot::Malformed("a job is in a state in which none travels"));
            }
        };
        let due = if state == State::Ready { None } else { Some(self.time()?).filter(|due| due.0 != NO_TIME) };
        let record = Record { starts: self.small()?, failures: self.small()?, suspicions: self.small()? };
        let count = self.number()?;
        if count > ERRORS_MOST {
            return Err(BadLot::Malformed("a job has more errors than are kept"));
        }
        let mut errors = Vec::new();
        for _ in 0..count {
            let (start, at) = (self.small()?, self.time()?);
            errors.push(AttemptError { start, at, text: self.text()?.to_owned() });
        }
        let checkpoint = self.text()?.to_owned();
        let length = usize::try_from(self.number()?).map_err(|_| BadLot::Malformed("a chunk is too long"))?;
        let jobs = Chunk::from_bytes(self.take(length)?.to_vec()).map_err(BadLot::Chunk)?;
        check(&jobs)?;
        let past = Past { state, due, record, errors };
        let none = Past { state: State::Ready, due: None, record: Record::default(), errors: Vec::new() };
        let past = (past != none || !checkpoint.is_empty()).then_some(Travelled { past, checkpoint });
        if past.is_some() && jobs.len() != 1 {
            return Err(BadLot::Malformed("several jobs share a past"));
        }
        Ok(Group { queue, priority, past, jobs: Arc::new(jobs) })
    }
}

/// What a door checks before it builds a chunk.
fn check(jobs: &Chunk) -> Result<(), BadLot> {
    if jobs.is_empty() || jobs.len() > JOBS_MAX {
        return Err(BadLot::Malformed("a chunk has no jobs, or too many"));
    }
    if (1..jobs.len()).any(|index| jobs.id(index - 1) >= jobs.id(index)) {
        return Err(BadLot::Malformed("the ids of a chunk do not rise"));
    }
    if (0..jobs.len()).any(|index| jobs.data(index).len() > DATA_MAX) {
        return Err(BadLot::Malformed("a job has more data than any may have"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::chunk::ChunkBuilder;
    use windlass_core::job::Origin;

    fn chunk(jobs: u64) -> Chunk {
        let mut builder = ChunkBuilder::new(Origin::from_random(7));
        (0..jobs).for_each(|n| builder.push(n * 3, format!("job {n}").as_bytes()));
        builder.finish()
    }

    fn travelled() -> Travelled {
        let errors = vec![AttemptError { start: 1, at: Time(5), text: "exit 1".into() }];
        let record = Record { starts: 2, failures: 1, suspicions: 0 };
        let past = Past { state: State::Retrying, due: Some(Time(99)), record, errors };
        Travelled { past, checkpoint: "page 7".into() }
    }

    fn sample() -> Vec<u8> {
        let (mail, low) = (QueueName::new(b"mail").unwrap(), Priority::new(-10).unwrap());
        let mut bytes = begin(Manner::Move, 0);
        add(&mut bytes, &mail, Priority::NORMAL, None, chunk(3).as_bytes());
        add(&mut bytes, &mail, low, Some(&travelled()), chunk(1).as_bytes());
        end(&mut bytes);
        bytes
    }

    #[test]
    fn a_lot_reads_back_as_it_was_written() {
        let (manner, groups) = read(&sample()).unwrap();
        assert_eq!((manner, groups.len()), (Manner::Move, 2));
        assert_eq!((&*groups[0].jobs, &groups[0].past), (&chunk(3), &None));
        assert_eq!((groups[1].priority.value(), &groups[1].past), (-10, &Some(travelled())));
    }

    #[test]
    fn a_lot_that_is_cut_or_newer_is_refused() {
        let whole = sample();
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_err(), "cut at {end}");
        }
        assert!(read(&[&whole[..], b"x"].concat()).is_err());
        assert_eq!(read(&[2, 0]), Err(BadLot::Version(2)));
    }

    #[test]
    fn what_no_door_would_take_is_refused() {
        let mail = QueueName::new(b"mail").unwrap();
        let mut shared = begin(Manner::Move, 0);
        add(&mut shared, &mail, Priority::NORMAL, Some(&travelled()), chunk(2).as_bytes());
        let mut empty = begin(Manner::Move, 0);
        add(&mut empty, &mail, Priority::NORMAL, None, chunk(0).as_bytes());
        let mut ended = travelled();
        ended.past.state = State::Failed;
        let mut over = begin(Manner::Move, 0);
        add(&mut over, &mail, Priority::NORMAL, Some(&ended), chunk(1).as_bytes());
        for mut bytes in [shared, empty, over, vec![1, 9], Vec::new()] {
            end(&mut bytes);
            assert!(read(&bytes).is_err());
        }
    }

    #[test]
    fn numbers_read_back() {
        let number = LotNo(0x1234_5678_9abc_def0_1122_3344_5566_7788);
        assert_eq!(number.to_string().parse(), Ok(number));
        assert!("l-12".parse::<LotNo>().is_err() && "j-12".parse::<LotNo>().is_err());
    }
}
