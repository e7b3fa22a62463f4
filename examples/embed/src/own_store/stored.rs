//! How values lie in the journal: little endian, field after field, texts and lists with their length in front.
//!
//! A journal is of one format, which its first bytes name; a value that changes its fields takes another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use windlass::store::chunk::Chunk;
use windlass::store::keys::Key as UniqueKey;
use windlass::store::{AttemptError, Cursor, Held, Place, QueueStats, RunInfo, Settlement, Taken};
use windlass_core::job::{Arrival, JobId, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record, RunId, RunNo};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::State;
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::particulars::Scope;
use windlass_core::run::RunCounts;
use windlass_core::run::terms::{RunTerms, Stopped};
use windlass_core::suspicion::Ruling;
use windlass_core::time::Time;

/// A value of the journal. What cannot be read is none.
pub(super) trait Stored: Sized {
    fn write(&self, to: &mut Vec<u8>);
    fn read(from: &mut Reader<'_>) -> Option<Self>;
}

/// What is left to be read, and what values refer to.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    /// Jobs as they came in; a row names the first arrival of its own.
    pub(super) chunks: &'a BTreeMap<Arrival, Arc<Chunk>>,
    /// The words of outcomes that were met; there are few.
    pub(super) words: &'a mut BTreeSet<&'static str>,
}

impl Reader<'_> {
    pub(super) fn take(&mut self, count: usize) -> Option<&[u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }
}

macro_rules! numbers {
    ($($type:ident),*) => { $(impl Stored for $type {
        fn write(&self, to: &mut Vec<u8>) {
            to.extend(self.to_le_bytes());
        }
        fn read(from: &mut Reader<'_>) -> Option<$type> {
            from.take(size_of::<$type>())?.try_into().ok().map($type::from_le_bytes)
        }
    })* };
}
numbers!(u8, u16, u32, u64, i64);

/// Types around one value.
macro_rules! around {
    ($($type:ident),*) => { $(impl Stored for $type {
        fn write(&self, to: &mut Vec<u8>) {
            self.0.write(to);
        }
        fn read(from: &mut Reader<'_>) -> Option<$type> {
            Stored::read(from).map($type)
        }
    })* };
}
around!(QueueNo, RunNo, Arrival, Time);

/// Types of which a list has every value: stored is the place in it.
macro_rules! listed {
    ($($type:ident = $all:expr),*) => { $(impl Stored for $type {
        fn write(&self, to: &mut Vec<u8>) {
            // The list has them all.
            to.push($all.iter().position(|one| one == self).map_or(u8::MAX, |at| at as u8));
        }
        fn read(from: &mut Reader<'_>) -> Option<$type> {
            $all.get(usize::from(u8::read(from)?)).copied()
        }
    })* };
}
listed!(
    bool = [false, true],
    State = State::ALL,
    Reason = Reason::ALL,
    Scope = Scope::ALL,
    Key = Key::ALL,
    Stopped = Stopped::ALL,
    LaneKind = [LaneKind::Fresh, LaneKind::Retry, LaneKind::Suspect]
);

macro_rules! structs {
    ($($type:ident { $($field:ident),* })*) => { $(impl Stored for $type {
        fn write(&self, to: &mut Vec<u8>) {
            $(self.$field.write(to);)*
        }
        fn read(from: &mut Reader<'_>) -> Option<$type> {
            $(let $field = Stored::read(from)?;)*
            Some($type { $($field),* })
        }
    })* };
}
pub(super) use structs;
structs! {
    JobId { origin, offset }
    RunId { origin, generation }
    Lane { queue, priority, kind }
    Record { starts, failures, suspicions }
    AttemptError { start, at, text }
    QueueStats { by_state, started, waited, ran }
    RunCounts { by_state, sealed, ended, dropped, stopped }
    Taken { lines, hash }
    RunInfo { no, id, name, spec, terms, counts, taken, seal_after, created, ended_at }
    Cursor { origin, offset, tail }
    Override { target, key, value, by, since, until, reason }
    UniqueKey { scope, of, hash }
    Settlement { held, verdict, outcome, started, finished }
}

/// Types that turn into others and back.
macro_rules! by_way_of {
    ($($type:ty: $other:ty, $to:expr, $from:expr;)*) => { $(impl Stored for $type {
        fn write(&self, to: &mut Vec<u8>) {
            let other: $other = $to(self);
            other.write(to);
        }
        fn read(from: &mut Reader<'_>) -> Option<$type> {
            let other: $other = Stored::read(from)?;
            $from(other)
        }
    })* };
}
by_way_of! {
    String: Vec<u8>, |text: &String| text.as_bytes().to_vec(), |bytes| String::from_utf8(bytes).ok();
    QueueName: String, |name: &QueueName| name.as_str().to_owned(), |text: String| QueueName::new(text.as_bytes()).ok();
    Target: String, |target: &Target| target.as_text().into_owned(), |text: String| Some(Target::from_text(&text));
    RunTerms: Vec<u8>, RunTerms::encode, |bytes: Vec<u8>| RunTerms::decode(&bytes);
    Origin: u64, |origin: &Origin| origin.bits(), |bits| Some(Origin::from_random(bits));
    Priority: i64, |priority: &Priority| priority.value().into(), Priority::new;
    Arc<Chunk>: Vec<u8>, |jobs: &Arc<Chunk>| jobs.as_bytes().to_vec(),
        |bytes| Chunk::from_bytes(bytes).ok().map(Arc::new);
    Duration: u64, |time: &Duration| time.as_micros() as u64, |micros| Some(Duration::from_micros(micros));
}

