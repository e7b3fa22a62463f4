//! `windlass watch`: follows what happens to jobs: a line for each change. Of a run it tells how far that is, which job
//! runs longest and what failed, to its end; `--full` has a line for each change there, too.
//!
//! It never starts or stops anything: leaving it leaves the jobs alone, and says so.

use super::Context;
use super::amend::selector_of;
use super::color::painted;
use super::connect::{Connection, Link, encoded};
use super::missed::Missed;
use super::place::Place;
use super::print::{self, Out, count, data_of, field, grouped, shortened, visible};
use super::run::{Progress, Tally};
use super::signals::{Signals, exit_code};
use crate::api;
use crate::clock;
use crate::error::{Failure, Kind};
use crate::when;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Instant;
use windlass_core::job::RunId;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// So much of a job's data stands in a line.
const DATA_SHOWN: usize = 60;

const EXAMPLES: &str = "\
Examples:
  windlass watch
  windlass watch queue:mail state:failed
  windlass watch r-0c3k5p7m2x          ends with the run; Ctrl-C only ends the watching
  windlass watch r-0c3k5p7m2x --full   every job that ends, not only those that fail";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// A run's id, or a selector; none means everything
    #[arg(value_name = "RUN|SELECTOR")]
    targets: Vec<String>,
    /// Of a run, too, a line for each change, not only for what fails
    #[arg(long)]
    full: bool,
}

/// What can happen while one watches.
pub(super) enum Happened {
    Line(Value),
    /// The server ended the stream.
    Over(Failure),
    Signal(i32),
}

pub(super) fn watch(args: &Args, context: &Context) -> Result<u8, Failure> {
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
    let run = match args.targets.as_slice() {
        [only] => only.parse::<RunId>().ok(),
        _ => None,
    };
    let place = context.place()?;
    let query = match run {
        Some(run) => format!("run={run}&starts={}", !context.json),
        None => format!("selector={}", encoded(&selector_of(&args.targets))),
    };
    let Some(server) = place.server()? else { return unserved(run, &place, context) };
    let (tell, happened) = sync_channel(64);
    spawn_signals(signals, tell.clone());
    spawn_lines(server, format!("/api/v1/watch?{query}"), tell);
    let (out, progress, running) = (Out::new(), Progress::new(context), Running::default());
    let mut view = View { run, full: args.full || context.json, context, out, progress, running, place };
    let result = view.follow(&happened);
    view.progress.clear();
    let printed = view.out.finish();
    let code = result?;
    printed.map(|_| code)
}

/// Nobody works, so nothing will change.
fn unserved(run: Option<RunId>, place: &Place, context: &Context) -> Result<u8, Failure> {
    let gone = Failure::new(Kind::NoServer, format!("no server is running in {place}: nothing changes"))
        .hint("start one: windlass serve");
    let Some(run) = run else { return Err(gone) };
    let info: Value = Link::ask(place, |own| own.get_json(&format!("/api/v1/runs/{run}")))?;
    if info.get("ended") == Some(&Value::Bool(true)) { conclude(&info, context) } else { Err(gone) }
}

struct View<'a> {
    run: Option<RunId>,
    /// Of a run, what succeeds is a line, too.
    full: bool,
    context: &'a Context,
    out: Out,
    progress: Progress,
    running: Running,
    place: Place,
}

