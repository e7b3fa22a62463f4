//! What most jobs lack: the trace they belong to, the record they are about, the job they came from, a key that makes
//! them unique, times by which they must have begun or ended, jobs that they wait for, and who is told of their ends.
//!
//! Jobs that are laid together share one `Particulars`, so that those without any pay nothing. This file owns the
//! limits and the one encoding, which the store, the inbox and the archive have in common:
//!
//! ```text
//! repeated, tags rising: u8 tag | u16 length | bytes                                             little endian
//! 1 trace parent   2 trace state   3 baggage   4 subject's type   5 subject's id   6 parent: u64 origin, u64 offset
//! 7 unique: u8 scope, u8 on conflict, key (none: the data)   8 start by: i64   9 finish by: i64   10 after: ids as 6
//! 11 notify: u8 of which ends, then of each channel u8 length, name
//! ```
//!
//! A tag that is not known is refused: a promise that is not understood cannot be kept.

use crate::job::{JobId, Origin, QUEUE_NAME_MAX};
use crate::notify::{self, Endings, Notify};
use crate::time::Time;
use std::fmt;

/// The longest text of a subject, and of a unique key.
pub const TEXT_MAX: usize = 500;
/// As the specification of trace state and of baggage has them.
pub const STATE_MAX: usize = 512;
pub const BAGGAGE_MAX: usize = 8192;
/// The most jobs that one waits for.
pub const AFTER_MAX: usize = 100;
/// The longest encoding that the limits allow.
pub const ENCODED_MAX: usize =
    3 * TAGS + 55 + STATE_MAX + BAGGAGE_MAX + 3 * TEXT_MAX + 2 + 16 * (AFTER_MAX + 1) + 16 + NOTIFY_MAX;

/// So many tags there are.
const TAGS: usize = 11;
/// The longest encoding of who is told; of a channel the beginning that all have is left out.
const NOTIFY_MAX: usize = 1 + notify::MOST * (1 + QUEUE_NAME_MAX - notify::CHANNELS.len());

/// What a job has besides its queue, data, priority, run and time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Particulars {
    pub trace: Option<Trace>,
    pub subject: Option<Subject>,
    /// The job that emitted it, or that its pusher named.
    pub parent: Option<JobId>,
    pub unique: Option<Unique>,
    /// Failed as expired where it has not begun by then.
    pub start_by: Option<Time>,
    /// Failed as expired where it has not ended by then.
    pub finish_by: Option<Time>,
    /// Scheduled until all of these have succeeded.
    pub after: Vec<JobId>,
    /// These channels are told of its end, beside those that its table names.
    pub notify: Option<Notify>,
}

/// A distributed trace, in the words of its headers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trace {
    /// `00-…-…-01`.
    pub parent: String,
    pub state: String,
    pub baggage: String,
}

/// The application's record that a job is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    pub kind: String,
    pub id: String,
}

/// One job at a time with this key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unique {
    pub scope: Scope,
    pub on_conflict: OnConflict,
    /// `None`: the data is the key.
    pub key: Option<Vec<u8>>,
}

/// How long a key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Until the job is started.
    Waiting,
    /// Until the job has ended.
    Active,
    /// Once in the run.
    Run,
}

impl Scope {
    pub const ALL: [Scope; 3] = [Scope::Waiting, Scope::Active, Scope::Run];

    pub fn word(self) -> &'static str {
        match self {
            Scope::Waiting => "waiting",
            Scope::Active => "active",
            Scope::Run => "run",
        }
    }
}

/// What becomes of a job whose key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnConflict {
    /// It is dropped, and the job that has the key is named.
    Ignore,
    /// The job that has the key is cancelled if it still waits; one that runs stays, and the new one is dropped.
    Replace,
    /// What came with it is refused as a whole.
    Reject,
}

impl OnConflict {
    pub const ALL: [OnConflict; 3] = [OnConflict::Ignore, OnConflict::Replace, OnConflict::Reject];

