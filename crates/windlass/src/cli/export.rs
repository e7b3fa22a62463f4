//! `windlass export` and `windlass import`: jobs as lines of JSON, out and in again.
//!
//! Data is text where it is text and base64 where not, byte for byte. An export beside a working server is no single
//! moment, as a backup is. An import is read through and checked before anything of it is sent; what is too large for
//! one request goes in parts, each of which is taken whole, and what is here already is left alone.

use super::Context;
use super::connect::{Connection, Link, encoded};
use super::print::{self, Out, grouped};
use crate::api::export::{End, Entry, Head, IMPORT_MAX, Imported, Line, Reader, VERSION};
use crate::api::{NDJSON, time_text};
use crate::clock;
use crate::error::{Failure, Kind};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use serde::Serialize;
use serde_json::Value;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use windlass_core::job::JobId;

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
    let place = context.place()?;
    let mut out = Out::new();
    let written = Link::with(&place, |server| write_jobs(server, &args.selector.join(" "), &mut out))?;
    line(&mut out, &End { end: written })?;
    let code = out.finish()?;
    context.say(format_args!("exported {}", print::jobs(written)));
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
    let file = source(args.file.as_deref().filter(|file| *file != Path::new("-")))?;
    // Before anything is opened: what is not whole needs no server to say so.
    let ended = survey(&file, args.resume)?;
    let place = context.made_place()?;
    let path = if args.resume { "/api/v1/import?resume=true" } else { "/api/v1/import" };
    let mut done = Imported { ended: ended.len() as u64, ..Imported::default() };
    let sent = Link::with(&place, |server| {
        server.set_patience(None);
        send_parts(&file, args.resume, &ended, IMPORT_MAX, |part| {
            let taken: Imported = server.post(path, NDJSON, part)?.checked()?.json()?;
            done.add(taken);
            Ok(())
        })
    });
    if let Err(failure) = sent {
        return Err(match done.imported {
            0 => failure,
            some => {
                let text = format!(
                    "{}; {} imported before that",
                    failure.text,
                    print::counted_do(some, "job", ("was", "were"))
                );
                Failure { text, ..failure }.hint("import the same again: what is here already is left alone")
            }
        });
    }
    if context.json {
        return print::document(&serde_json::to_value(done).unwrap_or_default());
    }
    let Imported { imported, known, ended, without_run } = done;
    let were = if known == 1 { "was" } else { "were" };
    let (imported, known, ended) = (print::jobs(imported), grouped(known), grouped(ended));
    context.say(format_args!("imported {imported}; {known} {were} here already, {ended} had ended"));
    if without_run > 0 {
        let told = print::counted_do(
            without_run,
            "job",
            ("belongs to a run that is not here, and waits", "belong to runs that are not here, and wait"),
        );
        context.say(format_args!("{told} without one"));
    }
    Ok(0)
}

/// The export as a file that can be read twice; what cannot be is copied to one without a name.
fn source(path: Option<&Path>) -> Result<File, Failure> {
    let Some(path) = path else { return copied(&mut std::io::stdin().lock(), "standard input") };
    let name = format!("the export {}", path.display());
    let cannot = |e: std::io::Error| Failure::new(Kind::NoInput, format!("cannot read {name}: {e}"));
    let mut file = File::open(path).map_err(cannot)?;
    match file.metadata().map_err(cannot)?.is_file() {
        true => Ok(file),
        false => copied(&mut file, &name),
    }
}

fn copied(from: &mut impl Read, name: &str) -> Result<File, Failure> {
    let temporary = std::env::temp_dir();
    let cannot = |e: std::io::Error| {
        Failure::io(format_args!("cannot copy {name} to a file without a name in {}", temporary.display()), &e)
    };
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::open(&temporary, flags, Mode::from_raw_mode(0o600));
    // Where there are no such files, memory is one.
    let file = file.or_else(|_| rustix::fs::memfd_create("windlass-import", MemfdFlags::CLOEXEC));
    let mut file = File::from(file.map_err(|e| cannot(e.into()))?);
    std::io::copy(from, &mut file).map_err(cannot)?;
    Ok(file)
}

/// Reads the export through; the jobs in it that have ended. One that ended while it was being exported stands there
/// twice, and must not be done again.
fn survey(file: &File, resume: bool) -> Result<HashSet<JobId>, Failure> {
    let mut ended = HashSet::new();
    each(file, resume, |entry, _| {
        if let Entry::Ended(id) = entry {
            ended.insert(id);
        }
        Ok(())
    })?;
    Ok(ended)
}

