//! `windlass tick`: does everything that is due, waits for it and ends: for cron.
//!
//! Without a server it is the server for so long; with one it nudges that and waits for it. What becomes due later,
//! a retry's back-off included, is the next tick's.

use super::Context;
use super::connect::{Connection, Link, configured, start_server};
use super::missed::Missed;
use super::print;
use super::signals::{Signals, exit_code};
use crate::config::Loaded;
use crate::data_dir::DataDir;
use crate::engine::event::Event;
use crate::error::{Failure, Kind};
use crate::log::{Level, Log, LogOptions};
use crate::store::place::StorePlace;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::sync_channel;

const EXAMPLES: &str = "\
Examples:
  windlass tick
  */5 * * * *  windlass -q tick --config /etc/windlass/windlass.toml";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The config; by default windlass.toml in the data directory, else in the user's config directory
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn tick(args: &Args, context: &Context) -> Result<u8, Failure> {
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
    // The config is checked first: a wrong one must not make a data directory.
    let file = context.config_file(args.config.as_deref(), &context.dir_path()?);
    let loaded = file.map_or_else(|| Ok(Loaded::default()), |path| Loaded::load(&path))?;
    let store = context.store_under(&loaded.config.store)?;
    let dir = context.data_dir()?;
    if let Some(mut server) = Link::to_server(&dir)? {
        let _: Value = server.post_empty("/api/v1/nudge")?;
        return through(server, signals, context);
    }
    alone(&loaded, &dir, &store, signals, context)
}

/// Somebody serves: a signal ends the wait, not the work.
fn through(server: Connection, signals: Signals, context: &Context) -> Result<u8, Failure> {
    enum Happened {
        Answer(Result<Value, Failure>),
        Signal(i32),
    }
    let (tell, happened) = sync_channel(2);
    let tell_signal = tell.clone();
    std::thread::spawn(move || signals.next().map(|signal| tell_signal.send(Happened::Signal(signal))));
    std::thread::spawn(move || tell.send(Happened::Answer(wait(server))));
    match happened.recv() {
        Ok(Happened::Answer(answer)) => conclude(&answer?, context),
        Ok(Happened::Signal(signal)) => {
            context.say("no longer waiting; the jobs go on");
            Ok(exit_code(signal))
        }
        Err(_) => Err(Failure::new(Kind::Internal, "the question was lost")),
    }
}

/// Nobody serves: this does, until nothing is left that could run now.
fn alone(
    loaded: &Loaded,
    dir: &DataDir,
    store: &StorePlace,
    signals: Signals,
    context: &Context,
) -> Result<u8, Failure> {
    let config = &loaded.config;
    // Cron mails what is said: where the log has no file of its own only what is wrong is worth a mail.
    let options = match &config.log.file {
        Some(_) => config.log.clone(),
        None => LogOptions { level: Level::Warn, ..config.log.clone() },
    };
    let log = if context.quiet { Log::off() } else { Log::start(options)? };
    let server = start_server(|| configured(loaded, dir, store, &log))?;
    let stopped_by = Arc::new(AtomicI32::new(0));
    let (engine, noted) = (server.handle().clone(), stopped_by.clone());
    std::thread::spawn(move || {
        let mut order = Event::Drain;
        while let Some(signal) = signals.next() {
            noted.store(signal, Ordering::Relaxed);
            if engine.send(order).is_err() {
                return;
            }
            order = Event::Halt;
        }
    });
    let answer = match Connection::open(dir)? {
        Some(connection) => wait(connection),
        None => Err(Failure::new(Kind::Internal, "the server that was just started does not answer")),
    };
    server.stop()?;
    match (stopped_by.load(Ordering::Relaxed), answer) {
        (0, answer) => conclude(&answer?, context),
        (signal, _) => {
            context.say("stopped; what was not done waits for the next tick");
            Ok(exit_code(signal))
        }
    }
}

fn wait(mut server: Connection) -> Result<Value, Failure> {
    server.set_patience(None);
    server.get_json("/api/v1/drained?due_only=true")
}

fn conclude(answer: &Value, context: &Context) -> Result<u8, Failure> {
    let missed = Missed::of(answer);
    if context.json {
        print::document(answer)?;
    } else {
        context.say(format_args!("everything that was due is done: {}", missed.words()));
    }
    Ok(if missed.all() == 0 { 0 } else { Kind::JobFailed.exit_code() })
}
