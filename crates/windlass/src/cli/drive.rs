//! `windlass drive`: drivers of a directory of documents, until it is done or they are told to end.
//!
//! The drivers are the library's (`spool`); here they get their words and their signals.

use super::Context;
use super::print::{counted, grouped, visible};
use super::signals::{Signals, exit_code};
use super::values;
use crate::config::{self, units};
use crate::error::{Failure, Kind};
use crate::spool::{Drive, Ended, LEASE, Limit, NEVER_IDLE, Order, TRIES, Task};
use crate::when;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;
use windlass_core::document::check_extension;
use windlass_core::policy::{Command, Limits, Policy, Service, Worker};
use windlass_core::template::{makes_document, takes_document};

const EXAMPLES: &str = "\
Examples:
  windlass drive --in pdfs --out texts -j 4 -- pdftotext {in} {out}
  windlass drive --in texts --out parsed --keep -- ./parser
  windlass drive --in parsed -- ./load-into-index {in}

Templates: {in} the document's file, {out} the file that its output is to be written to; without either they
           are the last arguments. A kept command gets a line IN<TAB>OUT for each document, and answers with a
           line: ok, or fail and retry with a reason.
Ends by itself when the input has a file `done` and all of it is worked off. TERM: what is under way is finished.";

/// What is read of a command's output, for the reason of a failure.
const OUTPUT_MAX: u64 = 64 << 10;

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The directory of documents: files with names DOC.ready
    #[arg(long = "in", value_name = "DIR")]
    input: PathBuf,
    /// Where the outputs appear as DOC.ready, made where it is missing; none where nothing comes out
    #[arg(long = "out", value_name = "DIR")]
    output: Option<PathBuf>,
    /// Drivers, each of which has one document at a time
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = values::slots)]
    jobs: u32,
    /// Start the command once for each driver, and give it a line for each document
    #[arg(long)]
    keep: bool,
    /// Try a document so often; 0 for no end of it
    #[arg(long, value_name = "N", default_value_t = TRIES, value_parser = values::times)]
    tries: u32,
    /// Wait while so many documents wait in the output
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = values::count)]
    limit: u64,
    /// Wait while so many bytes wait in the output: 500M
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    limit_bytes: Option<u64>,
    /// A document that takes longer is stopped, and has failed
    #[arg(long, value_name = "DURATION", value_parser = when::duration)]
    time_limit: Option<Duration>,
    /// A command that uses more memory is stopped, and its document has failed
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    memory: Option<u64>,
    /// What the name of an output ends with while it is being written: DOC.N.writing.EXT
    #[arg(long, value_name = "EXT", default_value = "xml")]
    ext: String,
    /// A driver on another machine that is silent for so long is dead; by default 30s
    #[arg(long, value_name = "DURATION", value_parser = when::duration)]
    lease: Option<Duration>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn drive(args: &Args, context: &Context) -> Result<u8, Failure> {
    let order = order(args)?;
    let place = args.input.display().to_string();
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
    let quiet = context.quiet;
    let say = move |sentence: &str| {
        if !quiet {
            super::print::say(visible(sentence));
        }
    };
    let drive = Drive::start(order, Arc::new(say))?;
    let stop = drive.stopper();
    let (times, last) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicI32::new(0)));
    let told = (Arc::clone(&times), Arc::clone(&last));
    let watch = move || {
        while let Some(signal) = signals.next() {
            told.1.store(signal, Ordering::Relaxed);
            stop();
            if told.0.fetch_add(1, Ordering::Relaxed) == 0 && !quiet {
                super::print::say("finishing what is under way; once more gives it back now");
            }
        }
    };
    let spawned = std::thread::Builder::new().name("drive signals".into()).spawn(watch);
    spawned.map_err(|e| Failure::io("cannot start a thread", &e))?;
    let ended = drive.join()?;
    context.say(summary(&place, &ended));
    // Told once it has finished what it had, which is an end as good as any; told twice it has not.
    match times.load(Ordering::Relaxed) {
        0 | 1 if ended.counts.aside + ended.counts.gone > 0 => Ok(Kind::JobFailed.exit_code()),
        0 | 1 => Ok(0),
        _ => Ok(exit_code(last.load(Ordering::Relaxed))),
    }
}

/// A command that is not there would cost every document its tries.
fn check_program(program: &OsString, directory: &Path) -> Result<(), Failure> {
    let checked = config::check_program(program.as_bytes(), directory, std::env::var_os("PATH").as_deref());
    checked.map_err(|why| Failure::new(Kind::NoInput, format!("cannot run the command: {why}")))
}

