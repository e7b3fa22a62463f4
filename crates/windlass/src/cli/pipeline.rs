//! `windlass pipeline`: an example to begin with, a check with what fits this machine, one run of it, and its picture.
//!
//! A pipeline is a part of the config, so `check` and `graph` read the file; `run` works through the server that has
//! it, or serves it for so long.

mod directories;
mod feeder;
mod picture;

use super::Context;
use super::connect::{Connection, Link, configured, start_server, went_away};
use super::inbox_door::InboxDoor;
use super::print::{self, Out, count, grouped, jobs};
use super::signals::{Interruptible, Signals, exit_code};
use super::terms::Limits;
use crate::api::steering::ShownConfig;
use crate::config::{Config, Loaded, Pipeline};
use crate::data_dir::DataDir;
use crate::engine::event::Event;
use crate::error::{Failure, Kind};
use crate::inbox::Envelope;
use crate::log::{Level, Log, LogOptions};
use crate::server::Server;
use crate::store::Durability;
use feeder::Source;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use windlass_core::job::{Origin, QueueName, RunId};
use windlass_core::life_cycle::State;
use windlass_core::particulars::Scope;
use windlass_core::run::terms::{RunTerms, Tolerance};
use windlass_core::size;

/// The commented example, as `pipeline init` writes it.
pub(crate) const EXAMPLE: &str = include_str!("../../example-pipeline.toml");

const EXAMPLES: &str = "\
Examples:
  windlass pipeline init words.toml
  windlass pipeline check --config words.toml
  ls \"$PWD\"/*.txt | windlass pipeline run --config words.toml
  windlass pipeline graph --config words.toml --svg > words.svg
Without --config it is the config of the server that runs, else windlass.toml in the data directory.";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The pipeline; none where the config has but one
    name: Option<String>,
    /// The config; by default the one of the server that runs, else windlass.toml in the data directory or in the
    /// user's config directory
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Write a commented example; an existing file is left alone
    Init {
        /// By default windlass.toml in the data directory; `-` is stdout
        file: Option<PathBuf>,
    },
    /// Check all pipelines, and say how many workers of each stage fit this machine
    Check(Named),
    /// Put the lines of stdin into the first stage as one run, and wait for its end
    Run {
        #[command(flatten)]
        of: Named,
        #[command(flatten)]
        limits: Limits,
        /// So many failures, or such a share (1%), are borne; with more the rest is cancelled
        #[arg(long, value_name = "N|N%")]
        tolerate: Option<Tolerance>,
    },
    /// Print a pipeline with what is where now
    Graph {
        #[command(flatten)]
        of: Named,
        /// As a picture
        #[arg(long)]
        svg: bool,
    },
}

pub(super) fn pipeline(args: &Args, context: &Context) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Init { file } => init(file.as_deref(), context),
        Verb::Check(of) => check(of, context),
        Verb::Run { of, limits, tolerate } => run(of, limits.terms(*tolerate)?, context),
        Verb::Graph { of, svg } => picture::graph(of, *svg, context),
    }
}

fn init(file: Option<&Path>, context: &Context) -> Result<u8, Failure> {
    let code = super::config::write(file, EXAMPLE, "pipeline", context)?;
    let named = file.filter(|file| *file != Path::new("-"));
    if let Some(file) = named {
        context.say(format_args!("next: windlass pipeline check --config {}", file.display()));
    }
    Ok(code)
}

/// The config that is meant, and where it stands.
fn loaded(of: &Named, context: &Context) -> Result<(PathBuf, Loaded), Failure> {
    if let Some(path) = &of.config {
        return Ok((path.clone(), Loaded::load(path)?));
    }
    let dir = context.dir_path()?;
    let path = match served(&dir, context)? {
        Some(path) => Some(path),
        None => context.config_file(None, &dir),
    };
    let Some(path) = path else {
        let text = format!("no config: there is no {}", dir.join("windlass.toml").display());
        let hint = match Path::new("windlass.toml").exists() {
            true => "the one that is here must be named: --config windlass.toml",
            false => "name one: --config FILE; or write one: windlass pipeline init",
        };
        return Err(Failure::new(Kind::NoInput, text).hint(hint));
    };
    let loaded = Loaded::load(&path)?;
    Ok((path, loaded))
}

/// The config of the server that runs here.
fn served(dir: &Path, context: &Context) -> Result<Option<PathBuf>, Failure> {
    let dir = if context.directories().is_some() { None } else { DataDir::find(dir)? };
    let Some(mut server) = dir.map_or(Ok(None), |dir| Link::to_server(&dir))? else { return Ok(None) };
    let shown: ShownConfig = server.get_json("/api/v1/config")?;
    Ok(shown.file.map(PathBuf::from))
}

