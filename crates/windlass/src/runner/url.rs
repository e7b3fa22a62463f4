//! Calls URLs: a job a call, or many, over connections that are kept.
//!
//! One thread with its own small runtime makes all calls; it is started with the first of them. Jobs wait there,
//! claimed and not begun, while a crew has as many calls under way as it has slots (`books`). A call takes a
//! connection out of the `pool` or dials one to an address that was judged first, sends what `request` has built
//! and is read by `answer`. Redirects are not followed, and nothing of the environment, such as a proxy, is asked.
//! It must not judge outcomes: core has the table.

mod answer;
mod books;
pub(in crate::runner) mod call;
pub mod pool;
mod request;

use super::{Finished, Flight, Runner, Start, Stop};
use crate::clock;
use crate::supervisor::Roster;
use answer::Ends;
use books::{Books, Message};
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use windlass_core::job::JobId;
use windlass_core::outcome::Outcome;
use windlass_core::policy::Url;

pub(super) use call::Answer;
pub use call::retry_after;
pub(crate) use request::leads_elsewhere;

/// How each job of a call ended, by its place in it; none where all are called again, in halves.
pub(super) fn read_answer(url: &Url, jobs: &[JobId], answer: Answer) -> Option<Vec<(usize, Outcome)>> {
    let read = answer::read(url, jobs.len(), &|at| jobs[at], answer, Duration::ZERO);
    match read.ends {
        Ends::None => None,
        Ends::All(outcome) => Some((0..jobs.len()).map(|at| (at, outcome.clone())).collect()),
        Ends::Each(ends) => Some(ends.into_iter().map(|(at, outcome, _)| (at, outcome)).collect()),
    }
}

/// Where the ends of calls are told.
pub type Hear = Arc<dyn Fn(Finished) + Send + Sync>;

/// Makes calls.
pub struct UrlRunner {
    hear: Hear,
    workers: Arc<Roster>,
    /// There once something has been started.
    desk: Option<(UnboundedSender<Message>, JoinHandle<()>)>,
}

impl fmt::Debug for UrlRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlRunner").field("started", &self.desk.is_some()).finish_non_exhaustive()
    }
}

impl UrlRunner {
    pub fn new(hear: Hear, workers: Arc<Roster>) -> UrlRunner {
        UrlRunner { hear, workers, desk: None }
    }

    fn desk(&mut self) -> std::io::Result<&UnboundedSender<Message>> {
        if self.desk.is_none() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (sender, receiver) = unbounded_channel();
            let books = (Arc::clone(&self.hear), Arc::clone(&self.workers), sender.clone());
            let serve = move || serve(runtime, Books::new(books.0, books.1, books.2), receiver);
            self.desk = Some((sender, std::thread::Builder::new().name("urls".into()).spawn(serve)?));
        }
        let missing = || std::io::Error::other("the thread of the calls is not there");
        self.desk.as_ref().map(|(sender, _)| sender).ok_or_else(missing)
    }
}

fn serve(runtime: tokio::runtime::Runtime, books: Books, messages: UnboundedReceiver<Message>) {
    let local = tokio::task::LocalSet::new();
    // Ends with the message that says so; calls under way are dropped with the set.
    local.block_on(&runtime, books.serve(messages));
    drop(local);
    // A name that is being resolved is not waited for.
    runtime.shutdown_background();
}

impl Runner for UrlRunner {
    fn start(&mut self, starts: Vec<Start>) {
        let told = match self.desk() {
            Ok(desk) => {
                desk.send(Message::Starts(starts)).map_err(|unsent| (unsent.0, "its thread has ended".to_owned()))
            }
            Err(e) => Err((Message::Starts(starts), e.to_string())),
        };
        if let Err((Message::Starts(starts), why)) = told {
            let now = clock::now();
            for start in starts {
                let outcome = Outcome::RetryLater { after: None, error: format!("cannot make calls: {why}") };
                (self.hear)(Finished::all(start.flight, start.held.count, outcome, now, now));
            }
        }
    }

    fn stop(&mut self, flight: Flight, why: Stop) {
        if let Some((desk, _)) = &self.desk {
            // A thread that has ended has no calls.
            let _ended = desk.send(Message::Stop(flight, why));
        }
    }

    fn cancel(&mut self, flight: Flight, position: u16) {
        if let Some((desk, _)) = &self.desk {
            // Nor has it any that wait.
            let _ended = desk.send(Message::Cancel(flight, position));
        }
    }
}

impl Drop for UrlRunner {
    /// Calls under way are cut off unreported.
    fn drop(&mut self) {
        if let Some((desk, thread)) = self.desk.take() {
            let _ended = desk.send(Message::Close);
            // One that panicked has told so itself.
            let _told = thread.join();
        }
    }
}
