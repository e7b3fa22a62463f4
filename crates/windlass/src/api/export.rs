//! The lines of an export, which `export` writes and `import` reads: a head, one job a line, an end with their number.
//!
//! ```text
//! {"windlass_export":1,"made":"2026-11-16T00:00:00Z"}
//! {"id":"j-…","queue":"mail","priority":0,"state":"ready","data":"customer-42",…}
//! {"end":1}
//! ```

use super::{AttemptError, Attempts, Data, Particulars, time_from_text};
use crate::error::{Failure, Kind};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read};
use std::sync::Arc;
use windlass_core::job::{DATA_MAX, JobId, Priority, QueueName, RunId};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// The version this program writes and the newest it reads.
pub const VERSION: u32 = 1;
/// The largest import that is taken as a whole.
pub const IMPORT_MAX: usize = 64 << 20;
/// The longest line: the largest data with every byte escaped, and the rest of a job.
const LINE_MAX: u64 = 6 * DATA_MAX as u64 + (1 << 20);

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
    pub particulars: Particulars,
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

impl Imported {
    /// Takes in what another part did.
    pub fn add(&mut self, other: Imported) {
        let Imported { imported, known, ended, without_run } = other;
        self.imported += imported;
        self.known += known;
        self.ended += ended;
        self.without_run += without_run;
    }
}

/// What a line stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A job that is still to be done.
    Waits(Job),
    Ended(JobId),
}

/// A job as it comes in again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    pub queue: QueueName,
    pub priority: Priority,
    pub run: Option<RunId>,
    pub not_before: Option<Time>,
    pub particulars: Option<Arc<windlass_core::particulars::Particulars>>,
    pub data: Vec<u8>,
}

impl Line {
    /// Everything that can be wrong with a line is found here. `resume` takes a suspended job as one that waits.
    pub fn entry(&self, resume: bool) -> Result<Entry, Failure> {
        let bad = |why: String| Failure::new(Kind::BadData, why);
        let id: JobId = self.id.parse().map_err(|e| bad(format!("{e}")))?;
        let state = State::ALL.into_iter().find(|state| state.word() == self.state);
        let state = state.ok_or_else(|| bad(format!("{:?} is not a state", self.state)))?;
        if !waits(state) {
            return Ok(Entry::Ended(id));
        }
        if state == State::Suspended && !resume {
            let hint = "import it as a job that waits with --resume, or leave it out of the export";
            return Err(bad(format!("{id} is suspended, and would start")).hint(hint));
        }
        let queue = QueueName::new(self.queue.as_bytes()).map_err(|e| bad(e.to_string()))?;
        let priority = Priority::new(i64::from(self.priority));
        let priority = priority.ok_or_else(|| bad("the priority is out of range".into()))?;
        let run = self.run.as_deref().map(str::parse::<RunId>).transpose().map_err(|e| bad(format!("{e}")))?;
        let not_before = self.not_before.as_deref().map(time_from_text).transpose()?;
        let data = Data::bytes(&self.data).ok_or_else(|| bad(format!("{id} has no data that can be read")))?;
        if data.len() > DATA_MAX {
            return Err(bad(format!("{id} has {} bytes, expected at most {DATA_MAX}", data.len())));
        }
        let particulars = self.particulars.clone().checked()?;
        Ok(Entry::Waits(Job { id, queue, priority, run, not_before, particulars, data }))
    }
}

/// Reads an export line by line; at its end it knows whether it was whole.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    text: Vec<u8>,
    at: u64,
    jobs: u64,
}

impl<R: BufRead> Reader<R> {
    /// Reads the head.
    pub fn new(from: R) -> Result<Reader<R>, Failure> {
        let mut reader = Reader { from, text: Vec::new(), at: 0, jobs: 0 };
        reader.next_line()?;
        let head: Head = serde_json::from_slice(&reader.text)
            .map_err(|_| reader.bad("expected {\"windlass_export\":1,…}: this is not an export"))?;
        if head.windlass_export > VERSION {
            let text = format!("the export has version {}, this program knows up to {VERSION}", head.windlass_export);
            return Err(Failure::new(Kind::Version, text));
        }
        Ok(reader)
    }

    /// The next job; none behind the last one, if all are there.
    pub fn next_job(&mut self) -> Result<Option<Line>, Failure> {
        while self.next_line()? {
            if self.text.is_empty() {
                continue;
            }
            if let Ok(End { end }) = serde_json::from_slice(&self.text) {
                let found = self.jobs;
                let whole = end == found;
                return if whole {
                    Ok(None)
                } else {
                    Err(self.bad(format!("{end} jobs are named, {found} are there")))
                };
            }
            self.jobs += 1;
            return serde_json::from_slice(&self.text).map(Some).map_err(|e| self.bad(e));
        }
        Err(Failure::new(Kind::BadData, "the export has no end: it was cut off").hint("export again"))
    }

    /// What is wrong with the line that was read last.
    pub fn bad(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(Kind::BadData, format!("line {} of the export: {why}", self.at))
    }

    /// The line that was read last, as it stands there.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    fn next_line(&mut self) -> Result<bool, Failure> {
        self.text.clear();
        self.at += 1;
        let read = (&mut self.from).take(LINE_MAX).read_until(b'\n', &mut self.text);
        let read = read.map_err(|e| Failure::io("cannot read the export", &e))?;
        if self.text.pop_if(|last| *last == b'\n').is_none() && read as u64 == LINE_MAX {
            return Err(self.bad(format!("it is longer than {LINE_MAX} bytes")));
        }
        Ok(read > 0)
    }
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

    /// The jobs of an export, if it is whole.
    fn read(text: &[u8]) -> Result<Vec<Line>, Failure> {
        let mut reader = Reader::new(text)?;
        let mut lines = Vec::new();
        while let Some(line) = reader.next_job()? {
            lines.push(line);
        }
        Ok(lines)
    }

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