/// The pipeline of this name, or the only one.
fn chosen<'l>(name: Option<&str>, path: &Path, loaded: &'l Loaded) -> Result<&'l Pipeline, Failure> {
    let all = &loaded.config.pipelines;
    let known: Vec<&str> = all.iter().map(|pipeline| pipeline.name.as_str()).collect();
    let of = path.display();
    match (name, &all[..]) {
        (None, [only]) => Ok(only),
        (_, []) => Err(Failure::new(Kind::NotFound, format!("{of} has no pipeline"))
            .hint("windlass pipeline init - prints an example")),
        (None, _) => Err(Failure::new(Kind::Usage, format!("{of} has several pipelines, name one"))
            .hint(format!("there are: {}", known.join(", ")))),
        (Some(name), all) => all.iter().find(|pipeline| pipeline.name == name).ok_or_else(|| {
            Failure::new(Kind::NotFound, format!("no pipeline `{name}` in {of}"))
                .hint(format!("there are: {}", known.join(", ")))
        }),
    }
}

fn check(of: &Named, context: &Context) -> Result<u8, Failure> {
    let (path, loaded) = loaded(of, context)?;
    let all = match &of.name {
        Some(name) => std::slice::from_ref(chosen(Some(name), &path, &loaded)?),
        None => &loaded.config.pipelines[..],
    };
    for pipeline in all.iter().filter(|pipeline| directories::are_needed(pipeline, context)) {
        directories::check(&loaded, pipeline, context)?;
    }
    let machine = loaded.config.memory();
    if context.json {
        let told: Vec<Value> = all.iter().map(|pipeline| fitting(pipeline, machine)).collect();
        return print::document(&json!({ "file": path.to_string_lossy(), "pipelines": told }));
    }
    let mut out = Out::new();
    for pipeline in all {
        let budget = pipeline.memory.or(machine).map(|bytes| format!(" in {}", size::spoken(bytes)));
        out.line(format_args!("{}{}", pipeline.name, budget.unwrap_or_default()));
        if let Some(feeder) = &pipeline.feeder {
            out.line(format_args!("  {}: feeds {}", feeder.name, pipeline.stages[0].name));
        }
        for ((stage, rules), store) in pipeline.stages.iter().zip(&pipeline.rules).zip(&pipeline.stores) {
            let limit = rules.flow.as_ref().map_or(0, |flow| flow.limit);
            let memory = (stage.memory > 0).then(|| format!(" of {}", size::spoken(stage.memory)));
            let limit = (limit > 0).then(|| format!(", up to {} waiting", grouped(limit.into())));
            let to = (!stage.to.is_empty()).then(|| format!(", to {}", stage.to.join(", ")));
            let store = store.as_ref().map(|store| format!(", kept in {store}"));
            let more = [memory, limit, to, store].map(Option::unwrap_or_default).concat();
            let workers = print::counted(stage.slots.into(), "worker");
            out.line(format_args!("  {}: {} of {workers}{more}", stage.name, rules.slots));
        }
    }
    let code = out.finish()?;
    let slots: u32 = all.iter().flat_map(|pipeline| &pipeline.rules).map(|rules| rules.slots).sum();
    if slots > loaded.config.slots {
        let have = loaded.config.slots;
        context.say(format_args!(
            "the stages have {slots} workers together; `slots` in [limits] lets {have} work at once"
        ));
    }
    all.iter().filter_map(shared_keys).for_each(|text| context.say(text));
    let together = loaded.config.policies().iter().map(|rules| u64::from(rules.slots) * rules.limits.memory).sum();
    if let Some(machine) = machine.filter(|machine| together > *machine) {
        context.say(format_args!(
            "all tables together may use {}, of {}: what finds no memory free waits for it",
            size::spoken(together),
            size::spoken(machine)
        ));
    }
    let what = if all.len() == 1 { "pipeline" } else { "pipelines" };
    context.say(format_args!("{} is fine: {} {what}", path.display(), all.len()));
    Ok(code)
}

/// Stages whose jobs are unique in their run: what has been in one of them does not come into another.
fn shared_keys(pipeline: &Pipeline) -> Option<String> {
    let unique = pipeline.rules.iter().filter(|rules| rules.unique == Some(Scope::Run));
    let stages: Vec<&str> = unique.map(|rules| rules.pattern.as_str()).collect();
    let all = stages.join(" and ");
    (stages.len() > 1).then(|| {
        format!(
            "{all} have `unique = \"run\"`, and a run has one set of keys: data that was in one is dropped at the other"
        )
    })
}

fn fitting(pipeline: &Pipeline, machine: Option<u64>) -> Value {
    let stages = pipeline.stages.iter().zip(&pipeline.rules).zip(&pipeline.stores).map(|((stage, rules), store)| {
        json!({
            "name": stage.name, "store": store.as_ref().map(ToString::to_string), "queue": rules.pattern,
            "workers": rules.slots, "slots": stage.slots, "memory": stage.memory,
            "limit": rules.flow.as_ref().map_or(0, |flow| flow.limit), "to": stage.to,
        })
    });
    let stages: Vec<Value> = stages.collect();
    let feeder = pipeline.feeder.as_ref().map(|feeder| &feeder.name);
    json!({ "name": pipeline.name, "memory": pipeline.memory.or(machine), "feeder": feeder, "stages": stages })
}

