//! `windlass pipeline run` where stages are kept in directories, or in several places.

use super::super::Context;
use super::super::print::{self, counted, visible};
use super::super::signals::{Interruptible, Signals, exit_code};
use super::feeder::{Journal, Source};
use crate::config::{Feeder, Loaded, Pipeline};
use crate::error::{Failure, Kind};
use crate::mixed::{self, Done, Home, Layout, Line, Place};
use crate::spool::coming::Coming;
use crate::spool::door::{doc_id, doc_id_that_fits};
use crate::spool::pipeline::Stages;
use crate::spool::{Counts, Queue};
use crate::store::place::{JobsTable, StagePlace, StorePlace};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use windlass_core::document::{DocId, Given};

/// Whether the stages of a pipeline are kept anywhere but in the one store that was named.
pub(super) fn are_needed(pipeline: &Pipeline, context: &Context) -> bool {
    context.directories().is_some() || !pipeline.is_of_one_store()
}

/// Refuses what `run` would refuse.
pub(super) fn check(loaded: &Loaded, pipeline: &Pipeline, context: &Context) -> Result<(), Failure> {
    mixed::check(loaded, pipeline, layout(loaded, pipeline, context)?)
}

pub(super) fn run(loaded: &Loaded, pipeline: &Pipeline, signals: Signals, context: &Context) -> Result<u8, Failure> {
    let quiet = context.quiet;
    let say = move |sentence: &str| {
        if !quiet {
            print::say(visible(sentence));
        }
    };
    let layout = layout(loaded, pipeline, context)?;
    let root = layout.root.clone();
    let log = context.quiet_log(&loaded.config)?;
    let line = Line::start(loaded, pipeline, layout, &log, &(Arc::new(say) as _))?;
    let stages = &line.stages;
    let stop = stages.stopper();
    let (fed, journal) = match Intake::open(stages, pipeline.feeder.as_ref(), &root) {
        Ok(mut intake) => (feed(stages, &mut intake, &signals), intake.fed.map(|(journal, _)| journal)),
        Err(failure) => (Err(failure), None),
    };
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
    if told.load(Ordering::Relaxed) == 0 {
        journal.map_or(Ok(()), Journal::forget)?;
    }
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
        Done::Documents(Counts { done, aside, gone, .. }) => {
            let more = more(aside, "set aside") + &more(gone, "gone");
            context.say(format_args!("{stage}: {} done{more}", counted(done, "document")));
            aside + gone
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
pub(super) fn layout(loaded: &Loaded, pipeline: &Pipeline, context: &Context) -> Result<Layout, Failure> {
    let directories = context.directories();
    let root = match &directories {
        Some(root) if root.as_os_str().is_empty() => {
            let text = "the store `dir:` names no directory, expected dir:PATH";
            return Err(Failure::new(Kind::Usage, text).hint("--store dir:. is the current one"));
        }
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

/// The lines of the feeder, or of standard input: each the text of a document, or the path of one where the first stage
/// works on files. They are read no faster than there is room for them.
fn feed(stages: &Stages, intake: &mut Intake<'_>, signals: &Signals) -> Result<(u64, Option<i32>), Failure> {
    let lines = Interruptible::new(intake.source.lines()?, signals).or_until(stages.trouble());
    let mut input = BufReader::new(lines);
    let (mut count, mut line) = (0, Vec::new());
    loop {
        line.clear();
        input.read_until(b'\n', &mut line).map_err(|e| Failure::io("cannot read the input", &e))?;
        let interrupted = input.get_ref().signal;
        if stages.have_failed() {
            return Err(stages_have_ended());
        }
        // What has no end may be half a line, unless whoever wrote it has ended well.
        if line.pop_if(|byte| *byte == b'\n').is_none() {
            intake.source.end(interrupted.is_some())?;
            if line.is_empty() || interrupted.is_some() {
                return Ok((count, interrupted));
            }
        }
        if line.is_empty() || intake.has_fed(&line) {
            continue;
        }
        while !stages.entrance.wait(Some(signals.arrived()))? {
            if signals.have_arrived() {
                return Ok((count, signals.next()));
            }
            if stages.have_failed() {
                return Err(stages_have_ended());
            }
        }
        count += 1;
        let size = intake.take(&line)?;
        stages.entrance.has_grown(size);
    }
}

/// Why is told by the stages themselves.
fn stages_have_ended() -> Failure {
    Failure::new(Kind::Internal, "the stages have ended")
}

/// What makes documents of lines.
struct Intake<'q> {
    queue: &'q Queue,
    takes_files: bool,
    source: Source,
    /// What documents without a name are called, before their number.
    stem: String,
    number: u64,
    /// What the files are called that became documents: several may have one name, from different directories.
    given: Given,
    /// Which lines a feeder has fed, and where their documents lie before they have their names.
    fed: Option<(Journal, Coming)>,
}

impl<'q> Intake<'q> {
    fn open(stages: &'q Stages, feeder: Option<&Feeder>, root: &Path) -> Result<Intake<'q>, Failure> {
        let random = getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?;
        let (mut stem, mut number, mut fed) = (format!("{:07x}", random >> 36), 0, None);
        let (queue, takes_files) = (&stages.first, stages.takes_files);
        let (mut given, mut last) = (Given::default(), None);
        if let Some(Feeder { name, .. }) = feeder {
            let cannot = |e: std::io::Error| Failure::io(format_args!("cannot write into {}", root.display()), &e);
            std::fs::create_dir_all(root).map_err(cannot)?;
            // The same lines in the same order got these names.
            let again = |line: &[u8]| last = takes_files.then(|| base_name(line).map(|doc| given.next(doc)));
            let journal = Journal::open(&root.join(format!(".fed-by-{name}")), &stem, again)?;
            (stem, number) = (journal.stem.clone(), journal.count);
            fed = Some((journal, Coming::into(queue).map_err(cannot)?));
        }
        let intake = Intake { queue, takes_files, source: Source::open(feeder)?, stem, number, given, fed };
        intake.name_last(last.transpose()?)?;
        Ok(intake)
    }

    /// Whoever was killed over a document had noted its line, and may not have given it its name.
    fn name_last(&self, file: Option<DocId>) -> Result<(), Failure> {
        let Some((journal, coming)) = &self.fed else { return Ok(()) };
        match file {
            Some(doc) => self.name(coming, &doc),
            None if journal.count > 0 => self.name(coming, &self.numbered()?),
            None => Ok(()),
        }
    }

    /// Whether an earlier process has fed this line of a feeder.
    fn has_fed(&mut self, line: &[u8]) -> bool {
        self.fed.as_mut().is_some_and(|(journal, _)| journal.has_fed(line))
    }

    /// What the last document without a name of its own is called.
    fn numbered(&self) -> Result<DocId, Failure> {
        doc_id(format!("{}-{}", self.stem, self.number).as_bytes())
    }

    /// Makes a document of a line; its size comes back.
    fn take(&mut self, line: &[u8]) -> Result<u64, Failure> {
        self.number += 1;
        if !self.takes_files {
            self.put(&self.numbered()?, line, &mut &line[..])?;
            return Ok(line.len() as u64);
        }
        let (mut file, size) = named_by(line)?;
        let doc = self.given.next(base_name(line)?);
        self.put(&doc, line, &mut file)?;
        Ok(size)
    }

    fn put(&mut self, doc: &DocId, line: &[u8], body: &mut impl std::io::Read) -> Result<(), Failure> {
        let cannot = cannot_put(self.queue, doc);
        if let Some((journal, coming)) = &mut self.fed {
            coming.write(doc, body).and_then(|_| coming.sync()).map_err(cannot)?;
            journal.note(line)?;
        } else if !self.queue.put(doc, body).map_err(cannot)? {
            return Err(is_taken(self.queue, doc));
        }
        self.fed.as_ref().map_or(Ok(()), |(_, coming)| self.name(coming, doc))
    }

    fn name(&self, coming: &Coming, doc: &DocId) -> Result<(), Failure> {
        match coming.name(doc).and_then(|_| coming.sync_names()) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(is_taken(self.queue, doc)),
            named => named.map_err(cannot_put(self.queue, doc)),
        }
    }
}

/// What the document of a file is called, if no other has its name.
fn base_name(line: &[u8]) -> Result<DocId, Failure> {
    doc_id_that_fits(Path::new(OsStr::from_bytes(line)).file_name().unwrap_or_default().as_bytes())
}

/// The file whose path a line is, and its size. What is no file is not waited for: a pipe would hold everything up.
fn named_by(line: &[u8]) -> Result<(File, u64), Failure> {
    let path = Path::new(OsStr::from_bytes(line));
    let refuse = |kind: Kind, text: String| {
        Failure::new(kind, text).hint("the first stage works on files: each line is the path of one")
    };
    let cannot = |e: std::io::Error| match e.kind() {
        ErrorKind::NotFound => refuse(Kind::NoInput, format!("there is no file {}", path.display())),
        _ => Failure::io(format_args!("cannot put {}", path.display()), &e),
    };
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(cannot)?;
    let facts = file.metadata().map_err(cannot)?;
    if !facts.is_file() {
        return Err(refuse(Kind::NoInput, format!("{} is no regular file, expected one", path.display())));
    }
    Ok((file, facts.len()))
}

fn cannot_put<'d>(queue: &'d Queue, doc: &'d DocId) -> impl Fn(std::io::Error) -> Failure + use<'d> {
    move |e| Failure::io(format_args!("cannot put {doc} into {}", queue.directory.path().display()), &e)
}

fn is_taken(queue: &Queue, doc: &DocId) -> Failure {
    let text = format!("a document {doc} waits in {} already", queue.directory.path().display());
    Failure::new(Kind::Conflict, text)
}
