//! From a start to what a launcher is asked: the argv filled, the environment built, the data on its way.
//!
//! This file owns what a process is told about its job. Data becomes one argument or standard input, never text that
//! something parses.

use crate::clock;
use crate::particulars::{TRACE_VARIABLES, parts};
use crate::runner::batch::Batch;
use crate::runner::launcher::{
    Given, HoldsNul, INLINE_MAX, JOB_MARKER, Order, START_MARKER, Strings, control_path, emit_path,
};
use crate::runner::progress::{Board, Files, Written};
use crate::runner::remote::new_token;
use crate::runner::spoken::Mint;
use crate::runner::{Flight, Start, given};
use crate::when::rfc3339;
use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use windlass_core::job::JobId;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Command, Policy, Service, Worker};
use windlass_core::template::{self, NoField, Values};

const QUEUE: &str = "WINDLASS_QUEUE";
const RUN: &str = "WINDLASS_RUN";
const CONTROL: &str = "WINDLASS_CONTROL";
const EMIT: &str = "WINDLASS_EMIT";
const CHECKPOINT: &str = "WINDLASS_CHECKPOINT";
const URL: &str = "WINDLASS_URL";
const TOKEN: &str = "WINDLASS_JOB_TOKEN";
const MAX_ATTEMPTS: &str = "WINDLASS_MAX_ATTEMPTS";
const DEADLINE: &str = "WINDLASS_DEADLINE";
const SUBJECT_TYPE: &str = "WINDLASS_SUBJECT_TYPE";
const SUBJECT_ID: &str = "WINDLASS_SUBJECT_ID";
/// Where programs look for who listens to them, by the protocol of service managers.
const NOTIFY: &str = "NOTIFY_SOCKET";
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHDOG_PID: &str = "WATCHDOG_PID";
/// Named by us alone: a server that is itself somebody's job must not pass on that job's names.
const OURS: [&str; 13] = [
    JOB_MARKER,
    START_MARKER,
    QUEUE,
    RUN,
    CONTROL,
    EMIT,
    CHECKPOINT,
    URL,
    TOKEN,
    MAX_ATTEMPTS,
    DEADLINE,
    SUBJECT_TYPE,
    SUBJECT_ID,
];

/// Where a process finds its control and emit files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Control<'a> {
    pub(super) dir: &'a Path,
    pub(super) launcher: usize,
    pub(super) number: u32,
    /// Where the server is reached over HTTP, and the token that is good for this one start.
    pub(super) http: Option<(&'a str, &'a str)>,
}

/// What a process is told beside its queue: of the job or jobs that it is for, or, where it stays, where it is heard.
#[derive(Clone, Copy)]
enum Told<'a> {
    Job(&'a Control<'a>),
    Worker(Ear<'a>),
}

/// Where a process that stays is heard: at its socket, and over HTTP where its jobs have tokens.
#[derive(Clone, Copy, Debug)]
pub(in crate::runner) struct Ear<'a> {
    pub(in crate::runner) socket: Option<&'a Path>,
    pub(in crate::runner) url: Option<&'a str>,
}

/// The command of a start; a start for a handler must not come here.
pub(super) fn command(policy: &Policy) -> &Command {
    let command = policy.service.command();
    command
        .unwrap_or_else(|| panic!("{} is not served by a command, yet it came to the command runner", policy.pattern))
}

/// The data of a start's first job, as it is given.
fn data(start: &Start) -> Result<Cow<'_, [u8]>, String> {
    given(&start.policy, start.held.jobs.data(start.held.range().start))
}

/// The program of a start as its argv names it, templates filled.
pub(super) fn program(start: &Start) -> Vec<u8> {
    let Some(first) = command(&start.policy).argv.first() else { return Vec::new() };
    // Data that cannot be given has its own sentence; nothing is run then.
    filler(start, &data(start).unwrap_or_default())(first).unwrap_or_else(|_| first.clone())
}

/// Fills arguments for the first job of a start.
fn filler(start: &Start, data: &[u8]) -> impl Fn(&[u8]) -> Result<Vec<u8>, NoField> {
    let id = start.held.jobs.id(start.held.range().start).to_string();
    move |argument| {
        let field = |path: &str| field(data, path);
        let (queue, number, attempt) = (start.queue.as_str(), start.number, start.held.start());
        template::fill(argument, Values { data, queue, id: &id, number, attempt, field: &field })
    }
}

/// A field of JSON data as text: a string as it is, anything else as JSON.
pub(crate) fn field(data: &[u8], path: &str) -> Option<Vec<u8>> {
    let whole: serde_json::Value = serde_json::from_slice(data).ok()?;
    let found = path.split('.').try_fold(&whole, |value, key| match value {
        serde_json::Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        other => other.get(key),
    })?;
    Some(found.as_str().map_or_else(|| found.to_string().into_bytes(), |text| text.as_bytes().to_vec()))
}

