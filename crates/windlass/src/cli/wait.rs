//! `windlass wait`: ends when runs, jobs, or everything that can run, have ended; never before.
//!
//! Each run is asked for on a connection of its own, jobs through one stream of changes. What ended first decides with
//! `--any`, the first failure with `--fail-fast`; else all of it is waited for. With `--for` a job is there once it is
//! in that state, and never will be once it has ended otherwise.

use super::Context;
use super::amend::selector_of;
use super::connect::{Connection, Lines, Link, encoded, went_away};
use super::missed::Missed;
use super::place::Place;
use super::print::{self, Out, count, field, grouped};
use crate::error::{Failure, Kind};
use crate::when;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use windlass_core::job::{JobId, RunId};
use windlass_core::life_cycle::State;
use windlass_core::selector::Selector;

const EXAMPLES: &str = "\
Examples:
  windlass wait r-0c3k5p7m2x
  windlass wait r-0c3k5p7m2x r-7m2x0c3k5p --any
  windlass wait j-0c3k5p7m2x-1f j-0c3k5p7m2x-20 --fail-fast
  windlass wait queue:mail --timeout 10m
  windlass wait j-0c3k5p7m2x-1f --for running
  windlass wait --drained";

/// So many jobs are waited for by selector at most: their ids are held until each has ended.
const JOBS_MOST: usize = 1_000_000;

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["targets", "drained"])))]
pub(super) struct Args {
    /// Runs and jobs by their ids, as `push` or `run` named them; or a selector
    #[arg(value_name = "RUN|ID|SELECTOR")]
    targets: Vec<String>,
    /// Wait until nothing that can run is left
    #[arg(long)]
    drained: bool,
    /// End with the first of them that ends, and print its id
    #[arg(long, conflicts_with_all = ["drained", "fail_fast"])]
    any: bool,
    /// End with the first job that fails or is cancelled
    #[arg(long, conflicts_with = "drained")]
    fail_fast: bool,
    /// Wait until each job is in this state: running, retrying, suspended, succeeded, failed or cancelled
    #[arg(long = "for", value_name = "STATE", value_parser = goal, conflicts_with_all = ["drained", "fail_fast"])]
    goal: Option<State>,
    /// Give up after this long, with exit code 124
    #[arg(long, value_name = "DURATION", value_parser = when::duration)]
    timeout: Option<Duration>,
}

/// A state that can be waited for. Jobs become ready by the hundred thousand, and nobody is told of each.
fn goal(text: &str) -> Result<State, String> {
    let told = |state: &State| !matches!(state, State::Scheduled | State::Ready);
    text.parse::<State>().ok().filter(told).ok_or_else(|| {
        let words: Vec<&str> = State::ALL.iter().filter(|state| told(state)).map(|state| state.word()).collect();
        format!("expected one of {}, got: {text}", words.join(", "))
    })
}

/// What of a job is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    End,
    State(State),
}

impl Goal {
    /// Whether a job in this state is there, and if so, whether it failed to be what was hoped for. One that has been
    /// started has been running, however short that was.
    fn judge(self, state: State, started: bool) -> Option<bool> {
        match self {
            Goal::End => state.is_end().then_some(state != State::Succeeded),
            Goal::State(goal) if state == goal || goal == State::Running && started => Some(false),
            Goal::State(_) => state.is_end().then_some(true),
        }
    }

    /// The same, counted.
    fn missed(self, state: State, started: bool) -> Option<Missed> {
        let failed = self.judge(state, started)?;
        Some(if failed { Missed::one(state) } else { Missed::default() })
    }
}

/// One thing that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Run(RunId),
    Jobs(String),
    Drained,
}

