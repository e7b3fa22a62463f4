//! What jobs say of their progress, kept in a memcached as well (`[progress]` of the config).
//!
//! Whoever has something to say notes it and goes on. A thread of its own writes the newest of each job; what a
//! memcached that is slow, dead or unwilling does not take waits in a book of bounded size, of which the oldest ends go
//! first, and what found no room is counted and said in the log. It must not hold up anybody, and without a memcached
//! in the config there is no thread. `book` has what waits, `writer` the thread, `connection` the protocol.

mod book;
mod connection;
mod writer;

pub use connection::Address;

use crate::clock;
use crate::error::Failure;
use crate::inbox::watch::Bell;
use crate::log::Log;
use crate::runner::Start;
use crate::store::Held;
use book::Book;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::job::{JobId, QueueName};
use windlass_core::life_cycle::State;
use windlass_core::progress::{Facts, KeyTemplate, NoKey};
use writer::Writer;

/// The longest life time that a memcached takes for one.
pub const KEEP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long the end of a server waits for its last words to be taken.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// `[progress]` of the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressOptions {
    /// Nothing is copied where there is none.
    pub memcached: Option<Address>,
    pub key: KeyTemplate,
    /// How long the memcached keeps what was written last.
    pub keep: Duration,
}

impl Default for ProgressOptions {
    fn default() -> ProgressOptions {
        ProgressOptions { memcached: None, key: KeyTemplate::default(), keep: Duration::from_secs(3600) }
    }
}

/// What a running job has said so far, the last word of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// `N/M TEXT`, as it was written.
    pub progress: Option<String>,
    pub phase: Option<String>,
}

/// Reads what a running job has said; nothing where it does not run.
pub type Look = Box<dyn Fn(JobId) -> Option<Words> + Send>;

/// The way to the thread; cheap to clone, and never waits for it.
#[derive(Clone, Debug, Default)]
pub struct Copies(Option<Arc<Way>>);

#[derive(Debug)]
struct Way {
    book: Arc<Book>,
    template: KeyTemplate,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.book.close();
    }
}

impl Copies {
    /// Starts the thread, if there is a memcached to write to.
    pub fn start(options: ProgressOptions, log: Log, look: Look) -> Result<Copies, Failure> {
        let Some(address) = options.memcached else { return Ok(Copies::default()) };
        let book = Arc::new(Book::new(Bell::new()?));
        let writer = Writer::new(address, options.keep, log, Arc::clone(&book), look);
        std::thread::Builder::new()
            .name("memcached".into())
            .spawn(move || writer.serve())
            .map_err(|e| Failure::io("cannot start the thread of the memcached", &e))?;
        Ok(Copies(Some(Arc::new(Way { book, template: options.key }))))
    }

    /// Whether anything is copied at all.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// All jobs of a start are given to whoever does them.
    pub fn begun(&self, start: &Start) {
        let Some(way) = &self.0 else { return };
        for position in 0..start.count() {
            let (queue, held, index) = start.job(position);
            if let Some(key) = way.key(held, index, queue) {
                way.book.begun(held.jobs.id(index), key, held.start(), clock::now());
            }
        }
    }

    /// A job that was begun speaks in this file from now on, until it is silent.
    pub fn speaks_in(&self, job: JobId, file: &Path) {
        if let Some(way) = &self.0 {
            way.book.speaks_in(job, file);
        }
    }

    /// Nothing that stands in its file from now on is its own.
    pub fn silent(&self, job: JobId) {
        if let Some(way) = &self.0 {
            way.book.silent(job);
        }
    }

    /// What a job has said by now.
    pub fn said(&self, job: JobId, words: impl FnOnce() -> Words) {
        if let Some(way) = &self.0 {
            way.book.said(job, words, clock::now());
        }
    }

    /// Some jobs are in this state now, and this is on disk.
    pub fn ended(&self, held: &Held, queue: &QueueName, state: State) {
        let Some(way) = &self.0 else { return };
        for index in held.range() {
            if let Some(key) = way.key(held, index, queue) {
                way.book.ended(held.jobs.id(index), key, held.start(), state, clock::now());
            }
        }
    }

    /// Waits until everything that was noted is written, but not for a memcached that is slow; the thread ends.
    pub fn flush(&self) {
        if let Some(way) = &self.0 {
            way.book.close();
            way.book.wait_until_over(LAST_WORDS);
        }
    }
}

impl Way {
    fn key(&self, held: &Held, index: usize, queue: &QueueName) -> Option<String> {
        let id = held.jobs.id(index).to_string();
        let particulars = held.jobs.particulars();
        let unique = particulars.and_then(|of| of.unique.as_ref()?.key.as_deref());
        let subject = particulars.and_then(|of| of.subject.as_ref());
        let facts = Facts {
            subject: subject.map(|subject| (subject.kind.as_str(), subject.id.as_str())),
            key: unique.and_then(|key| std::str::from_utf8(key).ok()),
            id: &id,
            queue: queue.as_str(),
        };
        match self.template.fill(&facts) {
            Ok(key) => Some(key),
            Err(NoKey::Lacks) => None,
            Err(too_long @ NoKey::TooLong(_)) => {
                self.book.refused(|| format!("{too_long}, for the job {id}"));
                None
            }
        }
    }
}
