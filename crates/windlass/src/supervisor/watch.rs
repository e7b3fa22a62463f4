//! Watches the deadlines of all workers and tells their runner of those that passed.
//!
//! One thread, asleep until the next deadline. It must not decide what is to be done: the runner has the worker.

use super::{Kind, Roster};
use crate::clock;
use crate::error::Failure;
use crate::runner::Flight;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use windlass_core::supervisor::Due;

/// A worker that has missed a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    pub flight: Flight,
    pub kind: Kind,
    pub due: Due,
}

/// The thread; dropped, it ends.
pub struct Watch {
    roster: Arc<Roster>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    pub fn start(roster: &Arc<Roster>, act: impl Fn(Overdue) + Send + 'static) -> Result<Watch, Failure> {
        let theirs = Arc::clone(roster);
        let thread = std::thread::Builder::new().name("supervisor".into()).spawn(move || theirs.watch(&act));
        let thread = thread.map_err(|e| Failure::io("cannot start a thread", &e))?;
        Ok(Watch { roster: Arc::clone(roster), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.roster.books().closed = true;
        self.roster.stirred.notify_all();
        if let Some(thread) = self.thread.take() {
            // One that panicked has told so itself.
            let _told = thread.join();
        }
    }
}

impl Roster {
    fn watch(&self, act: &dyn Fn(Overdue)) {
        let mut books = self.books();
        while !books.closed {
            let now = clock::steady();
            let due = books.machine.take_due(now);
            let due: Vec<_> =
                due.into_iter().filter_map(|(no, due)| Some((no, due, books.about.get(&no)?.clone()))).collect();
            if !due.is_empty() {
                drop(books);
                for (number, due, about) in due {
                    let what = match due {
                        Due::StartOverdue => "did not come up in time",
                        Due::StopOverdue => "was told to end and did not in time",
                    };
                    let of =
                        about.policy.as_ref().map(|policy| format!(" of `{}`", policy.pattern)).unwrap_or_default();
                    self.say(|| format!("worker {} ({}{of}) {what}", number.0, about.kind.word()));
                    act(Overdue { flight: about.flight, kind: about.kind, due });
                }
                books = self.books();
                continue;
            }
            let next = books.machine.next_deadline();
            // Nobody needs to wake us before that.
            books.watched_until = next;
            books = match next {
                Some(next) => {
                    let left = next.since(now);
                    self.stirred.wait_timeout(books, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.stirred.wait(books).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
