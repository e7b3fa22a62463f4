//! What of Linux's own this process does without, by name, so that the plain ways are tested on a machine that has all.
//!
//! The variable has names with commas between them: `cgroup`, `children`, `shares`, `inotify`, `eventfd`, `memfd`,
//! `tmpfile`, `pidfd`, `close_range`. Where the kernel lacks one of the last six, its plain way is taken without being
//! asked for. `subreaper` has no plain way: a launcher without it refuses to be one. It must not know whose way it is.

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable of a server and of its launchers.
pub(crate) const WITHOUT: &str = "WINDLASS_TEST_WITHOUT";

/// Whether this is one of the names.
pub(crate) fn is_without(name: &str) -> bool {
    std::env::var(WITHOUT).is_ok_and(|names| names.split(',').any(|word| word == name))
}

/// A file in memory that has no name; else one on disk that has none.
pub(crate) fn memory_file(name: &str) -> rustix::io::Result<File> {
    if !is_without("memfd") {
        match rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC) {
            Err(Errno::NOSYS) => {}
            made => return made.map(File::from),
        }
    }
    unnamed_file()
}

fn unnamed_file() -> rustix::io::Result<File> {
    if !is_without("tmpfile") {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(std::env::temp_dir(), flags, Mode::from_raw_mode(0o600)) {
            // A kernel or a file system that knows no such files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            made => return made.map(File::from),
        }
    }
    unlinked_file()
}

/// One that had a name for a moment, which nobody else can have opened.
fn unlinked_file() -> rustix::io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("windlass-{}-{number}", std::process::id()));
        match rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)) {
            // Left by a process of this number that was killed in that moment, or put there by somebody.
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
            Ok(file) => {
                rustix::fs::unlink(&path)?;
                return Ok(file.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_without_a_name_holds_what_is_written_whatever_it_lies_in() {
        for mut file in [memory_file("test").unwrap(), unnamed_file().unwrap(), unlinked_file().unwrap()] {
            file.write_all(b"data").unwrap();
            file.rewind().unwrap();
            let mut read = String::new();
            file.read_to_string(&mut read).unwrap();
            assert_eq!((read.as_str(), file.metadata().unwrap().nlink()), ("data", 0));
        }
    }
}
