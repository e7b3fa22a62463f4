//! Sorts what a stretch of an inbox file holds by queue, priority, run and time, and builds the chunks.
//!
//! Notes of the jobs are gathered first and their bytes are copied once, in the order of the chunks, so a flood
//! over fifty thousand queues needs no buffer per queue. Queue names are checked here, once per name. It must not
//! do I/O.

use super::frame::{Frame, Kind, Reason};
use super::scan::Found;
use crate::store::chunk::ChunkBuilder;
use crate::store::{NewJobs, Seal};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use windlass_core::job::{DATA_MAX, Origin, Priority, QueueName, RunId};
use windlass_core::particulars::Particulars;
use windlass_core::time::Time;

/// Particulars are often a job's own: so many are remembered.
const PARTICULARS_MAX: usize = 10_000;
/// More names than this are not remembered from one stretch to the next.
const NAMES_MAX: usize = 200_000;

/// A fast hash for queue names and small keys: the inbox belongs to its owner, so nobody attacks the table.
#[derive(Default)]
struct FastHasher(u64);

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            let mut eight = [0; 8];
            eight.copy_from_slice(word);
            self.write_u64(u64::from_le_bytes(eight));
        }
        let mut last = [0; 8];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        self.write_u64(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
        self.0 = (mixed >> 64) as u64 ^ mixed as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// What sets jobs apart from each other within a queue.
type Special = (u32, Kin);

/// The same, without the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Kin {
    priority: Priority,
    run: Option<RunId>,
    not_before: Option<Time>,
    particulars: Option<Arc<Particulars>>,
}

#[derive(Debug)]
struct Group {
    queue: QueueName,
    kin: Kin,
    /// Notes of this stretch; later the place of the next one in the sorted order.
    count: u32,
}

/// Where one job's data lies: in the stretch, or behind its end in the bytes that had to be unescaped.
#[derive(Clone, Copy, Debug)]
struct Note {
    offset: u64,
    at: u32,
    length: u32,
    group: u32,
}

/// Gathers the jobs of one stretch at a time.
#[derive(Default)]
pub struct Gatherer {
    names: FastMap<Box<[u8]>, u32>,
    specials: FastMap<Special, u32>,
    /// How many groups have particulars.
    particular: usize,
    groups: Vec<Group>,
    touched: Vec<u32>,
    notes: Vec<Note>,
    unescaped: Vec<u8>,
    seals: Vec<Seal>,
    last: u32,
}

impl std::fmt::Debug for Gatherer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gatherer").field("groups", &self.groups.len()).finish_non_exhaustive()
    }
}

impl Gatherer {
    /// How many queues, priorities, runs and times this stretch has so far.
    pub fn spread(&self) -> usize {
        self.touched.len()
    }

    /// Takes in what was found in `stretch`; gives it back with a reason when it is no job.
    pub fn add(&mut self, stretch: &[u8], found: Found<'_>) -> Result<(), Reason> {
        match found {
            Found::Line { offset, not_before: None, queue, data } => {
                let group = self.plain_group(queue).ok_or(Reason::QueueName)?;
                self.note(group, offset, place(stretch, data), data.len());
            }
            Found::Line { offset, not_before, queue, data } => {
                let kin = Kin { not_before, ..Kin::default() };
                let group = self.group(queue, kin).ok_or(Reason::QueueName)?;
                self.note(group, offset, place(stretch, data), data.len());
            }
            Found::Framed { offset, frame } => self.add_frame(stretch, offset, &frame)?,
            Found::Bad { reason, .. } => return Err(reason),
        }
        Ok(())
    }

    fn add_frame(&mut self, stretch: &[u8], offset: u64, frame: &Frame<'_>) -> Result<(), Reason> {
        if frame.kind == Kind::Seal {
            let run = frame.run.ok_or(Reason::Garbage)?;
            self.seals.push(Seal { run, after: frame.seal_positions() });
            return Ok(());
        }
        let particulars = frame.particulars().ok_or(Reason::Particulars)?;
        let Frame { priority, run, not_before, .. } = *frame;
        let kin = Kin { priority, run, not_before, particulars };
        let group = self.group(frame.queue, kin).ok_or(Reason::QueueName)?;
        match (frame.kind, frame.plain_data()) {
            (Kind::Block, Some(lines)) => self.add_block(stretch, offset, group, lines)?,
            (Kind::Block, None) => return Err(Reason::Garbage),
            (_, Some(data)) if data.len() > DATA_MAX => return Err(Reason::TooLong),
            (_, Some(data)) => self.note(group, offset, place(stretch, data), data.len()),
            (_, None) => {
                let at = self.unescaped.len();
                frame.unescape_into(&mut self.unescaped);
                let length = self.unescaped.len() - at;
                if length > DATA_MAX {
                    return Err(Reason::TooLong);
                }
                self.note(group, offset, stretch.len() + at, length);
            }
        }
        Ok(())
    }

