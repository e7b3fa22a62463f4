//! Schedules as the config names them: at which times, and what is pushed then.
//!
//! `Cron` reads times as cron writes them, on a zone's clock. A fixed time that the clock leaves out in spring comes
//! right after the gap, one that comes twice in autumn comes once; what recurs within the hour skips the gap and
//! comes in both hours. What is made of a time that was missed, or that comes while the last one's work goes on, is
//! core's to decide.

use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::fmt;
use windlass_core::job::{Priority, QueueName};
use windlass_core::policy::{Command, Policy, Service};
use windlass_core::run::terms::RunTerms;
use windlass_core::schedule::{CatchUp, Overlap};
use windlass_core::time::Time;

/// Queues of the commands that list what a schedule pushes: this and the schedule's name.
pub const LISTS: &str = "_schedule.";

/// Times as cron writes them.
#[derive(Clone)]
pub struct Cron {
    pattern: croner::Cron,
    zone: TimeZone,
    text: String,
}

impl Cron {
    pub fn parse(text: &str, zone: TimeZone) -> Result<Cron, String> {
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let pattern = parser.parse(text).map_err(|error| {
            let why = error.to_string();
            format!(
                "cannot read the times {text:?} ({}); expected five fields: MINUTE HOUR DAY MONTH WEEKDAY, or @daily",
                why.trim_end_matches('.').to_lowercase()
            )
        })?;
        let cron = Cron { pattern, zone, text: text.split_whitespace().collect::<Vec<_>>().join(" ") };
        match cron.next(Time(Timestamp::UNIX_EPOCH.as_microsecond())) {
            Some(_) => Ok(cron),
            None => Err(format!("the times {text:?} never come")),
        }
    }

    /// The first time after a moment.
    pub fn next(&self, after: Time) -> Option<Time> {
        let after = Timestamp::from_microsecond(after.0).ok()?.to_zoned(self.zone.clone());
        let next = self.pattern.find_next_occurrence(&after, false).ok()?;
        Some(Time(next.timestamp().as_microsecond()))
    }

    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("the machine's")
    }
}

impl PartialEq for Cron {
    fn eq(&self, other: &Cron) -> bool {
        (&self.text, &self.zone) == (&other.text, &other.zone)
    }
}

impl Eq for Cron {}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({self} {})", self.zone_name())
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A checked schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub name: String,
    pub cron: Cron,
    pub overlap: Overlap,
    pub catch_up: CatchUp,
    pub enabled: bool,
    pub push: Push,
    /// The queue in which a firing begins.
    pub first_queue: QueueName,
    /// Those of the run of each firing.
    pub terms: RunTerms,
}

/// What a schedule pushes when its time comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    pub queue: QueueName,
    pub priority: Priority,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// One job; `{time}` in its data is the nominal time, `{schedule}` the name.
    Data(String),
    /// A job for each line that this command prints; it runs as a job itself, in the same run.
    Lines(Command),
}

impl Schedule {
    /// Where a firing of a schedule begins: with its own job, or with the one that lists them.
    pub fn first_queue(name: &str, push: &Push) -> Result<QueueName, String> {
        match &push.what {
            What::Data(_) => Ok(push.queue.clone()),
            What::Lines(_) => QueueName::new(format!("{LISTS}{name}").as_bytes()).map_err(|e| e.to_string()),
        }
    }

    /// The data of the job that a firing begins with.
    pub fn data(&self, nominal: Time) -> Vec<u8> {
        let time = crate::when::rfc3339(nominal);
        match &self.push.what {
            What::Data(text) => text.replace("{time}", &time).replace("{schedule}", &self.name).into_bytes(),
            What::Lines(_) => time.into_bytes(),
        }
    }

    /// The crew of the command that lists, if there is one: this program reads what it prints and emits it.
    pub fn crew(&self) -> Option<Policy> {
        let What::Lines(list) = &self.push.what else { return None };
        let own = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
        let mut argv: Vec<Vec<u8>> = vec![crate::config::path_bytes(&own), b"emit".to_vec()];
        argv.extend([self.push.queue.as_str(), "--from"].map(|word| word.as_bytes().to_vec()));
        argv.extend(list.argv.iter().cloned());
        let command = Command { argv, ..list.clone() };
        Some(Policy { slots: 1, ..Policy::new(format!("{LISTS}{}", self.name), Service::Command(command)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(cron: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let cron = Cron::parse(cron, TimeZone::get(zone).unwrap()).unwrap();
        let from: Timestamp = from.parse().unwrap();
        let mut at = Time(from.as_microsecond());
        let mut all = Vec::new();
        for _ in 0..count {
            at = cron.next(at).unwrap();
            all.push(crate::when::rfc3339(at));
        }
        all
    }

    #[test]
    fn a_fixed_time_in_the_gap_comes_right_after_it_and_a_doubled_one_once() {
        let spring = times("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 2);
        assert_eq!(spring, ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
        let autumn = times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2);
        assert_eq!(autumn, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    }

    #[test]
    fn what_recurs_skips_the_gap_and_comes_in_both_hours() {
        let spring = times("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:31:00Z", 2);
        assert_eq!(spring, ["2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"]);
        let autumn = times("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", 4);
        assert_eq!(autumn[0], "2026-10-25T00:30:00Z");
        assert_eq!(autumn[3], "2026-10-25T02:00:00Z");
    }

    #[test]
    fn what_never_comes_or_cannot_be_read_is_refused() {
        for text in ["", "* * * *", "61 * * * *", "0 0 31 2 *", "* * * * * *", "every day"] {
            let refused = Cron::parse(text, TimeZone::UTC).unwrap_err();
            assert!(refused.contains("never come") || refused.contains("expected five fields"), "{text:?}: {refused}");
        }
        assert_eq!(times("@daily", "UTC", "2026-11-16T12:00:00Z", 1), ["2026-11-17T00:00:00Z"]);
        assert_eq!(times("0 9 * * mon-fri", "UTC", "2026-11-13T12:00:00Z", 1), ["2026-11-16T09:00:00Z"]);
    }
}
