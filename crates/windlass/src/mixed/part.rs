//! The stages of one store that feed each other: one run. It is sealed when nothing more can come into any of them from
//! outside, and its end is told to the directories behind them.
//!
//! A process that is killed leaves the run open, and the next one goes on with it by its name. One that was sealed and
//! not over takes nothing more: it is waited for as well, and a new one is opened for what comes now.

use crate::engine::event::{Answer, OpenRun};
use crate::engine::{EngineHandle, Event};
use crate::error::{Failure, Kind};
use crate::spool::Queue;
use crate::spool::directory::Directory;
use crate::spool::pipeline::{Stoppers, Writers};
use crate::store::RunInfo;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use windlass_core::job::RunId;

pub(super) struct Part {
    pub(super) handle: EngineHandle,
    pub(super) run: RunId,
    pub(super) stoppers: Arc<Stoppers>,
    /// The run's end, and the ends of those that earlier processes sealed.
    ends: Vec<Arc<End>>,
    /// Stages into which something may come.
    open: Mutex<usize>,
    after: Vec<Arc<Writers>>,
}

impl Part {
    pub(super) fn open(
        handle: EngineHandle,
        name: &str,
        entries: usize,
        after: Vec<Arc<Writers>>,
        stoppers: Arc<Stoppers>,
    ) -> Result<Part, Failure> {
        let mut ends = Vec::new();
        let mut number = 1;
        let run = loop {
            let name = if number == 1 { name.to_owned() } else { format!("{name} {number}") };
            let request = OpenRun { name, service: None, terms: Default::default() };
            let run = handle.ask(|answer| Event::OpenRun { request, answer })?;
            ends.push(End::of(run.id, &handle, &stoppers)?);
            if !run.counts.sealed {
                break run.id;
            }
            number += 1;
        };
        after.iter().for_each(|writers| writers.add());
        Ok(Part { handle, run, stoppers, ends, open: Mutex::new(entries), after })
    }

    /// Says in the directory in front of it where its documents come out again, for those who look.
    pub(super) fn note_way(&self, front: &Path) -> Result<(), Failure> {
        let after: Vec<&Directory> = self.after.iter().map(|writers| &writers.directory).collect();
        let noted = Queue::open(front)?.sidecar.note_outputs(&after);
        noted.map_err(|e| Failure::io(format_args!("cannot write into {}", front.display()), &e))
    }

    /// Nothing more will come in at one of the entries. After the last of them the run is sealed, and when it is over
    /// the directories behind it are told; not where all of it is to end before.
    pub(super) fn an_entry_has_ended(&self) -> Result<(), Failure> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open -= 1;
        if *open > 0 {
            return Ok(());
        }
        drop(open);
        let run = self.run;
        match self.handle.ask(|answer| Event::SealRun { run, answer }) {
            Err(_) if self.stoppers.is_over() => return Ok(()),
            sealed => sealed?,
        }
        let over = self.ends.iter().all(|end| end.wait());
        if over { self.after.iter().try_for_each(|writers| writers.leave()) } else { Ok(()) }
    }
}

/// The end of a run, or that its engine has ended before.
#[derive(Default)]
struct End {
    over: Mutex<Option<bool>>,
    news: Condvar,
}

impl End {
    fn of(run: RunId, handle: &EngineHandle, stoppers: &Arc<Stoppers>) -> Result<Arc<End>, Failure> {
        let end = Arc::new(End::default());
        let mut messenger = Messenger { end: Arc::clone(&end), stoppers: Arc::clone(stoppers), told: false };
        handle.send(Event::AwaitRun { run, answer: Answer::new(move |result| messenger.tell(result)) })?;
        Ok(end)
    }

    /// True where the run is over.
    fn wait(&self) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let over = self.news.wait_while(over, |over| over.is_none()).unwrap_or_else(PoisonError::into_inner);
        *over == Some(true)
    }
}

/// Tells of the end exactly once: an engine that ends drops its answer, and then nothing of the pipeline can go on.
struct Messenger {
    end: Arc<End>,
    stoppers: Arc<Stoppers>,
    told: bool,
}

impl Messenger {
    fn tell(&mut self, result: Result<RunInfo, Failure>) {
        self.told = true;
        let over = match result {
            Ok(_) => true,
            // It was over before anybody could ask.
            Err(failure) if failure.kind == Kind::NotFound => true,
            Err(failure) => {
                self.stoppers.fail_for(failure);
                false
            }
        };
        *self.end.over.lock().unwrap_or_else(PoisonError::into_inner) = Some(over);
        self.end.news.notify_all();
    }
}

impl Drop for Messenger {
    fn drop(&mut self) {
        if !self.told {
            self.tell(Err(Failure::new(Kind::TryLater, "the server of a stage has ended before its work")));
        }
    }
}
