//! The terms of a run in JSON, as they are asked for and shown.

use super::{Data, NewService};
use crate::error::{Failure, Kind};
use crate::when;
use serde::{Deserialize, Serialize};
use windlass_core::job::{Priority, QueueName};
use windlass_core::notify::{Ending, Notify};
use windlass_core::run::terms::{END_DATA_MAX, EndJob, RunTerms};

/// A request for a run; `service` is taken over the Unix socket only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRun {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub service: Option<NewService>,
    /// The terms are those of `Terms`: what is flattened could not refuse what it does not know.
    #[serde(default)]
    pub time_limit: Option<String>,
    #[serde(default)]
    pub job_limit: Option<u64>,
    #[serde(default)]
    pub tolerate: Option<String>,
    #[serde(default)]
    pub end_job: Option<NewEndJob>,
    #[serde(default)]
    pub notify: Vec<String>,
    #[serde(default)]
    pub notify_on: Vec<String>,
}

impl NewRun {
    pub fn terms(&self) -> Terms {
        let NewRun { time_limit, job_limit, tolerate, end_job, notify, notify_on, .. } = self.clone();
        Terms { time_limit, job_limit, tolerate, end_job, notify, notify_on }
    }
}

/// What was agreed on; what is absent has no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// `1h`, `90s`: then everything of it that has not ended is cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<String>,
    /// Jobs beyond so many are not taken in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_limit: Option<u64>,
    /// `5` failures, or `1%`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_job: Option<NewEndJob>,
    /// The channels that are told how it ended, and of which ends: `failed` and `late` where nothing is said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notify_on: Vec<String>,
}

/// The job that announces the end; without data it is told what the run came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewEndJob {
    pub queue: String,
    #[serde(default)]
    pub priority: i64,
    #[serde(flatten)]
    pub data: Data,
}

impl From<&RunTerms> for Terms {
    fn from(terms: &RunTerms) -> Terms {
        let end_job = |end: &EndJob| NewEndJob {
            queue: end.queue.to_string(),
            priority: i64::from(end.priority.value()),
            data: if end.data.is_empty() { Data::default() } else { Data::new(&end.data) },
        };
        let told = |ending: Ending| terms.notify.hears(ending).then(|| ending.word().to_owned());
        Terms {
            time_limit: terms.time_limit.map(when::exact),
            job_limit: terms.job_limit,
            tolerate: terms.tolerate.map(|tolerate| tolerate.to_string()),
            end_job: terms.end_job.as_ref().map(end_job),
            notify: terms.notify.names().map(str::to_owned).collect(),
            notify_on: Ending::ALL.into_iter().filter_map(told).collect(),
        }
    }
}

impl Terms {
    /// What the store takes.
    pub fn checked(&self) -> Result<RunTerms, Failure> {
        let bad = |what: String| Failure::new(Kind::BadData, what);
        let time_limit = self.time_limit.as_deref().map(when::duration).transpose();
        Ok(RunTerms {
            time_limit: time_limit.map_err(|why| bad(format!("time_limit: {why}")))?,
            job_limit: self.job_limit,
            tolerate: self.tolerate.as_deref().map(str::parse).transpose().map_err(bad)?,
            end_job: self.end_job.as_ref().map(NewEndJob::checked).transpose()?,
            notify: Notify::from_words(&self.notify, &self.notify_on).map_err(bad)?,
        })
    }
}

impl NewEndJob {
    fn checked(&self) -> Result<EndJob, Failure> {
        let bad = |what: String| Failure::new(Kind::BadData, format!("end_job: {what}"));
        let queue = QueueName::new(self.queue.as_bytes()).map_err(|e| bad(e.to_string()))?;
        let priority = Priority::new(self.priority).ok_or_else(|| bad("no such priority".into()))?;
        let data = self.data.bytes().unwrap_or_default();
        if data.len() > END_DATA_MAX {
            return Err(bad(format!("its data has {} bytes, expected at most {END_DATA_MAX}", data.len())));
        }
        Ok(EndJob { queue, priority, data })
    }
}
