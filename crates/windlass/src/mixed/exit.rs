//! The way from a store into a directory: what jobs hand on to a stage elsewhere becomes documents there, each once.
//!
//! It takes two jobs. The first writes the document beside the directory (`spool::coming`), under the job's own id, and
//! emits the second, which gives it its name: that is stored in the transaction that ends the first. It must not give
//! a name to a document whose first job has not ended.

use crate::error::Failure;
use crate::runner::handler::{Batch, Handlers, Verdicts};
use crate::spool::coming::Coming;
use crate::spool::directory::Directory;
use crate::spool::pipeline::{Stoppers, limit_of};
use crate::spool::{Entrance, Queue};
use std::io::Error;
use std::sync::Arc;
use windlass_core::document::DocId;
use windlass_core::outcome::Outcome;
use windlass_core::pipeline::Flow;
use windlass_core::policy::{Policy, Service};

/// So many share the syncs of a directory.
const BATCH: u32 = 64;
/// Who writes while others sync.
const SLOTS: u32 = 2;

pub(super) struct Exit {
    /// The queue that stands for the stage in the store, and that of the names.
    queue: String,
    names: String,
    flow: Option<Flow>,
    directory: Directory,
    coming: Coming,
    entrance: Entrance,
    stoppers: Arc<Stoppers>,
}

impl Exit {
    pub(super) fn new(directory: &Directory, rules: &Policy, stoppers: Arc<Stoppers>) -> Result<Exit, Failure> {
        let place = directory.path();
        let cannot = |e: Error| Failure::io(format_args!("cannot write into {}", place.display()), &e);
        let coming = Coming::into(&Queue::open(place)?).map_err(cannot)?;
        let queue = rules.pattern.clone();
        // The stages before it are held by its limit here, too; nothing goes on from it.
        let flow = rules.flow.clone().map(|flow| Flow { to: Vec::new(), held_by: Vec::new(), ..flow });
        let entrance = Entrance::new(directory, limit_of(rules));
        Ok(Exit {
            names: format!("{queue}.name"),
            queue,
            flow,
            directory: directory.clone(),
            coming,
            entrance,
            stoppers,
        })
    }

    /// What serves the two queues.
    pub(super) fn serve(self, handlers: Handlers) -> (Vec<Policy>, Handlers) {
        let served = |name: &str, slots, batch| {
            let policy = Policy::new(name, Service::Handler { name: name.to_owned(), batch });
            Policy { slots, ..policy }
        };
        // Where there is a limit each waits for room of its own, one after the other.
        let (slots, batch) = if self.entrance.is_limited() { (1, 1) } else { (SLOTS, BATCH) };
        let first = Policy { flow: self.flow.clone(), ..served(&self.queue, slots, batch) };
        let policies = vec![first, served(&self.names, SLOTS, BATCH)];
        let (queue, names) = (self.queue.clone(), self.names.clone());
        let writer = Arc::new(self);
        let namer = Arc::clone(&writer);
        let handlers = handlers.on(queue, move |batch| writer.settle(writer.write(batch)));
        (policies, handlers.on(names, move |batch| namer.settle(namer.name(batch))))
    }

    /// A directory that cannot be written to ends the pipeline; no job is charged for it.
    fn settle(&self, done: Result<bool, Failure>) -> Verdicts {
        match done {
            Ok(true) => Verdicts::succeeded(),
            Ok(false) => Outcome::Interrupted.into(),
            Err(failure) => {
                self.stoppers.fail_for(failure);
                Outcome::Interrupted.into()
            }
        }
    }

    fn cannot(&self) -> impl Fn(Error) -> Failure + '_ {
        |e| Failure::io(format_args!("cannot write into {}", self.directory.path().display()), &e)
    }

    /// Writes each, when there is room for it; false where all is to end before.
    fn write(&self, batch: &Batch<'_>) -> Result<bool, Failure> {
        for _ in 0..batch.len() {
            while !self.entrance.wait(None)? {
                if self.stoppers.is_over() || batch.is_stopping() {
                    return Ok(false);
                }
            }
        }
        for (position, (id, mut data)) in (0..).zip(batch.jobs()) {
            let name = id.to_string();
            let doc = DocId::new(name.as_bytes()).map_err(|why| self.cannot()(Error::other(why.to_string())))?;
            let size = self.coming.write(&doc, &mut data).map_err(self.cannot())?;
            self.entrance.has_grown(size);
            let emitted = batch.emit(position, &self.names, name.into_bytes());
            emitted.map_err(|e| self.cannot()(Error::other(e.to_string())))?;
        }
        self.coming.sync().map_err(self.cannot())?;
        Ok(true)
    }

    fn name(&self, batch: &Batch<'_>) -> Result<bool, Failure> {
        let named = batch.jobs().try_for_each(|(_, name)| {
            let doc = DocId::new(name).map_err(|why| Error::other(why.to_string()))?;
            self.coming.name(&doc).map(drop)
        });
        named.and_then(|()| self.coming.sync_names()).map_err(self.cannot())?;
        Ok(true)
    }
}
