//! The shapes of schedules.

use crate::engine::event::ScheduleInfo;
use crate::schedule::What;
use crate::when;
use serde::{Deserialize, Serialize};
use windlass_core::job::RunId;

/// A schedule and how it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    pub name: String,
    pub cron: String,
    pub zone: String,
    pub overlap: String,
    pub catch_up: String,
    /// As a person may have changed it.
    pub enabled: bool,
    /// Where it pushes, and what: the data, or the command that lists it.
    pub queue: String,
    pub priority: i8,
    pub data: Option<String>,
    pub from: Option<Vec<String>>,
    /// The coming times, as many as were asked for; none where it is switched off.
    pub next: Vec<String>,
    /// The last nominal time that fired, and the runs that have not ended, with the last one by itself.
    pub fired: Option<String>,
    pub run: Option<String>,
    #[serde(default)]
    pub runs: Vec<String>,
    /// Where the clock was once far ahead: nothing fires until then, or until somebody enables it.
    #[serde(default)]
    pub silent_until: Option<String>,
    /// Why the database refuses what it pushes, while it does: its times wait, and are tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Times that wait for the ends of those runs.
    pub waiting: Vec<String>,
    pub fired_count: u64,
    pub skipped_count: u64,
}

impl Schedule {
    /// With so many of its coming times.
    pub fn new(info: &ScheduleInfo, coming: usize) -> Schedule {
        let ScheduleInfo { schedule, memory, enabled, next, silent_until, error } = info;
        let (data, from) = match &schedule.push.what {
            What::Data(text) => (Some(text.clone()), None),
            What::Lines(command) => {
                let words = command.argv.iter().map(|word| String::from_utf8_lossy(word).into_owned());
                (None, Some(words.collect()))
            }
        };
        let times = std::iter::successors(*next, |time| schedule.cron.next(*time)).take(coming);
        Schedule {
            name: schedule.name.clone(),
            cron: schedule.cron.to_string(),
            zone: schedule.cron.zone_name().to_owned(),
            overlap: schedule.overlap.word().to_owned(),
            catch_up: schedule.catch_up.word().to_owned(),
            enabled: *enabled,
            queue: schedule.push.queue.to_string(),
            priority: schedule.push.priority.value(),
            data,
            from,
            next: times.map(when::rfc3339).collect(),
            fired: memory.fired.map(when::rfc3339),
            run: memory.runs.last().map(RunId::to_string),
            runs: memory.runs.iter().map(RunId::to_string).collect(),
            silent_until: silent_until.map(when::rfc3339),
            error: error.clone(),
            waiting: memory.waiting.iter().copied().map(when::rfc3339).collect(),
            fired_count: memory.fired_count,
            skipped_count: memory.skipped_count,
        }
    }
}

/// `POST /api/v1/schedules/{id}/run`: the run of what was pushed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fired {
    pub run: String,
}
