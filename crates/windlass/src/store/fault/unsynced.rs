//! A disk that loses power: what was written since the last sync of a file, and the file as a cut would leave it.
//!
//! Recording is off until a test begins it. A cut is made on copies: every unsynced change is taken back, then each
//! that the caller keeps is done again, in order, since a disk writes what it likes of the rest. Names are not part
//! of this; that they are synced is seen in the traces of system calls. It must not touch a real file but a copy.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One change of a file that no sync followed yet.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) path: PathBuf,
    pub(super) offset: u64,
    /// What stood there, as far as the file went.
    pub(super) old: Vec<u8>,
    pub(super) old_size: u64,
    /// What was written; none where the file was cut at the offset.
    pub(super) new: Option<Vec<u8>>,
}

/// None while nothing is recorded.
static CHANGES: Mutex<Option<Vec<Change>>> = Mutex::new(None);

/// The changes, for as long as the answer is held; real writes happen under it, so that a cut sees them whole.
pub(super) fn changes() -> MutexGuard<'static, Option<Vec<Change>>> {
    // Whoever panicked left the list as it was.
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes note of every change from now on.
pub fn record() {
    *changes() = Some(Vec::new());
}

/// Forgets everything and takes note of nothing more.
pub fn forget() {
    *changes() = None;
}

/// Everything written to this file is on disk.
pub(super) fn synced(path: &Path) {
    if let Some(changes) = &mut *changes() {
        changes.retain(|change| change.path != path);
    }
}

/// Copies the files as a power cut would leave them: `keep` says of each unsynced change whether it had reached the
/// disk. Returns how many were lost.
pub fn cut(files: &[(PathBuf, PathBuf)], mut keep: impl FnMut() -> bool) -> io::Result<u64> {
    let changes = changes();
    let changes = changes.as_deref().unwrap_or_default();
    let mut lost = 0;
    for (from, to) in files.iter().filter(|(from, _)| from.exists()) {
        std::fs::copy(from, to)?;
        let copy = OpenOptions::new().write(true).open(to)?;
        let unsynced = || changes.iter().filter(|change| change.path == *from);
        unsynced().rev().try_for_each(|change| change.take_back(&copy))?;
        for change in unsynced() {
            if keep() {
                change.do_again(&copy)?;
            } else {
                lost += 1;
            }
        }
    }
    Ok(lost)
}

impl Change {
    fn take_back(&self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.old, self.offset)?;
        file.set_len(self.old_size)
    }

    fn do_again(&self, file: &File) -> io::Result<()> {
        match &self.new {
            Some(bytes) => file.write_all_at(bytes, self.offset),
            None => file.set_len(self.offset),
        }
    }
}
