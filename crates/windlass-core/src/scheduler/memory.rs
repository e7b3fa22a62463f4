//! Memory as a resource: what crews hold of the machine's, who does not fit, and for whom it is set aside.
//!
//! A start of a crew that names a need begins only where the need fits beside what is held. Whoever does not fit steps
//! aside for those who do, so that nothing stands idle. A large one would then wait for ever while small ones stream
//! by, so it is given a reservation: at once before anybody of a lower priority, else after ten seconds. Until it fits
//! nothing else that needs memory starts. Kept workers hold their need while they live; idle ones are ended to make
//! room. It must not count slots.

use super::crew::Crew;
use super::{CrewNo, Reason, Scheduler};
use crate::job::Priority;
use crate::policy::{Policy, Service};
use crate::sabotage::{self, Sabotage};
use crate::size;
use crate::time::Steady;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// So long a start that does not fit lets others of its priority go before it.
const RESERVE_AFTER: Duration = Duration::from_secs(10);

/// The machine's memory as the plan sees it.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// None where nobody counts.
    budget: Option<u64>,
    held: u64,
    /// Crews that wait for memory, and since when they have.
    short: BTreeMap<CrewNo, Steady>,
    /// The one for which what becomes free is set aside.
    reserved: Option<CrewNo>,
}

/// Why a start does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub need: u64,
    pub free: u64,
    pub budget: u64,
    /// The tables that hold memory, most first: how many processes, and the need of each.
    pub holders: Vec<(String, u64, u64)>,
    /// The table for which what becomes free is set aside.
    pub reserved: Option<String>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [need, free, budget] = [self.need, self.free, self.budget].map(size::spoken);
        write!(f, "it needs {need} of memory, and {free} of {budget} is free")?;
        for (at, (table, count, each)) in self.holders.iter().enumerate() {
            let (before, total) = (if at == 0 { "; held by" } else { "," }, size::spoken(count * each));
            write!(f, "{before} {table} {total}")?;
            if *count > 1 {
                write!(f, " ({count} × {})", size::spoken(*each))?;
            }
        }
        match &self.reserved {
            Some(table) => write!(f, "; what becomes free is set aside for {table}"),
            None => Ok(()),
        }
    }
}

impl Crew {
    /// What one of its processes needs of this machine.
    fn need(&self) -> u64 {
        if self.is_remote() { 0 } else { self.policy.limits.memory }
    }

    fn is_kept(&self) -> bool {
        matches!(self.policy.service, Service::Worker(_))
    }

    /// How many processes it holds memory for. Where other rules came, workers of the old ones may live on for a while.
    pub(super) fn processes(&self) -> u32 {
        if self.is_kept() { self.used.max(self.workers) } else { self.used.saturating_add(self.workers) }
    }

    /// Workers that live and have nothing to do.
    fn idle_workers(&self) -> u32 {
        if self.is_kept() { self.workers.saturating_sub(self.used) } else { self.workers }
    }

    fn holds(&self) -> u64 {
        u64::from(self.processes()).saturating_mul(self.need())
    }
}

impl Scheduler {
    /// How much memory the starts of all crews may need together; none where nobody counts.
    pub fn set_memory(&mut self, budget: Option<u64>) {
        self.memory.budget = budget;
        self.look_for_room();
    }

    /// So many kept workers of a table live, those that start or end included.
    pub fn set_workers(&mut self, table: &str, alive: u32) {
        let of_table = |(_, crew): &(&CrewNo, &Crew)| !crew.extra && crew.own.pattern == table;
        let numbers: Vec<CrewNo> = self.crews.iter().filter(of_table).map(|(number, _)| *number).collect();
        for number in numbers {
            if let Some(crew) = self.crews.get_mut(&number) {
                crew.workers = alive;
            }
            self.gave_room(number);
            self.bury(number);
        }
    }

    /// Forgets a crew that no rule names any more, once nothing of it is left.
    pub(super) fn bury(&mut self, number: CrewNo) {
        if self.crews.get(&number).is_some_and(|crew| crew.gone && crew.processes() == 0) {
            self.crews.remove(&number);
        }
    }

