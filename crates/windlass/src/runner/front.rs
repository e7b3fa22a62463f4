//! One runner in front of all: each start goes to the runner of its policy's service.
//!
//! It keeps no books of its own; it must not know what a runner does with a start.

use super::command::{CommandRunner, Crewed, Fatal, Settings};
use super::forward::ForwardRunner;
use super::handler::{HandlerRunner, Handlers};
use super::progress::Board;
use super::remote::Counter;
use super::url::UrlRunner;
use super::{Finished, Flight, Runner, Start, Stop};
use crate::data_dir::DataDir;
use crate::error::Failure;
use crate::lot::Departing;
use std::sync::Arc;
use windlass_core::policy::Service;

/// The runners of a server.
#[derive(Debug)]
pub struct Runners {
    /// None in a process that is only there to answer: nothing is planned for it.
    commands: Option<CommandRunner>,
    handlers: HandlerRunner,
    urls: UrlRunner,
    forwards: ForwardRunner,
    counter: Arc<Counter>,
    board: Arc<Board>,
}

impl Runners {
    /// Starts launchers for the commands of a data directory, and the threads of the handlers.
    pub fn start(
        dir: Option<&DataDir>,
        board: Arc<Board>,
        handlers: Handlers,
        counter: Arc<Counter>,
        hear: Arc<dyn Fn(Finished) + Send + Sync>,
        crewed: Crewed,
        fatal: Fatal,
    ) -> Result<Runners, Failure> {
        let threads = handlers.threads();
        let theirs = Arc::clone(&hear);
        let urls = UrlRunner::new(Arc::clone(&hear), Arc::clone(board.workers()));
        let forwards = ForwardRunner::new(Arc::clone(&hear), Arc::clone(&board));
        counter.open(Arc::clone(&hear), Arc::clone(&board))?;
        let shown = Arc::clone(&board);
        let handlers = HandlerRunner::new(handlers, threads, shown, Box::new(move |finished| theirs(finished)))?;
        let hear = Box::new(move |finished| hear(finished));
        let shared = Arc::clone(&board);
        let commands =
            dir.map(|dir| CommandRunner::new(Settings { board: shared, ..Settings::of(dir) }, hear, crewed, fatal));
        let commands = commands.transpose()?;
        Ok(Runners { commands, handlers, urls, forwards, counter, board })
    }
}

impl Drop for Runners {
    fn drop(&mut self) {
        self.counter.close();
    }
}

impl Runner for Runners {
    fn start(&mut self, starts: Vec<Start>) {
        let (mut commands, mut handlers, mut urls) = (Vec::new(), Vec::new(), Vec::new());
        let (mut remote, mut forwards) = (Vec::new(), Vec::new());
        if let Some(copies) = self.board.copies() {
            // Noted before any of them can say a word; what goes to another server does not run here.
            let here = starts.iter().filter(|start| !matches!(start.policy.service, Service::Forward(_)));
            here.for_each(|start| copies.begun(start));
        }
        for start in starts {
            match start.policy.service {
                Service::Command(_) | Service::Batch(_) | Service::Worker(_) => commands.push(start),
                Service::Handler { .. } => handlers.push(start),
                Service::Url(_) => urls.push(start),
                Service::Remote(_) => remote.push(start),
                Service::Forward(_) => forwards.push(start),
            }
        }
        if let Some(runner) = self.commands.as_mut().filter(|_| !commands.is_empty()) {
            runner.start(commands);
        }
        if !handlers.is_empty() {
            self.handlers.start(handlers);
        }
        if !urls.is_empty() {
            self.urls.start(urls);
        }
        if !remote.is_empty() {
            self.counter.start(remote);
        }
        if !forwards.is_empty() {
            self.forwards.start(forwards);
        }
    }

    /// Flights are never reused, so the runner that does not know it does nothing.
    fn stop(&mut self, flight: Flight, why: Stop) {
        if let Some(commands) = &mut self.commands {
            commands.stop(flight, why);
        }
        self.handlers.stop(flight, why);
        self.urls.stop(flight, why);
        self.counter.stop(flight, why);
    }

    fn cancel(&mut self, flight: Flight, position: u16) {
        if let Some(commands) = &mut self.commands {
            commands.cancel(flight, position);
        }
        self.handlers.cancel(flight, position);
        self.urls.cancel(flight, position);
    }

    fn confirm(&mut self, lot: Arc<Departing>) {
        self.forwards.confirm(lot);
    }

    fn make_room(&mut self, bytes: u64) {
        if let Some(commands) = &mut self.commands {
            commands.make_room(bytes);
        }
    }
}