    pub fn word(self) -> &'static str {
        match self {
            OnConflict::Ignore => "ignore",
            OnConflict::Replace => "replace",
            OnConflict::Reject => "reject",
        }
    }
}

/// Reads one of a closed list of words.
macro_rules! from_words {
    ($type:ty, $what:literal) => {
        impl std::str::FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<$type, String> {
                <$type>::ALL.into_iter().find(|known| known.word() == text).ok_or_else(|| {
                    let words: Vec<_> = <$type>::ALL.iter().map(|known| known.word()).collect();
                    format!("expected {} ({}), got: {text}", $what, words.join(", "))
                })
            }
        }
    };
}
from_words!(Scope, "a scope");
from_words!(OnConflict, "what to do on conflict");

/// Why particulars are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadParticulars {
    TooLong {
        what: &'static str,
        length: usize,
        most: usize,
    },
    Empty {
        what: &'static str,
    },
    Control {
        what: &'static str,
    },
    TraceParent,
    /// None, or too many of them.
    Channels,
    /// Bytes that are no encoding.
    Malformed,
    /// Written by a newer program.
    Unknown {
        tag: u8,
    },
}

impl fmt::Display for BadParticulars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadParticulars::TooLong { what, length, most } => {
                write!(f, "the {what} has a length of {length}, expected at most {most}")
            }
            BadParticulars::Empty { what } => write!(f, "the {what} is empty"),
            BadParticulars::Control { what } => write!(f, "the {what} may not hold control characters"),
            BadParticulars::TraceParent => f.write_str(
                "the trace parent is none, expected VERSION-TRACE-SPAN-FLAGS with 2, 32, 16 and 2 hexadecimal digits",
            ),
            BadParticulars::Channels => write!(f, "notify: expected between 1 and {} channels", notify::MOST),
            BadParticulars::Malformed => f.write_str("the particulars of the job cannot be read"),
            BadParticulars::Unknown { tag } => {
                write!(f, "the particulars of the job have the tag {tag}, which only a newer program knows")
            }
        }
    }
}

impl std::error::Error for BadParticulars {}

impl Particulars {
    pub fn is_empty(&self) -> bool {
        *self == Particulars::default()
    }

    /// Everything that a door must refuse.
    pub fn check(&self) -> Result<(), BadParticulars> {
        if let Some(trace) = &self.trace {
            trace.check()?;
        }
        if let Some(Subject { kind, id }) = &self.subject {
            text(kind, "subject's type", TEXT_MAX)?;
            text(id, "subject's id", TEXT_MAX)?;
        }
        if let Some(Unique { key: Some(key), .. }) = &self.unique {
            within(key.len(), "unique key", TEXT_MAX)?;
            if key.is_empty() {
                return Err(BadParticulars::Empty { what: "unique key" });
            }
        }
        if self.notify.as_ref().is_some_and(|notify| !(1..=notify::MOST).contains(&notify.channels.len())) {
            return Err(BadParticulars::Channels);
        }
        within(self.after.len(), "list of jobs to wait for", AFTER_MAX)
    }

