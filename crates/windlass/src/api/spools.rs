//! The shapes of what is told of directories of documents, to people at `windlass spool status` and over the API.

use crate::spool::lease::Life;
use crate::spool::status::Status;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A directory that a server shows: a queue of documents, or queues that belong together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spool {
    pub directory: String,
    pub stages: Vec<SpoolStage>,
    /// Until the last of them is through; none where one of them stands still.
    pub left_s: Option<f64>,
    /// Why it could not be looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One queue of documents. Times are those of one document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpoolStage {
    pub stage: String,
    pub path: String,
    /// The names of the stages that it feeds.
    pub to: Vec<String>,
    /// Nothing more will come.
    pub closed: bool,
    /// `ready` and `failed` together.
    pub waiting: u64,
    pub ready: u64,
    /// Wait for another try.
    pub failed: u64,
    pub working: u64,
    /// Of those, the ones of drivers of other programs.
    pub unleased: u64,
    pub writing: u64,
    /// Were given up, and are kept.
    pub aside: u64,
    pub drivers: u64,
    pub dead: u64,
    /// How many were ever worked off.
    pub documents: u64,
    pub work_s: Option<f64>,
    pub wait_s: Option<f64>,
    pub block_s: Option<f64>,
    pub overhead_s: Option<f64>,
    pub per_hour: f64,
    pub left_s: Option<f64>,
    /// There are more than were counted.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub at_least: bool,
}

impl Spool {
    pub fn new(directory: String, status: &Status) -> Spool {
        let left_s = status.whole_left().map(|left| left.as_secs_f64());
        Spool { directory, stages: SpoolStage::all(status), left_s, error: None }
    }
}

impl SpoolStage {
    pub fn all(status: &Status) -> Vec<SpoolStage> {
        (0..status.stages.len()).map(|at| SpoolStage::new(status, at)).collect()
    }

    fn new(status: &Status, at: usize) -> SpoolStage {
        let stage = &status.stages[at];
        let times = stage.times();
        let each = |time: Duration| (times.documents > 0).then(|| time.as_secs_f64() / times.documents as f64);
        SpoolStage {
            stage: stage.name(),
            path: stage.path.to_string_lossy().into_owned(),
            to: status.to[at].iter().map(|to| status.stages[*to].name()).collect(),
            closed: stage.closed,
            waiting: stage.waiting(),
            ready: stage.ready,
            failed: stage.failed,
            working: stage.working,
            unleased: stage.unleased,
            writing: stage.writing,
            aside: stage.aside,
            drivers: stage.count(Life::Alive) + stage.count(Life::Unknown),
            dead: stage.count(Life::Dead),
            documents: times.documents,
            work_s: each(times.work),
            wait_s: each(times.wait),
            block_s: each(times.block),
            overhead_s: each(times.overhead),
            per_hour: stage.pace().achieved,
            left_s: status.left[at].map(|left| left.as_secs_f64()),
            at_least: stage.at_least,
        }
    }
}
