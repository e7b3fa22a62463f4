//! Priority is strict, and a free slot is never idle while a job that may start waits for it.

use super::{Checker, Seen};
use crate::ledger::{Booking, Known, Ledger};
use crate::rules::Rules;
use windlass_core::job::LaneKind;
use windlass_core::life_cycle::State;

#[derive(Debug, Default)]
pub(super) struct Order {
    rules: Rules,
    /// Nothing is started for now: no space, draining, or the archive is behind.
    holding: bool,
}

impl Order {
    fn crew(&self, queue: &str) -> Option<usize> {
        self.rules.crew(queue).filter(|crew| self.rules.policies[*crew].enabled)
    }

    /// A person gave the queue slots of its own, and they are taken.
    fn is_capped(&self, queue: &str, ledger: &Ledger) -> bool {
        let used = || ledger.bookings.iter().filter(|booking| &*booking.queue == queue).count();
        self.rules.cap(queue).is_some_and(|cap| used() >= cap as usize)
    }

    /// What one job that was left waiting says about this turn.
    fn fair(&self, waiting: &Known, claimed: &[Booking], ledger: &Ledger) -> Result<(), String> {
        let Some(crew) = self.crew(&waiting.queue) else { return Ok(()) };
        if self.rules.is_paused(&waiting.queue) || self.is_capped(&waiting.queue, ledger) {
            return Ok(());
        }
        // Others look after what rates, memory and workers elsewhere keep waiting.
        if self.rules.is_metered(&waiting.queue) {
            return Ok(());
        }
        let used = ledger.bookings.iter().filter(|booking| self.crew(&booking.queue) == Some(crew)).count();
        let full = used >= self.rules.policies[crew].slots as usize;
        let here = ledger.bookings.iter().filter(|booking| !self.rules.is_remote(&booking.queue)).count();
        if !full && here < self.rules.slots as usize {
            return Err(format!("a job of queue {} waits although a slot is free", waiting.queue));
        }
        let rival = |booking: &&Booking| {
            let same = self.crew(&booking.queue) == Some(crew);
            // What runs elsewhere takes nobody's slot.
            let full = full || self.rules.is_remote(&booking.queue);
            (same || !full) && booking.priority < waiting.priority
        };
        match claimed.iter().find(rival) {
            Some(rival) => Err(format!("priority {} was started before {}", rival.priority, waiting.priority)),
            None => Ok(()),
        }
    }
}

impl Checker for Order {
    fn name(&self) -> &'static str {
        "strict priority and no idle slot"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Rules(rules) => self.rules = (*rules).clone(),
            Seen::Holding(holding) => self.holding = *holding,
            Seen::Turned(turned) if !turned.recovered && !self.holding => {
                let ready = |job: &&Known| job.state == State::Ready && job.kind != LaneKind::Suspect;
                for waiting in ledger.jobs.values().filter(ready) {
                    self.fair(waiting, &turned.claimed, ledger)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
