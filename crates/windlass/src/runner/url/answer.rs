//! From an answer to outcomes: the status speaks of a single job, the body of many. `docs/runners.md` is the contract.
//!
//! Bodies are words or objects, a line or an array element for each job, or the list of failures that existing batch
//! handlers give (`batchItemFailures`). What a status and a word mean is core's table.

use super::call::Answer;
use crate::runner::command::reading::last_line;
use crate::runner::reply::{self, Emits};
use crate::runner::{Output, Stream};
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;
use windlass_core::job::JobId;
use windlass_core::outcome::{Outcome, Word, from_status, status_is_for_all};
use windlass_core::policy::{Reply, Url};

/// So much of an answer is heard, and so much more for each job of a batch.
const BODY_MOST: usize = 1 << 20;
const REPLY_MOST: usize = 4096;
/// So much of an answer is kept with the job.
const OUTPUT_MOST: usize = 64 << 10;

/// A job of the call and how it ended.
pub(super) type End = (u32, Outcome, Emits);

/// How the jobs of a call ended.
#[derive(Debug)]
pub(super) enum Ends {
    /// Nothing is known of any.
    None,
    /// All of them in the same way.
    All(Outcome),
    /// Each, by its place in the call.
    Each(Vec<(usize, Outcome, Emits)>),
}

/// What an answer says.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) ends: Ends,
    pub(super) output: Output,
    /// It may be the fault of one of the jobs: all are to be called again, in halves.
    pub(super) halves: bool,
}

pub(super) fn body_most(url: &Url, jobs: usize) -> usize {
    if url.size > 1 { BODY_MOST.max(jobs * REPLY_MOST) } else { BODY_MOST }
}

/// Reads the answer to a call with `count` jobs.
pub(super) fn read(url: &Url, count: usize, id: &dyn Fn(usize) -> JobId, answer: Answer, limit: Duration) -> Read {
    let of_all = |outcome| Read { ends: Ends::All(outcome), output: Output::default(), halves: false };
    let split = || Read { ends: Ends::None, output: Output::default(), halves: true };
    let (status, after, body, json, cut) = match answer {
        Answer::Unreached(error) => return of_all(Outcome::RetryLater { after: None, error }),
        Answer::Broken(_) | Answer::TimedOut if count > 1 => return split(),
        Answer::Broken(error) => return of_all(Outcome::Failed { error }),
        Answer::TimedOut => return of_all(Outcome::TimedOut { limit }),
        Answer::Whole { status, retry_after, body, json, cut, .. } => (status, retry_after, body, json, cut),
    };
    let outcome = from_status(status, after);
    let well = matches!(outcome, Outcome::Succeeded { .. });
    let output = output(&body);
    if !well && count > 1 && !status_is_for_all(status) {
        return split();
    }
    let speaks = well && url.size <= 1 && json && !cut && says_what_became(&body);
    if !speaks && (url.size <= 1 || !well) {
        return Read { ends: Ends::All(with_words(outcome, &body)), output, halves: false };
    }
    if url.reply == Reply::Exit || body.trim_ascii().is_empty() {
        return Read { ends: Ends::All(outcome), output, halves: false };
    }
    let ends = match cut {
        false => replies(&body, count, id),
        true => Err(format!("the answer has more than {} bytes for {count} jobs", body.len())),
    };
    match ends {
        Ok(ends) => {
            // What one job's call gave is that job's; of many nobody could tell whose it is.
            let output = if speaks { output } else { Output::default() };
            Read { ends: Ends::Each(ends), output, halves: false }
        }
        Err(error) => Read { ends: Ends::All(Outcome::Failed { error }), output, halves: false },
    }
}

/// An object with one of our words in `status` is a reply, as of a batch. Any other JSON is the service's own business.
fn says_what_became(body: &[u8]) -> bool {
    let object: Option<Value> = serde_json::from_slice(body).ok().filter(Value::is_object);
    let status = object.as_ref().and_then(|object| object.get("status")).and_then(Value::as_str);
    status.is_some_and(|status| Word::from_text(status).is_some())
}

