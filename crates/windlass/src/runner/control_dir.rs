//! Where control and emit files lie: on tmpfs where there is one, in a directory of this data directory alone.
//!
//! It is made with the runner and removed with it. It must not be shared: its name holds what the data directory is to
//! the kernel, and it is used only if it is ours and nobody else can write to it.

use crate::data_dir::DataDir;
use crate::error::Failure;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const TMPFS: &str = "/dev/shm";

/// The directory for this data directory; within it where the machine has no tmpfs for everybody.
pub(super) fn choose(dir: &DataDir) -> PathBuf {
    let within = dir.run().join("control");
    let Ok(meta) = std::fs::metadata(dir.run()) else { return within };
    let user = rustix::process::geteuid().as_raw();
    let path = Path::new(TMPFS).join(format!("windlass-{user}-{:x}-{:x}", meta.dev(), meta.ino()));
    match make(&path) {
        Ok(()) => path,
        Err(_) => within,
    }
}

/// Makes it, or takes over what an earlier server left; its files are emptied when they are used.
pub(super) fn make(path: &Path) -> Result<(), Failure> {
    let cannot = |e: &std::io::Error| Failure::io(format_args!("cannot make {}", path.display()), e);
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let meta = std::fs::symlink_metadata(path).map_err(|e| cannot(&e))?;
            let ours = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o077 == 0;
            if ours { Ok(()) } else { Err(cannot(&std::io::Error::other("something else is there already"))) }
        }
        Err(e) => Err(cannot(&e)),
    }
}

pub(super) fn remove(path: &Path) {
    // What cannot be removed is taken over by the next server.
    let _left_behind = std::fs::remove_dir_all(path);
}
