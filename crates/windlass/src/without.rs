//! What of Linux's own this process does without, by name, so that the plain ways are tested on a machine that has all.
//!
//! The variable has names with commas between them: `cgroup`, `children`, `shares`, `inotify`, `eventfd`, `memfd`,
//! `pidfd`. Where the kernel lacks one of the last four, its plain way is taken without being asked for. It must not
//! know whose way it is.

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;

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
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(std::env::temp_dir(), flags, Mode::from_raw_mode(0o600)).map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_without_a_name_holds_what_is_written_whatever_it_lies_in() {
        for mut file in [memory_file("test").unwrap(), unnamed_file().unwrap()] {
            file.write_all(b"data").unwrap();
            file.rewind().unwrap();
            let mut read = String::new();
            file.read_to_string(&mut read).unwrap();
            assert_eq!((read.as_str(), file.metadata().unwrap().nlink()), ("data", 0));
        }
    }
}
