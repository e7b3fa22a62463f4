//! The reserve: a few MiB of disk that are given up when everything else is full, so that what runs can still be
//! settled.
//!
//! A file of real blocks lies in the data directory. When a turn finds no space the file goes, and the same number of
//! blocks is put behind the end of the write-ahead log at once, where only the store can use them. Only when the file
//! could be made again, with as much left beside it, is there room for new jobs.

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open, statvfs};
use std::fs;
use std::path::{Path, PathBuf};

/// Settles for minutes; on a small file system it is a sixteenth of that.
const SIZE: u64 = 8 << 20;
const SHARE: u64 = 16;
/// What SQLite makes beside the log when it opens a store, and more: with less than this a disk is full.
const INDEX: u64 = 256 << 10;
/// What a start on a full disk makes: the log's index, the slot tables of the launchers, and some small files.
pub(super) const START: u64 = 1280 << 10;

#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    held: bool,
}

impl Reserve {
    /// Takes the reserve that is there, or makes one if there is room for it.
    pub(super) fn open(path: PathBuf) -> Reserve {
        let mut reserve = Reserve { held: path.metadata().is_ok_and(|meta| meta.len() > 0), path };
        reserve.has_room();
        reserve
    }

    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// Whether the reserve is there; one that was given up is made again if as much would be left beside it.
    pub(super) fn has_room(&mut self) -> bool {
        self.held = self.held || self.make().is_ok();
        self.held
    }

    /// Gives the blocks to the log, but for so many bytes, or half of them, that are left to everybody.
    pub(super) fn release(&mut self, log: &Path, but: u64) {
        if !std::mem::take(&mut self.held) {
            return;
        }
        let size = self.path.metadata().map_or(0, |meta| meta.len());
        // What cannot be removed frees nothing, and the turn that needs it says so.
        let _ = fs::remove_file(&self.path);
        // Where the file system does not know it the blocks are free for everybody, which is still better than none.
        if let Ok(file) = open(log, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            let end = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size as u64);
            let _ = fallocate(&file, FallocateFlags::KEEP_SIZE, end, (size - but.min(size / 2)).max(1));
        }
    }

    fn make(&self) -> rustix::io::Result<()> {
        let parent = self.path.parent().unwrap_or(Path::new("."));
        let found = statvfs(parent)?;
        let (whole, free) = (found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize);
        let size = SIZE.min(whole / SHARE);
        if size == 0 || free < 2 * size {
            return Err(rustix::io::Errno::NOSPC);
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(&self.path, flags, Mode::from_raw_mode(0o600))?;
        let made = match fallocate(&file, FallocateFlags::empty(), 0, size) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => fill(&file, size),
            other => other,
        };
        if made.is_err() {
            // Half a reserve would be in the way of what it is for.
            let _ = fs::remove_file(&self.path);
        }
        made
    }
}

/// True where so little is free that not even the index of the log can be made.
pub(super) fn is_full(beside: &Path) -> bool {
    let parent = beside.parent().unwrap_or(Path::new("."));
    statvfs(parent).is_ok_and(|found| found.f_bavail * found.f_frsize < INDEX)
}

/// Where blocks cannot be asked for, they are written.
fn fill(file: &rustix::fd::OwnedFd, size: u64) -> rustix::io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
        left -= rustix::io::write(file, &zeros[..most])? as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_is_given_up_is_the_log_s_alone_and_is_made_again() {
        let place = tempfile::tempdir().unwrap();
        let (path, log) = (place.path().join("reserve"), place.path().join("log"));
        fs::write(&log, b"some turns").unwrap();
        let mut reserve = Reserve::open(path.clone());
        let blocks = path.metadata().unwrap().blocks();
        assert!(blocks * 512 >= SIZE, "{blocks}");
        reserve.release(&log, 0);
        assert!(!path.exists());
        assert_eq!(fs::read(&log).unwrap(), b"some turns", "the log is as long as it was");
        assert!(log.metadata().unwrap().blocks() * 512 >= SIZE, "and the blocks are its own");
        assert!(reserve.has_room() && path.exists());
        let again = Reserve::open(path.clone());
        assert!(again.held);
    }
}
