//! The bodies of a flood: the bytes of its chunks, end to end in files beside the database instead of in its log.
//!
//! A body is on disk before the turn that admits its chunk is committed (`writer`), so what the database refers to is
//! there. The table `body` counts what lives in each file, in the turn's own transaction. A file goes when nothing in
//! it lives, no lot under way can refer to it, and the turn that said so is on disk. Files of which little lives are
//! emptied into the database. Read `Files` for the counting and `Bodies` for the reading. It must not know jobs.

use super::super::{Extent, StoreError};
use super::Turn;
use super::schema::{self, corrupt, failed};
use crate::store::chunk::Chunk;
use rusqlite::{Connection, params};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

mod writer;

pub(super) use writer::Thread;
use writer::is_shortage;
pub use writer::{BodyWriter, hold};

/// Files that are kept open for reading.
const OPEN_MOST: usize = 8;
/// So many bytes without a living chunk are kept however little lives beside them: files that are being worked off.
const DEAD_ALLOWED: u64 = 64 << 20;
/// A turn brings no more than this into the database.
const GATHERED_MOST: u64 = 1 << 20;
const GATHERED_CHUNKS: u32 = 64;

/// One file as the table has it: the arrivals of its chunks, its length, and the bytes of chunks that still exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BodyFile {
    first: u64,
    last: u64,
    size: u64,
    live: u64,
}

/// What lives where, as of this turn.
#[derive(Debug, Default)]
pub(super) struct Files {
    known: BTreeMap<u32, BodyFile>,
    dirty: BTreeSet<u32>,
    /// The newest file that a lot came with. Lots come in order, so none under way is in an older one.
    newest: u32,
    /// Files that this turn has forgotten.
    gone: Vec<u32>,
}

impl Files {
    pub(super) fn load(db: &Connection) -> Result<Files, StoreError> {
        let mut statement = db.prepare_cached("SELECT no, first, last, size, live FROM body").map_err(failed)?;
        let read = |r: &rusqlite::Row<'_>| {
            Ok((r.get(0)?, BodyFile { first: r.get(1)?, last: r.get(2)?, size: r.get(3)?, live: r.get(4)? }))
        };
        let known: BTreeMap<u32, BodyFile> =
            statement.query_map([], read).and_then(Iterator::collect).map_err(failed)?;
        let newest = known.keys().last().copied().unwrap_or(0);
        Ok(Files { known, newest, ..Files::default() })
    }

    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Files that something lives in.
    pub(super) fn needed(&self) -> BTreeSet<u32> {
        self.known.iter().filter(|(_, file)| file.live > 0).map(|(no, _)| *no).collect()
    }

    /// No file ever had a higher number; the row of the newest stays, so that none is given out twice.
    pub(super) fn newest(&self) -> u32 {
        self.newest
    }

    /// A chunk with these arrivals lies there from now on.
    pub(super) fn add(&mut self, extent: Extent, first: u64, count: u16) {
        if extent.file > self.newest {
            self.newest = extent.file;
            // What was only kept because a lot might have come for it can go.
            self.dirty.extend(self.known.iter().filter(|(_, file)| file.live == 0).map(|(no, _)| *no));
        }
        let file = self.known.entry(extent.file).or_insert(BodyFile { first, last: first, size: 0, live: 0 });
        file.last = file.last.max(first + u64::from(count) - 1);
        file.size = file.size.max(extent.offset + u64::from(extent.length));
        file.live += u64::from(extent.length);
        self.dirty.insert(extent.file);
    }

    /// So many bytes of a file are not needed any more.
    pub(super) fn remove(&mut self, no: u32, length: u64) -> Result<(), StoreError> {
        let file = self.known.get_mut(&no).filter(|file| file.live >= length);
        let file = file.ok_or_else(|| corrupt(format!("body file {no} holds less than its chunks")))?;
        file.live -= length;
        self.dirty.insert(no);
        Ok(())
    }

    pub(super) fn save(&mut self, db: &Connection) -> Result<(), StoreError> {
        for no in std::mem::take(&mut self.dirty) {
            let Some(file) = self.known.get(&no).copied() else { continue };
            if file.live == 0 && no < self.newest {
                let mut statement = db.prepare_cached("DELETE FROM body WHERE no = ?1").map_err(failed)?;
                statement.execute([no]).map_err(failed)?;
                self.known.remove(&no);
                self.gone.push(no);
            } else {
                let sql = "INSERT OR REPLACE INTO body (no, first, last, size, live) VALUES (?1, ?2, ?3, ?4, ?5)";
                let mut statement = db.prepare_cached(sql).map_err(failed)?;
                statement.execute(params![no, file.first, file.last, file.size, file.live]).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// The files that the committed turns have forgotten.
    pub(super) fn take_gone(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.gone)
    }

    /// The emptiest file, where the dead bytes of all are too many beside the living ones.
    fn wasteful(&self) -> Option<(u32, BodyFile)> {
        let (size, live) = self.known.values().fold((0, 0), |(size, live), file| (size + file.size, live + file.live));
        if size - live <= DEAD_ALLOWED + 3 * live {
            return None;
        }
        let worked_off = self.known.iter().filter(|(no, file)| **no < self.newest && file.live > 0);
        let emptiest = worked_off.min_by_key(|(_, file)| file.live * 1000 / file.size.max(1));
        emptiest.map(|(no, file)| (*no, *file))
    }
}

impl Turn<'_> {
    /// Brings some of what lives in the emptiest file into the database, so that a few jobs that wait for long do not
    /// hold the space of all that came with them.
    pub(super) fn gather_bodies(&mut self) -> Result<(), StoreError> {
        let Some((no, file)) = self.m.files.wasteful() else { return Ok(()) };
        let sql = "SELECT first, offset, length FROM chunk WHERE first BETWEEN ?1 AND ?2 AND segment = ?3 LIMIT ?4";
        let mut statement = self.db.prepare_cached(sql).map_err(failed)?;
        let read = |r: &rusqlite::Row<'_>| {
            Ok((r.get::<_, u64>(0)?, Extent { file: no, offset: r.get(1)?, length: r.get(2)? }))
        };
        let found = statement.query_map(params![file.first, file.last, no, GATHERED_CHUNKS], read).map_err(failed)?;
        let found: Vec<(u64, Extent)> = found.collect::<Result<_, _>>().map_err(failed)?;
        let sql = "UPDATE chunk SET bytes = ?2, segment = NULL, offset = NULL, length = NULL WHERE first = ?1";
        let mut statement = self.db.prepare_cached(sql).map_err(failed)?;
        let mut bytes = 0;
        for (first, extent) in found {
            let body = self.bodies.read(extent)?;
            let body = Chunk::from_bytes(body).map_err(|bad| corrupt(format!("chunk {first}: {bad:?}")))?;
            statement.execute(params![first, body.as_bytes()]).map_err(failed)?;
            self.m.files.remove(no, u64::from(extent.length))?;
            bytes += u64::from(extent.length);
            if bytes >= GATHERED_MOST {
                break;
            }
        }
        Ok(())
    }
}

