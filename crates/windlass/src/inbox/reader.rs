//! Reads the files of an inbox in rotation and turns them into lots.
//!
//! It finds files (`look`, in `adopt`), reads them (`round`), and when all are read it judges tails, rotates what is
//! large and removes what is done (`tidy`). Each answers a failure of one file with a report and goes on with the
//! others; a failed sync goes up and ends the process.

use super::disk::{Disk, OpenFile};
use super::files;
use super::frame::Reason;
use super::gather::Gatherer;
use super::ingest::{Delivered, IngestOptions, LOTS_UNDER_WAY, trouble};
use super::quarantine::{Damage, Quarantine};
use super::scan::{End, Found, Scan};
use super::source::Source;
use crate::error::{Failure, Kind};
use crate::sabotage::{self, Sabotage};
use crate::store::{Cursor, Lot};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use windlass_core::job::Origin;

mod adopt;

/// A file is rotated once it has this many bytes.
const ROTATE_AT: u64 = 64 << 20;
/// Bytes of one lot, and of one that spreads over very many queues.
pub(super) const LOT_BYTES: usize = 2 << 20;
const WIDE_LOT_BYTES: usize = 7 << 20;
const WIDE: usize = 512;
/// Files that are open at once; the others wait until some are done.
const SOURCES_MAX: usize = 512;

/// What came of a round over all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Something was read: there may be more.
    Read,
    /// Too many lots are under way.
    Blocked,
    /// A lot is under way, what is being appended does not make another full one yet, and nobody waits for it.
    Gathers,
    AtEnd,
}

/// Somebody who waits until what was in the inbox is committed.
#[derive(Debug)]
struct Waiter {
    number: u64,
    /// The sizes at the time of asking; not known yet while files wait to be opened.
    targets: Option<Vec<(u64, u64)>>,
    /// The lot after whose commit the answer is given.
    after: Option<u64>,
}

/// Reads an inbox. Its owner calls `step` whenever something may have changed, and says what was committed.
pub struct Reader<D: Disk> {
    disk: D,
    inbox: PathBuf,
    deliver: Box<dyn Fn(Delivered) + Send>,
    quarantine: Quarantine<D::File>,
    /// By inode, which cannot be reused while we have the file open.
    sources: BTreeMap<u64, Source<D::File>>,
    refused: BTreeSet<u64>,
    unopened: usize,
    cursors: BTreeMap<Origin, Cursor>,
    gatherer: Gatherer,
    buffer: Vec<u8>,
    lot: Lot,
    lot_bytes: usize,
    lot_sources: Vec<u64>,
    wide: bool,
    delivered: u64,
    committed: u64,
    waiters: Vec<Waiter>,
    /// The inbox was looked through before.
    looked: bool,
    /// A file that was listed had moved away before it could be taken.
    moved: bool,
    rotate_at: u64,
    directory_dirty: bool,
}

impl<D: Disk> Reader<D> {
    pub fn new(options: IngestOptions, disk: D) -> Reader<D> {
        Reader {
            disk,
            quarantine: Quarantine::new(&options.quarantine),
            inbox: options.inbox,
            deliver: options.deliver,
            sources: BTreeMap::new(),
            refused: BTreeSet::new(),
            unopened: 0,
            cursors: options.cursors.into_iter().map(|cursor| (cursor.origin, cursor)).collect(),
            gatherer: Gatherer::default(),
            buffer: Vec::new(),
            lot: Lot::default(),
            lot_bytes: 0,
            lot_sources: Vec::new(),
            wide: false,
            delivered: 0,
            committed: 0,
            waiters: Vec::new(),
            looked: false,
            moved: false,
            rotate_at: ROTATE_AT,
            directory_dirty: false,
        }
    }

    /// Rotates files already at this size.
    pub fn rotate_at(mut self, bytes: u64) -> Reader<D> {
        self.rotate_at = bytes;
        self
    }

    /// Finds files, reads each as far as one lot goes, and once all are read sees to tails, removals and waiters.
    pub fn step(&mut self) -> Result<Round, Failure> {
        self.look()?;
        let round = self.round()?;
        if round != Round::AtEnd {
            return Ok(round);
        }
        if self.tidy()? {
            return Ok(Round::Read);
        }
        self.answer_waiters();
        Ok(Round::AtEnd)
    }

    pub(super) fn inbox(&self) -> &Path {
        &self.inbox
    }

    pub(super) fn deliver(&self, delivered: Delivered) {
        (self.deliver)(delivered);
    }

    pub(super) fn quarantined(&self) -> u64 {
        self.quarantine.count()
    }

    pub(super) fn committed(&self) -> u64 {
        self.committed
    }

    pub(super) fn forget_refusals(&mut self) {
        self.refused.clear();
    }

