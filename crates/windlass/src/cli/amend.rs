//! The verbs that change jobs: retry, cancel, suspend, resume, priority, delete; by id, by run, or by selector.
//!
//! Several jobs by selector need a yes: asked for on a terminal, given as `--yes` elsewhere. `--expect N` refuses
//! when the number is no longer the one that was looked at. Ids stand for themselves and need no yes.

use super::Context;
use super::confirm::confirm;
use super::connect::{Connection, Link};
use super::listing::{Listing, Shape};
use super::ls;
use super::print::{self, count, field, grouped, jobs};
use super::values;
use crate::error::{Failure, Kind};
use serde_json::{Value, json};
use windlass_core::job::{JobId, Priority, RunId};

const EXAMPLES: &str = "\
Examples (retry, cancel, suspend, resume and delete take the same):
  windlass retry j-0c3k5p7m2x-1f
  windlass retry state:failed queue:mail --dry-run
  windlass cancel r-0c3k5p7m2x --expect 12 --yes
  windlass suspend 'queue:img.* age>1h'";

const PRIORITY_EXAMPLES: &str = "\
Examples:
  windlass priority high j-0c3k5p7m2x-1f
  windlass priority -20 'queue:report state:ready' --yes";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    chosen: Chosen,
}

#[derive(Debug, clap::Args)]
#[command(before_help = PRIORITY_EXAMPLES)]
pub(super) struct PriorityArgs {
    /// From -100 to 100, or high, normal, low; larger is sooner
    #[arg(value_name = "N", allow_negative_numbers = true)]
    priority: Priority,
    #[command(flatten)]
    chosen: Chosen,
}

/// Which jobs, and how sure.
#[derive(Debug, clap::Args)]
struct Chosen {
    /// Job ids, a run's id, or a selector
    #[arg(required = true, value_name = "ID|SELECTOR")]
    targets: Vec<String>,
    /// Only say how many jobs it would be, and show the first few
    #[arg(long)]
    dry_run: bool,
    /// Refuse unless it is exactly this many
    #[arg(long, value_name = "N", value_parser = values::count)]
    expect: Option<u64>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// One of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Retry,
    Cancel,
    Suspend,
    Resume,
    Priority(Priority),
    Delete,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Verb::Retry => "retry",
            Verb::Cancel => "cancel",
            Verb::Suspend => "suspend",
            Verb::Resume => "resume",
            Verb::Priority(_) => "priority",
            Verb::Delete => "delete",
        }
    }

    /// What it does to jobs, as the middle of a sentence.
    fn wish(self, jobs: &str) -> String {
        match self {
            Verb::Priority(priority) => format!("set the priority of {jobs} to {}", priority.value()),
            verb => format!("{} {jobs}", verb.word()),
        }
    }

    fn done(self) -> String {
        match self {
            Verb::Retry => "ready again".into(),
            Verb::Cancel => "cancelled".into(),
            Verb::Suspend => "suspended".into(),
            Verb::Resume => "resumed".into(),
            Verb::Priority(priority) => format!("given priority {}", priority.value()),
            Verb::Delete => "deleted".into(),
        }
    }

    /// As the API takes it, without its jobs.
    fn request(self) -> Value {
        match self {
            Verb::Priority(priority) => json!({ "action": "priority", "priority": priority.value() }),
            verb => json!({ "action": verb.word() }),
        }
    }
}

/// What is to be changed.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Ids(Vec<JobId>),
    Selector(String),
}

pub(super) fn priority(args: &PriorityArgs, context: &Context) -> Result<u8, Failure> {
    change(Verb::Priority(args.priority), &args.chosen, context)
}

pub(super) fn amend(verb: Verb, args: &Args, context: &Context) -> Result<u8, Failure> {
    change(verb, &args.chosen, context)
}

