//! The rules that hold: what the config says, with what people changed laid over it.
//!
//! The engine has a way of its own to this. It is written down here a second time, so that a slip in either shows.

use std::collections::{BTreeMap, BTreeSet};
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::policy::Policy;

#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) policies: Vec<Policy>,
    pub(crate) slots: u32,
    pub(crate) server_paused: bool,
    pauses: Vec<Target>,
    /// Slots that were given to a queue by its name, and no table has that name.
    caps: BTreeMap<String, u32>,
    /// The slots of the queues of runs.
    services: BTreeMap<String, u32>,
    services_off: BTreeSet<String>,
}

impl Rules {
    pub(crate) fn new(
        policies: &[Policy],
        slots: u32,
        services: &BTreeMap<String, u32>,
        overrides: &[Override],
    ) -> Rules {
        let mut rules = Rules { policies: policies.to_vec(), slots, services: services.clone(), ..Rules::default() };
        for made in overrides {
            rules.lay_over(made);
        }
        rules
    }

    fn lay_over(&mut self, made: &Override) {
        let name = match &made.target {
            Target::Queues(name) => name,
            Target::Server => {
                match made.key {
                    Key::Paused => self.server_paused = true,
                    Key::Slots => self.slots = made.value,
                    Key::Weight | Key::Attempts | Key::Enabled => {}
                }
                return;
            }
            Target::Schedule(_) => return,
        };
        let table = self.policies.iter_mut().find(|policy| policy.pattern == *name);
        match (made.key, table) {
            (Key::Paused, _) => self.pauses.push(made.target.clone()),
            (Key::Slots, Some(table)) => table.slots = made.value,
            (Key::Slots, None) if self.services.contains_key(name) => {
                self.services.insert(name.clone(), made.value);
            }
            (Key::Slots, None) => {
                self.caps.insert(name.clone(), made.value);
            }
            (Key::Enabled, Some(table)) => table.enabled = made.value != 0,
            (Key::Enabled, None) if made.value == 0 => {
                self.services_off.insert(name.clone());
            }
            (Key::Enabled | Key::Weight | Key::Attempts, _) => {}
        }
    }

    /// The table that serves a queue.
    pub(crate) fn crew(&self, queue: &str) -> Option<usize> {
        self.policies.iter().position(|policy| policy.matches(queue))
    }

    /// The table of a queue, unless the queue is a run's own.
    pub(crate) fn policy(&self, queue: &str) -> Option<&Policy> {
        self.crew(queue).filter(|_| self.run_slots(queue).is_none()).map(|crew| &self.policies[crew])
    }

    /// Workers elsewhere serve it.
    pub(crate) fn is_remote(&self, queue: &str) -> bool {
        self.policy(queue).is_some_and(|policy| policy.service.is_remote())
    }

    /// What one of its processes needs of the machine's memory.
    pub(crate) fn need(&self, queue: &str) -> u64 {
        self.policy(queue).filter(|policy| !policy.service.is_remote()).map_or(0, |policy| policy.limits.memory)
    }

    /// Something else than slots may keep it waiting.
    pub(crate) fn is_metered(&self, queue: &str) -> bool {
        self.is_remote(queue)
            || self.policy(queue).is_some_and(|policy| policy.rate.is_some() || policy.limits.memory > 0)
    }

    /// The slots of a run that has a queue and a command of its own.
    pub(crate) fn run_slots(&self, queue: &str) -> Option<u32> {
        self.services.get(queue).copied()
    }

    /// What a person gave a single queue.
    pub(crate) fn cap(&self, queue: &str) -> Option<u32> {
        self.caps.get(queue).copied()
    }

    pub(crate) fn is_paused(&self, queue: &str) -> bool {
        self.server_paused || self.pauses.iter().any(|target| target.covers(queue))
    }

    /// A person or the config keeps it from starting anything.
    pub(crate) fn is_closed(&self, queue: &str) -> bool {
        let off = match self.run_slots(queue) {
            Some(_) => self.services_off.contains(queue),
            None => self.crew(queue).is_some_and(|crew| !self.policies[crew].enabled),
        };
        off || self.is_paused(queue)
    }
}
