//! `windlass config`: `check` and `init` touch neither data directory nor server; the rest is in `live`.

mod live;

use super::Context;
use super::print;
use super::steer::Terms;
use crate::config::{DEFAULT_FILE, Loaded};
use crate::error::{Failure, Kind};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  windlass config init windlass.toml
  windlass config check windlass.toml
  windlass config diff && windlass config reload
  windlass config set mail.attempts 0 --for 2h
  windlass config unset mail";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Check a file: syntax, meaning, then the machine; exit code 78 where it is wrong
    Check {
        /// By default the one that `serve` would read
        file: Option<PathBuf>,
        /// Only syntax and meaning: programs and directories need not be on this machine
        #[arg(long)]
        no_environment: bool,
    },
    /// Write the commented default file; an existing one is left alone
    Init {
        /// By default windlass.toml in the data directory; `-` is stdout
        file: Option<PathBuf>,
    },
    /// Print what holds now, and where each value comes from
    Show {
        /// Where each value comes from is told anyway
        #[arg(long, hide = true)]
        origin: bool,
    },
    /// Print what a reload would change
    Diff {
        /// By default the file that the server reads
        file: Option<PathBuf>,
    },
    /// Make the server read its config again: as a whole, or not at all
    Reload,
    /// Change a value while running: slots, weight, attempts or enabled of a queue's table
    Set {
        /// The table and the key; `limits.slots` is the server's
        #[arg(value_name = "QUEUE.KEY")]
        name: String,
        value: String,
        #[command(flatten)]
        terms: Terms,
    },
    /// Remove what was changed while running, so that the config holds again
    Unset {
        /// A pattern means all that it covers; without a key, all keys
        #[arg(value_name = "QUEUE[.KEY]", required = true)]
        names: Vec<String>,
    },
}

pub(super) fn config(args: &Args, context: &Context) -> Result<u8, Failure> {
    match &args.action {
        Action::Check { file, no_environment } => check(file.as_deref(), *no_environment, context),
        Action::Init { file } => write(file.as_deref(), DEFAULT_FILE, "config", context),
        Action::Show { .. } => live::show(context),
        Action::Diff { file } => live::diff(file.as_deref(), context),
        Action::Reload => live::reload(context),
        Action::Set { name, value, terms } => live::set(name, value, terms, context),
        Action::Unset { names } => live::unset(names, context),
    }
}

fn check(file: Option<&Path>, no_environment: bool, context: &Context) -> Result<u8, Failure> {
    let dir = context.dir_path()?;
    let Some(path) = context.config_file(file, &dir) else {
        let text = format!("no config to check: there is no {}", dir.join("windlass.toml").display());
        return Err(Failure::new(Kind::NoInput, text).hint("name a file, or write one: windlass config init"));
    };
    let loaded = if no_environment { Loaded::load_elsewhere(&path)? } else { Loaded::load(&path)? };
    let config = loaded.config;
    let queues = config.policies();
    if context.json {
        let patterns: Vec<&str> = queues.iter().map(|policy| policy.pattern.as_str()).collect();
        return print::document(&json!({ "file": path.to_string_lossy(), "slots": config.slots, "queues": patterns }));
    }
    let tables = if queues.len() == 1 { "queue table" } else { "queue tables" };
    let slots = print::counted(config.slots.into(), "slot");
    context.say(format_args!("{} is fine: {} {tables}, {slots}", path.display(), queues.len()));
    Ok(0)
}

/// Writes a commented file that `verb init` is asked for; an existing one is left alone.
pub(super) fn write(file: Option<&Path>, text: &str, verb: &str, context: &Context) -> Result<u8, Failure> {
    if file == Some(Path::new("-")) {
        let mut out = print::Out::new();
        out.bytes(text.as_bytes());
        return out.finish();
    }
    let path = match file {
        Some(path) => path.to_owned(),
        None => context.data_dir()?.root().join("windlass.toml"),
    };
    let cannot = |e: std::io::Error| match e.kind() {
        ErrorKind::AlreadyExists => {
            Failure::new(Kind::CannotCreate, format!("{} exists and is left as it is", path.display()))
                .hint(format!("name another file, or print the default one: windlass {verb} init -"))
        }
        _ => Failure::new(Kind::CannotCreate, format!("cannot write {}: {e}", path.display())),
    };
    let mut new = OpenOptions::new().write(true).create_new(true).open(&path).map_err(cannot)?;
    if let Err(error) = new.write_all(text.as_bytes()).and_then(|()| new.sync_all()) {
        // Half a file would be refused as a config and in the way of the next try.
        let _ = std::fs::remove_file(&path);
        return Err(cannot(error));
    }
    context.say(format_args!("wrote {}", path.display()));
    Ok(0)
}
