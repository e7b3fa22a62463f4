//! `windlass emit`: further jobs from a job's script; they are stored with its success and not without it.
//!
//! It appends to the file that `WINDLASS_EMIT` names; a script may as well do that itself.

use super::progress::append;
use crate::api::base64;
use crate::error::{Failure, Kind};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use windlass_core::job::{DATA_MAX, JobId, QueueName};

const EXAMPLES: &str = "\
Examples (in a job's script):
  windlass emit thumbnail page-1.png page-2.png
  find . -name '*.html' | windlass emit index";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The queue of the new jobs
    queue: String,
    /// The data of one job each; without any, one job per line of stdin
    data: Vec<OsString>,
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
    if args.data.is_empty() {
        let mut input = BufReader::new(std::io::stdin().lock().take(1 << 30));
        let mut line = Vec::new();
        let cannot = |e: std::io::Error| Failure::io("cannot read standard input", &e);
        while input.read_until(b'\n', &mut line).map_err(cannot)? > 0 {
            add(args, line.strip_suffix(b"\n").unwrap_or(&line), &mut lines)?;
            line.clear();
        }
    }
    append("WINDLASS_EMIT", &lines)?;
    Ok(0)
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