fn never(error: impl Into<String>) -> Outcome {
    Outcome::FailedForGood { error: error.into() }
}

/// Lays the record of one job for the launcher; the outcome is that of a start that cannot be.
pub(super) fn lay(start: &Start, control: &Control<'_>, board: &Board) -> Result<Vec<u8>, Outcome> {
    assert!(start.held.count == 1, "a command gets one job");
    let job = start.held.jobs.id(start.held.range().start);
    let url = board.url();
    let token = url.and_then(|_| new_token());
    let control = &Control { http: url.zip(token.as_deref()), ..*control };
    let data = data(start).map_err(never)?;
    let strings = strings(start, &data, job, Told::Job(control))?;
    let Control { dir, launcher, number, .. } = *control;
    let emit = emit_path(dir, launcher, number);
    let written = Written { start: start.held.start(), most: start.policy.output_max };
    board.begun(job, Files { control: control_path(dir, launcher, number), emit, token, written });
    let argv = &command(&start.policy).argv;
    let takes_data = template::takes_data(argv) || (template::takes_document(argv) && data.contains(&0));
    let order = Order {
        flight: start.flight,
        job,
        last: job.offset,
        start: start.held.start(),
        time_limit: start.policy.time_limit,
        grace: start.policy.grace,
        output_max: start.policy.output_max,
        // What somebody reads along with goes to its file at once.
        in_memory: if board.is_followed(job) { 0 } else { INLINE_MAX as u64 },
        control: Some(number),
        given: Given::default(),
        limits: start.policy.limits,
        user: start.policy.user.as_ref(),
        strings: &strings,
        stdin: if takes_data { &[] } else { &data },
    };
    Ok(order.lay())
}

/// Lays the record of a batch's next piece, and its lines as what becomes standard input.
pub(super) fn lay_batch(
    batch: &mut Batch,
    control: &Control<'_>,
    board: &Board,
) -> Result<(Vec<u8>, Vec<OwnedFd>), Outcome> {
    let later = |e: std::io::Error| {
        let error = format!("cannot run: no room for the lines: {e}");
        Outcome::RetryLater { after: None, error }
    };
    let url = board.url();
    let mint = url.and_then(|_| Mint::new());
    let token = mint.as_ref().map(Mint::of_process);
    batch.speaks_with(mint);
    let control = &Control { http: url.zip(token.as_deref()), ..*control };
    // Where no job of it can be a line, all have their outcome already.
    let lines = batch.next_piece().map_err(later)?.ok_or(Outcome::Interrupted)?;
    let leader = batch.leader();
    let (job, last, number) = batch.span();
    let strings = strings(leader, &[], job, Told::Job(control))?;
    let most = batch.replies_most();
    let paths = [control_path, emit_path].map(|path| path(control.dir, control.launcher, control.number));
    board.batch_begun(leader.flight, paths, batch.held(), batch.voice());
    let order = Order {
        flight: leader.flight,
        job,
        last,
        start: number,
        time_limit: leader.policy.time_limit,
        grace: leader.policy.grace,
        output_max: most,
        in_memory: most,
        control: Some(control.number),
        given: Given { stdin: true, ..Given::default() },
        limits: leader.policy.limits,
        user: leader.policy.user.as_ref(),
        strings: &strings,
        stdin: &[],
    };
    Ok((order.lay(), vec![lines.into()]))
}

/// Lays the record of a kept worker, known by an id of its own, which serves the queue of this start.
pub(in crate::runner) fn lay_worker(
    start: &Start,
    flight: Flight,
    id: JobId,
    ear: Ear<'_>,
) -> Result<Vec<u8>, Outcome> {
    let strings = strings(start, &[], id, Told::Worker(ear))?;
    let order = Order {
        flight,
        job: id,
        last: id.offset,
        start: 1,
        time_limit: None,
        grace: start.policy.grace,
        output_max: start.policy.output_max.min(INLINE_MAX as u64),
        in_memory: INLINE_MAX as u64,
        control: None,
        given: Given { stdin: true, stdout: true, channel: true },
        limits: start.policy.limits,
        user: start.policy.user.as_ref(),
        strings: &strings,
        stdin: &[],
    };
    Ok(order.lay())
}

