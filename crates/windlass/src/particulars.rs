//! The particulars of a job in JSON: what most jobs lack, so each field is there only where it has something to say.
//!
//! ```text
//! "parent": "j-…", "subject": {"type": "customer", "id": "42"},
//! "trace": {"parent": "00-…-…-01", "state": "…", "baggage": "…"}
//! ```

use crate::error::{Failure, Kind};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use windlass_core::particulars::{self as core, Particulars as Checked};

/// The fields, beside those that every job has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Particulars {
    /// The job that emitted it, or that its pusher named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
}

/// The application's record that the job is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    #[serde(rename = "type")]
    pub kind: String,
    pub id: String,
}

/// The trace that the job belongs to, in the words of its headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    pub parent: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub baggage: String,
}

/// The names of a trace's parts, as headers and as variables.
pub(crate) const TRACE_HEADERS: [&str; 3] = ["traceparent", "tracestate", "baggage"];
pub(crate) const TRACE_VARIABLES: [&str; 3] = ["TRACEPARENT", "TRACESTATE", "BAGGAGE"];

/// The trace that this process was started in: `TRACEPARENT`, `TRACESTATE` and `BAGGAGE` of its environment. A parent
/// that is none is as if it were not there.
pub fn trace_of_environment() -> Option<core::Trace> {
    let [parent, state, baggage] = TRACE_VARIABLES.map(|name| std::env::var(name).unwrap_or_default());
    core::Trace::heard(&parent, &state, &baggage)
}

/// The parts of a trace that say something, each with its place among the names.
pub(crate) fn parts(trace: &core::Trace) -> impl Iterator<Item = (usize, &str)> {
    let parts = [&trace.parent, &trace.state, &trace.baggage].into_iter().map(String::as_str).enumerate();
    parts.filter(|(_, text)| !text.is_empty())
}

impl From<core::Trace> for Trace {
    fn from(trace: core::Trace) -> Trace {
        Trace { parent: trace.parent, state: trace.state, baggage: trace.baggage }
    }
}

impl From<Option<&Checked>> for Particulars {
    fn from(checked: Option<&Checked>) -> Particulars {
        let Some(checked) = checked else { return Particulars::default() };
        let subject = checked.subject.clone();
        let trace = checked.trace.clone();
        Particulars {
            parent: checked.parent.map(|parent| parent.to_string()),
            subject: subject.map(|subject| Subject { kind: subject.kind, id: subject.id }),
            trace: trace.map(Trace::from),
        }
    }
}

impl Particulars {
    /// What the store takes in; none where nothing is said.
    pub fn checked(self) -> Result<Option<Arc<Checked>>, Failure> {
        if self == Particulars::default() {
            return Ok(None);
        }
        let bad = |what: String| Failure::new(Kind::BadData, what);
        let id = |text: &str| text.parse().map_err(|e| bad(format!("the parent {text:?} is {e}")));
        let (subject, trace) = (self.subject, self.trace);
        let checked = Checked {
            parent: self.parent.as_deref().map(id).transpose()?,
            subject: subject.map(|Subject { kind, id }| core::Subject { kind, id }),
            trace: trace.map(|Trace { parent, state, baggage }| core::Trace { parent, state, baggage }),
            ..Checked::default()
        };
        checked.check().map_err(|e| bad(e.to_string()))?;
        Ok(Some(Arc::new(checked)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_comes_back_and_what_is_not_is_absent() {
        let trace = r#"{"parent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#;
        let subject = r#"{"type":"customer","id":"42"}"#;
        let text = &format!(r#"{{"parent":"j-0000000007-1","subject":{subject},"trace":{trace}}}"#);
        let read: Particulars = serde_json::from_str(text).unwrap();
        let checked = read.clone().checked().unwrap().unwrap();
        assert_eq!(checked.subject.as_ref().unwrap().kind, "customer");
        assert_eq!(Particulars::from(Some(&*checked)), read);
        assert_eq!(&serde_json::to_string(&read).unwrap(), text);
        assert_eq!(serde_json::to_string(&Particulars::from(None)).unwrap(), "{}");
        assert_eq!(Particulars::default().checked().unwrap(), None);
        let bad = Particulars { parent: Some("r-1".into()), ..Particulars::default() };
        assert_eq!(bad.checked().unwrap_err().kind, Kind::BadData);
    }
}