/// Adds the answer's own words to what its status says.
fn with_words(outcome: Outcome, body: &[u8]) -> Outcome {
    let Some(line) = last_line(body) else { return outcome };
    match outcome {
        Outcome::Succeeded { .. } => Outcome::Succeeded { message: line },
        Outcome::RetryLater { after, error } => Outcome::RetryLater { after, error: format!("{error}: {line}") },
        Outcome::FailedForGood { error } => Outcome::FailedForGood { error: format!("{error}: {line}") },
        Outcome::Failed { error } => Outcome::Failed { error: format!("{error}: {line}") },
        Outcome::Snoozed { .. }
        | Outcome::Crashed { .. }
        | Outcome::TimedOut { .. }
        | Outcome::Interrupted
        | Outcome::Cancelled
        | Outcome::Lost
        | Outcome::Moved { .. }
        | Outcome::NotMoved { .. } => outcome,
    }
}

fn output(body: &[u8]) -> Output {
    let head = body[..body.len().min(OUTPUT_MOST)].to_vec();
    Output { stdout: Stream { head, file: None, total: body.len() as u64 }, stderr: Stream::default() }
}

/// One outcome for each job; an error is why the answer says nothing of any.
fn replies(body: &[u8], count: usize, id: &dyn Fn(usize) -> JobId) -> Result<Vec<(usize, Outcome, Emits)>, String> {
    let body = body.trim_ascii();
    let said: Vec<_> = match body.first() {
        Some(b'[') => {
            let list: Vec<Value> = serde_json::from_slice(body).map_err(|e| format!("the answer is no JSON: {e}"))?;
            let element = |value: &Value| match value {
                Value::String(word) => reply::read(word.as_bytes()),
                other => reply::read(other.to_string().as_bytes()),
            };
            list.iter().map(element).collect()
        }
        Some(b'{') if let Ok(Value::Object(object)) = serde_json::from_slice(body) => {
            if let Some(failures) = object.get("batchItemFailures") {
                return partial(failures, count, id);
            }
            if object.is_empty() {
                return partial(&Value::Null, count, id);
            }
            vec![reply::read(body)]
        }
        _ => body.split(|b| *b == b'\n').map(|line| reply::read(line.trim_ascii())).collect(),
    };
    let (ends, believed) = reply::allot(said, count, id);
    let silent = believed.err().unwrap_or_else(|| "the answer has no reply for this job".into());
    let whole = |(at, end): (usize, Option<(Outcome, Emits)>)| {
        let (outcome, emitted) = end.unwrap_or_else(|| (Outcome::Failed { error: silent.clone() }, Emits::new()));
        (at, outcome, emitted)
    };
    Ok(ends.into_iter().enumerate().map(whole).collect())
}

/// The list of those that failed; all others are done. A list that names somebody else cannot be believed.
fn partial(
    failures: &Value,
    count: usize,
    id: &dyn Fn(usize) -> JobId,
) -> Result<Vec<(usize, Outcome, Emits)>, String> {
    let mut ends: Vec<_> =
        (0..count).map(|at| (at, Outcome::Succeeded { message: String::new() }, Emits::new())).collect();
    let failures = match failures {
        Value::Null => return Ok(ends),
        Value::Array(failures) => failures,
        _ => return Err("`batchItemFailures` is no array".into()),
    };
    let by_id: HashMap<JobId, usize> = (0..count).map(|at| (id(at), at)).collect();
    for failure in failures {
        let named = failure.get("itemIdentifier").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let at = named.and_then(|id: JobId| by_id.get(&id).copied());
        let at = at.ok_or("`batchItemFailures` names an item that was not sent, so the answer is not believed")?;
        ends[at].1 = Outcome::Failed { error: "the answer has it in `batchItemFailures`".into() };
    }
    Ok(ends)
}
