//! Where control and emit files lie: on tmpfs where there is one, in a directory of this data directory alone.
//!
//! It is made with the runner and removed with it. It must not be shared: its name holds what the data directory is to
//! the kernel, and it is used only if it is ours and nobody else can write to it. Jobs that run as another user have a
//! directory for each user, which is ours too, so that nothing in it can be swapped, and which only that user's group
//! can pass. A server that was killed leaves its directories; its lock on the mark in the first of them is gone with
//! it, and that is how the next server, of whatever data directory, knows that they can go.

use crate::data_dir::DataDir;
use crate::error::Failure;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const TMPFS: &str = "/dev/shm";
/// Where directories that users must reach can lie: the first is root's alone, so that nobody can be there before us.
const REACHABLE: [&str; 3] = ["/run", TMPFS, "/tmp"];

/// The file whose lock says that a directory is in use.
const MARK: &str = "owner";
/// Behind the name of a directory that is being removed.
const GONE: &str = ".gone";
/// Between a directory's name and the user's, in the names of those of users.
const AS: &str = "-as-";

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
    Some(format!("{}{:x}-{:x}", begins(), meta.dev(), meta.ino()))
}

/// What all our names begin with: those of another user are not ours to look at.
fn begins() -> String {
    format!("windlass-{}-", rustix::process::geteuid().as_raw())
}

/// What the directories of users begin with.
pub(super) fn choose_for_users(dir: &DataDir) -> PathBuf {
    let may = |place: &&str| rustix::fs::access(*place, rustix::fs::Access::WRITE_OK).is_ok();
    let place = REACHABLE.into_iter().find(may).unwrap_or(TMPFS);
    Path::new(place).join(name(dir).unwrap_or_else(|| "windlass".into()) + AS)
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
    loop {
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map_err(|e| cannot(&e)),
        }
        let meta = match std::fs::symlink_metadata(path) {
            // Somebody who clears up was here between the two.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            meta => meta.map_err(|e| cannot(&e))?,
        };
        let ours = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o077 == 0;
        return if ours { Ok(()) } else { Err(cannot(&std::io::Error::other("something else is there already"))) };
    }
}

/// Makes it and says that it is in use, for as long as the file is held.
pub(super) fn hold(path: &Path) -> Result<File, Failure> {
    let mark = path.join(MARK);
    let cannot = |e: std::io::Error| Failure::io(format_args!("cannot use {}", mark.display()), &e);
    loop {
        make(path)?;
        let held = match open_mark(&mark, OFlags::CREATE) {
            // Somebody who clears up was here between the two.
            Err(rustix::io::Errno::NOENT) => continue,
            held => held.map_err(|e| cannot(e.into()))?,
        };
        // Nobody but one who clears up has it for himself, and he is soon done.
        match rustix::fs::flock(&held, FlockOperation::LockShared) {
            Err(rustix::io::Errno::INTR) => continue,
            locked => locked.map_err(|e| cannot(e.into()))?,
        }
        let ours = held.metadata().map_err(cannot)?.ino();
        if std::fs::metadata(&mark).is_ok_and(|there| there.ino() == ours) {
            return Ok(held);
        }
    }
}

fn open_mark(mark: &Path, more: OFlags) -> rustix::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | more;
    rustix::fs::open(mark, flags, Mode::from_raw_mode(0o600)).map(File::from)
}

/// Removes what servers left that are gone, and with them perhaps their data directories. A directory without a mark
/// tells nothing of its owner and stays.
pub(super) fn remove_those_of_the_dead() {
    remove_dead_in(Path::new(TMPFS), &REACHABLE.map(Path::new));
}

fn remove_dead_in(place: &Path, reachable: &[&Path]) {
    let begins = begins();
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(&begins) && !name.contains(AS)) else { continue };
        let path = entry.path();
        let Ok(mark) = open_mark(&path.join(MARK), OFlags::empty()) else { continue };
        // Held until all of it is gone: a server that wants it now waits for that, and makes it anew.
        if rustix::fs::flock(&mark, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        reachable.iter().for_each(|place| remove_those_of_users(&place.join(format!("{name}{AS}"))));
        clear_away(&path);
    }
}

/// Takes the name away first, so that nothing is removed that a new owner has just put there.
fn clear_away(path: &Path) {
    let mut gone = path.as_os_str().to_owned();
    gone.push(GONE);
    if path.as_os_str().as_bytes().ends_with(GONE.as_bytes()) {
        remove(path);
    } else if std::fs::rename(path, &gone).is_ok() {
        remove(Path::new(&gone));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dead_left_goes_and_what_is_held_or_unmarked_stays() {
        let (shm, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| shm.path().join(format!("{}{name}", begins()));
        let (dead, alive, unmarked) = (at("1-1"), at("1-2"), at("1-3"));
        drop(hold(&dead).unwrap());
        drop(hold(&at("1-4.gone")).unwrap());
        let held = hold(&alive).unwrap();
        let _second = hold(&alive).unwrap();
        make(&unmarked).unwrap();
        let foreign = shm.path().join("windlass-4294967294-1-1");
        drop(hold(&foreign).unwrap());
        let users: Vec<PathBuf> = ["1-1", "1-2"].map(|name| run.path().join(format!("{}{name}-as-7", begins()))).into();
        users.iter().for_each(|path| make(path).unwrap());
        std::fs::write(dead.join("0.1.control"), "phase x\n").unwrap();
        remove_dead_in(shm.path(), &[run.path()]);
        assert!(!dead.exists() && !users[0].exists() && !at("1-4.gone").exists());
        assert!(alive.exists() && users[1].exists() && unmarked.exists() && foreign.exists());
        // Two held it; it is free when both are gone.
        drop(held);
        remove_dead_in(shm.path(), &[run.path()]);
        assert!(alive.exists());
    }

    #[test]
    fn who_is_cleared_away_while_he_comes_begins_anew() {
        let shm = tempfile::tempdir().unwrap();
        let path = shm.path().join("windlass-x");
        for _ in 0..200 {
            make(&path).unwrap();
            let mark = open_mark(&path.join(MARK), OFlags::CREATE).unwrap();
            rustix::fs::flock(&mark, FlockOperation::LockExclusive).unwrap();
            let comer = std::thread::spawn({
                let path = path.clone();
                move || hold(&path).unwrap()
            });
            clear_away(&path);
            drop(mark);
            let held = comer.join().unwrap();
            assert_eq!(held.metadata().unwrap().ino(), std::fs::metadata(path.join(MARK)).unwrap().ino());
        }
    }
}
