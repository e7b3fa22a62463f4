//! The thread that writes body files and removes them.
//!
//! A large lot is written behind the end of the newest file and synced, then it goes on to the engine with the places
//! of its bodies; those that came meanwhile share the next sync. A small one goes on as it is: its bodies are rows, and
//! one sync is enough. So does one that finds no room, for then the turn itself finds none and says so. Lots stay in
//! order. It must not touch the database.

use super::super::super::{Extent, Lot, StoreError, fault};
use super::{DIRECTORY, Files, name};
use crate::sabotage::{self, Sabotage};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, pwritev};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A lot with so many bytes is a flood.
const FLOOD: usize = 512 << 10;
/// A file that is longer is followed by another one. Files go as a whole, so they must not be large.
const FILE_BYTES: u64 = 16 << 20;
/// So many orders are looked at between two syncs at most.
const TOGETHER: usize = 3;
/// The most pieces of one write.
const PIECES: usize = 1024;

type Then = Box<dyn FnOnce(Result<Lot, StoreError>) + Send>;

enum Order {
    Place(Box<Lot>, Then),
    Remove(Vec<u32>),
    End,
}

/// The way to the thread, for whoever hands lots to the engine.
#[derive(Clone, Debug)]
pub struct BodyWriter {
    orders: Sender<Order>,
    /// Lots that the thread has not handed on.
    under_way: Arc<AtomicUsize>,
}

impl BodyWriter {
    /// Brings the bodies of a large lot to disk, then hands it on; lots are handed on in the order in which they
    /// came. A failure is final. After the store's end a lot is dropped.
    pub fn place(&self, lot: Lot, then: impl FnOnce(Result<Lot, StoreError>) + Send + 'static) {
        if size(&lot) < FLOOD && self.under_way.load(Ordering::Acquire) == 0 {
            return then(Ok(lot));
        }
        self.under_way.fetch_add(1, Ordering::AcqRel);
        // The thread has ended with the store: what nobody admits is read again.
        let _ = self.orders.send(Order::Place(Box::new(lot), Box::new(then)));
    }
}

fn size(lot: &Lot) -> usize {
    lot.jobs.iter().map(|new| new.jobs.as_bytes().len()).sum()
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(in super::super) struct Thread {
    writer: BodyWriter,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    /// Removes what no row of the table refers to, and goes on behind all that is there.
    pub(in super::super) fn start(db: &Path, files: &Files) -> Result<Thread, StoreError> {
        let dir = db.with_file_name(DIRECTORY);
        let cannot = |error: io::Error| StoreError::Io(format!("cannot use {}: {error}", dir.display()));
        fs::create_dir_all(&dir).map_err(cannot)?;
        let there = numbers(&dir).map_err(cannot)?;
        let next = there.last().copied().unwrap_or(0).max(files.newest()) + 1;
        let mut writer = Writer { dir: dir.clone(), next, open: None, unsynced: Vec::new(), removable: Vec::new() };
        writer.remove(there.difference(&files.needed()).copied().collect());
        let (orders, received) = channel();
        let under_way = Arc::<AtomicUsize>::default();
        let left = Arc::clone(&under_way);
        let thread = std::thread::Builder::new().name("bodies".into()).spawn(move || writer.serve(&received, &left));
        let thread = thread.map_err(|error| StoreError::Io(format!("cannot start the bodies' thread: {error}")))?;
        Ok(Thread { writer: BodyWriter { orders, under_way }, thread: Some(thread) })
    }

    pub(in super::super) fn writer(&self) -> BodyWriter {
        self.writer.clone()
    }

    /// Removes files that nothing on disk refers to.
    pub(in super::super) fn remove(&self, gone: Vec<u32>) {
        // It lives as long as this does; what stays is removed at the next opening.
        let _ = self.writer.orders.send(Order::Remove(gone));
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Others may still have a way to it, so it is told; one that has ended needs no telling.
        let _ = self.writer.orders.send(Order::End);
        if let Some(thread) = self.thread.take() {
            // It can only have panicked, and then it has said so.
            let _ = thread.join();
        }
    }
}

/// The numbers of the files in the directory.
fn numbers(dir: &Path) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let file_name = entry?.file_name();
        let number = file_name.to_str().and_then(|text| text.parse().ok());
        found.extend(number.filter(|number| file_name.to_str() == Some(&name(*number))));
    }
    Ok(found)
}

/// The file that grows.
struct Open {
    number: u32,
    file: Arc<File>,
    length: u64,
}

