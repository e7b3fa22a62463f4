//! `windlass retry` and `windlass cancel`: change jobs by id, by run, or by selector; in bulk only on purpose.
//!
//! Several jobs by selector need a yes: asked for on a terminal, given as `--yes` elsewhere. `--expect N` refuses
//! when the number is no longer the one that was looked at.

use super::Context;
use super::connect::{Connection, Link};
use super::print::{self, count, jobs};
use crate::error::{Failure, Kind};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Write};
use windlass_core::job::{JobId, RunId};

const EXAMPLES: &str = "\
Examples (cancel takes the same):
  windlass retry j-0c3k5p7m2x-1f
  windlass retry state:failed queue:mail --dry-run
  windlass retry r-0c3k5p7m2x --expect 12 --yes";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// Job ids, a run's id, or a selector
    #[arg(required = true, value_name = "ID|SELECTOR")]
    targets: Vec<String>,
    /// Only say how many jobs it would be
    #[arg(long)]
    dry_run: bool,
    /// Refuse unless it is exactly this many
    #[arg(long, value_name = "N")]
    expect: Option<u64>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// What is to be changed.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Ids(Vec<JobId>),
    Selector(String),
}

pub(super) fn amend(action: &str, args: &Args, context: &Context) -> Result<u8, Failure> {
    let target = target(&args.targets)?;
    let dir = context.data_dir()?;
    let answer = Link::with(&dir, |server| match &target {
        Target::Ids(ids) => by_id(server, action, args, ids),
        Target::Selector(selector) => by_selector(server, action, args, selector),
    })?;
    if context.json {
        return print::document(&answer);
    }
    let (changed, running, refused) = (count(&answer, "changed"), count(&answer, "running"), count(&answer, "refused"));
    if args.dry_run {
        context.say(format_args!("would {action} {}", jobs(count(&answer, "matched"))));
        return Ok(0);
    }
    let done = if action == "retry" { "ready again" } else { "cancelled" };
    let mut parts = vec![format!("{} {done}", jobs(changed))];
    if running > 0 {
        parts.push(format!("{} running and being stopped", print::grouped(running)));
    }
    if refused > 0 {
        parts.push(format!("{} left as they were", print::grouped(refused)));
    }
    context.say(parts.join(", "));
    Ok(0)
}

/// Ids are ids, a run is its jobs, and everything else is a selector; a mixture is a mistake.
fn target(targets: &[String]) -> Result<Target, Failure> {
    let ids: Vec<Option<JobId>> = targets.iter().map(|target| target.parse().ok()).collect();
    if ids.iter().all(Option::is_some) {
        return Ok(Target::Ids(ids.into_iter().flatten().collect()));
    }
    if let Some(at) = ids.iter().position(Option::is_some) {
        let text = format!("{} is a job's id, but other arguments are not", targets[at]);
        return Err(Failure::new(Kind::Usage, text).hint("name ids only, or one selector"));
    }
    let words = targets.iter().map(|word| match word.parse::<RunId>() {
        Ok(run) => format!("run:{run}"),
        Err(_) => word.clone(),
    });
    Ok(Target::Selector(words.collect::<Vec<_>>().join(" ")))
}

/// Each id stands for itself; the first that cannot be found ends it, and says how far it came.
fn by_id(server: &mut Connection, action: &str, args: &Args, ids: &[JobId]) -> Result<Value, Failure> {
    if let Some(expected) = args.expect.filter(|expected| *expected != ids.len() as u64) {
        return Err(unexpected(expected, ids.len() as u64));
    }
    let (mut changed, mut running) = (0, 0);
    for id in ids {
        let result: Result<Value, Failure> = match args.dry_run {
            true => server.get_json(&format!("/api/v1/jobs/{id}")),
            false => server.post_empty(&format!("/api/v1/jobs/{id}/{action}")),
        };
        match result {
            Ok(_) if args.dry_run => {}
            Ok(answer) if answer.get("result").is_some_and(|result| result == "running") => running += 1,
            Ok(_) => changed += 1,
            Err(mut failure) => {
                if ids.len() > 1 {
                    failure.text = format!("{id}: {} ({} done before)", failure.text, jobs(changed + running));
                }
                return Err(failure);
            }
        }
    }
    Ok(json!({ "matched": ids.len(), "changed": changed, "refused": 0, "running": running }))
}

fn by_selector(server: &mut Connection, action: &str, args: &Args, selector: &str) -> Result<Value, Failure> {
    let mut operate = |dry_run: bool, expect: Option<u64>| {
        let request = json!({ "action": action, "selector": selector, "expect": expect, "dry_run": dry_run });
        server.post_json("/api/v1/operations", &request)
    };
    if args.dry_run || !args.yes {
        let preview: Value = operate(true, args.expect)?;
        let matched = count(&preview, "matched");
        if let Some(expected) = args.expect.filter(|expected| *expected != matched) {
            return Err(unexpected(expected, matched));
        }
        if args.dry_run {
            return Ok(preview);
        }
        if matched > 1 {
            confirm(action, matched)?;
        }
    }
    operate(false, args.expect)
}

fn unexpected(expected: u64, found: u64) -> Failure {
    Failure::new(Kind::Conflict, format!("expected {}, found {found}; nothing was changed", jobs(expected)))
}

/// Asks on a terminal; elsewhere nobody can answer, so the flag is named.
fn confirm(action: &str, matched: u64) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let text = format!("{action} of {} needs --yes where nobody can be asked", jobs(matched));
        return Err(Failure::new(Kind::Usage, text).hint("--dry-run shows the count, --expect N makes sure of it"));
    }
    let mut stderr = std::io::stderr().lock();
    // A question nobody can see gets the answer no below.
    let _ = write!(stderr, "{action} {}? [y/N] ", jobs(matched)).and_then(|()| stderr.flush());
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        true => Ok(()),
        false => Err(Failure::new(Kind::Usage, "not confirmed; nothing was changed")),
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
        assert_eq!(of(&[id, id]), Ok(Target::Ids(vec![id.parse().unwrap(); 2])));
        assert_eq!(of(&["r-0123456789"]), Ok(Target::Selector("run:r-0123456789".into())));
        assert_eq!(of(&["state:failed", "queue:a"]), Ok(Target::Selector("state:failed queue:a".into())));
        assert_eq!(of(&["state:failed", id]).unwrap_err().kind, Kind::Usage);
    }
}
