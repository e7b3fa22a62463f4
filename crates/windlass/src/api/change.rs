//! The shapes of changes that people make to jobs, and of what watchers are told.

use super::{Data, Job, time_text};
use crate::clock;
use crate::engine::event::{self, OperationInfo, Report};
use crate::store::JobInfo;
use serde::{Deserialize, Serialize};
use windlass_core::life_cycle::State;

/// What came of a change to one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    pub id: String,
    /// `done`; `already`: it was so before; `running`: it is being stopped and is changed when its processes are proven
    /// dead.
    pub result: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// The same change to every job that a selector names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    pub action: Action,
    /// For the action `priority`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i8>,
    /// Which jobs: a selector, or ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
    /// Refuse unless exactly so many jobs match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<u64>,
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Retry,
    Cancel,
    Suspend,
    Resume,
    Priority,
    Delete,
}

/// The account of an operation, and of a dry run the first few jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationResult {
    #[serde(flatten)]
    pub report: Report,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sample: Vec<Job>,
}

/// Waiting jobs that are to go to another server: those of queues, those that a selector means, or those with ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
    /// The other server: `http://HOST:PORT`.
    pub to: String,
    /// The file with its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// The file that says where it listens now, for one whose address changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_file: Option<String>,
}

/// An operation under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationStatus {
    pub number: u64,
    pub action: String,
    pub selector: Option<String>,
    #[serde(flatten)]
    pub report: Report,
}

impl From<&OperationInfo> for OperationStatus {
    fn from(info: &OperationInfo) -> OperationStatus {
        let OperationInfo { number, action, selector, report } = info.clone();
        OperationStatus { number, action, selector, report }
    }
}

/// The new priority of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPriority {
    pub priority: i8,
}

/// A change of a job, as watchers are told of it: the end of a start, its beginning, or what a person did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub job: String,
    pub queue: String,
    pub state: String,
    pub priority: i8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The outcome's word; `amended` where a person changed the job.
    pub outcome: String,
    pub start: u32,
    pub at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_s: Option<f64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    #[serde(flatten)]
    pub data: Data,
}

/// So much of a job's data is told with a change.
const CHANGE_DATA: usize = 200;

impl From<&event::Change> for Change {
    fn from(change: &event::Change) -> Change {
        Change {
            job: change.id.to_string(),
            queue: change.queue.to_string(),
            state: change.state.word().into(),
            priority: change.priority.value(),
            run: change.run.map(|run| run.to_string()),
            outcome: change.outcome.into(),
            start: change.start,
            at: time_text(change.finished),
            run_s: (change.state != State::Running).then(|| change.finished.since(change.started).as_secs_f64()),
            error: change.error.clone(),
            data: Data::beginning(&change.data, CHANGE_DATA),
        }
    }
}

impl Change {
    pub fn amended(info: &JobInfo, state: State) -> Change {
        Change {
            job: info.id.to_string(),
            queue: info.queue.to_string(),
            state: state.word().into(),
            priority: info.priority.value(),
            run: info.run.map(|run| run.to_string()),
            outcome: "amended".into(),
            start: info.record.starts,
            at: time_text(clock::now()),
            run_s: None,
            error: String::new(),
            data: Data::beginning(&info.data, CHANGE_DATA),
        }
    }
}
