//! What is claimed never holds more slots than its crew and the server have; suspects run one at a time.

use super::{Checker, Seen};
use crate::ledger::Ledger;
use windlass_core::job::LaneKind;
use windlass_core::policy::Policy;

#[derive(Debug, Default)]
pub(super) struct Slots {
    policies: Vec<Policy>,
    slots: u32,
}

impl Checker for Slots {
    fn name(&self) -> &'static str {
        "slots are never exceeded"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Rules { policies, slots } => {
                self.policies = policies.to_vec();
                self.slots = *slots;
            }
            Seen::Turned(turned) if !turned.claimed.is_empty() => {
                let used = ledger.bookings.len();
                if used > self.slots as usize {
                    return Err(format!("{used} slots are taken, the server has {}", self.slots));
                }
                let suspects = ledger.bookings.iter().filter(|booking| booking.kind == LaneKind::Suspect).count();
                if suspects > 1 {
                    return Err(format!("{suspects} suspects run at once"));
                }
                for claimed in &turned.claimed {
                    if let Some(slots) = ledger.services.get(&*claimed.queue) {
                        let used = ledger.bookings.iter().filter(|booking| booking.queue == claimed.queue).count();
                        if used > *slots as usize {
                            return Err(format!("run {} has {slots} slots, {used} are taken", claimed.queue));
                        }
                        continue;
                    }
                    let crew = self.policies.iter().position(|policy| policy.matches(&claimed.queue));
                    let Some(crew) = crew else { return Err(format!("nobody serves queue {}", claimed.queue)) };
                    let serves = |queue: &str| self.policies.iter().position(|p| p.matches(queue)) == Some(crew);
                    let used = ledger.bookings.iter().filter(|booking| serves(&booking.queue)).count();
                    let policy = &self.policies[crew];
                    if used > policy.slots as usize {
                        return Err(format!("crew {} has {} slots, {used} are taken", policy.pattern, policy.slots));
                    }
                    if !policy.enabled {
                        return Err(format!("crew {} is not enabled and was started", policy.pattern));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
