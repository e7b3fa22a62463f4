//! The command line: one table of verbs, one way out.
//!
//! Each verb is a file of its own and returns an exit code or a `Failure`; only this file turns a failure into a
//! sentence and a number. Data goes to stdout, sentences to stderr. `connect` is how verbs reach an engine.

mod aliases;
mod amend;
mod attach;
mod background;
mod backup;
mod color;
mod config;
mod confirm;
mod connect;
mod crawl;
mod directories;
mod doctor;
mod drive;
mod emit;
mod export;
mod graph;
mod inbox_door;
mod listing;
mod lock_watch;
mod logs;
mod ls;
mod missed;
mod moving;
mod nudge;
mod pages;
mod parts;
mod pipeline;
mod place;
#[cfg(test)]
pub(crate) use pipeline::EXAMPLE as PIPELINE_EXAMPLE;
mod print;
mod progress;
mod push;
mod rows;
mod run;
mod schedule;
mod seal;
mod serve;
mod servers;
mod show;
mod signals;
mod spool;
mod stats;
mod status;
mod steer;
mod stop;
mod terms;
mod tick;
mod top;
mod values;
mod wait;
mod watch;
mod watchdog;
mod why;
mod work;

use crate::config::{self as config_file, Loaded};
use crate::data_dir::{self, DataDir};
use crate::error::{Failure, Kind};
use crate::store::place::{DIRECTORIES, DatabaseUrl, JobsTable, StorePlace};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use color::Color;
use connect::{Connection, Link};
use place::{Place, Whereabouts};
use run::Shown;
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

/// Where an installed service has its data.
const INSTALLED: &str = "/var/lib/windlass";

const EXIT_CODES: &str = "\
Exit codes: 0 fine, 1 some job failed, 64 usage, 65 bad data, 66 no such input or job,
69 no server, 70 internal, 73 cannot create, 74 I/O, 75 try later, 76 version,
77 not permitted, 78 config, 124 time-out, 130 and 143 ended by a signal";

/// What each verb has besides its own options stands behind them.
const EVERYWHERE: &str = "Options of every verb";

/// A job engine: accepts work, never loses it, hauls it through to the end.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, before_help = EXAMPLES.trim_end(), after_help = EXIT_CODES, max_term_width = 110)]
#[command(subcommand_required = true, disable_help_subcommand = false, next_help_heading = EVERYWHERE)]
struct Arguments {
    /// The data directory; else WINDLASS_DIR, else the user's state directory
    #[arg(long, global = true, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// A server instead: http://ADDRESS:PORT or unix:///PATH; else WINDLASS_URL. Its token is WINDLASS_TOKEN, or in
    /// the file of WINDLASS_TOKEN_FILE
    #[arg(long, global = true, value_name = "URL", conflicts_with = "dir")]
    server: Option<String>,
    /// Where the jobs are, if not in the data directory: postgres://…, mysql://… or sqlite:PATH; else WINDLASS_STORE
    #[arg(long, global = true, value_name = "URL", conflicts_with = "server")]
    store: Option<String>,
    /// A [profile.NAME] of the config, which names a data directory or a server; else WINDLASS_PROFILE
    #[arg(short = 'P', long, global = true, value_name = "NAME")]
    profile: Option<String>,
    /// No sentences on stderr but errors
    #[arg(short, long, global = true)]
    quiet: bool,
    /// More sentences: `run` tells of every job that ends; -vv also which data directory it is, and who serves it
    #[arg(short, long, global = true, conflicts_with = "quiet", action = ArgAction::Count)]
    verbose: u8,
    /// Machine-readable output; errors become one object on stderr
    #[arg(long, global = true)]
    json: bool,
    /// Colours: on a terminal, always or never
    #[arg(long, global = true, value_name = "WHEN", value_enum, hide_possible_values = true, default_value = "auto")]
    #[arg(hide_default_value = true)]
    color: Color,
    /// Ask nothing: what would need a yes is refused, as where there is no terminal
    #[arg(long, global = true)]
    no_input: bool,
    /// How far a run is: auto, bar, plain (a line now and then), json or none
    #[arg(
        long = "progress",
        id = "shown",
        global = true,
        value_name = "HOW",
        value_enum,
        hide_possible_values = true,
        default_value = "auto"
    )]
    #[arg(hide_default_value = true, env = "WINDLASS_PROGRESS")]
    progress: Shown,
    #[command(subcommand)]
    verb: Verb,
}

