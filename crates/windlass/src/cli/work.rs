//! `windlass work`: a remote worker. It asks a server for jobs, runs a command for each, and tells what came of it.
//!
//! The command is run as a queue's command is: through launchers, killed as a whole tree, with control and emit files.
//! Threads: this one waits for the end, `calls` asks, shows signs of life and tells ends, the runner's own threads
//! report. TERM and INT drain: no more jobs are taken, what runs ends and is told; a second one gives it back. A server
//! that goes away is waited for; jobs whose lease may have ended meanwhile are stopped, because others may have them.

mod calls;
mod jobs;

use super::Context;
use super::signals::Signals;
use crate::error::{Failure, Kind};
use calls::Calls;
use jobs::Jobs;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use windlass_core::policy::Command;
use windlass_core::template::with_columns;

const EXAMPLES: &str = "\
Examples:
  windlass work thumbnail -- convert {} -thumbnail 200x {.}.thumb.jpg
  windlass work 'img.*' mail -j 8 --server http://127.0.0.1:8737 -- handle-job";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// Queues to work for, by name or pattern; their tables have `remote = true`
    #[arg(required = true, value_name = "QUEUE")]
    queues: Vec<String>,
    /// Jobs at once; by default one for each core
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    jobs: Option<u32>,
    /// Program and arguments, with the templates of a queue's command; without {} the data comes on stdin
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn work(args: &Args, context: &Context) -> Result<u8, Failure> {
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
    let cores = || std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1).min(100));
    let slots = args.jobs.unwrap_or_else(cores);
    let place = context.made_place()?;
    // A wrong address is told at once; a server that is not there yet is waited for.
    if let Err(failure) = place.server()
        && failure.kind == Kind::Usage
    {
        return Err(failure);
    }
    let jobs = Arc::new(Jobs::new(command(args)?, slots)?);
    let calls = Arc::new(Calls::new(place, args.queues.clone(), Arc::clone(&jobs), context.clone()));
    calls.start()?;
    let (drained, leaving) = (Arc::clone(&jobs), Arc::clone(&calls));
    let obey = move || {
        let mut asked = false;
        while signals.next().is_some() {
            match asked {
                false => leaving.drain(),
                true => drained.give_back(),
            }
            asked = true;
        }
    };
    let thread = std::thread::Builder::new().name("orders".into()).spawn(obey);
    thread.map_err(|e| Failure::io("cannot start a thread", &e))?;
    let ended = jobs.wait_until_drained();
    jobs.close();
    ended.map(|()| 0)
}

/// The caller's own surroundings are the job's, but for what a job of another server was told.
fn command(args: &Args) -> Result<Command, Failure> {
    let directory = std::env::current_dir().map_err(|e| Failure::io("cannot tell the current directory", &e))?;
    let argv: Vec<Vec<u8>> = args.command.iter().map(|word| with_columns(word.as_bytes())).collect();
    if argv[0].is_empty() {
        return Err(Failure::new(Kind::Usage, "the command is the empty string"));
    }
    let variables = std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec()));
    let environment = variables.filter(|(name, _)| !name.starts_with(b"WINDLASS_")).collect();
    Ok(Command { argv, directory: directory.into_os_string().into_vec(), environment })
}
