//! The directory of handlers: each file in it serves the queue of its name, from the moment the file is there.
//!
//! One thread sleeps on the kernel's events of the directory and looks through it when there were some; a burst of new
//! files costs few looks. The engine is told which files there are; the board keeps a sentence for each that is refused
//! or gone, for whoever asks why a queue waits. Whoever must not miss a file that is there already asks for a look
//! first. It must not run anything; what makes a file a handler is `look`'s affair, what can change it `path_watch`'s.

mod look;
mod path_watch;

use crate::error::Failure;
use crate::inbox::watch::Bell;
use crate::log::{Level, Log};
use crate::runner::progress::Board;
use look::{Looked, Looker};
use path_watch::PathWatch;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use windlass_core::policy::HandlerFiles;

/// The name of the crew that serves its programs, and of what ails the directory; no table of the config can have it.
pub const NAME: &str = ".handlers";
/// The same for its Lua modules.
pub const LUA_NAME: &str = ".handlers.lua";

/// So many queues are remembered whose file has gone.
const GONE_MOST: usize = 10_000;

/// Hears which files there are, whenever that has changed.
pub type Tell = Box<dyn Fn(HandlerFiles) + Send>;

/// While the directory cannot be watched it is looked through this often.
const UNWATCHED_LOOK: Duration = Duration::from_secs(1);
/// After a look the thread rests for so many times as long as it took, unless somebody asks: a long burst of new files
/// in a large directory must not keep a processor busy.
const REST: u32 = 4;
/// The kernel tells that a writer closes a file a moment before it is closed: who looked in that moment looks again.
const SECOND_LOOKS: [Duration; 3] = [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

type Then = Box<dyn FnOnce() + Send>;

/// What others ask of the thread.
#[derive(Default)]
struct Wishes {
    directory: Option<PathBuf>,
    /// Done after the next look, or as soon as it is sure that none is needed.
    thens: Vec<Then>,
    stop: bool,
}

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
pub struct HandlersDir {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for HandlersDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandlersDir")
    }
}

impl HandlersDir {
    /// Looks through the directory, if there is one, tells what is in it, and goes on watching in a thread.
    pub fn watch(directory: Option<PathBuf>, board: Arc<Board>, log: Log, tell: Tell) -> Result<HandlersDir, Failure> {
        let mut watcher = Watcher {
            directory: None,
            watch: None,
            board,
            log,
            tell,
            looker: Looker::default(),
            told: HandlerFiles::new(),
            refused: BTreeMap::new(),
            gone: BTreeSet::new(),
            unfinished: None,
            trouble: None,
        };
        // What is there already is told before anybody can ask.
        watcher.keep_up(directory.as_deref(), true);
        let wishes = Mutex::new(Wishes { directory, ..Wishes::default() });
        let shared = Arc::new(Shared { wishes, bell: Bell::new()? });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("handlers".into()).spawn(move || watcher.serve(&theirs));
        let thread = thread.map_err(|e| Failure::io("cannot start a thread", &e))?;
        Ok(HandlersDir { shared, thread: Some(thread) })
    }

    /// Another directory holds from now on, or none: what is in it has been told when this returns.
    pub fn change(&self, directory: Option<PathBuf>) {
        self.shared.wishes().directory = directory;
        let (done, is_done) = mpsc::channel::<()>();
        self.after_look(move || drop(done));
        // Nothing is sent: the wait is over when the other end is gone, with the look or with the thread.
        let _gone = is_done.recv();
    }

