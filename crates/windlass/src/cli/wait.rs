//! `windlass wait`: ends when a run, or everything that can run, has ended; never before.

use super::Context;
use super::connect::{Connection, Link};
use super::print::{self, count, grouped};
use crate::error::{Failure, Kind};
use crate::when;
use serde_json::Value;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;
use windlass_core::job::RunId;
use windlass_core::life_cycle::State;

const EXAMPLES: &str = "\
Examples:
  windlass wait r-0c3k5p7m2x
  windlass wait --drained --timeout 10m";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["run", "drained"])))]
pub(super) struct Args {
    /// The run, as `push --run new` or `run` named it
    run: Option<RunId>,
    /// Wait until nothing that can run is left
    #[arg(long)]
    drained: bool,
    /// Give up after this long, with exit code 124
    #[arg(long, value_name = "DURATION", value_parser = when::duration)]
    timeout: Option<Duration>,
}

pub(super) fn wait(args: &Args, context: &Context) -> Result<u8, Failure> {
    let dir = context.data_dir()?;
    let Some(server) = Link::to_server(&dir)? else {
        // Nobody works, so nothing can change: what has ended is known now, what has not never will be.
        let answer: Value = Link::with(&dir, |own| match args.run {
            Some(run) => own.get_json(&format!("/api/v1/runs/{run}")),
            None => own.get_json("/api/v1/status"),
        })?;
        let live = match args.run {
            Some(_) if answer.get("ended") != Some(&Value::Bool(true)) => count(&answer, "live").max(1),
            Some(_) => 0,
            None => live_of(answer.get("totals").unwrap_or(&Value::Null)),
        };
        if live > 0 {
            let text = format!("not ended: {}, and no server is running", print::jobs(live));
            return Err(Failure::new(Kind::NoServer, text).hint("start one: windlass serve"));
        }
        return conclude(args, context, &answer);
    };
    let answer = ask(server, args)?;
    conclude(args, context, &answer)
}

/// Asks the question that is answered at the end, with the patience that was named.
fn ask(mut server: Connection, args: &Args) -> Result<Value, Failure> {
    server.set_patience(None);
    let question = match args.run {
        Some(run) => format!("/api/v1/runs/{run}/wait"),
        None => "/api/v1/drained".to_owned(),
    };
    let Some(timeout) = args.timeout else { return server.get_json(&question) };
    let (give, answer) = sync_channel(1);
    std::thread::spawn(move || {
        // After the time-out nobody takes the answer any more.
        let _ = give.send(server.get_json(&question));
    });
    match answer.recv_timeout(timeout) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Timeout) => {
            let text = format!("not ended after {}; it goes on", when::spoken(timeout));
            Err(Failure::new(Kind::TimeOut, text))
        }
        Err(RecvTimeoutError::Disconnected) => Err(Failure::new(Kind::Internal, "the question was lost")),
    }
}

fn conclude(args: &Args, context: &Context, answer: &Value) -> Result<u8, Failure> {
    let failed = match answer.get("counts") {
        Some(counts) => count(counts, State::Failed.word()) + count(counts, State::Cancelled.word()),
        None => count(answer, "failed"),
    };
    if context.json {
        print::document(answer)?;
    } else {
        let what = args.run.map_or_else(|| "everything that can run".to_owned(), |run| run.to_string());
        let how = if failed == 0 { "nothing failed".to_owned() } else { format!("{} failed", grouped(failed)) };
        context.say(format_args!("{what} has ended: {how}"));
    }
    Ok(if failed == 0 { 0 } else { Kind::JobFailed.exit_code() })
}

/// Jobs that are not in an end state.
fn live_of(counts: &Value) -> u64 {
    State::ALL.iter().filter(|state| !state.is_end()).map(|state| count(counts, state.word())).sum()
}