fn order(args: &Args) -> Result<Order, Failure> {
    check_extension(&args.ext).map_err(|why| Failure::new(Kind::Usage, format!("--ext: {why}")))?;
    let argv = argv(args)?;
    let directory = std::env::current_dir().map_err(|e| Failure::io("cannot tell the current directory", &e))?;
    check_program(&args.command[0], &directory)?;
    // What a job of a server was told about itself is not true of these commands.
    let own = |name: &OsString| name.as_bytes().starts_with(b"WINDLASS_");
    let environment = std::env::vars_os().filter(|(name, _)| !own(name));
    let environment = environment.map(|(name, value)| (name.into_vec(), value.into_vec())).collect();
    let command = Command { argv, directory: directory.into_os_string().into_vec(), environment };
    let service = match args.keep {
        true => Service::Worker(Worker { idle: NEVER_IDLE, ..Worker::new(command) }),
        false => Service::Command(command),
    };
    let limits = Limits { memory: args.memory.unwrap_or(0), ..Limits::default() };
    let policy =
        Policy { time_limit: args.time_limit, output_max: OUTPUT_MAX, limits, ..Policy::new("drive", service) };
    let limit = Limit { documents: args.limit, bytes: args.limit_bytes.unwrap_or(0) };
    Ok(Order {
        extension: args.ext.clone(),
        drivers: args.jobs,
        tries: args.tries,
        limits: args.output.iter().map(|output| (output.clone(), limit)).collect(),
        lease: args.lease.unwrap_or(LEASE).max(Duration::from_millis(100)),
        ..Order::new(args.input.clone(), Task::Files { output: args.output.clone() }, policy)
    })
}

/// The command as it is started: with the document's files as its last arguments where it names neither.
fn argv(args: &Args) -> Result<Vec<Vec<u8>>, Failure> {
    let mut argv: Vec<Vec<u8>> = args.command.iter().map(|word| word.as_bytes().to_vec()).collect();
    let refuse = |text: &str, hint: &str| Err(Failure::new(Kind::Usage, text).hint(hint));
    match (args.keep, takes_document(&argv), makes_document(&argv), &args.output) {
        _ if argv[0].is_empty() => return refuse("the command is the empty string", "name a program behind --"),
        (true, true, ..) => {
            let hint = "it gets a line IN<TAB>OUT for each document on standard input";
            return refuse("{in} and {out} are of one document, and a kept command gets many", hint);
        }
        (true, false, ..) => {}
        (false, _, true, None) => {
            return refuse("the command writes to {out}, and there is no --out", "name a directory with --out");
        }
        (false, true, false, Some(_)) => {
            return refuse("the command names {in} and not {out}", "say where it writes its output: {out}");
        }
        (false, true, ..) => {}
        (false, false, _, output) => {
            argv.push(b"{in}".to_vec());
            argv.extend(output.as_ref().map(|_| b"{out}".to_vec()));
        }
    }
    Ok(argv)
}

fn summary(place: &str, ended: &Ended) -> String {
    let counts = &ended.counts;
    let mut parts = vec![format!("{} done", counted(counts.done, "document"))];
    let tries = if counts.failed == 1 { "try failed" } else { "tries failed" };
    for (count, words) in [(counts.failed, tries), (counts.aside, "set aside"), (counts.gone, "gone")] {
        if count > 0 {
            parts.push(format!("{} {words}", grouped(count)));
        }
    }
    let how = if ended.closed { "is worked off" } else { "is left" };
    format!("{place} {how}: {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv_of(words: &[&str]) -> Result<String, Failure> {
        #[derive(clap::Parser)]
        struct Probe {
            #[command(flatten)]
            args: Args,
        }
        let probe: Probe = clap::Parser::try_parse_from(["drive", "--in", "i"].iter().chain(words)).unwrap();
        let argv = argv(&probe.args)?;
        Ok(argv.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_files_are_the_last_arguments_unless_they_are_placed() {
        assert_eq!(argv_of(&["--out", "o", "--", "cp"]).unwrap(), "cp {in} {out}");
        assert_eq!(argv_of(&["--", "rm"]).unwrap(), "rm {in}");
        assert_eq!(argv_of(&["--out", "o", "--", "sort", "-o", "{out}", "{in}"]).unwrap(), "sort -o {out} {in}");
        assert_eq!(argv_of(&["--out", "o", "--keep", "--", "parser"]).unwrap(), "parser");
        for words in [
            &["--", "cp", "{in}", "{out}"][..],
            &["--out", "o", "--", "wc", "{in}"],
            &["--keep", "--", "parser", "{in}"],
            &["--", ""],
        ] {
            assert_eq!(argv_of(words).unwrap_err().kind, Kind::Usage, "{words:?}");
        }
    }

    #[test]
    fn the_last_sentence_says_what_was_done() {
        let counts = crate::spool::Counts { done: 1200, failed: 1, aside: 2, gone: 3 };
        assert_eq!(
            summary("in", &Ended { counts, closed: true }),
            "in is worked off: 1,200 documents done, 1 try failed, 2 set aside, 3 gone"
        );
        let counts = crate::spool::Counts { failed: 2, ..Default::default() };
        assert_eq!(summary("in", &Ended { counts, closed: false }), "in is left: 0 documents done, 2 tries failed");
        let counts = crate::spool::Counts { done: 1, ..Default::default() };
        assert_eq!(summary("in", &Ended { counts, closed: false }), "in is left: 1 document done");
    }
}