/// The table of verbs.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Accept jobs: one per DATA, or one per line of stdin
    Push(Box<push::Args>),
    /// Run a command for each line of stdin, and wait for the end
    Run(run::Args),
    /// Crawl a site: save its pages, report what is broken, stop by itself
    Crawl(crawl::Args),
    /// Drive documents through a directory: a command for each file, its output into another directory
    Drive(drive::Args),
    /// Put documents into a directory, take them out, retry them, and see how they stand
    Spool(spool::Args),
    /// Watch directories of documents: give back what dead drivers held, and start drivers again
    Watchdog(watchdog::Args),
    /// Serve the queues that the config names
    Serve(serve::Args),
    /// Say that no more jobs will join a run from outside
    Seal(seal::Args),
    /// Wait for the end of a run, of jobs, or of everything that can run
    Wait(wait::Args),
    /// List jobs
    Ls(ls::Args),
    /// Show everything about a job or a run
    Show(show::Args),
    /// See how everything stands, live: queues, what runs, what failed, runs, documents
    Top(top::Args),
    /// Count jobs by queue and state
    Status(status::Args),
    /// Watch jobs change; a run to its end
    Watch(watch::Args),
    /// Count what ended, how fast, and how long it waited and ran
    Stats(stats::Args),
    /// Print what a job wrote
    Logs(logs::Args),
    /// Give jobs another try, now
    Retry(amend::Args),
    /// Cancel jobs; those that run are stopped
    Cancel(amend::Args),
    /// Start no more jobs of some queues, or of the server, for a while or until `unpause`
    Pause(steer::PauseArgs),
    /// Let paused queues, or the server, go on
    Unpause(steer::UnpauseArgs),
    /// Change the number of slots while running
    Scale(steer::ScaleArgs),
    /// Say why a job or a queue does not start, or what a run waits for
    Why(why::Args),
    /// Hold waiting jobs back until they are resumed
    Suspend(amend::Args),
    /// Let suspended jobs go on
    Resume(amend::Args),
    /// Change the priority of waiting jobs
    Priority(amend::PriorityArgs),
    /// Remove jobs that do not run; the archive keeps a line of each
    Delete(amend::Args),
    /// Give waiting jobs to another server, for good and under the same ids
    Move(moving::Args),
    /// See, fire, enable or disable schedules
    Schedule(schedule::Args),
    /// List the servers that share the table, or have one of them end
    Servers(servers::Args),
    /// Write, check, run or draw a pipeline
    Pipeline(pipeline::Args),
    /// Make a table of a database ready for jobs; without --apply only say what that takes
    Attach(attach::AttachArgs),
    /// Bring the tables of a database up to date
    Migrate(attach::MigrateArgs),
    /// Have the server look for work now
    Nudge,
    /// Do everything that is due, wait for it and end: for cron
    Tick(tick::Args),
    /// From within a job: say how far it is, and what it is at
    Progress(progress::Args),
    /// From within a job: emit further jobs, which count if it succeeds
    Emit(emit::Args),
    /// Work for a server: run a command for each job of some queues
    Work(work::Args),
    /// Stop the server of this data directory
    Stop(stop::Args),
    /// Check, write, show, compare, reload or change the config
    Config(config::Args),
    /// Look at the machine and the data directory, and say what to mend
    Doctor(doctor::Args),
    /// Copy everything to a file or a directory, while the server runs or without one
    Backup(backup::BackupArgs),
    /// Lay out a backup in a new data directory
    Restore(backup::RestoreArgs),
    /// Print jobs as lines of JSON, waiting and ended
    Export(export::ExportArgs),
    /// Take in the waiting jobs of an export, all or none; those that are here are left alone
    Import(export::ImportArgs),
    /// Print the completions for a shell
    Completions(pages::CompletionsArgs),
    /// Print the manual page
    Man(pages::ManArgs),
    /// Print the exit codes
    #[command(hide = true, after_help = EXIT_CODES)]
    ExitCodes,
}