impl What {
    fn of(targets: &[String], goal: Goal) -> Result<Vec<What>, Failure> {
        if targets.is_empty() {
            return Ok(vec![What::Drained]);
        }
        // A run is in no state, its jobs are.
        let is_run = |target: &String| target.parse::<RunId>().is_ok();
        if goal != Goal::End && targets.iter().any(is_run) {
            return Ok(vec![What::Jobs(selector_of(targets))]);
        }
        let mut runs: Vec<What> = Vec::new();
        let mut ids: Vec<&str> = Vec::new();
        for target in targets {
            match (target.parse(), target.parse::<JobId>()) {
                (Ok(run), _) if runs.contains(&What::Run(run)) => {}
                (Ok(run), _) => runs.push(What::Run(run)),
                (Err(_), Ok(_)) => ids.push(target),
                // Words of a selector narrow each other, ids do not.
                (Err(_), Err(_)) => {
                    let text = selector_of(targets);
                    Selector::parse(&text).map_err(|fault| Failure::new(Kind::Usage, fault))?;
                    return Ok(vec![What::Jobs(text)]);
                }
            }
        }
        if !ids.is_empty() {
            runs.push(What::Jobs(format!("id:{}", ids.join(","))));
        }
        Ok(runs)
    }

    fn words(&self) -> String {
        match self {
            What::Run(run) => run.to_string(),
            What::Jobs(selector) => match selector.strip_prefix("id:") {
                Some(ids) if !ids.contains(' ') => ids.replace(',', ", "),
                _ => selector.clone(),
            },
            What::Drained => "everything that can run".to_owned(),
        }
    }
}

/// How one of them ended.
#[derive(Clone, Debug)]
struct Ended {
    /// The run, or the one job that was enough.
    id: String,
    missed: Missed,
    /// What the server said of it.
    answer: Value,
}

impl Ended {
    fn new(id: String, answer: Value) -> Ended {
        let missed = match answer.get("counts") {
            // What a run tolerates is no failure of it.
            Some(_) if answer.get("succeeded") == Some(&Value::Bool(true)) => Missed::default(),
            Some(counts) => Missed::of(counts),
            None => Missed::of(&answer),
        };
        Ended { id, missed, answer }
    }

    /// Jobs that were looked at one by one.
    fn jobs(id: String, missed: Missed) -> Ended {
        Ended { id, missed, answer: json!({ "failed": missed.all() }) }
    }
}

/// When enough has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    All,
    Any,
    Failure,
}

pub(super) fn wait(args: &Args, context: &Context) -> Result<u8, Failure> {
    let goal = args.goal.map_or(Goal::End, Goal::State);
    let whats = What::of(&args.targets, goal)?;
    let until = match (args.any, args.fail_fast) {
        (true, _) => Until::Any,
        (_, true) => Until::Failure,
        _ => Until::All,
    };
    let place = context.place()?;
    let ended = match place.server()? {
        Some(server) => {
            let told = ask_all(server, &whats, (until, goal), &place, context);
            collect(&told, whats.len(), until, args.timeout)?
        }
        None => unserved(&whats, (until, goal), &place)?,
    };
    conclude(&whats, (until, goal), context, &ended)
}

/// Nobody works, so nothing can change: what has ended is known now, what has not never will be.
fn unserved(whats: &[What], (until, goal): (Until, Goal), place: &Place) -> Result<Vec<Ended>, Failure> {
    let (mut known, mut live) = (Vec::new(), 0);
    for what in whats {
        let (now, first, left) = Link::ask(place, |own| look(own, what, goal))?;
        live += left;
        match first.filter(|_| until == Until::Any) {
            Some(first) => return Ok(vec![first]),
            None => known.push(now),
        }
    }
    let failed = until == Until::Failure && known.iter().any(|known| known.missed.all() > 0);
    if live > 0 && !failed {
        let not = match goal {
            Goal::End => "not ended".to_owned(),
            Goal::State(state) => format!("not {state}"),
        };
        let text = format!("{not}: {}, and no server is running", print::jobs(live));
        return Err(Failure::new(Kind::NoServer, text).hint("start one: windlass serve"));
    }
    known.retain(|known| !failed || known.missed.all() > 0);
    Ok(known)
}