    /// Files that failed are tried again.
    pub fn wake(&mut self) {
        self.sources.values_mut().for_each(|source| source.held = false);
    }

    /// So many lots are durable by now.
    pub fn note_commits(&mut self, committed: u64) {
        self.committed = committed;
        for source in self.sources.values_mut() {
            source.note_commits(committed);
            source.punch();
        }
    }

    /// Whether a commit leads to something: an answer, a removal, room for files.
    pub(super) fn wants_commits(&self) -> bool {
        let removable = |source: &Source<D::File>| !source.appended && source.is_under_way();
        !self.waiters.is_empty() || self.unopened > 0 || self.sources.values().any(removable)
    }

    /// Whether a file waits for its last writer to close it.
    pub(super) fn awaits_closing(&self) -> bool {
        self.sources.values().any(|source| !source.appended)
    }

    /// Somebody wants to hear when everything that is in the inbox now is committed.
    pub fn take_waiters(&mut self, numbers: Vec<u64>) {
        self.waiters.extend(numbers.into_iter().map(|number| Waiter { number, targets: None, after: None }));
    }

    /// For those who asked: how much is in each file, taken under its lock.
    fn set_targets(&mut self) {
        if self.unopened > 0 || self.waiters.iter().all(|waiter| waiter.targets.is_some()) {
            return;
        }
        let paths: Vec<(u64, PathBuf)> = self.sources.iter().map(|(i, s)| (*i, self.inbox.join(&s.name))).collect();
        let mut targets = Vec::with_capacity(paths.len());
        for (inode, path) in paths {
            // A file that went away meanwhile was done; its size is asked of our own descriptor.
            let guard = self.locked(&path).unwrap_or(None);
            let size = self.sources.get(&inode).and_then(|source| source.size().ok());
            drop(guard);
            targets.extend(size.map(|size| (inode, size)));
        }
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.targets.is_none()) {
            waiter.targets = Some(targets.clone());
        }
    }

    /// Answers those whose files are read to where they were, tails judged and lots committed.
    fn answer_waiters(&mut self) {
        for waiter in &mut self.waiters {
            let Some(targets) = &waiter.targets else { continue };
            let read = |(inode, size): &(u64, u64)| self.sources.get(inode).is_none_or(|s| s.seen >= *size);
            if waiter.after.is_none() && self.lot_sources.is_empty() && targets.iter().all(read) {
                waiter.after = Some(self.delivered);
            }
        }
        let committed = self.committed;
        let done = |waiter: &mut Waiter| waiter.after.is_some_and(|lot| lot <= committed);
        for waiter in self.waiters.extract_if(.., done) {
            (self.deliver)(Delivered::ReadToEnd { waiter: waiter.number });
        }
    }

    /// Reads every file once, as far as one lot goes.
    fn round(&mut self) -> Result<Round, Failure> {
        if self.delivered > self.committed && self.waiters.is_empty() && self.is_little() {
            return Ok(Round::Gathers);
        }
        let mut read = false;
        let inodes: Vec<u64> = self.sources.keys().copied().collect();
        for inode in inodes {
            if self.delivered - self.committed >= LOTS_UNDER_WAY {
                return Ok(Round::Blocked);
            }
            read |= self.read(inode, End::Open)?;
            if self.lot_bytes >= LOT_BYTES {
                self.hand_over()?;
            }
        }
        self.hand_over()?;
        Ok(if read { Round::Read } else { Round::AtEnd })
    }

    /// Whether there is something to read, but less than a full lot, and more may be appended to it.
    fn is_little(&self) -> bool {
        let readable = |source: &&Source<D::File>| !source.held && !source.appended;
        let whole = self.sources.values().filter(readable).any(|source| source.unread() > 0);
        !whole && (1..LOT_BYTES as u64).contains(&self.unread())
    }

    /// How much there is to read.
    pub(super) fn unread(&self) -> u64 {
        self.sources.values().filter(|source| !source.held).map(Source::unread).sum()
    }

    /// Reads the next stretch of one file into the lot; false when there was nothing new.
    fn read(&mut self, inode: u64, end: End) -> Result<bool, Failure> {
        let Some(source) = self.sources.get(&inode).filter(|source| !source.held) else { return Ok(false) };
        let stretch = match source.size() {
            Ok(size) if size < source.position => return self.read_again(inode).map(|()| true),
            Ok(size) if size == source.seen && end == End::Open => return Ok(false),
            Ok(_) => {
                let most = if self.wide { WIDE_LOT_BYTES } else { LOT_BYTES };
                source.read(&mut self.buffer, most).map(|()| !self.buffer.is_empty())
            }
            Err(error) => Err(error),
        };
        match stretch
            .map_err(|e| Failure::io("cannot read", &e))
            .and_then(|some| if some { self.take_in(inode, end) } else { self.forget_tail(inode) })
        {
            Ok(()) => Ok(true),
            Err(failure) => {
                self.hold(inode, &failure);
                Ok(false)
            }
        }
    }

    /// The tail that waited was taken back by its writer.
    fn forget_tail(&mut self, inode: u64) -> Result<(), Failure> {
        if let Some(source) = self.sources.get_mut(&inode) {
            source.seen = source.position;
        }
        Ok(())
    }

    fn hold(&mut self, inode: u64, failure: &Failure) {
        let Some(source) = self.sources.get_mut(&inode) else { return };
        source.held = true;
        let text = format!("{}: {failure}; it is tried again at the next wake-up", source.name);
        self.deliver(trouble(failure.kind, text));
    }

    /// Sorts the stretch in the buffer into the lot. On failure nothing of it was taken.
    fn take_in(&mut self, inode: u64, end: End) -> Result<(), Failure> {
        let Some(source) = self.sources.get_mut(&inode) else { return Ok(()) };
        let stretch = &self.buffer[..];
        let mut scan = Scan::new(stretch, source.position, source.seed, end, source.skip);
        let mut damaged = Vec::new();
        while let Some(found) = scan.next() {
            let from = found.offset();
            if let Err(reason) = self.gatherer.add(stretch, found) {
                damaged.push((from, scan.consumed() as u64 + source.position, reason));
            }
        }
        let (consumed, skip) = (scan.consumed() as u64, scan.skipping());
        let kept = keep(&mut self.quarantine, &self.disk, source, stretch, &damaged);
        self.wide = self.gatherer.spread() > WIDE;
        let before = self.lot.jobs.len();
        let seals = self.gatherer.finish(stretch, source.id, &mut self.lot.jobs);
        if let Err(failure) = kept {
            self.lot.jobs.truncate(before);
            return Err(failure);
        }
        self.lot.seals.extend(seals);
        self.lot.opens.extend(self.gatherer.take_opens());
        // While something is being passed over the cursor stays in front of it: a restart must begin there.
        let cursor = match (skip, damaged.last()) {
            (None, _) => source.position + consumed,
            (Some(_), _) if end == End::Closed => source.position + consumed,
            (Some(_), Some((from, ..))) if source.skip.is_none() || *from > source.position => *from,
            (Some(_), _) => source.cursor,
        };
        source.seen = source.position + stretch.len() as u64;
        source.position += consumed;
        source.skip = skip;
        if cursor > source.cursor {
            source.cursor = cursor;
            if self.lot_sources.last() != Some(&inode) {
                self.lot_sources.push(inode);
            }
        }
        self.lot_bytes += stretch.len();
        if !damaged.is_empty() {
            let text = format!("{}: {} damaged records were set aside", source.name, damaged.len());
            let failure = Failure::new(Kind::BadData, text).hint("see inbox.log in the quarantine directory");
            self.deliver(Delivered::Trouble(failure));
        }
        Ok(())
    }

    /// A file that is shorter than what was read of it is another file: it is read as a whole, under a new origin.
    fn read_again(&mut self, inode: u64) -> Result<(), Failure> {
        self.hand_over()?;
        let Some(source) = self.sources.remove(&inode) else { return Ok(()) };
        self.cursors.insert(source.id, Cursor { origin: source.id, offset: u64::MAX, tail: 0 });
        let name = source.name.clone();
        drop(source);
        self.adopt(&name, inode)?;
        self.sync_directory()
    }

    /// Syncs what the lot was read from and hands it over.
    fn hand_over(&mut self) -> Result<(), Failure> {
        self.quarantine.sync(&self.disk)?;
        let unsafe_file = |e: std::io::Error| Failure::io("cannot sync an inbox file", &e);
        for inode in std::mem::take(&mut self.lot_sources) {
            let Some(source) = self.sources.get_mut(&inode) else { continue };
            source.sync().map_err(unsafe_file)?;
            self.lot.cursors.push(source.as_cursor().map_err(unsafe_file)?);
            source.handed_over(self.delivered + 1);
        }
        self.lot_bytes = 0;
        if !self.lot.is_empty() {
            self.delivered += 1;
            let lot = std::mem::take(&mut self.lot);
            self.deliver(Delivered::Lot(lot));
        }
        Ok(())
    }

    /// When all is read: judges tails, rotates and removes. True if there is more to read now.
    fn tidy(&mut self) -> Result<bool, Failure> {
        let mut more = false;
        let inodes: Vec<u64> = self.sources.keys().copied().collect();
        for inode in inodes {
            let Some(source) = self.sources.get(&inode).filter(|source| !source.held) else { continue };
            let result = if source.has_frame_tail() {
                self.judge_tail(inode)
            } else if source.appended && source.seed.is_some() && source.seen >= self.rotate_at {
                self.rotate(inode).map_err(|e| Failure::io("cannot rotate", &e)).map(|()| false)
            } else if !source.appended && (source.is_committed() || sabotage::on(Sabotage::RemovedBeforeCommit)) {
                self.close(inode)
            } else {
                Ok(false)
            };
            match result {
                Ok(again) => more |= again,
                Err(failure) => self.hold(inode, &failure),
            }
        }
        self.sync_directory()?;
        let pending = !self.lot.is_empty() || !self.lot_sources.is_empty();
        if pending && self.delivered - self.committed < LOTS_UNDER_WAY {
            self.hand_over()?;
            more = true;
        }
        Ok(more)
    }

    /// Looks at the tail while no writer of ours can be in the middle of it.
    fn judge_tail(&mut self, inode: u64) -> Result<bool, Failure> {
        let Some(source) = self.sources.get_mut(&inode) else { return Ok(false) };
        let wrong = |e: std::io::Error| Failure::io("cannot lock", &e);
        if !source.file.try_lock().map_err(wrong)? {
            // Whoever holds it is writing, and the end of that wakes us.
            return Ok(false);
        }
        source.tail_judged = source.seen;
        let more = self.read(inode, End::Locked);
        if let Some(source) = self.sources.get(&inode) {
            source.file.unlock().map_err(wrong)?;
        }
        more
    }

    /// Moves our writers on to the next file.
    fn rotate(&mut self, inode: u64) -> std::io::Result<()> {
        let Some(mut source) = self.sources.remove(&inode) else { return Ok(()) };
        let name = source.name.clone();
        let sealed = self.set_aside(&mut source);
        self.sources.insert(inode, source);
        match sealed {
            // A writer was faster; the next look finds the new name.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            sealed => sealed?,
        }
        // Without it the next writer makes one itself.
        files::create(&self.disk, &self.inbox, &name).map_err(|failure| std::io::Error::other(failure.text))
    }

    /// Removes a sealed file that is read, committed and closed by everybody. True if there is more to read.
    fn close(&mut self, inode: u64) -> Result<bool, Failure> {
        let Some(source) = self.sources.get(&inode) else { return Ok(false) };
        if !source.file.take_lease() && !sabotage::on(Sabotage::RemovedWhileOpen) {
            return Ok(false);
        }
        let wrong = |e: std::io::Error| Failure::io("cannot remove", &e);
        let size = source.size().map_err(wrong)?;
        if size != source.seen {
            source.file.give_lease_back();
            return Ok(true);
        }
        if source.cursor < size {
            let taken = self.read(inode, End::Closed);
            if let Some(source) = self.sources.get_mut(&inode) {
                source.file.give_lease_back();
                if source.position == size && source.cursor < size {
                    source.cursor = size;
                    source.skip = None;
                    self.lot_sources.push(inode);
                }
            }
            return taken.map(|_| false);
        }
        let path = self.inbox.join(&source.name);
        if files::is_at(&self.disk, &source.file, &path).map_err(wrong)? {
            self.disk.remove(&path).map_err(wrong)?;
        }
        self.directory_dirty = true;
        self.lot.closed.push(source.id);
        self.sources.remove(&inode);
        Ok(false)
    }

    /// The second look, after the watch was armed.
    pub(super) fn is_anything_new(&mut self) -> Result<bool, Failure> {
        if self.look()? {
            return Ok(true);
        }
        // The last writer of a file may have closed it between our last try and the watch, which would never tell.
        let closed = |source: &Source<D::File>| {
            let done = !source.appended && source.is_committed();
            let closed = done && source.file.take_lease();
            if closed {
                source.file.give_lease_back();
            }
            closed
        };
        let new = |source: &Source<D::File>| source.size().is_ok_and(|size| size != source.seen) || closed(source);
        Ok(self.sources.values().any(|source| !source.held && new(source)))
    }
}

impl<D: Disk> std::fmt::Debug for Reader<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("inbox", &self.inbox).field("sources", &self.sources).finish_non_exhaustive()
    }
}

/// Copies damaged stretches to the quarantine: offset from, offset to, reason.
fn keep<D: Disk>(
    quarantine: &mut Quarantine<D::File>,
    disk: &D,
    source: &Source<D::File>,
    stretch: &[u8],
    damaged: &[(u64, u64, Reason)],
) -> Result<(), Failure> {
    for (from, to, reason) in damaged {
        let bytes = &stretch[(from - source.position) as usize..(to - source.position) as usize];
        let damage = Damage { file: &source.name, origin: source.id, offset: *from, reason: *reason, bytes };
        quarantine.keep(disk, damage)?;
    }
    Ok(())
}

impl Found<'_> {
    /// Where it begins in its file.
    fn offset(&self) -> u64 {
        match self {
            Found::Line { offset, .. } | Found::Framed { offset, .. } | Found::Bad { offset, .. } => *offset,
        }
    }
}