/// What every verb is given besides its own arguments.
#[derive(Clone, Debug)]
struct Context {
    /// The verb, as it is called.
    verb: String,
    whereabouts: Whereabouts,
    quiet: bool,
    verbose: u8,
    json: bool,
    /// State words on stdout are coloured.
    color: bool,
    no_input: bool,
    progress: Shown,
}

impl Context {
    /// Where a verb that goes through the API finds its engine; it makes nothing.
    fn place(&self) -> Result<Place, Failure> {
        self.address()?.map_or_else(|| self.existing_dir().and_then(|dir| self.place_of(dir)), Ok)
    }

    /// The same of a verb that makes the data directory where it is missing.
    fn made_place(&self) -> Result<Place, Failure> {
        self.address()?.map_or_else(|| self.data_dir().and_then(|dir| self.place_of(dir)), Ok)
    }

    fn place_of(&self, dir: DataDir) -> Result<Place, Failure> {
        let store = self.store_of(dir.root())?;
        Ok(Place::Directory { dir, store })
    }

    /// Where the jobs of a data directory are: as it was named, else as its config says.
    fn store_of(&self, root: &Path) -> Result<StorePlace, Failure> {
        let named = self.config_file(None, root).map(|path| Loaded::load_elsewhere(&path));
        match named.transpose() {
            Ok(loaded) => self.store_under(&loaded.unwrap_or_default().config.store),
            // What a config that cannot be read would say matters only where the jobs are elsewhere.
            Err(failure) if root.join(data_dir::STORE_NOTE).exists() && self.whereabouts.store.is_none() => {
                Err(failure)
            }
            Err(_) => self.store_under(&StorePlace::Embedded),
        }
    }

    /// The directory of the stages' directories, where the store that was named is one.
    fn directories(&self) -> Option<PathBuf> {
        let named = self.whereabouts.store.as_ref()?;
        named.url.strip_prefix(DIRECTORIES).map(PathBuf::from)
    }

    /// The store that was named, with the rest of what the config says of it.
    fn store_under(&self, config: &StorePlace) -> Result<StorePlace, Failure> {
        let Some(named) = &self.whereabouts.store else { return Ok(config.clone()) };
        if let Some(path) = self.directories() {
            let what = format!("{}: directories hold no jobs for windlass {}", path.display(), self.verb);
            let hint = "windlass pipeline run works on them, and so do windlass drive and windlass spool (put, graph)";
            return Err(Failure::new(Kind::Usage, what).hint(hint));
        }
        let read = |why| Failure::new(Kind::Usage, format!("{}: {why}", named.by));
        let database: DatabaseUrl = named.url.parse().map_err(read)?;
        Ok(StorePlace::Table(match config.table() {
            Some(table) => JobsTable { database, ..table.clone() },
            None => JobsTable::new(database),
        }))
    }

    /// The server that was named, if one was.
    fn address(&self) -> Result<Option<Place>, Failure> {
        let Some(named) = &self.whereabouts.server else { return Ok(None) };
        if self.verbose > 1 {
            self.say(format_args!("server {}, named by {}", named.url, named.by));
        }
        Ok(Some(Place::Address { url: named.url.clone(), token: self.whereabouts.token()? }))
    }

    /// The data directory, made where it is missing.
    fn data_dir(&self) -> Result<DataDir, Failure> {
        DataDir::open(&self.dir_path()?).inspect(|dir| self.tell_place(dir))
    }

    /// With -vv: where this is, and who serves it.
    fn tell_place(&self, dir: &DataDir) {
        if self.verbose > 1 {
            let served = matches!(Link::to_server(dir), Ok(Some(_)));
            let by = if served { "a server answers there" } else { "no server answers there" };
            self.say(format_args!("data directory {}; {by}", dir.root().display()));
        }
    }

