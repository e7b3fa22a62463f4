//! One crew as the scheduler sees it: its slots, and its eligible queues in the order of service.
//!
//! It must not look into a queue; a queue's place is a key that the scheduler computes.

use super::queue::Pass;
use super::CrewNo;
use crate::job::{Priority, QueueNo};
use crate::policy::{Policy, Service};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One job served at weight one, on the virtual clock; weights divide it.
const UNIT: Pass = 1 << 32;

/// The order of service: the best priority, then who is due first, then a fixed order.
pub(super) type Place = (Reverse<Priority>, Pass, QueueNo);

#[derive(Debug)]
pub(super) struct Crew {
    pub(super) policy: Arc<Policy>,
    /// Starts in flight.
    pub(super) used: u32,
    /// Eligible queues by (priority, when one more job of it is due).
    pub(super) order: BTreeSet<Place>,
    /// Its entry in the index of crews, if it has one.
    pub(super) entry: Option<(Place, CrewNo)>,
    /// The clock of that priority when the crew last became free: what it missed while it was blocked is not
    /// made up for, or it would take everything. One value serves all its queues since they share a weight.
    pub(super) floor: (Priority, Pass),
    /// It was added at run time for the queue of exactly this name.
    pub(super) extra: bool,
    /// No rule names it any more; it is kept until its last start has finished.
    pub(super) gone: bool,
}

impl Crew {
    pub(super) fn new(policy: Policy, extra: bool) -> Crew {
        Crew {
            policy: Arc::new(policy),
            used: 0,
            order: BTreeSet::new(),
            entry: None,
            floor: (Priority::NORMAL, 0),
            extra,
            gone: false,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.used >= self.policy.slots
    }

    /// What one job costs on the virtual clock.
    pub(super) fn stride(&self) -> Pass {
        UNIT / Pass::from(self.policy.weight.max(1))
    }

    /// How many jobs one slot takes at once.
    pub(super) fn batch(&self) -> u32 {
        match &self.policy.service {
            Service::Command(_) => 1,
            Service::Handler { batch, .. } => (*batch).max(1),
        }
    }

    /// Its best queue's place among all crews, if it may start anything.
    pub(super) fn best(&self) -> Option<Place> {
        if self.is_full() || self.policy.paused || self.gone {
            return None;
        }
        self.order.first().map(|(Reverse(priority), due, queue)| {
            let (class, clock) = self.floor;
            let due = if class == *priority { (*due).max(clock + self.stride()) } else { *due };
            (Reverse(*priority), due, *queue)
        })
    }
}
