//! What the inbox asks of a file system, in the words of the inbox.
//!
//! Two implement it: `Kernel` here, and the simulator's disk, which forgets what was not synced. It must not decide
//! anything: a call is one system call, or the few that always go together.

use super::files;
use super::lock::{self, Locker, Waited};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags};
use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::File;
use std::io::{Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirEntryExt, FileExt};
use std::path::Path;
use std::time::Duration;
use windlass_core::job::Origin;
use windlass_core::time::Time;

/// What is known about a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Device and inode: which file it is.
    pub identity: (u64, u64),
    pub length: u64,
    pub is_file: bool,
    /// It belongs to the user of this process.
    pub is_ours: bool,
    pub links: u64,
}

impl Facts {
    pub fn inode(&self) -> u64 {
        self.identity.1
    }
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub inode: u64,
    pub name: OsString,
}

/// A file system.
pub trait Disk: Debug {
    type File: OpenFile;

    fn list(&self, dir: &Path) -> Result<Vec<Listed>>;
    /// About the name itself: a link is not followed.
    fn facts(&self, path: &Path) -> Result<Facts>;
    /// Without following links and without waiting on what is no file.
    fn open(&self, path: &Path) -> Result<Self::File>;
    /// To write at the end; made if it is not there.
    fn open_to_append(&self, path: &Path) -> Result<Self::File>;
    /// A file that was not there before.
    fn create(&self, path: &Path) -> Result<Self::File>;
    /// Refused where the new name is taken.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    fn remove(&self, path: &Path) -> Result<()>;
    /// Names made, changed and removed before are on disk.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Waits so long for the exclusive lock.
    fn wait_for_lock(&mut self, file: Self::File, patience: Duration) -> Result<Waited<Self::File>>;
    /// The process that holds the lock on a file.
    fn holder(&self, facts: &Facts) -> Option<u32>;
    /// Fifty bits that change with every boot of the machine.
    fn boot(&self) -> Origin;
    fn random(&self) -> Result<u64>;
    /// What the clock on the wall shows, for people to read.
    fn now(&self) -> Time;
}

/// A file of it, open for reading and writing.
pub trait OpenFile: Debug {
    fn facts(&self) -> Result<Facts>;
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize>;
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// Writes behind the end of a file that was opened to append, or made.
    fn append(&self, bytes: &[u8]) -> Result<()>;
    /// What was written is on disk. A failure is final: nobody knows what is.
    fn sync(&self) -> Result<()>;
    fn try_lock(&self) -> Result<bool>;
    fn unlock(&self) -> Result<()>;
    /// Gives the space of these bytes back, where that is possible.
    fn punch(&self, from: u64, length: u64);
    /// Granted only if nobody else has the file open.
    fn take_lease(&self) -> bool;
    fn give_lease_back(&self);
}

/// The file system of the machine.
#[derive(Debug, Default)]
pub struct Kernel {
    locker: Locker,
}

impl Disk for Kernel {
    type File = File;

    fn list(&self, dir: &Path) -> Result<Vec<Listed>> {
        std::fs::read_dir(dir)?
            .map(|entry| entry.map(|entry| Listed { inode: entry.ino(), name: entry.file_name() }))
            .collect()
    }

    fn facts(&self, path: &Path) -> Result<Facts> {
        Ok(facts(&rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    fn open(&self, path: &Path) -> Result<File> {
        files::open(path, false)
    }

    fn open_to_append(&self, path: &Path) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?))
    }

    fn create(&self, path: &Path) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        Ok(rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        File::open(dir)?.sync_all()
    }

    fn wait_for_lock(&mut self, file: File, patience: Duration) -> Result<Waited<File>> {
        self.locker.wait(file, patience)
    }

    fn holder(&self, facts: &Facts) -> Option<u32> {
        lock::holder(facts.inode())
    }

    fn boot(&self) -> Origin {
        files::boot()
    }

    fn random(&self) -> Result<u64> {
        getrandom::u64().map_err(|e| std::io::Error::other(format!("no random numbers: {e}")))
    }

    fn now(&self) -> Time {
        crate::clock::now()
    }
}

impl OpenFile for File {
    fn facts(&self) -> Result<Facts> {
        Ok(facts(&rustix::fs::fstat(self)?))
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        FileExt::read_at(self, into, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut file = self;
        file.write_all(bytes)
    }

    fn sync(&self) -> Result<()> {
        self.sync_data()
    }

    fn try_lock(&self) -> Result<bool> {
        lock::try_lock(self)
    }

    fn unlock(&self) -> Result<()> {
        lock::unlock(self)
    }

    fn punch(&self, from: u64, length: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Where the file system cannot, the space comes back when the file is removed.
        let _ = rustix::fs::fallocate(self, flags, from, length);
    }

    fn take_lease(&self) -> bool {
        // SAFETY: a plain call on a descriptor that is open.
        unsafe { libc::fcntl(self.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0 }
    }

    fn give_lease_back(&self) {
        // SAFETY: as above. Closing the file would give it back as well.
        unsafe { libc::fcntl(self.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

fn facts(stat: &rustix::fs::Stat) -> Facts {
    Facts {
        identity: (stat.st_dev, stat.st_ino),
        length: stat.st_size as u64,
        is_file: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        is_ours: stat.st_uid == rustix::process::geteuid().as_raw(),
        links: stat.st_nlink,
    }
}
