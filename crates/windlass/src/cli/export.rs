//! `windlass export` and `windlass import`: jobs as lines of JSON, out and in again.
//!
//! Data is text where it is text and base64 where not, byte for byte. An export beside a working server is no single
//! moment, as a backup is.

use super::Context;
use super::connect::{Connection, Link, encoded};
use super::print::{self, Out, grouped};
use crate::api::export::{End, Head, IMPORT_MAX, Imported, Line, VERSION};
use crate::api::{NDJSON, time_text};
use crate::clock;
use crate::error::{Failure, Kind};
use serde::Serialize;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};

const PAGE: u64 = 1000;

const EXPORT_EXAMPLES: &str = "\
Examples:
  windlass export > jobs.jsonl
  windlass export queue:mail state:ready,scheduled > mail.jsonl";

const IMPORT_EXAMPLES: &str = "\
Examples:
  windlass import jobs.jsonl
  windlass export queue:mail | windlass import - --dir /srv/other";

#[derive(Debug, clap::Args)]
#[command(before_help = EXPORT_EXAMPLES)]
pub(super) struct ExportArgs {
    /// Which jobs: queue:NAME state:STATE run:ID; by default all, ended ones included
    selector: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(before_help = IMPORT_EXAMPLES)]
pub(super) struct ImportArgs {
    /// What `export` wrote; none or `-` is stdin
    file: Option<PathBuf>,
    /// Take suspended jobs as jobs that wait; without it they are a reason to import nothing
    #[arg(long)]
    resume: bool,
}

pub(super) fn export(args: &ExportArgs, context: &Context) -> Result<u8, Failure> {
    let dir = context.data_dir()?;
    let mut out = Out::new();
    let written = Link::with(&dir, |server| write_jobs(server, &args.selector.join(" "), &mut out))?;
    line(&mut out, &End { end: written })?;
    let code = out.finish()?;
    context.say(format_args!("exported {} jobs", grouped(written)));
    Ok(code)
}

fn write_jobs(server: &mut Connection, selector: &str, out: &mut Out) -> Result<u64, Failure> {
    let (mut cursor, mut written) = (String::new(), 0);
    loop {
        let path = format!("/api/v1/jobs?selector={}&limit={PAGE}{cursor}", encoded(selector));
        let page: Value = server.get_json(&path)?;
        if cursor.is_empty() {
            line(out, &Head { windlass_export: VERSION, made: time_text(clock::now()) })?;
        }
        for item in page.get("items").and_then(Value::as_array).into_iter().flatten() {
            // Listings have only the beginning of long data.
            let whole: Value;
            let item = match item.get("data_bytes").and_then(Value::as_u64) {
                Some(length) if length > shown(item) => {
                    let id = item.get("id").and_then(Value::as_str).unwrap_or_default();
                    whole = server.get_json(&format!("/api/v1/jobs/{}", encoded(id)))?;
                    &whole
                }
                _ => item,
            };
            let read: Line = serde_json::from_value(item.clone())
                .map_err(|e| Failure::new(Kind::Internal, format!("cannot read a job of the server: {e}")))?;
            line(out, &read)?;
            written += 1;
        }
        let Some(next) = page.get("next").and_then(Value::as_str) else { return Ok(written) };
        if out.closed() {
            return Ok(written);
        }
        cursor = format!("&cursor={}", encoded(next));
    }
}

/// How many bytes of its data a listed job has with it.
fn shown(item: &Value) -> u64 {
    print::data_of(item, "data").map_or(0, |data| data.len() as u64)
}

fn line(out: &mut Out, document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(document);
    let text = text.map_err(|e| Failure::new(Kind::Internal, format!("cannot write a job: {e}")))?;
    out.line(text);
    Ok(())
}

pub(super) fn import(args: &ImportArgs, context: &Context) -> Result<u8, Failure> {
    let text = match args.file.as_deref().filter(|file| *file != Path::new("-")) {
        Some(path) => {
            let cannot = |e: &std::io::Error| {
                Failure::new(Kind::NoInput, format!("cannot read the export {}: {e}", path.display()))
            };
            read(std::fs::File::open(path).map_err(|e| cannot(&e))?).map_err(|e| cannot(&e))?
        }
        None => read(std::io::stdin().lock()).map_err(|e| Failure::io("cannot read standard input", &e))?,
    };
    if text.len() > IMPORT_MAX {
        let most = IMPORT_MAX >> 20;
        let text =
            format!("the export has more than {most} MiB, and an import is taken as a whole; nothing was stored");
        return Err(Failure::new(Kind::BadData, text).hint("export by queue or state, and import one after another"));
    }
    // Before anything is opened: what is not whole needs no server to say so.
    crate::api::export::read(&text)?;
    let dir = context.data_dir()?;
    let path = if args.resume { "/api/v1/import?resume=true" } else { "/api/v1/import" };
    let done: Imported = Link::with(&dir, |server| {
        server.set_patience(None);
        server.post(path, NDJSON, &text)?.checked()?.json()
    })?;
    if context.json {
        return print::document(&serde_json::to_value(done).unwrap_or_default());
    }
    let Imported { imported, known, ended, without_run } = done;
    let (imported, known, ended) = (grouped(imported), grouped(known), grouped(ended));
    context.say(format_args!("imported {imported} jobs; {known} were here already, {ended} had ended"));
    if without_run > 0 {
        context.say(format_args!("{} belong to runs that are not here, and wait without one", grouped(without_run)));
    }
    Ok(0)
}

fn read(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    from.take(IMPORT_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok(text)
}
