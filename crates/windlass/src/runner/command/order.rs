//! From a start to what a launcher is asked: the argv filled, the environment built, the data on its way.
//!
//! This file owns what a job's process is told about itself. Data becomes one argument or standard input, never
//! text that something parses.

use crate::runner::Start;
use crate::runner::launcher::{HoldsNul, JOB_MARKER, Order, START_MARKER, Strings};
use windlass_core::policy::{Command, Service};
use windlass_core::template::{self, Values};

const QUEUE: &str = "WINDLASS_QUEUE";
const RUN: &str = "WINDLASS_RUN";
/// Named by us alone: a server that is itself somebody's job must not pass on that job's names.
const OURS: [&str; 4] = [JOB_MARKER, START_MARKER, QUEUE, RUN];

/// The command of a start; a start for another service must not come here.
pub(super) fn command(start: &Start) -> &Command {
    match &start.policy.service {
        Service::Command(command) => command,
        Service::Handler { name, .. } => panic!("a start for the handler {name} came to the command runner"),
    }
}

/// The job's data.
fn data(start: &Start) -> &[u8] {
    start.held.jobs.data(start.held.range().start)
}

/// The program of a start as its argv names it, templates filled.
pub(super) fn program(start: &Start) -> Vec<u8> {
    let id = start.held.jobs.id(start.held.range().start).to_string();
    command(start).argv.first().map(|first| template::fill(first, values(start, &id))).unwrap_or_default()
}

fn values<'a>(start: &'a Start, id: &'a str) -> Values<'a> {
    Values { data: data(start), queue: start.queue.as_str(), id, number: start.number }
}

/// Lays the record for the launcher; an error is the sentence of a start that can never succeed.
pub(super) fn lay(start: &Start) -> Result<Vec<u8>, String> {
    assert!(start.held.count == 1, "a command gets one job");
    let command = command(start);
    if command.argv.is_empty() {
        return Err("cannot run: the command is empty".into());
    }
    let job = start.held.jobs.id(start.held.range().start);
    let strings = strings(start, command, &job.to_string())
        .map_err(|HoldsNul| "cannot run: the data or the command holds a NUL byte, which no argument can carry")?;
    let order = Order {
        flight: start.flight,
        job,
        start: start.held.start(),
        time_limit: start.policy.time_limit,
        grace: start.policy.grace,
        output_max: start.policy.output_max,
        strings: &strings,
        stdin: if template::takes_data(&command.argv) { &[] } else { data(start) },
    };
    Ok(order.lay())
}

fn strings(start: &Start, command: &Command, id: &str) -> Result<Strings, HoldsNul> {
    let directory = if command.directory.is_empty() { b"/".as_slice() } else { &command.directory };
    let mut strings = Strings::new(directory)?;
    for argument in &command.argv {
        strings.argument(&template::fill(argument, values(start, id)))?;
    }
    for (name, value) in &command.environment {
        if !OURS.iter().any(|ours| ours.as_bytes() == name) {
            strings.variable(name, value)?;
        }
    }
    strings.variable(JOB_MARKER.as_bytes(), id.as_bytes())?;
    strings.variable(START_MARKER.as_bytes(), start.held.start().to_string().as_bytes())?;
    strings.variable(QUEUE.as_bytes(), start.queue.as_str().as_bytes())?;
    strings.variable(RUN.as_bytes(), start.run.as_bytes())?;
    Ok(strings)
}
