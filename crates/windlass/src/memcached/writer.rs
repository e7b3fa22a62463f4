//! The thread that writes the book to the memcached.
//!
//! It sleeps until somebody notes something, a file changes in which a command speaks, or the memcached goes away.
//! After a failure it tries again after a pause. A memcached that was started again has forgotten everything, so what
//! runs is then written anew. It must not hold the book while it waits for anybody.

use super::book::Book;
use super::connection::{Address, Connection};
use super::{Look, Words};
use crate::clock;
use crate::error::Failure;
use crate::inbox::watch::Watch;
use crate::log::{Level, Log};
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::job::JobId;

/// What is noted waits so long for others to go with it: a job that says more often how far it is costs no more.
const GATHERED_FOR: Duration = Duration::from_millis(100);
/// The most values that go together.
const TOGETHER_MOST: usize = 64;
/// After a failure the next try comes after this time.
const PAUSE: Duration = Duration::from_secs(1);
/// So often files are looked at of which the kernel tells nothing.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    address: Address,
    keep: Duration,
    log: Log,
    book: Arc<Book>,
    look: Look,
    watch: Watch,
    watched: HashMap<i32, PathBuf>,
    /// Directories that are not watched, because they are not there yet or the kernel has no more watches.
    unwatched: Vec<PathBuf>,
    connection: Option<Connection>,
    /// The memcached failed: when to try again.
    again_at: Option<Instant>,
    /// What runs is written anew then, so that it does not die of age.
    fresh_until: Instant,
    /// It was said that it is not kept; so many were dropped meanwhile.
    troubled: bool,
    dropped: u64,
    refusal_said: bool,
}

impl Writer {
    pub(super) fn new(address: Address, keep: Duration, log: Log, book: Arc<Book>, look: Look) -> Writer {
        Writer {
            address,
            keep,
            log,
            book,
            look,
            // Where no more is to be had it looks by itself.
            watch: Watch::new().unwrap_or_else(|_| Watch::blind()),
            watched: HashMap::new(),
            unwatched: Vec::new(),
            connection: None,
            again_at: None,
            fresh_until: Instant::now() + keep / 2,
            troubled: false,
            dropped: 0,
            refusal_said: false,
        }
    }

    pub(super) fn serve(mut self) {
        loop {
            self.sleep();
            let closing = self.book.gather(GATHERED_FOR);
            self.hear();
            self.refresh();
            let written = self.write();
            if closing && (written.is_err() || !self.book.has_due()) {
                self.book.is_over();
                return;
            }
        }
    }

    fn sleep(&mut self) {
        let now = Instant::now();
        let again = self.again_at.filter(|_| self.book.has_due());
        let fresh = Some(self.fresh_until).filter(|_| self.book.has_any());
        let look = Some(now + LOOK_EVERY).filter(|_| !self.unwatched.is_empty());
        let most = [again, fresh, look].into_iter().flatten().min().map(|at| at.saturating_duration_since(now));
        let other = self.connection.as_ref().map(AsFd::as_fd);
        match self.watch.wait_beside(&self.book.bell, other, most) {
            Ok(false) => {}
            // It says something that nobody asked for: the connection is closed, and it may have forgotten everything.
            Ok(true) => self.lost(),
            Err(failure) => {
                self.log.warn(failure.text);
                self.book.gather(LOOK_EVERY);
            }
        }
    }

    fn lost(&mut self) {
        self.connection = None;
        self.book.all_again();
    }

    /// Takes in what stands in the files of commands.
    fn hear(&mut self) {
        let mut places: BTreeSet<PathBuf> = BTreeSet::new();
        let tried = std::mem::take(&mut self.unwatched).into_iter().chain(self.book.new_directories());
        for directory in tried.collect::<Vec<_>>() {
            match self.watch.arm_for(&directory, WatchFlags::MODIFY.union(WatchFlags::ONLYDIR)) {
                Ok(armed) if !self.watch.is_blind() => drop(self.watched.insert(armed.number(), directory.clone())),
                Ok(_) | Err(_) => self.unwatched.push(directory.clone()),
            }
            // Something may stand there since before it was watched.
            places.insert(directory);
        }
        let (mut speakers, mut gone) = (BTreeSet::<JobId>::new(), Vec::new());
        self.watch.read(|number, what, name| {
            let Some(directory) = self.watched.get(&number) else {
                places.extend(self.watched.values().filter(|_| what.contains(ReadFlags::QUEUE_OVERFLOW)).cloned());
                return;
            };
            if what.contains(ReadFlags::IGNORED) {
                gone.push(number);
            }
            speakers.extend(name.and_then(|name| self.book.speaker(&directory.join(OsStr::from_bytes(name)))));
        });
        self.unwatched.extend(gone.iter().filter_map(|number| self.watched.remove(number)));
        if !places.is_empty() {
            speakers.extend(self.book.speakers(|file| file.parent().is_some_and(|of| places.contains(of))));
        }
        for job in speakers {
            if let Some(words) = (self.look)(job).filter(|words| *words != Words::default()) {
                self.book.said(job, || words, clock::now());
            }
        }
    }

    fn refresh(&mut self) {
        if Instant::now() >= self.fresh_until {
            self.fresh_until = Instant::now() + self.keep / 2;
            self.book.all_again();
        }
    }

    /// Writes what is due; an error says that the memcached does not take it now.
    fn write(&mut self) -> Result<(), ()> {
        if self.again_at.is_some_and(|at| Instant::now() < at) {
            return Err(());
        }
        loop {
            let items = self.book.take(TOGETHER_MOST);
            if items.is_empty() {
                self.account(None);
                return Ok(());
            }
            let keep = self.keep;
            let set = self.connected().and_then(|connection| connection.set(&items, keep));
            match set {
                Ok((refused, why)) => {
                    self.again_at = None;
                    self.book.done(&items, refused);
                    self.account(why);
                }
                Err(failure) => {
                    self.book.undone(&items);
                    self.lost();
                    self.again_at = Some(Instant::now() + PAUSE);
                    self.account(Some(failure.text));
                    return Err(());
                }
            }
        }
    }

    fn connected(&mut self) -> Result<&mut Connection, Failure> {
        match &mut self.connection {
            Some(open) => Ok(open),
            none => Ok(none.insert(Connection::open(&self.address)?)),
        }
    }

    /// Says that nothing is kept when that begins, and how much was dropped when it is over.
    fn account(&mut self, trouble: Option<String>) {
        let (dropped, refusal) = self.book.losses();
        self.dropped += dropped;
        if let Some(refusal) = refusal.filter(|_| !self.refusal_said) {
            self.refusal_said = true;
            self.log.say(Level::Warn, "progress of a job is not kept", vec![("error", refusal.into())]);
        }
        match trouble {
            Some(error) if !self.troubled => {
                self.troubled = true;
                self.log.say(Level::Warn, "progress is not kept", vec![("error", error.into())]);
            }
            None if self.troubled => {
                self.troubled = false;
                let dropped = ("dropped", std::mem::take(&mut self.dropped).into());
                self.log.say(Level::Info, "progress is kept again", vec![dropped]);
            }
            Some(_) | None => {}
        }
    }
}
