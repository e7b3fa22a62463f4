//! How many jobs a crew has claimed ahead: as many as its slots can end while the engine turns twice.
//!
//! A slot that becomes free during a turn stands idle until the next one has been committed. For long jobs that is
//! nothing; for short ones it would be most of the time. It must not look at a clock: it is told how long things took.

use super::{Planned, Scheduler};
use crate::job::LaneKind;
use crate::policy::Service;
use std::time::Duration;

/// No slot has more than this claimed ahead.
pub const STOCK_PER_SLOT_MAX: u32 = 64;
/// Jobs that take longer than this many turns lose next to nothing by waiting for one.
const TURNS: u32 = 8;
/// Each lot costs a turn, which takes time from the jobs; so a lot of short ones lasts this long at least.
const LOT: Duration = Duration::from_millis(20);
/// A new value counts for one part in this many.
const INERTIA: u32 = 8;

/// How long something takes lately; nothing is known at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace(Option<Duration>);

impl Pace {
    pub fn took(&mut self, time: Duration) {
        self.took_each(time, 1);
    }

    /// So many took this long on average: a value of many counts for as many, so that the first of them are forgotten
    /// as soon as there are better ones.
    pub fn took_each(&mut self, time: Duration, count: u64) {
        let weight = u32::try_from(count).unwrap_or(INERTIA).clamp(1, INERTIA);
        self.0 = Some(match self.0 {
            None => time,
            Some(lately) => (lately * (INERTIA - weight) + time * weight) / INERTIA,
        });
    }

    /// How many jobs at this pace one slot ends in two turns or in a `LOT`, whichever is longer: what is claimed for it
    /// together. One where nothing is known, and where jobs are so long that a turn is nothing to them.
    pub fn at_once(self, turns: Pace, most: u32) -> u32 {
        let (Some(job), Some(turn)) = (self.0, turns.0) else { return 1 };
        if job > turn * TURNS {
            return 1;
        }
        let in_a_lot = (turn * 2).max(LOT).as_nanos().div_ceil(job.as_nanos().max(1));
        u32::try_from(in_a_lot).unwrap_or(most).clamp(1, most)
    }

    /// What a crew of so many slots has claimed ahead when its jobs go at this pace and turns at that.
    pub fn stock(self, turns: Pace, slots: u32) -> u32 {
        let (Some(job), Some(turn)) = (self.0, turns.0) else { return 0 };
        if job > turn * TURNS {
            return 0;
        }
        let in_two_turns = (turn * 2).as_micros().div_ceil(job.as_micros().max(1));
        u32::try_from(in_two_turns).unwrap_or(STOCK_PER_SLOT_MAX).min(STOCK_PER_SLOT_MAX).saturating_mul(slots)
    }
}

impl Scheduler {
    /// How many of the first plans may share a flight: jobs of one crew that are alone in their queues, as many as
    /// would go together if they were of one queue. None where the first may not, because its queue is told apart from
    /// others, by a process, slots, a rate or destinations of its own, or because its job may be one of many that wait.
    pub fn together(&self, planned: &[Planned]) -> usize {
        let Some((number, crew)) = planned.first().and_then(|first| Some((first.crew, self.crews.get(&first.crew)?)))
        else {
            return 0;
        };
        let policy = &crew.policy;
        let kept = matches!(&policy.service, Service::Worker(worker) if !worker.command.names_queue());
        if !kept || policy.rate_key.is_some() || policy.queue_rate().is_some() {
            return 0;
        }
        let lonely = |next: &&Planned| {
            let queue = next.lane.queue;
            next.crew == number
                && next.most == 1
                && next.lane.kind == LaneKind::Fresh
                && self.waiting(queue) == 0
                && !self.caps.contains_key(&queue)
        };
        planned.iter().take(crew.at_once as usize).take_while(lonely).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_jobs_are_claimed_ahead_and_long_ones_are_not() {
        let pace = |micros| Pace(Some(Duration::from_micros(micros)));
        for (job, turn, slots, stock) in [
            (500, 1000, 2, 8),
            (1000, 1000, 2, 4),
            (1001, 1000, 2, 4),
            (3000, 1000, 4, 4),
            (8000, 1000, 4, 4),
            (8001, 1000, 4, 0),
            (1, 1000, 3, 192),
            (0, 1000, 1, 64),
            (0, 0, 1, 0),
        ] {
            assert_eq!(pace(job).stock(pace(turn), slots), stock, "{job} {turn}");
        }
        assert_eq!(Pace::default().stock(pace(1000), 4), 0, "nothing is known of the jobs yet");
    }

    #[test]
    fn a_lot_lasts_two_turns_or_a_moment() {
        let pace = |micros| Pace(Some(Duration::from_micros(micros)));
        for (job, turn, at_once) in [
            (10, 1000, 2000),
            (1000, 1000, 20),
            (1000, 30_000, 60),
            (8001, 1000, 1),
            (8000, 1000, 3),
            (0, 1000, 5000),
            (1, 1000, 5000),
        ] {
            assert_eq!(pace(job).at_once(pace(turn), 5000), at_once, "{job} {turn}");
        }
        assert_eq!(Pace::default().at_once(pace(1000), 5000), 1, "nothing is known of the jobs yet");
    }

    #[test]
    fn one_odd_value_does_not_turn_the_pace() {
        let mut pace = Pace::default();
        (0..20).for_each(|_| pace.took(Duration::from_millis(1)));
        pace.took(Duration::from_millis(9));
        assert_eq!(pace, Pace(Some(Duration::from_millis(2))));
        pace.took_each(Duration::from_millis(10), 4);
        assert_eq!(pace, Pace(Some(Duration::from_millis(6))));
        pace.took_each(Duration::from_millis(3), 1000);
        assert_eq!(pace, Pace(Some(Duration::from_millis(3))), "many do");
    }
}
