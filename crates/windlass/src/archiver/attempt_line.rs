//! One line per finished attempt: who, where, how it ended, how long it waited and ran. Nothing of what it said.

use super::{ArchivedTurn, Entry};
use crate::log::{Level, Line, Log};
use serde_json::Value;
use std::time::Duration;
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::State;
use windlass_core::outcome::{Exit, exit_in};

/// Says what a turn settled; called on the archiver's thread, so that the engine's is not held up.
pub(super) fn say(log: &Log, turn: &ArchivedTurn) {
    turn.each(|entry| {
        let level = level_of(entry.state);
        if log.wants(level) {
            entry.settlement.held.range().for_each(|index| log.put(line(entry, index, level)));
        }
    });
}

fn level_of(state: State) -> Level {
    match state {
        State::Failed => Level::Warn,
        State::Scheduled
        | State::Ready
        | State::Running
        | State::Retrying
        | State::Suspended
        | State::Succeeded
        | State::Cancelled => Level::Info,
    }
}

fn line(entry: &Entry, index: usize, level: Level) -> Line {
    let settlement = &entry.settlement;
    let held = &settlement.held;
    let mut values: Vec<(&'static str, Value)> = vec![
        ("event", "job.finish".into()),
        ("job", held.jobs.id(index).to_string().into()),
        ("queue", entry.queue.as_str().into()),
        ("start", held.start().into()),
        ("outcome", settlement.outcome.into()),
        ("state", entry.state.word().into()),
        ("wait_s", seconds(settlement.started.since(held.admitted))),
        ("run_s", seconds(settlement.finished.since(settlement.started))),
    ];
    let trace = held.jobs.particulars().and_then(|particulars| particulars.trace.as_ref());
    values.extend(trace.map(|trace| ("trace_id", trace.id().into())));
    values.extend(entry.run.map(|run| ("run", run.to_string().into())));
    let (reason, error) = match &settlement.verdict {
        Verdict::Fail { reason, error } => (Some(reason.word()), error.as_str()),
        Verdict::Retry { error, .. } => (None, error.as_str()),
        Verdict::Succeed { .. } | Verdict::Snooze { .. } | Verdict::Return | Verdict::Suspect(_) | Verdict::Cancel => {
            (None, "")
        }
    };
    values.extend(reason.map(|word| ("reason", word.into())));
    values.extend(match exit_in(error) {
        Some(Exit::Code(code)) => Some(("exit", code.into())),
        Some(Exit::Signal(signal)) => Some(("signal", signal.into())),
        None => None,
    });
    Line { level, time: settlement.finished, what: "attempt".into(), values }
}

/// Seconds with milliseconds: what people and tools read alike.
fn seconds(time: Duration) -> Value {
    Value::from((time.as_secs_f64() * 1000.0).round() / 1000.0)
}
