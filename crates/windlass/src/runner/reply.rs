//! Reads what a job's process says of it: reply lines, control lines, emitted lines. `docs/runners.md` is the contract.
//!
//! This file owns the syntax of what comes back; core has the table from words to outcomes. Nothing that a process
//! writes is believed beyond what is read here, and it must not decide what becomes of a job without a reply.

use crate::api::base64;
use crate::memcached::Words;
use crate::sabotage::{self, Sabotage};
use crate::when;
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;
use windlass_core::job::{DATA_MAX, JobId, QueueName};
use windlass_core::outcome::{Outcome, Word, from_word};
use windlass_core::policy::Policy;

/// The most bytes of a message, an error or a phase that are kept.
const TEXT_MAX: usize = 4096;

/// Jobs that one job emitted, as it named them; without a queue they go to the next stages of its pipeline.
pub(super) type Emits = Vec<(Option<QueueName>, Vec<u8>)>;

/// One line of an emit file: the job that it names, the queue and the data.
pub(super) type EmitLine = (Option<JobId>, Option<QueueName>, Vec<u8>);

/// The queues that these jobs go to: a stage where its pipeline has one of that name, and all next stages where none is
/// named. An error is why the job that emitted them fails.
pub(super) fn place(emits: Emits, policy: &Policy) -> Result<Vec<(QueueName, Vec<u8>)>, String> {
    let to = policy.flow.as_ref().map(|flow| &flow.to[..]).unwrap_or_default();
    let mut placed = Vec::with_capacity(emits.len());
    for (queue, data) in emits {
        let stage = |name: &QueueName| policy.flow.as_ref()?.stage_named(name.as_str().as_bytes());
        match queue {
            Some(queue) => placed.push((stage(&queue).unwrap_or(queue), data)),
            None if to.is_empty() => {
                let text = String::from_utf8_lossy(&data);
                let shown = shown(&text);
                return Err(format!("an emitted line names no queue: {shown:?}; expected QUEUE<TAB>DATA"));
            }
            None => placed.extend(to.iter().map(|queue| (queue.clone(), data.clone()))),
        }
    }
    Ok(placed)
}

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// The job it is about; without one it is about the next in order.
    pub(super) id: Option<JobId>,
    pub(super) outcome: Outcome,
    pub(super) emitted: Emits,
}

/// A line as it was read; an error is the sentence that its job fails with, and the job where it names one.
pub(super) type Line = Result<Reply, (Option<JobId>, String)>;

/// What the replies to some jobs say of each; nothing where none spoke of it.
pub(super) type Allotted = Vec<Option<(Outcome, Emits)>>;

/// Gives each reply to its job: to the one it names, else to the next in order; the first word of each job counts. With
/// more replies in order than jobs nobody can say whose they are, and none of those counts: that is the error.
pub(super) fn allot(lines: Vec<Line>, count: usize, id: &dyn Fn(usize) -> JobId) -> (Allotted, Result<(), String>) {
    let names = |line: &Line| match line {
        Ok(reply) => reply.id,
        Err((id, _)) => *id,
    };
    let in_order = lines.iter().filter(|line| names(line).is_none()).count();
    let believed = in_order <= count || sabotage::on(Sabotage::SurplusBelieved);
    let by_id: HashMap<JobId, usize> = match in_order == lines.len() {
        true => HashMap::new(),
        false => (0..count).map(|at| (id(at), at)).collect(),
    };
    let mut said: Allotted = (0..count).map(|_| None).collect();
    let mut next = 0..count;
    for line in lines {
        let at = match names(&line) {
            Some(id) => by_id.get(&id).copied(),
            None => next.next().filter(|_| believed),
        };
        let Some(end) = at.map(|at| &mut said[at]).filter(|end| end.is_none()) else { continue };
        *end = Some(match line {
            Ok(reply) => (reply.outcome, reply.emitted),
            Err((_, error)) => (Outcome::Failed { error }, Emits::new()),
        });
    }
    let surplus = || format!("it gave {in_order} replies without an id to {count} jobs, so none of them counts");
    (said, if believed { Ok(()) } else { Err(surplus()) })
}

