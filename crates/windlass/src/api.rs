//! The shapes of the HTTP API, shared by the server and its clients: the JSON's field names are these.
//!
//! Ids are text, times are RFC 3339 in UTC, states are the words of the life cycle. Within `v1` fields are only
//! added. This file owns the forms and the way in and out of them; it must not reach the engine or a socket.

use crate::engine::event::{FlightInfo, RunService};
use crate::error::{Failure, Kind};
use crate::runner::progress::Said;
use crate::store::{JobInfo, QueueStats, RunInfo, Taken};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use windlass_core::life_cycle::State;
use windlass_core::policy::Command;
use windlass_core::time::Time;

pub mod base64;
mod change;
pub mod export;
pub mod schedules;
pub mod servers;
pub mod spools;
mod stats;
pub mod steering;
mod terms;
pub mod work;
mod workers;

pub use crate::particulars::{Particulars, Subject, Trace, Unique};
pub use change::{Action, Change, Changed, Move, NewPriority, Operation, OperationResult, OperationStatus};
pub use stats::{Percentiles, Stats, StatsRow};
pub use terms::{NewEndJob, NewRun, Terms};
pub use workers::{StateCounts, Worker, WorkerCounts, WorkerStep, Workers};

/// Jobs laid end to end, the library's own body: `u16` queue length, queue, `i8` priority, `u32` data length, data;
/// little endian, repeated.
pub const RECORDS: &str = "application/x-windlass-records";
pub const JSON: &str = "application/json";
pub const PROBLEM: &str = "application/problem+json";
pub const LINES: &str = "text/plain";
pub const BYTES: &str = "application/octet-stream";
pub const NDJSON: &str = "application/x-ndjson";

/// The most jobs in one request.
pub const JOBS_MAX: usize = 10_000;
/// The largest body of a request.
pub const BODY_MAX: usize = 16 << 20;
/// Answers list all ids up to this many jobs, unless asked otherwise.
pub const IDS_LISTED: usize = 1000;
/// The most items in one page.
pub const PAGE_MAX: usize = 1000;

/// The answer to accepted jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    pub count: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// The ids between the first and the last are neighbours: the same origin, each offset one above the one before.
    pub first: Option<String>,
    pub last: Option<String>,
    pub durability: String,
    /// The only job was not stored: the one whose id is given has its unique key.
    #[serde(default, skip_serializing_if = "is_false")]
    pub duplicate: bool,
    /// The jobs, counted from nought, that were not stored; the ids in their places are of those that have their keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub duplicates: Vec<usize>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A page of something.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    #[serde(default)]
    pub next: Option<String>,
}

/// The three numbers of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    pub starts: u32,
    pub failures: u32,
    pub suspicions: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptError {
    pub start: u32,
    pub at: String,
    pub text: String,
}

/// A live or kept job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: String,
    pub queue: String,
    pub state: String,
    pub priority: i8,
    pub run: Option<String>,
    pub attempts: Attempts,
    pub admitted: String,
    pub not_before: Option<String>,
    pub ended: Option<String>,
    pub reason: Option<String>,
    pub errors: Vec<AttemptError>,
    /// What it says of itself while it runs: `N/M TEXT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Who is at it, while it runs; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Worker>,
    #[serde(flatten)]
    pub particulars: Particulars,
    #[serde(flatten)]
    pub data: Data,
    /// How long the data is; lists show only its beginning.
    pub data_bytes: usize,
    /// Finished attempts, as the archive has them; not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<serde_json::Value>,
}

impl Job {
    /// Adds what it says of itself while it runs.
    #[must_use]
    pub fn saying(self, said: Option<Said>) -> Job {
        match said {
            Some(Said { progress, phase, checkpoint, result, .. }) => {
                Job { progress, phase, checkpoint, result, ..self }
            }
            None => self,
        }
    }

