//! The command line: one table of verbs, one way out.
//!
//! Each verb is a file of its own and returns an exit code or a `Failure`; only this file turns a failure into a
//! sentence and a number. Data goes to stdout, sentences to stderr. `connect` is how verbs reach an engine.

mod amend;
mod config;
mod connect;
mod doctor;
mod emit;
mod inbox_door;
mod lock_watch;
mod logs;
mod ls;
mod print;
mod progress;
mod push;
mod run;
mod serve;
mod show;
mod signals;
mod status;
mod stop;
mod wait;

use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ls *.jpg | windlass run -j 8 -- convert {} -thumbnail 200x {.}.thumb.jpg
  windlass push mail customer-42
  windlass serve --config windlass.toml
  windlass ls state:failed

";

const EXIT_CODES: &str = "\
Exit codes: 0 fine, 1 some job failed, 64 usage, 65 bad data, 66 no such input or job,
69 no server, 70 internal, 73 cannot create, 74 I/O, 75 try later, 76 version,
77 not permitted, 78 config, 124 time-out, 130 and 143 ended by a signal";

/// A job engine: accepts work, never loses it, hauls it through to the end.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, before_help = EXAMPLES.trim_end(), after_help = EXIT_CODES, max_term_width = 110)]
#[command(subcommand_required = true, disable_help_subcommand = false)]
struct Arguments {
    /// The data directory; by default the user's state directory
    #[arg(long, global = true, value_name = "DIR", env = "WINDLASS_DIR")]
    dir: Option<PathBuf>,
    /// No sentences on stderr but errors
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Machine-readable output; errors become one object on stderr
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

/// The table of verbs.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Accept jobs: one per DATA, or one per line of stdin
    Push(push::Args),
    /// Run a command for each line of stdin, and wait for the end
    Run(run::Args),
    /// Serve the queues that the config names
    Serve(serve::Args),
    /// Wait for the end of a run, or of everything that can run
    Wait(wait::Args),
    /// List jobs
    Ls(ls::Args),
    /// Show everything about a job or a run
    Show(show::Args),
    /// Count jobs by queue and state
    Status,
    /// Print what a job wrote
    Logs(logs::Args),
    /// Give jobs another try, now
    Retry(amend::Args),
    /// Cancel jobs; those that run are stopped
    Cancel(amend::Args),
    /// From within a job: say how far it is, and what it is at
    Progress(progress::Args),
    /// From within a job: emit further jobs, which count if it succeeds
    Emit(emit::Args),
    /// Stop the server of this data directory
    Stop(stop::Args),
    /// Check a config file, or write the commented default one
    Config(config::Args),
    /// Look at the machine and the data directory, and say what to mend
    Doctor,
}

/// What every verb is given besides its own arguments.
#[derive(Clone, Debug)]
struct Context {
    dir: Option<PathBuf>,
    quiet: bool,
    json: bool,
}

impl Context {
    /// The data directory, made where it is missing.
    fn data_dir(&self) -> Result<DataDir, Failure> {
        DataDir::open(&self.dir_path()?)
    }

    fn dir_path(&self) -> Result<PathBuf, Failure> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        let state = std::env::var_os("XDG_STATE_HOME").filter(|dir| Path::new(dir).is_absolute()).map(PathBuf::from);
        let home = || std::env::var_os("HOME").filter(|home| !home.is_empty());
        let state = state.or_else(|| home().map(|home| Path::new(&home).join(".local/state")));
        state.map(|dir| dir.join("windlass")).ok_or_else(|| {
            Failure::new(Kind::Usage, "no data directory: neither HOME nor XDG_STATE_HOME is set")
                .hint("name one with --dir")
        })
    }

    /// A sentence for people.
    fn say(&self, sentence: impl std::fmt::Display) {
        if !self.quiet {
            print::say(sentence);
        }
    }
}

/// Parses the arguments, does the verb, and chooses the exit code.
pub fn main() -> ExitCode {
    signals::ignore_file_size_limit();
    ExitCode::from(answer(std::env::args_os()))
}

fn answer(words: impl Iterator<Item = OsString>) -> u8 {
    let arguments = match parse(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            // With stdout or stderr closed nobody reads the help; the code still tells.
            let _ = error.print();
            return if error.use_stderr() { Kind::Usage.exit_code() } else { 0 };
        }
    };
    let context = Context { dir: arguments.dir, quiet: arguments.quiet, json: arguments.json };
    match dispatch(arguments.verb, &context) {
        Ok(code) => code,
        Err(failure) => {
            print::failure(&failure, context.json);
            failure.kind.exit_code()
        }
    }
}

fn parse(words: impl Iterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let matches = Arguments::command().try_get_matches_from(words)?;
    Arguments::from_arg_matches(&matches)
}

fn dispatch(verb: Verb, context: &Context) -> Result<u8, Failure> {
    match verb {
        Verb::Push(args) => push::push(&args, context),
        Verb::Run(args) => run::run(&args, context),
        Verb::Serve(args) => serve::serve(&args, context),
        Verb::Wait(args) => wait::wait(&args, context),
        Verb::Ls(args) => ls::ls(&args, context),
        Verb::Show(args) => show::show(&args, context),
        Verb::Status => status::status(context),
        Verb::Logs(args) => logs::logs(&args, context),
        Verb::Retry(args) => amend::amend("retry", &args, context),
        Verb::Cancel(args) => amend::amend("cancel", &args, context),
        Verb::Progress(args) => progress::progress(&args),
        Verb::Emit(args) => emit::emit(&args),
        Verb::Stop(args) => stop::stop(&args, context),
        Verb::Config(args) => config::config(&args, context),
        Verb::Doctor => doctor::doctor(context),
    }
}

#[cfg(test)]
mod tests;