/// Reads one line, without its newline.
pub(super) fn read(line: &[u8]) -> Line {
    if line == b"ok" {
        let outcome = Outcome::Succeeded { message: String::new() };
        return Ok(Reply { id: None, outcome, emitted: Vec::new() });
    }
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.first() == Some(&b'{') {
        return read_object(line);
    }
    let text = clipped(&String::from_utf8_lossy(line));
    let (id, rest) = match text.strip_prefix('@').and_then(|named| named.split_once(' ')) {
        Some((id, rest)) => match id.parse() {
            Ok(id) => (Some(id), rest),
            Err(_) => return Err((None, format!("the reply names no job: {:?}", shown(&text)))),
        },
        None => (None, text.as_str()),
    };
    let (word, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let outcome = Word::from_text(word).and_then(|word| said(word, rest.trim()));
    match outcome {
        Some(outcome) => Ok(Reply { id, outcome, emitted: Vec::new() }),
        None => {
            let expected = "ok, retry, fail, again or snooze, or a JSON object with `status`";
            Err((id, format!("the reply is {:?}, expected {expected}", shown(&text))))
        }
    }
}

/// A word with what stands behind it: a time for those that take one, else text.
fn said(word: Word, rest: &str) -> Option<Outcome> {
    match word {
        Word::Ok | Word::Retry | Word::Fail => Some(from_word(word, rest.to_owned(), None)),
        Word::Again if rest.is_empty() => Some(from_word(word, String::new(), None)),
        Word::Again | Word::Snooze => Some(from_word(word, String::new(), Some(when::duration(rest).ok()?))),
    }
}

fn read_object(line: &[u8]) -> Line {
    let object: Value =
        serde_json::from_slice(line).map_err(|e| (None, format!("the reply is no JSON object: {e}")))?;
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let id = match text("id").map(str::parse) {
        None => None,
        Some(Ok(id)) => Some(id),
        Some(Err(_)) => return Err((None, "the reply names no job in `id`".into())),
    };
    let refuse = |why: String| (id, why);
    let status = text("status").unwrap_or_default();
    let word = Word::from_text(status)
        .ok_or_else(|| refuse(format!("the reply has status {status:?}, expected ok, retry, fail, again or snooze")))?;
    let after = match object.get("after") {
        None | Some(Value::Null) => None,
        Some(Value::Number(seconds)) => seconds.as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok()),
        Some(other) => other.as_str().and_then(|text| when::duration(text).ok()),
    };
    if object.get("after").is_some_and(|after| !after.is_null()) && after.is_none() {
        return Err(refuse(
            "the reply has an `after` that is no time, expected seconds or a text such as \"5m\"".into(),
        ));
    }
    let words = text("message").or(text("error")).or(text("result")).unwrap_or_default();
    let emitted = match object.get("emit") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list.iter().map(read_emitted).collect::<Result<_, _>>().map_err(refuse)?,
        Some(_) => return Err(refuse("the reply has an `emit` that is no array".into())),
    };
    Ok(Reply { id, outcome: from_word(word, clipped(words), after), emitted })
}

/// `{"queue": …, "data": …}`; `data64` holds what is not text.
fn read_emitted(emitted: &Value) -> Result<(Option<QueueName>, Vec<u8>), String> {
    let text = |key: &str| emitted.get(key).and_then(Value::as_str);
    let queue = match emitted.get("queue") {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) => Some(name.as_bytes()),
        Some(_) => return Err("an emitted job has a `queue` that is no text".into()),
    };
    let data = match (emitted.get("data"), text("data64")) {
        (Some(Value::String(text)), None) => text.as_bytes().to_vec(),
        (Some(other), None) => other.to_string().into_bytes(),
        (None, Some(coded)) => base64::decode(coded).ok_or("an emitted job has data64 that is no base64")?,
        (None, None) => Vec::new(),
        (Some(_), Some(_)) => return Err("an emitted job has `data` and `data64`, expected one of them".into()),
    };
    checked(queue, data)
}

fn checked(queue: Option<&[u8]>, data: Vec<u8>) -> Result<(Option<QueueName>, Vec<u8>), String> {
    let queue = queue.map(QueueName::new).transpose().map_err(|e| format!("an emitted job has a bad queue: {e}"))?;
    match data.len() > DATA_MAX {
        true => Err(format!("an emitted job has {} bytes of data, expected at most {DATA_MAX}", data.len())),
        false => Ok((queue, data)),
    }
}

/// The lines of an emit file: `QUEUE<TAB>DATA`, or in a pipeline `DATA`, with `@ID<TAB>` in front where jobs share a
/// process; or a JSON object with `queue`, `data` or `data64`, and `job`. An error is why none of it is believed.
pub(super) fn read_emit_file(bytes: &[u8]) -> Result<Vec<EmitLine>, String> {
    let mut all = Vec::new();
    if bytes.last().is_some_and(|last| *last != b'\n') {
        return Err("the last line of what it emitted is not ended by a newline".into());
    }
    for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        let (id, (queue, data)) = match line.split(|b| *b == b'\t').next() {
            Some(first) if first.len() == line.len() && line[0] == b'{' => {
                let object: Value = serde_json::from_slice(line).map_err(|e| format!("an emitted line: {e}"))?;
                let id = object.get("job").and_then(Value::as_str).map(str::parse::<JobId>).transpose();
                (id.map_err(|_| "an emitted line names no job in `job`")?, read_emitted(&object)?)
            }
            Some(first) if first.len() == line.len() => (None, checked(None, line.to_vec())?),
            Some([b'@', id @ ..]) => {
                let id = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
                let id: JobId = id.ok_or("an emitted line names no job behind @")?;
                let rest = &line[line.iter().position(|b| *b == b'\t').map_or(0, |tab| tab + 1)..];
                (Some(id), plain(rest)?)
            }
            _ => (None, plain(line)?),
        };
        all.push((id, queue, data));
    }
    Ok(all)
}

