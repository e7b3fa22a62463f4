//! From a launcher's facts to the outcome that the engine hears, with the sentence that a person reads.
//!
//! The message of a success and the detail of a failure are the last line that is not empty of standard output
//! and of standard error, at most 200 bytes, control characters escaped. It must not decide what follows.

use super::order;
use crate::runner::launcher::{Cut, DEFAULT_PATH, EMIT_MAX, End, Kept, Report, Resource, Step, file_name};
use crate::runner::reply::{self, Said};
use crate::runner::{Emitted, Finished, Output, Start, Stream};
use crate::when;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use windlass_core::outcome::{Exit, Outcome, from_exit};
use windlass_core::pipeline::Pass;
use windlass_core::policy::{Limits, Policy};
use windlass_core::size;

/// The most bytes of a job's own words in a message or an error.
const LINE_MAX: usize = 200;

pub(super) fn finished(report: Report, start: &Start) -> Finished {
    let (outcome, emitted) = match (outcome(&report, start), emitted(&report, &start.policy)) {
        (outcome @ Outcome::Succeeded { .. }, Ok(emitted)) => (outcome, emitted),
        (Outcome::Succeeded { .. }, Err(error)) => (Outcome::Failed { error }, Vec::new()),
        (outcome, _) => (outcome, Vec::new()),
    };
    let job = start.held.jobs.id(start.held.range().start);
    let stream = |kept: Kept, word: &str| Stream {
        file: kept.filed.then(|| file_name(job, start.held.start(), word)),
        head: if kept.filed { Vec::new() } else { kept.bytes },
        total: kept.total,
    };
    let checkpoint = Said::read(&report.control).checkpoint;
    Finished {
        flight: report.flight,
        first: 0,
        outcomes: vec![(1, outcome)],
        emitted,
        checkpoints: checkpoint.map(|text| (0, text)).into_iter().collect(),
        started: report.started,
        finished: report.finished,
        output: Output { stdout: stream(report.stdout, "out"), stderr: stream(report.stderr, "err") },
    }
}

fn outcome(report: &Report, start: &Start) -> Outcome {
    match (report.end, report.cut) {
        (End::CannotStart { step, errno }, _) => refusal(step, errno, start),
        (_, Some(Cut::Cancel)) => Outcome::Cancelled,
        (End::NotBegun | End::Up { .. }, _) => Outcome::Interrupted,
        (End::Exit(_), Some(Cut::TimeLimit)) => {
            Outcome::TimedOut { limit: start.policy.time_limit.unwrap_or(Duration::ZERO) }
        }
        (End::Exit(_), Some(Cut::Limit(resource, seen))) => over_limit(resource, seen, start.policy.limits),
        // Asked to stop, only a success counts as an end of its own; any other is the answer to our signal.
        (End::Exit(exit), Some(Cut::Interrupt)) if exit != Exit::Code(0) => Outcome::Interrupted,
        (End::Exit(exit), _) => exit_outcome(exit, report),
    }
}

/// What an exit says, the job's own words and its wishes included.
pub(in crate::runner) fn exit_outcome(exit: Exit, report: &Report) -> Outcome {
    let said = Said::read(&report.control);
    match (with_words(from_exit(exit), report), said) {
        (Outcome::Succeeded { .. }, Said { wish: Some(wish), .. }) => wish,
        (Outcome::Succeeded { .. }, Said { result: Some(message), .. }) => Outcome::Succeeded { message },
        // A job that says that it cannot succeed is believed however it left; a wish for later is not.
        (Outcome::Failed { .. } | Outcome::RetryLater { .. }, Said { wish: Some(wish), .. })
            if matches!(wish, Outcome::FailedForGood { .. }) =>
        {
            wish
        }
        (outcome, _) => outcome,
    }
}

