//! `windlass serve`: the server in the foreground, its one line on stdout, its signals.
//!
//! TERM and INT drain, a second INT stops at once, HUP reads the config again, USR1 looks for work, TTIN tells what
//! is in flight. Logs go to stderr as `key=value`.

use super::Context;
use super::connect::{ReadConfig, ServerOptions, start_server};
use super::print::{Out, visible};
use super::signals::Signals;
use crate::clock;
use crate::config::{self, Loaded};
use crate::engine::event::Event;
use crate::engine::handle::EngineHandle;
use crate::error::Failure;
use crate::server::LiveConfig;
use crate::when;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  windlass serve
  windlass serve --config windlass.toml
  kill -HUP PID        read the config again; a wrong one is refused and the old one stays";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The config; by default windlass.toml in the data directory, else in the user's config directory
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn serve(args: &Args, context: &Context) -> Result<u8, Failure> {
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGTTIN])?;
    // The config is checked first: a wrong one must not make a data directory.
    let named = args.config.clone();
    let wanted = context.dir_path()?;
    let read = move || match named.clone().or_else(|| config::usual_file(&wanted)) {
        Some(path) => Loaded::load(&path),
        None => Ok(Loaded::default()),
    };
    let loaded = read()?;
    let config = &loaded.config;
    let dir = context.data_dir()?;
    let reload: ReadConfig = Arc::new(read);
    let server = start_server(|| ServerOptions {
        policies: config.policies(),
        slots: config.slots,
        serves: true,
        serve_open_runs: true,
        listen: Some(config.server.listen),
        drain: config.server.drain,
        archive: config.archive,
        config: loaded.clone(),
        reload: Some(reload.clone()),
        log: Arc::new(|note| log(note, &[])),
        ..ServerOptions::new(dir.clone())
    })?;
    let mut out = Out::new();
    out.line(format_args!("windlass serves {} with data directory {}", server.address(), dir.root().display()));
    // A server whose stdout is closed still serves.
    out.flush();
    let engine = server.handle().clone();
    let live = Arc::clone(server.config());
    let obey = move || obey(&signals, &engine, &live);
    std::thread::Builder::new()
        .name("orders".into())
        .spawn(obey)
        .map_err(|e| Failure::io("cannot start a thread", &e))?;
    server.join()?;
    log("stopped", &[]);
    Ok(0)
}

/// Turns signals into events until the engine has ended.
fn obey(signals: &Signals, engine: &EngineHandle, config: &LiveConfig) {
    let mut interrupted = false;
    while let Some(signal) = signals.next() {
        let sent = match signal {
            libc::SIGINT if interrupted => {
                log("stopping", &[("how", &"now")]);
                engine.send(Event::Halt)
            }
            libc::SIGINT | libc::SIGTERM => {
                interrupted |= signal == libc::SIGINT;
                log("stopping", &[("how", &"drain")]);
                engine.send(Event::Drain)
            }
            libc::SIGHUP => {
                // What came of it stands in the log, whoever asked.
                let _ = config.reload(engine);
                Ok(())
            }
            libc::SIGTTIN => tell_flights(engine),
            _ => engine.send(Event::Nudge),
        };
        if sent.is_err() {
            return;
        }
    }
}

fn tell_flights(engine: &EngineHandle) -> Result<(), Failure> {
    let flights = engine.ask(|answer| Event::Flights { answer })?;
    log("in flight", &[("count", &flights.len())]);
    let now = clock::now();
    for flight in flights {
        let since = when::spoken(now.since(flight.started));
        let more = flight.count.saturating_sub(1);
        let parts: [(&str, &dyn Display); 5] = [
            ("job", &flight.job),
            ("and", &more),
            ("queue", &flight.queue),
            ("start", &flight.start),
            ("since", &since),
        ];
        log("flight", &parts);
    }
    Ok(())
}

/// One line of the log: time, what happened, and its values, quoted where they need it.
fn log(what: &str, values: &[(&str, &dyn Display)]) {
    // A closed stderr is nobody's fault.
    let _ = writeln!(std::io::stderr().lock(), "{}", log_line(what, values));
}

fn log_line(what: &str, values: &[(&str, &dyn Display)]) -> String {
    let mut line = format!("time={} msg={}", when::rfc3339(clock::now()), quoted(what));
    for (name, value) in values {
        line.push_str(&format!(" {name}={}", quoted(&value.to_string())));
    }
    line
}

fn quoted(value: &str) -> String {
    let plain = !value.is_empty() && !value.contains([' ', '"', '=', '\\']) && visible(value) == value;
    if plain { value.to_owned() } else { format!("\"{}\"", visible(&value.replace('\\', "\\\\").replace('"', "\\\""))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_can_be_taken_apart_again() {
        let line = log_line("in flight", &[("queue", &"a b\"c\n"), ("count", &3), ("none", &"")]);
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.starts_with("time=2") && time.ends_with('Z'), "{time}");
        assert_eq!(rest, r#"msg="in flight" queue="a b\"c\n" count=3 none="""#);
    }
}
