//! Finds archived attempts: by id, by a filter newest first, or all of them in order.
//!
//! It reads whole frames only, so it may read while the archiver writes and from another process. It holds no
//! state between questions and no more than one segment's index and one frame in memory. It must not write.

use super::frame::{self, Attempts, Frame, HEAD};
use super::index::{Index, IndexEntry, Stored, Summary};
use super::output::{Unrolled, unroll};
use super::record::{AttemptRecord, Extent, Kept};
use super::segment::{self, Header, Walk, segment_path};
use crate::error::{Failure, Kind};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use windlass_core::job::{JobId, RunId};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// So much of data and output stands in a listing.
const LISTED_BYTES: usize = 200;
/// The ids of most frames lie within this many bytes of their beginning.
const PEEK: usize = 8 << 10;
/// A replay decodes so many bytes of frames at a time.
const REPLAY: u64 = 512 << 10;

/// A place in the archive: everything before it is older than everything behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    segment: u32,
    at: u64,
    /// In the frame that begins there, the attempts below this.
    below: usize,
}

impl Place {
    fn before_frame_end(segment: u32, at: u64) -> Place {
        Place { segment, at, below: usize::MAX }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.segment, self.at, self.below)
    }
}

impl FromStr for Place {
    type Err = Failure;
    fn from_str(text: &str) -> Result<Place, Failure> {
        let bad = || Failure::new(Kind::Usage, format!("{text:?} is no place in the archive"));
        let mut parts = text.splitn(3, '.');
        let mut part = || parts.next().ok_or_else(bad);
        Ok(Place {
            segment: part()?.parse().map_err(|_| bad())?,
            at: part()?.parse().map_err(|_| bad())?,
            below: part()?.parse().map_err(|_| bad())?,
        })
    }
}

/// Which attempts a listing wants; empty lists mean all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFilter {
    /// Names; there may be very many.
    pub queues: HashSet<String>,
    pub states: Vec<State>,
    pub run: Option<RunId>,
    /// Finished at or after this.
    pub since: Option<Time>,
    /// Finished before this.
    pub until: Option<Time>,
    pub limit: usize,
    /// Only what is before this place, at which an earlier listing stopped.
    pub before: Option<Place>,
    /// The most bytes of frames and indexes to read; what is older is then left out, and said so.
    pub most_bytes: u64,
}

impl Default for ListFilter {
    fn default() -> ListFilter {
        ListFilter {
            queues: HashSet::new(),
            states: Vec::new(),
            run: None,
            since: None,
            until: None,
            limit: 100,
            before: None,
            most_bytes: 256 << 20,
        }
    }
}

impl ListFilter {
    fn wants_queue(&self, name: &str) -> bool {
        self.queues.is_empty() || self.queues.contains(name)
    }

    fn wants_time(&self, finished: Time) -> bool {
        self.since.is_none_or(|since| since <= finished) && self.until.is_none_or(|until| finished < until)
    }

    fn wants_state(&self, state: State) -> bool {
        self.states.is_empty() || self.states.contains(&state)
    }

    /// False where the covered part of a segment certainly has nothing that is wanted.
    fn may_want(&self, summary: &Summary) -> bool {
        self.since.is_none_or(|since| since <= summary.newest)
            && self.until.is_none_or(|until| summary.oldest < until)
            && self.run.is_none_or(|run| summary.runs.contains(&run))
            && State::ALL.iter().any(|state| summary.by_state[state.index()] > 0 && self.wants_state(*state))
            && summary.queues.iter().any(|queue| self.wants_queue(&queue.name))
    }
}

/// What a listing found, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub attempts: Vec<AttemptRecord>,
    /// False where the search ended at its limit of work and older attempts were not looked at.
    pub complete: bool,
    /// Where older attempts begin, if there may be any.
    pub next: Option<Place>,
}

/// Reads an archive directory.
#[derive(Clone, Debug)]
pub struct ArchiveReader {
    dir: PathBuf,
}