    /// The data directory of a verb that makes nothing: one that somebody named must be there. The usual one may be yet
    /// to come, and is empty then.
    fn existing_dir(&self) -> Result<DataDir, Failure> {
        let path = self.dir_path()?;
        match (DataDir::find(&path)?.inspect(|dir| self.tell_place(dir)), &self.whereabouts.dir) {
            (Some(dir), _) => Ok(dir),
            (None, None) => DataDir::open(&path),
            (None, Some(_)) => {
                let text = format!("there is no data directory at {}", path.display());
                Err(Failure::new(Kind::NoInput, text)
                    .hint("push, run and serve make one; is --dir or WINDLASS_DIR right?"))
            }
        }
    }

    /// A connection to the server, for a verb that is nothing without one; `why` ends the sentence.
    fn server(&self, why: &str) -> Result<(Place, Connection), Failure> {
        let lost = || Failure::new(Kind::NoServer, format!("no server answers{why}"));
        if let Some(place) = self.address()? {
            let connection = place.server()?.ok_or_else(lost)?;
            return Ok((place, connection));
        }
        let path = self.dir_path()?;
        let dir = DataDir::find(&path)?;
        let connected = dir.as_ref().map_or(Ok(None), Link::to_server)?;
        let there = dir.zip(connected).map(|(dir, connected)| Ok((self.place_of(dir)?, connected)));
        there.unwrap_or_else(|| {
            let text = format!("no server is running in {}{why}", path.display());
            Err(Failure::new(Kind::NoServer, text).hint("start one: windlass serve"))
        })
    }

    fn dir_path(&self) -> Result<PathBuf, Failure> {
        if let Some(dir) = &self.whereabouts.dir {
            return Ok(dir.clone());
        }
        if let Some(named) = &self.whereabouts.server {
            let what = format!("windlass {} works in a data directory of this machine", self.verb);
            let text = format!("{what}, and {} names a server: {}", named.by, named.url);
            return Err(Failure::new(Kind::Usage, text).hint("name the directory with --dir"));
        }
        let installed = Some(Path::new(INSTALLED)).filter(|dir| rustix::process::geteuid().is_root() && dir.is_dir());
        data_dir::usual_place(&|name| std::env::var_os(name), installed).ok_or_else(|| {
            Failure::new(Kind::Usage, "no data directory: neither HOME nor XDG_STATE_HOME is set")
                .hint("name one with --dir")
        })
    }

    /// The config of a server of this data directory: the one that was named, else the profile's, else the usual one.
    fn config_file(&self, named: Option<&Path>, dir: &Path) -> Option<PathBuf> {
        named
            .map(Path::to_owned)
            .or_else(|| self.whereabouts.profile.config.clone())
            .or_else(|| config_file::usual_file(dir))
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
    let words: Vec<OsString> = words.collect();
    let as_json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    let (arguments, verb) = match parse(words.into_iter()) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() && as_json => {
            let failure = refused(&error);
            print::failure(&failure, true);
            return failure.kind.exit_code();
        }
        Err(error) => {
            // With stdout or stderr closed nobody reads the help; the code still tells.
            let _ = error.print();
            return if error.use_stderr() { Kind::Usage.exit_code() } else { 0 };
        }
    };
    let Arguments { dir, server, store, profile, quiet, verbose, json, color, no_input, progress, verb: chosen } =
        arguments;
    let variable = |name: &str| std::env::var_os(name);
    let whereabouts = match Whereabouts::find(dir, server, store, profile.as_deref(), &variable) {
        Ok(whereabouts) => whereabouts,
        Err(failure) => {
            print::failure(&failure, json);
            return failure.kind.exit_code();
        }
    };
    let context = Context { verb, whereabouts, quiet, verbose, json, color: color.on_stdout(), no_input, progress };
    // Whoever names a server as well means the server's jobs.
    let elsewhere = context.whereabouts.server.is_some() || matches!(&chosen, Verb::Top(args) if args.asks_no_server());
    let directories = context.directories().filter(|_| !elsewhere);
    let refused = directories.and_then(|path| directories::refusal(&context.verb, &path));
    match refused.map_or_else(|| dispatch(chosen, &context), Err) {
        Ok(code) => code,
        Err(failure) => {
            print::failure(&failure, context.json);
            failure.kind.exit_code()
        }
    }
}

