//! The door of a server that is somewhere else: jobs go through its API, in requests of many.
//!
//! Each request is taken whole or not at all. What came before a failure is accepted, and the failure says how much.

use super::Terms;
use crate::api::{self, base64};
use crate::cli::connect::Connection;
use crate::cli::parts;
use crate::cli::print::data_of;
use crate::error::{Failure, Kind};
use crate::when;
use serde_json::{Value, json};
use std::io::Read;
use windlass_core::job::RunId;

/// So much goes in one request: written as JSON it stays below what a server takes.
const JOBS_MOST: usize = 1000;
const BYTES_MOST: usize = 1 << 20;

/// One push through a server's API.
#[derive(Debug)]
pub(super) struct ApiDoor<'t> {
    server: &'t mut Connection,
    terms: &'t Terms,
    pub(super) ids: Vec<String>,
    pub(super) duplicates: u64,
}

impl<'t> ApiDoor<'t> {
    pub(super) fn new(server: &'t mut Connection, terms: &'t Terms) -> ApiDoor<'t> {
        ApiDoor { server, terms, ids: Vec::new(), duplicates: 0 }
    }

    /// Jobs that were stored, those that were there already left out.
    pub(super) fn count(&self) -> u64 {
        self.ids.len() as u64 - self.duplicates
    }

    /// Adds jobs with any bytes: all of them, or none.
    pub(super) fn push_all<D: AsRef<[u8]>>(&mut self, data: &[D]) -> Result<(), Failure> {
        let request: Vec<Value> = data.iter().map(|data| request(self.terms, data.as_ref())).collect();
        let answer: Value = self.server.post_json("/api/v1/jobs?ids=true", &Value::Array(request))?;
        let ids = answer.get("ids").and_then(Value::as_array).into_iter().flatten();
        let ids: Vec<String> = ids.filter_map(Value::as_str).map(str::to_owned).collect();
        if ids.len() != data.len() {
            let text = format!("the server answered {} jobs with {} ids", data.len(), ids.len());
            return Err(Failure::new(Kind::Internal, text));
        }
        self.ids.extend(ids);
        self.duplicates += answer.get("duplicates").and_then(Value::as_array).map_or(0, |found| found.len() as u64);
        Ok(())
    }

    /// Adds what the input gives, one job per part between separators; what came before a bad part is accepted.
    pub(super) fn push_input(&mut self, separator: u8, input: &mut dyn Read) -> Result<(), Failure> {
        let taken = parts::in_whole(separator, input, &mut |whole| self.push_parts(separator, whole));
        taken.map_err(|failure| parts::after(failure, self.count()))
    }

    fn push_parts(&mut self, separator: u8, whole: &[u8]) -> Result<(), Failure> {
        let whole = whole.strip_suffix(&[separator]).unwrap_or(whole);
        let parts = whole.split(|byte| *byte == separator);
        // An empty line is no job, an empty part between NULs is.
        let parts: Vec<&[u8]> = parts.filter(|part| separator != b'\n' || !part.is_empty()).collect();
        let mut rest = &parts[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let mut fits = |part: &&[u8]| {
                bytes += part.len();
                bytes <= BYTES_MOST
            };
            let count = rest.iter().take(JOBS_MOST).take_while(|part| fits(part)).count().max(1);
            self.push_all(&rest[..count])?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// No more jobs will join this run from outside.
    pub(super) fn seal(&mut self, run: RunId) -> Result<(), Failure> {
        self.server.post_empty::<Value>(&format!("/api/v1/runs/{run}/seal")).map(drop)
    }
}

/// Makes a run with these terms; its id is the server's to give.
pub(super) fn open_run(server: &mut Connection, terms: &Terms) -> Result<RunId, Failure> {
    let terms = serde_json::to_value(api::Terms::from(&terms.run))
        .map_err(|e| Failure::new(Kind::Internal, format!("cannot write the terms of the run: {e}")))?;
    let made: Value = server.post_json("/api/v1/runs", &terms)?;
    let id = made.get("id").and_then(Value::as_str).unwrap_or_default();
    id.parse().map_err(|e| Failure::new(Kind::Version, format!("the server made the run {id:?}: {e}")))
}

/// A job as the API takes it.
pub(super) fn request(terms: &Terms, data: &[u8]) -> Value {
    let mut request = json!({
        "queue": terms.envelope.queue.as_str(),
        "priority": terms.envelope.priority.value(),
        "at": terms.envelope.not_before.map(when::rfc3339),
        "run": terms.envelope.run.map(|run| run.to_string()),
        "durability": terms.durability.word(),
    });
    let particulars = serde_json::to_value(api::Particulars::from(terms.envelope.particulars.as_deref()));
    for (name, value) in particulars.iter().filter_map(Value::as_object).flatten() {
        request[name] = value.clone();
    }
    match std::str::from_utf8(data) {
        Ok(text) => request["data"] = text.into(),
        Err(_) => request["data_base64"] = base64::encode(data).into(),
    }
    debug_assert_eq!(data_of(&request, "data").as_deref(), Ok(data));
    request
}