fn change(verb: Verb, chosen: &Chosen, context: &Context) -> Result<u8, Failure> {
    let target = target(&chosen.targets)?;
    let place = context.place()?;
    let answer = Link::with(&place, |server| match &target {
        Target::Ids(ids) if ids.len() == 1 && !chosen.dry_run && chosen.expect.is_none_or(|n| n == 1) => {
            one(server, verb, ids[0])
        }
        Target::Ids(ids) => {
            let ids: Vec<String> = ids.iter().map(JobId::to_string).collect();
            operate(server, verb, json!({ "ids": ids }), chosen.expect, chosen.dry_run)
        }
        Target::Selector(selector) => by_selector(server, verb, chosen, selector, context),
    })?;
    if context.json {
        print::document(&answer)?;
    } else if chosen.dry_run {
        show_preview(verb, &answer, context)?;
    } else {
        let none = matches!(target, Target::Selector(_)) && count(&answer, "matched") == 0;
        let archived = none && verb == Verb::Delete && chosen.targets.iter().any(|word| word.contains("succeeded"));
        let none = if none { "; no job matches" } else { "" };
        context.say(format_args!("{}{none}", sentence(verb, &answer)));
        if archived {
            context.say(
                "hint: succeeded jobs are in the archive only and go by themselves (keep_succeeded in the config)",
            );
        }
    }
    match target {
        Target::Selector(_) => Ok(0),
        Target::Ids(ids) => verdict(ids.len(), &answer),
    }
}

/// Ids are ids, a run is its jobs, and everything else is a selector; a mixture is a mistake.
fn target(targets: &[String]) -> Result<Target, Failure> {
    let ids: Vec<Option<JobId>> = targets.iter().map(|target| target.parse().ok()).collect();
    if ids.iter().all(Option::is_some) {
        let mut ids: Vec<JobId> = ids.into_iter().flatten().collect();
        ids.sort_unstable();
        ids.dedup();
        return Ok(Target::Ids(ids));
    }
    if let Some(at) = ids.iter().position(Option::is_some) {
        let text = format!("{} is a job's id, but other arguments are not", targets[at]);
        return Err(Failure::new(Kind::Usage, text).hint("name ids only, or one selector"));
    }
    Ok(Target::Selector(selector_of(targets)))
}

/// The words of a selector; a run's id alone means its jobs, and several such ids mean the jobs of all of them.
pub(super) fn selector_of(words: &[String]) -> String {
    let is_run = |word: &&String| word.parse::<RunId>().is_ok();
    let runs: Vec<&str> = words.iter().filter(is_run).map(String::as_str).collect();
    let runs = (!runs.is_empty()).then(|| format!("run:{}", runs.join(",")));
    let others = words.iter().filter(|word| !is_run(word)).cloned();
    runs.into_iter().chain(others).collect::<Vec<_>>().join(" ")
}

/// A single job: its refusal says why.
fn one(server: &mut Connection, verb: Verb, id: JobId) -> Result<Value, Failure> {
    let path = format!("/api/v1/jobs/{id}/{}", verb.word());
    let answer: Value = match verb {
        Verb::Priority(priority) => server.post_json(&path, &json!({ "priority": priority.value() }))?,
        _ => server.post_empty(&path)?,
    };
    let mut account = json!({ "matched": 1, "changed": 0, "already": 0, "running": 0, "refused": 0, "unknown": 0 });
    let which = match field(&answer, "result").as_str() {
        "running" => "running",
        "already" => "already",
        _ => "changed",
    };
    account[which] = 1.into();
    Ok(account)
}

fn by_selector(
    server: &mut Connection,
    verb: Verb,
    chosen: &Chosen,
    selector: &str,
    context: &Context,
) -> Result<Value, Failure> {
    let which = || json!({ "selector": selector });
    let mut expect = chosen.expect;
    if chosen.dry_run || !chosen.yes {
        let preview = operate(server, verb, which(), chosen.expect, true)?;
        let matched = count(&preview, "matched");
        if chosen.dry_run {
            return Ok(preview);
        }
        if matched > 1 {
            let hint = "--dry-run shows the count, --expect N makes sure of it";
            confirm(&verb.wish(&jobs(matched)), hint, context)?;
            // What was confirmed is what is done, or nothing.
            expect = Some(matched);
        }
    }
    operate(server, verb, which(), expect, false)
}

fn operate(
    server: &mut Connection,
    verb: Verb,
    which: Value,
    expect: Option<u64>,
    dry_run: bool,
) -> Result<Value, Failure> {
    let mut request = verb.request();
    for (key, value) in which.as_object().into_iter().flatten() {
        request[key] = value.clone();
    }
    request["expect"] = expect.into();
    request["dry_run"] = dry_run.into();
    // Millions of jobs take their time, and going away would not stop it.
    server.set_patience(None);
    server.post_json("/api/v1/operations", &request)
}