impl View<'_> {
    /// Shows what comes until there is a reason to end.
    fn follow(&mut self, happened: &Receiver<Happened>) -> Result<u8, Failure> {
        loop {
            let event = match self.progress.due().filter(|_| self.run.is_some()) {
                None => happened.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => happened.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(Happened::Line(line)) => {
                    if let Some(code) = self.told(&line)? {
                        return Ok(code);
                    }
                }
                Ok(Happened::Over(failure)) => return Err(failure),
                Ok(Happened::Signal(signal)) => {
                    self.progress.clear();
                    self.context.say("no longer watching; the jobs go on");
                    return Ok(exit_code(signal));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new(Kind::Internal, "all threads of the watch have ended"));
                }
            }
            if self.out.closed() {
                return Ok(0);
            }
            self.show_progress();
        }
    }

    /// One line of the stream; a code ends the watching.
    fn told(&mut self, line: &Value) -> Result<Option<u8>, Failure> {
        if line.get("watching").is_some() {
            // From here on nothing is missed; what ended before this is known now.
            if self.context.json {
                self.print(line, "");
            }
            let Some(run) = self.run else { return Ok(None) };
            let info = self.ask(&format!("/api/v1/runs/{run}"))?;
            if info.get("ended") == Some(&Value::Bool(true)) {
                return conclude(&info, self.context).map(Some);
            }
            if !self.context.json {
                let tally = Tally::of(info.get("counts").unwrap_or(&Value::Null), false);
                self.context.say(format_args!("watching {run}: {}", tally.sentence()));
            }
            // What cannot be asked for now is seen when it ends.
            if let Ok(page) = self.ask(&format!("/api/v1/jobs?limit=1000&selector=run:{run}%20state:running")) {
                self.running.found(&page, &self.ask("/api/v1/flights").unwrap_or_default());
            }
            return Ok(None);
        }
        if line.get("error").is_some_and(Value::is_object) {
            let problem: crate::api::FollowLine = serde_json::from_value(line.clone())
                .map_err(|e| Failure::new(Kind::Internal, format!("the server said something else: {e}")))?;
            if let crate::api::FollowLine::Broken { error } = problem {
                return Err(error.into_failure());
            }
        }
        self.progress.changed();
        if let Some(ended) = line.get("ended") {
            if self.run.is_some() {
                self.progress.clear();
                return conclude(ended, self.context).map(Some);
            }
            self.print(line, &format!("{} ended", field(ended, "id")));
            return Ok(None);
        }
        if self.run.is_some() && self.running.changed(line) {
            return Ok(None);
        }
        if self.run.is_none() || self.full || field(line, "state") != State::Succeeded.word() {
            let sentence = change_line(line, self.context.color)?;
            self.print(line, &sentence);
        }
        Ok(None)
    }

    fn print(&mut self, line: &Value, sentence: &str) {
        self.progress.clear();
        if self.context.json {
            self.out.line(line);
        } else {
            self.out.line(sentence);
        }
        self.out.flush();
    }

    fn show_progress(&mut self) {
        let now = Instant::now();
        let Some(run) = self.run.filter(|_| self.progress.wants(now)) else { return };
        // A server that has gone away is told of by the stream.
        if let Ok(info) = self.ask(&format!("/api/v1/runs/{run}")) {
            let open = info.get("sealed") != Some(&Value::Bool(true));
            let tally = Tally::of(info.get("counts").unwrap_or(&Value::Null), open);
            self.progress.speak_beside(now, tally, &self.running.longest(clock::now()));
        }
    }

    fn ask(&self, path: &str) -> Result<Value, Failure> {
        let gone = || Failure::new(Kind::NoServer, "the server went away");
        self.place.server()?.ok_or_else(gone)?.get_json(path)
    }
}

/// The jobs of a run that run now, and since when.
#[derive(Debug, Default)]
struct Running(HashMap<String, Time>);

impl Running {
    /// What ran before the watching began.
    fn found(&mut self, page: &Value, flights: &Value) {
        let items = |page: &Value| page.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        let jobs: Vec<String> = items(page).iter().map(|job| field(job, "id")).collect();
        for flight in items(flights).iter().filter(|flight| flight.get("stocked") != Some(&Value::Bool(true))) {
            let (job, since) = (field(flight, "job"), api::time_from_text(&field(flight, "started")));
            if let Some(since) = since.ok().filter(|_| jobs.contains(&job)) {
                self.0.entry(job).or_insert(since);
            }
        }
    }

    /// True where the line is that of a start.
    fn changed(&mut self, line: &Value) -> bool {
        let job = field(line, "job");
        if field(line, "state") != State::Running.word() {
            self.0.remove(&job);
            return false;
        }
        if let Ok(since) = api::time_from_text(&field(line, "at")) {
            self.0.insert(job, since);
        }
        true
    }

    /// `, longest j-… 12s`
    fn longest(&self, now: Time) -> String {
        let Some((job, since)) = self.0.iter().min_by_key(|(_, since)| **since) else { return String::new() };
        format!(", longest {job} {}", when::spoken(now.since(*since)))
    }
}

