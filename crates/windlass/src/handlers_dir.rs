//! The directory of handlers: each file in it serves the queue of its name, from the moment the file is there.
//!
//! One thread sleeps on the kernel's events of the directory and looks through it after each; a burst of new files
//! costs few looks. The engine is told which files there are; the board keeps a sentence for each that is refused or
//! gone, for whoever asks why a queue waits. While the directory is not there its nearest parent is watched. It must
//! not run anything, and what makes a file a handler is `look`'s affair.

mod look;

use crate::error::Failure;
use crate::inbox::watch::{Armed, Bell, Watch};
use crate::log::{Level, Log};
use crate::runner::progress::Board;
use look::{Looked, Looker};
use rustix::fs::inotify::WatchFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use windlass_core::policy::HandlerFiles;

/// The name of the crew that serves its programs, and of what ails the directory; no table of the config can have it.
pub const NAME: &str = ".handlers";
/// The same for its Lua modules.
pub const LUA_NAME: &str = ".handlers.lua";

/// So many queues are remembered whose file has gone.
const GONE_MOST: usize = 10_000;

/// Hears which files there are, whenever that has changed.
pub type Tell = Box<dyn Fn(HandlerFiles) + Send>;

/// What others ask of the thread.
#[derive(Debug, Default)]
struct Wishes {
    directory: Option<PathBuf>,
    stop: bool,
}

#[derive(Debug)]
struct Shared {
    wishes: Mutex<Wishes>,
    bell: Bell,
}

impl Shared {
    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        // Nothing can fail between two changes of it.
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to the thread; it ends with this.
#[derive(Debug)]
pub struct HandlersDir {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl HandlersDir {
    /// Looks through the directory, if there is one, tells what is in it, and goes on watching in a thread.
    pub fn watch(directory: Option<PathBuf>, board: Arc<Board>, log: Log, tell: Tell) -> Result<HandlersDir, Failure> {
        let wishes = Mutex::new(Wishes { directory, stop: false });
        let shared = Arc::new(Shared { wishes, bell: Bell::new()? });
        let mut watcher = Watcher {
            watch: None,
            board,
            log,
            tell,
            looker: Looker::default(),
            told: HandlerFiles::new(),
            refused: BTreeMap::new(),
            gone: BTreeSet::new(),
        };
        // What is there already is told before anybody can ask.
        let directory = shared.wishes().directory.clone();
        watcher.look(directory.as_deref());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("handlers".into()).spawn(move || watcher.serve(&theirs));
        let thread = thread.map_err(|e| Failure::io("cannot start a thread", &e))?;
        Ok(HandlersDir { shared, thread: Some(thread) })
    }

    /// Another directory holds from now on, or none.
    pub fn change(&self, directory: Option<PathBuf>) {
        self.shared.wishes().directory = directory;
        self.shared.bell.ring();
    }

    /// Watches no more.
    pub fn stop(&self) {
        self.shared.wishes().stop = true;
        self.shared.bell.ring();
    }
}

impl Drop for HandlersDir {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // One that panicked has told so itself.
            let _told = thread.join();
        }
    }
}

/// Fails with a sentence unless the directory can be used.
pub fn check(directory: &Path) -> Result<(), String> {
    Looker::default().look(directory).map(drop)
}

struct Watcher {
    /// Made with the first directory: the kernel gives a user few of them.
    watch: Option<Watch>,
    board: Arc<Board>,
    log: Log,
    tell: Tell,
    looker: Looker,
    /// What was told last, and what was said of the others.
    told: HandlerFiles,
    refused: BTreeMap<String, String>,
    gone: BTreeSet<Box<str>>,
}

impl Watcher {
    fn serve(&mut self, shared: &Shared) {
        loop {
            let (directory, stop) = {
                let wishes = shared.wishes();
                (wishes.directory.clone(), wishes.stop)
            };
            if stop {
                return;
            }
            // Armed before the look: what changes while we look is an event.
            let armed = directory.as_deref().map(|directory| self.arm(directory)).transpose();
            self.look(directory.as_deref());
            let waited = armed.and_then(|armed| match (&self.watch, armed.flatten()) {
                (Some(watch), Some(armed)) => watch.wait(&shared.bell).map(|()| watch.disarm(armed)),
                _ => shared.bell.wait(),
            });
            if let Err(failure) = waited {
                self.board.ails(NAME, Some(failure.text.clone()));
                return self.log.error(failure.text);
            }
        }
    }

    /// Watches the directory, or the nearest one above it where it may appear.
    fn arm(&mut self, directory: &Path) -> Result<Option<Armed>, Failure> {
        if self.watch.is_none() {
            self.watch = Some(Watch::new()?);
        }
        let Some(watch) = &self.watch else { return Ok(None) };
        let of_files = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        Ok(directory.ancestors().find_map(|place| watch.arm_for(place, of_files).ok()))
    }

    fn look(&mut self, directory: Option<&Path>) {
        let looked = match directory {
            None => Ok(Looked::default()),
            Some(directory) => self.looker.look(directory),
        };
        let (looked, trouble) = match looked {
            Ok(looked) => (looked, None),
            Err(trouble) => (Looked::default(), Some(trouble)),
        };
        if let Some(trouble) = &trouble {
            self.log.warn(trouble.clone());
        }
        self.board.ails(NAME, trouble.clone());
        let Looked { files, refused } = looked;
        for (name, why) in refused.iter().filter(|(name, why)| self.refused.get(*name) != Some(why)) {
            self.log.warn(format!("the handler file {name:?} serves nothing: {why}"));
        }
        self.gone.extend(self.told.keys().filter(|name| !files.contains_key(*name)).cloned());
        self.gone.retain(|name| !files.contains_key(name) && directory.is_some());
        while self.gone.len() > GONE_MOST {
            self.gone.pop_first();
        }
        let mut notes: BTreeMap<String, String> = BTreeMap::new();
        if let Some(directory) = directory {
            let gone = |name: &str| format!("its handler {} is not there any more", directory.join(name).display());
            let why = |name: &str| trouble.clone().unwrap_or_else(|| gone(name));
            notes.extend(self.gone.iter().map(|name| (name.to_string(), why(name))));
        }
        let shown = |name: &str| name.strip_suffix(look::LUA).unwrap_or(name).to_owned();
        notes.extend(refused.iter().map(|(name, why)| (shown(name), format!("its handler file {name:?} {why}"))));
        notes.retain(|name, _| !files.contains_key(name.as_str()));
        self.board.note_handlers(notes);
        self.refused = refused;
        if files != self.told {
            let missing = |these: &HandlerFiles, those: &HandlerFiles| {
                these.iter().filter(|(name, kind)| those.get(*name) != Some(kind)).count()
            };
            let (came, went) = (missing(&files, &self.told), missing(&self.told, &files));
            self.told = files.clone();
            (self.tell)(files);
            self.log.say(Level::Info, "handlers", vec![("came", came.into()), ("went", went.into())]);
        }
    }
}

#[cfg(test)]
mod tests;
