//! The files of an inbox: their names, how they are made, sealed and set aside.
//!
//! Writers and the reader share this. `UID` and `UID.k` are open for appending, `ORIGIN.sealed` is read to its end
//! and removed, a name with a dot in front is not looked at, and any other file was moved in whole. A file of ours
//! is never seen without its header, because it gets its name only with it.

use super::disk::{Disk, OpenFile};
use super::frame::{FILE_HEADER, FileHeader, SEALED, STATE_AT};
use crate::error::{Failure, Kind};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::path::{Path, PathBuf};
use windlass_core::job::Origin;

/// What a name in the inbox stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// `UID` or `UID.k`: programs append to it.
    Appended,
    Sealed(Origin),
    Hidden,
    /// Moved in as a whole.
    MovedIn,
}

impl Name {
    pub fn of(name: &str) -> Name {
        if name.starts_with('.') {
            return Name::Hidden;
        }
        if let Some(origin) = name.strip_suffix(".sealed").and_then(|origin| origin.parse().ok()) {
            return Name::Sealed(origin);
        }
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match name.split_once('.') {
            Some((uid, k)) if number(uid) && number(k) => Name::Appended,
            None if number(name) => Name::Appended,
            _ => Name::MovedIn,
        }
    }
}

pub fn sealed_name(origin: Origin) -> String {
    format!("{origin}.sealed")
}

/// Fifty bits of this boot's id, in the form of the header.
pub fn boot() -> Origin {
    let hex: String = crate::data_dir::boot_id().chars().filter(char::is_ascii_hexdigit).take(16).collect();
    Origin::from_random(u64::from_str_radix(&hex, 16).unwrap_or(0))
}

pub fn random_origin(disk: &impl Disk) -> std::io::Result<Origin> {
    Ok(Origin::from_random(disk.random()?))
}

/// Makes `dir/name` with a header, unless it is there already.
pub fn create(disk: &impl Disk, dir: &Path, name: &str) -> Result<(), Failure> {
    let origin = random_origin(disk).map_err(|e| Failure::io("cannot name a file", &e))?;
    let temporary = dir.join(format!(".{origin}.new"));
    let made = write_header(disk, &temporary, origin);
    let cannot = |e: std::io::Error| inbox_failure("cannot make", &dir.join(name), &e);
    if let Err(error) = made {
        // It may not even exist; a leftover has a hidden name and is never read.
        let _ = disk.remove(&temporary);
        return Err(cannot(error));
    }
    match disk.rename(&temporary, &dir.join(name)) {
        Ok(()) => Ok(()),
        Err(error) => {
            // Ours was not needed, or there is no room for it: the failure is what counts.
            let _ = disk.remove(&temporary);
            if error.kind() == std::io::ErrorKind::AlreadyExists { Ok(()) } else { Err(cannot(error)) }
        }
    }
}

fn write_header(disk: &impl Disk, path: &Path, origin: Origin) -> std::io::Result<()> {
    let file = disk.create(path)?;
    file.append(&FileHeader { origin, boot: Some(disk.boot()), sealed: false }.encode())?;
    file.sync()
}

/// Opens a file of the inbox without following links and without waiting on what is no file.
pub fn open(path: &Path, append: bool) -> std::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = if append { flags | OFlags::APPEND } else { flags };
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// The header of an open file, if it is one of ours.
pub fn read_header(file: &impl OpenFile) -> std::io::Result<Option<FileHeader>> {
    Ok(FileHeader::decode(&read_front(file)?))
}

/// The first bytes of a file, as many as a header has.
pub fn read_front(file: &impl OpenFile) -> std::io::Result<Vec<u8>> {
    let mut front = vec![0; FILE_HEADER];
    let mut length = 0;
    while length < front.len() {
        match file.read_at(&mut front[length..], length as u64) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    front.truncate(length);
    Ok(front)
}

/// Takes a file out of the writers' way: under its lock, which the caller holds, it gets the name of `origin`.
/// The name changes first: a writer that sees the sealed byte finds another file behind the old name, or none.
pub fn seal(disk: &impl Disk, dir: &Path, name: &str, origin: Origin) -> std::io::Result<PathBuf> {
    let (from, to) = (dir.join(name), dir.join(sealed_name(origin)));
    disk.rename(&from, &to)?;
    let file = disk.open(&to)?;
    mark_sealed(&file)?;
    Ok(to)
}

/// Tells writers that map the header to go elsewhere; a file without our header has nobody to tell.
pub fn mark_sealed(file: &impl OpenFile) -> std::io::Result<()> {
    match read_header(file)? {
        Some(header) if !header.sealed => file.write_all_at(&[SEALED], STATE_AT as u64),
        _ => Ok(()),
    }
}

/// Whether the name still leads to this open file.
pub fn is_at<D: Disk>(disk: &D, file: &D::File, path: &Path) -> std::io::Result<bool> {
    let open = file.facts()?;
    match disk.facts(path) {
        Ok(named) => Ok(named.identity == open.identity),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A failure at the inbox, with what can be done about it.
pub fn inbox_failure(doing: &str, path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::io(format_args!("{doing} {}", path.display()), error);
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => failure.hint("too many files are open: raise the limit (ulimit -n)"),
        Some(libc::EROFS) => Failure { kind: Kind::NotPermitted, ..failure }.hint("the file system is read-only"),
        Some(libc::ENOENT) => Failure { kind: Kind::NoInput, ..failure }
            .hint("the inbox is not there: name the data directory with --dir or WINDLASS_DIR"),
        Some(libc::EFBIG) => failure.hint("the file size limit is reached: raise it (ulimit -f)"),
        Some(libc::ENOSPC | libc::EDQUOT) => failure.hint("nothing was accepted: make room, then push again"),
        _ => failure,
    }
}