    /// Does this when every file that is there now has been told of.
    pub fn after_look(&self, then: impl FnOnce() + Send + 'static) {
        let mut wishes = self.shared.wishes();
        if wishes.stop {
            drop(wishes);
            return then();
        }
        wishes.thens.push(Box::new(then));
        drop(wishes);
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

/// What serves now; nothing where the directory cannot be used, which whoever watches it says.
pub fn files_in(directory: &Path) -> HandlerFiles {
    Looker::default().look(directory).map(|looked| looked.files).unwrap_or_default()
}

struct Watcher {
    /// The one that was looked through last.
    directory: Option<PathBuf>,
    /// Made with the first directory: the kernel gives a user few of them. None while it cannot be had.
    watch: Option<PathWatch>,
    board: Arc<Board>,
    log: Log,
    tell: Tell,
    looker: Looker,
    /// What was told last, and what was said of the others.
    told: HandlerFiles,
    refused: BTreeMap<String, String>,
    gone: BTreeSet<Box<str>>,
    /// The last look saw files that somebody still writes; how many looks since the last news did.
    unfinished: Option<usize>,
    trouble: Option<String>,
}

impl Watcher {
    fn serve(&mut self, shared: &Shared) {
        let mut due = false;
        loop {
            let Wishes { directory, thens, stop } = {
                let mut wishes = shared.wishes();
                let thens = std::mem::take(&mut wishes.thens);
                Wishes { directory: wishes.directory.clone(), thens, stop: wishes.stop }
            };
            let begun = Instant::now();
            let looked = !stop && self.keep_up(directory.as_deref(), due || !thens.is_empty());
            thens.into_iter().for_each(|then| then());
            if stop {
                return;
            }
            let rest = begun.elapsed() * REST;
            due = !looked;
            let slept = match (&self.watch, &directory) {
                _ if looked => shared.bell.wait_up_to(rest),
                (Some(watch), _) => watch.wait(&shared.bell, self.second_look()),
                (None, Some(_)) => shared.bell.wait_up_to(UNWATCHED_LOOK),
                (None, None) => shared.bell.wait(),
            };
            if let Err(failure) = slept {
                // The machine is short of something: what cannot sleep rests.
                self.log.error(failure.text);
                std::thread::park_timeout(UNWATCHED_LOOK);
            }
        }
    }

    /// Looks through the directory if anything has happened since the last look, or where that is not known and a look
    /// is due; false where there was no need.
    fn keep_up(&mut self, directory: Option<&Path>, due: bool) -> bool {
        let news = self.directory.as_deref() != directory || self.watch.as_ref().is_some_and(PathWatch::has_news);
        let unknown = self.unfinished.is_some() || directory.is_some() && self.watch.is_none();
        if !(news || due && unknown) {
            return false;
        }
        let looks = self.unfinished.take().filter(|_| !news).unwrap_or(0);
        self.directory = directory.map(Path::to_owned);
        // Armed before the look: what changes while we look is news.
        let unwatched = match directory {
            Some(directory) => self.arm(directory).err().map(|failure| failure.to_string()),
            None => {
                self.watch = None;
                None
            }
        };
        if self.look(directory, unwatched) {
            self.unfinished = Some(looks + 1);
        }
        true
    }

    /// How soon a file that somebody wrote at the last look may have been closed without further news.
    fn second_look(&self) -> Option<Duration> {
        SECOND_LOOKS.get(self.unfinished?.checked_sub(1)?).copied()
    }

    fn arm(&mut self, directory: &Path) -> Result<(), Failure> {
        let mut watch = self.watch.take().map_or_else(PathWatch::new, Ok)?;
        watch.arm(directory)?;
        self.watch = Some(watch);
        Ok(())
    }

    /// Looks, tells what has changed, and says what ails the directory; `unwatched` is why it cannot be watched. True
    /// where a file is still being written.
    fn look(&mut self, directory: Option<&Path>, unwatched: Option<String>) -> bool {
        let looked = match directory {
            None => Ok(Looked::default()),
            Some(directory) => self.looker.look(directory),
        };
        let (looked, trouble) = match looked {
            Ok(looked) => (looked, None),
            Err(trouble) => (Looked::default(), Some(trouble)),
        };
        self.ails(trouble.clone().or(unwatched));
        let Looked { files, refused, unfinished } = looked;
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
        unfinished
    }

    /// Says what is wrong, in the log once.
    fn ails(&mut self, trouble: Option<String>) {
        if let Some(trouble) = trouble.as_ref().filter(|new| self.trouble.as_ref() != Some(new)) {
            self.log.warn(trouble.clone());
        }
        self.board.ails(NAME, trouble.clone());
        self.trouble = trouble;
    }
}

#[cfg(test)]
mod tests;