/// What is known of it now, the first of it that has ended, and how many of its jobs have not.
fn look(own: &mut Connection, what: &What, goal: Goal) -> Result<(Ended, Option<Ended>, u64), Failure> {
    let (now, first, live) = match what {
        What::Run(run) => {
            let found: Value = own.get_json(&format!("/api/v1/runs/{run}"))?;
            let ended = found.get("ended") == Some(&Value::Bool(true));
            let live = if ended { 0 } else { count(&found, "live").max(1) };
            let found = Ended::new(run.to_string(), found);
            (found.clone(), ended.then_some(found), live)
        }
        What::Jobs(selector) => {
            let found = Unfinished::find(own, selector, goal)?;
            let first = found.first.map(|(job, missed)| Ended::jobs(job, missed));
            (Ended::jobs(what.words(), found.missed), first, found.ids.len() as u64)
        }
        What::Drained => {
            let status: Value = own.get_json("/api/v1/status")?;
            let live = live_of(status.get("totals").unwrap_or(&Value::Null));
            (Ended::new(what.words(), status), None, live)
        }
    };
    Ok((now, first, live))
}

/// Asks each question that is answered at the end, in a thread of its own: the first on the connection there is.
fn ask_all(
    server: Connection,
    whats: &[What],
    wanted: (Until, Goal),
    place: &Place,
    context: &Context,
) -> Receiver<Result<Ended, Failure>> {
    let (tell, told) = channel();
    let mut first = Some(server);
    for what in whats {
        let (server, what, place, context) = (first.take(), what.clone(), place.clone(), context.clone());
        ask_in_thread(&tell, move || ask(connected(server, &place)?, &place, &what, wanted, &context));
    }
    let runs: Vec<String> = whats.iter().filter(|what| matches!(what, What::Run(_))).map(What::words).collect();
    if wanted.0 == Until::Failure && !runs.is_empty() {
        let place = place.clone();
        ask_in_thread(&tell, move || first_failure(connected(None, &place)?, &runs, &place));
    }
    told
}

fn ask_in_thread(
    tell: &Sender<Result<Ended, Failure>>,
    question: impl FnOnce() -> Result<Ended, Failure> + Send + 'static,
) {
    let tell = tell.clone();
    std::thread::spawn(move || {
        // Once enough has ended nobody takes the other answers any more.
        let _ = tell.send(question());
    });
}

fn connected(server: Option<Connection>, place: &Place) -> Result<Connection, Failure> {
    match server {
        Some(server) => Ok(server),
        None => place.server()?.ok_or_else(went_away),
    }
}

