//! The particulars of a job in JSON: what most jobs lack, so each field is there only where it has something to say.
//!
//! ```text
//! "parent": "j-…", "subject": {"type": "customer", "id": "42"},
//! "trace": {"parent": "00-…-…-01", "state": "…", "baggage": "…"},
//! "start_by": "2030-01-31T12:00:00Z", "finish_by": "…", "after": ["j-…"],
//! "notify": ["ops"], "notify_on": ["failed", "late"],
//! "unique": {"key": "…" (or "key_base64"; none: the data), "scope": "active", "on_conflict": "ignore"}
//! ```

use crate::api::{base64, time_from_text};
use crate::error::{Failure, Kind};
use crate::when;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use windlass_core::job::JobId;
use windlass_core::notify::Notify;
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<Unique>,
    /// Failed as expired where it has not begun by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_by: Option<String>,
    /// The same where it has not ended by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_by: Option<String>,
    /// Scheduled until all of these have succeeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// The channels that are told how it ended, and of which ends: `failed` and `late` where nothing is said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notify_on: Vec<String>,
}

/// One job at a time with this key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unique {
    /// `None`: the data is the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// `waiting`, `active` or `run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// `ignore`, `replace` or `reject`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_conflict: Option<String>,
}

impl From<core::Unique> for Unique {
    fn from(unique: core::Unique) -> Unique {
        let (key, key_base64) = match unique.key.map(String::from_utf8) {
            None => (None, None),
            Some(Ok(text)) => (Some(text), None),
            Some(Err(bytes)) => (None, Some(base64::encode(bytes.as_bytes()))),
        };
        let (scope, on_conflict) = (unique.scope.word().to_owned(), unique.on_conflict.word().to_owned());
        Unique { key, key_base64, scope: Some(scope), on_conflict: Some(on_conflict) }
    }
}

impl Unique {
    fn checked(self) -> Result<core::Unique, String> {
        let key = match (self.key, self.key_base64) {
            (Some(_), Some(_)) => return Err("both unique.key and unique.key_base64 are given".into()),
            (Some(text), None) => Some(text.into_bytes()),
            (None, Some(text)) => Some(base64::decode(&text).ok_or("unique.key_base64 is not base64")?),
            (None, None) => None,
        };
        let scope = self.scope.map_or(Ok(core::Scope::Active), |word| word.parse())?;
        let on_conflict = self.on_conflict.map_or(Ok(core::OnConflict::Ignore), |word| word.parse())?;
        Ok(core::Unique { scope, on_conflict, key })
    }
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
        let (trace, notify) = (checked.trace.clone(), checked.notify.as_ref());
        Particulars {
            parent: checked.parent.map(|parent| parent.to_string()),
            subject: subject.map(|subject| Subject { kind: subject.kind, id: subject.id }),
            trace: trace.map(Trace::from),
            unique: checked.unique.clone().map(Unique::from),
            start_by: checked.start_by.map(when::rfc3339),
            finish_by: checked.finish_by.map(when::rfc3339),
            notify: notify.iter().flat_map(|notify| notify.names().map(str::to_owned)).collect(),
            notify_on: notify.iter().flat_map(|notify| notify.on.iter().map(|on| on.word().to_owned())).collect(),
            after: checked.after.iter().map(|id| id.to_string()).collect(),
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
        let id = |text: &str| text.parse::<JobId>().map_err(|e| bad(format!("{text:?} is {e}")));
        let time = |text: Option<String>| text.as_deref().map(time_from_text).transpose();
        let (subject, trace) = (self.subject, self.trace);
        let checked = Checked {
            parent: self.parent.as_deref().map(id).transpose()?,
            subject: subject.map(|Subject { kind, id }| core::Subject { kind, id }),
            trace: trace.map(|Trace { parent, state, baggage }| core::Trace { parent, state, baggage }),
            unique: self.unique.map(Unique::checked).transpose().map_err(bad)?,
            start_by: time(self.start_by)?,
            finish_by: time(self.finish_by)?,
            after: self.after.iter().map(|text| id(text)).collect::<Result<_, _>>()?,
            notify: Notify::from_words(&self.notify, &self.notify_on)
                .map(|notify| Some(notify).filter(|notify| !notify.channels.is_empty()))
                .map_err(bad)?,
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
        let told = r#""notify":["ops"],"notify_on":["late"]"#;
        let text = &format!(r#"{{"parent":"j-0000000007-1","subject":{subject},"trace":{trace},{told}}}"#);
        let read: Particulars = serde_json::from_str(text).unwrap();
        let checked = read.clone().checked().unwrap().unwrap();
        assert_eq!(checked.subject.as_ref().unwrap().kind, "customer");
        assert_eq!(Particulars::from(Some(&*checked)), read);
        assert_eq!(&serde_json::to_string(&read).unwrap(), text);
        assert_eq!(serde_json::to_string(&Particulars::from(None)).unwrap(), "{}");
        assert_eq!(Particulars::default().checked().unwrap(), None);
        let (ops, late) = (vec!["ops".to_owned()], vec!["late".to_owned()]);
        for bad in [
            Particulars { parent: Some("r-1".into()), ..Particulars::default() },
            Particulars { notify_on: late, ..Particulars::default() },
            Particulars { notify: [ops.clone(), ops].concat(), ..Particulars::default() },
        ] {
            assert_eq!(bad.checked().unwrap_err().kind, Kind::BadData);
        }
    }
}
