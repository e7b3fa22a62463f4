//! `windlass serve`: the server in the foreground, its one line on stdout, its signals.
//!
//! TERM and INT drain, a second INT stops at once, HUP reads the config again and opens the log anew, USR1 looks for
//! work, TSTP asks for quiet and CONT or USR1 ends it, TTIN tells what goes on. The log is `crate::log`.

mod dump;
mod idle;
mod life;

use super::Context;
use super::connect::{ReadConfig, ServerOptions, configured, start_server};
use super::print::Out;
use super::signals::Signals;
use crate::allocator;
use crate::config::{Config, Loaded};
use crate::engine::event::Event;
use crate::engine::handle::EngineHandle;
use crate::error::Failure;
use crate::http::OpenView;
use crate::log::{Level, Log};
use crate::runner::progress::Board;
use crate::server::LiveConfig;
use crate::service_manager::ServiceManager;
use crate::when;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  windlass serve
  windlass serve --config windlass.toml
  kill -HUP PID        read the config again (a wrong one is refused), open the log anew
  kill -TSTP PID       start nothing more; kill -CONT PID goes on";

const TAKEN: [i32; 7] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGTTIN, libc::SIGTSTP, libc::SIGCONT];

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The config; by default windlass.toml in the data directory, else in the user's config directory
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ends by itself when for so long nothing was left to do
    #[arg(long, value_name = "DURATION", value_parser = when::duration)]
    idle: Option<Duration>,
}

pub(super) fn serve(args: &Args, context: &Context) -> Result<u8, Failure> {
    allocator::bound_what_is_free();
    let signals = Signals::take(&TAKEN)?;
    // The config is checked first: a wrong one must not make a data directory.
    let (named, asked) = (args.config.clone(), context.clone());
    let wanted = context.dir_path()?;
    let read = move || match asked.config_file(named.as_deref(), &wanted) {
        Some(path) => Loaded::load(&path),
        None => Ok(Loaded::default()),
    };
    let loaded = read()?;
    let config = &loaded.config;
    let store = context.store_under(&config.store)?;
    let dir = context.data_dir()?;
    let log = Log::start(config.log.clone().under(std::env::var_os("WINDLASS_LOG"))?)?;
    let reload: ReadConfig = Arc::new(read);
    let server = start_server(|| ServerOptions {
        serve_open_runs: true,
        listen: Some(config.server.listen),
        reload: Some(reload.clone()),
        ..configured(&loaded, &dir, &store, &log)
    })?;
    let mut out = Out::new();
    out.line(format_args!("windlass serves {} with data directory {}", server.address(), dir.root().display()));
    // A server whose stdout is closed still serves.
    out.flush();
    let pid = std::process::id();
    log.say(Level::Info, "serving", vec![("dir", dir.root().to_string_lossy().into()), ("pid", pid.into())]);
    tell_what_is_left_alone(config, &log);
    let manager = Arc::new(ServiceManager::of_this_process());
    life::tell_ready(server.handle(), server.view(), &manager);
    // Held to the end of the server: whoever shows its life hears of that.
    let (_serving, until) = channel();
    if let Some(beat) = manager.beat() {
        let (engine, manager, view) = (server.handle().clone(), Arc::clone(&manager), Arc::clone(server.view()));
        spawn("watchdog", move || life::show(&engine, &view, &manager, beat, &until))?;
    }
    // As for the beat: it hears of the server's end.
    let (_busy, ended) = channel();
    if let Some(length) = args.idle {
        let (dir, engine, log) = (dir.clone(), server.handle().clone(), log.clone());
        spawn("idle", move || idle::end_when_idle(&dir, &engine, length, &log, &ended))?;
    }
    let (engine, live, orders_log) = (server.handle().clone(), Arc::clone(server.config()), log.clone());
    let (told, board, view) = (Arc::clone(&manager), Arc::clone(server.board()), Arc::clone(server.view()));
    spawn("orders", move || obey(&signals, &engine, &live, &board, &orders_log, &told, &view))?;
    let ended = server.join();
    manager.stopping();
    log.info("stopped");
    log.flush();
    ended.map(|()| 0)
}

/// A pipeline with stages in other stores is served by nobody but the command that runs it.
fn tell_what_is_left_alone(config: &Config, log: &Log) {
    for pipeline in config.pipelines.iter().filter(|pipeline| !pipeline.is_of_one_store()) {
        let why = format!("has stages in other stores; windlass pipeline run {} works on all of it", pipeline.name);
        log.say(Level::Warn, "left alone", vec![("pipeline", pipeline.name.as_str().into()), ("why", why.into())]);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    thread.map(drop).map_err(|e| Failure::io("cannot start a thread", &e))
}

/// Turns signals into events until the engine has ended.
fn obey(
    signals: &Signals,
    engine: &EngineHandle,
    config: &LiveConfig,
    board: &Board,
    log: &Log,
    manager: &ServiceManager,
    view: &OpenView,
) {
    let mut interrupted = false;
    while let Some(signal) = signals.next() {
        let sent = match signal {
            libc::SIGINT if interrupted => {
                log.say(Level::Info, "stopping", vec![("how", "now".into())]);
                engine.send(Event::Halt)
            }
            libc::SIGINT | libc::SIGTERM => {
                interrupted |= signal == libc::SIGINT;
                log.say(Level::Info, "stopping", vec![("how", "drain".into())]);
                manager.stopping();
                engine.send(Event::Drain)
            }
            libc::SIGHUP => {
                log.reopen();
                manager.reloading();
                // What came of it stands in the log, whoever asked.
                let _ = config.reload(engine, "signal".into());
                life::tell_ready(engine, view, manager);
                Ok(())
            }
            libc::SIGTTIN => dump::tell(engine, board, log),
            libc::SIGTSTP => {
                // Said when it holds: whoever reads the line may rely on it.
                let sent = engine.send(Event::Quiet);
                log.info("quiet: nothing is started until CONT or USR1");
                sent
            }
            _ => {
                let sent = engine.send(Event::Nudge);
                log.info("looking for work");
                sent
            }
        };
        if sent.is_err() {
            return;
        }
    }
}