/// Reads bodies; each connection has its own.
#[derive(Debug)]
pub(super) struct Bodies {
    dir: PathBuf,
    open: RefCell<VecDeque<(u32, File)>>,
    /// A descriptor that is given up when there is no other: what waits must be readable then too.
    spare: RefCell<Option<File>>,
}

impl Bodies {
    /// Those that belong to a database file.
    pub(super) fn beside(db: &Path) -> Bodies {
        Bodies { dir: db.with_file_name(DIRECTORY), open: RefCell::default(), spare: RefCell::default() }
    }

    /// Has a descriptor in hand from now on.
    pub(super) fn with_spare(self) -> Bodies {
        *self.spare.borrow_mut() = File::open(&self.dir).ok();
        self
    }

    /// The bytes of a chunk; whether they are right is said by their checksum.
    pub(super) fn read(&self, extent: Extent) -> Result<Vec<u8>, StoreError> {
        let path = self.dir.join(name(extent.file));
        let cannot = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => corrupt(format!("{} is missing", path.display())),
            ErrorKind::UnexpectedEof => corrupt(format!("{} is too short", path.display())),
            _ => StoreError::Io(format!("cannot read {}: {error}", path.display())),
        };
        let mut open = self.open.borrow_mut();
        let known = open.iter().position(|(no, _)| *no == extent.file);
        let entry = match known.and_then(|at| open.remove(at)) {
            Some(entry) => entry,
            None => (extent.file, self.open(&path, &mut open).map_err(cannot)?),
        };
        let mut bytes = vec![0; extent.length as usize];
        entry.1.read_exact_at(&mut bytes, extent.offset).map_err(cannot)?;
        open.push_front(entry);
        open.truncate(OPEN_MOST);
        Ok(bytes)
    }

    /// Opens a file, if need be in place of all that are open.
    fn open(&self, path: &Path, open: &mut VecDeque<(u32, File)>) -> std::io::Result<File> {
        let mut spare = self.spare.borrow_mut();
        match File::open(path) {
            Err(error) if is_shortage(&error) && (spare.is_some() || !open.is_empty()) => {
                *spare = None;
                open.clear();
                File::open(path)
            }
            other => other,
        }
    }

    /// Lets go of files that are about to be removed, which would keep their space.
    pub(super) fn close(&self, gone: &[u32]) {
        let mut open = self.open.borrow_mut();
        open.retain(|(no, _)| !gone.contains(no));
        let mut spare = self.spare.borrow_mut();
        if spare.is_none() {
            *spare = File::open(&self.dir).ok();
        }
    }
}

/// The format of the store that has the table, and checksums in rows.
pub(super) const SINCE: u32 = 3;

/// Where body files are, beside the database.
const DIRECTORY: &str = "bodies";

/// The name of a file by its number.
fn name(no: u32) -> String {
    format!("{no:08}")
}

/// Checks that every file that the database refers to is there, as long as it was.
pub(super) fn check(db: &Connection, path: &Path) -> Result<(), StoreError> {
    if schema::known_format(db)? < SINCE {
        return Ok(());
    }
    let dir = path.with_file_name(DIRECTORY);
    for (no, file) in Files::load(db)?.known.iter().filter(|(_, file)| file.live > 0) {
        let path = dir.join(name(*no));
        let length = path.metadata().map_err(|error| corrupt(format!("{}: {error}", path.display())))?.len();
        if length < file.size {
            return Err(corrupt(format!("{} has {length} bytes, expected {}", path.display(), file.size)));
        }
    }
    Ok(())
}