    /// Bytes that whoever is next lacks and that idle kept workers hold; nought where ending them helps nobody.
    pub fn memory_wanted(&self) -> u64 {
        let first = || self.memory.short.iter().min_by_key(|(_, since)| **since).map(|(number, _)| *number);
        let waits = self.memory.reserved.or_else(first).and_then(|number| self.crews.get(&number));
        let Some((waits, budget)) = waits.zip(self.memory.budget) else { return 0 };
        let missing = waits.need().saturating_sub(budget.saturating_sub(self.memory.held));
        let idle = self.crews.values().any(|crew| crew.need() > 0 && crew.idle_workers() > 0);
        if idle { missing } else { 0 }
    }

    /// When somebody has waited long enough for a reservation.
    pub(super) fn next_reservation(&self) -> Option<Steady> {
        let waiting = self.memory.short.values().min().filter(|_| self.memory.reserved.is_none());
        waiting.map(|since| since.after(RESERVE_AFTER))
    }

    /// Gives a reservation to whoever has waited long enough.
    pub(super) fn reserve_for_those_who_waited(&mut self) {
        if self.next_reservation().is_none_or(|at| at > self.steady) {
            return;
        }
        self.forget_those_who_wait_no_more();
        let now = self.steady;
        let waited = |(_, since): &(&CrewNo, &Steady)| since.after(RESERVE_AFTER) <= now;
        let first = self.memory.short.iter().filter(waited).min_by_key(|(_, since)| **since).map(|(number, _)| *number);
        if self.memory.reserved.is_none() && first.is_some() {
            self.memory.reserved = first;
            self.look_for_room();
        }
    }

    /// Whether one more start of a crew fits; one that does not steps aside.
    pub(super) fn takes_room(&mut self, number: CrewNo, class: Priority) -> bool {
        let Some(crew) = self.crews.get(&number) else { return true };
        let (need, lives) = (crew.need(), crew.is_kept() && crew.used < crew.workers);
        let Some(budget) = self.memory.budget.filter(|_| need > 0) else { return true };
        if sabotage::on(Sabotage::MemoryUncounted) {
            return true;
        }
        if self.memory.reserved.is_none() {
            let better = |other: &&CrewNo| {
                let other = self.crews.get(other).filter(|crew| crew.could_start(self.steady));
                other.is_some_and(|crew| crew.first_class() > Some(class))
            };
            let better = self.memory.short.keys().filter(|other| **other != number).find(better).copied();
            self.memory.reserved = better;
        }
        let mine = self.memory.reserved.is_none_or(|reserved| reserved == number);
        if mine && (lives || self.memory.held.saturating_add(need) <= budget) {
            return true;
        }
        self.memory.short.entry(number).or_insert(self.steady);
        if let Some(crew) = self.crews.get_mut(&number) {
            crew.short = true;
            crew.freeze(&self.clocks);
        }
        self.enter(number);
        false
    }

    /// Whether a crew may have starts claimed ahead: not where others wait for the memory that it would go on holding.
    pub(super) fn may_hold_on(&self, crew: &Crew) -> bool {
        crew.need() == 0 || self.memory.short.is_empty()
    }

    /// A start of a crew was booked: it waits no more.
    pub(super) fn took_room(&mut self, number: CrewNo) {
        self.weigh(number);
        self.memory.short.remove(&number);
        if self.memory.reserved == Some(number) {
            self.memory.reserved = None;
            self.look_for_room();
        }
    }

    /// A start of a crew is over.
    pub(super) fn gave_room(&mut self, number: CrewNo) {
        // A kept worker that is idle now has room for one more start of its own, whatever is held.
        if self.weigh(number) || self.crews.get(&number).is_some_and(|crew| crew.short) {
            self.look_for_room();
        }
    }

    /// Notes what a crew holds now; true where that is something else than before.
    fn weigh(&mut self, number: CrewNo) -> bool {
        let Some(crew) = self.crews.get_mut(&number) else { return false };
        let (before, now) = (crew.weighed, crew.holds());
        crew.weighed = now;
        self.memory.held = self.memory.held.saturating_sub(before).saturating_add(now);
        before != now
    }