/// Waits for as many answers as are needed, with the patience that was named.
fn collect(
    told: &Receiver<Result<Ended, Failure>>,
    parts: usize,
    until: Until,
    timeout: Option<Duration>,
) -> Result<Vec<Ended>, Failure> {
    let give_up = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut ended = Vec::new();
    while ended.len() < parts {
        let next = match give_up {
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => told.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        let next = next.map_err(|why| match why {
            RecvTimeoutError::Timeout => {
                let text = format!("not ended after {}; it goes on", when::spoken(timeout.unwrap_or_default()));
                Failure::new(Kind::TimeOut, text)
            }
            RecvTimeoutError::Disconnected => Failure::new(Kind::Internal, "the question was lost"),
        })??;
        let enough = until == Until::Any || until == Until::Failure && next.missed.all() > 0;
        ended.push(next);
        if enough {
            return Ok(ended.pop().into_iter().collect());
        }
    }
    Ok(ended)
}

/// Asks the question that is answered at the end.
fn ask(
    mut server: Connection,
    place: &Place,
    what: &What,
    wanted: (Until, Goal),
    context: &Context,
) -> Result<Ended, Failure> {
    server.set_patience(None);
    match what {
        What::Run(run) => {
            // One that is not read in yet is asked for below.
            let found = server.get_json::<Value>(&format!("/api/v1/runs/{run}")).unwrap_or_default();
            if found.get("sealed") == Some(&Value::Bool(false)) {
                context.say(format_args!("{run} is open for more jobs: it ends when it is sealed and they have ended"));
            }
            Ok(Ended::new(run.to_string(), server.get_json(&format!("/api/v1/runs/{run}/wait"))?))
        }
        What::Drained => Ok(Ended::new(what.words(), server.get_json("/api/v1/drained")?)),
        What::Jobs(selector) => jobs_end(server, place, selector, wanted),
    }
}

/// Watches first and looks then, so that no end is missed between the two.
fn jobs_end(server: Connection, place: &Place, selector: &str, (until, goal): (Until, Goal)) -> Result<Ended, Failure> {
    let starts = goal == Goal::State(State::Running);
    let mut changes = Changes::open(server, &format!("/api/v1/watch?starts={starts}"))?;
    let mut found = Unfinished::find(&mut connected(None, place)?, selector, goal)?;
    match (until, found.first.take()) {
        (Until::Any, Some((job, missed))) => return Ok(Ended::jobs(job, missed)),
        (Until::Failure, _) if found.missed.all() > 0 => {}
        _ => {
            while !found.ids.is_empty() {
                let (job, state) = changes.next_change()?;
                // A change that is told was made by a start or by a person.
                let Some(missed) = goal.missed(state, false).filter(|_| found.ids.remove(&job)) else { continue };
                found.missed = found.missed.and(missed);
                if until == Until::Any || until == Until::Failure && missed.all() > 0 {
                    return Ok(Ended::jobs(job, missed));
                }
            }
        }
    }
    Ok(Ended::jobs(selector.to_owned(), found.missed))
}

/// The first job of these runs that failed or was cancelled; those that failed before count, too.
fn first_failure(server: Connection, runs: &[String], place: &Place) -> Result<Ended, Failure> {
    let selector = encoded(&format!("run:{} state:failed,cancelled", runs.join(",")));
    let mut changes = Changes::open(server, &format!("/api/v1/watch?selector={selector}"))?;
    let mut asked = connected(None, place)?;
    for run in runs {
        // One that is not read in yet has no failures.
        let found = asked.get_json::<Value>(&format!("/api/v1/runs/{run}")).unwrap_or_default();
        let known = Ended::new(run.clone(), found);
        if known.missed.all() > 0 {
            return Ok(known);
        }
    }
    loop {
        let (job, state) = changes.next_change()?;
        if state.is_end() {
            return Ok(Ended::jobs(job, Missed::one(state)));
        }
    }
}

/// The stream of changes, from its first line on.
struct Changes(Lines);

impl Changes {
    fn open(server: Connection, path: &str) -> Result<Changes, Failure> {
        let mut lines = server.lines(path)?;
        lines.next_line()?.ok_or_else(went_away)?;
        Ok(Changes(lines))
    }

    /// The next job that changes, and the state it is in.
    fn next_change(&mut self) -> Result<(String, State), Failure> {
        loop {
            let line = self.0.next_line()?.ok_or_else(went_away)?;
            let line: Value = serde_json::from_slice(&line)
                .map_err(|e| Failure::new(Kind::Internal, format!("the server said something else than JSON: {e}")))?;
            if let Some(error) = line.get("error").filter(|error| error.is_object()) {
                return Err(Failure::new(Kind::TryLater, field(error, "detail")).hint("wait again"));
            }
            if let Ok(state) = field(&line, "state").parse::<State>() {
                return Ok((field(&line, "job"), state));
            }
        }
    }
}

/// Jobs that a selector means and that are not there yet, and how many of the others failed to be.
#[derive(Debug, Default)]
struct Unfinished {
    ids: HashSet<String>,
    missed: Missed,
    /// The first that is there, and whether it is not as hoped for.
    first: Option<(String, Missed)>,
}

impl Unfinished {
    /// A job that has just succeeded has left the store and may be in no archive yet; a second look waits for that.
    fn find(server: &mut Connection, selector: &str, goal: Goal) -> Result<Unfinished, Failure> {
        let named = selector.strip_prefix("id:").map_or(1, |ids| ids.split(',').count() as u64);
        let (mut found, mut seen) = Unfinished::look_through(server, selector, goal)?;
        if seen < named {
            (found, seen) = Unfinished::look_through(server, selector, goal)?;
        }
        if seen == 0 {
            return Err(Failure::new(Kind::NotFound, format!("no job matches {selector}")));
        }
        Ok(found)
    }

    /// With it the number of jobs that the selector means.
    fn look_through(server: &mut Connection, selector: &str, goal: Goal) -> Result<(Unfinished, u64), Failure> {
        let mut found = Unfinished::default();
        let (mut seen, mut cursor) = (0u64, String::new());
        loop {
            let path = format!("/api/v1/jobs?limit=1000&selector={}{cursor}", encoded(selector));
            let page: Value = server.get_json(&path)?;
            for item in page.get("items").and_then(Value::as_array).into_iter().flatten() {
                seen += 1;
                let id = field(item, "id");
                let started = item.get("attempts").is_some_and(|attempts| count(attempts, "starts") > 0);
                let state = field(item, "state").parse::<State>();
                let Some(missed) = state.ok().and_then(|state| goal.missed(state, started)) else {
                    found.ids.insert(id);
                    continue;
                };
                found.missed = found.missed.and(missed);
                found.first.get_or_insert((id, missed));
            }
            if found.ids.len() > JOBS_MOST {
                let text =
                    format!("more than {} jobs match, too many to wait for one by one", grouped(JOBS_MOST as u64));
                return Err(Failure::new(Kind::Usage, text).hint("wait for their run, or with --drained"));
            }
            match page.get("next").and_then(Value::as_str) {
                Some(next) => cursor = format!("&cursor={}", encoded(next)),
                None => return Ok((found, seen)),
            }
        }
    }
}

fn conclude(whats: &[What], (until, goal): (Until, Goal), context: &Context, ended: &[Ended]) -> Result<u8, Failure> {
    let missed = ended.iter().fold(Missed::default(), |missed, ended| missed.and(ended.missed));
    let failed = missed.all();
    let names = |names: &mut dyn Iterator<Item = String>| names.collect::<Vec<_>>().join(", ");
    let what = match until {
        Until::All => names(&mut whats.iter().map(What::words)),
        Until::Any | Until::Failure => names(&mut ended.iter().map(|ended| ended.id.clone())),
    };
    if context.json {
        print::document(&match ended {
            [only] if until == Until::All => only.answer.clone(),
            [only] => json!({ "id": only.id, "failed": failed }),
            several => json!({ "failed": failed, "ended": several.iter().map(|e| &e.answer).collect::<Vec<_>>() }),
        })?;
    } else {
        if until == Until::Any {
            let mut out = Out::new();
            out.line(&what);
            out.finish()?;
        }
        let has = if what.contains(", ") { "have" } else { "has" };
        context.say(match (goal, failed) {
            (Goal::End, _) => format!("{what} {has} ended: {}", missed.words()),
            (Goal::State(state), 0) => format!("{what}: {state}"),
            (Goal::State(state), failed) => format!("{what}: {} ended and not as {state}", print::jobs(failed)),
        });
    }
    Ok(if failed == 0 { 0 } else { Kind::JobFailed.exit_code() })
}

/// Jobs that are not in an end state.
fn live_of(counts: &Value) -> u64 {
    State::ALL.iter().filter(|state| !state.is_end()).map(|state| count(counts, state.word())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_there_in_its_state_or_never() {
        let running = Goal::State(State::Running);
        assert_eq!(running.judge(State::Ready, false), None);
        assert_eq!(running.judge(State::Running, true), Some(false));
        assert_eq!(running.judge(State::Succeeded, true), Some(false), "it was, for a moment");
        assert_eq!(running.judge(State::Cancelled, false), Some(true));
        let failed = Goal::State(State::Failed);
        assert_eq!(failed.judge(State::Failed, true), Some(false));
        assert_eq!(failed.judge(State::Succeeded, true), Some(true));
        assert_eq!((Goal::End.judge(State::Failed, true), Goal::End.judge(State::Retrying, true)), (Some(true), None));
    }

    #[test]
    fn states_that_nobody_is_told_of_are_refused() {
        assert_eq!(goal("suspended"), Ok(State::Suspended));
        for bad in ["ready", "scheduled", "done", ""] {
            let refused = goal(bad).unwrap_err();
            assert!(refused.starts_with("expected one of running, retrying, suspended, "), "{refused}");
        }
    }
}
