//! One directory, by its descriptor: the few system calls that the protocol is made of.
//!
//! Everything goes by names within the directory, so that a path swapped on the way leads nowhere else; no link is
//! followed, and nothing that is no file is waited on. What is not there is an answer, never an error. It must not know
//! what a name means.

use crate::error::{Failure, Kind};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is known about a file without reading it; times are nanoseconds of the file system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub inode: u64,
    pub size: u64,
    pub modified: i64,
    /// When its name or anything else about it changed: for one that was renamed into a queue, when it came.
    pub changed: i64,
    pub kind: FileType,
    pub links: u64,
    pub owner: u32,
    /// Others than its owner may write to it.
    pub shared: bool,
}

impl Facts {
    fn of(stat: &rustix::fs::Stat) -> Facts {
        let nanoseconds = |seconds: i64, more: u64| seconds.saturating_mul(1_000_000_000).saturating_add(more as i64);
        Facts {
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            changed: nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
            kind: FileType::from_raw_mode(stat.st_mode),
            links: stat.st_nlink,
            owner: stat.st_uid,
            shared: stat.st_mode & 0o022 != 0,
        }
    }

    pub fn of_file(file: &File) -> Result<Facts> {
        Ok(Facts::of(&rustix::fs::fstat(file)?))
    }
}

/// An open directory; a copy is another handle to the same one.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    fd: Arc<OwnedFd>,
}

const OPEN: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);

impl Directory {
    pub fn open(path: &Path) -> std::result::Result<Directory, Failure> {
        let cannot = |e: Error| match e.kind() {
            ErrorKind::NotFound if path.is_symlink() => {
                let text = format!("{} is a link to what is not there, expected a directory", path.display());
                Failure::new(Kind::NoInput, text).hint("make what it leads to, or name another directory")
            }
            ErrorKind::NotFound => {
                let failure = Failure::new(Kind::NoInput, format!("there is no directory {}", path.display()));
                failure.hint(format!("if the name is right: mkdir {}", path.display()))
            }
            ErrorKind::NotADirectory => {
                let text = format!("{} is no directory, expected one of documents", path.display());
                Failure::new(Kind::NoInput, text).hint("a queue is a directory; its documents are the files in it")
            }
            _ => Failure::io(format_args!("cannot use the directory {}", path.display()), &e),
        };
        let path = path.canonicalize().map_err(cannot)?;
        let fd = rustix::fs::open(&path, OPEN, Mode::empty()).map_err(|e| cannot(e.into()))?;
        Ok(Directory { path, fd: Arc::new(fd) })
    }

    /// The same, made where it is missing.
    pub fn make(path: &Path) -> std::result::Result<Directory, Failure> {
        match std::fs::create_dir_all(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                Err(Failure::new(Kind::CannotCreate, format!("cannot make the directory {}: {e}", path.display())))
            }
            Ok(()) | Err(_) => Directory::open(path),
        }
    }

    /// A directory in it, made where it is missing; a link there is refused.
    pub fn inner(&self, name: &str) -> Result<Directory> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => self.sync()?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.existing(name)?.ok_or_else(|| Error::from(ErrorKind::NotFound))
    }

    /// The same where it is there already.
    pub fn existing(&self, name: &str) -> Result<Option<Directory>> {
        match rustix::fs::openat(&self.fd, name, OPEN | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(fd) => Ok(Some(Directory { path: self.path.join(name), fd: Arc::new(fd) })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn at(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    /// Whether its path still leads to it.
    pub fn is_in_place(&self) -> bool {
        let (ours, there) = (rustix::fs::fstat(&self.fd), rustix::fs::stat(&self.path));
        matches!((ours, there), (Ok(ours), Ok(there)) if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino))
    }

    /// Whether both are on one file system.
    pub fn is_beside(&self, other: &Directory) -> Result<bool> {
        Ok(rustix::fs::fstat(&self.fd)?.st_dev == rustix::fs::fstat(&other.fd)?.st_dev)
    }

    /// Tells every name, in no order, without ever holding all of them.
    pub fn each_name(&self, mut tell: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<()> {
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && tell(name).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// About the name itself: a link is not followed.
    pub fn facts(&self, name: &[u8]) -> Result<Option<Facts>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Facts::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn has(&self, name: &[u8]) -> Result<bool> {
        self.facts(name).map(|facts| facts.is_some())
    }

    /// Opens what is there, without following a link or waiting on what is no file.
    pub fn open_file(&self, name: &[u8], write: bool) -> Result<Option<File>> {
        let how = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(File::from(fd))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The same for what must be a file: anything else that has the name is as if nothing had it.
    pub fn open_regular(&self, name: &[u8], write: bool) -> Result<Option<File>> {
        match self.open_file(name, write) {
            Err(e) if [libc::ELOOP, libc::EISDIR, libc::ENXIO].contains(&e.raw_os_error().unwrap_or(0)) => Ok(None),
            Ok(Some(file)) if Facts::of_file(&file)?.kind != FileType::RegularFile => Ok(None),
            opened => opened,
        }
    }

    /// When names in it changed last, by its file system's clock.
    pub fn stamp(&self) -> Result<i64> {
        let facts = Facts::of(&rustix::fs::fstat(&self.fd)?);
        Ok(facts.modified.max(facts.changed))
    }

    /// Whether nobody but this user can give names in it.
    pub fn is_ours_alone(&self) -> Result<bool> {
        let facts = Facts::of(&rustix::fs::fstat(&self.fd)?);
        Ok(facts.owner == rustix::process::geteuid().as_raw() && !facts.shared)
    }

    /// A file that was not there before.
    pub fn create(&self, name: &[u8]) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(0o666))?))
    }

    /// One step, in place of whatever has the new name.
    pub fn rename(&self, from: &[u8], into: &Directory, to: &[u8]) -> Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &into.fd, to)?)
    }

    /// One step, refused where the new name is taken.
    pub fn rename_new(&self, from: &[u8], into: &Directory, to: &[u8]) -> Result<()> {
        match rustix::fs::renameat_with(&self.fd, from, &into.fd, to, RenameFlags::NOREPLACE) {
            // A file system that cannot refuse by itself is asked first; most names are our own, and nobody comes
            // between.
            Err(Errno::INVAL | Errno::NOSYS) if into.has(to)? => Err(ErrorKind::AlreadyExists.into()),
            Err(Errno::INVAL | Errno::NOSYS) => self.rename(from, into, to),
            renamed => Ok(renamed?),
        }
    }

    /// The same for a file that nobody else knows under its old name. A file system that cannot refuse by itself is
    /// given a second name for it, which it can: for a moment the file has both.
    pub fn place_new(&self, from: &[u8], into: &Directory, to: &[u8]) -> Result<()> {
        match rustix::fs::renameat_with(&self.fd, from, &into.fd, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => {}
            renamed => return Ok(renamed?),
        }
        match rustix::fs::linkat(&self.fd, from, &into.fd, to, AtFlags::empty()) {
            // Nor has it second names.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK) => self.rename_new(from, into, to),
            linked => {
                linked?;
                self.remove(from).map(drop)
            }
        }
    }

    /// False where there was nothing.
    pub fn remove(&self, name: &[u8]) -> Result<bool> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Names made, changed and removed before are on disk.
    pub fn sync(&self) -> Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    /// A small file, there whole or not at all, also after a power cut; `temporary` is a name in `self`.
    pub fn write_durably(&self, temporary: &[u8], bytes: &[u8], into: &Directory, name: &[u8]) -> Result<()> {
        self.remove(temporary)?;
        let written = self.create(temporary).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        let placed = written.and_then(|()| self.rename(temporary, into, name)).and_then(|()| into.sync());
        if placed.is_err() {
            // On a full disk even a half of it is in the way.
            let _in_the_way = self.remove(temporary);
        }
        placed
    }

    /// Whether there is no room in it for a file of this size, for want of blocks, of files or of a quota: nothing but
    /// a file of that size can tell. `temporary` is a name in it.
    pub fn is_full_for(&self, size: usize, temporary: &[u8]) -> bool {
        let tried = self.create(temporary).and_then(|mut file| file.write_all(&vec![0; size]));
        let _in_the_way = self.remove(temporary);
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
        tried.is_err_and(|e| full.contains(&e.kind()))
    }
}

