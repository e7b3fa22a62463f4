//! Kept workers: processes that stay, get a line for each job and answer with a line.
//!
//! One thread serves all of them. Jobs wait here, claimed and not begun, until a worker of their pool is free; a pool
//! is a policy entry, or one queue of it where the command names the queue. Workers are made on demand, up to the
//! entry's slots, and end when they are idle, old, large or have done enough (`pool`); one that dies is made anew after
//! a growing wait, and one that cannot even start is told on the board instead of being tried in a loop. Which worker
//! gets a job is core's decision. It must not judge outcomes.

mod desk;
mod kept;
mod marks;
mod notices;
mod pool;

use super::command::Shared;
use super::launcher::Report;
use super::spoken::Spoken;
use super::{Flight, Start, Stop};
use crate::error::Failure;
use crate::inbox::watch::Bell;
use crate::supervisor::watch::Overdue;
use desk::Desk;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What the thread hears of from outside.
#[derive(Debug)]
enum Message {
    Starts(Vec<Start>),
    Stop(Flight, Stop),
    /// One job of a flight is cancelled.
    Cancel(Flight, u16),
    /// A launcher's word about a worker's process.
    Report(Box<Report>),
    /// A worker's launcher died; the worker is proven dead.
    Lost(Flight),
    /// Idle workers are to give back so much memory.
    MakeRoom(u64),
    /// A worker has missed a deadline of its state.
    Overdue(Overdue),
    /// A job says something over HTTP.
    Spoken(Spoken),
    Close,
}

/// The thread's letter box, with a bell that wakes it.
#[derive(Debug)]
pub(super) struct News {
    messages: Mutex<Vec<Message>>,
    bell: Bell,
}

impl News {
    pub(super) fn new() -> Result<News, Failure> {
        Ok(News { messages: Mutex::default(), bell: Bell::new()? })
    }

    pub(super) fn add(&self, report: Report) {
        self.send(Message::Report(Box::new(report)));
    }

    pub(super) fn lost(&self, worker: Flight) {
        self.send(Message::Lost(worker));
    }

    pub(super) fn overdue(&self, overdue: Overdue) {
        self.send(Message::Overdue(overdue));
    }

    pub(super) fn spoken(&self, spoken: Spoken) {
        self.send(Message::Spoken(spoken));
    }

    fn send(&self, message: Message) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        self.bell.ring();
    }

    fn take(&self) -> Vec<Message> {
        self.bell.hear();
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The way to the thread.
pub(super) struct WorkerRunner {
    news: Arc<News>,
    thread: Option<JoinHandle<()>>,
}

impl WorkerRunner {
    pub(super) fn new(shared: Arc<Shared>, news: Arc<News>) -> Result<WorkerRunner, Failure> {
        let mut desk = Desk::new(shared, Arc::clone(&news))?;
        let thread = std::thread::Builder::new().name("kept workers".into()).spawn(move || desk.serve());
        let thread = thread.map_err(|e| Failure::io("cannot start a thread", &e))?;
        Ok(WorkerRunner { news, thread: Some(thread) })
    }

    pub(super) fn start(&self, starts: Vec<Start>) {
        if !starts.is_empty() {
            self.news.send(Message::Starts(starts));
        }
    }

    /// A flight that it does not know is somebody else's.
    pub(super) fn stop(&self, flight: Flight, why: Stop) {
        self.news.send(Message::Stop(flight, why));
    }

    pub(super) fn cancel(&self, flight: Flight, position: u16) {
        self.news.send(Message::Cancel(flight, position));
    }

    pub(super) fn make_room(&self, bytes: u64) {
        self.news.send(Message::MakeRoom(bytes));
    }

    /// Ends the thread; the workers see the end of their input, and their launchers end them.
    pub(super) fn close(&mut self) {
        self.news.send(Message::Close);
        if let Some(thread) = self.thread.take() {
            // One that panicked has told so itself.
            let _told = thread.join();
        }
    }
}