fn show_preview(verb: Verb, answer: &Value, context: &Context) -> Result<(), Failure> {
    let matched = count(answer, "matched");
    let sample = answer.get("sample").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let more = if (sample.len() as u64) < matched { "; the first of them:" } else { "" };
    context.say(format_args!("would {}{more}", verb.wish(&jobs(matched))));
    if sample.is_empty() {
        return Ok(());
    }
    let mut listing = Listing::new(&Shape::default(), ls::COLUMNS, context)?;
    listing.print(sample)?;
    listing.end().map(drop)
}

/// What became of them, in one line.
fn sentence(verb: Verb, answer: &Value) -> String {
    let of = |key: &str| count(answer, key);
    // Where only something else can be said, a nought in front of it says nothing.
    let stopped = of("changed") == 0 && of("running") > 0;
    let mut parts = if stopped { Vec::new() } else { vec![format!("{} {}", jobs(of("changed")), verb.done())] };
    let mut add = |number: u64, text: String| {
        if number > 0 {
            parts.push(format!("{} {text}", grouped(number)));
        }
    };
    let word = match (stopped, of("running")) {
        (false, _) => "",
        (true, 1) => "job ",
        (true, _) => "jobs ",
    };
    add(of("running"), format!("{word}running and being stopped"));
    add(of("already"), if of("already") == 1 { "was so already".into() } else { "were so already".into() });
    let why = answer.get("why").and_then(Value::as_object).into_iter().flatten();
    let why: Vec<String> = why.map(|(state, number)| format!("{number} {state}")).collect();
    add(of("refused"), format!("could not be ({})", why.join(", ")));
    add(of("left"), "changed meanwhile and left alone".into());
    add(of("unknown"), "not known".into());
    parts.join(", ")
}

/// Jobs named by their ids must all be as asked for; else the exit code tells.
fn verdict(named: usize, answer: &Value) -> Result<u8, Failure> {
    let of = |key: &str| count(answer, key);
    if of("unknown") > 0 {
        let text =
            not_all(of("unknown"), named, ("is not known, or has succeeded", "are not known, or have succeeded"));
        return Err(Failure::new(Kind::NotFound, text).hint("windlass show ID tells of each"));
    }
    match of("refused") {
        0 => Ok(0),
        refused => {
            let text = not_all(
                refused,
                named,
                ("is in a state that does not allow it", "are in a state that does not allow it"),
            );
            Err(Failure::new(Kind::Conflict, text))
        }
    }
}

/// `the job is not known`, `1 of 3 jobs is not known`, `2 of 3 jobs are not known`.
fn not_all(count: u64, named: usize, (one, many): (&str, &str)) -> String {
    match (count, named) {
        (1, 1) => format!("the job {one}"),
        (1, _) => format!("1 of {} {one}", jobs(named as u64)),
        (count, _) => format!("{} of {} {many}", grouped(count), jobs(named as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Target, Failure> {
        target(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn ids_runs_and_selectors() {
        let id = "j-0123456789-1f";
        assert_eq!(of(&[id, id]), Ok(Target::Ids(vec![id.parse().unwrap()])), "a job is named once");
        assert_eq!(of(&["r-0123456789"]), Ok(Target::Selector("run:r-0123456789".into())));
        let both = Target::Selector("run:r-0123456789,r-1123456789 state:failed".into());
        assert_eq!(of(&["r-0123456789", "state:failed", "r-1123456789"]), Ok(both), "the jobs of either");
        assert_eq!(of(&["state:failed", "queue:a"]), Ok(Target::Selector("state:failed queue:a".into())));
        assert_eq!(of(&["state:failed", id]).unwrap_err().kind, Kind::Usage);
    }

    #[test]
    fn the_account_in_words() {
        let answer = json!({ "changed": 1200, "already": 1, "refused": 3, "why": { "running": 2, "failed": 1 } });
        assert_eq!(
            sentence(Verb::Suspend, &answer),
            "1,200 jobs suspended, 1 was so already, 3 could not be (1 failed, 2 running)"
        );
        assert_eq!(sentence(Verb::Delete, &json!({ "changed": 1 })), "1 job deleted");
    }
}
