//! `windlass wait`: ends when a run, some jobs, or everything that can run, has ended; never before.

use super::Context;
use super::amend::selector_of;
use super::connect::{Connection, Link, encoded};
use super::print::{self, count, field, grouped};
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::when;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;
use windlass_core::job::{JobId, RunId};
use windlass_core::life_cycle::State;
use windlass_core::selector::Selector;

const EXAMPLES: &str = "\
Examples:
  windlass wait r-0c3k5p7m2x
  windlass wait j-0c3k5p7m2x-1f j-0c3k5p7m2x-20
  windlass wait queue:mail --timeout 10m
  windlass wait --drained";

/// So many jobs are waited for by selector at most: their ids are held until each has ended.
const JOBS_MOST: usize = 1_000_000;

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["targets", "drained"])))]
pub(super) struct Args {
    /// The run, as `push --run new` or `run` named it; or jobs by their ids or a selector
    #[arg(value_name = "RUN|ID|SELECTOR")]
    targets: Vec<String>,
    /// Wait until nothing that can run is left
    #[arg(long)]
    drained: bool,
    /// Give up after this long, with exit code 124
    #[arg(long, value_name = "DURATION", value_parser = when::duration)]
    timeout: Option<Duration>,
}

/// What is waited for.
#[derive(Clone, Debug)]
enum What {
    Run(RunId),
    Jobs(String),
    Drained,
}

impl What {
    fn of(targets: &[String]) -> Result<What, Failure> {
        if let [only] = targets
            && let Ok(run) = only.parse()
        {
            return Ok(What::Run(run));
        }
        if targets.is_empty() {
            return Ok(What::Drained);
        }
        let ids: Vec<&String> = targets.iter().filter(|target| target.parse::<JobId>().is_ok()).collect();
        let text = match ids.len() == targets.len() {
            // Several ids are meant all, where words of a selector would narrow each other.
            true => format!("id:{}", targets.join(",")),
            false => selector_of(targets),
        };
        Selector::parse(&text).map_err(|fault| Failure::new(Kind::Usage, fault))?;
        Ok(What::Jobs(text))
    }

    fn words(&self) -> String {
        match self {
            What::Run(run) => run.to_string(),
            What::Jobs(selector) => selector.clone(),
            What::Drained => "everything that can run".to_owned(),
        }
    }
}

pub(super) fn wait(args: &Args, context: &Context) -> Result<u8, Failure> {
    let what = What::of(&args.targets)?;
    let dir = context.data_dir()?;
    let answer = match Link::to_server(&dir)? {
        Some(server) => patiently(args.timeout, {
            let what = what.clone();
            let context = context.clone();
            move || ask(server, &dir, &what, &context)
        })?,
        None => unserved(&what, &dir)?,
    };
    conclude(&what, context, &answer)
}

/// Nobody works, so nothing can change: what has ended is known now, what has not never will be.
fn unserved(what: &What, dir: &DataDir) -> Result<Value, Failure> {
    let (answer, live) = Link::with(dir, |own| match what {
        What::Run(run) => {
            let run: Value = own.get_json(&format!("/api/v1/runs/{run}"))?;
            let ended = run.get("ended") == Some(&Value::Bool(true));
            let live = if ended { 0 } else { count(&run, "live").max(1) };
            Ok((run, live))
        }
        What::Jobs(selector) => {
            let found = Unfinished::find(own, selector)?;
            Ok((json!({ "failed": found.failed }), found.ids.len() as u64))
        }
        What::Drained => {
            let status: Value = own.get_json("/api/v1/status")?;
            let live = live_of(status.get("totals").unwrap_or(&Value::Null));
            Ok((status, live))
        }
    })?;
    if live > 0 {
        let text = format!("not ended: {}, and no server is running", print::jobs(live));
        return Err(Failure::new(Kind::NoServer, text).hint("start one: windlass serve"));
    }
    Ok(answer)
}

/// Asks the question that is answered at the end.
fn ask(mut server: Connection, dir: &DataDir, what: &What, context: &Context) -> Result<Value, Failure> {
    server.set_patience(None);
    match what {
        What::Run(run) => {
            // One that is not read in yet is asked for below.
            let found = server.get_json::<Value>(&format!("/api/v1/runs/{run}")).unwrap_or_default();
            if found.get("sealed") == Some(&Value::Bool(false)) {
                context.say(format_args!("{run} is open for more jobs: it ends when it is sealed and they have ended"));
            }
            server.get_json(&format!("/api/v1/runs/{run}/wait"))
        }
        What::Drained => server.get_json("/api/v1/drained"),
        What::Jobs(selector) => jobs_end(server, dir, selector),
    }
}

