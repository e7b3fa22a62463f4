//! Watches a directory by its path: its files, and everything that decides what the path leads to.
//!
//! The kernel tells of what happens in a directory, and of a directory that is moved or removed itself, but not of one
//! above it that takes it along. So each directory on the way is watched for its own end, and the one around a link,
//! around what is not there yet, or around the directory, for that name alone. It must not look at any file.

use crate::error::Failure;
use crate::inbox::watch::{Armed, Bell, Watch};
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// What happens to a directory as a whole.
const ITSELF: WatchFlags =
    WatchFlags::MOVE_SELF.union(WatchFlags::DELETE_SELF).union(WatchFlags::ONLYDIR).union(WatchFlags::MASK_ADD);
/// What makes a name lead elsewhere.
const NAMES: WatchFlags = WatchFlags::CREATE.union(WatchFlags::DELETE).union(WatchFlags::MOVE).union(ITSELF);
/// What may make a handler of a file, or no handler of one.
const FILES: WatchFlags = WatchFlags::ATTRIB.union(WatchFlags::CLOSE_WRITE).union(NAMES);

#[derive(Debug)]
pub(super) struct PathWatch {
    watch: Watch,
    armed: Vec<Armed>,
    /// The watch over the directory itself, where it is there.
    inside: Option<i32>,
    /// The names on the way whose coming and going matters.
    names: BTreeSet<OsString>,
}

impl PathWatch {
    pub(super) fn new() -> Result<PathWatch, Failure> {
        Ok(PathWatch { watch: Watch::new()?, armed: Vec::new(), inside: None, names: BTreeSet::new() })
    }

    /// Watches what the path leads to now. Whoever looks after this hears of everything that the look has not seen.
    pub(super) fn arm(&mut self, directory: &Path) -> Result<(), Failure> {
        self.watch.disarm(self.armed.drain(..));
        self.inside = None;
        self.names.clear();
        let mut way: Vec<&Path> = directory.ancestors().filter(|place| !place.as_os_str().is_empty()).collect();
        way.reverse();
        let mut around: Option<&Path> = None;
        for place in way {
            let is_link = place.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
            // A removed directory tells of its own end when nobody has it open any more, the one around it at once.
            if is_link || place == directory || !place.is_dir() {
                self.names.extend(place.file_name().map(OsStr::to_owned));
                self.add(around.unwrap_or(place), NAMES)?;
            }
            let found = self.add(place, if place == directory { FILES } else { ITSELF })?;
            if place == directory {
                self.inside = found;
            }
            around = Some(place);
        }
        // Where a link leads has a way of its own.
        let canonical = directory.canonicalize().unwrap_or_default();
        for place in canonical.ancestors().filter(|place| !place.as_os_str().is_empty()) {
            self.add(place, ITSELF)?;
        }
        Ok(())
    }

    /// Watches one place; none where it is not there, or may not be watched by us.
    fn add(&mut self, place: &Path, flags: WatchFlags) -> Result<Option<i32>, Failure> {
        match self.watch.arm_for(place, flags) {
            Ok(armed) => {
                let number = armed.number();
                self.armed.push(armed);
                Ok(Some(number))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP) => Ok(None),
            Err(error) => {
                let cannot = Failure::io(format_args!("cannot watch {}", place.display()), &error.into());
                Err(if error == Errno::NOSPC { cannot.hint("raise fs.inotify.max_user_watches") } else { cannot })
            }
        }
    }

    /// Sleeps until something happens or the bell rings, but no longer than this.
    pub(super) fn wait(&self, bell: &Bell, most: Option<Duration>) -> Result<(), Failure> {
        self.watch.wait_up_to(bell, most)
    }

    /// True where something happened since it was armed that may change what a look sees.
    pub(super) fn has_news(&self) -> bool {
        let mut news = self.watch.is_blind();
        self.watch.read(|number, what, name| {
            // What we took back ourselves; a directory that is gone has said so before.
            let ended = what.contains(ReadFlags::IGNORED);
            let ours = |name: &OsStr| Some(number) == self.inside || self.names.contains(name);
            news |= !ended && name.is_none_or(|name| ours(OsStr::from_bytes(name)));
        });
        news
    }
}
