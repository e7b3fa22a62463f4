//! `windlass status`: how many jobs are where.

use super::Context;
use super::connect::Link;
use super::listing::{Columns, For, Listing, Shape};
use super::print::{self, count, field, grouped, visible};
use crate::api::steering::AsideStatus;
use crate::engine::Condition;
use crate::error::Failure;
use crate::handlers_dir::NAME;
use serde_json::Value;

/// The columns; a queue's `closed` is one of its own where any is.
const ALL: &[&str] = &[
    "queue",
    "scheduled",
    "ready",
    "running",
    "retrying",
    "suspended",
    "succeeded",
    "failed",
    "cancelled",
    "closed",
    "started",
];

const COLUMNS: Columns = Columns {
    all: ALL,
    usual: &["queue", "scheduled", "ready", "running", "retrying", "suspended", "succeeded", "failed", "cancelled"],
    wide: ALL,
    cell,
};

const EXAMPLES: &str = "\
Examples:
  windlass status
  windlass status -o csv --fields queue,ready,failed";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    shape: Shape,
}

pub(super) fn status(args: &Args, context: &Context) -> Result<u8, Failure> {
    let mut listing = Listing::new(&args.shape, COLUMNS, context)?;
    let place = context.place()?;
    let served = place.server()?.is_some();
    let status: Value = Link::ask(&place, |server| server.get_json("/api/v1/status"))?;
    if !listing.is_for_people() {
        return listing.whole(&status, &rows(&status), None);
    }
    if status.get("closed").and_then(Value::as_object).is_some_and(|closed| !closed.is_empty()) {
        listing.with_column("closed");
    }
    let total = row("total", status.get("totals").unwrap_or(&Value::Null), None);
    let code = listing.whole(&status, &rows(&status), Some(total))?;
    let workers = status.get("workers").and_then(Value::as_object).filter(|workers| !workers.is_empty());
    if let Some(workers) = workers {
        let states = workers.iter().map(|(state, count)| format!("{count} {}", visible(state)));
        context.say(format_args!("workers: {}", states.collect::<Vec<_>>().join(", ")));
    }
    for (entry, trouble) in status.get("troubles").and_then(Value::as_object).into_iter().flatten() {
        let trouble = trouble.as_str().unwrap_or_default();
        let of = if entry == NAME { "[handlers]".to_owned() } else { format!("[queue.{}]", visible(entry)) };
        context.say(format_args!("the workers of {of} cannot serve: {}", visible(trouble)));
    }
    for (queue, aside) in status.get("aside").and_then(Value::as_object).into_iter().flatten() {
        let (jobs, why) = (print::jobs(count(aside, "jobs")), field(aside, "why"));
        context.say(AsideStatus::in_words(&jobs, &visible(queue), &visible(&why)));
    }
    match status.get("server").filter(|_| served) {
        Some(server) => {
            let condition = match field(server, "condition") {
                word if word == Condition::Serving.word() => String::new(),
                word => format!(", which is {}: nothing is started", word.replace('_', " ")),
            };
            context.say(format_args!("served by process {}{condition}", field(server, "pid")));
        }
        None => context.say("no server is running"),
    }
    Ok(code)
}

/// A row for each queue.
fn rows(status: &Value) -> Vec<Value> {
    let queues = status.get("queues").and_then(Value::as_object).into_iter().flatten();
    let closed = status.get("closed").unwrap_or(&Value::Null);
    queues.map(|(name, counts)| row(name, counts, closed.get(name))).collect()
}

fn row(name: &str, counts: &Value, closed: Option<&Value>) -> Value {
    let mut row = counts.clone();
    if let Some(fields) = row.as_object_mut() {
        fields.insert("queue".into(), name.into());
        fields.extend(closed.map(|closed| ("closed".to_owned(), closed.clone())));
    }
    row
}

fn cell(row: &Value, column: &str, whom: For) -> Result<String, Failure> {
    Ok(match (column, whom) {
        ("queue" | "closed", _) => field(row, column),
        (counted, For::People) => grouped(count(row, counted)),
        (counted, For::Machines) => count(row, counted).to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::life_cycle::State;

    #[test]
    fn a_row_for_each_queue() {
        let status = serde_json::json!({
            "queues": { "a\u{1b}": { "ready": 1200, "failed": 1 } }, "closed": { "a\u{1b}": "paused" },
        });
        let rows = rows(&status);
        let cells = |whom| COLUMNS.wide.iter().map(|column| cell(&rows[0], column, whom).unwrap()).collect::<Vec<_>>();
        assert_eq!(rows.len(), 1);
        assert_eq!(cells(For::People), ["a\\u{1b}", "0", "1,200", "0", "0", "0", "0", "1", "0", "paused", "0"]);
        assert_eq!(cells(For::Machines)[2], "1200");
        assert!(State::ALL.iter().all(|state| COLUMNS.usual.contains(&state.word())));
    }
}
