//! `windlass serve`: the server in the foreground, its one line on stdout, its signals.
//!
//! TERM and INT drain, a second INT stops at once, HUP reads the config again and opens the log anew, USR1 looks for
//! work, TSTP asks for quiet and CONT or USR1 ends it, TTIN tells what goes on. The log is `crate::log`.

mod dump;

use super::Context;
use super::connect::{ReadConfig, ServerOptions, start_server};
use super::print::Out;
use super::signals::Signals;
use crate::config::{self, Config};
use crate::engine::event::Event;
use crate::engine::handle::EngineHandle;
use crate::error::Failure;
use crate::log::{Level, Log};
use std::path::PathBuf;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  windlass serve
  windlass serve --config windlass.toml
  kill -HUP PID        read the config again (a wrong one is refused and the old one stays), open the log anew
  kill -TSTP PID       start nothing more; kill -CONT PID goes on";

const TAKEN: [i32; 7] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGTTIN, libc::SIGTSTP, libc::SIGCONT];

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The config; by default windlass.toml in the data directory, else in the user's config directory
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn serve(args: &Args, context: &Context) -> Result<u8, Failure> {
    let signals = Signals::take(&TAKEN)?;
    // The config is checked first: a wrong one must not make a data directory.
    let named = args.config.clone();
    let wanted = context.dir_path()?;
    let read = move || match named.clone().or_else(|| config::usual_file(&wanted)) {
        Some(path) => Config::load(&path),
        None => Ok(Config::default()),
    };
    let config = read()?;
    let dir = context.data_dir()?;
    let log = Log::start(config.log.clone())?;
    let reload: ReadConfig = Arc::new(move || read().map(|config| (config.policies(), config.slots)));
    let server = start_server(|| ServerOptions {
        policies: config.policies(),
        slots: config.slots,
        serves: true,
        serve_open_runs: true,
        listen: Some(config.server.listen),
        drain: config.server.drain,
        archive: config.archive,
        reload: Some(reload.clone()),
        log: log.clone(),
        ..ServerOptions::new(dir.clone())
    })?;
    let mut out = Out::new();
    out.line(format_args!("windlass serves {} with data directory {}", server.address(), dir.root().display()));
    // A server whose stdout is closed still serves.
    out.flush();
    let pid = std::process::id();
    log.say(Level::Info, "serving", vec![("dir", dir.root().to_string_lossy().into()), ("pid", pid.into())]);
    let (engine, orders_log) = (server.handle().clone(), log.clone());
    let obey = move || obey(&signals, &engine, &reload, &orders_log);
    std::thread::Builder::new()
        .name("orders".into())
        .spawn(obey)
        .map_err(|e| Failure::io("cannot start a thread", &e))?;
    let ended = server.join();
    log.info("stopped");
    log.flush();
    ended.map(|()| 0)
}

/// Turns signals into events until the engine has ended.
fn obey(signals: &Signals, engine: &EngineHandle, reload: &ReadConfig, log: &Log) {
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
                engine.send(Event::Drain)
            }
            libc::SIGHUP => {
                log.reopen();
                reread(engine, reload, log);
                Ok(())
            }
            libc::SIGTTIN => dump::tell(engine, log),
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

/// Takes over a new set of rules as a whole, or keeps the old one.
fn reread(engine: &EngineHandle, reload: &ReadConfig, log: &Log) {
    let taken = reload().and_then(|(policies, slots)| {
        let count = policies.len();
        engine.ask(|answer| Event::Reload { policies, slots, answer }).map(|()| count)
    });
    match taken {
        Ok(count) => log.say(Level::Info, "reloaded", vec![("queues", count.into())]),
        Err(failure) => {
            log.say(Level::Error, "reload refused, the old config stays", vec![("error", failure.text.into())]);
        }
    }
}
