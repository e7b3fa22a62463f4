//! The model store passes the suite, and a store that lies is found out.

use super::*;
use crate::store::memory::Memory;
use crate::store::{
    Amended, Amendment, Arriving, Changes, Deleted, Durability, Evidence, FollowUp, Held, JobInfo, Lot, NewJobs,
    NewRun, Order, Recovered, RunInfo, Settlement, Steer, StoreError, Told, Unarchived, Unheld,
};
use windlass_core::job::{Arrival, JobId, RunId, RunNo};
use windlass_core::overrides::Override;
use windlass_core::run::terms::Stopped;
use windlass_core::time::Time;

/// The model store on the bench.
#[derive(Debug, Default)]
pub(crate) struct MemoryBench {
    seed: u64,
}

impl Bench for MemoryBench {
    type Store = Memory;

    fn fresh(&mut self) -> Memory {
        self.seed += 1;
        Memory::new(self.seed)
    }

    fn crash(&mut self, mut store: Memory) -> Memory {
        store.crash();
        store
    }

    fn view<'a>(&'a self, store: &'a Memory) -> Box<dyn StoreView + 'a> {
        Box::new(store)
    }
}

#[test]
fn the_model_store_passes() {
    run(&mut MemoryBench::default());
}

/// The model store, whose only calls that can fail are its commits.
#[derive(Debug, Default)]
struct ShakyMemory {
    kept: Option<Memory>,
    plan: Option<(u64, bool)>,
    error: Option<StoreError>,
}

impl faults::Shaky for ShakyMemory {
    type Store = Memory;

    fn wipe(&mut self) {
        self.kept = None;
    }

    fn open(&mut self) -> Result<Memory, StoreError> {
        let mut store = self.kept.take().unwrap_or_else(|| Memory::new(1));
        store.crash();
        if let Some((nth, from_then_on)) = self.plan {
            let error = self.error.clone().unwrap_or_else(|| StoreError::Io("planned".into()));
            store.fail_commits(nth, from_then_on, error);
        }
        Ok(store)
    }

    fn kill(&mut self, mut store: Memory) {
        store.crash();
        self.kept = Some(store);
    }

    fn view<'a>(&'a self, store: &'a Memory) -> Box<dyn StoreView + 'a> {
        Box::new(store)
    }

    fn arm(&mut self, nth: u64, from_then_on: bool) {
        self.plan = Some((nth, from_then_on));
    }

    fn disarm(&mut self) -> bool {
        self.plan = None;
        self.kept.as_ref().is_some_and(|store| store.failed_commits() > 0)
    }
}

#[test]
fn the_model_store_survives_every_failed_commit() {
    for error in [StoreError::Io("planned".into()), StoreError::Full("planned".into())] {
        let mut shaky = ShakyMemory { error: Some(error), ..ShakyMemory::default() };
        // One commit in the recovery, one a turn, and the run that comes through, twice.
        assert!(faults::every_call(&mut shaky) >= 2 * 9, "every commit was made to fail");
    }
}

/// What a broken store does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Commits nothing, and says that it did.
    ForgetsCommits,
    /// Keeps the open turn through a rollback.
    KeepsRollbacks,
    /// Claims one job fewer than the lane has, for ever.
    StarvesTheLast,
    /// Reports no ends of runs.
    TellsNoEnd,
    /// Gives back every claim as if it had never begun.
    AccusesNobody,
    /// Says that everything is archived.
    LosesOutcomes,
    /// Settles whatever it can and forgives the rest.
    ForgivesStaleClaims,
    /// Releases more than the limit.
    ReleasesAll,
}

/// The model store with one lie.
#[derive(Debug)]
struct Liar {
    store: Memory,
    lie: Lie,
}

