//! The shapes of remote workers' calls.

use super::Data;
use serde::{Deserialize, Serialize};

/// A worker wants jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Queues, by name or pattern.
    pub queues: Vec<String>,
    #[serde(default = "one")]
    pub most: u32,
    /// How long it waits for the first.
    #[serde(default = "half_a_minute")]
    pub wait_s: u32,
}

fn one() -> u32 {
    1
}

fn half_a_minute() -> u32 {
    30
}

/// The jobs it gets; none where there was none within its time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Claimed {
    pub jobs: Vec<ClaimedJob>,
}

/// One of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimedJob {
    pub id: String,
    /// Speaks for this start of the job and for nothing else.
    pub token: String,
    pub queue: String,
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// How far an earlier start had come, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// The trace that it belongs to, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<super::Trace>,
    /// The application's record that it is about, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<super::Subject>,
    #[serde(flatten)]
    pub data: Data,
    /// A sign of life must come more often than this.
    pub lease_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<f64>,
    pub grace_s: f64,
    pub output_max: u64,
}

/// Signs of life of some starts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    pub tokens: Vec<String>,
    /// The answer waits so long for something to tell.
    #[serde(default)]
    pub wait_s: u32,
}

/// What the worker is to do with each: `go_on`, `cancel`, `time_limit`, `over`, in the order of the tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Signs {
    pub signs: Vec<String>,
}

/// The end of a start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emit: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// Bytes that the job wrote, where not all of them are here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_total: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_total: Option<u64>,
}

/// What a start was taken as.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Taken {
    pub id: String,
    pub outcome: String,
}