/// Only a process of one job can be told its data.
fn strings(start: &Start, data: &[u8], id: JobId, told: Told<'_>) -> Result<Strings, Outcome> {
    let command = command(&start.policy);
    if command.argv.is_empty() {
        return Err(never("cannot run: the command is empty"));
    }
    let fill = filler(start, data);
    let argv: Result<Vec<Vec<u8>>, NoField> = command.argv.iter().map(|argument| fill(argument)).collect();
    let mut argv = argv.map_err(|missing| never(format!("cannot run: {missing}")))?;
    if let Service::Worker(Worker { lua: Some(lua), .. }) = &start.policy.service {
        // Behind the templates, since the worker fills in the queue itself, for each job.
        argv.extend([lua.file.clone(), lua.memory.to_string().into_bytes()]);
    }
    lay_strings(start, command, &argv, id, told)
        .map_err(|HoldsNul| never("cannot run: the data or the command holds a NUL byte, which no argument can carry"))
}

fn lay_strings(
    start: &Start,
    command: &Command,
    argv: &[Vec<u8>],
    id: JobId,
    told: Told<'_>,
) -> Result<Strings, HoldsNul> {
    let directory = if command.directory.is_empty() { b"/".as_slice() } else { &command.directory };
    let mut strings = Strings::new(directory)?;
    for argument in argv {
        strings.argument(argument)?;
    }
    // The jobs of a batch have one environment, and each its own trace or none.
    let trace = start.trace().filter(|_| matches!(told, Told::Job(_)) && start.held.count == 1);
    let others: &[&str] = match told {
        Told::Worker(Ear { socket: Some(_), .. }) => &[NOTIFY, WATCHDOG, WATCHDOG_PID],
        Told::Job(_) if trace.is_some() => &TRACE_VARIABLES,
        Told::Worker(_) | Told::Job(_) => &[],
    };
    for (name, value) in &command.environment {
        if !OURS.iter().chain(others).any(|ours| ours.as_bytes() == name) {
            strings.variable(name, value)?;
        }
    }
    strings.variable(JOB_MARKER.as_bytes(), id.to_string().as_bytes())?;
    strings.variable(QUEUE.as_bytes(), start.queue.as_str().as_bytes())?;
    let Control { dir, launcher, number, http } = match told {
        Told::Job(control) => control,
        Told::Worker(ear) => {
            lay_ear(start, ear, &mut strings)?;
            return Ok(strings);
        }
    };
    strings.variable(START_MARKER.as_bytes(), start.held.start().to_string().as_bytes())?;
    strings.variable(MAX_ATTEMPTS.as_bytes(), start.policy.attempts.to_string().as_bytes())?;
    if let Some(limit) = start.policy.time_limit {
        // From now on, which is a moment before it begins.
        strings.variable(DEADLINE.as_bytes(), rfc3339(clock::now().after(limit)).as_bytes())?;
    }
    if !start.run.is_empty() {
        strings.variable(RUN.as_bytes(), start.run.as_bytes())?;
    }
    if !start.checkpoint.is_empty() {
        strings.variable(CHECKPOINT.as_bytes(), start.checkpoint.as_bytes())?;
    }
    if let Some((kind, id)) = start.subject().filter(|_| start.held.count == 1) {
        strings.variable(SUBJECT_TYPE.as_bytes(), kind.as_bytes())?;
        strings.variable(SUBJECT_ID.as_bytes(), id.as_bytes())?;
    }
    for (part, text) in trace.into_iter().flat_map(parts) {
        strings.variable(TRACE_VARIABLES[part].as_bytes(), text.as_bytes())?;
    }
    let control = control_path(dir, *launcher, *number);
    strings.variable(CONTROL.as_bytes(), control.as_os_str().as_bytes())?;
    strings.variable(EMIT.as_bytes(), emit_path(dir, *launcher, *number).as_os_str().as_bytes())?;
    if let Some((url, token)) = http {
        strings.variable(URL.as_bytes(), url.as_bytes())?;
        strings.variable(TOKEN.as_bytes(), token.as_bytes())?;
    }
    Ok(strings)
}

/// What one that stays is told of itself: it serves many jobs, runs and starts, and its own number is what its tree is
/// known by.
fn lay_ear(start: &Start, ear: Ear<'_>, strings: &mut Strings) -> Result<(), HoldsNul> {
    strings.variable(START_MARKER.as_bytes(), b"1")?;
    if let Some(url) = ear.url {
        strings.variable(URL.as_bytes(), url.as_bytes())?;
    }
    if let Some(socket) = ear.socket {
        strings.variable(NOTIFY.as_bytes(), socket.as_os_str().as_bytes())?;
        if let Some(limit) = start.policy.time_limit {
            // Without a number of a process it is meant for whoever asks; ours is not known before it is there.
            strings.variable(WATCHDOG.as_bytes(), limit.as_micros().to_string().as_bytes())?;
        }
    }
    Ok(())
}