/// What is wrong with the words, as one sentence.
fn refused(error: &clap::Error) -> Failure {
    let told = error.to_string();
    let (sentence, rest) = told.split_once("\n\n").unwrap_or((&told, ""));
    let sentence = sentence.trim().trim_start_matches("error: ").replace("\n  ", " ");
    let tip = rest.lines().find_map(|line| line.trim().strip_prefix("tip: "));
    Failure::new(Kind::Usage, sentence).hint(tip.unwrap_or("windlass VERB --help has every option"))
}

/// The arguments, and the name of their verb.
fn parse(words: impl Iterator<Item = OsString>) -> Result<(Arguments, String), clap::Error> {
    let words: Vec<OsString> = words.collect();
    let command = Arguments::command().color(Color::named_in(&words).of_help());
    let words = aliases::replaced(words, &command);
    let matches = command.try_get_matches_from(words)?;
    let verb = matches.subcommand_name().unwrap_or_default().to_owned();
    Arguments::from_arg_matches(&matches).map(|arguments| (arguments, verb))
}

fn dispatch(verb: Verb, context: &Context) -> Result<u8, Failure> {
    match verb {
        Verb::Push(args) => push::push(&args, context),
        Verb::Run(args) => run::run(&args, context),
        Verb::Crawl(args) => crawl::crawl(&args, context),
        Verb::Drive(args) => drive::drive(&args, context),
        Verb::Spool(args) => spool::spool(&args, context),
        Verb::Watchdog(args) => watchdog::watchdog(&args, context),
        Verb::Serve(args) => serve::serve(&args, context),
        Verb::Seal(args) => seal::seal(&args, context),
        Verb::Wait(args) => wait::wait(&args, context),
        Verb::Ls(args) => ls::ls(&args, context),
        Verb::Show(args) => show::show(&args, context),
        Verb::Top(args) => top::top(&args, context),
        Verb::Status(args) => status::status(&args, context),
        Verb::Logs(args) => logs::logs(&args, context),
        Verb::Pause(args) => steer::pause(&args, context),
        Verb::Unpause(args) => steer::unpause(&args, context),
        Verb::Scale(args) => steer::scale(&args, context),
        Verb::Why(args) => why::why(&args, context),
        Verb::Watch(args) => watch::watch(&args, context),
        Verb::Stats(args) => stats::stats(&args, context),
        Verb::Retry(args) => amend::amend(amend::Verb::Retry, &args, context),
        Verb::Cancel(args) => amend::amend(amend::Verb::Cancel, &args, context),
        Verb::Suspend(args) => amend::amend(amend::Verb::Suspend, &args, context),
        Verb::Resume(args) => amend::amend(amend::Verb::Resume, &args, context),
        Verb::Priority(args) => amend::priority(&args, context),
        Verb::Delete(args) => amend::amend(amend::Verb::Delete, &args, context),
        Verb::Move(args) => moving::moving(&args, context),
        Verb::Schedule(args) => schedule::schedule(&args, context),
        Verb::Servers(args) => servers::servers(&args, context),
        Verb::Pipeline(args) => pipeline::pipeline(&args, context),
        Verb::Attach(args) => attach::attach(&args, context),
        Verb::Migrate(args) => attach::migrate(&args, context),
        Verb::Nudge => nudge::nudge(context),
        Verb::Tick(args) => tick::tick(&args, context),
        Verb::Progress(args) => progress::progress(&args),
        Verb::Emit(args) => emit::emit(&args),
        Verb::Work(args) => work::work(&args, context),
        Verb::Stop(args) => stop::stop(&args, context),
        Verb::Config(args) => config::config(&args, context),
        Verb::Doctor(args) => doctor::doctor(&args, context),
        Verb::Backup(args) => backup::backup(&args, context),
        Verb::Restore(args) => backup::restore(&args, context),
        Verb::Export(args) => export::export(&args, context),
        Verb::Import(args) => export::import(&args, context),
        Verb::Completions(args) => pages::completions(&args, Arguments::command()),
        Verb::ExitCodes => {
            let mut out = print::Out::new();
            out.line(EXIT_CODES);
            out.finish()
        }
        Verb::Man(args) => pages::man(&args, Arguments::command()),
    }
}

#[cfg(test)]
mod tests;