/// `10:00:05 j-… mail failed (start 2, 1.2 s): exit 3  customer-42`
fn change_line(line: &Value, color: bool) -> Result<String, Failure> {
    let clock = when::time_of_day(&field(line, "at"));
    let (state, outcome) = (field(line, "state"), field(line, "outcome"));
    let how = if outcome == state { String::new() } else { format!(" {outcome}") };
    let ran = line.get("run_s").and_then(Value::as_f64);
    let ran = ran.map(|ran| format!(", {ran:.1} s")).unwrap_or_default();
    let error = Some(field(line, "error")).filter(|error| !error.is_empty() && *error != state);
    let error = error.map(|error| format!(": {error}")).unwrap_or_default();
    let data = visible(&String::from_utf8_lossy(&data_of(line, "data")?));
    let state = if color { painted(&state) } else { state };
    let (job, queue, start) = (field(line, "job"), field(line, "queue"), field(line, "start"));
    Ok(format!("{clock} {job} {queue} {state}{how} (start {start}{ran}){error}  {}", shortened(&data, DATA_SHOWN)))
}

/// The last line about a run, and its exit code.
fn conclude(run: &Value, context: &Context) -> Result<u8, Failure> {
    let counts = run.get("counts").unwrap_or(&Value::Null);
    let missed = Missed::of(counts);
    if context.json {
        print::document(&serde_json::json!({ "ended": run }))?;
    } else {
        let (id, succeeded) = (field(run, "id"), grouped(count(counts, State::Succeeded.word())));
        let retry = match missed.failed {
            0 => String::new(),
            _ => format!("; retry: windlass retry run:{id} state:failed"),
        };
        context.say(format_args!("{id} has ended: {succeeded} succeeded, {}{retry}", missed.words()));
    }
    Ok(if missed.all() == 0 { 0 } else { Kind::JobFailed.exit_code() })
}

pub(super) fn spawn_signals(signals: Signals, tell: SyncSender<Happened>) {
    std::thread::spawn(move || signals.next().map(|signal| tell.send(Happened::Signal(signal))));
}

/// Passes the lines of a stream on.
pub(super) fn spawn_lines(server: Connection, path: String, tell: SyncSender<Happened>) {
    std::thread::spawn(move || {
        let failure = read_lines(server, &path, &tell).err();
        let over = failure.unwrap_or_else(|| Failure::new(Kind::NoServer, "the server went away"));
        // Nobody watches any more: nothing is left to tell.
        let _ = tell.send(Happened::Over(over));
    });
}

fn read_lines(server: Connection, path: &str, tell: &SyncSender<Happened>) -> Result<(), Failure> {
    let mut lines = server.lines(path)?;
    while let Some(line) = lines.next_line()? {
        let value = serde_json::from_slice(&line)
            .map_err(|e| Failure::new(Kind::Internal, format!("the server said something else than JSON: {e}")))?;
        if tell.send(Happened::Line(value)).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_longest_of_what_runs() {
        let at = |second: u32| format!("2026-11-15T10:00:{second:02}Z");
        let start = |job: &str, second| json!({ "job": job, "state": "running", "at": at(second) });
        let mut running = Running::default();
        let known = json!({ "items": [{ "id": "j-1" }, { "id": "j-2" }] });
        let flights = json!({ "items": [
            { "job": "j-1", "started": at(3) }, { "job": "j-2", "started": at(0), "stocked": true },
            { "job": "j-9", "started": at(1) },
        ] });
        running.found(&known, &flights);
        assert!(running.changed(&start("j-2", 5)));
        let now = api::time_from_text(&at(20)).unwrap();
        assert_eq!(running.longest(now), ", longest j-1 17s");
        assert!(!running.changed(&json!({ "job": "j-1", "state": "failed" })));
        assert_eq!(running.longest(now), ", longest j-2 15s");
        assert_eq!(Running::default().longest(now), "");
    }

    #[test]
    fn a_change_on_one_line() {
        let line = json!({ "job": "j-1", "queue": "mail", "state": "retrying", "outcome": "failed", "start": 2,
            "at": "2026-11-15T10:00:05.123Z", "run_s": 1.25, "error": "exit 3\u{1b}", "data": "customer-42" });
        let clock = when::time_of_day("2026-11-15T10:00:05.123Z");
        assert_eq!(
            change_line(&line, false).unwrap(),
            format!("{clock} j-1 mail retrying failed (start 2, 1.2 s): exit 3\\u{{1b}}  customer-42")
        );
        let line = json!({ "job": "j-1", "queue": "mail", "state": "succeeded", "outcome": "succeeded", "start": 1,
            "at": "2026-11-15T10:00:05Z", "run_s": 0.0, "data": "x" });
        assert_eq!(change_line(&line, false).unwrap(), format!("{clock} j-1 mail succeeded (start 1, 0.0 s)  x"));
    }
}
