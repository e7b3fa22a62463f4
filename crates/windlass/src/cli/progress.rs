//! `windlass progress`: a job's own words about itself, from a script.
//!
//! It appends lines to the file that `WINDLASS_CONTROL` names, or sends them over HTTP; a script may as well do that
//! itself.

use super::connect::Connection;
use crate::api;
use crate::error::{Failure, Kind};
use std::io::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples (in a job's script):
  windlass progress 3/10 pages
  windlass progress --phase upload
  windlass progress --extend 10m";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// How far it is, such as 3/10, and words about it
    #[arg(value_name = "N/M TEXT", num_args = 0.., trailing_var_arg = true)]
    progress: Vec<String>,
    /// What it is at
    #[arg(long, value_name = "NAME")]
    phase: Option<String>,
    /// So much more time than its limit
    #[arg(long, value_name = "DURATION", value_parser = crate::when::duration)]
    extend: Option<std::time::Duration>,
    /// How far it has come for good
    #[arg(long, value_name = "TEXT")]
    checkpoint: Option<String>,
    /// What came of it; the message of its success
    #[arg(long, value_name = "TEXT")]
    result: Option<String>,
}

pub(super) fn progress(args: &Args) -> Result<u8, Failure> {
    let mut lines = Vec::new();
    let mut say = |word: &str, text: &str| -> Result<(), Failure> {
        if text.contains('\n') {
            return Err(Failure::new(Kind::Usage, format!("the {word} holds a newline, expected one line")));
        }
        lines.extend_from_slice(format!("{word} {text}\n").as_bytes());
        Ok(())
    };
    let parts = [("phase", &args.phase), ("checkpoint", &args.checkpoint), ("result", &args.result)];
    if !args.progress.is_empty() {
        say("progress", &args.progress.join(" "))?;
    }
    for (word, text) in parts {
        if let Some(text) = text {
            say(word, text)?;
        }
    }
    if let Some(extend) = args.extend {
        say("extend", &format!("{}ms", extend.as_millis()))?;
    }
    if lines.is_empty() {
        let hint = "windlass progress 3/10, or --phase, --extend, --checkpoint, --result";
        return Err(Failure::new(Kind::Usage, "nothing to say").hint(hint));
    }
    append("WINDLASS_CONTROL", &lines)?;
    Ok(0)
}

/// Appends to the file that a variable of the job's environment names, in one piece; where the job has none, as in
/// another container, it is sent to the server with the job's own token.
pub(super) fn append(variable: &str, lines: &[u8]) -> Result<(), Failure> {
    let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from) else {
        let http = text("WINDLASS_URL").zip(text("WINDLASS_JOB_TOKEN")).zip(text("WINDLASS_JOB_ID"));
        let ((url, token), job) = http.ok_or_else(|| {
            Failure::new(Kind::Usage, format!("{variable} is not set, so this is no job that windlass runs")).hint(
                "it is meant for the script of a job; a kept worker writes to descriptor 3 or answers with `emit`",
            )
        })?;
        let route = if variable == "WINDLASS_EMIT" { "emit" } else { "control" };
        let server = Connection::open_url(&url, Some(&token))?;
        let mut server = server.ok_or_else(|| Failure::new(Kind::NoServer, format!("nobody listens at {url}")))?;
        return server.post(&format!("/api/v1/jobs/{job}/{route}"), api::LINES, lines)?.checked().map(drop);
    };
    let file = std::fs::OpenOptions::new().append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(lines));
    written.map_err(|e| Failure::io(format_args!("cannot write to {}", path.display()), &e))
}