/// The failure of who used more than its limit, and was ended for it.
pub(in crate::runner) fn over_limit(resource: Resource, seen: u64, limits: Limits) -> Outcome {
    let error = match resource {
        Resource::Memory => {
            let (had, limit) = (size::spoken(seen), size::spoken(limits.memory));
            format!("killed: it had {had} of memory, and its limit is {limit} (`memory`)")
        }
        Resource::Processes => {
            format!(
                "killed: it had {seen} processes and threads, and its limit is {} (`process_limit`)",
                limits.processes
            )
        }
        Resource::Cpu => {
            let (used, limit) = (when::spoken(Duration::from_micros(seen)), when::spoken(limits.cpu));
            format!("stopped: it used {used} of processor time, and its limit is {limit} (`cpu_limit`)")
        }
        Resource::Output => {
            let (wrote, limit) = (size::spoken(seen), size::spoken(limits.output));
            format!("stopped: it wrote {wrote}, and its limit is {limit} (`output_limit`)")
        }
    };
    Outcome::Failed { error }
}

/// The jobs that a job emitted; an error is why it fails.
fn emitted(report: &Report, policy: &Policy) -> Result<Vec<Emitted>, String> {
    if report.emitted.len() as u64 > EMIT_MAX {
        return Err(format!("it emitted more than {EMIT_MAX} bytes"));
    }
    let lines = reply::read_emit_file(&report.emitted)?;
    let mut emits: reply::Emits = lines.into_iter().map(|(_, queue, data)| (queue, data)).collect();
    if policy.flow.as_ref().is_some_and(|flow| flow.pass == Pass::Lines) {
        if report.stdout.filed || report.stdout.total > report.stdout.bytes.len() as u64 {
            let total = report.stdout.total;
            return Err(format!("it wrote {total} bytes, too many to pass its lines on; `WINDLASS_EMIT` takes more"));
        }
        let lines = report.stdout.bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        emits.extend(lines.map(|line| (None, line.to_vec())));
    }
    let placed = reply::place(emits, policy)?;
    Ok(placed.into_iter().map(|(queue, data)| Emitted { by: 0, queue, data }).collect())
}

/// Adds the job's own words to what the exit says.
fn with_words(outcome: Outcome, report: &Report) -> Outcome {
    let detailed = |error: String| match last_line(&report.stderr.bytes) {
        Some(line) => format!("{error}: {line}"),
        None => error,
    };
    match outcome {
        Outcome::Succeeded { .. } => {
            Outcome::Succeeded { message: last_line(&report.stdout.bytes).unwrap_or_default() }
        }
        Outcome::RetryLater { after, error } => Outcome::RetryLater { after, error: detailed(error) },
        Outcome::FailedForGood { error } => Outcome::FailedForGood { error: detailed(error) },
        Outcome::Failed { error } => Outcome::Failed { error: detailed(error) },
        Outcome::Crashed { error } => Outcome::Crashed { error: detailed(error) },
        Outcome::Snoozed { .. }
        | Outcome::TimedOut { .. }
        | Outcome::Interrupted
        | Outcome::Cancelled
        | Outcome::Lost
        | Outcome::Moved { .. }
        | Outcome::NotMoved { .. } => outcome,
    }
}

