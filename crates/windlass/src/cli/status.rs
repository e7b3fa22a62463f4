//! `windlass status`: how many jobs are where.

use super::Context;
use super::connect::Link;
use super::print::{self, Out, count, field, grouped, visible};
use crate::engine::Condition;
use crate::error::Failure;
use crate::handlers_dir::NAME;
use serde_json::Value;
use windlass_core::life_cycle::State;

pub(super) fn status(context: &Context) -> Result<u8, Failure> {
    let dir = context.data_dir()?;
    let served = Link::to_server(&dir)?.is_some();
    let status: Value = Link::ask(&dir, |server| server.get_json("/api/v1/status"))?;
    if context.json {
        return print::document(&status);
    }
    let mut out = Out::new();
    print::table(&mut out, &rows(&status), None);
    let code = out.finish()?;
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

/// A row for each queue and one for all; a column for closed queues only if there are any.
fn rows(status: &Value) -> Vec<Vec<String>> {
    let header = ["QUEUE"].into_iter().map(str::to_owned).chain(State::ALL.iter().map(|s| s.word().to_uppercase()));
    let row = |name: String, counts: &Value| {
        let counts = State::ALL.iter().map(|state| grouped(count(counts, state.word())));
        std::iter::once(name).chain(counts).collect::<Vec<String>>()
    };
    let mut rows = vec![header.collect()];
    let queues = status.get("queues").and_then(Value::as_object).into_iter().flatten();
    rows.extend(queues.clone().map(|(name, counts)| row(visible(name), counts)));
    rows.push(row("total".into(), status.get("totals").unwrap_or(&Value::Null)));
    let closed = status.get("closed").filter(|closed| closed.as_object().is_some_and(|closed| !closed.is_empty()));
    if let Some(closed) = closed {
        let words = queues.map(|(name, _)| field(closed, name));
        let column = std::iter::once("CLOSED".to_owned()).chain(words).chain([String::new()]);
        rows.iter_mut().zip(column).for_each(|(row, word)| row.push(word));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_each_queue_and_the_total() {
        let mut status = serde_json::json!({
            "queues": { "a\u{1b}": { "ready": 1200, "failed": 1 } }, "totals": { "ready": 1200, "failed": 1 },
        });
        let plain = rows(&status);
        assert_eq!(plain.len(), 3);
        assert_eq!(plain[1], ["a\\u{1b}", "0", "1,200", "0", "0", "0", "0", "1", "0"]);
        assert_eq!(plain[2][0], "total");
        status["closed"] = serde_json::json!({ "a\u{1b}": "paused" });
        let last: Vec<String> = rows(&status).into_iter().map(|row| row[9].clone()).collect();
        assert_eq!(last, ["CLOSED", "paused", ""]);
    }
}