fn plain(line: &[u8]) -> Result<(Option<QueueName>, Vec<u8>), String> {
    match line.iter().position(|b| *b == b'\t') {
        Some(tab) => checked(Some(&line[..tab]), line[tab + 1..].to_vec()),
        None => checked(None, line.to_vec()),
    }
}

/// What a job has said in control lines, the last word of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// `N/M TEXT`, as it was written.
    pub progress: Option<String>,
    pub phase: Option<String>,
    pub checkpoint: Option<String>,
    pub result: Option<String>,
    /// How its attempt is to be taken when it ends by itself.
    pub(super) wish: Option<Outcome>,
    /// More time, in all.
    pub(crate) extend: Duration,
    /// So much time from when it was said, if there is not more left.
    pub(super) at_least: Option<Duration>,
    /// So many lines may be unanswered, says a kept worker.
    pub(super) in_flight: Option<u32>,
    /// It lives: its time limit counts from here.
    pub(super) heartbeat: bool,
    /// It goes when it has done what it has in hand, says a kept worker.
    pub(super) stopping: bool,
}

/// A control line without the job that it names: `@ID LINE`.
pub(super) fn addressed(line: &[u8]) -> (Option<JobId>, &[u8]) {
    let named = line.strip_prefix(b"@").and_then(|named| {
        let space = memchr::memchr(b' ', named)?;
        let id: JobId = std::str::from_utf8(&named[..space]).ok()?.parse().ok()?;
        Some((id, &named[space + 1..]))
    });
    named.map_or((None, line), |(id, rest)| (Some(id), rest))
}

impl Said {
    /// What is said of one of several jobs that share a file.
    pub(super) fn read_of(bytes: &[u8], job: JobId) -> Said {
        let mut said = Said::default();
        let lines = bytes.split(|b| *b == b'\n').map(addressed);
        lines.filter(|(id, _)| *id == Some(job)).for_each(|(_, line)| said.hear(line));
        said
    }

    pub(super) fn read(bytes: &[u8]) -> Said {
        let mut said = Said::default();
        bytes.split(|b| *b == b'\n').for_each(|line| said.hear(line));
        said
    }

    /// What of it is kept where others look.
    pub(crate) fn words(&self) -> Words {
        Words { progress: self.progress.clone(), phase: self.phase.clone() }
    }

    /// Takes one control line; what it does not know it does not hear. Both the words of `docs/runners.md` and those
    /// of the `sd_notify` protocol are known.
    pub(super) fn hear(&mut self, line: &[u8]) {
        let text = clipped(&String::from_utf8_lossy(line));
        let text = text.trim();
        let (word, rest) = text.split_once([' ', '=']).unwrap_or((text, ""));
        let rest = rest.trim();
        match word {
            "progress" => self.progress = Some(rest.to_owned()),
            "phase" | "STATUS" => self.phase = Some(rest.to_owned()),
            // It becomes a variable, which has no room for a NUL.
            "checkpoint" if !rest.contains('\0') => self.checkpoint = Some(rest.to_owned()),
            "result" => self.result = Some(rest.to_owned()),
            "extended" => self.extend = self.extend.max(when::duration(rest).unwrap_or_default()),
            "extend" => self.extend = self.extend.saturating_add(when::duration(rest).unwrap_or_default()),
            "EXTEND_TIMEOUT_USEC" => {
                self.at_least = rest.parse().ok().map(Duration::from_micros);
            }
            "in_flight" => self.in_flight = rest.parse().ok().filter(|window| *window > 0),
            "alive" | "WATCHDOG" => self.heartbeat = true,
            "STOPPING" => self.stopping = rest == "1",
            "again" | "snooze" | "fail" => {
                let wish = Word::from_text(word).and_then(|word| said(word, rest));
                self.wish = wish.or(self.wish.take());
            }
            _ => {}
        }
    }
}

fn clipped(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX)].to_owned()
}

/// The beginning of a text, for a sentence.
fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(60)]
}

#[cfg(test)]
mod tests;
