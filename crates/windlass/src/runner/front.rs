//! One runner in front of all: each start goes to the runner of its policy's service.
//!
//! It keeps no books of its own; it must not know what a runner does with a start.

use super::command::CommandRunner;
use super::handler::HandlerRunner;
use super::{Flight, Runner, Start, Stop};
use windlass_core::policy::Service;

/// The runners of a server.
#[derive(Debug)]
pub struct Runners {
    pub commands: CommandRunner,
    pub handlers: HandlerRunner,
}

impl Runner for Runners {
    fn start(&mut self, starts: Vec<Start>) {
        let is_command = |start: &Start| match start.policy.service {
            Service::Command(_) => true,
            Service::Handler { .. } => false,
        };
        let (commands, handlers): (Vec<Start>, Vec<Start>) = starts.into_iter().partition(is_command);
        if !commands.is_empty() {
            self.commands.start(commands);
        }
        if !handlers.is_empty() {
            self.handlers.start(handlers);
        }
    }

    /// Flights are never reused, so the runner that does not know it does nothing.
    fn stop(&mut self, flight: Flight, why: Stop) {
        self.commands.stop(flight, why);
        self.handlers.stop(flight, why);
    }
}
