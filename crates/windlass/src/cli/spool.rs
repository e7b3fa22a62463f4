//! `windlass spool`: what people do with directories of documents, and see of them: put, take, retry, status, graph.
//!
//! The copying and renaming is the library's (`spool`); here it gets its words. Documents are named by bytes.

mod view;

pub(super) use view::COLUMNS as STAGES;

use super::Context;
use super::listing::Shape;
use super::print::{Out, counted, visible};
use super::values;
use crate::config::units;
use crate::error::{Failure, Kind};
use crate::spool::directory::Directory;
use crate::spool::door::{Handed, doc_id, doc_id_that_fits};
use crate::spool::queue::{Queue, close};
use crate::spool::take::Taker;
use crate::spool::{Entrance, Limit};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use windlass_core::document::DocId;

const EXAMPLES: &str = "\
Examples:
  windlass spool put pdfs *.pdf
  curl -s https://example.org/a.pdf | windlass spool put pdfs - --name a.pdf
  windlass spool put pdfs --done
  windlass spool status work
  windlass spool take out --to results
  windlass spool retry texts --all";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Copy files into a queue: they are there when they are whole, and on disk
    Put {
        /// The queue; made where it is missing
        directory: PathBuf,
        /// Each becomes a document of its name; `-` is what standard input has, as one document
        #[arg(required_unless_present = "done")]
        file: Vec<PathBuf>,
        /// The document's name, where it is one; `-` has none of its own
        #[arg(long, value_name = "DOC")]
        name: Option<OsString>,
        /// Nothing more will come: leave a file `done`, after the documents
        #[arg(long)]
        done: bool,
        /// Wait while so many documents wait there
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = values::count)]
        limit: u64,
        /// Wait while so many bytes wait there: 500M
        #[arg(long, value_name = "SIZE", value_parser = units::size)]
        limit_bytes: Option<u64>,
    },
    /// Move what is ready out of a queue; each document is handed to one taker
    Take {
        /// The queue
        directory: PathBuf,
        /// These documents; by default all that are ready
        document: Vec<OsString>,
        /// Where they go, under their plain names; by default the current directory
        #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
        to: PathBuf,
        /// So many at most, the first come first; by default all that are ready now
        #[arg(short, long, value_name = "N", conflicts_with = "document", value_parser = values::most)]
        number: Option<u64>,
    },
    /// Give what was set aside another chance, as if it had never been tried
    Retry {
        /// The queue
        directory: PathBuf,
        /// These documents
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        document: Vec<OsString>,
        /// All that were set aside
        #[arg(long)]
        all: bool,
    },
    /// See what waits, is worked on and failed, and where the time goes; changes nothing
    Status {
        /// Queues, or directories of queues
        #[arg(required = true)]
        directory: Vec<PathBuf>,
        #[command(flatten)]
        shape: Shape,
    },
    /// Print a picture of queues and what is in them
    Graph {
        /// A queue, and those that it feeds; or a directory of queues
        directory: PathBuf,
        /// As a picture for a browser
        #[arg(long)]
        svg: bool,
    },
}

pub(super) fn spool(args: &Args, context: &Context) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Put { directory, file, name, done, limit, limit_bytes } => {
            let limit = Limit { documents: *limit, bytes: limit_bytes.unwrap_or(0) };
            put(directory, file, name.as_deref(), *done, limit, context)
        }
        Verb::Take { directory, document, to, number } => take(directory, document, to, *number, context),
        Verb::Retry { directory, document, all } => retry(directory, document, *all, context),
        Verb::Status { directory, shape } => view::status(directory, shape, context),
        Verb::Graph { directory, svg } => view::graph(directory, *svg, context),
    }
}

/// What was done, told at the end: each document on a line of its own, and what was not.
struct Report<'c> {
    context: &'c Context,
    /// What is said of a document that is not there.
    absent: &'static str,
    out: Out,
    count: u64,
    missing: u64,
    refused: u64,
}

impl<'c> Report<'c> {
    fn new(context: &'c Context, absent: &'static str) -> Report<'c> {
        Report { context, absent, out: Out::new(), count: 0, missing: 0, refused: 0 }
    }

    fn tell(&mut self, doc: &[u8], handed: Handed) {
        let name = visible(&String::from_utf8_lossy(doc));
        match handed {
            Handed::Yes => {
                self.count += 1;
                if !self.context.json {
                    self.out.bytes(doc);
                    self.out.bytes(b"\n");
                }
            }
            Handed::NotThere => {
                self.missing += 1;
                self.context.say(format_args!("{name} {}", self.absent));
            }
            Handed::Refused(why) => {
                self.refused += 1;
                self.context.say(format_args!("left {name}: {}", visible(&why)));
            }
        }
    }

    /// `did` is what a document of these was: put, taken.
    fn end(mut self, did: &str, place: &Path) -> Result<u8, Failure> {
        if self.context.json {
            let told = json!({ did: self.count, "missing": self.missing, "refused": self.refused });
            self.out.line(told);
        } else {
            let place = visible(&place.display().to_string());
            self.context.say(format_args!("{} {did}: {place}", counted(self.count, "document")));
        }
        self.out.finish()?;
        Ok(match (self.missing, self.refused) {
            (0, 0) => 0,
            (_, 0) => Kind::NotFound.exit_code(),
            (_, _) => Kind::Conflict.exit_code(),
        })
    }
}

