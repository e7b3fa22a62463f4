//! What was agreed on when a run was opened: how long it may take, how large it may grow, how many failures it bears,
//! and what announces its end.
//!
//! This file owns the limits' meaning and their one encoding, for the store and the inbox alike:
//!
//! ```text
//! repeated, tags rising: u8 tag | u16 length | bytes                                             little endian
//! 1 time limit: u64 microseconds   2 job limit: u64   3 tolerated failures: u8 0 jobs, 1 hundredths of a percent, u64
//! 4 end job: i8 priority, u8 length, queue, data
//! 5 notify: u8 ends (1 failed, 2 succeeded, 4 late), then of each channel u8 length, queue
//! ```

use super::RunCounts;
use crate::job::{Priority, QueueName};
use crate::life_cycle::State;
use crate::notify::{Endings, Notify};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The longest data of an end job.
pub const END_DATA_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunTerms {
    /// Then everything of it that has not ended is cancelled.
    pub time_limit: Option<Duration>,
    /// Jobs beyond so many are not taken in.
    pub job_limit: Option<u64>,
    /// With more failures the rest is cancelled; with no more the run counts as one that succeeded.
    pub tolerate: Option<Tolerance>,
    pub end_job: Option<EndJob>,
    /// The channels that are told how it ended.
    pub notify: Notify,
}

/// How many failures a run bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    Jobs(u64),
    /// Of all its jobs, in hundredths of a percent. How many they are is known at the end, or bounded by its limit.
    Share(u64),
}

/// The job that announces the end of a run; it is not of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndJob {
    pub queue: QueueName,
    pub priority: Priority,
    /// Empty: what the run came to, as JSON.
    pub data: Vec<u8>,
}

/// Why a run was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    TimeLimit,
    Failures,
}

impl Stopped {
    pub const ALL: [Stopped; 2] = [Stopped::TimeLimit, Stopped::Failures];

    pub fn word(self) -> &'static str {
        match self {
            Stopped::TimeLimit => "time_limit",
            Stopped::Failures => "failures",
        }
    }

    pub fn sentence(self) -> &'static str {
        match self {
            Stopped::TimeLimit => "the run's time limit was reached",
            Stopped::Failures => "more jobs of the run failed than it tolerates",
        }
    }
}

impl Tolerance {
    fn bears(self, counts: &RunCounts) -> bool {
        let failed = counts.by_state[State::Failed.index()];
        match self {
            Tolerance::Jobs(most) => failed <= most,
            Tolerance::Share(share) => u128::from(failed) * 10_000 <= u128::from(share) * u128::from(counts.total()),
        }
    }

    /// Whether it cannot hold any more, however a run with so many jobs at most goes on. Jobs may emit others until the
    /// last of them has ended, so without a limit a share is known then and not before; but for nought.
    fn is_lost(self, counts: &RunCounts, job_limit: Option<u64>) -> bool {
        let failed = counts.by_state[State::Failed.index()];
        match (self, job_limit) {
            (Tolerance::Jobs(most), _) => failed > most,
            (Tolerance::Share(share), Some(most)) => {
                let jobs = most.max(counts.total());
                u128::from(failed) * 10_000 > u128::from(share) * u128::from(jobs)
            }
            // Of any number of jobs a share of nothing is nothing.
            (Tolerance::Share(0), None) => failed > 0,
            (Tolerance::Share(_), None) => false,
        }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tolerance::Jobs(most) => most.fmt(f),
            Tolerance::Share(share) => write!(f, "{}%", *share as f64 / 100.0),
        }
    }
}

impl FromStr for Tolerance {
    type Err = String;
    fn from_str(text: &str) -> Result<Tolerance, String> {
        let bad = || format!("expected a number of jobs or a share of them, as in 5 or 0.5%, got: {text}");
        match text.strip_suffix('%') {
            None => text.parse().map(Tolerance::Jobs).map_err(|_| bad()),
            Some(share) => {
                let share: f64 = share.trim().parse().map_err(|_| bad())?;
                let right = (0.0..=100.0).contains(&share);
                if right { Ok(Tolerance::Share((share * 100.0).round() as u64)) } else { Err(bad()) }
            }
        }
    }
}

impl RunTerms {
    pub fn is_empty(&self) -> bool {
        *self == RunTerms::default()
    }

    /// How many more jobs a run takes in; `None` is any number.
    pub fn room(&self, counts: &RunCounts) -> Option<u64> {
        if counts.stopped.is_some() {
            return Some(0);
        }
        self.job_limit.map(|most| most.saturating_sub(counts.total()))
    }

    /// Whether a run that goes on has failed too often.
    pub fn fails(&self, counts: &RunCounts) -> bool {
        self.tolerate.is_some_and(|tolerate| tolerate.is_lost(counts, self.job_limit))
    }

    /// Whether a run that has ended came to what was wanted: everything succeeded, or failed no more than is tolerated.
    pub fn succeeded(&self, counts: &RunCounts) -> bool {
        let borne = self.tolerate.unwrap_or(Tolerance::Jobs(0)).bears(counts);
        counts.stopped.is_none() && borne && counts.by_state[State::Cancelled.index()] == 0
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |tag: u8, value: &[u8]| {
            bytes.push(tag);
            bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
            bytes.extend_from_slice(value);
        };
        if let Some(limit) = self.time_limit {
            put(1, &(limit.as_micros() as u64).to_le_bytes());
        }
        if let Some(limit) = self.job_limit {
            put(2, &limit.to_le_bytes());
        }
        if let Some(tolerate) = self.tolerate {
            let (kind, number) = match tolerate {
                Tolerance::Jobs(jobs) => (0, jobs),
                Tolerance::Share(share) => (1, share),
            };
            put(3, &[&[kind], &number.to_le_bytes()[..]].concat());
        }
        if let Some(EndJob { queue, priority, data }) = &self.end_job {
            let queue = queue.as_str().as_bytes();
            put(4, &[&[priority.value() as u8, queue.len() as u8], queue, data].concat());
        }
        if !self.notify.channels.is_empty() {
            let mut value = vec![self.notify.on.bits()];
            for channel in &self.notify.channels {
                value.push(channel.as_str().len() as u8);
                value.extend_from_slice(channel.as_str().as_bytes());
            }
            put(5, &value);
        }
        bytes
    }

