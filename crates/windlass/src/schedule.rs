//! Schedules as the config names them: at which times, and what is pushed then.
//!
//! `Cron` reads times as cron writes them, on a zone's clock. A fixed time, one minute of one hour, that the clock
//! leaves out in spring comes right after the gap, one that comes twice in autumn comes once; what recurs, as lists
//! and steps of minutes or hours do, skips the gap and comes in both hours. What is made of a time that was missed, or
//! that comes while the last one's work goes on, is core's to decide.

use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, Zoned};
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
    /// Its hour and minute, where there is but one of each.
    fixed: Option<(i8, i8)>,
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
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let cron = Cron { fixed: fixed_time(&text), pattern, zone, text };
        match cron.next(Time(Timestamp::UNIX_EPOCH.as_microsecond())) {
            Some(_) => Ok(cron),
            None => Err(format!("the times {:?} never come", cron.text)),
        }
    }

    /// The first time after a moment.
    pub fn next(&self, after: Time) -> Option<Time> {
        let after = Timestamp::from_microsecond(after.0).ok()?.to_zoned(self.zone.clone());
        let next_after = |after: &Zoned| self.pattern.find_next_occurrence(after, false).ok();
        let next = std::iter::successors(next_after(&after), next_after).find(|found| self.is_one_of_its_own(found))?;
        Some(Time(next.timestamp().as_microsecond()))
    }

    /// What reads the pattern also finds the end of a gap that has nothing to do with a fixed time in the hour before.
    fn is_one_of_its_own(&self, found: &Zoned) -> bool {
        let Some((hour, minute)) = self.fixed.filter(|fixed| *fixed != (found.hour(), found.minute())) else {
            return true;
        };
        let left_out = self.zone.to_ambiguous_timestamp(found.date().at(hour, minute, 0, 0)).offset();
        matches!(left_out, AmbiguousOffset::Gap { .. })
    }

    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("the machine's")
    }
}

/// The hour and the minute of a time that comes once a day at most.
fn fixed_time(text: &str) -> Option<(i8, i8)> {
    if text.starts_with('@') {
        return (!text.eq_ignore_ascii_case("@hourly")).then_some((0, 0));
    }
    let mut fields = text.split(' ').map(|field| field.parse().ok());
    let (minute, hour) = (fields.next()??, fields.next()??);
    Some((hour, minute))
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
    use jiff::civil::DateTime;
    use std::collections::BTreeSet;

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

    /// The minutes from a day before a moment to two days after it, with what the clock on the wall shows.
    fn minutes_around(zone: &TimeZone, moment: Timestamp) -> Vec<(i64, DateTime)> {
        let first = moment.as_second().div_euclid(60) - 24 * 60;
        let shown = |at: i64| (at * 60_000_000, zone.to_datetime(Timestamp::from_second(at * 60).unwrap()));
        (first..first + 3 * 24 * 60).map(shown).collect()
    }

    /// The times of every day at these hours and minutes, found by going through the minutes one by one.
    fn by_minutes(minutes: &[(i64, DateTime)], hours: &[i8], at: &[i8], recurs: bool) -> Vec<i64> {
        if recurs {
            let comes = |(_, shown): &&(i64, DateTime)| hours.contains(&shown.hour()) && at.contains(&shown.minute());
            return minutes.iter().filter(comes).map(|(time, _)| *time).collect();
        }
        let mut days: Vec<_> = minutes.iter().map(|(_, shown)| shown.date()).collect();
        days.dedup();
        let each =
            days.iter().flat_map(|day| hours.iter().flat_map(|hour| at.iter().map(|at| day.at(*hour, *at, 0, 0))));
        // The first minute that is not before it: where the clock leaves it out, the one right after the gap.
        let first = |wanted: DateTime| minutes.iter().find(|(_, shown)| *shown >= wanted).map(|(time, _)| *time);
        let (from, mut all) = (minutes[0].1, BTreeSet::new());
        all.extend(each.filter(|wanted| *wanted >= from).filter_map(first));
        all.into_iter().collect()
    }

    #[test]
    fn times_around_each_change_of_a_clock_are_those_that_a_look_at_every_minute_finds() {
        let (every, all): (Vec<i8>, Vec<i8>) = ((0..24).collect(), (0..60).collect());
        let quarters: &[i8] = &[0, 15, 30, 45];
        let crons: [(&str, &[i8], &[i8], bool); 9] = [
            ("30 2 * * *", &[2], &[30], false),
            ("0,30 2 * * *", &[2], &[0, 30], true),
            ("*/15 2 * * *", &[2], quarters, true),
            ("0 0 * * *", &[0], &[0], false),
            ("30 0 * * *", &[0], &[30], false),
            ("5 0,1,2,3 * * *", &[0, 1, 2, 3], &[5], true),
            ("*/15 * * * *", &every, quarters, true),
            ("45 1 * * *", &[1], &[45], false),
            ("* * * * *", &every, &all, true),
        ];
        let zones = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Australia/Adelaide", "Asia/Beirut"];
        let from: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let changes =
            |zone: &TimeZone| zone.following(from).take(2).map(|change| change.timestamp()).collect::<Vec<_>>();
        for name in zones.into_iter().chain(["Asia/Kolkata"]) {
            let zone = TimeZone::get(name).unwrap();
            let mut moments = changes(&zone);
            moments.push(from);
            for (moment, (text, hours, at, recurs)) in
                moments.iter().flat_map(|m| crons.iter().map(move |cron| (m, cron)))
            {
                let minutes = minutes_around(&zone, *moment);
                let (cron, last) = (Cron::parse(text, zone.clone()).unwrap(), minutes[minutes.len() - 1].0);
                let next = |time: &Time| cron.next(*time).filter(|time| time.0 <= last);
                let told: Vec<i64> =
                    std::iter::successors(next(&Time(minutes[0].0 - 1)), next).map(|time| time.0).collect();
                let readable =
                    |times: &[i64]| times.iter().map(|time| crate::when::rfc3339(Time(*time))).collect::<Vec<_>>();
                let expected = by_minutes(&minutes, hours, at, *recurs);
                assert_eq!(readable(&told), readable(&expected), "{text} in {name} around {moment}");
            }
        }
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