    /// The job with its whole data, or with the beginning of it.
    pub fn new(info: &JobInfo, data_max: usize) -> Job {
        let errors = info.errors.iter();
        Job {
            id: info.id.to_string(),
            queue: info.queue.to_string(),
            state: info.state.word().into(),
            priority: info.priority.value(),
            run: info.run.map(|run| run.to_string()),
            attempts: Attempts {
                starts: info.record.starts,
                failures: info.record.failures,
                suspicions: info.record.suspicions,
            },
            admitted: time_text(info.admitted),
            not_before: info.not_before.map(time_text),
            ended: info.ended.map(time_text),
            reason: info.reason.map(|reason| reason.word().into()),
            errors: errors
                .map(|e| AttemptError { start: e.start, at: time_text(e.at), text: e.text.clone() })
                .collect(),
            progress: None,
            worker: None,
            phase: None,
            checkpoint: None,
            result: None,
            particulars: info.particulars.as_deref().into(),
            data: Data::beginning(&info.data, data_max),
            data_bytes: info.data.len(),
            history: Vec::new(),
        }
    }
}

/// A job's bytes: `data` where they are text, `data_base64` where not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
}

impl Data {
    pub fn new(bytes: &[u8]) -> Data {
        Data::beginning(bytes, usize::MAX)
    }

    fn beginning(bytes: &[u8], max: usize) -> Data {
        let cut = &bytes[..bytes.len().min(max)];
        let text = match std::str::from_utf8(cut) {
            Ok(text) => Some(text),
            // The limit fell inside a character of a text: show the whole characters before it.
            Err(e) if e.error_len().is_none() && cut.len() < bytes.len() => {
                std::str::from_utf8(&cut[..e.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        match text {
            Some(text) => Data { data: Some(text.into()), data_base64: None },
            None => Data { data: None, data_base64: Some(base64::encode(cut)) },
        }
    }

    /// The bytes; nothing if neither form is there or the base64 is none.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match (&self.data, &self.data_base64) {
            (Some(text), None) => Some(text.clone().into_bytes()),
            (None, Some(text)) => base64::decode(text),
            (None, None) | (Some(_), Some(_)) => None,
        }
    }
}

/// How the jobs of a run are served; bytes, because arguments need not be text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewService {
    pub queue: String,
    pub argv_base64: Vec<String>,
    pub directory_base64: String,
    #[serde(default)]
    pub environment_base64: Vec<(String, String)>,
    pub slots: u32,
    pub attempts: u32,
    pub output_max: u64,
}

impl From<&RunService> for NewService {
    fn from(service: &RunService) -> NewService {
        let command = &service.command;
        NewService {
            queue: service.queue.clone(),
            argv_base64: command.argv.iter().map(|word| base64::encode(word)).collect(),
            directory_base64: base64::encode(&command.directory),
            environment_base64: command
                .environment
                .iter()
                .map(|(k, v)| (base64::encode(k), base64::encode(v)))
                .collect(),
            slots: service.slots,
            attempts: service.attempts,
            output_max: service.output_max,
        }
    }
}

impl NewService {
    pub fn to_service(&self) -> Result<RunService, Failure> {
        let bytes = |field: &str, text: &str| {
            let bad = || Failure::new(Kind::BadData, format!("service.{field} is not base64: {text}"));
            base64::decode(text).ok_or_else(bad)
        };
        let argv = self.argv_base64.iter().map(|word| bytes("argv_base64", word)).collect::<Result<Vec<_>, _>>()?;
        let environment = self.environment_base64.iter();
        let environment =
            environment.map(|(k, v)| Ok((bytes("environment_base64", k)?, bytes("environment_base64", v)?)));
        if argv.first().is_none_or(|program| program.is_empty()) {
            return Err(Failure::new(Kind::BadData, "service.argv_base64 names no program"));
        }
        if self.slots == 0 {
            return Err(Failure::new(Kind::BadData, "service.slots is 0, expected at least 1"));
        }
        let command = Command {
            argv,
            directory: bytes("directory_base64", &self.directory_base64)?,
            environment: environment.collect::<Result<Vec<_>, Failure>>()?,
        };
        let all =
            command.argv.iter().chain([&command.directory]).chain(command.environment.iter().flat_map(|(k, v)| [k, v]));
        if all.into_iter().any(|bytes| bytes.contains(&0)) {
            return Err(Failure::new(Kind::BadData, "a NUL byte in the service's command, directory or environment"));
        }
        Ok(RunService {
            queue: self.queue.clone(),
            command,
            slots: self.slots,
            attempts: self.attempts,
            output_max: self.output_max,
        })
    }
}

/// A run and its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub id: String,
    pub name: String,
    pub sealed: bool,
    pub ended: bool,
    pub counts: BTreeMap<String, u64>,
    pub total: u64,
    pub live: u64,
    /// Jobs that were never of it, because their unique key was taken.
    #[serde(default)]
    pub dropped: u64,
    /// Why it was stopped: `time_limit` or `failures`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Of one that has ended: whether everything succeeded, or failed no more than is tolerated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<bool>,
    #[serde(flatten)]
    pub terms: Terms,
    pub taken: TakenText,
    pub created: String,
    pub ended_at: Option<String>,
}

