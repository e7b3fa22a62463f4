//! One crew as the scheduler sees it: its slots, and its eligible queues in the order of service.
//!
//! It must not look into a queue; a queue's place is a key that the scheduler computes.

use super::queue::Pass;
use super::{CrewNo, Reason};
use crate::circuit::{Circuit, Passage};
use crate::job::{Priority, QueueNo};
use crate::policy::{Policy, Service};
use crate::sabotage::{self, Sabotage};
use crate::time::{Steady, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One job served at weight one, on the virtual clock; all weights up to 16 divide it without a rest.
const UNIT: Pass = 720_720;

/// The order of service: the best priority, then who is due first, then a fixed order.
pub(super) type Place = (Reverse<Priority>, Pass, QueueNo);

/// By priority: how far service has come, in jobs ÷ weight. Holds only the priorities in use.
pub(super) type Clocks = BTreeMap<Priority, Pass>;

#[derive(Debug)]
pub(super) struct Crew {
    /// The rules as the config, or the run, has them.
    pub(super) own: Arc<Policy>,
    /// The rules in force: overrides are laid over its own.
    pub(super) policy: Arc<Policy>,
    /// Outside its hours.
    pub(super) shut: bool,
    /// When its hours begin or end next.
    pub(super) turns: Option<Time>,
    /// Starts that run, each in a slot.
    pub(super) used: u32,
    /// Starts claimed ahead; each takes the slot of one that ends.
    pub(super) stocked: u32,
    /// Kept workers that live, those that start or end included.
    pub(super) workers: u32,
    /// The memory that it was last seen to hold.
    pub(super) weighed: u64,
    /// Its next start does not fit into memory.
    pub(super) short: bool,
    /// The rules in force, and the same with as many slots as there is memory for.
    pub(super) granted: Option<(Arc<Policy>, Arc<Policy>)>,
    /// Eligible queues by (priority, when one more job of it is due).
    pub(super) order: BTreeSet<Place>,
    /// More jobs than the rules say go to a slot together, because they are short.
    pub(super) at_once: u32,
    /// Its entry in the index of crews, if it has one.
    pub(super) entry: Option<(Place, CrewNo)>,
    /// The clocks as they were when it ran out of slots or memory. Its queues' time stands still until it has some:
    /// what they missed is not made up for, or they would take everything, and what they had before is not lost.
    frozen: Option<Clocks>,
    /// How long its time has stood still, by priority; the order holds places on its own, slower clock.
    lag: Clocks,
    /// Whether what its jobs go to seems dead; counts only where its rules ask for it.
    pub(super) circuit: Circuit,
    /// When its destination may be probed, where it waits for that.
    pub(super) look_at: Option<Steady>,
    /// It was added at run time for the queue of exactly this name.
    pub(super) extra: bool,
    /// How often it was added and not removed.
    pub(super) wanted: u32,
    /// No rule names it any more; it is kept until its last start has finished.
    pub(super) gone: bool,
}

impl Crew {
    pub(super) fn new(policy: Policy, extra: bool) -> Crew {
        let policy = Arc::new(policy);
        Crew {
            own: Arc::clone(&policy),
            policy,
            shut: false,
            turns: None,
            used: 0,
            stocked: 0,
            workers: 0,
            weighed: 0,
            short: false,
            granted: None,
            at_once: 0,
            order: BTreeSet::new(),
            entry: None,
            frozen: None,
            lag: Clocks::new(),
            circuit: Circuit::default(),
            look_at: None,
            extra,
            wanted: 0,
            gone: false,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.used >= self.policy.slots + u32::from(sabotage::on(Sabotage::SlotTooMany))
    }

    /// Its jobs run elsewhere, and take no slot of the server.
    pub(super) fn is_remote(&self) -> bool {
        self.policy.service.is_remote()
    }

    /// What one job costs on the virtual clock.
    pub(super) fn stride(&self) -> Pass {
        let weight = if sabotage::on(Sabotage::WeightIgnored) { 1 } else { self.policy.weight };
        (UNIT / Pass::from(weight.max(1))).max(1)
    }

    /// How many jobs one slot takes at once. Of a queue that may have only some of the slots no more are claimed than
    /// one slot does: what is claimed for several begins in several.
    pub(super) fn batch(&self, capped: bool) -> u32 {
        match &self.policy.service {
            Service::Worker(_) if capped => 1,
            service if capped => service.jobs_a_slot(),
            service => service.jobs_a_slot().max(self.at_once),
        }
    }

    /// Looks whether its hours are open.
    pub(super) fn tell_time(&mut self, now: Time) {
        let hours = self.policy.hours.as_ref();
        self.shut = hours.is_some_and(|hours| !hours.is_open(now));
        self.turns = hours.and_then(|hours| hours.next_change(now));
    }

    /// What keeps all its queues back, but for the number of its slots.
    pub(super) fn closed(&self) -> Option<Reason> {
        if self.gone {
            Some(Reason::NoRunner)
        } else if !self.policy.enabled {
            Some(Reason::Disabled)
        } else {
            let hours = self.policy.hours.as_ref().filter(|_| self.shut)?;
            Some(Reason::OutsideHours { hours: hours.to_string().into(), opens: self.turns })
        }
    }

    /// Whether its destination may be used.
    pub(super) fn passage(&self, steady: Steady) -> Passage {
        if self.policy.crew_dead_after() == 0 { Passage::Free } else { self.circuit.passage(steady) }
    }

    /// True where nothing but the number of its slots could keep its queues back.
    fn is_open(&self, steady: Steady) -> bool {
        self.closed().is_none() && matches!(self.passage(steady), Passage::Free | Passage::Probe)
    }

    /// True where nothing but memory keeps it from a start.
    pub(super) fn could_start(&self, steady: Steady) -> bool {
        !self.order.is_empty() && !self.is_full() && self.is_open(steady)
    }

    /// Its best queue's place among all crews, if it may start anything.
    pub(super) fn best(&self, steady: Steady) -> Option<Place> {
        if self.short || !self.could_start(steady) {
            return None;
        }
        self.order.first().map(|(class, due, queue)| (*class, due + self.lag(class.0), *queue))
    }

    /// The priority of its best queue.
    pub(super) fn first_class(&self) -> Option<Priority> {
        self.order.first().map(|(Reverse(class), ..)| *class)
    }

    /// It has no slot left, or no memory.
    fn stands_still(&self) -> bool {
        self.is_full() || self.short
    }

    /// How far its clock of this priority is behind that of the server.
    pub(super) fn lag(&self, class: Priority) -> Pass {
        read(&self.lag, class)
    }

    /// The clock at which a queue joins.
    pub(super) fn clock(&self, class: Priority, clocks: &Clocks) -> Pass {
        read(self.frozen.as_ref().unwrap_or(clocks), class)
    }

    /// Stops its time if it cannot go on.
    pub(super) fn freeze(&mut self, clocks: &Clocks) {
        if self.stands_still() && self.frozen.is_none() {
            self.frozen = Some(clocks.clone());
        }
    }

    /// Lets its time go on if it can go on again.
    pub(super) fn thaw(&mut self, clocks: &Clocks) {
        if self.stands_still() {
            return;
        }
        let Some(frozen) = self.frozen.take() else { return };
        for (class, now) in clocks {
            let missed = now - read(&frozen, *class);
            if missed > 0 {
                *self.lag.entry(*class).or_insert(0) += missed;
            }
        }
    }

    /// Forgets its order and its own time; the queues are placed anew.
    pub(super) fn reset(&mut self, clocks: &Clocks) {
        self.order.clear();
        self.entry = None;
        self.lag.clear();
        self.frozen = None;
        self.freeze(clocks);
    }
}

fn read(clocks: &Clocks, class: Priority) -> Pass {
    clocks.get(&class).copied().unwrap_or(0)
}
