//! Room in the output: how many documents may wait there, and how many bytes, before the drivers are held.
//!
//! What waits is counted by a look, and then not again before half of the room may be used up: others write there too.
//! Where there was none, not before a part of what waited has gone. So no document costs a look of its own. The limit
//! is advice among several drivers, each of which may be one over it. It must not hold anybody itself.

use super::LOOK;
use super::directory::Directory;
use crate::error::Failure;
use crate::inbox::watch::Watch;
use rustix::fd::BorrowedFd;
use rustix::fs::inotify::WatchFlags;
use std::io::Result;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use windlass_core::document::{Name, Standing};

/// What may wait in an output; nought is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    pub documents: u64,
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct Room {
    limit: Limit,
    known: Mutex<Known>,
}

/// What is known of it.
#[derive(Debug)]
struct Known {
    /// What may be handed on before it is counted again.
    left: Limit,
    /// So many must go before it is worth a look, or that long must have passed.
    to_go: u64,
    looked: Instant,
}

impl Room {
    pub(super) fn new(limit: Limit) -> Room {
        let known = Known { left: Limit { documents: 0, bytes: 0 }, to_go: 0, looked: Instant::now() };
        Room { limit, known: Mutex::new(known) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more may be made.
    pub(super) fn take(&self, output: &Directory) -> Result<bool> {
        let mut known = self.known();
        let is_none = |left: &Limit| left.documents == 0 || left.bytes == 0;
        if is_none(&known.left) {
            if known.to_go > 0 && known.looked.elapsed() < LOOK {
                return Ok(false);
            }
            *known = self.look(output)?;
        }
        let room = !is_none(&known.left);
        known.left.documents = known.left.documents.saturating_sub(1);
        Ok(room)
    }

    /// Something of this size is there now.
    pub(super) fn has_grown(&self, size: u64) {
        let mut known = self.known();
        // However small it is, it is something.
        known.left.bytes = known.left.bytes.saturating_sub(size.max(1));
    }

    /// Something has gone.
    pub(super) fn has_shrunk(&self) {
        let mut known = self.known();
        known.to_go = known.to_go.saturating_sub(1);
    }

    /// Counts what waits, and how much of the rest may be used before that is done again.
    fn look(&self, output: &Directory) -> Result<Known> {
        const PART: u64 = 16;
        let Limit { documents, bytes } = self.limit;
        let (mut found, mut size) = (0u64, 0u64);
        let mut trouble = None;
        output.each_name(|file| {
            // What the next stage works on has left the queue.
            let counts = |name: &Name<'_>| !matches!(name.standing, Standing::Working { .. });
            if Name::of(file).is_some_and(|name| counts(&name)) {
                found += 1;
                if bytes > 0 {
                    match output.facts(file) {
                        Ok(facts) => size += facts.map_or(0, |facts| facts.size),
                        Err(error) => trouble = Some(error),
                    }
                }
            }
            let full = (documents > 0 && found >= documents) || (bytes > 0 && size >= bytes);
            if full || trouble.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(error) = trouble {
            return Err(error);
        }
        let half = |most: u64, used: u64| if most > 0 { most.saturating_sub(used).div_ceil(2) } else { u64::MAX };
        let left = Limit { documents: half(documents, found), bytes: half(bytes, size) };
        let full = left.documents == 0 || left.bytes == 0;
        let to_go = if full { (found / PART).max(1) } else { 0 };
        Ok(Known { left, to_go, looked: Instant::now() })
    }
}

/// The way into a queue with a limit, for those who feed it from outside.
#[derive(Debug)]
pub struct Entrance {
    directory: Directory,
    /// None where there is no limit.
    room: Option<Room>,
    /// None where the kernel tells of nothing.
    watch: Option<Watch>,
}

impl Entrance {
    pub fn new(directory: &Directory, limit: Limit) -> Entrance {
        let room = (limit != Limit::default()).then(|| Room::new(limit));
        let goes = WatchFlags::MOVED_FROM | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        let watch = room.as_ref().and_then(|_| Watch::new().ok());
        let watch = watch.filter(|watch| watch.arm_for(directory.path(), goes).is_ok());
        Entrance { directory: directory.clone(), room, watch }
    }

    /// Whether anybody could ever have to wait.
    pub fn is_limited(&self) -> bool {
        self.room.is_some()
    }

    /// Whether there is room for one more; where there is none, waits until some may have come, or until there is
    /// something to read for whoever waits.
    pub fn wait(&self, told: Option<BorrowedFd<'_>>) -> std::result::Result<bool, Failure> {
        let Some(room) = &self.room else { return Ok(true) };
        let place = self.directory.path().display();
        if room.take(&self.directory).map_err(|e| Failure::io(format_args!("cannot look into {place}"), &e))? {
            return Ok(true);
        }
        Watch::wait_for_any(self.watch.as_ref(), told, LOOK)?;
        if let Some(watch) = &self.watch {
            watch.read(|_, _, _| room.has_shrunk());
        }
        Ok(false)
    }

    /// Something of this size was put.
    pub fn has_grown(&self, size: u64) {
        self.room.iter().for_each(|room| room.has_grown(size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_holds_and_what_is_worked_on_does_not() {
        let root = tempfile::tempdir().unwrap();
        let output = Directory::open(root.path()).unwrap();
        let put = |name: &str| std::fs::write(root.path().join(name), "1234").unwrap();
        let room = |documents, bytes| Room::new(Limit { documents, bytes }).take(&output).unwrap();
        ["a.ready", "b.failed", "c.5.writing.xml", "d.5.working", "done", "note"].into_iter().for_each(put);
        assert!(room(4, 0) && !room(3, 0) && !room(2, 0));
        assert!(room(0, 13) && !room(0, 12) && !room(3, 1000) && room(4, 13));
    }

    #[test]
    fn a_document_of_many_costs_no_look_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let output = Directory::open(root.path()).unwrap();
        let put = |number: u32| std::fs::write(root.path().join(format!("{number}.ready")), "12345678").unwrap();
        let room = Room::new(Limit { documents: 0, bytes: 8000 });
        let looked = || room.known().looked;
        let (mut looks, mut last) = (0, looked());
        let mut made = 0;
        while room.take(&output).unwrap() {
            looks += u32::from(looked() != last);
            last = looked();
            put(made);
            room.has_grown(8);
            made += 1;
        }
        assert_eq!(made, 1000, "it is full");
        assert!(looks <= 12, "{looks} looks at half of what is left each");
        // While it is full nobody looks before a part of it has gone.
        let full = looked();
        for number in 0..62 {
            std::fs::remove_file(root.path().join(format!("{number}.ready"))).unwrap();
            room.has_shrunk();
            let may = room.take(&output).unwrap();
            assert_eq!((may, looked() != full), (number == 61, number == 61), "{number}");
        }
    }
}
