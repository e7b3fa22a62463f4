//! `windlass logs`: what a job wrote, byte for byte.

use super::Context;
use super::connect::{Link, encoded};
use super::print::{self, Out};
use super::values;
use crate::error::Failure;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  windlass logs j-0c3k5p7m2x-1f              both streams, each to its own
  windlass logs j-0c3k5p7m2x-1f --stderr     one of them, to stdout
  windlass logs j-0c3k5p7m2x-1f --start 1    an earlier attempt";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The job
    id: String,
    /// Only its standard output
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Only its standard error, printed to stdout
    #[arg(long)]
    stderr: bool,
    /// Of this start; by default of the last
    #[arg(long, value_name = "N", value_parser = values::start)]
    start: Option<u32>,
}

pub(super) fn logs(args: &Args, context: &Context) -> Result<u8, Failure> {
    let dir = context.data_dir()?;
    let start = args.start.map_or_else(String::new, |start| format!("&start={start}"));
    let path = |stream: &str| format!("/api/v1/jobs/{}/output?stream={stream}{start}", encoded(&args.id));
    let (stdout, stderr) = Link::with(&dir, |server| {
        let mut fetch = |wanted: bool, stream| match wanted {
            true => server.get(&path(stream))?.checked().map(|response| response.body),
            false => Ok(Vec::new()),
        };
        Ok((fetch(!args.stderr, "stdout")?, fetch(!args.stdout, "stderr")?))
    })?;
    if context.json {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        return print::document(&serde_json::json!({
            "id": args.id, "stdout": text(&stdout), "stderr": text(&stderr),
            "stdout_base64": crate::api::base64::encode(&stdout), "stderr_base64": crate::api::base64::encode(&stderr),
        }));
    }
    let mut out = Out::new();
    if args.stderr {
        out.bytes(&stderr);
        return out.finish();
    }
    out.bytes(&stdout);
    let code = out.finish()?;
    // A closed stderr is nobody's fault.
    let _ = std::io::stderr().lock().write_all(&stderr);
    Ok(code)
}
