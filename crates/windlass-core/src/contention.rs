//! Contention, measured: for how long each queue had ready jobs that were not started, by what held them.
//!
//! What holds a queue changes only when the engine turns. So who looks before a turn changes anything sees what has
//! held since the turn before, however long ago that was, and the time since the last look counts for it. Where turns
//! follow each other closely not each is looked at: a look then stands for some milliseconds, or, where there are
//! thousands of queues, for as much more as looking through them costs. It must not ask why a queue is held: it is
//! told.

use crate::job::QueueNo;
use crate::scheduler::{Reason, Stall};
use crate::time::Steady;
use std::collections::BTreeMap;
use std::time::Duration;

/// The time between two looks at least, and for each queue that there is: looking takes no more than about a hundredth.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_A_QUEUE: Duration = Duration::from_micros(20);

/// How long a queue was held, by the code of what held it.
pub type HeldFor = BTreeMap<&'static str, Duration>;

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Contention {
    looked: Option<Steady>,
    held: BTreeMap<QueueNo, HeldFor>,
}

impl Contention {
    /// The time that a look at so many queues stands for, where one is due now: then it is taken as done.
    pub fn look(&mut self, now: Steady, queues: usize) -> Option<Duration> {
        let pause = PAUSE.max(PAUSE_A_QUEUE * u32::try_from(queues).unwrap_or(u32::MAX));
        let passed = now.since(*self.looked.get_or_insert(now));
        let due = passed >= pause;
        if due {
            self.looked = Some(now);
        }
        due.then_some(passed)
    }

    /// A queue with ready jobs was seen to be held by this, or by nothing, for so long.
    pub fn saw(&mut self, queue: QueueNo, reason: &Reason, time: Duration) {
        if holds(reason) {
            *self.held.entry(queue).or_default().entry(reason.code()).or_default() += time;
        }
    }

    /// The number is no longer this queue's.
    pub fn forget(&mut self, queue: QueueNo) {
        self.held.remove(&queue);
    }

    /// Every queue that was held at all.
    pub fn held(&self) -> impl Iterator<Item = (QueueNo, &HeldFor)> {
        self.held.iter().map(|(queue, held)| (*queue, held))
    }
}

/// Whether ready jobs are kept waiting by this. What comes in its turn is not held, and who serves nobody holds nobody.
fn holds(reason: &Reason) -> bool {
    !reason.holds_nobody() && !matches!(reason, Reason::Stalled(Stall::NotServing))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Steady {
        Steady::default().after(Duration::from_millis(millis))
    }

    #[test]
    fn a_look_stands_for_all_the_time_since_the_last_one_and_is_not_due_at_every_turn() {
        let mut contention = Contention::default();
        assert_eq!(contention.look(at(500), 2), None, "nothing was seen before the first turn");
        assert_eq!(contention.look(at(509), 2), None);
        assert_eq!(contention.look(at(510), 2), Some(10 * MS));
        assert_eq!(
            contention.look(at(3_600_510), 2),
            Some(3_600_000 * MS),
            "who slept sees what has held all the while"
        );
        assert_eq!(contention.look(at(3_601_509), 50_000), None, "many queues are looked through once a second");
        assert_eq!(contention.look(at(3_601_510), 50_000), Some(1000 * MS));
    }

    #[test]
    fn time_adds_up_by_queue_and_reason_and_only_for_what_is_held() {
        let mut contention = Contention::default();
        let (full, paused) = (Reason::ServerSlotsTaken { slots: 1 }, Reason::Disabled);
        for (queue, reason, millis) in [
            (1, &full, 10),
            (1, &paused, 5),
            (1, &full, 20),
            (2, &full, 7),
            (3, &Reason::Runnable, 9),
            (3, &Reason::Stalled(Stall::NotServing), 9),
        ] {
            contention.saw(QueueNo(queue), reason, millis * MS);
        }
        contention.forget(QueueNo(2));
        let held: Vec<_> = contention.held().collect();
        let first = BTreeMap::from([("server_slots_taken", 30 * MS), ("disabled", 5 * MS)]);
        assert_eq!(held, [(QueueNo(1), &first)]);
    }
}