/// Does it in a thread of its own, with the patience that was named.
fn patiently(
    timeout: Option<Duration>,
    work: impl FnOnce() -> Result<Value, Failure> + Send + 'static,
) -> Result<Value, Failure> {
    let Some(timeout) = timeout else { return work() };
    let (give, answer) = sync_channel(1);
    std::thread::spawn(move || {
        // After the time-out nobody takes the answer any more.
        let _ = give.send(work());
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

/// Watches first and looks then, so that no end is missed between the two.
fn jobs_end(server: Connection, dir: &DataDir, selector: &str) -> Result<Value, Failure> {
    let gone = || Failure::new(Kind::NoServer, "the server went away");
    let mut lines = server.lines("/api/v1/watch")?;
    lines.next_line()?.ok_or_else(gone)?;
    let mut found = Unfinished::find(&mut Link::to_server(dir)?.ok_or_else(gone)?, selector)?;
    while !found.ids.is_empty() {
        let line = lines.next_line()?.ok_or_else(gone)?;
        let line: Value = serde_json::from_slice(&line)
            .map_err(|e| Failure::new(Kind::Internal, format!("the server said something else than JSON: {e}")))?;
        if let Some(error) = line.get("error").filter(|error| error.is_object()) {
            return Err(Failure::new(Kind::TryLater, field(error, "detail")).hint("wait again"));
        }
        let state: Option<State> = field(&line, "state").parse().ok();
        if state.is_some_and(State::is_end) && found.ids.remove(&field(&line, "job")) {
            found.failed += u64::from(state != Some(State::Succeeded));
        }
    }
    Ok(json!({ "failed": found.failed }))
}

/// Jobs that a selector means and that have not ended, and how many of the others failed.
#[derive(Debug, Default)]
struct Unfinished {
    ids: HashSet<String>,
    failed: u64,
}

impl Unfinished {
    fn find(server: &mut Connection, selector: &str) -> Result<Unfinished, Failure> {
        let mut found = Unfinished::default();
        let (mut seen, mut cursor) = (0u64, String::new());
        loop {
            let path = format!("/api/v1/jobs?limit=1000&selector={}{cursor}", encoded(selector));
            let page: Value = server.get_json(&path)?;
            for item in page.get("items").and_then(Value::as_array).into_iter().flatten() {
                seen += 1;
                match field(item, "state").parse::<State>() {
                    Ok(State::Succeeded) => {}
                    Ok(State::Failed | State::Cancelled) => found.failed += 1,
                    Ok(_) | Err(_) => drop(found.ids.insert(field(item, "id"))),
                }
            }
            if found.ids.len() > JOBS_MOST {
                let text =
                    format!("more than {} jobs match, too many to wait for one by one", grouped(JOBS_MOST as u64));
                return Err(Failure::new(Kind::Usage, text).hint("wait for their run, or with --drained"));
            }
            match page.get("next").and_then(Value::as_str) {
                Some(next) => cursor = format!("&cursor={}", encoded(next)),
                None if seen == 0 => {
                    return Err(Failure::new(Kind::NotFound, format!("no job matches {selector}")));
                }
                None => return Ok(found),
            }
        }
    }
}

fn conclude(what: &What, context: &Context, answer: &Value) -> Result<u8, Failure> {
    let failed = match answer.get("counts") {
        Some(counts) => count(counts, State::Failed.word()) + count(counts, State::Cancelled.word()),
        None => count(answer, "failed"),
    };
    if context.json {
        print::document(answer)?;
    } else {
        let what = what.words();
        let how = if failed == 0 { "nothing failed".to_owned() } else { format!("{} failed", grouped(failed)) };
        context.say(format_args!("{what} has ended: {how}"));
    }
    Ok(if failed == 0 { 0 } else { Kind::JobFailed.exit_code() })
}

/// Jobs that are not in an end state.
fn live_of(counts: &Value) -> u64 {
    State::ALL.iter().filter(|state| !state.is_end()).map(|state| count(counts, state.word())).sum()
}