    /// Reads a whole encoding; nothing where it is none, or a newer program's.
    pub fn decode(mut bytes: &[u8]) -> Option<RunTerms> {
        let mut terms = RunTerms::default();
        let mut last = 0;
        while let [tag, low, high, rest @ ..] = bytes {
            let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
            if *tag <= last {
                return None;
            }
            (last, bytes) = (*tag, rest);
            let number = |value: &[u8]| value.try_into().ok().map(u64::from_le_bytes);
            match (tag, value) {
                (1, value) => terms.time_limit = Some(Duration::from_micros(number(value)?)),
                (2, value) => terms.job_limit = Some(number(value)?),
                (3, [0, value @ ..]) => terms.tolerate = Some(Tolerance::Jobs(number(value)?)),
                (3, [1, value @ ..]) => terms.tolerate = Some(Tolerance::Share(number(value)?)),
                (4, [priority, length, value @ ..]) => {
                    let (queue, data) = value.split_at_checked(usize::from(*length))?;
                    let priority = Priority::new(i64::from(*priority as i8))?;
                    let data = data.to_vec();
                    terms.end_job = Some(EndJob { queue: QueueName::new(queue).ok()?, priority, data });
                }
                (5, [on, value @ ..]) => {
                    terms.notify = Notify { channels: channels(value)?, on: Endings::from_bits(*on)? };
                }
                _ => return None,
            }
        }
        bytes.is_empty().then_some(terms)
    }
}

fn channels(mut bytes: &[u8]) -> Option<Vec<QueueName>> {
    let mut channels = Vec::new();
    while let [length, rest @ ..] = bytes {
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        channels.push(QueueName::new(name).ok()?);
        bytes = rest;
    }
    (!channels.is_empty()).then_some(channels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(failed: u64, succeeded: u64) -> RunCounts {
        let mut counts = RunCounts { sealed: true, ..RunCounts::default() };
        counts.admit(State::Failed, failed);
        counts.admit(State::Succeeded, succeeded);
        counts
    }

    #[test]
    fn everything_comes_back_and_nothing_else_is_read() {
        let queue = QueueName::new(b"done").unwrap();
        let full = RunTerms {
            time_limit: Some(Duration::from_secs(3600)),
            job_limit: Some(7),
            tolerate: Some(Tolerance::Share(150)),
            end_job: Some(EndJob { queue, priority: Priority::new(-3).unwrap(), data: b"x\0".to_vec() }),
            notify: Notify {
                channels: vec![QueueName::new(b"notify.ops").unwrap(), QueueName::new(b"notify.b").unwrap()],
                on: Endings::from_bits(6).unwrap(),
            },
        };
        for terms in [RunTerms::default(), full.clone()] {
            assert_eq!(RunTerms::decode(&terms.encode()), Some(terms));
        }
        let bytes = full.encode();
        for cut in 1..bytes.len() {
            assert_ne!(RunTerms::decode(&bytes[..cut]), Some(full.clone()), "cut at {cut}");
        }
        for unknown in [&[5, 0, 0][..], &[5, 1, 0, 1], &[5, 3, 0, 8, 1, b'a'], &[5, 3, 0, 1, 2, b'a'], &[6, 0, 0]] {
            assert_eq!(RunTerms::decode(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn failures_are_borne_up_to_the_number_or_the_share() {
        for (text, failed, succeeded, fails) in [
            ("0", 0, 9, false),
            ("0", 1, 9, true),
            ("5", 5, 0, false),
            ("5", 6, 900, true),
            ("1%", 1, 99, false),
            ("1%", 1, 98, true),
            ("0.5%", 1, 199, false),
            ("0%", 0, 0, false),
            ("0%", 1, 9, true),
            ("100%", 9, 0, false),
        ] {
            let terms = RunTerms { tolerate: Some(text.parse().unwrap()), ..RunTerms::default() };
            let counts = counts(failed, succeeded);
            let at_once = fails && (!text.ends_with('%') || text == "0%");
            assert_eq!((terms.fails(&counts), terms.succeeded(&counts)), (at_once, !fails), "{text} {failed}");
        }
        // With a limit on its jobs a share is lost as soon as no more of them could make it hold.
        let limited = RunTerms { tolerate: Some(Tolerance::Share(100)), job_limit: Some(500), ..RunTerms::default() };
        assert_eq!((limited.fails(&counts(5, 0)), limited.fails(&counts(6, 0))), (false, true));
        for bad in ["", "-1", "x", "101%", "%", "5.5"] {
            assert!(bad.parse::<Tolerance>().is_err(), "{bad}");
        }
    }

    #[test]
    fn room_is_what_the_limit_leaves_and_none_once_it_is_stopped() {
        let terms = RunTerms { job_limit: Some(10), ..RunTerms::default() };
        assert_eq!((terms.room(&counts(2, 7)), terms.room(&counts(5, 7))), (Some(1), Some(0)));
        assert_eq!(RunTerms::default().room(&counts(5, 7)), None);
        let stopped = RunCounts { stopped: Some(Stopped::TimeLimit), ..counts(0, 1) };
        assert_eq!(RunTerms::default().room(&stopped), Some(0));
        assert!(!RunTerms::default().succeeded(&stopped));
    }
}