fn run(of: &Named, terms: RunTerms, context: &Context) -> Result<u8, Failure> {
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
    let (path, loaded) = loaded(of, context)?;
    let pipeline = chosen(of.name.as_deref(), &path, &loaded)?;
    if directories::are_needed(pipeline, context) {
        if !terms.is_empty() {
            let text = "directories keep no terms of a run: --time-limit, --job-limit, --tolerate, --end-job and \
                        --notify need one store";
            return Err(Failure::new(Kind::Usage, text));
        }
        return directories::run(&loaded, pipeline, signals, context);
    }
    let first = &pipeline.rules[0].pattern;
    let queue = QueueName::new(first.as_bytes()).map_err(|e| Failure::new(Kind::Internal, e.to_string()))?;
    let dir = context.data_dir()?;
    let server = Link::to_server(&dir)?;
    let mut source = Source::open(pipeline.feeder.as_ref())?;
    let (taken, signal) = feed(queue, &terms, &dir, &mut source, &signals)?;
    let (run, fed) = taken;
    context.say(format_args!("{run}: {} in {first}", jobs(fed)));
    if let Some(signal) = signal {
        context.say(format_args!("interrupted: windlass wait {run} waits for what was read"));
        return Ok(exit_code(signal));
    }
    let own = match server {
        Some(_) => None,
        None => Some(serve(&loaded, &dir, context)?),
    };
    let ended = wait(run, &dir, signals, own.as_ref());
    if let Some(server) = own {
        server.stop()?;
    }
    match ended? {
        Ended::Run(answer) => conclude(run, &answer, context),
        Ended::Signal(signal) => {
            context.say(format_args!("no longer waiting; windlass wait {run} does"));
            Ok(exit_code(signal))
        }
    }
}

/// The lines of the feeder, or of standard input, as one run, sealed: what was taken, and the signal that ended them.
fn feed(
    queue: QueueName,
    terms: &RunTerms,
    dir: &DataDir,
    source: &mut Source,
    signals: &Signals,
) -> Result<((RunId, u64), Option<i32>), Failure> {
    let bits = getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?;
    let run = RunId::first(Origin::from_random(bits));
    let envelope = Envelope { run: Some(run), ..Envelope::new(queue) };
    let mut input = Interruptible::new(source.lines()?, signals);
    let mut inbox = InboxDoor::open(dir, &envelope, Durability::Full)?;
    if !terms.is_empty() {
        inbox.open_run(run, terms)?;
    }
    inbox.push_input(b'\n', &mut input)?;
    if let Err(failure) = source.end(input.signal.is_some()) {
        inbox.sync()?;
        let hint = format!("what it fed is in {run}, which nothing has sealed: windlass seal {run}, or cancel it");
        return Err(failure.hint(hint));
    }
    inbox.seal(run)?;
    let count = inbox.sync()?;
    Ok(((run, count), input.signal))
}

impl Context {
    /// The log of who serves for the time of a verb: of nothing but trouble.
    fn quiet_log(&self, config: &Config) -> Result<Log, Failure> {
        let log = LogOptions { level: Level::Warn, ..config.log.clone() };
        if self.quiet { Ok(Log::off()) } else { Log::start(log) }
    }
}

/// Nobody serves: this does, for so long.
fn serve(loaded: &Loaded, dir: &DataDir, context: &Context) -> Result<Server, Failure> {
    let config = &loaded.config;
    let log = context.quiet_log(config)?;
    let store = context.store_under(&config.store)?;
    start_server(|| configured(loaded, dir, &store, &log))
}

enum Ended {
    Run(Value),
    Signal(i32),
}

/// Waits for the end of the run or for a signal, which ends an own server's work in order.
fn wait(run: RunId, dir: &DataDir, signals: Signals, own: Option<&Server>) -> Result<Ended, Failure> {
    let mut server = Connection::open(dir)?.ok_or_else(went_away)?;
    server.set_patience(None);
    let engine = own.map(|server| server.handle().clone());
    let (tell, told) = sync_channel(2);
    let tell_signal = tell.clone();
    std::thread::spawn(move || {
        if let Some(signal) = signals.next() {
            if let Some(engine) = engine {
                // An engine that has ended needs no order.
                let _ended = engine.send(Event::Drain);
            }
            let _over = tell_signal.send(Ok(Ended::Signal(signal)));
        }
    });
    std::thread::spawn(move || {
        let answer = server.get_json(&format!("/api/v1/runs/{run}/wait")).map(Ended::Run);
        let _over = tell.send(answer);
    });
    told.recv().map_err(|_| Failure::new(Kind::Internal, "the question was lost"))?
}

fn conclude(run: RunId, answer: &Value, context: &Context) -> Result<u8, Failure> {
    let counts = answer.get("counts").unwrap_or(&Value::Null);
    let failed = count(counts, State::Failed.word()) + count(counts, State::Cancelled.word());
    // What a run tolerates is no failure of it.
    let succeeded = answer.get("succeeded") == Some(&Value::Bool(true));
    if context.json {
        print::document(answer)?;
    } else {
        let done = grouped(count(counts, State::Succeeded.word()));
        context.say(format_args!("{run} has ended: {done} succeeded, {} failed", grouped(failed)));
    }
    Ok(if failed == 0 || succeeded { 0 } else { Kind::JobFailed.exit_code() })
}
