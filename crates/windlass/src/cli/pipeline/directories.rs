//! `windlass --store dir:PATH pipeline run`: a pipeline whose stages are directories.

use super::super::Context;
use super::super::print::{self, counted, visible};
use super::super::signals::{Interruptible, Signals, exit_code};
use crate::config::Pipeline;
use crate::error::{Failure, Kind};
use crate::spool::Queue;
use crate::spool::door::doc_id;
use crate::spool::pipeline::Stages;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use windlass_core::document::DocId;

pub(super) fn run(pipeline: &Pipeline, root: &Path, signals: Signals, context: &Context) -> Result<u8, Failure> {
    let quiet = context.quiet;
    let say = move |sentence: &str| {
        if !quiet {
            print::say(visible(sentence));
        }
    };
    let stages = Stages::start(pipeline, root, &(Arc::new(say) as _))?;
    let stop = stages.stopper();
    let fed = feed(&stages, &signals);
    let told = Arc::new(AtomicU32::new(0));
    match &fed {
        Ok((count, None)) => {
            context.say(format_args!("{} in {}", counted(*count, "document"), stages.first.directory.path().display()));
            stages.close()?;
        }
        // What was read is there, and the same command with no input goes on with it.
        Ok((_, Some(signal))) => {
            told.store(*signal as u32, Ordering::Relaxed);
            stop();
        }
        Err(_) => stop(),
    }
    let heard = Arc::clone(&told);
    let watch = move || {
        while let Some(signal) = signals.next() {
            heard.store(signal as u32, Ordering::Relaxed);
            stop();
        }
    };
    let spawned = std::thread::Builder::new().name("pipeline signals".into()).spawn(watch);
    spawned.map_err(|e| Failure::io("cannot start a thread", &e))?;
    let counts = stages.join()?;
    fed?;
    let aside: u64 = counts.iter().map(|counts| counts.aside).sum();
    for (stage, counts) in pipeline.stages.iter().zip(&counts) {
        let aside = if counts.aside > 0 { format!(", {} set aside", counts.aside) } else { String::new() };
        context.say(format_args!("{}: {} done{aside}", stage.name, counted(counts.done, "document")));
    }
    match told.load(Ordering::Relaxed) {
        0 if aside > 0 => Ok(Kind::JobFailed.exit_code()),
        0 => Ok(0),
        signal => Ok(exit_code(signal as i32)),
    }
}

/// The lines of standard input: each the text of a document, or the path of one where the first stage works on files.
/// They are read no faster than there is room for them.
fn feed(stages: &Stages, signals: &Signals) -> Result<(u64, Option<i32>), Failure> {
    let queue = &stages.first;
    let raw = rustix::io::dup(std::io::stdin()).map_err(|e| Failure::io("cannot read standard input", &e.into()))?;
    let mut input = Interruptible::new(std::fs::File::from(raw), signals);
    let random = getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?;
    let mut count = 0;
    for line in BufReader::new(&mut input).split(b'\n') {
        let line = line.map_err(|e| Failure::io("cannot read standard input", &e))?;
        if line.is_empty() {
            continue;
        }
        while !stages.entrance.wait(Some(signals.arrived()))? {
            if signals.have_arrived() {
                return Ok((count, signals.next()));
            }
            if stages.have_failed() {
                return Err(Failure::new(Kind::Internal, "the stages have ended"));
            }
        }
        count += 1;
        let size = match stages.takes_files {
            true => put_file(queue, Path::new(OsStr::from_bytes(&line)))?,
            false => {
                let doc = doc_id(format!("{:07x}-{count}", random >> 36).as_bytes())?;
                put(queue, &doc, &mut &line[..])?;
                line.len() as u64
            }
        };
        stages.entrance.has_grown(size);
    }
    Ok((count, input.signal))
}

/// Its size comes back.
fn put_file(queue: &Queue, path: &Path) -> Result<u64, Failure> {
    let cannot = |e: &std::io::Error| Failure::io(format_args!("cannot put {}", path.display()), e);
    let doc = doc_id(path.file_name().unwrap_or_default().as_bytes())?;
    let mut file = std::fs::File::open(path).map_err(|e| cannot(&e))?;
    let size = file.metadata().map_err(|e| cannot(&e))?.len();
    put(queue, &doc, &mut file).map(|()| size)
}

fn put(queue: &Queue, doc: &DocId, body: &mut impl std::io::Read) -> Result<(), Failure> {
    let place = queue.directory.path().display();
    match queue.put(doc, body).map_err(|e| Failure::io(format_args!("cannot put {doc} into {place}"), &e))? {
        true => Ok(()),
        false => Err(Failure::new(Kind::Conflict, format!("a document {doc} waits in {place} already"))),
    }
}
