//! `windlass pipeline run` where stages are kept in directories, or in several places.

use super::super::Context;
use super::super::print::{self, counted, visible};
use super::super::signals::{Interruptible, Signals, exit_code};
use crate::config::{Loaded, Pipeline};
use crate::error::{Failure, Kind};
use crate::mixed::{Done, Home, Layout, Line, Place};
use crate::spool::door::doc_id;
use crate::spool::pipeline::Stages;
use crate::spool::{Counts, Queue};
use crate::store::place::{JobsTable, StagePlace, StorePlace};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use windlass_core::document::DocId;

/// Whether the stages of a pipeline are kept anywhere but in the one store that was named.
pub(super) fn are_needed(pipeline: &Pipeline, context: &Context) -> bool {
    context.directories().is_some() || !pipeline.is_of_one_store()
}

pub(super) fn run(loaded: &Loaded, pipeline: &Pipeline, signals: Signals, context: &Context) -> Result<u8, Failure> {
    let quiet = context.quiet;
    let say = move |sentence: &str| {
        if !quiet {
            print::say(visible(sentence));
        }
    };
    let layout = layout(loaded, pipeline, context)?;
    let log = context.quiet_log(&loaded.config)?;
    let line = Line::start(loaded, pipeline, layout, &log, &(Arc::new(say) as _))?;
    let stages = &line.stages;
    let stop = stages.stopper();
    let fed = feed(stages, &signals);
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
    let done = line.join()?;
    fed?;
    let failed = done.iter().map(|(stage, done)| tell(stage, done, context)).sum::<u64>();
    match told.load(Ordering::Relaxed) {
        0 if failed > 0 => Ok(Kind::JobFailed.exit_code()),
        0 => Ok(0),
        signal => Ok(exit_code(signal as i32)),
    }
}

/// Says what a stage has done; how much of it failed comes back.
fn tell(stage: &str, done: &Done, context: &Context) -> u64 {
    let more = |count: u64, what: &str| if count > 0 { format!(", {count} {what}") } else { String::new() };
    match *done {
        Done::Documents(Counts { done, aside, .. }) => {
            context.say(format_args!("{stage}: {} done{}", counted(done, "document"), more(aside, "set aside")));
            aside
        }
        Done::Jobs { succeeded, failed, aside } => {
            let more = more(failed, "failed") + &more(aside, "set aside");
            context.say(format_args!("{stage}: {} done{more}", counted(succeeded, "job")));
            failed + aside
        }
    }
}

/// Where each stage is kept: where it says, else in the store that was named. A server of a table has a directory of
/// its own, since a data directory belongs to one store.
fn layout(loaded: &Loaded, pipeline: &Pipeline, context: &Context) -> Result<Layout, Failure> {
    let directories = context.directories();
    let root = match &directories {
        Some(root) => root.clone(),
        None => context.dir_path()?.join("pipelines").join(&pipeline.name),
    };
    let config = &loaded.config.store;
    let mut tables: Vec<Home> = Vec::new();
    let mut place = |stage: &str, store: Option<&StagePlace>| match (store, &directories) {
        (None, Some(root)) => Ok(Place::Directory(root.join(stage))),
        (None, None) => Ok(Place::Store(Home { dir: context.dir_path()?, store: context.store_under(config)? })),
        (Some(StagePlace::Directories(root)), _) => Ok(Place::Directory(root.join(stage))),
        (Some(StagePlace::Embedded(dir)), _) => {
            let dir = dir.clone().map_or_else(|| context.dir_path(), Ok)?;
            Ok(Place::Store(Home { dir, store: StorePlace::Embedded }))
        }
        (Some(StagePlace::Table(database)), _) => {
            let of = |table: &JobsTable| JobsTable { database: database.clone(), ..table.clone() };
            let table = config.table().map_or_else(|| JobsTable::new(database.clone()), of);
            let home = Home { dir: root.join(".servers").join(stage), store: StorePlace::Table(table) };
            if !tables.iter().any(|known| known.store == home.store) {
                tables.push(home.clone());
            }
            let known = tables.iter().find(|known| known.store == home.store);
            Ok::<_, Failure>(Place::Store(known.unwrap_or(&home).clone()))
        }
    };
    let stages = pipeline.stages.iter().zip(&pipeline.stores);
    let places = stages.map(|(stage, store)| place(&stage.name, store.as_ref())).collect::<Result<_, Failure>>()?;
    Ok(Layout { root, places })
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
