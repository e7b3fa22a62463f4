//! The shapes of the statistics.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `GET /api/v1/stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    pub by: String,
    pub since: String,
    pub until: String,
    /// The share of the time since its start that the engine was at work.
    #[serde(default)]
    pub busy: f64,
    pub rows: Vec<StatsRow>,
    pub total: StatsRow,
}

/// What ended, of one queue, priority, state or hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatsRow {
    pub key: String,
    /// Finished starts; the next four are what became of them.
    pub attempts: u64,
    pub succeeded: u64,
    pub failed: u64,
    pub cancelled: u64,
    /// Went back to be tried again.
    pub again: u64,
    /// Removed by a person; not among the attempts.
    pub deleted: u64,
    /// Given to another server; not among the attempts.
    #[serde(default)]
    pub moved: u64,
    pub per_minute: f64,
    /// From admission to the start, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<Percentiles>,
    /// From the start to the end, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_s: Option<Percentiles>,
    /// Jobs that have not ended, by state; only where the rows are queues.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub waiting: BTreeMap<String, u64>,
    /// For how long ready jobs were held since the server's start, in seconds, by the code that `why` has for what held
    /// them; only where the rows are queues.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held_s: BTreeMap<String, f64>,
}

/// At most 7 % above the exact value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}