impl Stored for () {
    fn write(&self, _: &mut Vec<u8>) {}

    fn read(_: &mut Reader<'_>) -> Option<()> {
        Some(())
    }
}

impl<A: Stored, B: Stored> Stored for (A, B) {
    fn write(&self, to: &mut Vec<u8>) {
        self.0.write(to);
        self.1.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Option<(A, B)> {
        Some((A::read(from)?, B::read(from)?))
    }
}

impl<T: Stored> Stored for Option<T> {
    fn write(&self, to: &mut Vec<u8>) {
        self.is_some().write(to);
        self.iter().for_each(|value| value.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Option<Option<T>> {
        if bool::read(from)? { T::read(from).map(Some) } else { Some(None) }
    }
}

impl<T: Stored> Stored for Vec<T> {
    fn write(&self, to: &mut Vec<u8>) {
        (self.len() as u64).write(to);
        self.iter().for_each(|value| value.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Option<Vec<T>> {
        (0..u64::read(from)?).map(|_| T::read(from)).collect()
    }
}

impl<T: Stored + Copy + Default, const COUNT: usize> Stored for [T; COUNT] {
    fn write(&self, to: &mut Vec<u8>) {
        self.iter().for_each(|value| value.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Option<[T; COUNT]> {
        let mut values = [T::default(); COUNT];
        values.iter_mut().try_for_each(|value| T::read(from).map(|read| *value = read))?;
        Some(values)
    }
}

/// The word of an outcome.
impl Stored for &'static str {
    fn write(&self, to: &mut Vec<u8>) {
        (*self).to_owned().write(to);
    }

    fn read(from: &mut Reader<'_>) -> Option<&'static str> {
        let text = String::read(from)?;
        if let Some(known) = from.words.get(text.as_str()) {
            return Some(known);
        }
        let word: &'static str = text.leak();
        from.words.insert(word);
        Some(word)
    }
}

impl Stored for Held {
    fn write(&self, to: &mut Vec<u8>) {
        let (Place::Chunk(start) | Place::Row(start)) = self.place;
        (start, self.lane).write(to);
        ((self.run, self.record), self.admitted).write(to);
        (self.first, self.count).write(to);
    }

    fn read(from: &mut Reader<'_>) -> Option<Held> {
        let (start, lane) = Stored::read(from)?;
        let ((run, record), admitted) = Stored::read(from)?;
        let (first, count) = Stored::read(from)?;
        let jobs = Arc::clone(from.chunks.get(&start)?);
        Some(Held { place: Place::Chunk(start), lane, run, record, admitted, jobs, first, count })
    }
}

impl Stored for Verdict {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Verdict::Succeed { message } => (0u8, message.clone()).write(to),
            Verdict::Retry { at, error } => (1u8, (*at, error.clone())).write(to),
            Verdict::Fail { reason, error } => (2u8, (*reason, error.clone())).write(to),
            Verdict::Snooze { at } => (3u8, *at).write(to),
            Verdict::Return => 4u8.write(to),
            Verdict::Suspect(Ruling::Ready(kind)) => (5u8, *kind).write(to),
            Verdict::Suspect(Ruling::Wait(until)) => (6u8, *until).write(to),
            Verdict::Suspect(Ruling::Convicted) => 7u8.write(to),
            Verdict::Cancel => 8u8.write(to),
        }
    }

    fn read(from: &mut Reader<'_>) -> Option<Verdict> {
        Some(match u8::read(from)? {
            0 => Verdict::Succeed { message: Stored::read(from)? },
            1 => Verdict::Retry { at: Stored::read(from)?, error: Stored::read(from)? },
            2 => Verdict::Fail { reason: Stored::read(from)?, error: Stored::read(from)? },
            3 => Verdict::Snooze { at: Stored::read(from)? },
            4 => Verdict::Return,
            5 => Verdict::Suspect(Ruling::Ready(Stored::read(from)?)),
            6 => Verdict::Suspect(Ruling::Wait(Stored::read(from)?)),
            7 => Verdict::Suspect(Ruling::Convicted),
            8 => Verdict::Cancel,
            _ => return None,
        })
    }
}