/// Refuses a file system on which a rename is not one step: two who rename one file must not both win, and a name that
/// is replaced must lead to the new file. Tried with files of our own, which are no documents.
pub(super) fn prove_rename(dir: &Directory, random: u64) -> std::result::Result<(), Failure> {
    const ROUNDS: usize = 8;
    let name = |part: &str| format!("proof-{random:016x}-{part}").into_bytes();
    let refuse = |why: &str| {
        let place = dir.path().display();
        Failure::new(Kind::CannotCreate, format!("cannot use {place}: its file system has no atomic rename: {why}"))
            .hint("a queue needs a file system whose renames are one step: ext4, XFS, Btrfs, tmpfs, NFS")
    };
    let tried = |result: Result<()>, what: &str| result.map_err(|e| refuse(&format!("{what}: {e}")));
    let (old, new) = (name("old"), name("new"));
    let judged = (|| {
        for made in [&old, &new] {
            let made = dir.create(made).map(drop);
            made.map_err(|e| Failure::io(format_args!("cannot write into {}", dir.path().display()), &e))?;
        }
        let inode = dir.facts(&new).ok().flatten().map(|facts| facts.inode);
        tried(dir.rename(&new, dir, &old), "renaming over another file")?;
        if dir.facts(&old).ok().flatten().map(|facts| facts.inode) != inode || dir.has(&new).unwrap_or(true) {
            return Err(refuse("a file that replaced another is not found under its name"));
        }
        let mut from = old.clone();
        for round in 0..ROUNDS {
            let targets = [name(&format!("{round}a")), name(&format!("{round}b"))];
            let won = std::thread::scope(|scope| {
                let from = &from;
                let race = |to| scope.spawn(move || dir.rename(from, dir, to).is_ok());
                [race(&targets[0]), race(&targets[1])].map(|thread| thread.join().unwrap_or(false))
            });
            let there = [&targets[0], &targets[1]].map(|target| dir.has(target).unwrap_or(false));
            match (won, there) {
                ([true, false], [true, false]) => from.clone_from(&targets[0]),
                ([false, true], [false, true]) => from.clone_from(&targets[1]),
                _ => return Err(refuse("two renamed one file, and not exactly one of them won")),
            }
        }
        tried(dir.remove(&from).map(drop), "removing a file")
    })();
    // What a refused trial left is ours.
    let mut left = Vec::new();
    let _unreadable = dir.each_name(|entry| {
        left.extend(entry.starts_with(&name("")).then(|| entry.to_vec()));
        ControlFlow::Continue(())
    });
    left.iter().for_each(|entry| drop(dir.remove(entry)));
    judged
}