impl ArchiveReader {
    /// An archive that is not there yet is empty.
    pub fn open(dir: impl Into<PathBuf>) -> ArchiveReader {
        ArchiveReader { dir: dir.into() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// All archived attempts of a job, oldest first.
    pub fn find(&self, id: JobId) -> Result<Vec<AttemptRecord>, Failure> {
        let mut found = Vec::new();
        for number in segment::numbers(&self.dir)? {
            let Some(segment) = Segment::open(&self.dir, number)? else { continue };
            if segment.is_covered() && !segment.stored.as_ref().is_some_and(|stored| stored.summary.may_hold(id)) {
                continue;
            }
            segment.find(id, &mut found).map_err(|e| cannot_read(number, &e))?;
        }
        Ok(found)
    }

    /// The outcome's word of the last archived attempt of each of these jobs, as far as it knows them; the ids are in
    /// order.
    pub fn last_outcomes(&self, ids: &[JobId]) -> Result<HashMap<JobId, String>, Failure> {
        let mut found = HashMap::new();
        for number in segment::numbers(&self.dir)? {
            let Some(segment) = Segment::open(&self.dir, number)? else { continue };
            let may_hold = |stored: &Stored| ids.iter().any(|id| stored.summary.may_hold(*id));
            if segment.is_covered() && !segment.stored.as_ref().is_some_and(may_hold) {
                continue;
            }
            segment.outcomes(ids, &mut found).map_err(|e| cannot_read(number, &e))?;
        }
        Ok(found)
    }

    /// Attempts that match, newest first, without more of data and output than fits in a line.
    pub fn list(&self, filter: &ListFilter) -> Result<Listing, Failure> {
        let mut listing = Listing { complete: true, ..Listing::default() };
        let mut left = filter.most_bytes;
        let reached = |number: &u32| filter.before.is_none_or(|before| *number <= before.segment);
        for number in segment::numbers(&self.dir)?.into_iter().rev().filter(reached) {
            if listing.attempts.len() >= filter.limit {
                listing.next = Some(Place::before_frame_end(number, u64::MAX));
                break;
            }
            let Some(segment) = Segment::open(&self.dir, number)? else { continue };
            if segment.is_covered() && !segment.stored.as_ref().is_some_and(|s| filter.may_want(&s.summary)) {
                continue;
            }
            segment.list(number, filter, &mut listing, &mut left).map_err(|e| cannot_read(number, &e))?;
            if listing.next.is_some() {
                break;
            }
        }
        Ok(listing)
    }

    /// Everything that finished at or after `since`, in the order in which it was archived.
    pub fn replay(&self, since: Option<Time>) -> Result<Replay, Failure> {
        let numbers = segment::numbers(&self.dir)?.into();
        Ok(Replay { dir: self.dir.clone(), since, numbers, segment: None, at: 0, ready: VecDeque::new() })
    }
}

/// The whole of an output stream as far as it is kept; a file that retention removed is all missing.
pub fn output(output_dir: &Path, stream: &Kept) -> Result<Unrolled, Failure> {
    let Some(name) = &stream.file else {
        let missing = stream.total.saturating_sub(stream.head.len() as u64);
        return Ok(Unrolled { head: stream.head.clone(), missing, tail: Vec::new() });
    };
    let is_plain = Path::new(name).file_name().is_some_and(|last| last == name.as_str());
    match std::fs::read(output_dir.join(name)) {
        Ok(kept) if is_plain => Ok(unroll(kept, stream.total)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::io(format_args!("cannot read the output file {name}"), &error))
        }
        Ok(_) | Err(_) => {
            let missing = stream.total.saturating_sub(stream.head.len() as u64);
            Ok(Unrolled { head: stream.head.clone(), missing, tail: Vec::new() })
        }
    }
}

/// A segment opened for reading.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: File,
    pub(super) seed: u32,
    turn_before: u64,
    pub(super) length: u64,
    stored: Option<Stored>,
}