/// How far the input of a run was taken; the hash as 16 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenText {
    pub lines: u64,
    pub hash: String,
}

impl From<&RunInfo> for Run {
    fn from(info: &RunInfo) -> Run {
        Run {
            id: info.id.to_string(),
            name: info.name.clone(),
            sealed: info.counts.sealed,
            ended: info.counts.ended,
            counts: by_state(&info.counts.by_state),
            total: info.counts.total(),
            live: info.counts.live(),
            dropped: info.counts.dropped,
            stopped: info.counts.stopped.map(|why| why.word().into()),
            succeeded: info.counts.ended.then(|| info.terms.succeeded(&info.counts)),
            terms: (&info.terms).into(),
            taken: TakenText { lines: info.taken.lines, hash: hash_text(info.taken.hash) },
            created: time_text(info.created),
            ended_at: info.ended_at.map(time_text),
        }
    }
}

impl Run {
    pub fn taken(&self) -> Option<Taken> {
        Some(Taken { lines: self.taken.lines, hash: hash_from_text(&self.taken.hash)? })
    }

    pub fn count(&self, state: State) -> u64 {
        self.counts.get(state.word()).copied().unwrap_or(0)
    }
}

pub fn hash_text(hash: u64) -> String {
    format!("{hash:016x}")
}

/// Reads what `hash_text` wrote.
pub fn hash_from_text(text: &str) -> Option<u64> {
    let plain = (1..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// `GET /api/v1/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub server: ServerStatus,
    /// Per queue: all states, and `started`.
    pub queues: BTreeMap<String, BTreeMap<String, u64>>,
    /// Queues that start nothing because of a person or the hours: `paused`, `disabled`, `shut`.
    #[serde(default)]
    pub closed: BTreeMap<String, String>,
    pub totals: BTreeMap<String, u64>,
    pub runs: RunsStatus,
    /// By config entry: what keeps its workers from serving.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub troubles: BTreeMap<String, String>,
    /// Per queue: what the inbox brought and the database refuses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub aside: BTreeMap<String, steering::AsideStatus>,
    /// Workers by state; only states that some are in.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub workers: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    pub pid: u32,
    pub version: String,
    pub dir: String,
    pub durability: String,
    /// `serving`, or what keeps it from starting jobs: `quiet`, `paused`, `no_space`, `archive_behind`, `draining`,
    /// `halting`.
    pub condition: String,
    /// How often ready work did not start although nothing held it; the log says of which queue.
    #[serde(default)]
    pub stalemates: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunsStatus {
    pub open: u64,
}

/// A queue's counters by their words.
pub fn queue_counts(stats: &QueueStats) -> BTreeMap<String, u64> {
    let mut counts = by_state(&stats.by_state);
    counts.insert("started".into(), stats.started);
    counts
}

fn by_state(counts: &[u64; State::ALL.len()]) -> BTreeMap<String, u64> {
    State::ALL.iter().map(|state| (state.word().to_owned(), counts[state.index()])).collect()
}

/// One start under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flight {
    pub job: String,
    pub count: u16,
    pub queue: String,
    pub start: u32,
    pub started: String,
    /// The worker that is at it, where one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// That worker's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_state: Option<String>,
    /// Claimed ahead of its slot, and not begun.
    #[serde(default)]
    pub stocked: bool,
}

impl From<&FlightInfo> for Flight {
    fn from(flight: &FlightInfo) -> Flight {
        Flight {
            job: flight.job.to_string(),
            count: flight.count,
            queue: flight.queue.clone(),
            start: flight.start,
            started: time_text(flight.started),
            worker: None,
            worker_state: None,
            stocked: flight.stocked,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    pub failed: u64,
    /// An older server counts them among the failed.
    #[serde(default)]
    pub cancelled: u64,
}

/// How a server is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    pub mode: StopMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    Drain,
    Now,
}

/// One line of a followed run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FollowLine {
    /// The run ended; the last line.
    Ended {
        ended: Box<Run>,
    },
    /// The stream ends here although the run has not; the last line.
    Broken {
        error: Problem,
    },
    Job(Box<FollowedJob>),
}

/// A finished job of a followed run, with everything that it wrote and that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedJob {
    pub job: String,
    pub state: String,
    pub error: String,
    #[serde(flatten)]
    pub data: Data,
    /// Bytes that the job wrote; more than follow where the limit cut the middle out.
    pub stdout_total: u64,
    pub stderr_total: u64,
    pub stdout_base64: String,
    pub stderr_base64: String,
}

