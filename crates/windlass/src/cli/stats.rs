//! `windlass stats`: what ended lately, how fast, and how long it waited and ran.

use super::Context;
use super::amend::selector_of;
use super::connect::{Link, encoded};
use super::print::{self, Out, count, field, grouped};
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
}

pub(super) fn stats(args: &Args, context: &Context) -> Result<u8, Failure> {
    let dir = context.data_dir()?;
    let since = args.since.map(|since| format!("&since={}", encoded(&when::rfc3339(since)))).unwrap_or_default();
    let path = format!("/api/v1/stats?by={}&selector={}{since}", args.by, encoded(&selector_of(&args.selector)));
    let stats: Value = Link::ask(&dir, |server| server.get_json(&path))?;
    if context.json {
        return print::document(&stats);
    }
    let mut out = Out::new();
    print::table(&mut out, &rows(&stats), None);
    let code = out.finish()?;
    context.say(format_args!("what ended since {}", field(&stats, "since")));
    Ok(code)
}

fn rows(stats: &Value) -> Vec<Vec<String>> {
    let by = field(stats, "by");
    let waits = by == "queue";
    let mut heading = vec![by.to_uppercase()];
    heading.extend(
        ["ATTEMPTS", "SUCCEEDED", "FAILED", "CANCELLED", "AGAIN", "/MIN", "WAIT P50", "P95", "RUN P50", "P95", "P99"]
            .map(str::to_owned),
    );
    if waits {
        heading.extend(["WAITING".to_owned(), "RUNNING".to_owned()]);
    }
    let row = |row: &Value| {
        let mut cells = vec![field(row, "key")];
        cells.extend(["attempts", "succeeded", "failed", "cancelled", "again"].map(|key| grouped(count(row, key))));
        cells.push(format!("{:.1}", row.get("per_minute").and_then(Value::as_f64).unwrap_or(0.0)));
        for (kind, shares) in [("wait_s", &["p50", "p95"][..]), ("run_s", &["p50", "p95", "p99"])] {
            let spans = row.get(kind).unwrap_or(&Value::Null);
            cells.extend(shares.iter().map(|share| seconds(spans, share)));
        }
        if waits {
            let live = row.get("waiting").unwrap_or(&Value::Null);
            let waiting = State::ALL.iter().filter(|state| !state.is_end() && **state != State::Running);
            cells.push(grouped(waiting.map(|state| count(live, state.word())).sum()));
            cells.push(grouped(count(live, State::Running.word())));
        }
        cells
    };
    let mut rows = vec![heading];
    rows.extend(stats.get("rows").and_then(Value::as_array).into_iter().flatten().map(row));
    rows.extend(stats.get("total").map(row));
    rows
}

fn seconds(spans: &Value, share: &str) -> String {
    let span = spans.get(share).and_then(Value::as_f64).map(Duration::from_secs_f64);
    match span {
        None => "-".to_owned(),
        Some(span) if span < Duration::from_secs(1) => format!("{:.0}ms", span.as_secs_f64() * 1e3),
        Some(span) => when::spoken(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_for_each_and_the_total() {
        let row = json!({ "key": "mail", "attempts": 1200, "succeeded": 1200, "per_minute": 20.04,
            "wait_s": { "p50": 0.0421, "p95": 61.0 }, "waiting": { "ready": 3, "running": 1, "retrying": 2 } });
        let stats = json!({ "by": "queue", "rows": [row], "total": { "key": "total" } });
        let rows = rows(&stats);
        assert_eq!(
            rows[1],
            ["mail", "1,200", "1,200", "0", "0", "0", "20.0", "42ms", "1m 1s", "-", "-", "-", "5", "1"]
        );
        assert_eq!((rows.len(), rows[2][0].as_str()), (3, "total"));
        assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    }
}