    /// Appends the encoding; what was checked is within `ENCODED_MAX`.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let mut put = |tag: u8, bytes: &[u8]| {
            into.push(tag);
            into.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
            into.extend_from_slice(bytes);
        };
        if let Some(Trace { parent, state, baggage }) = &self.trace {
            for (tag, text) in [(1, parent), (2, state), (3, baggage)].into_iter().filter(|(_, text)| !text.is_empty())
            {
                put(tag, text.as_bytes());
            }
        }
        if let Some(Subject { kind, id }) = &self.subject {
            put(4, kind.as_bytes());
            put(5, id.as_bytes());
        }
        if let Some(parent) = self.parent {
            put(6, &id_bytes(parent));
        }
        if let Some(unique) = &self.unique {
            put(7, &unique.bytes());
        }
        for (tag, time) in [(8, self.start_by), (9, self.finish_by)] {
            time.into_iter().for_each(|time| put(tag, &time.as_micros().to_le_bytes()));
        }
        if !self.after.is_empty() {
            put(10, &self.after.iter().flat_map(|id| id_bytes(*id)).collect::<Vec<_>>());
        }
        if let Some(notify) = &self.notify {
            put(11, &notify_bytes(notify));
        }
    }

    /// Reads a whole encoding, and refuses what a door would.
    pub fn decode(mut bytes: &[u8]) -> Result<Particulars, BadParticulars> {
        let mut found = Particulars::default();
        let (mut trace, mut subject) = ([const { String::new() }; 3], [const { String::new() }; 2]);
        let mut last = 0;
        while let [tag, low, high, rest @ ..] = bytes {
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let (value, rest) = rest.split_at_checked(length).ok_or(BadParticulars::Malformed)?;
            if *tag <= last {
                return Err(BadParticulars::Malformed);
            }
            (last, bytes) = (*tag, rest);
            match tag {
                1..=3 => trace[usize::from(*tag) - 1] = read_text(value)?,
                4 | 5 => subject[usize::from(*tag) - 4] = read_text(value)?,
                6 => found.parent = Some(read_id(value)?),
                7 => found.unique = Some(Unique::read(value)?),
                8 => found.start_by = Some(read_time(value)?),
                9 => found.finish_by = Some(read_time(value)?),
                10 if !length.is_multiple_of(16) => return Err(BadParticulars::Malformed),
                10 => found.after = value.chunks_exact(16).map(read_id).collect::<Result<_, _>>()?,
                11 => found.notify = Some(read_notify(value)?),
                unknown => return Err(BadParticulars::Unknown { tag: *unknown }),
            }
        }
        if !bytes.is_empty() {
            return Err(BadParticulars::Malformed);
        }
        let [parent, state, baggage] = trace;
        if !(parent.is_empty() && state.is_empty() && baggage.is_empty()) {
            found.trace = Some(Trace { parent, state, baggage });
        }
        let [kind, id] = subject;
        if !(kind.is_empty() && id.is_empty()) {
            found.subject = Some(Subject { kind, id });
        }
        found.check()?;
        Ok(found)
    }
}

impl Trace {
    /// Out of headers or variables, as their specification has it: without a sound parent there is no trace, and a
    /// state or baggage that cannot be kept is left out. Of a later version the fields that are known are taken.
    pub fn heard(parent: &str, state: &str, baggage: &str) -> Option<Trace> {
        let parent = match (parent.get(..55), parent.as_bytes().get(55)) {
            (Some(known), Some(b'-')) if !parent.starts_with("00-") => format!("00{}", &known[2..]),
            _ => parent.to_owned(),
        };
        let mut trace = Trace { parent, state: String::new(), baggage: String::new() };
        trace.check().ok()?;
        let kept = |text: &str, most| optional_text(text, "", most).is_ok();
        trace.state = if kept(state, STATE_MAX) { state.to_owned() } else { String::new() };
        trace.baggage = if kept(baggage, BAGGAGE_MAX) { baggage.to_owned() } else { String::new() };
        Some(trace)
    }

    /// What everything of one trace has in common: 32 hexadecimal digits.
    pub fn id(&self) -> &str {
        self.parent.get(3..35).unwrap_or_default()
    }

    /// The span that all spans made for the job come from: 16 hexadecimal digits.
    pub fn span(&self) -> &str {
        self.parent.get(36..52).unwrap_or_default()
    }

    /// Whether whoever began the trace chose to record it.
    pub fn is_sampled(&self) -> bool {
        let flags = self.parent.get(53..55).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        flags.is_some_and(|flags| flags & 1 == 1)
    }

