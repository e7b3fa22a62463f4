//! The lines of an export, which `export` writes and `import` reads: a head, one job a line, an end with their number.
//!
//! ```text
//! {"windlass_export":1,"made":"2026-11-16T00:00:00Z"}
//! {"id":"j-…","queue":"mail","priority":0,"state":"ready","data":"customer-42",…}
//! {"end":1}
//! ```

use super::{AttemptError, Attempts, Data};
use crate::error::{Failure, Kind};
use serde::{Deserialize, Serialize};
use windlass_core::life_cycle::State;

/// The version this program writes and the newest it reads.
pub const VERSION: u32 = 1;
/// The largest import, because it is taken as a whole.
pub const IMPORT_MAX: usize = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub windlass_export: u32,
    pub made: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub end: u64,
}

/// One job. What a newer program of the same version adds is passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub id: String,
    pub queue: String,
    pub state: String,
    #[serde(default)]
    pub priority: i8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "is_none")]
    pub attempts: Option<LineAttempts>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<AttemptError>,
    #[serde(flatten)]
    pub data: Data,
}

/// The numbers of a job; one from the archive has its starts only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LineAttempts {
    pub starts: u32,
    pub failures: u32,
    pub suspicions: u32,
}

impl From<Attempts> for LineAttempts {
    fn from(attempts: Attempts) -> LineAttempts {
        let Attempts { starts, failures, suspicions } = attempts;
        LineAttempts { starts, failures, suspicions }
    }
}

fn is_none(attempts: &Option<LineAttempts>) -> bool {
    attempts.is_none()
}

/// What an import did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Jobs that wait now.
    pub imported: u64,
    /// Jobs that were here already, and were left as they are.
    pub known: u64,
    /// Jobs that had ended, and are not done again.
    pub ended: u64,
    /// Of the imported ones, those whose run is not here.
    pub without_run: u64,
}

/// The jobs of an export, if it is whole.
pub fn read(text: &[u8]) -> Result<Vec<Line>, Failure> {
    let bad = |at: usize, why: String| Failure::new(Kind::BadData, format!("line {at} of the export: {why}"));
    let mut lines = text.split(|byte| *byte == b'\n').enumerate().map(|(at, line)| (at + 1, line));
    let first = lines.next().map(|(_, line)| line).unwrap_or_default();
    let head: Head = serde_json::from_slice(first)
        .map_err(|_| bad(1, "expected {\"windlass_export\":1,…}: this is not an export".into()))?;
    if head.windlass_export > VERSION {
        let text = format!("the export has version {}, this program knows up to {VERSION}", head.windlass_export);
        return Err(Failure::new(Kind::Version, text));
    }
    let mut jobs = Vec::new();
    for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
        if let Ok(End { end }) = serde_json::from_slice(line) {
            let found = jobs.len() as u64;
            return if end == found {
                Ok(jobs)
            } else {
                Err(bad(at, format!("{end} jobs are named, {found} are there")))
            };
        }
        jobs.push(serde_json::from_slice(line).map_err(|e| bad(at, e.to_string()))?);
    }
    Err(Failure::new(Kind::BadData, "the export has no end: it was cut off").hint("export again"))
}

/// Whether a job in this state is still to be done.
pub fn waits(state: State) -> bool {
    match state {
        State::Scheduled | State::Ready | State::Running | State::Retrying | State::Suspended => true,
        State::Succeeded | State::Failed | State::Cancelled => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_that_is_cut_off_or_newer_is_refused() {
        let head = "{\"windlass_export\":1,\"made\":\"x\"}\n";
        let job = "{\"id\":\"j\",\"queue\":\"q\",\"state\":\"ready\",\"data\":\"x\",\"later\":[1]}\n";
        assert_eq!(read(format!("{head}{job}{{\"end\":1}}\n").as_bytes()).unwrap().len(), 1);
        assert_eq!(read(format!("{head}{{\"end\":0}}").as_bytes()).unwrap(), []);
        for (text, kind) in [
            (format!("{head}{job}"), Kind::BadData),
            (format!("{head}{job}{{\"end\":2}}\n"), Kind::BadData),
            (format!("{job}{{\"end\":1}}\n"), Kind::BadData),
            (format!("{head}nonsense\n{{\"end\":1}}\n"), Kind::BadData),
            (String::new(), Kind::BadData),
            (head.replace('1', "2"), Kind::Version),
        ] {
            assert_eq!(read(text.as_bytes()).unwrap_err().kind, kind, "{text}");
        }
    }
}
