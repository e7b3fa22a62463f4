//! Where control and emit files lie: on tmpfs where there is one, in a directory of this data directory alone.
//!
//! It is made with the runner and removed with it. It must not be shared: its name holds what the data directory is to
//! the kernel, and it is used only if it is ours and nobody else can write to it. Jobs that run as another user have a
//! directory for each user, which is ours too, so that nothing in it can be swapped, and which only that user's group
//! can pass.

use crate::data_dir::DataDir;
use crate::error::Failure;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const TMPFS: &str = "/dev/shm";
/// Where directories that users must reach can lie: the first is root's alone, so that nobody can be there before us.
const REACHABLE: [&str; 3] = ["/run", TMPFS, "/tmp"];

/// The directory for this data directory; within it where the machine has no tmpfs for everybody.
pub(super) fn choose(dir: &DataDir) -> PathBuf {
    let within = dir.run().join("control");
    let Some(name) = name(dir) else { return within };
    let path = Path::new(TMPFS).join(name);
    match make(&path) {
        Ok(()) => path,
        Err(_) => within,
    }
}

fn name(dir: &DataDir) -> Option<String> {
    let meta = std::fs::metadata(dir.run()).ok()?;
    let user = rustix::process::geteuid().as_raw();
    Some(format!("windlass-{user}-{:x}-{:x}", meta.dev(), meta.ino()))
}

/// What the directories of users begin with.
pub(super) fn choose_for_users(dir: &DataDir) -> PathBuf {
    let may = |place: &&str| rustix::fs::access(*place, rustix::fs::Access::WRITE_OK).is_ok();
    let place = REACHABLE.into_iter().find(may).unwrap_or(TMPFS);
    Path::new(place).join(name(dir).unwrap_or_else(|| "windlass".into()) + "-as-")
}

/// The directory of the jobs that run as this user.
pub(super) fn of_user(begins: &Path, uid: u32) -> PathBuf {
    let mut path = begins.as_os_str().to_owned();
    path.push(uid.to_string());
    path.into()
}

/// Makes the directory of a user: ours, to be passed by the user's group and by nobody else.
pub(super) fn make_for_user(path: &Path, gid: u32) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e),
        Ok(()) | Err(_) => {}
    }
    let meta = std::fs::symlink_metadata(path)?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o067 != 0 {
        return Err(std::io::Error::from_raw_os_error(libc::EEXIST));
    }
    std::os::unix::fs::chown(path, None, Some(gid))?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o710))
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

pub(super) fn remove_those_of_users(begins: &Path) {
    let (Some(place), Some(name)) = (begins.parent(), begins.file_name()) else { return };
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        if entry.file_name().as_bytes().starts_with(name.as_bytes()) {
            remove(&entry.path());
        }
    }
}
