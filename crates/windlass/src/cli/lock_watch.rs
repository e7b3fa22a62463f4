//! Waiting for a data directory to be free, or for its holder to answer, without polling.
//!
//! Verbs that found no server hold the lock for a moment, so a held lock is no reason to give up at once. A watch
//! tells when a socket appears or the lock's holder closes it; looking at the lock leaves no trace that would wake
//! the other waiters.

use crate::data_dir::DataDir;
use crate::error::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a held lock may stay silent.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Watches the lock and the socket's directory from the moment it is made.
#[derive(Debug)]
pub(super) struct LockWatch {
    events: OwnedFd,
    until: Instant,
}

impl LockWatch {
    pub(super) fn new(dir: &DataDir) -> Result<LockWatch, Failure> {
        let failed = |e: rustix::io::Errno| Failure::io("cannot watch the data directory", &e.into());
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let socket = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ATTRIB;
        inotify::add_watch(&events, dir.run(), socket).map_err(failed)?;
        match inotify::add_watch(&events, dir.root().join("lock"), WatchFlags::CLOSE_WRITE) {
            // Without the file nobody holds the lock.
            Ok(_) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(LockWatch { events, until: Instant::now() + PATIENCE })
    }

    /// Waits for the next change; false when the patience is at its end.
    pub(super) fn wait(&self) -> Result<bool, Failure> {
        let left = self.until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut waiting = [PollFd::new(&self.events, PollFlags::IN)];
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::io("cannot wait for the data directory", &error.into())),
        }
        let mut seen = [0; 4096];
        // What changed is looked at by the caller; here the events only have to be gone.
        while rustix::io::read(&self.events, &mut seen).is_ok_and(|n| n > 0) {}
        Ok(true)
    }
}

/// True where the lock could be had now. It is let go at once: taking it for good is the server's business.
pub(super) fn is_free(dir: &DataDir) -> bool {
    match open(dir.root().join("lock"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok(),
        // Whether it cannot be made or only is not there yet, the server's own try says it better.
        Err(_) => true,
    }
}

/// Waits until the holder is gone, however long it takes: the kernel wakes whoever waits for the lock.
pub(super) fn wait_for_release(dir: &DataDir) -> Result<(), Failure> {
    let failed = |e: rustix::io::Errno| Failure::io("cannot wait for the server's end", &e.into());
    let file = match open(dir.root().join("lock"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        file => file.map_err(failed)?,
    };
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map_err(failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_holder_is_noticed() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        let lock = dir.lock().unwrap();
        let watch = LockWatch::new(&dir).unwrap();
        assert!(!is_free(&dir));
        let holder = std::thread::spawn(move || drop(lock));
        while !is_free(&dir) {
            assert!(watch.wait().unwrap(), "the lock was let go unnoticed");
        }
        holder.join().unwrap();
    }

    #[test]
    fn looking_wakes_nobody() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        let _lock = dir.lock().unwrap();
        let mut watch = LockWatch::new(&dir).unwrap();
        watch.until = Instant::now();
        assert!(!is_free(&dir));
        assert!(!watch.wait().unwrap());
        assert!(dir.lock().is_err());
        assert!(watch.wait().unwrap(), "a true try is seen, because it may have been the last hold");
    }
}
