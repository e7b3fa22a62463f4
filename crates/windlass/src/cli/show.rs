//! `windlass show`: everything that is known of one job or one run.

use super::Context;
use super::connect::{Connection, Link, encoded};
use super::print::{self, Out, data_of, field, visible};
use crate::error::{Failure, Kind};
use crate::when;
use serde_json::Value;
use windlass_core::job::{JobId, RunId};

const EXAMPLES: &str = "\
Examples:
  windlass show j-0c3k5p7m2x-1f
  windlass show r-0c3k5p7m2x --json";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// A job's or a run's id, or as much of its beginning as no other has
    id: String,
}

pub(super) fn show(args: &Args, context: &Context) -> Result<u8, Failure> {
    let place = context.place()?;
    let found: Value = Link::ask(&place, |server| {
        let id = whole_id(server, &args.id)?;
        let family = if id.starts_with("r-") { "runs" } else { "jobs" };
        server.get_json(&format!("/api/v1/{family}/{}", encoded(&id)))
    })?;
    if context.json {
        return print::document(&found);
    }
    let mut out = Out::new();
    for line in lines(&found)? {
        out.line(line);
    }
    out.finish()
}

/// The only id that begins so; an id that is whole is itself, whatever others begin with it.
pub(super) fn whole_id(server: &mut Connection, text: &str) -> Result<String, Failure> {
    let whole = text.parse::<JobId>().is_ok() || text.parse::<RunId>().is_ok();
    let (path, what) = match text.get(..2) {
        Some("j-") if !whole => (format!("/api/v1/jobs?limit=1000&selector={}", encoded(text)), "job"),
        Some("r-") if !whole => ("/api/v1/runs?limit=1000".to_owned(), "run"),
        _ => return Ok(text.to_owned()),
    };
    let mut found: Vec<String> = Vec::new();
    let mut next = Some(path.clone());
    while let Some(page) = next.take().filter(|_| found.len() < 2) {
        let page: Value = server.get_json(&page)?;
        let items = page.get("items").and_then(Value::as_array).into_iter().flatten();
        found.extend(items.map(|item| field(item, "id")).filter(|id| id.starts_with(text)));
        let cursor = page.get("next").and_then(Value::as_str);
        next = cursor.map(|cursor| format!("{path}&cursor={}", encoded(cursor)));
    }
    match (found.pop(), found.pop()) {
        (Some(id), None) => Ok(id),
        (Some(_), Some(_)) => {
            let text = format!("several {what}s begin with {text}");
            Err(Failure::new(Kind::Usage, text).hint("give more of the id"))
        }
        (None, _) => Err(Failure::new(Kind::NotFound, format!("no {what} begins with {text}"))),
    }
}

/// What a person looks for first, in this order; the rest follows by name.
const FIRST: [&str; 9] = ["id", "name", "queue", "state", "reason", "run", "priority", "attempts", "counts"];
/// Told in lines of their own, or too long for one.
const APART: [&str; 4] = ["data", "data_base64", "errors", "history"];

/// Told on the clock that people have before them.
const TIMES: [&str; 5] = ["admitted", "not_before", "ended", "created", "ended_at"];

fn told(value: &Value) -> String {
    value.as_str().map_or_else(|| inline(value), when::told_text)
}

/// One line a field; then the attempts, the errors, and the data, which may be anything.
fn lines(found: &Value) -> Result<Vec<String>, Failure> {
    let rank = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
    let mut fields: Vec<(&String, String)> = found
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, value)| !value.is_null() && !APART.contains(&name.as_str()))
        .map(|(name, value)| (name, if TIMES.contains(&name.as_str()) { told(value) } else { inline(value) }))
        .filter(|(_, value)| !value.is_empty())
        .collect();
    fields.sort_by_key(|(name, _)| rank(name));
    let mut lines: Vec<String> = fields.iter().map(|(name, value)| format!("{name:<12} {value}")).collect();
    for attempt in found.get("history").and_then(Value::as_array).into_iter().flatten() {
        let (start, outcome) = (field(attempt, "start"), field(attempt, "outcome"));
        let at = when::told_text(&field(attempt, "finished"));
        let ran = attempt.get("run_s").and_then(Value::as_f64).unwrap_or(0.0);
        let told = ["error", "message"].map(|key| field(attempt, key)).into_iter().find(|text| !text.is_empty());
        let told = told.map(|text| format!(": {text}")).unwrap_or_default();
        lines.push(format!("{:<12} start {start} {outcome} after {ran:.3} s at {at}{told}", "attempt"));
    }
    let told = |start: &Value| {
        let history = found.get("history").and_then(Value::as_array);
        history.into_iter().flatten().any(|attempt| attempt.get("start") == Some(start))
    };
    let errors = found.get("errors").and_then(Value::as_array).into_iter().flatten();
    for error in errors.filter(|error| !error.get("start").is_some_and(told)) {
        let (start, text) = (field(error, "start"), field(error, "text"));
        let at = when::told_text(&field(error, "at"));
        lines.push(format!("{:<12} start {start} at {at}: {text}", "error"));
    }
    if found.get("data").is_some() || found.get("data_base64").is_some() {
        lines.push(format!("{:<12} {}", "data", visible(&String::from_utf8_lossy(&data_of(found, "data")?))));
    }
    Ok(lines)
}

/// A value on one line; of counters only those that are not nought.
fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => visible(text),
        Value::Object(fields) => {
            let shown = fields.iter().filter(|(_, value)| !value.is_null() && value.as_u64() != Some(0));
            shown.map(|(name, value)| format!("{name} {}", inline(value))).collect::<Vec<_>>().join(", ")
        }
        Value::Array(items) => items.iter().map(inline).collect::<Vec<_>>().join(", "),
        other => visible(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_job_for_people() {
        let job = json!({
            "id": "j-1", "run": null, "starts": 2, "data_base64": "YRsKYg==",
            "errors": [{ "start": 1, "at": "2020-11-15T10:00:00Z", "text": "exit 3\u{1b}[2J" }],
        });
        assert_eq!(
            lines(&job).unwrap(),
            [
                "id           j-1",
                "starts       2",
                &format!("error        start 1 at {}: exit 3\\u{{1b}}[2J", when::told_text("2020-11-15T10:00:00Z")),
                "data         a\\u{1b}\\nb",
            ]
        );
    }

    #[test]
    fn counters_that_are_nought_are_left_out() {
        assert_eq!(inline(&json!({ "ready": 0, "failed": 3 })), "failed 3");
    }
}