impl Store for Liar {
    fn backlog(&mut self) -> Result<Changes, StoreError> {
        self.store.backlog()
    }
    fn open_runs(&mut self) -> Result<Vec<RunInfo>, StoreError> {
        self.store.open_runs()
    }
    fn recover(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        let never = |_, _| false;
        let evidence = if self.lie == Lie::AccusesNobody { Evidence { begun: &never, ..evidence } } else { evidence };
        self.store.recover(evidence, now)
    }
    fn admit(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError> {
        self.store.admit(lot, now)
    }
    fn holders(&mut self, new: &NewJobs) -> Result<Vec<Option<JobId>>, StoreError> {
        self.store.holders(new)
    }
    fn open_run(&mut self, id: RunId, run: &NewRun, now: Time) -> Result<RunNo, StoreError> {
        self.store.open_run(id, run, now)
    }
    fn stop_run(&mut self, no: RunNo, why: Stopped, now: Time) -> Result<(), StoreError> {
        self.store.stop_run(no, why, now)
    }
    fn claim(&mut self, orders: &[Order], now: Time) -> Result<Vec<Held>, StoreError> {
        let mut orders = orders.to_vec();
        if self.lie == Lie::StarvesTheLast {
            orders.iter_mut().for_each(|order| order.most /= 2);
        }
        self.store.claim(&orders, now)
    }
    fn held(&mut self, id: JobId) -> Result<Option<Held>, StoreError> {
        self.store.held(id)
    }

    fn hold(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Result<Held, Unheld>>, StoreError> {
        self.store.hold(ids, now)
    }

    fn takes_pasts(&self) -> bool {
        self.store.takes_pasts()
    }

    fn arrive(&mut self, jobs: &[Arriving], now: Time) -> Result<(), StoreError> {
        self.store.arrive(jobs, now)
    }

    fn settle(&mut self, settlements: &[Settlement], follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError> {
        match self.store.settle(settlements, follow_ups, now) {
            Err(StoreError::Stale(_)) if self.lie == Lie::ForgivesStaleClaims => Ok(()),
            answer => answer,
        }
    }
    fn release(&mut self, now: Time, limit: u32, late: Told<'_>) -> Result<(), StoreError> {
        self.store.release(now, if self.lie == Lie::ReleasesAll { u32::MAX } else { limit }, late)
    }
    fn shift_waits(&mut self, by: i64) -> Result<bool, StoreError> {
        self.store.shift_waits(by)
    }
    fn next_due(&mut self) -> Result<Option<Time>, StoreError> {
        self.store.next_due()
    }
    fn amend(&mut self, ids: &[JobId], amendment: Amendment, now: Time) -> Result<Vec<Amended>, StoreError> {
        self.store.amend(ids, amendment, now)
    }
    fn steer(&mut self, step: &Steer) -> Result<(), StoreError> {
        self.store.steer(step)
    }
    fn overrides(&mut self) -> Result<Vec<Override>, StoreError> {
        self.store.overrides()
    }

    fn jobs(&mut self, ids: &[JobId]) -> Result<Vec<Option<JobInfo>>, StoreError> {
        self.store.jobs(ids)
    }

    fn of_run(&mut self, run: RunId, from: Arrival, limit: usize) -> Result<(Vec<JobId>, Option<Arrival>), StoreError> {
        self.store.of_run(run, from, limit)
    }

    fn delete(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Deleted>, StoreError> {
        self.store.delete(ids, now)
    }

    fn joined(&mut self, run: RunId) -> Result<Option<RunInfo>, StoreError> {
        self.store.joined(run)
    }

    fn run_numbered(&mut self, no: RunNo) -> Result<Option<RunInfo>, StoreError> {
        self.store.run_numbered(no)
    }

    fn note(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.store.note(key, value)
    }

    fn notes(&mut self, prefix: &str, limit: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.store.notes(prefix, limit)
    }

    fn forget(&mut self, before: Time, limit: u32) -> Result<u64, StoreError> {
        self.store.forget(before, limit)
    }
    fn archived(&mut self, turn: u64) -> Result<(), StoreError> {
        self.store.archived(turn)
    }
    fn unarchived(&mut self) -> Result<Vec<Unarchived>, StoreError> {
        let told = self.store.unarchived()?;
        Ok(if self.lie == Lie::LosesOutcomes { Vec::new() } else { told })
    }
    fn changes(&mut self) -> Changes {
        let mut changes = self.store.changes();
        if self.lie == Lie::TellsNoEnd {
            changes.ended.clear();
        }
        changes
    }
    fn commit(&mut self, durability: Durability) -> Result<u64, StoreError> {
        let durability = if self.lie == Lie::ForgetsCommits { Durability::Os } else { durability };
        self.store.commit(durability)
    }
    fn rollback(&mut self) -> Result<(), StoreError> {
        match self.lie {
            Lie::KeepsRollbacks => self.store.commit(Durability::Full).map(|_| ()),
            _ => self.store.rollback(),
        }
    }
    fn epoch(&self) -> u64 {
        self.store.epoch()
    }
}

struct LiarBench(Lie);

impl Bench for LiarBench {
    type Store = Liar;

    fn fresh(&mut self) -> Liar {
        Liar { store: Memory::new(1), lie: self.0 }
    }

    fn crash(&mut self, mut liar: Liar) -> Liar {
        match self.0 {
            Lie::ForgetsCommits => liar.store.power_cut(0),
            _ => liar.store.crash(),
        }
        liar
    }

    fn view<'a>(&'a self, liar: &'a Liar) -> Box<dyn StoreView + 'a> {
        Box::new(&liar.store)
    }
}

#[test]
fn a_store_that_lies_is_found_out() {
    for lie in [
        Lie::ForgetsCommits,
        Lie::KeepsRollbacks,
        Lie::StarvesTheLast,
        Lie::TellsNoEnd,
        Lie::AccusesNobody,
        Lie::LosesOutcomes,
        Lie::ForgivesStaleClaims,
        Lie::ReleasesAll,
    ] {
        let found = catch_unwind(|| run_cases(&mut LiarBench(lie), told_cases()));
        let panic = found.expect_err(&format!("{lie:?} was not noticed"));
        assert!(words_of(&*panic).contains("cases failed"), "{lie:?}: {}", words_of(&*panic));
    }
}