/// Why a program could not be started, and whether another try can help.
pub(in crate::runner) fn refusal(step: Step, errno: i32, start: &Start) -> Outcome {
    let command = order::command(&start.policy);
    let program = order::program(start);
    if start.policy.by_file.is_some() && errno == libc::ENOENT && is_gone(&program) {
        // A handler that was taken away: its queue waits for another, and no job pays for it.
        return Outcome::Interrupted;
    }
    let program = escaped(&program);
    let problem = std::io::Error::from_raw_os_error(errno);
    let user = start.policy.user.as_ref().map_or("another user", |user| &user.name);
    let as_user = |what: &str| format!("cannot run `{program}` as {user}: {what}: {problem}");
    let error = match (step, errno) {
        (Step::Limits, _) => format!("cannot run `{program}` under its limits: {problem}"),
        (Step::Groups, _) => as_user("cannot take its groups (setgroups)"),
        (Step::Gid, _) => as_user("cannot take its group (setresgid)"),
        (Step::Uid, _) => as_user("cannot take its user id (setresuid)"),
        (Step::Capabilities, _) => as_user("cannot give up capabilities"),
        (Step::NoNewPrivileges, _) => as_user("cannot give up new privileges (no_new_privs)"),
        (Step::Descriptors, _) => as_user("cannot hand over or close descriptors"),
        (Step::Verify, _) => as_user("the kernel still sees somebody else, or more rights than it may have"),
        (Step::Directory, _) => {
            format!("cannot run `{program}` in {}: {problem}", escaped(&command.directory))
        }
        (Step::Find, libc::ENOENT) => {
            let path = command.environment.iter().find(|(name, _)| name == b"PATH");
            let path = path.map_or(DEFAULT_PATH, |(_, value)| value);
            format!("cannot run `{program}`: not found in PATH {}", escaped(path))
        }
        (Step::Exec, libc::ENOENT) => format!("cannot run `{program}`: it or its interpreter is not there"),
        (_, libc::EACCES) => format!("cannot run `{program}`: not permitted, or not an executable file"),
        (_, libc::ENOEXEC) => format!("cannot run `{program}`: not in a format that can be run"),
        (_, libc::E2BIG) => {
            format!(
                "cannot run `{program}`: its arguments are too long (one may have 128 KiB); \
                 a queue's command without {{}} gets the data on stdin"
            )
        }
        _ => format!("cannot run `{program}`: {problem}"),
    };
    match (step, errno) {
        // What we prepare is the same for every job: that it fails is a shortage, and never the job's fault.
        (Step::Prepare, _)
        | (_, libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ETXTBSY | libc::EIO | libc::ENOSPC) => {
            Outcome::RetryLater { after: None, error }
        }
        (Step::Find | Step::Directory | Step::Child | Step::Exec | Step::Limits, _)
        | (Step::Groups | Step::Gid | Step::Uid | Step::Capabilities, _)
        | (Step::NoNewPrivileges | Step::Descriptors | Step::Verify, _) => Outcome::FailedForGood { error },
    }
}

/// Whether nothing is at a path; an interpreter that is missing leaves the file that names it.
fn is_gone(path: &[u8]) -> bool {
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
    path.metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
}

/// The last line that is not empty.
pub(in crate::runner) fn last_line(bytes: &[u8]) -> Option<String> {
    let line = bytes.rsplit(|b| matches!(b, b'\n' | b'\r')).find(|line| !line.trim_ascii().is_empty())?;
    Some(escaped(line.trim_ascii()))
}

/// Text that is safe on a terminal and short.
fn escaped(bytes: &[u8]) -> String {
    // More than enough to fill the line whatever is dropped or escaped.
    let bytes = &bytes[..bytes.len().min(4 * LINE_MAX)];
    let mut text = String::new();
    for character in String::from_utf8_lossy(bytes).chars() {
        let before = text.len();
        if character.is_control() {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
        if text.len() > LINE_MAX {
            text.truncate(before);
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_found_and_made_safe() {
        for (bytes, expected) in [
            (&b"one\ntwo\n\n  \n"[..], Some("two")),
            (b"no end", Some("no end")),
            (b"10%\r50%\r100%\r", Some("100%")),
            (b"\x1b[31mred\x07", Some("\\u{1b}[31mred\\u{7}")),
            (b"caf\xe9", Some("caf\u{fffd}")),
            (b"\n \n", None),
            (b"", None),
        ] {
            assert_eq!(last_line(bytes).as_deref(), expected);
        }
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let line = last_line("ä".repeat(500).as_bytes()).unwrap();
        assert_eq!(line, "ä".repeat(100));
        assert_eq!(last_line(&[b'a'; 100_000]).unwrap().len(), LINE_MAX);
        assert!(last_line(&[7; 100_000]).unwrap().len() <= LINE_MAX);
    }
}
