//! `windlass emit`: further jobs from a job's script; they are stored with its success and not without it.
//!
//! It appends to the file that `WINDLASS_EMIT` names; a script may as well do that itself.

use super::progress::append;
use crate::api::base64;
use crate::error::{Failure, Kind};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use windlass_core::job::{DATA_MAX, JobId, QueueName};

const EXAMPLES: &str = "\
Examples (in a job's script):
  windlass emit thumbnail page-1.png page-2.png
  find . -name '*.html' | windlass emit index
  windlass emit index --from find . -name '*.html'      ends as the command ends";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The queue of the new jobs
    queue: String,
    /// The data of one job each; without any, one job per line of stdin
    data: Vec<OsString>,
    /// Run this, and emit a job for each line that it prints; ends with its exit code
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true, conflicts_with = "data")]
    from: Vec<OsString>,
    /// The job that emits, where a batch has several
    #[arg(long, value_name = "ID")]
    job: Option<JobId>,
}

pub(super) fn emit(args: &Args) -> Result<u8, Failure> {
    QueueName::new(args.queue.as_bytes()).map_err(|e| Failure::new(Kind::Usage, e.to_string()))?;
    let mut lines = Vec::new();
    for data in &args.data {
        add(args, data.as_bytes(), &mut lines)?;
    }
    if let [program, words @ ..] = &args.from[..] {
        return emit_from(args, program, words);
    }
    if args.data.is_empty() {
        add_lines(args, std::io::stdin().lock(), "standard input", &mut lines)?;
    }
    append("WINDLASS_EMIT", &lines)?;
    Ok(0)
}

/// What a command prints, if it ends well; what it said otherwise is nobody's list.
fn emit_from(args: &Args, program: &OsString, words: &[OsString]) -> Result<u8, Failure> {
    let cannot = |what: &str, e: &std::io::Error| {
        Failure::io(format_args!("cannot {what} {}", program.to_string_lossy().escape_debug()), e)
    };
    let mut command = std::process::Command::new(program);
    let mut child = command.args(words).stdout(Stdio::piped()).spawn().map_err(|e| cannot("start", &e))?;
    let mut lines = Vec::new();
    let read = match child.stdout.take() {
        Some(output) => add_lines(args, output, "what it prints", &mut lines),
        None => Ok(()),
    };
    let status = child.wait().map_err(|e| cannot("wait for", &e))?;
    read?;
    if status.success() {
        append("WINDLASS_EMIT", &lines)?;
    }
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, signal) => u8::try_from(128 + signal.unwrap_or(0)).unwrap_or(1),
    })
}

fn add_lines(args: &Args, input: impl Read, what: &str, lines: &mut Vec<u8>) -> Result<(), Failure> {
    let mut input = BufReader::new(input.take(1 << 30));
    let mut line = Vec::new();
    let cannot = |e: std::io::Error| Failure::io(format_args!("cannot read {what}"), &e);
    while input.read_until(b'\n', &mut line).map_err(cannot)? > 0 {
        add(args, line.strip_suffix(b"\n").unwrap_or(&line), lines)?;
        line.clear();
    }
    Ok(())
}

/// A plain line where the data can be one, else a JSON object.
fn add(args: &Args, data: &[u8], lines: &mut Vec<u8>) -> Result<(), Failure> {
    if data.len() > DATA_MAX {
        let text = format!("the data has {} bytes, expected at most {DATA_MAX}", data.len());
        return Err(Failure::new(Kind::BadData, text));
    }
    let queue = &args.queue;
    if data.contains(&b'\n') {
        let mut object = serde_json::json!({ "queue": queue, "data64": base64::encode(data) });
        if let Some(job) = args.job {
            object["job"] = job.to_string().into();
        }
        lines.extend_from_slice(object.to_string().as_bytes());
    } else {
        let named = args.job.map(|job| format!("@{job}\t")).unwrap_or_default();
        lines.extend_from_slice(format!("{named}{queue}\t").as_bytes());
        lines.extend_from_slice(data);
    }
    lines.push(b'\n');
    Ok(())
}