/// Hands over what waits, in exports that are small enough to be taken whole.
fn send_parts(
    file: &File,
    resume: bool,
    ended: &HashSet<JobId>,
    most: usize,
    mut send: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut part = Part::new()?;
    let mut sent = false;
    each(file, resume, |entry, text| {
        let Entry::Waits(job) = entry else { return Ok(()) };
        if ended.contains(&job.id) {
            return Ok(());
        }
        if part.text.len() + text.len() + Part::END_MAX > most {
            send(std::mem::replace(&mut part, Part::new()?).end()?.as_slice())?;
            sent = true;
        }
        part.add(text);
        Ok(())
    })?;
    // An export without a job is one, too.
    if part.jobs > 0 || !sent { send(part.end()?.as_slice()) } else { Ok(()) }
}

fn each(
    mut file: &File,
    resume: bool,
    mut act: impl FnMut(Entry, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    file.rewind().map_err(|e| Failure::io("cannot read the export", &e))?;
    let mut reader = Reader::new(BufReader::with_capacity(1 << 18, file))?;
    while let Some(line) = reader.next_job()? {
        let entry = line.entry(resume).map_err(|why| Failure { text: reader.bad(&why).text, ..why })?;
        act(entry, reader.text())?;
    }
    Ok(())
}

/// An export of some of the jobs.
struct Part {
    text: Vec<u8>,
    jobs: u64,
}

impl Part {
    /// The last line is no longer than this.
    const END_MAX: usize = 64;

    fn new() -> Result<Part, Failure> {
        let mut part = Part { text: Vec::new(), jobs: 0 };
        part.line(&Head { windlass_export: VERSION, made: time_text(clock::now()) })?;
        Ok(part)
    }

    fn add(&mut self, line: &[u8]) {
        self.text.extend_from_slice(line);
        self.text.push(b'\n');
        self.jobs += 1;
    }

    fn line(&mut self, document: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_vec(document);
        self.text.extend(text.map_err(|e| Failure::new(Kind::Internal, format!("cannot write a line: {e}")))?);
        self.text.push(b'\n');
        Ok(())
    }

    fn end(mut self) -> Result<Vec<u8>, Failure> {
        let end = self.jobs;
        self.line(&End { end })?;
        Ok(self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A file of jobs that wait, each with so much data, and at the end one of them again as one that has ended.
    fn exported(jobs: u64, data: usize) -> File {
        let mut file = copied(&mut &b""[..], "nothing").unwrap();
        let line = |n: u64, state: &str| {
            format!(
                "{{\"id\":\"j-0123456789-{n}\",\"queue\":\"q\",\"state\":\"{state}\",\"data\":\"{}\"}}\n",
                "x".repeat(data)
            )
        };
        file.write_all(b"{\"windlass_export\":1,\"made\":\"x\"}\n").unwrap();
        (1..=jobs).for_each(|n| file.write_all(line(n, "ready").as_bytes()).unwrap());
        file.write_all(line(1, "succeeded").as_bytes()).unwrap();
        file.write_all(format!("{{\"end\":{}}}\n", jobs + 1).as_bytes()).unwrap();
        file
    }

    fn parts(file: &File, most: usize) -> Vec<(usize, u64)> {
        let ended = survey(file, false).unwrap();
        let mut parts = Vec::new();
        let count = |part: &[u8]| {
            let mut reader = Reader::new(part)?;
            let mut jobs = 0;
            while reader.next_job()?.is_some() {
                jobs += 1;
            }
            parts.push((part.len(), jobs));
            Ok(())
        };
        send_parts(file, false, &ended, most, count).unwrap();
        parts
    }

    #[test]
    fn what_is_too_large_goes_in_parts_that_are_exports_and_what_has_ended_in_none() {
        let jobs = |parts: &[(usize, u64)]| parts.iter().map(|(_, jobs)| *jobs).collect::<Vec<_>>();
        assert_eq!(jobs(&parts(&exported(9, 10), IMPORT_MAX)), [8]);
        assert_eq!(jobs(&parts(&exported(1, 10), IMPORT_MAX)), [0], "nothing is left to do");
        let large = parts(&exported(15, 100), 1200);
        assert!(large.iter().all(|(size, _)| *size <= 1200), "{large:?}");
        assert_eq!(jobs(&large), [6, 6, 2]);
    }

    #[test]
    fn a_mistake_in_the_last_line_is_found_before_anything_is_sent() {
        let mut file = exported(3, 10);
        file.write_all(b"\n").unwrap();
        assert!(survey(&file, false).is_ok(), "what stands behind the end is nothing");
        let mut file = copied(&mut &b"{\"windlass_export\":1,\"made\":\"x\"}\n"[..], "a head").unwrap();
        file.write_all(
            b"{\"id\":\"j-0123456789-1\",\"queue\":\".x\",\"state\":\"ready\",\"data\":\"\"}\n{\"end\":1}\n",
        )
        .unwrap();
        let refused = survey(&file, false).unwrap_err();
        assert!(refused.kind == Kind::BadData && refused.text.starts_with("line 2 of the export: "), "{refused}");
    }
}
