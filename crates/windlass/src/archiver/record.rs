//! One archived attempt as it is shown: the audit line.
//!
//! This file owns the words of its JSON form. It must not read files.

use super::frame::{Attempts, StreamBytes};
use crate::particulars;
use serde_json::{Map, Value, json};
use windlass_core::job::{JobId, Priority, RunId};
use windlass_core::life_cycle::State;
use windlass_core::particulars::Particulars;
use windlass_core::time::Time;

/// What became of one start of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    pub id: JobId,
    pub queue: String,
    pub run: Option<RunId>,
    pub priority: Priority,
    pub start: u32,
    pub outcome: String,
    /// The state that it led to.
    pub state: State,
    pub admitted: Time,
    pub started: Time,
    pub finished: Time,
    /// Why it failed for good, in one word; else empty.
    pub reason: String,
    /// The job's own completion message; often empty.
    pub message: String,
    /// What went wrong; empty where nothing did.
    pub error: String,
    /// `None` where bodies are not archived. A listing has only the beginning.
    pub data: Option<Vec<u8>>,
    /// How long the data is.
    pub data_length: u64,
    pub stdout: Kept,
    pub stderr: Kept,
    pub particulars: Option<Particulars>,
}

/// One output stream of an attempt as the archive has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// All of a small output; else the beginning, or nothing where it lies in the file.
    pub head: Vec<u8>,
    /// The name of its file under the data directory's `output/`.
    pub file: Option<String>,
    /// How much the job wrote.
    pub total: u64,
}

/// How much of data and output a record takes along.
#[derive(Clone, Copy, Debug)]
pub(super) enum Extent {
    Whole,
    Beginning(usize),
}

impl Extent {
    fn of(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Extent::Whole => bytes.to_vec(),
            Extent::Beginning(most) => bytes[..bytes.len().min(most)].to_vec(),
        }
    }
}

impl AttemptRecord {
    /// The records of the wanted positions of a frame, in order.
    pub(super) fn of_frame(
        attempts: &Attempts<'_>,
        wanted: impl Fn(usize) -> bool,
        extent: Extent,
    ) -> Vec<AttemptRecord> {
        let mut records = Vec::new();
        let mut from = 0;
        for index in 0..attempts.head.offsets.len() {
            let length = attempts.lengths.as_ref().map_or(0, |lengths| lengths[index] as usize);
            if wanted(index) {
                records.push(AttemptRecord::new(attempts, index, &attempts.data[from..from + length], extent));
            }
            from += length;
        }
        records
    }

    fn new(attempts: &Attempts<'_>, index: usize, data: &[u8], extent: Extent) -> AttemptRecord {
        let head = &attempts.head;
        let (message, error) = match attempts.note_is_error {
            true => ("", attempts.note),
            false => (attempts.note, ""),
        };
        AttemptRecord {
            id: JobId { origin: head.origin, offset: head.offsets[index] },
            queue: head.queue.to_owned(),
            run: head.run,
            priority: head.priority,
            start: head.start,
            outcome: head.outcome.to_owned(),
            state: head.state,
            admitted: head.admitted,
            started: head.started,
            finished: head.finished,
            reason: attempts.reason.to_owned(),
            message: message.to_owned(),
            error: error.to_owned(),
            data: attempts.lengths.as_ref().map(|_| extent.of(data)),
            data_length: data.len() as u64,
            stdout: kept(&attempts.stdout, extent),
            stderr: kept(&attempts.stderr, extent),
            particulars: particulars_of(attempts, index),
        }
    }

    /// The audit line: what is absent has no key.
    pub fn to_json(&self) -> Value {
        let mut line = Map::new();
        let mut put = |key: &str, value: Value| line.insert(key.to_owned(), value);
        put("id", json!(self.id.to_string()));
        put("queue", json!(self.queue));
        if let Some(run) = self.run {
            put("run", json!(run.to_string()));
        }
        put("priority", json!(self.priority.value()));
        put("start", json!(self.start));
        put("outcome", json!(self.outcome));
        put("state", json!(self.state.word()));
        put("admitted", time(self.admitted));
        put("started", time(self.started));
        put("finished", time(self.finished));
        put("wait_s", json!(self.started.since(self.admitted).as_secs_f64()));
        put("run_s", json!(self.finished.since(self.started).as_secs_f64()));
        for (key, text) in [("reason", &self.reason), ("message", &self.message), ("error", &self.error)] {
            if !text.is_empty() {
                put(key, json!(text));
            }
        }
        let particulars = serde_json::to_value(particulars::Particulars::from(self.particulars.as_ref()));
        for (name, value) in particulars.iter().filter_map(Value::as_object).flatten() {
            put(name, value.clone());
        }
        if let Some(data) = &self.data {
            match std::str::from_utf8(data) {
                Ok(text) => put("data", json!(text)),
                Err(_) => put("data_base64", json!(base64(data))),
            };
            if (data.len() as u64) < self.data_length {
                put("data_bytes", json!(self.data_length));
            }
        }
        for (key, stream) in [("stdout_bytes", &self.stdout), ("stderr_bytes", &self.stderr)] {
            if stream.total > 0 {
                put(key, json!(stream.total));
            }
        }
        Value::Object(line)
    }
}

/// What the job had besides, the job it came from among it.
fn particulars_of(attempts: &Attempts<'_>, index: usize) -> Option<Particulars> {
    match &attempts.parents {
        None => attempts.particulars.clone(),
        Some(parents) => {
            let shared = attempts.particulars.clone().unwrap_or_default();
            Some(Particulars { parent: Some(parents[index]), ..shared })
        }
    }
}

fn kept(stream: &StreamBytes<'_>, extent: Extent) -> Kept {
    let file = (!stream.file.is_empty()).then(|| stream.file.to_owned());
    Kept { head: extent.of(stream.head), file, total: stream.total }
}

/// RFC 3339 in UTC; a time that no calendar has is given as its number.
fn time(time: Time) -> Value {
    match jiff::Timestamp::from_microsecond(time.as_micros()) {
        Ok(timestamp) => json!(timestamp.to_string()),
        Err(_) => json!(time.as_micros()),
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().chain([&0, &0]).take(3).fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        for place in 0..4 {
            match place <= three.len() {
                true => text.push(DIGITS[(bits >> (18 - 6 * place) & 63) as usize] as char),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_pads_as_the_rfc_shows() {
        let examples = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (plain, coded) in examples {
            assert_eq!(super::base64(plain.as_bytes()), coded);
        }
        assert_eq!(super::base64(&[0xff, 0xfe, 0x00]), "//4A");
    }
}