    /// The lines of a block are numbered from its offset on; its frame is longer than it has lines.
    fn add_block(&mut self, stretch: &[u8], offset: u64, group: u32, lines: &[u8]) -> Result<(), Reason> {
        let start = place(stretch, lines);
        let mut id = offset;
        let mut at = 0;
        for end in memchr::memchr_iter(b'\n', lines).chain([lines.len()]) {
            if end - at > DATA_MAX {
                return Err(Reason::TooLong);
            }
            if end > at {
                id += 1;
                self.note(group, id, start + at, end - at);
            }
            at = end + 1;
        }
        Ok(())
    }

    fn note(&mut self, group: u32, offset: u64, at: usize, length: usize) {
        let count = &mut self.groups[group as usize].count;
        if *count == 0 {
            self.touched.push(group);
        }
        *count += 1;
        self.notes.push(Note { offset, at: at as u32, length: length as u32, group });
    }

    fn plain_group(&mut self, queue: &[u8]) -> Option<u32> {
        if let Some(group) = self.groups.get(self.last as usize)
            && group.queue.as_str().as_bytes() == queue
        {
            return Some(self.last);
        }
        let group = match self.names.get(queue) {
            Some(group) => *group,
            None => {
                let name = QueueName::new(queue).ok()?;
                let group = self.new_group(name, Kin::default());
                self.names.insert(queue.into(), group);
                group
            }
        };
        self.last = group;
        Some(group)
    }

    fn group(&mut self, queue: &[u8], kin: Kin) -> Option<u32> {
        let last = self.last;
        let plain = self.plain_group(queue)?;
        if kin == Kin::default() {
            return Some(plain);
        }
        // Special groups are never `last`: a plain line is compared with its name only.
        self.last = last;
        let key = (plain, kin);
        if let Some(group) = self.specials.get(&key) {
            return Some(*group);
        }
        let name = self.groups[plain as usize].queue.clone();
        self.particular += usize::from(key.1.particulars.is_some());
        let group = self.new_group(name, key.1.clone());
        self.specials.insert(key, group);
        Some(group)
    }

    fn new_group(&mut self, queue: QueueName, kin: Kin) -> u32 {
        self.groups.push(Group { queue, kin, count: 0 });
        (self.groups.len() - 1) as u32
    }

    /// Ends the stretch: its jobs in chunks, in the order in which each group was first seen.
    pub fn finish(&mut self, stretch: &[u8], origin: Origin, into: &mut Vec<NewJobs>) -> Vec<Seal> {
        let order = self.sorted();
        let mut builder = ChunkBuilder::new(origin);
        let mut current = u32::MAX;
        for index in order {
            let note = self.notes[index as usize];
            if note.group != current || builder.is_full() {
                self.close(&mut builder, current, into);
                current = note.group;
                builder.set_particulars(self.groups[current as usize].kin.particulars.clone());
            }
            let (at, length) = (note.at as usize, note.length as usize);
            let data = match at.checked_sub(stretch.len()) {
                Some(behind) if length > 0 && behind < self.unescaped.len() => &self.unescaped[behind..behind + length],
                Some(_) => &[][..],
                None => &stretch[at..at + length],
            };
            builder.push(note.offset, data);
        }
        self.close(&mut builder, current, into);
        self.notes.clear();
        self.touched.clear();
        self.unescaped.clear();
        if self.groups.len() > NAMES_MAX || self.particular > PARTICULARS_MAX {
            self.particular = 0;
            self.groups.clear();
            self.names.clear();
            self.specials.clear();
        }
        std::mem::take(&mut self.seals)
    }

    /// The notes by group, within a group as they came: a counting sort. Leaves the counts at nought.
    fn sorted(&mut self) -> Vec<u32> {
        let mut start = 0;
        for group in &self.touched {
            let count = &mut self.groups[*group as usize].count;
            let first = start;
            start += *count;
            *count = first;
        }
        let mut order = vec![0; self.notes.len()];
        for (index, note) in self.notes.iter().enumerate() {
            let place = &mut self.groups[note.group as usize].count;
            order[*place as usize] = index as u32;
            *place += 1;
        }
        for group in &self.touched {
            self.groups[*group as usize].count = 0;
        }
        order
    }

    fn close(&self, builder: &mut ChunkBuilder, group: u32, into: &mut Vec<NewJobs>) {
        if builder.is_empty() {
            return;
        }
        let Group { queue, kin, .. } = &self.groups[group as usize];
        let Kin { priority, run, not_before, .. } = *kin;
        into.push(NewJobs { queue: queue.clone(), priority, run, not_before, jobs: Arc::new(builder.finish()) });
    }
}

/// Where a part lies within its stretch.
fn place(stretch: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - stretch.as_ptr() as usize
}
