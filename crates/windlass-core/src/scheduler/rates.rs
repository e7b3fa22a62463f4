//! Rates and dead destinations in the plan: who waits for what, and when to look at whom again.
//!
//! A queue whose rate is reached stands in no order, nor does a crew whose destination seems dead: they cost nothing
//! until their moment comes. Nothing here is polled: `next_look` says when.

use super::queue::Queue;
use super::{CrewNo, Reason, Scheduler};
use crate::circuit::{Passage, Sign};
use crate::job::QueueNo;
use crate::rate::{Meter, Rate};
use crate::sabotage::{self, Sabotage};
use crate::time::{Steady, Time};

/// Who is to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Look {
    Queue(QueueNo),
    Crew(CrewNo),
}

/// A queue whose table has a rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Metered {
    pub(super) meter: Meter,
    /// It waits for its rate, and is looked at again then.
    look_at: Option<Steady>,
}

impl Scheduler {
    /// The time on a clock that nobody sets; queues and crews whose moment has come are placed.
    pub fn tell_steady(&mut self, now: Steady) {
        self.steady = self.steady.max(now);
        let due: Vec<(Steady, Look)> = self.looks.iter().take_while(|(at, _)| *at <= self.steady).copied().collect();
        for (at, look) in due {
            self.looks.remove(&(at, look));
            match look {
                Look::Queue(number) => {
                    self.metered.get_mut(&number).map(|metered| metered.look_at.take());
                    self.place(number);
                }
                Look::Crew(number) => {
                    self.crews.get_mut(&number).map(|crew| crew.look_at.take());
                    self.enter(number);
                }
            }
        }
        self.reserve_for_those_who_waited();
    }

    /// When a rate, a probe or a wait for memory lets something start next, if nothing happens before.
    pub fn next_look(&self) -> Option<Steady> {
        self.looks.first().map(|(at, _)| *at).into_iter().chain(self.next_reservation()).min()
    }

    /// What the ends of so many jobs of a crew say of its destination; jobs that never began end, too. True where the
    /// crew may start something that it might not before.
    pub fn heard(&mut self, number: CrewNo, jobs: u32, sign: Sign) -> bool {
        let Some(crew) = self.crews.get_mut(&number) else { return false };
        let (after, before) = (crew.policy.crew_dead_after(), crew.entry.is_some());
        crew.circuit.ended(jobs, sign, after, self.steady);
        self.enter(number);
        !before && self.crews.get(&number).is_some_and(|crew| crew.entry.is_some())
    }

    /// The rate for which a queue that has something to start waits, and until when. Jobs that go to one process
    /// together wait for each other, as far as the rate lets so many go together at all.
    pub(super) fn rate_wait(&self, number: QueueNo, queue: &Queue) -> Option<(Rate, Steady)> {
        let crew = self.crews.get(&queue.crew?)?;
        let rate = crew.policy.queue_rate()?;
        let waiting = u32::try_from(queue.waiting()).unwrap_or(u32::MAX);
        let wanted = waiting.min(crew.policy.service.jobs_a_slot()).clamp(1, rate.at_once());
        let meter = self.metered.get(&number).map(|metered| metered.meter).unwrap_or_default();
        let reached = meter.free(rate, self.steady) < wanted && !sabotage::on(Sabotage::RateIgnored);
        reached.then(|| (rate, meter.next(rate, wanted)))
    }

    /// What the rate and the destination say of a queue that has something to start.
    pub(super) fn pace_hold(&self, number: QueueNo, queue: &Queue) -> Option<Reason> {
        let crew = self.crews.get(&queue.crew?)?;
        let failures = crew.circuit.dead().unwrap_or_default();
        match crew.passage(self.steady) {
            Passage::Free | Passage::Probe => {
                let waits = self.rate_wait(number, queue);
                waits.map(|(rate, at)| Reason::RateReached { rate, next: self.on_the_wall(at) })
            }
            Passage::Busy => Some(Reason::DestinationDead { failures, probe: None }),
            Passage::Until(at) => Some(Reason::DestinationDead { failures, probe: Some(self.on_the_wall(at)) }),
        }
    }

    /// A moment to come, as the clock on the wall will show it.
    fn on_the_wall(&self, at: Steady) -> Time {
        self.now.after(at.since(self.steady))
    }

    pub(super) fn look_at_queue(&mut self, number: QueueNo, at: Option<Steady>) {
        if at.is_none() && !self.metered.contains_key(&number) {
            return;
        }
        let metered = self.metered.entry(number).or_default();
        if metered.look_at != at {
            let old = std::mem::replace(&mut metered.look_at, at);
            old.map(|old| self.looks.remove(&(old, Look::Queue(number))));
            self.looks.extend(at.map(|at| (at, Look::Queue(number))));
        }
    }

    /// A queue in which nothing waited has jobs again: time without jobs earns nothing.
    pub(super) fn queue_rested(&mut self, number: QueueNo) {
        let crew = self.queues.get(number).and_then(|queue| self.crews.get(&queue.crew?));
        if crew.is_some_and(|crew| crew.policy.queue_rate().is_some()) {
            self.metered.entry(number).or_default().meter.rested(self.steady);
        }
    }
}
