//! What goes wrong, and when: deaths, power cuts, failing commits, jumping clocks.
//!
//! A fault strikes between any two steps, within a commit, or between a commit and its effects. Deaths that nobody
//! is guilty of are held back where they would convict a healthy job: that is what the design calls improbable.

use crate::world::{Due, Outcome, World};
use windlass::store::StoreError;

impl World {
    pub(crate) fn fault(&mut self) -> Outcome<()> {
        // Where time has to pass, not all of it is trouble.
        let most = if self.flows { 9_000_000 } else { 900_000 };
        let after = self.random.between(1000, most);
        self.at(after, Due::Fault);
        match self.random.below(10) {
            0 | 1 if self.may_die() => self.die(false),
            2 => self.die(true),
            3 => self.jump(),
            4 if self.may_die() => {
                self.disk.fail_a_sync();
                Ok(())
            }
            5 => {
                let full = self.random.chance(500);
                self.disk.set_full(full);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn jump(&mut self) -> Outcome<()> {
        let by = self.random.below(6 * 3_600_000_000) as i64 - 3 * 3_600_000_000;
        self.offset += by;
        self.tell(|| format!("the clock jumps by {} s", by / 1_000_000));
        if self.flows {
            self.send(windlass::engine::Event::ClockSet);
        }
        Ok(())
    }

    /// No healthy job that runs has been hit twice already.
    pub(crate) fn may_die(&self) -> bool {
        let suspect = |id| self.ledger.jobs.get(&id).is_some_and(|job| job.record.suspicions >= 2);
        let mut running = self.hands.running().chain(self.desk.running());
        !running.any(|id| self.people.killer != Some(id) && suspect(id))
    }

    /// Before a turn: its commit may be made to fail.
    pub(crate) fn fail_some_commit(&mut self) {
        if self.calm || !self.random.chance(25) {
            return;
        }
        let io = self.random.chance(300) && self.may_die();
        let error = if io { StoreError::Io("planned".into()) } else { StoreError::Full("planned".into()) };
        if let Some(engine) = &mut self.engine {
            engine.store().memory.fail_commit(error);
        }
    }

    /// After a commit: nobody may hear of it.
    pub(crate) fn dies_before_effects(&mut self) -> bool {
        !self.calm && self.random.chance(6) && self.may_die()
    }
}
