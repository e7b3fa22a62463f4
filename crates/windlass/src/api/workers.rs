//! The shapes of the account of all workers.

use crate::runner::progress::Board;
use crate::supervisor::{Shown, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use windlass_core::supervisor::{Counts, Due, TRANSITIONS, WorkerState};
use windlass_core::time::Steady;

/// `GET /api/v1/workers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workers {
    pub items: Vec<Worker>,
    pub counts: WorkerCounts,
    /// The last changes, oldest first; as many as were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<WorkerStep>,
}

/// Where a worker is, and since when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// Its number; those of workers that are gone are given again.
    pub worker: u32,
    /// `launcher`, `process`, `batch`, `kept`, `call`, `remote` or `thread`.
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub table: String,
    pub state: String,
    /// How long it has been in this state, in seconds.
    pub for_s: f64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The job it is at, or the first of those that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(default)]
    pub jobs: u32,
}

/// What is counted since the server started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerCounts {
    pub states: BTreeMap<String, StateCounts>,
    /// By state and event: `working finish`.
    pub transitions: BTreeMap<String, u64>,
    /// Events that the table does not allow; each is in the log.
    pub forbidden: u64,
    /// Deadlines that were missed: `start_overdue`, `stop_overdue`.
    pub overdue: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateCounts {
    /// Workers that are in it.
    pub now: u32,
    /// Time that those who left it had spent in it, in seconds.
    pub spent_s: f64,
}

/// A change of a worker's state, or of the phase that it names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStep {
    pub worker: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub table: String,
    pub ago_s: f64,
    /// What happened; nothing where it only named a phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    pub state: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
}

impl Worker {
    /// A process says what it is at in its control file, which is read now.
    pub fn new(shown: &Shown, board: &Board) -> Worker {
        let about = &shown.about;
        let asks = shown.phase.is_empty() && shown.state.may_hold_a_job();
        let said = about.job.filter(|_| asks).and_then(|job| board.of(job)?.phase);
        Worker {
            worker: shown.number.0,
            kind: about.kind.word().to_owned(),
            table: about.policy.as_ref().map(|policy| policy.pattern.clone()).unwrap_or_default(),
            state: shown.state.word().to_owned(),
            for_s: shown.since.as_secs_f64(),
            phase: said.unwrap_or_else(|| shown.phase.clone()),
            pid: about.pid,
            job: about.job.map(|job| job.to_string()),
            jobs: about.jobs,
        }
    }
}

impl From<&Counts> for WorkerCounts {
    fn from(counts: &Counts) -> WorkerCounts {
        let of = |state: &WorkerState| {
            let (now, spent_s) = (counts.in_state(*state), counts.spent[*state as usize].as_secs_f64());
            (state.word().to_owned(), StateCounts { now, spent_s })
        };
        let rows = TRANSITIONS.iter().zip(counts.transitions).filter(|(_, count)| *count > 0);
        let overdue = Due::ALL.iter().zip(counts.overdue);
        WorkerCounts {
            states: WorkerState::ALL.iter().map(of).collect(),
            transitions: rows.map(|((from, event, _), count)| (format!("{from} {event}"), count)).collect(),
            forbidden: counts.forbidden,
            overdue: overdue.map(|(due, count)| (due.word().to_owned(), count)).collect(),
        }
    }
}

impl WorkerStep {
    pub fn new(step: &Step, now: Steady) -> WorkerStep {
        WorkerStep {
            worker: step.number.0,
            table: step.policy.as_ref().map(|policy| policy.pattern.clone()).unwrap_or_default(),
            ago_s: now.since(step.at).as_secs_f64(),
            event: step.event.map(|event| event.word().to_owned()),
            state: step.state.word().to_owned(),
            phase: step.phase.clone(),
        }
    }
}
