//! A store of this program's own: it keeps count of what each turn asks of it, and leaves the keeping to another.
//!
//! A store that keeps jobs itself looks the same; `windlass::store::Store` says what each verb must do, and the suite
//! below says whether it does.

use std::collections::BTreeMap;
use windlass::store::{
    Amended, Amendment, Changes, Deleted, Durability, Evidence, FollowUp, Held, JobInfo, Lot, NewJobs, NewRun, Order,
    Recovered, RunInfo, Settlement, Steer, Store, StoreError, Told, Unarchived,
};
use windlass_core::job::{Arrival, JobId, RunId, RunNo};
use windlass_core::overrides::Override;
use windlass_core::run::terms::Stopped;
use windlass_core::time::Time;

/// Counts the verbs.
#[derive(Debug)]
pub(crate) struct Counting<S> {
    kept: S,
    pub(crate) verbs: BTreeMap<&'static str, u64>,
}

impl<S> Counting<S> {
    pub(crate) fn new(kept: S) -> Counting<S> {
        Counting { kept, verbs: BTreeMap::new() }
    }

    fn count(&mut self, verb: &'static str) -> &mut S {
        *self.verbs.entry(verb).or_default() += 1;
        &mut self.kept
    }
}

impl<S: Store> Store for Counting<S> {
    fn backlog(&mut self) -> Result<Changes, StoreError> {
        self.count("backlog").backlog()
    }

    fn open_runs(&mut self) -> Result<Vec<RunInfo>, StoreError> {
        self.count("open_runs").open_runs()
    }

    fn recover(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        self.count("recover").recover(evidence, now)
    }

    fn admit(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError> {
        self.count("admit").admit(lot, now)
    }

    fn holders(&mut self, new: &NewJobs) -> Result<Vec<Option<JobId>>, StoreError> {
        self.count("holders").holders(new)
    }

    fn joined(&mut self, run: RunId) -> Result<Option<RunInfo>, StoreError> {
        self.count("joined").joined(run)
    }

    fn open_run(&mut self, id: RunId, run: &NewRun, now: Time) -> Result<RunNo, StoreError> {
        self.count("open_run").open_run(id, run, now)
    }

    fn stop_run(&mut self, no: RunNo, why: Stopped, now: Time) -> Result<(), StoreError> {
        self.count("stop_run").stop_run(no, why, now)
    }

    fn claim(&mut self, orders: &[Order], now: Time) -> Result<Vec<Held>, StoreError> {
        self.count("claim").claim(orders, now)
    }

    fn held(&mut self, id: JobId) -> Result<Option<Held>, StoreError> {
        self.count("held").held(id)
    }

    fn settle(&mut self, ended: &[Settlement], follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError> {
        self.count("settle").settle(ended, follow_ups, now)
    }

    fn release(&mut self, now: Time, limit: u32, late: Told<'_>) -> Result<(), StoreError> {
        self.count("release").release(now, limit, late)
    }

    fn next_due(&mut self) -> Result<Option<Time>, StoreError> {
        self.count("next_due").next_due()
    }

    fn shift_waits(&mut self, by: i64) -> Result<bool, StoreError> {
        self.count("shift_waits").shift_waits(by)
    }

    fn amend(&mut self, ids: &[JobId], amendment: Amendment, now: Time) -> Result<Vec<Amended>, StoreError> {
        self.count("amend").amend(ids, amendment, now)
    }

    fn steer(&mut self, step: &Steer) -> Result<(), StoreError> {
        self.count("steer").steer(step)
    }

    fn overrides(&mut self) -> Result<Vec<Override>, StoreError> {
        self.count("overrides").overrides()
    }

    fn jobs(&mut self, ids: &[JobId]) -> Result<Vec<Option<JobInfo>>, StoreError> {
        self.count("jobs").jobs(ids)
    }

    fn delete(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Deleted>, StoreError> {
        self.count("delete").delete(ids, now)
    }

    fn of_run(&mut self, run: RunId, from: Arrival, limit: usize) -> Result<(Vec<JobId>, Option<Arrival>), StoreError> {
        self.count("of_run").of_run(run, from, limit)
    }

    fn run_numbered(&mut self, no: RunNo) -> Result<Option<RunInfo>, StoreError> {
        self.count("run_numbered").run_numbered(no)
    }

    fn note(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.count("note").note(key, value)
    }

    fn notes(&mut self, prefix: &str, limit: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.count("notes").notes(prefix, limit)
    }

    fn forget(&mut self, before: Time, limit: u32) -> Result<u64, StoreError> {
        self.count("forget").forget(before, limit)
    }

    fn archived(&mut self, turn: u64) -> Result<(), StoreError> {
        self.count("archived").archived(turn)
    }

    fn unarchived(&mut self) -> Result<Vec<Unarchived>, StoreError> {
        self.count("unarchived").unarchived()
    }

    fn changes(&mut self) -> Changes {
        self.count("changes").changes()
    }

    fn commit(&mut self, durability: Durability) -> Result<u64, StoreError> {
        self.count("commit").commit(durability)
    }

    fn rollback(&mut self) -> Result<(), StoreError> {
        self.count("rollback").rollback()
    }

    fn has_room(&mut self) -> bool {
        self.count("has_room").has_room()
    }

    fn epoch(&self) -> u64 {
        self.kept.epoch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass::store::StoreView;
    use windlass::store::conformance::{self, Bench};
    use windlass::store::memory::Memory;

    struct OnTheBench(u64);

    impl Bench for OnTheBench {
        type Store = Counting<Memory>;

        fn fresh(&mut self) -> Counting<Memory> {
            self.0 += 1;
            Counting::new(Memory::new(self.0))
        }

        fn crash(&mut self, mut store: Counting<Memory>) -> Counting<Memory> {
            store.kept.crash();
            store
        }

        fn view<'a>(&'a self, store: &'a Counting<Memory>) -> Box<dyn StoreView + 'a> {
            Box::new(&store.kept)
        }
    }

    #[test]
    fn it_passes_the_suite_that_every_store_passes() {
        conformance::run(&mut OnTheBench(0));
    }
}
