//! The file: one record for each turn, appended; read from front to end when it is opened.
//!
//! ```text
//! 8 bytes "embedjr1", then records: u64 length | u32 crc32 of the rest | u64 synced | the turn       little endian
//! ```
//!
//! `synced` is how much of the file was surely on disk when the record was written. A last record that is not whole was
//! never answered and is cut off; one that is damaged though a later one says that it was on disk is refused in words.
//! It must not know what is in a turn.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use windlass::store::StoreError;

const MAGIC: &[u8; 8] = b"embedjr1";
const HEADER: usize = 20;
/// A journal is written anew when it is so long, and so many times as long as it was then.
const LARGE: u64 = 1 << 20;
const TIMES: u64 = 4;

#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    file: File,
    length: u64,
    synced: u64,
    /// Its length when it was last written anew.
    compact: u64,
    /// Held while the store is open.
    _lock: File,
}

impl Journal {
    /// Opens it, and reads what whole turns it has.
    pub(super) fn open(dir: &Path) -> Result<(Journal, Vec<Vec<u8>>), StoreError> {
        fs::create_dir_all(dir).map_err(|e| failed("make the directory", &e))?;
        let lock = File::create(dir.join("lock")).map_err(|e| failed("make the lock", &e))?;
        lock.try_lock().map_err(|e| StoreError::Locked(format!("{}: {e}", dir.display())))?;
        let path = dir.join("journal");
        if !path.exists() {
            drop(write_new(dir, &[])?);
        }
        let bytes = fs::read(&path).map_err(|e| failed("read the journal", &e))?;
        let (records, length) = whole_records(&bytes)?;
        let file = OpenOptions::new().append(true).open(&path).map_err(|e| failed("open the journal", &e))?;
        // What is cut off was answered to nobody; what is left may be in the kernel alone.
        let settled = file.set_len(length).and_then(|()| file.sync_all());
        settled.map_err(|e| failed("cut the journal", &e))?;
        let journal = Journal { dir: dir.to_owned(), file, length, synced: length, compact: length, _lock: lock };
        Ok((journal, records))
    }

    /// Appends a turn, all of it or nothing; it survives the death of this process.
    pub(super) fn append(&mut self, turn: &[u8]) -> Result<(), StoreError> {
        let record = record(self.synced, turn);
        if let Err(error) = self.file.write_all(&record) {
            // Half a record in the middle would hide what comes behind it.
            self.file.set_len(self.length).map_err(|e| failed("take back half a turn", &e))?;
            return Err(failed("write a turn", &error));
        }
        self.length += record.len() as u64;
        Ok(())
    }

    /// After this all that was appended survives a power cut. It is not to be tried again: what the kernel could not
    /// write it may have forgotten.
    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        if self.synced < self.length {
            self.file.sync_data().map_err(|e| StoreError::Io(format!("cannot sync the journal: {e}")))?;
            self.synced = self.length;
        }
        Ok(())
    }

    pub(super) fn is_large(&self) -> bool {
        self.length > LARGE.max(TIMES * self.compact)
    }

    /// Puts one record in the place of all; a process that dies meanwhile leaves the old ones.
    pub(super) fn rewrite(&mut self, all: &[u8]) -> Result<(), StoreError> {
        self.file = write_new(&self.dir, all)?;
        self.length = (MAGIC.len() + HEADER + all.len()) as u64;
        (self.synced, self.compact) = (self.length, self.length);
        Ok(())
    }
}

fn record(synced: u64, turn: &[u8]) -> Vec<u8> {
    let mut record = (turn.len() as u64).to_le_bytes().to_vec();
    record.extend([0; 4]);
    record.extend(synced.to_le_bytes());
    record.extend(turn);
    let sum = crc32fast::hash(&record[12..]);
    record[8..12].copy_from_slice(&sum.to_le_bytes());
    record
}

fn write_new(dir: &Path, all: &[u8]) -> Result<File, StoreError> {
    let (new, path) = (dir.join("journal.new"), dir.join("journal"));
    let write = || -> io::Result<File> {
        let mut file = File::create(&new)?;
        file.write_all(MAGIC)?;
        file.write_all(&record(0, all))?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(dir)?.sync_all()?;
        OpenOptions::new().append(true).open(&path)
    };
    write().map_err(|e| failed("write the journal anew", &e))
}

/// The turns of the records that are whole, and where the last of them ends.
fn whole_records(bytes: &[u8]) -> Result<(Vec<Vec<u8>>, u64), StoreError> {
    if !bytes.starts_with(MAGIC) {
        return Err(StoreError::Corrupt("the file is no journal of this program's format".into()));
    }
    let (mut records, mut at) = (Vec::new(), MAGIC.len());
    while let Some((_, turn)) = whole(bytes, at) {
        records.push(turn.to_vec());
        at += HEADER + turn.len();
    }
    // Every later record that is whole says how much of the file was on disk before it.
    let later = (at + 1..bytes.len()).filter_map(|place| whole(bytes, place));
    match later.map(|(synced, _)| synced).max() {
        Some(synced) if synced > at as u64 => {
            Err(StoreError::Corrupt(format!("the journal is damaged at byte {at}, of {synced} that were on disk")))
        }
        Some(_) | None => Ok((records, at as u64)),
    }
}

/// The record that begins here, if it is whole.
fn whole(bytes: &[u8], at: usize) -> Option<(u64, &[u8])> {
    let header: &[u8; HEADER] = bytes.get(at..)?.first_chunk()?;
    let number = |from: usize| header[from..from + 8].try_into().ok().map(u64::from_le_bytes);
    let length = usize::try_from(number(0)?).ok()?;
    let end = at.checked_add(HEADER)?.checked_add(length)?;
    let summed = bytes.get(at + 12..end)?;
    let sum = header[8..12].try_into().ok().map(u32::from_le_bytes)?;
    (crc32fast::hash(summed) == sum).then(|| number(12).map(|synced| (synced, &bytes[at + HEADER..end])))?
}

fn failed(what: &str, error: &io::Error) -> StoreError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full(format!("cannot {what}: {error}")),
        _ => StoreError::Io(format!("cannot {what}: {error}")),
    }
}