    fn check(&self) -> Result<(), BadParticulars> {
        let fields: Vec<&str> = self.parent.split('-').collect();
        let hex = |field: &str| field.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let named = |field: &str| field.bytes().any(|b| b != b'0');
        let right = fields.iter().map(|field| field.len()).eq([2, 32, 16, 2])
            && fields.iter().all(|field| hex(field))
            && fields[0] != "ff"
            && named(fields[1])
            && named(fields[2]);
        if !right {
            return Err(BadParticulars::TraceParent);
        }
        optional_text(&self.state, "trace state", STATE_MAX)?;
        optional_text(&self.baggage, "baggage", BAGGAGE_MAX)
    }
}

impl Unique {
    /// A key with no bytes is refused, so that none stands for the data.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.scope as u8, self.on_conflict as u8];
        bytes.extend_from_slice(self.key.as_deref().unwrap_or_default());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Unique, BadParticulars> {
        let [scope, on_conflict, key @ ..] = bytes else { return Err(BadParticulars::Malformed) };
        let scope = Scope::ALL.get(usize::from(*scope)).copied();
        let on_conflict = OnConflict::ALL.get(usize::from(*on_conflict)).copied();
        let (Some(scope), Some(on_conflict)) = (scope, on_conflict) else { return Err(BadParticulars::Malformed) };
        Ok(Unique { scope, on_conflict, key: (!key.is_empty()).then(|| key.to_vec()) })
    }
}

fn text(text: &str, what: &'static str, most: usize) -> Result<(), BadParticulars> {
    if text.is_empty() { Err(BadParticulars::Empty { what }) } else { optional_text(text, what, most) }
}

fn optional_text(text: &str, what: &'static str, most: usize) -> Result<(), BadParticulars> {
    within(text.len(), what, most)?;
    if text.chars().any(char::is_control) { Err(BadParticulars::Control { what }) } else { Ok(()) }
}

fn within(length: usize, what: &'static str, most: usize) -> Result<(), BadParticulars> {
    if length > most { Err(BadParticulars::TooLong { what, length, most }) } else { Ok(()) }
}

fn id_bytes(id: JobId) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.origin.bits().to_le_bytes());
    bytes[8..].copy_from_slice(&id.offset.to_le_bytes());
    bytes
}

fn read_id(bytes: &[u8]) -> Result<JobId, BadParticulars> {
    let (origin, offset) = bytes.split_at_checked(8).ok_or(BadParticulars::Malformed)?;
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).map_err(|_| BadParticulars::Malformed);
    Ok(JobId { origin: Origin::from_random(number(origin)?), offset: number(offset)? })
}

fn notify_bytes(notify: &Notify) -> Vec<u8> {
    let mut bytes = vec![notify.on.bits()];
    for name in notify.names() {
        // A queue's name is shorter than this can say.
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(name.as_bytes());
    }
    bytes
}

fn read_notify(bytes: &[u8]) -> Result<Notify, BadParticulars> {
    let (bits, mut rest) = bytes.split_first().ok_or(BadParticulars::Malformed)?;
    let on = Endings::from_bits(*bits).ok_or(BadParticulars::Malformed)?;
    let mut names = Vec::new();
    while let Some((length, more)) = rest.split_first() {
        let (name, more) = more.split_at_checked(usize::from(*length)).ok_or(BadParticulars::Malformed)?;
        names.push(read_text(name)?);
        rest = more;
    }
    let read = Notify::from_words(&names, &[]).map_err(|_| BadParticulars::Malformed)?;
    Ok(Notify { on, ..read })
}

fn read_time(bytes: &[u8]) -> Result<Time, BadParticulars> {
    bytes.try_into().map(|eight| Time(i64::from_le_bytes(eight))).map_err(|_| BadParticulars::Malformed)
}

fn read_text(bytes: &[u8]) -> Result<String, BadParticulars> {
    String::from_utf8(bytes.to_vec()).map_err(|_| BadParticulars::Malformed)
}

#[cfg(test)]
mod tests;
