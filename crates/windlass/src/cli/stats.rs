//! `windlass stats`: what ended lately, how fast, and how long it waited and ran.

use super::Context;
use super::amend::selector_of;
use super::connect::{Link, encoded};
use super::listing::{Columns, For, Listing, Shape};
use super::print::{count, field, grouped};
use super::values;
use crate::error::Failure;
use crate::when;
use serde_json::Value;
use std::time::Duration;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

const EXAMPLES: &str = "\
Examples:
  windlass stats
  windlass stats --by priority --since 24h
  windlass stats --by hour --since 7d queue:mail";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// Only of these: queue: state: run: priority age ended
    selector: Vec<String>,
    /// A row for each: queue, priority, state or hour
    #[arg(long, value_name = "WHAT", default_value = "queue", value_parser = ["queue", "priority", "state", "hour"])]
    by: String,
    /// What ended since then: 30m 24h 7d, or a time; by default the last hour
    #[arg(long, value_name = "SPAN|TIME", value_parser = values::since)]
    since: Option<Time>,
    #[command(flatten)]
    shape: Shape,
}

/// What of each row is counted and measured.
const ALL: &[&str] = &[
    "key",
    "attempts",
    "succeeded",
    "failed",
    "cancelled",
    "again",
    "per_minute",
    "wait_p50",
    "wait_p95",
    "wait_p99",
    "run_p50",
    "run_p95",
    "run_p99",
    "waiting",
    "running",
    "held",
    "held_by",
];

const COLUMNS: Columns = Columns {
    all: ALL,
    usual: &[
        "key",
        "attempts",
        "succeeded",
        "failed",
        "cancelled",
        "again",
        "per_minute",
        "wait_p50",
        "wait_p95",
        "run_p50",
        "run_p95",
        "run_p99",
    ],
    wide: ALL,
    cell,
};

pub(super) fn stats(args: &Args, context: &Context) -> Result<u8, Failure> {
    let mut listing = Listing::new(&args.shape, COLUMNS, context)?;
    let place = context.place()?;
    let since = args.since.map(|since| format!("&since={}", encoded(&when::rfc3339(since)))).unwrap_or_default();
    let path = format!("/api/v1/stats?by={}&selector={}{since}", args.by, encoded(&selector_of(&args.selector)));
    let stats: Value = Link::ask(&place, |server| server.get_json(&path))?;
    let rows = stats.get("rows").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let people = listing.is_for_people();
    listing.headed(&args.by);
    if people && args.by == "queue" {
        listing.with_column("waiting");
        listing.with_column("running");
        if rows.iter().any(|row| row.get("held_s").is_some()) {
            listing.with_column("held");
            listing.with_column("held_by");
        }
    }
    let code = listing.whole(&stats, rows, stats.get("total").cloned())?;
    if people {
        let since = field(&stats, "since");
        let busy = 100.0 * stats.get("busy").and_then(Value::as_f64).unwrap_or(0.0);
        let ended = format!("by {}, what ended since {}", args.by, when::told_text(&since));
        context.say(format_args!("{ended}; the engine was busy for {busy:.1}% of the time since it started"));
    }
    Ok(code)
}

fn cell(row: &Value, column: &str, whom: For) -> Result<String, Failure> {
    let counted = |count: u64| match whom {
        For::People => grouped(count),
        For::Machines => count.to_string(),
    };
    let live = row.get("waiting").unwrap_or(&Value::Null);
    let held = || row.get("held_s").and_then(Value::as_object).into_iter().flatten();
    let held = || held().map(|(code, time)| (code, time.as_f64().unwrap_or(0.0)));
    Ok(match (column, column.split_once('_')) {
        ("key", _) => field(row, "key"),
        ("per_minute", _) => {
            let rate = row.get("per_minute").and_then(Value::as_f64).unwrap_or(0.0);
            if whom == For::People { format!("{rate:.1}") } else { rate.to_string() }
        }
        ("waiting", _) => {
            let waiting = State::ALL.iter().filter(|state| !state.is_end() && **state != State::Running);
            counted(waiting.map(|state| count(live, state.word())).sum())
        }
        ("running", _) => counted(count(live, State::Running.word())),
        ("held", _) => {
            let all: f64 = held().map(|(_, time)| time).sum();
            match whom {
                For::People if all == 0.0 => "-".to_owned(),
                For::People => spoken(Duration::from_secs_f64(all)),
                For::Machines => all.to_string(),
            }
        }
        // What held it for longest.
        ("held_by", _) => {
            let most = held().max_by(|(_, one), (_, other)| one.total_cmp(other));
            most.map(|(code, _)| code.clone()).unwrap_or_default()
        }
        (_, Some((kind, share))) => {
            let spans = row.get(format!("{kind}_s")).unwrap_or(&Value::Null);
            if whom == For::People { seconds(spans, share) } else { field(spans, share) }
        }
        (plain, None) => counted(count(row, plain)),
    })
}

fn seconds(spans: &Value, share: &str) -> String {
    let span = spans.get(share).and_then(Value::as_f64).map(Duration::from_secs_f64);
    match span {
        None => "-".to_owned(),
        Some(span) => spoken(span),
    }
}

fn spoken(span: Duration) -> String {
    if span < Duration::from_secs(1) { format!("{:.0}ms", span.as_secs_f64() * 1e3) } else { when::spoken(span) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_cells_of_a_row() {
        let row = json!({ "key": "mail", "attempts": 1200, "succeeded": 1200, "per_minute": 20.04,
            "wait_s": { "p50": 0.0421, "p95": 61.0 }, "waiting": { "ready": 3, "running": 1, "retrying": 2 },
            "held_s": { "disabled": 0.5, "server_slots_taken": 61.0 } });
        let cells = |whom| COLUMNS.wide.iter().map(|column| cell(&row, column, whom).unwrap()).collect::<Vec<_>>();
        let people = "mail|1,200|1,200|0|0|0|20.0|42ms|1m 1s|-|-|-|-|5|1|1m 1s|server_slots_taken";
        assert_eq!(cells(For::People).join("|"), people);
        let machines = "mail|1200|1200|0|0|0|20.04|0.0421|61.0|||||5|1|61.5|server_slots_taken";
        assert_eq!(cells(For::Machines).join("|"), machines);
    }
}
