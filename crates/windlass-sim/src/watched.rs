//! The model store with an eye on it: every verb goes through unchanged, and what a commit held is noted.
//!
//! It owns the notes of the open turn and of the turns that were committed since somebody looked. It must not
//! change what a verb does: the engine must not be able to tell it from the store itself.

use windlass::store::memory::Memory;
use windlass::store::{
    Amended, Amendment, Changes, Durability, Evidence, FollowUp, Held, Lot, NewRun, Order, Recovered, RunInfo,
    Settlement, Store, StoreError, Unarchived,
};
use windlass_core::job::{JobId, RunId, RunNo};
use windlass_core::time::Time;

/// One verb as it was called, with what came of it.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Admitted(Lot),
    Opened(RunId),
    /// One order: all of it holds one slot.
    Claimed(Vec<Held>),
    Settled(Vec<Settlement>),
    Released,
    Amended(Vec<(JobId, Amendment, Amended)>),
    Recovered,
}

/// A turn that was committed.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) durability: Durability,
    pub(crate) verbs: Vec<Verb>,
    pub(crate) ended: Vec<RunInfo>,
}

#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) memory: Memory,
    verbs: Vec<Verb>,
    ended: Vec<RunInfo>,
    /// What recovery has to say to the engine's first turn.
    kept: Changes,
    pub(crate) committed: Vec<Committed>,
}

impl Watched {
    pub(crate) fn new(memory: Memory) -> Watched {
        Watched { memory, verbs: Vec::new(), ended: Vec::new(), kept: Changes::default(), committed: Vec::new() }
    }

    fn note(&mut self, durability: Durability) {
        let (verbs, ended) = (std::mem::take(&mut self.verbs), std::mem::take(&mut self.ended));
        self.committed.push(Committed { durability, verbs, ended });
    }
}

impl Store for Watched {
    fn backlog(&mut self) -> Result<Changes, StoreError> {
        self.memory.backlog()
    }

    fn open_runs(&mut self) -> Result<Vec<RunInfo>, StoreError> {
        self.memory.open_runs()
    }

    fn recover(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        let recovered = self.memory.recover(evidence, now)?;
        let changes = self.memory.changes();
        self.ended = changes.ended.clone();
        self.kept = Changes { runs: changes.runs, ended: changes.ended, ..Changes::default() };
        self.verbs.push(Verb::Recovered);
        self.note(Durability::Full);
        Ok(recovered)
    }

    fn admit(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError> {
        self.memory.admit(lot, now)?;
        self.verbs.push(Verb::Admitted(lot.clone()));
        Ok(())
    }

    fn open_run(&mut self, id: RunId, run: &NewRun, now: Time) -> Result<RunNo, StoreError> {
        let no = self.memory.open_run(id, run, now)?;
        self.verbs.push(Verb::Opened(id));
        Ok(no)
    }

    fn claim(&mut self, orders: &[Order], now: Time) -> Result<Vec<Held>, StoreError> {
        let held = self.memory.claim(orders, now)?;
        if !held.is_empty() {
            self.verbs.push(Verb::Claimed(held.clone()));
        }
        Ok(held)
    }

    fn settle(&mut self, settlements: &[Settlement], follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError> {
        self.memory.settle(settlements, follow_ups, now)?;
        self.verbs.push(Verb::Settled(settlements.to_vec()));
        Ok(())
    }

    fn release(&mut self, now: Time, limit: u32) -> Result<(), StoreError> {
        self.memory.release(now, limit)?;
        self.verbs.push(Verb::Released);
        Ok(())
    }

    fn next_due(&mut self) -> Result<Option<Time>, StoreError> {
        self.memory.next_due()
    }

    fn amend(&mut self, ids: &[JobId], amendment: Amendment, now: Time) -> Result<Vec<Amended>, StoreError> {
        let amended = self.memory.amend(ids, amendment, now)?;
        let all = ids.iter().zip(&amended).map(|(id, what)| (*id, amendment, *what));
        self.verbs.push(Verb::Amended(all.collect()));
        Ok(amended)
    }

    fn forget(&mut self, before: Time, limit: u32) -> Result<u64, StoreError> {
        self.memory.forget(before, limit)
    }

    fn archived(&mut self, turn: u64) -> Result<(), StoreError> {
        self.memory.archived(turn)
    }

    fn unarchived(&mut self) -> Result<Vec<Unarchived>, StoreError> {
        self.memory.unarchived()
    }

    fn changes(&mut self) -> Changes {
        let mut changes = self.memory.changes();
        self.ended.extend(changes.ended.iter().cloned());
        changes.runs.append(&mut self.kept.runs);
        changes.ended.append(&mut self.kept.ended);
        changes
    }

    fn commit(&mut self, durability: Durability) -> Result<u64, StoreError> {
        match self.memory.commit(durability) {
            Ok(turn) => {
                self.note(durability);
                Ok(turn)
            }
            Err(error) => {
                self.verbs.clear();
                self.ended.clear();
                Err(error)
            }
        }
    }

    fn rollback(&mut self) -> Result<(), StoreError> {
        self.verbs.clear();
        self.ended.clear();
        self.memory.rollback()
    }

    fn epoch(&self) -> u64 {
        self.memory.epoch()
    }
}
