//! The archiver's thread: frames into the open segment, a sync for many turns, then the word that they are safe.
//!
//! It syncs when nothing more waits, or after so many bytes; a channel that is never empty fills those in
//! milliseconds, so no timer is needed and an idle archiver sleeps. What finds no space waits, and is tried again.
//! Between syncs it does one small chore at a time: removing what is past its retention, after which free memory goes
//! back to the kernel, or making an index again. It owns the open segment; after a failed write or sync that was no
//! lack of space it writes nothing more.

use super::frame::{write_attempts, write_turn};
use super::index::{Index, IndexFields, Stored};
use super::retention::Sweep;
use super::segment::{self, Header, segment_name, segment_path};
use super::{ArchivedTurn, ArchiverOptions, Entry, OnArchived, Progress, Request, Told};
use super::{attempt_copy, attempt_line, attempt_span};
use crate::allocator;
use crate::clock;
use crate::data_dir::write_durably;
use crate::error::{Failure, Kind};
use crate::sabotage::{self, Sabotage};
use crate::store::MOVED;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// Frames are gathered to writes of this size.
const WRITE: usize = 1 << 20;
/// So much is written between two syncs at most.
const SYNC: u64 = 8 << 20;
/// After a write found no space the next try comes after this time.
const FULL_RETRY: Duration = Duration::from_secs(1);
/// A segment of so many frames is closed however small it is: whoever reads its index has all of it in memory.
pub(super) const FRAMES_MAX: u64 = 1 << 16;

/// The segment that grows.
struct Open {
    number: u32,
    file: File,
    /// Its length with what is still in the buffer.
    length: u64,
    /// So much of it is surely on disk.
    synced: u64,
    /// So much of it the kernel has.
    written: u64,
    /// How many frames of attempts it has.
    frames: u64,
    /// What it holds; without the frames of turns that have ended, where they are many.
    index: Index,
    buffer: Vec<u8>,
}

impl Open {
    fn new(number: u32, file: File, mut index: Index) -> Open {
        let length = index.summary.length;
        let frames = index.entries.len() as u64;
        index.keep_few();
        let buffer = Vec::with_capacity(2 * WRITE);
        Open { number, file, length, synced: length, written: length, frames, index, buffer }
    }

    fn write_entry(&mut self, turn: u64, entry: &Entry, keep_bodies: bool) -> Result<(), Failure> {
        let before = self.buffer.len();
        // Who has a job now has its data.
        let keep_bodies = keep_bodies && entry.settlement.outcome != MOVED;
        write_attempts(&mut self.buffer, self.index.summary.seed, turn, entry, keep_bodies);
        let held = &entry.settlement.held;
        let range = held.range();
        let fields = IndexFields {
            origin: held.jobs.origin(),
            first: held.jobs.id(range.start).offset,
            last: held.jobs.id(range.end - 1).offset,
            finished: entry.settlement.finished,
            state: entry.state,
            count: held.count,
        };
        self.index.add(self.length, entry.queue.as_str(), entry.run, fields);
        self.frames += 1;
        self.length += (self.buffer.len() - before) as u64;
        if self.buffer.len() < WRITE {
            return Ok(());
        }
        match self.write_out() {
            // It stays in the buffer; the sync at the end of the turn tells of it.
            Err(failure) if failure.kind == Kind::Full => Ok(()),
            other => other,
        }
    }

    fn end_turn(&mut self, turn: u64) {
        let before = self.buffer.len();
        write_turn(&mut self.buffer, self.index.summary.seed, turn, self.synced);
        self.length += (self.buffer.len() - before) as u64;
        self.index.end_turn(turn, self.length);
        self.index.keep_few();
    }

