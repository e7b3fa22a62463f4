//! The way from a directory into a store: each document becomes a job, once.
//!
//! A driver claims the document, and its text is pushed with a key that only this file has; the document goes when
//! the job is on disk. Whoever was killed in between pushes it again, and the store says that it has it. It must not
//! let a document go that is not in the store.

use super::part::Part;
use super::tally::Tally;
use crate::engine::Event;
use crate::error::{Failure, Kind};
use crate::runner::handler::{Batch, Handlers, Verdicts};
use crate::spool::directory::{Directory, Facts};
use crate::spool::pipeline::{Writers, limit_of};
use crate::spool::{LOOK, Order, Task};
use crate::store::chunk::ChunkBuilder;
use crate::store::{Durability, Lot, NewJobs};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use windlass_core::document::{DocId, Name};
use windlass_core::job::{DATA_MAX, JobId, Priority, QueueName};
use windlass_core::outcome::Outcome;
use windlass_core::particulars::{OnConflict, Particulars, Scope, Subject, Unique};
use windlass_core::policy::{Policy, Service};

/// So many hand in at once, and share a commit.
const DRIVERS: u32 = 8;
/// What the subject of a job is that was a document; its id is the document's name.
const SUBJECT: &str = "document";

pub(super) struct Entry {
    directory: Directory,
    fed: Arc<AtomicBool>,
    queue: QueueName,
    /// So many may be on their way at once; nought for any number.
    limit: u64,
    part: Arc<Part>,
    tally: Arc<Tally>,
}

impl Entry {
    pub(super) fn new(before: &Writers, rules: &Policy, part: Arc<Part>, tally: &Arc<Tally>) -> Result<Entry, Failure> {
        let queue = QueueName::new(rules.pattern.as_bytes());
        let queue = queue.map_err(|e| Failure::new(Kind::Internal, e.to_string()))?;
        let (directory, fed) = (before.directory.clone(), Arc::clone(&before.have_left));
        Ok(Entry { directory, fed, queue, limit: limit_of(rules).documents, part, tally: Arc::clone(tally) })
    }

    /// Drivers that hand in. Whatever kills them is no fault of a document.
    pub(super) fn order(self) -> Order {
        let name = self.queue.as_str().to_owned();
        let input = self.directory.path().to_owned();
        let fed = Arc::clone(&self.fed);
        let policy = Policy::new(&name, Service::Handler { name: name.clone(), batch: 1 });
        let handlers = Handlers::new().on(name, move |batch| self.hand_in(batch)).on_threads(DRIVERS as usize);
        let files = Task::Files { output: None };
        Order { drivers: DRIVERS, handlers, tries: 0, closes: false, fed, ..Order::new(input, files, policy) }
    }

    fn hand_in(&self, batch: &Batch<'_>) -> Verdicts {
        let path = batch.jobs().next().map(|(_, data)| data).unwrap_or_default();
        let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let (particulars, text) = match self.read(file) {
            Ok(read) => read,
            Err(error) => return Outcome::FailedForGood { error }.into(),
        };
        match self.push(particulars, &text) {
            Ok(true) => Verdicts::succeeded(),
            Ok(false) => Outcome::Interrupted.into(),
            Err(failure) => {
                self.part.stoppers.fail_for(failure);
                Outcome::Interrupted.into()
            }
        }
    }

    /// The text of a document and what its job is known by; an error is why it cannot be one.
    fn read(&self, file: &[u8]) -> Result<(Particulars, Vec<u8>), String> {
        let cannot = |e: std::io::Error| format!("cannot read it: {e}");
        let doc = Name::of(file).and_then(|name| DocId::new(name.document).ok()).ok_or("it has no name")?;
        let opened = self.directory.open_regular(file, false).map_err(cannot)?;
        let opened = opened.ok_or("cannot read it: it is no file any more")?;
        let Facts { inode, size, modified, .. } = Facts::of_file(&opened).map_err(cannot)?;
        let mut text = Vec::new();
        opened.take(DATA_MAX as u64 + 1).read_to_end(&mut text).map_err(cannot)?;
        if text.len() > DATA_MAX {
            return Err(format!("it has {size} bytes, and the data of a job has {DATA_MAX} at most"));
        }
        let key = Some(doc.key(inode, size, modified).into_bytes());
        let unique = Some(Unique { scope: Scope::Run, on_conflict: OnConflict::Ignore, key });
        let subject = Some(Subject { kind: SUBJECT.into(), id: doc.to_string() });
        let particulars = Particulars { unique, subject, ..Particulars::default() };
        match particulars.check() {
            Ok(()) => Ok((particulars, text)),
            // A name that is no subject, which may be very long as text, is left out.
            Err(_) => Ok((Particulars { subject: None, ..particulars }, text)),
        }
    }

    /// Pushes it when there is room; false where all is to end before.
    fn push(&self, particulars: Particulars, text: &[u8]) -> Result<bool, Failure> {
        let handle = &self.part.handle;
        let (origin, offset) = handle.ids().take(1);
        let (name, id) = (self.queue.as_str(), JobId { origin, offset });
        while !self.tally.sets_out(name, id, self.limit, LOOK) {
            if self.part.stoppers.is_over() {
                return Ok(false);
            }
        }
        let mut jobs = ChunkBuilder::new(origin).with(Some(Arc::new(particulars)));
        jobs.push(offset, text);
        let (queue, run, jobs) = (self.queue.clone(), Some(self.part.run), Arc::new(jobs.finish()));
        let new = NewJobs { queue, priority: Priority::NORMAL, run, not_before: None, jobs };
        let lot = Lot { jobs: vec![new], ..Lot::default() };
        let pushed = handle.ask(|answer| Event::Pushed { lot, durability: Durability::Full, answer });
        if !pushed.as_ref().is_ok_and(Vec::is_empty) {
            self.tally.does_not(name, id);
        }
        pushed.map(|_| true)
    }
}