/// An error as RFC 9457 has it; `code` is the stable word of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    pub code: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    pub fn new(status: u16, title: &str, failure: &Failure) -> Problem {
        let code = failure.kind.word();
        Problem {
            kind: format!("urn:windlass:problem:{code}"),
            title: title.into(),
            status,
            detail: failure.text.clone(),
            code: code.into(),
            hint: failure.hint.clone(),
        }
    }

    /// As HTTP calls a failure of this kind.
    pub fn of(failure: &Failure) -> Problem {
        let status = failure.kind.http_status();
        let known = hyper::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        Problem::new(status, known.unwrap_or("Error"), failure)
    }

    /// The failure as it was on the other side.
    pub fn into_failure(self) -> Failure {
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == self.code).unwrap_or(Kind::Internal);
        Failure { kind, text: self.detail, hint: self.hint }
    }
}

/// RFC 3339 in UTC.
pub fn time_text(time: Time) -> String {
    match jiff::Timestamp::from_microsecond(time.as_micros()) {
        Ok(stamp) => stamp.to_string(),
        Err(_) if time.as_micros() < 0 => jiff::Timestamp::MIN.to_string(),
        Err(_) => jiff::Timestamp::MAX.to_string(),
    }
}

/// Reads an RFC 3339 time.
pub fn time_from_text(text: &str) -> Result<Time, Failure> {
    let stamp: Result<jiff::Timestamp, _> = text.parse();
    stamp.map(|stamp| Time(stamp.as_microsecond())).map_err(|_| {
        Failure::new(Kind::BadData, format!("expected a time as in RFC 3339 (2030-01-31T12:00:00Z), got: {text}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_text_where_it_is_text() {
        assert_eq!(Data::new("żółw".as_bytes()).data.as_deref(), Some("żółw"));
        assert_eq!(Data::new(&[0xff, 0]).data_base64.as_deref(), Some("/wA="));
        assert_eq!(Data::beginning("aż".as_bytes(), 2).data.as_deref(), Some("a"), "no character is cut in two");
        let both = Data { data: Some("a".into()), data_base64: Some("YQ==".into()) };
        assert_eq!(both.bytes(), None);
    }

    #[test]
    fn times_are_utc_and_come_back() {
        assert_eq!(time_text(Time(1_500_000)), "1970-01-01T00:00:01.5Z");
        assert_eq!(time_from_text("1970-01-01T01:00:01.5+01:00").unwrap(), Time(1_500_000));
        for bad in ["", "tomorrow", "1970-01-01", "1970-01-01T00:00:00"] {
            assert!(time_from_text(bad).is_err(), "{bad}");
        }
        time_text(Time(i64::MAX));
    }

    #[test]
    fn a_hash_is_hexadecimal_only() {
        assert_eq!(hash_from_text(&hash_text(u64::MAX)), Some(u64::MAX));
        assert_eq!(hash_text(10), "000000000000000a");
        for bad in ["", "+a", "-1", "0x1", "00000000000000000"] {
            assert_eq!(hash_from_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_problem_brings_the_failure_over() {
        let failure = Failure::new(Kind::Conflict, "the run is elsewhere").hint("ask again");
        assert_eq!(Problem::new(409, "Conflict", &failure).into_failure(), failure);
    }
}