    /// Notes what all hold, by rules that may be new, and lets everybody try again. How long they have waited stays.
    pub(super) fn weigh_all(&mut self) {
        self.memory.short.retain(|number, _| self.crews.contains_key(number));
        self.memory.reserved = self.memory.reserved.filter(|number| self.crews.contains_key(number));
        self.memory.held = 0;
        for crew in self.crews.values_mut() {
            crew.short = false;
            crew.weighed = crew.holds();
            self.memory.held = self.memory.held.saturating_add(crew.weighed);
        }
    }

    /// The rules under which a start of a crew goes: kept workers have no more slots than there is memory set aside.
    pub fn terms(&mut self, number: CrewNo) -> Option<Arc<Policy>> {
        let counted = self.memory.budget.is_some();
        let crew = self.crews.get_mut(&number)?;
        if !counted || crew.need() == 0 || !crew.is_kept() {
            return Some(Arc::clone(&crew.policy));
        }
        let slots = crew.processes().min(crew.policy.slots);
        let as_before =
            crew.granted.as_ref().filter(|(of, granted)| Arc::ptr_eq(of, &crew.policy) && granted.slots == slots);
        let granted = as_before.map(|(_, granted)| Arc::clone(granted));
        let granted = granted.unwrap_or_else(|| Arc::new(Policy { slots, ..(*crew.policy).clone() }));
        crew.granted = Some((Arc::clone(&crew.policy), Arc::clone(&granted)));
        Some(granted)
    }

    /// What is set aside for a crew that has nothing to start any more is there for the others.
    pub(super) fn end_vain_reservation(&mut self) {
        let reserved = self.memory.reserved.map(|number| self.crews.get(&number));
        if reserved.is_some_and(|crew| crew.is_none_or(|crew| !crew.could_start(self.steady))) {
            self.memory.reserved = None;
            self.look_for_room();
        }
    }

    /// Lets those who wait for memory try again.
    pub(super) fn look_for_room(&mut self) {
        self.forget_those_who_wait_no_more();
        for number in self.memory.short.keys().copied().collect::<Vec<_>>() {
            let turn = self.memory.reserved.is_none_or(|reserved| reserved == number);
            if let Some(crew) = self.crews.get_mut(&number).filter(|crew| turn && crew.short) {
                crew.short = false;
                crew.thaw(&self.clocks);
                self.enter(number);
            }
        }
    }

    /// Drops crews that have nothing to start any more, and their reservation with them.
    fn forget_those_who_wait_no_more(&mut self) {
        let gone = |number: &CrewNo| self.crews.get(number).is_none_or(|crew| !crew.could_start(self.steady));
        let gone: Vec<CrewNo> = self.memory.short.keys().copied().filter(gone).collect();
        for number in gone {
            self.memory.short.remove(&number);
            if let Some(crew) = self.crews.get_mut(&number) {
                crew.short = false;
                crew.thaw(&self.clocks);
            }
            if self.memory.reserved == Some(number) {
                self.memory.reserved = None;
            }
            self.enter(number);
        }
    }

    /// Why a start of a crew does not fit now.
    pub(super) fn shortage(&self, number: CrewNo) -> Option<Reason> {
        let crew = self.crews.get(&number)?;
        let budget = self.memory.budget.filter(|_| crew.short)?;
        let (need, free) = (crew.need(), budget.saturating_sub(self.memory.held));
        let holds = |crew: &Crew| (crew.own.pattern.clone(), u64::from(crew.processes()), crew.need());
        let mut holders: Vec<_> = self.crews.values().filter(|crew| crew.holds() > 0).map(holds).collect();
        holders.sort_by_key(|(_, count, each)| std::cmp::Reverse(count * each));
        let reserved = self.memory.reserved.filter(|reserved| *reserved != number);
        let reserved = reserved.and_then(|other| self.crews.get(&other)).map(|crew| crew.own.pattern.clone());
        Some(Reason::MemoryShort(Box::new(Shortage { need, free, budget, holders, reserved })))
    }
}