fn put(
    directory: &Path,
    files: &[PathBuf],
    name: Option<&OsStr>,
    done: bool,
    limit: Limit,
    context: &Context,
) -> Result<u8, Failure> {
    if name.is_some() && files.len() != 1 {
        let text = format!("--name is for one document, and there are {}", files.len());
        return Err(Failure::new(Kind::Usage, text).hint("put each with its name, one after the other"));
    }
    // All names are looked at before the first is put.
    let docs = files.iter().map(|file| named(file, name)).collect::<Result<Vec<DocId>, Failure>>()?;
    let queue = Queue::open(Directory::make(directory)?.path())?;
    queue.refuse_if_closed()?;
    let mut report = Report::new(context, "is not there");
    let entrance = Entrance::new(&queue.directory, limit);
    for (file, doc) in files.iter().zip(&docs) {
        while !entrance.wait(None)? {}
        let put = queue.put(doc, &mut body(file)?);
        let put =
            put.map_err(|e| Failure::io(format!("cannot put {} into {}", file.display(), directory.display()), &e))?;
        let waits = || Handed::Refused("a document of this name waits there already".into());
        entrance.has_grown(file.metadata().map_or(0, |meta| meta.len()));
        report.tell(doc.as_bytes(), if put { Handed::Yes } else { waits() });
    }
    if done {
        let closed = close(&queue.directory);
        closed.map_err(|e| Failure::io(format_args!("cannot write into {}", directory.display()), &e))?;
    }
    report.end("put", directory)
}

/// What a file's document is called.
fn named(file: &Path, name: Option<&OsStr>) -> Result<DocId, Failure> {
    let name = match name {
        Some(name) => name,
        None if file.as_os_str() == "-" => {
            return Err(Failure::new(Kind::Usage, "standard input has no name").hint("name the document: --name DOC"));
        }
        None => file.file_name().ok_or_else(|| {
            let text = format!("expected a file, got: {}", file.display());
            Failure::new(Kind::Usage, text)
        })?,
    };
    doc_id_that_fits(name.as_bytes())
}

fn body(file: &Path) -> Result<Box<dyn Read>, Failure> {
    if file.as_os_str() == "-" {
        return Ok(Box::new(std::io::stdin()));
    }
    let cannot = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => Failure::new(Kind::NoInput, format!("there is no file {}", file.display())),
        _ => Failure::io(format_args!("cannot read {}", file.display()), &e),
    };
    let opened = File::open(file).map_err(cannot)?;
    if opened.metadata().map_err(cannot)?.is_dir() {
        let text = format!("{} is a directory, expected a file", file.display());
        return Err(Failure::new(Kind::NoInput, text));
    }
    Ok(Box::new(opened))
}

fn take(
    directory: &Path,
    documents: &[OsString],
    to: &Path,
    number: Option<u64>,
    context: &Context,
) -> Result<u8, Failure> {
    let mut taker = Taker::new(Queue::open(directory)?, to)?;
    let mut report = Report::new(context, "is not ready, or somebody else has it");
    if documents.is_empty() {
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot look into {}", directory.display()), &e);
        for doc in taker.ready().map_err(cannot)? {
            if number.is_some_and(|most| report.count >= most) {
                break;
            }
            match taker.take(&doc)? {
                // Others may take as well: what they have is not missing.
                Handed::NotThere => {}
                handed => report.tell(doc.as_bytes(), handed),
            }
        }
    }
    for name in documents {
        let doc = doc_id(name.as_bytes())?;
        let handed = taker.take(&doc)?;
        report.tell(doc.as_bytes(), handed);
    }
    taker.finish()?;
    report.end("taken", directory)
}

fn retry(directory: &Path, documents: &[OsString], all: bool, context: &Context) -> Result<u8, Failure> {
    let queue = Queue::open(directory)?;
    let cannot = |e: std::io::Error| Failure::io(format_args!("cannot retry in {}", directory.display()), &e);
    let names = match all {
        true => queue.set_aside_names().map_err(cannot)?,
        false => documents.iter().map(|name| name.as_bytes().to_vec()).collect(),
    };
    let mut report = Report::new(context, "is not among what was set aside");
    for name in names {
        let doc = doc_id(&name)?;
        let handed = queue.retry(&doc).map_err(cannot)?;
        report.tell(doc.as_bytes(), handed);
    }
    report.end("retried", directory)
}