struct Writer {
    dir: PathBuf,
    next: u32,
    open: Option<Open>,
    /// The files of what was written since the last sync.
    unsynced: Vec<Arc<File>>,
    /// What could not be removed because a backup is being made.
    removable: Vec<u32>,
}

impl Writer {
    fn serve(mut self, orders: &Receiver<Order>, under_way: &AtomicUsize) {
        while let Ok(order) = orders.recv() {
            let (mut lots, mut ends) = (Vec::new(), false);
            for order in std::iter::once(order).chain(orders.try_iter().take(TOGETHER - 1)) {
                match order {
                    Order::Place(mut lot, then) => lots.push((self.place(&mut lot).map(|()| *lot), then)),
                    Order::Remove(gone) => self.remove(gone),
                    Order::End => {
                        ends = true;
                        break;
                    }
                }
            }
            let synced = self.sync();
            for (placed, then) in lots {
                then(placed.and_then(|lot| synced.clone().map(|()| lot)));
                under_way.fetch_sub(1, Ordering::AcqRel);
            }
            if ends {
                return;
            }
        }
    }

    /// Brings what was written to disk.
    fn sync(&mut self) -> Result<(), StoreError> {
        let cannot = |error: io::Error| StoreError::Io(format!("cannot write to {}: {error}", self.dir.display()));
        let unsynced = std::mem::take(&mut self.unsynced);
        if sabotage::on(Sabotage::BodyNotSynced) {
            return Ok(());
        }
        unsynced.iter().try_for_each(|file| fault::sync_data(file)).map_err(cannot)
    }

    /// Writes the bodies of a large lot and notes where they are: they are there when they are synced. A lot that finds
    /// no room stays as it was.
    fn place(&mut self, lot: &mut Lot) -> Result<(), StoreError> {
        if size(lot) < FLOOD {
            return Ok(());
        }
        let dir = self.dir.display().to_string();
        let cannot = |error: io::Error| StoreError::Io(format!("cannot write to {dir}: {error}"));
        let mut open = match self.open.take().filter(|open| open.length < FILE_BYTES) {
            Some(open) => open,
            None => match self.make() {
                Ok(open) => open,
                Err(error) if is_shortage(&error) => return Ok(()),
                Err(error) => return Err(cannot(error)),
            },
        };
        if let Err(error) = write_all_at(&open.file, lot, open.length) {
            open.file.set_len(open.length).map_err(cannot)?;
            self.open = Some(open);
            return if is_shortage(&error) { Ok(()) } else { Err(cannot(error)) };
        }
        if self.unsynced.last().is_none_or(|last| !Arc::ptr_eq(last, &open.file)) {
            self.unsynced.push(Arc::clone(&open.file));
        }
        for new in &lot.jobs {
            let length = new.jobs.as_bytes().len() as u32;
            lot.bodies.push(Extent { file: open.number, offset: open.length, length });
            open.length += u64::from(length);
        }
        self.open = Some(open);
        Ok(())
    }

    /// A new file, whose name is on disk.
    fn make(&mut self) -> io::Result<Open> {
        let number = self.next;
        let path = self.dir.join(name(number));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        self.next += 1;
        File::open(&self.dir)?.sync_all()?;
        Ok(Open { number, file: Arc::new(file), length: 0 })
    }

    /// Removes files, unless a backup has the directory locked: then later.
    fn remove(&mut self, gone: Vec<u32>) {
        self.removable.extend(gone);
        let Ok(dir) = File::open(&self.dir) else { return };
        if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        for number in self.removable.drain(..) {
            // One that cannot be removed is tried again at the next opening.
            let _ = fs::remove_file(self.dir.join(name(number)));
        }
    }
}

/// Writes the bodies of a lot, one behind the other.
fn write_all_at(file: &File, lot: &Lot, mut offset: u64) -> io::Result<()> {
    let mut pieces: Vec<IoSlice<'_>> = lot.jobs.iter().map(|new| IoSlice::new(new.jobs.as_bytes())).collect();
    let mut pieces = &mut pieces[..];
    while !pieces.is_empty() {
        let some = pieces.len().min(PIECES);
        match pwritev(file, &pieces[..some], offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut pieces, written);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// No space, no descriptor: the lot can go another way.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// Keeps body files from being removed while they are copied; the lock goes with the answer.
pub fn hold(dir: &Path) -> io::Result<File> {
    let dir = File::open(dir)?;
    flock(&dir, FlockOperation::LockShared)?;
    Ok(dir)
}
