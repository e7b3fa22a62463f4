//! How the doors reach the engine: a sender of events, and a source of ids.

use super::condition::{Condition, Shown};
use super::event::{Answer, Event};
use crate::error::{Failure, Kind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, sync_channel};
use windlass_core::job::{JobId, Origin};

/// A door's end of the engine; cheap to clone.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    events: Sender<Event>,
    ids: Arc<IdSource>,
    shown: Arc<Shown>,
}

impl EngineHandle {
    pub fn new(events: Sender<Event>, ids: Arc<IdSource>) -> EngineHandle {
        EngineHandle { events, ids, shown: Arc::default() }
    }

    /// Hands over an event; it fails only when the engine has ended.
    pub fn send(&self, event: Event) -> Result<(), Failure> {
        self.events.send(event).map_err(|_| ended())
    }

    /// Asks and waits: for threads that may block.
    pub fn ask<T: Send + 'static>(&self, question: impl FnOnce(Answer<T>) -> Event) -> Result<T, Failure> {
        let (give, answer) = sync_channel(1);
        self.send(question(Answer::new(move |result| {
            // A door that has gone away no longer wants its answer.
            let _ = give.send(result);
        })))?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// What the engine was up to after its last turn.
    pub fn condition(&self) -> Condition {
        self.shown.get()
    }

    /// How often ready work did not start although nothing held it.
    pub fn stalemates(&self) -> u64 {
        self.shown.stalemates()
    }

    /// The share of the time since the engine began that its turns have taken.
    pub fn busy(&self) -> f64 {
        self.shown.busy()
    }

    /// Where the engine's thread writes its condition.
    pub fn shown(&self) -> Arc<Shown> {
        Arc::clone(&self.shown)
    }

    pub fn ids(&self) -> &IdSource {
        &self.ids
    }
}

/// Ids of jobs that come through the socket: the store's origin of this opening, and a counter.
#[derive(Debug)]
pub struct IdSource {
    origin: Origin,
    next: AtomicU64,
}

impl IdSource {
    pub fn new(origin: Origin) -> IdSource {
        IdSource { origin, next: AtomicU64::new(0) }
    }

    /// Whether this is an id that a later job would get.
    pub fn will_give(&self, id: JobId) -> bool {
        id.origin == self.origin && id.offset >= self.next.load(Ordering::Relaxed)
    }

    /// Sets `count` offsets aside and returns the first.
    pub fn take(&self, count: u64) -> (Origin, u64) {
        (self.origin, self.next.fetch_add(count, Ordering::Relaxed))
    }
}

fn ended() -> Failure {
    Failure::new(Kind::TryLater, "the engine has ended").hint("try again: another process may be taking over")
}
