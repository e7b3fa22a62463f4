//! What the returned value of a script means for its job: the table of `docs/runners.md`.
//!
//! Nothing is done, a job or a list of jobs is to be submitted, the job itself is to be run again, and anything else is
//! what came of it. It must not run anything of the script.

use super::json;
use super::offered::{Emitted, time_of};
use mlua::{MultiValue, Table, Value};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use windlass_core::job::DATA_MAX;

/// The most of a message that is told; the archive keeps no more.
const MESSAGE_MAX: usize = 4096;

/// What becomes of a job.
#[derive(Debug)]
pub(super) enum Verdict {
    Done {
        message: String,
    },
    /// Once more, at no charge.
    Again {
        after: Option<Duration>,
    },
    Retry {
        error: String,
        after: Option<Duration>,
    },
    Fail {
        error: String,
    },
}

/// A verdict and the jobs that go with it if it is a success.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) verdict: Verdict,
    /// Each as it stands in the reply.
    pub(super) emitted: Vec<String>,
}

impl From<Verdict> for Reply {
    fn from(verdict: Verdict) -> Reply {
        Reply { verdict, emitted: Vec::new() }
    }
}

impl Reply {
    /// The line, without its newline.
    pub(super) fn lay(&self) -> Vec<u8> {
        let (status, key, words, after) = match &self.verdict {
            Verdict::Done { message } => ("ok", "message", message.as_str(), None),
            Verdict::Again { after } => ("again", "message", "", *after),
            Verdict::Retry { error, after } => ("retry", "error", error.as_str(), *after),
            Verdict::Fail { error } => ("fail", "error", error.as_str(), None),
        };
        let words = serde_json::Value::from(&words[..words.floor_char_boundary(MESSAGE_MAX)]);
        let after = after.map(|after| format!(",\"after\":{}", after.as_secs_f64())).unwrap_or_default();
        let emitted = match &self.verdict {
            Verdict::Done { .. } if !self.emitted.is_empty() => format!(",\"emit\":[{}]", self.emitted.join(",")),
            _ => String::new(),
        };
        format!("{{\"status\":\"{status}\",\"{key}\":{words}{after}{emitted}}}").into_bytes()
    }
}

/// What these values mean; `job` is the argument of the call.
pub(super) fn verdict(mut values: MultiValue, job: &Table, emitted: &Rc<RefCell<Emitted>>) -> Verdict {
    let first = values.pop_front().unwrap_or(Value::Nil);
    let second = values.pop_front().unwrap_or(Value::Nil);
    let done = |message: String| Verdict::Done { message };
    let read = match (&first, &second) {
        (Value::Nil, Value::Nil) => Ok(done(String::new())),
        // As functions of Lua tell that they failed.
        (Value::Nil | Value::Boolean(false), Value::String(error)) => {
            return Verdict::Retry { error: error.to_string_lossy(), after: None };
        }
        (Value::Table(table), Value::Nil) if table == job => Ok(Verdict::Again { after: None }),
        (Value::Table(table), after) if table == job => {
            time_of(after).map(|after| Verdict::Again { after: Some(after) })
        }
        (Value::Table(table), _) => match submit(table, &mut emitted.borrow_mut()) {
            Ok(true) => Ok(done(String::new())),
            Ok(false) => json::beginning(&first, MESSAGE_MAX).map(done),
            Err(error) => Err(error),
        },
        (Value::String(text), _) => match std::str::from_utf8(&text.as_bytes()) {
            Ok(text) => Ok(done(text[..text.floor_char_boundary(MESSAGE_MAX)].to_owned())),
            Err(_) => Err("a text that is not UTF-8".into()),
        },
        _ => json::beginning(&first, MESSAGE_MAX).map(done),
    };
    read.unwrap_or_else(|why| Verdict::Retry {
        error: format!("what the script returned cannot be told: {why}"),
        after: None,
    })
}

/// Takes the jobs of a returned table; false where it is no job and no list of jobs.
fn submit(table: &Table, emitted: &mut Emitted) -> Result<bool, String> {
    let field = |table: &Table, key: &str| table.raw_get::<Value>(key).map_err(|e| e.to_string());
    if field(table, "queue")? != Value::Nil {
        submit_one(table, emitted)?;
        return Ok(true);
    }
    let is_job = |value: &Value| match value {
        Value::Table(job) => field(job, "queue").is_ok_and(|queue| queue != Value::Nil),
        _ => false,
    };
    let first: Value = table.raw_get(1).map_err(|e| e.to_string())?;
    if !is_job(&first) {
        return Ok(table.is_empty());
    }
    for at in 1..=table.raw_len() {
        let job: Value = table.raw_get(at).map_err(|e| e.to_string())?;
        match &job {
            Value::Table(job) => submit_one(job, emitted).map_err(|why| format!("job {at} of the list: {why}"))?,
            other => return Err(format!("job {at} of the list is a {}", other.type_name())),
        }
    }
    Ok(true)
}

fn submit_one(job: &Table, emitted: &mut Emitted) -> Result<(), String> {
    let (mut queue, mut data) = (None, Value::Nil);
    for pair in job.pairs::<Value, Value>() {
        let (key, value) = pair.map_err(|e| e.to_string())?;
        match key.as_string().map(|key| key.to_string_lossy()).as_deref() {
            Some("queue") => queue = value.as_string().map(|queue| queue.as_bytes().to_vec()),
            Some("data") => data = value,
            _ => return Err("a new job has a key that is neither `queue` nor `data`".into()),
        }
    }
    let queue = queue.ok_or("a new job has a `queue` that is no text")?;
    emitted.add(&queue, &data_of(&data)?)
}

/// The bytes that a value is as the data of a job: text as it is, a table as JSON.
pub(super) fn data_of(value: &Value) -> Result<Vec<u8>, String> {
    let data = match value {
        Value::Nil => Vec::new(),
        Value::String(text) => text.as_bytes().to_vec(),
        other => json::encode(other, DATA_MAX)?.into_bytes(),
    };
    match data.len() > DATA_MAX {
        true => Err(format!("a new job has {} bytes of data, expected at most {DATA_MAX}", data.len())),
        false => Ok(data),
    }
}
