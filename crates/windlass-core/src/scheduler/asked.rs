//! Queues that remote workers serve: planned when a worker asks for them, and not before.
//!
//! Such a queue stands in its crew's order only while an ask for it is being planned; slots, pauses, priorities and
//! weights hold as everywhere. It owns when somebody last asked, so that `why` can tell. It must not know who asks.

use super::queue::Queue;
use super::{CrewNo, Planned, REWIND_AT, Scheduler};
use crate::job::{Lane, QueueNo};
use crate::policy::pattern_matches;
use crate::time::Time;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// So many different wishes are remembered; who invents more of them is forgotten first.
const REMEMBERED: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Those of the ask that is being planned.
    now: BTreeSet<QueueNo>,
    /// By what was asked for, a queue's name or a pattern.
    last: BTreeMap<String, Time>,
}

impl Asked {
    /// When a worker last asked for this queue.
    pub(super) fn last(&self, queue: &str) -> Option<Time> {
        let covers = |pattern: &str| pattern_matches(pattern.as_bytes(), queue.as_bytes());
        self.last.iter().filter(|(pattern, _)| covers(pattern)).map(|(_, at)| *at).max()
    }
}

impl Scheduler {
    /// A worker asks for jobs of these queues, by name or pattern.
    pub fn note_ask(&mut self, patterns: &[String], now: Time) {
        for pattern in patterns {
            self.asked.last.insert(pattern.clone(), now);
        }
        while self.asked.last.len() > REMEMBERED
            && let Some(oldest) = self.asked.last.iter().min_by_key(|(_, at)| **at).map(|(pattern, _)| pattern.clone())
        {
            self.asked.last.remove(&oldest);
        }
    }

    /// Books up to `most` jobs of these queues, which remote workers serve, each with a slot of its crew.
    pub fn plan_asked(&mut self, queues: &[QueueNo], most: u32) -> Vec<Planned> {
        let mut planned = Vec::new();
        self.asked.now.extend(queues);
        queues.iter().for_each(|queue| self.place(*queue));
        while (planned.len() as u64) < u64::from(most) && self.server_closed().is_none() {
            let remote = |entry: &&(super::crew::Place, super::CrewNo)| {
                self.crews.get(&entry.1).is_some_and(|crew| crew.is_remote())
            };
            let Some(&((Reverse(class), due, queue), crew)) = self.index.iter().find(remote) else { break };
            if due > REWIND_AT {
                self.rewind();
                continue;
            }
            planned.extend(self.book(queue, crew, class, due));
        }
        self.asked.now.clear();
        queues.iter().for_each(|queue| self.place(*queue));
        planned
    }

    /// A worker elsewhere still has a start that an earlier server gave out: it takes a slot of its crew, as it did
    /// then. None where nobody serves its queue any more.
    pub fn resumed(&mut self, lane: Lane) -> Option<CrewNo> {
        let queue = self.queues.get_mut(lane.queue)?;
        let number = queue.crew?;
        let crew = self.crews.get_mut(&number)?;
        queue.used += 1;
        crew.used += 1;
        crew.circuit.begun(1);
        crew.freeze(&self.clocks);
        self.used += u32::from(!crew.is_remote());
        self.took_room(number);
        self.place(lane.queue);
        self.enter(number);
        Some(number)
    }

    /// True for a queue that must not be planned unless somebody asks.
    pub(super) fn waits_to_be_asked_for(&self, number: QueueNo, queue: &Queue) -> bool {
        let crew = queue.crew.and_then(|crew| self.crews.get(&crew));
        crew.is_some_and(|crew| crew.is_remote()) && !self.asked.now.contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reason;
    use super::*;
    use crate::job::{LaneKind, Priority, QueueName};
    use crate::policy::{Policy, Remote, Service};

    fn lane(queue: u32) -> Lane {
        Lane { queue: QueueNo(queue), priority: Priority::NORMAL, kind: LaneKind::Fresh }
    }

    #[test]
    fn nothing_is_planned_unless_somebody_asks_and_no_slot_of_the_server_is_taken() {
        let policy = Policy { slots: 3, ..Policy::new("far.*", Service::Remote(Remote::default())) };
        let mut scheduler = Scheduler::new(vec![policy.clone()], 1);
        for (number, name) in [(1, "far.a"), (2, "far.b")] {
            scheduler.queue_appeared(QueueNo(number), &QueueName::new(name.as_bytes()).unwrap());
            scheduler.ready(lane(number), 10);
        }
        assert_eq!(scheduler.plan(), []);
        assert_eq!(scheduler.why(QueueNo(1)), Reason::NoWorkerAsks { since: None });
        scheduler.note_ask(&["far.*".into()], Time(7));
        assert_eq!(scheduler.why(QueueNo(1)), Reason::NoWorkerAsks { since: Some(Time(7)) });
        let planned = scheduler.plan_asked(&[QueueNo(2)], 2);
        assert_eq!(planned.iter().map(|p| p.lane.queue.0).collect::<Vec<_>>(), [2, 2]);
        assert_eq!((scheduler.in_flight(), scheduler.plan()), (0, vec![]), "they run elsewhere");
        let more = scheduler.plan_asked(&[QueueNo(1), QueueNo(2)], 9);
        assert_eq!(more.len(), 1, "three slots");
        assert_eq!(scheduler.why(QueueNo(1)), Reason::CrewSlotsTaken { slots: 3 });
        // Rules that bring what runs elsewhere here count it here, and its end frees what it took.
        let here = Policy { slots: 3, ..Policy::new("far.*", Service::Command(Default::default())) };
        scheduler.reload(vec![here], 1);
        assert_eq!(scheduler.in_flight(), 3);
        scheduler.reload(vec![policy], 1);
        for planned in planned.into_iter().chain(more) {
            scheduler.finished(planned.crew, planned.lane);
        }
        assert_eq!(scheduler.in_flight(), 0);
    }

    #[test]
    fn what_a_worker_kept_through_a_restart_takes_its_slot() {
        let policy = Policy { slots: 2, ..Policy::new("far", Service::Remote(Remote::default())) };
        let mut scheduler = Scheduler::new(vec![policy], 1);
        assert_eq!(scheduler.resumed(lane(1)), None, "a queue that is not known");
        for (number, name) in [(1, "far"), (2, "nobody's")] {
            scheduler.queue_appeared(QueueNo(number), &QueueName::new(name.as_bytes()).unwrap());
            scheduler.ready(lane(number), 10);
        }
        assert_eq!(scheduler.resumed(lane(2)), None, "a queue that nobody serves");
        let crew = scheduler.resumed(lane(1)).unwrap();
        assert_eq!((scheduler.plan_asked(&[QueueNo(1)], 9).len(), scheduler.in_flight()), (1, 0));
        scheduler.finished(crew, lane(1));
        assert_eq!(scheduler.plan_asked(&[QueueNo(1)], 9).len(), 1);
    }
}