    /// Gives the buffer to the kernel, all of it or nothing.
    fn write_out(&mut self) -> Result<(), Failure> {
        if let Err(error) = self.file.write_all(&self.buffer) {
            // Half a frame in the middle would cut off what comes behind it.
            self.file.set_len(self.written).map_err(|e| cannot_write(self.number, &e))?;
            return Err(cannot_write(self.number, &error));
        }
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Owns the open segment and the chores.
pub(super) struct Writer {
    options: ArchiverOptions,
    told: Told,
    progress: Arc<Progress>,
    on_archived: OnArchived,
    open: Option<Open>,
    next_number: u32,
    /// The last turn written, synced or not.
    turn: u64,
    unsynced: u64,
    /// Bytes of memory that the unsynced turns were counted with.
    unsynced_pending: u64,
    unconfirmed: bool,
    /// Turns that no segment could be begun for, with the memory they are counted with.
    waiting: VecDeque<(ArchivedTurn, u64)>,
    /// No space was found: when to try again.
    full_until: Option<Instant>,
    sweep: Option<Sweep>,
    unindexed: VecDeque<u32>,
}

impl Writer {
    /// Finds the last whole turn and cuts off what a crash left behind it.
    pub(super) fn open(
        options: ArchiverOptions,
        told: Told,
        progress: Arc<Progress>,
        on_archived: OnArchived,
    ) -> Result<Writer, Failure> {
        for dir in [&options.dir, &options.output_dir] {
            fs::create_dir_all(dir).map_err(|e| Failure::io(format_args!("cannot make {}", dir.display()), &e))?;
        }
        let mut unindexed = VecDeque::from(segment::numbers(&options.dir)?);
        let newest = unindexed.pop_back();
        let mut writer = Writer {
            options,
            told,
            progress,
            on_archived,
            open: None,
            next_number: newest.map_or(1, |number| number + 1),
            turn: 0,
            unsynced: 0,
            unsynced_pending: 0,
            unconfirmed: false,
            waiting: VecDeque::new(),
            full_until: None,
            sweep: None,
            unindexed,
        };
        if let Some(number) = newest {
            writer.take_up(number)?;
        }
        writer.progress.last_turn.store(writer.turn, Ordering::Release);
        Ok(writer)
    }

    /// Goes on with the newest segment, or leaves it as it is and goes on behind it.
    fn take_up(&mut self, number: u32) -> Result<(), Failure> {
        let path = segment_path(&self.options.dir, number);
        let cannot = |error: &io::Error| Failure::io(format_args!("cannot take up {}", path.display()), error);
        let file = OpenOptions::new().read(true).append(true).open(&path).map_err(|e| cannot(&e))?;
        let length = file.metadata().map_err(|e| cannot(&e))?.len();
        let stored = Stored::open(&self.options.dir, number).filter(|stored| stored.summary.length <= length);
        let header = Header::read(&file)?;
        let (seed, turn_before) = match (header, &stored) {
            (Some(header), _) => (header.seed, header.turn_before),
            (None, Some(stored)) => (stored.summary.seed, 0),
            // Nothing in it can be told from noise; the segments before it say how far the archive is.
            (None, None) => return self.turn_of_older(),
        };
        let stored = stored.filter(|stored| stored.summary.seed == seed).and_then(Stored::load);
        let mut index = stored.unwrap_or_else(|| Index::new(seed, turn_before));
        let covered = index.summary.length;
        let sound = index.sound_end(&file, length).map_err(|e| cannot(&e))?;
        index.catch_up(&file, sound).map_err(|e| cannot(&e))?;
        index.drop_unfinished();
        self.turn = index.summary.last_turn;
        if index.summary.length < length {
            // What is cut off was not confirmed: a turn is whole, and all before it, when it is synced.
            file.set_len(index.summary.length).and_then(|()| file.sync_all()).map_err(|e| cannot(&e))?;
        } else if covered < length {
            // These turns are about to be taken for durable, and the writer that died may not have synced them.
            file.sync_all().map_err(|e| cannot(&e))?;
        }
        if header.is_none() || index.summary.damaged > 0 || index.summary.length >= self.options.segment_bytes {
            if covered < index.summary.length {
                index.save(&self.options.dir, number).map_err(|e| cannot(&e))?;
            }
            return Ok(());
        }
        self.open = Some(Open::new(number, file, index));
        Ok(())
    }

    /// The last turn of the segments before an unreadable one.
    fn turn_of_older(&mut self) -> Result<(), Failure> {
        for number in self.unindexed.iter().rev() {
            if let Some(index) = load_or_rebuild(&self.options, *number)? {
                self.turn = index.summary.last_turn;
                break;
            }
        }
        Ok(())
    }

    /// Works until the engine lets go, then closes the segment.
    pub(super) fn serve(mut self, requests: &Receiver<Request>) -> Result<(), Failure> {
        while let Some(request) = self.next(requests)? {
            match request {
                Request::Append { turn, bytes } => self.waiting.push_back((turn, bytes)),
                Request::Retain { now } => {
                    let open = self.open.as_ref().map(|open| &open.index.summary);
                    self.sweep = match Sweep::new(&self.options, open, now) {
                        // A shortage passes, and the next round is soon enough.
                        Err(failure) if failure.kind == Kind::Shortage => None,
                        swept => Some(swept?),
                    };
                }
            }
            self.unless_full(Writer::write_waiting)?;
            if self.unsynced >= SYNC {
                self.unless_full(Writer::sync)?;
                self.do_chore()?;
            }
        }
        // What does not fit now is in the store, and comes again with the next start.
        self.full_until = None;
        self.unless_full(|writer| writer.write_waiting().and_then(|()| writer.sync()))?;
        // A `run` that ends soon after it began must clean up too, or nobody would where no server ever stands.
        while self.sweep.as_mut().is_some_and(Sweep::step) {}
        self.unless_full(Writer::close_segment)
    }

    /// The next request; until it comes, what was written is made safe and chores are done.
    fn next(&mut self, requests: &Receiver<Request>) -> Result<Option<Request>, Failure> {
        loop {
            if let Some(until) = self.full_until {
                match requests.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(request) => return Ok(Some(request)),
                    Err(RecvTimeoutError::Disconnected) => return Ok(None),
                    Err(RecvTimeoutError::Timeout) => self.try_again()?,
                }
                continue;
            }
            match requests.try_recv() {
                Ok(request) => return Ok(Some(request)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) if self.unconfirmed => self.unless_full(Writer::sync)?,
                Err(TryRecvError::Empty) if self.do_chore()? => {}
                Err(TryRecvError::Empty) => return Ok(requests.recv().ok()),
            }
        }
    }

    /// Does something unless there was no space a moment ago; finding none is told once and is no failure.
    fn unless_full(&mut self, act: impl FnOnce(&mut Writer) -> Result<(), Failure>) -> Result<(), Failure> {
        if self.full_until.is_some() {
            return Ok(());
        }
        match act(self) {
            Err(failure) if passes(&failure) => {
                self.told.log.warn(format!("{failure}; finished attempts wait for space"));
                self.full_until = Some(Instant::now() + FULL_RETRY);
                Ok(())
            }
            other => other,
        }
    }

    fn try_again(&mut self) -> Result<(), Failure> {
        match self.write_waiting().and_then(|()| self.sync()) {
            Err(failure) if passes(&failure) => self.full_until = Some(Instant::now() + FULL_RETRY),
            Err(failure) => return Err(failure),
            Ok(()) => {
                self.full_until = None;
                self.told.log.info("there is space again: all finished attempts are archived");
            }
        }
        Ok(())
    }

    fn write_waiting(&mut self) -> Result<(), Failure> {
        while let Some((turn, bytes)) = self.waiting.pop_front() {
            if self.open.is_none() && turn.turn > self.turn {
                match self.new_segment() {
                    Ok(new) => self.open = Some(new),
                    Err(failure) => {
                        self.waiting.push_front((turn, bytes));
                        return Err(failure);
                    }
                }
            }
            self.append(&turn, bytes)?;
        }
        Ok(())
    }

    fn append(&mut self, turn: &ArchivedTurn, bytes: u64) -> Result<(), Failure> {
        self.unsynced_pending += bytes;
        self.unconfirmed = true;
        // What a crash kept the store from forgetting comes again; it is here already.
        if turn.turn <= self.turn && !sabotage::on(Sabotage::ArchivedTwice) {
            return Ok(());
        }
        attempt_line::say(&self.told.log, turn);
        attempt_span::hand_over(&self.told.spans, turn);
        attempt_copy::hand_over(&self.told.copies, turn);
        let Some(open) = &mut self.open else { unreachable!("a turn is appended to an open segment") };
        let before = open.length;
        let keep_bodies = self.options.keep_bodies;
        turn.try_each(|entry| match entry.settlement.held.count {
            0 => Ok(()),
            _ => open.write_entry(turn.turn, entry, keep_bodies),
        })?;
        open.end_turn(turn.turn);
        let (length, frames) = (open.length, open.frames);
        self.turn = turn.turn;
        self.unsynced += length - before;
        if length >= self.options.segment_bytes || frames >= FRAMES_MAX {
            self.sync()?;
            self.close_segment()?;
        }
        Ok(())
    }

    /// Makes everything written so far durable and says so.
    fn sync(&mut self) -> Result<(), Failure> {
        if self.unsynced > 0 {
            if let Some(open) = &mut self.open {
                open.write_out()?;
                if !sabotage::on(Sabotage::ForgottenBeforeSync) {
                    open.file.sync_data().map_err(|e| cannot_write(open.number, &e))?;
                }
                open.synced = open.length;
            }
            self.unsynced = 0;
        }
        if std::mem::take(&mut self.unconfirmed) {
            self.progress.last_turn.store(self.turn, Ordering::Release);
            let pending = std::mem::take(&mut self.unsynced_pending);
            self.progress.pending_bytes.fetch_sub(pending, Ordering::Relaxed);
            (self.on_archived)(self.turn);
        }
        Ok(())
    }

    /// The header is on disk under its name before a frame follows, so a damaged one was damaged later.
    fn new_segment(&mut self) -> Result<Open, Failure> {
        let number = self.next_number;
        let seed = getrandom::u32().map_err(|e| Failure::new(Kind::Io, format!("cannot draw a random number: {e}")))?;
        let header = Header { number, created: clock::now(), turn_before: self.turn, seed };
        let path = segment_path(&self.options.dir, number);
        let file = write_durably(&self.options.dir, &segment_name(number), &header.to_bytes())
            .and_then(|()| OpenOptions::new().read(true).append(true).open(&path))
            .map_err(|e| cannot_write(number, &e))?;
        self.next_number += 1;
        Ok(Open::new(number, file, Index::new(seed, self.turn)))
    }

    /// Its index is the one that grew with it; where that has let go of much, it is made from the segment, which was
    /// synced before and is in the kernel's cache still.
    fn close_segment(&mut self) -> Result<(), Failure> {
        match self.open.take() {
            Some(Open { number, index, length, synced, .. }) if synced == length && !index.lacks_some() => {
                unless_no_space(index.save(&self.options.dir, number), number)
            }
            Some(open) => index_closed(&self.options, open.number),
            None => Ok(()),
        }
    }

    /// Does one small piece of housekeeping; false where there is none.
    fn do_chore(&mut self) -> Result<bool, Failure> {
        if let Some(sweep) = &mut self.sweep {
            if !sweep.step() {
                self.sweep = None;
                allocator::give_back();
            }
            return Ok(true);
        }
        match self.unindexed.pop_front() {
            Some(number) => index_closed(&self.options, number).map(|()| true),
            None => Ok(false),
        }
    }
}

/// Makes the index of a closed segment where it is missing or does not fit.
pub(super) fn index_closed(options: &ArchiverOptions, number: u32) -> Result<(), Failure> {
    let length = match fs::metadata(segment_path(&options.dir, number)) {
        Ok(metadata) => metadata.len(),
        // Retention was here first.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot_write(number, &error)),
    };
    if Stored::open(&options.dir, number).is_some_and(|stored| stored.summary.length == length) {
        return Ok(());
    }
    match load_or_rebuild(options, number)? {
        Some(index) => unless_no_space(index.save(&options.dir, number), number),
        None => Ok(()),
    }
}

/// A lack of space or of descriptors ends without our doing.
fn passes(failure: &Failure) -> bool {
    matches!(failure.kind, Kind::Full | Kind::Shortage)
}

/// An index can be made again at any time: one that finds no space is left for later.
fn unless_no_space(saved: io::Result<()>, number: u32) -> Result<(), Failure> {
    match saved.map_err(|e| cannot_write(number, &e)) {
        Err(failure) if passes(&failure) => Ok(()),
        other => other,
    }
}

/// The index of a segment, from its file or from the segment; `None` where the segment cannot be read at all.
fn load_or_rebuild(options: &ArchiverOptions, number: u32) -> Result<Option<Index>, Failure> {
    let cannot = |error: &io::Error| Failure::io(format_args!("cannot read {}", segment_name(number)), error);
    let file = File::open(segment_path(&options.dir, number)).map_err(|e| cannot(&e))?;
    let length = file.metadata().map_err(|e| cannot(&e))?.len();
    let stored = Stored::open(&options.dir, number).filter(|stored| stored.summary.length <= length);
    let mut index = match (stored.and_then(Stored::load), Header::read(&file)?) {
        (Some(index), _) => index,
        (None, Some(header)) => Index::new(header.seed, header.turn_before),
        (None, None) => return Ok(None),
    };
    if index.catch_up(&file, length).map_err(|e| cannot(&e))? {
        index.close(length);
    }
    Ok(Some(index))
}

fn cannot_write(number: u32, error: &io::Error) -> Failure {
    Failure::io(format_args!("cannot write the archive segment {}", segment_name(number)), error)
        .hint("what was not archived is still in the store, and is archived after the next start")
}
