//! How rules, overrides and the time reach the scheduler: whatever changes, all places are given up and taken anew.
//!
//! Crews keep their own rules beside those in force, so that an override that ends leaves what the config says. What
//! is in flight keeps its slots through every change.

use super::crew::Crew;
use super::queue::Mark;
use super::{CrewNo, Queue, Scheduler};
use crate::job::QueueNo;
use crate::overrides::Overrides;
use crate::particulars::Scope;
use crate::policy::{HandlerFiles, Policy};
use crate::router::Router;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Scheduler {
    /// Takes new rules. What is in flight keeps its slots; an entry with the same pattern keeps its usage.
    pub fn reload(&mut self, policies: Vec<Policy>, slots: u32) {
        self.own_slots = slots;
        self.any_unique = policies.iter().any(|policy| policy.unique.is_some());
        // Places depend on weights, so all are given up before any rule changes.
        self.unlist_all();
        let mut old: BTreeMap<String, CrewNo> = BTreeMap::new();
        for (number, crew) in self.crews.iter_mut().filter(|(_, crew)| !crew.extra) {
            crew.gone = true;
            old.entry(crew.own.pattern.clone()).or_insert(*number);
        }
        self.in_order.clear();
        for policy in policies {
            let number = match old.remove(&policy.pattern) {
                Some(number) => number,
                None => self.number_crew(),
            };
            let crew = self.crews.entry(number).or_insert_with(|| Crew::new(policy.clone(), false));
            crew.gone = false;
            crew.own = Arc::new(policy);
            self.in_order.push(number);
        }
        self.crews.retain(|_, crew| !crew.gone || crew.processes() > 0);
        self.lay_over();
    }

    /// Takes over who has subscribed to what. What waits in a queue that is a topic now is handed on.
    pub fn subscribe(&mut self, router: Router) {
        if self.router != router {
            self.router = router;
            self.assign(|_| true);
        }
    }

    /// Takes the handler files as they are now: queues whose file came, went or changed its kind are served anew, and
    /// are told.
    pub fn set_files(&mut self, files: HandlerFiles) -> Vec<QueueNo> {
        let old = std::mem::replace(&mut self.files, files);
        let (new, names) = (&self.files, old.keys().chain(self.files.keys()));
        let changed: BTreeSet<Box<str>> = names.filter(|name| old.get(*name) != new.get(*name)).cloned().collect();
        self.assign(|queue| changed.contains(&queue.name))
    }

    pub fn files(&self) -> &HandlerFiles {
        &self.files
    }

    /// Takes the overrides that are in force from now on.
    pub fn steer(&mut self, overrides: Overrides) {
        self.overrides = overrides;
        self.lay_over();
    }

    pub fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// Tells the time; true where hours have begun or ended. A clock that was set back is noticed, too.
    pub fn tell_time(&mut self, now: Time) -> bool {
        let due = now < self.now || self.next_hours.is_some_and(|at| at <= now);
        self.now = now;
        if !due {
            return false;
        }
        let before: Vec<bool> = self.crews.values().map(|crew| crew.shut).collect();
        self.lay_over();
        self.crews.values().map(|crew| crew.shut).ne(before)
    }

    /// When hours begin or end next.
    pub fn next_hours(&self) -> Option<Time> {
        self.next_hours
    }

    /// Adds a crew for the queue whose name is exactly the pattern; it goes before the config's. A crew that was added
    /// for that queue before and is wanted or has starts in flight takes the new terms instead: a second one would not
    /// know of those starts, and the queue would have more slots than anybody gave it.
    pub fn add_crew(&mut self, policy: Policy) -> CrewNo {
        let name = policy.pattern.clone();
        let mut extras = self.crews.iter().filter(|(_, crew)| crew.extra);
        let there = extras.find(|(_, crew)| crew.own.pattern == name).map(|(number, _)| *number);
        let number = there.unwrap_or_else(|| self.number_crew());
        let crew = self.crews.entry(number).or_insert_with(|| Crew::new(policy.clone(), true));
        crew.wanted += 1;
        crew.gone = false;
        self.extras.insert(name.clone(), number);
        if there.is_some() {
            self.change_crew(number, policy);
        } else {
            crew.policy = Arc::new(self.overrides.lay_over(&crew.own));
        }
        self.assign(|queue| *queue.name == *name);
        number
    }

    /// Gives a crew that was added other terms; what it has in flight counts against its new slots.
    pub fn change_crew(&mut self, number: CrewNo, policy: Policy) {
        let added = self.crews.get_mut(&number).filter(|crew| crew.extra && !crew.gone);
        if let Some(crew) = added.filter(|crew| *crew.own != policy) {
            crew.own = Arc::new(policy);
            self.lay_over();
        }
    }

    /// Removes a crew that was added, as often as it was; what it has in flight still counts until it finishes.
    pub fn remove_crew(&mut self, number: CrewNo) {
        let Some(crew) = self.crews.get_mut(&number).filter(|crew| crew.extra && !crew.gone) else { return };
        crew.wanted -= 1;
        if crew.wanted > 0 {
            return;
        }
        crew.gone = true;
        self.extras.remove(&crew.policy.pattern);
        self.assign(|queue| queue.crew == Some(number));
        self.crews.retain(|other, crew| *other != number || crew.processes() > 0);
    }

    /// Lays the overrides and the time over every rule, and places every queue anew.
    fn lay_over(&mut self) {
        self.unlist_all();
        self.slots = self.overrides.server_slots(self.own_slots);
        self.paused = self.overrides.server_pause().cloned().map(Arc::new);
        let (overrides, now) = (&self.overrides, self.now);
        for crew in self.crews.values_mut() {
            crew.policy = Arc::new(overrides.lay_over(&crew.own));
            crew.tell_time(now);
            // What is in stock begins where there are more slots now.
            let begun = crew.stocked.min(crew.policy.slots.saturating_sub(crew.used));
            (crew.used, crew.stocked) = (crew.used + begun, crew.stocked - begun);
        }
        // Counted anew, since other rules may have sent what runs elsewhere, or brought it here.
        self.used = self.crews.values().filter(|crew| !crew.is_remote()).map(|crew| crew.used).sum();
        self.weigh_all();
        self.next_hours = self.crews.values().filter(|crew| !crew.gone).filter_map(|crew| crew.turns).min();
        self.crews.values_mut().for_each(|crew| crew.reset(&self.clocks));
        self.assign(|_| true);
    }

    /// Gives the queues that meet the test to the crews that the rules name now.
    fn assign(&mut self, concerned: impl Fn(&Queue) -> bool) -> Vec<QueueNo> {
        let concerned = self.queues.iter().filter(|(_, queue)| concerned(queue)).map(|(number, _)| number);
        let concerned: Vec<QueueNo> = concerned.collect();
        for &number in &concerned {
            self.unlist(number);
            let crew = self.queues.get(number).and_then(|queue| self.crew_for(&queue.name));
            if let Some(queue) = self.queues.get_mut(number) {
                let topic = crew.is_none() && self.router.is_topic(&queue.name);
                queue.mark(Mark::Topic, topic);
                queue.mark(Mark::Lingers, queue.is(Mark::Lingers) && !topic);
                queue.crew = crew;
                queue.hope_again();
            }
            self.note_stage(number);
            self.lay_over_queue(number);
            self.place(number);
        }
        concerned
    }

    /// Notes what overrides and its table say about a single queue; it is placed by the caller.
    pub(super) fn lay_over_queue(&mut self, number: QueueNo) {
        let Some(queue) = self.queues.get_mut(number) else { return };
        queue.paused = self.overrides.pause_of(&queue.name).is_some();
        let crew = queue.crew.and_then(|crew| self.crews.get(&crew));
        let table = crew.map(|crew| crew.own.pattern.as_str());
        // Where the queue's table has its very name, the table's slots were changed.
        let cap = self.overrides.slots_of(&queue.name).filter(|_| table != Some(&*queue.name));
        match cap.or(crew.and_then(|crew| crew.policy.slots_each)) {
            Some(cap) => self.caps.insert(number, cap),
            None => self.caps.remove(&number),
        };
    }

    pub(super) fn crew_for(&self, name: &str) -> Option<CrewNo> {
        let extra = self.extras.get(name).copied();
        if extra.is_none() && self.router.is_topic(name) {
            return None;
        }
        let of_config = || self.in_order.iter().copied().find(|no| self.crews[no].policy.serves(name, &self.files));
        extra.or_else(of_config)
    }

    /// How the rules of a queue make its jobs unique, whether or not it has had one.
    pub fn unique_of(&self, name: &str) -> Option<Scope> {
        if !self.any_unique {
            return None;
        }
        self.crew_for(name).and_then(|crew| self.crews[&crew].policy.unique)
    }

    fn number_crew(&mut self) -> CrewNo {
        self.next_crew += 1;
        CrewNo(self.next_crew)
    }
}