impl Segment {
    /// `None` where it was removed meanwhile, or neither its header nor its index can be read.
    pub(super) fn open(dir: &Path, number: u32) -> Result<Option<Segment>, Failure> {
        let file = match File::open(segment_path(dir, number)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot_read(number, &error)),
        };
        let length = file.metadata().map_err(|e| cannot_read(number, &e))?.len();
        let stored = Stored::open(dir, number).filter(|stored| stored.summary.length <= length);
        let header = Header::read(&file)?;
        let (seed, turn_before) = match (header, &stored) {
            (Some(header), _) => (header.seed, header.turn_before),
            (None, Some(stored)) => (stored.summary.seed, 0),
            (None, None) => return Ok(None),
        };
        let stored = stored.filter(|stored| stored.summary.seed == seed);
        Ok(Some(Segment { file, seed, turn_before, length, stored }))
    }

    /// False where it certainly has nothing that finished at or after this time.
    pub(super) fn may_hold_after(&self, since: Time) -> bool {
        let covered = self.stored.as_ref().filter(|_| self.is_covered());
        covered.is_none_or(|stored| since <= stored.summary.newest)
    }

    /// True where the index speaks for the whole segment.
    fn is_covered(&self) -> bool {
        self.stored.as_ref().is_some_and(|stored| stored.summary.length == self.length)
    }

    /// The index with everything in it that is in the segment now.
    fn index(&mut self) -> io::Result<Index> {
        let loaded = self.stored.take().and_then(Stored::load);
        let mut index = loaded.unwrap_or_else(|| Index::new(self.seed, self.turn_before));
        if index.summary.length < self.length {
            index.catch_up(&self.file, self.length)?;
            index.keep_unfinished();
        }
        Ok(index)
    }

    fn find(mut self, id: JobId, found: &mut Vec<AttemptRecord>) -> io::Result<()> {
        let mut index = self.index()?;
        let holds = |entry: &IndexEntry| entry.origin == id.origin && (entry.first..=entry.last).contains(&id.offset);
        index.entries.retain(holds);
        index.entries.sort_unstable_by_key(|entry| entry.at);
        for entry in &index.entries {
            if !self.peek_holds(entry, id)? {
                continue;
            }
            self.with_frame(entry.at, |attempts| {
                let wanted = |at: usize| attempts.head.offsets[at] == id.offset;
                found.extend(AttemptRecord::of_frame(attempts, wanted, Extent::Whole));
            })?;
        }
        Ok(())
    }

    fn outcomes(mut self, ids: &[JobId], found: &mut HashMap<JobId, String>) -> io::Result<()> {
        let mut index = self.index()?;
        // The first of the wanted jobs that a frame could hold, if there is one.
        let holds = |entry: &IndexEntry| {
            let first = JobId { origin: entry.origin, offset: entry.first };
            let at = ids.partition_point(|id| *id < first);
            ids.get(at).is_some_and(|id| id.origin == entry.origin && id.offset <= entry.last)
        };
        index.entries.retain(holds);
        index.entries.sort_unstable_by_key(|entry| entry.at);
        for entry in &index.entries {
            self.with_frame(entry.at, |attempts| {
                let head = &attempts.head;
                let held = head.offsets.iter().map(|offset| JobId { origin: head.origin, offset: *offset });
                let wanted = held.filter(|id| ids.binary_search(id).is_ok());
                found.extend(wanted.map(|id| (id, head.outcome.to_owned())));
            })?;
        }
        Ok(())
    }

    /// Whether the job is among a frame's, seen from its first bytes alone where they suffice.
    fn peek_holds(&self, entry: &IndexEntry, id: JobId) -> io::Result<bool> {
        if entry.count == 1 {
            return Ok(true);
        }
        let mut bytes = [0; PEEK];
        let read = self.file.read_at(&mut bytes, entry.at)?;
        let head = bytes[..read].get(HEAD..).and_then(frame::peek);
        // Bytes that do not suffice, or are damaged, are left to the checked reading.
        Ok(head.is_none_or(|head| head.offsets.binary_search(&id.offset).is_ok()))
    }

    fn list(mut self, number: u32, filter: &ListFilter, listing: &mut Listing, left: &mut u64) -> io::Result<()> {
        let before = filter.before.filter(|before| before.segment == number);
        let mut index = self.index()?;
        *left = left.saturating_sub(64 * index.entries.len() as u64);
        let summary = &index.summary;
        let wanted: Vec<bool> = summary.queues.iter().map(|queue| filter.wants_queue(&queue.name)).collect();
        index.entries.retain(|entry| {
            before.is_none_or(|before| entry.at <= before.at)
                && wanted[entry.queue as usize]
                && filter.wants_state(entry.state)
                && filter.wants_time(entry.finished)
                && filter.run.is_none_or(|run| summary.run_of(entry) == Some(run))
        });
        index.entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.at));
        for entry in &index.entries {
            let room = filter.limit.saturating_sub(listing.attempts.len());
            if room == 0 || *left == 0 {
                listing.complete = room == 0;
                listing.next = Some(Place::before_frame_end(number, entry.at));
                break;
            }
            let below = before.filter(|before| before.at == entry.at).map_or(usize::MAX, |before| before.below);
            self.with_frame(entry.at, |attempts| {
                *left = left.saturating_sub(attempts.data.len() as u64 + 512);
                let end = attempts.head.offsets.len().min(below);
                let wanted = end.saturating_sub(room)..end;
                let skipped = wanted.start;
                let records =
                    AttemptRecord::of_frame(attempts, |at| wanted.contains(&at), Extent::Beginning(LISTED_BYTES));
                listing.attempts.extend(records.into_iter().rev());
                if skipped > 0 {
                    listing.next = Some(Place { segment: number, at: entry.at, below: skipped });
                }
            })?;
            if listing.next.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Shows the frame at this place; one that is damaged is passed over.
    fn with_frame(&self, at: u64, show: impl FnOnce(&Attempts<'_>)) -> io::Result<()> {
        let payload = segment::read_frame(&self.file, self.seed, at)?;
        if let Some(Frame::Attempts(attempts)) = payload.as_deref().and_then(frame::read) {
            show(&attempts);
        }
        Ok(())
    }
}

/// Archived attempts in order, whole, one at a time; see `ArchiveReader::replay`.
#[derive(Debug)]
pub struct Replay {
    dir: PathBuf,
    since: Option<Time>,
    numbers: VecDeque<u32>,
    segment: Option<(u32, Segment)>,
    /// How far the current segment has been walked.
    at: u64,
    ready: VecDeque<AttemptRecord>,
}

impl Replay {
    /// Makes the records of the next frames ready; false at the end.
    fn advance(&mut self) -> Result<bool, Failure> {
        loop {
            let Some((number, segment)) = &self.segment else {
                let Some(number) = self.numbers.pop_front() else { return Ok(false) };
                let segment = Segment::open(&self.dir, number)?.filter(|segment| self.may_want(segment));
                self.segment = segment.map(|segment| (number, segment));
                self.at = segment::HEADER;
                continue;
            };
            let begin = self.at;
            let mut walk = Walk::new(&segment.file, segment.seed, begin, segment.length);
            let mut ended = false;
            while self.at - begin < REPLAY {
                let Some(found) = walk.next().map_err(|e| cannot_read(*number, &e))? else {
                    ended = true;
                    break;
                };
                self.at = found.end;
                let Some(Frame::Attempts(attempts)) = frame::read(walk.payload(&found)) else { continue };
                if self.since.is_none_or(|since| since <= attempts.head.finished) {
                    self.ready.extend(AttemptRecord::of_frame(&attempts, |_| true, Extent::Whole));
                }
            }
            if ended {
                self.segment = None;
            }
            if !self.ready.is_empty() {
                return Ok(true);
            }
        }
    }

    fn may_want(&self, segment: &Segment) -> bool {
        self.since.is_none_or(|since| segment.may_hold_after(since))
    }
}

impl Iterator for Replay {
    type Item = Result<AttemptRecord, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty() {
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(failure) => {
                    // After a failure there is nothing more to say.
                    self.numbers.clear();
                    self.segment = None;
                    return Some(Err(failure));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

fn cannot_read(number: u32, error: &io::Error) -> Failure {
    Failure::io(format_args!("cannot read the archive segment {}", segment::segment_name(number)), error)
}
