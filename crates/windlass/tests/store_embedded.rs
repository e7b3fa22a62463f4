//! The embedded store passes the suite, and survives failure at every I/O call.
//!
//! A crash here leaves the files as the kernel has them: they are copied aside as they are, and the copy is opened.
//! The fault layer's counters are those of the process, so these tests have a binary of their own and take turns.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use windlass::data_dir::DataDir;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::conformance::{self, Bench, faults::Shaky};
use windlass::store::embedded::{Embedded, View};
use windlass::store::fault::{self, Kind, Plan};
use windlass::store::{Durability, Lot, NewJobs, Store, StoreError, StoreView};
use windlass_core::job::{Origin, Priority, QueueName};
use windlass_core::time::Time;

static TURN: Mutex<()> = Mutex::new(());

/// Waits for the other tests of this binary; one that failed does not stop the rest.
fn alone() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    fault::install();
    fault::disarm();
    fault::unsynced::forget();
    turn
}

/// Each store in a directory of its own.
struct OnDisk {
    place: tempfile::TempDir,
    kind: Kind,
    /// An empty store that is copied instead of being made anew.
    made: Option<tempfile::TempDir>,
}

impl OnDisk {
    fn new(kind: Kind) -> OnDisk {
        OnDisk { place: place(), kind, made: None }
    }

    fn made(kind: Kind) -> OnDisk {
        let mut bench = OnDisk::new(kind);
        drop(Bench::fresh(&mut bench));
        let made = std::mem::replace(&mut bench.place, place());
        OnDisk { made: Some(made), ..bench }
    }

    fn dir(&self) -> DataDir {
        DataDir::open(self.place.path()).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The files as they are now go on in another directory; what the old process does after that is lost.
    fn copy_aside(&mut self) {
        let next = place();
        for (from, to) in self.files_in(&next) {
            if from.exists() {
                std::fs::copy(from, to).unwrap();
            }
        }
        self.place = next;
    }

    /// The store's files, and where they go in another directory.
    fn files_in(&self, next: &tempfile::TempDir) -> [(PathBuf, PathBuf); 2] {
        let log = |db: PathBuf| {
            let mut log = db.into_os_string();
            log.push("-wal");
            PathBuf::from(log)
        };
        let (from, to) = (self.dir().state_db(), DataDir::open(next.path()).unwrap().state_db());
        [(from.clone(), to.clone()), (log(from), log(to))]
    }
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory for the test")
}

impl Bench for OnDisk {
    type Store = Embedded;

    fn fresh(&mut self) -> Embedded {
        Shaky::wipe(self);
        Shaky::open(self).unwrap_or_else(|e| panic!("{e}"))
    }

    fn crash(&mut self, store: Embedded) -> Embedded {
        Shaky::kill(self, store);
        Shaky::open(self).unwrap_or_else(|e| panic!("{e}"))
    }

    fn view<'a>(&'a self, store: &'a Embedded) -> Box<dyn StoreView + 'a> {
        Shaky::view(self, store)
    }
}

impl Shaky for OnDisk {
    type Store = Embedded;

    fn wipe(&mut self) {
        self.place = place();
        if let Some(made) = &self.made {
            let made = DataDir::open(made.path()).unwrap().state_db();
            std::fs::copy(made, self.dir().state_db()).unwrap();
        }
    }

    fn open(&mut self) -> Result<Embedded, StoreError> {
        Embedded::open(&self.dir(), "boot").map(|(store, _)| store)
    }

    fn kill(&mut self, store: Embedded) {
        self.copy_aside();
        drop(store);
    }

    fn view<'a>(&'a self, _store: &'a Embedded) -> Box<dyn StoreView + 'a> {
        Box::new(View::open(&self.dir().state_db()).unwrap_or_else(|e| panic!("{e}")))
    }

    fn arm(&mut self, nth: u64, from_then_on: bool) {
        fault::arm(Plan { nth, from_then_on, kind: self.kind });
    }

    fn disarm(&mut self) -> bool {
        fault::disarm().failed > 0
    }
}

#[test]
fn the_embedded_store_passes_the_suite() {
    let _turn = alone();
    conformance::run(&mut OnDisk::new(Kind::Error));
}

#[test]
fn whichever_call_fails_every_answered_turn_is_kept() {
    let _turn = alone();
    let runs = conformance::faults::every_call(&mut OnDisk::new(Kind::Error));
    assert!(runs > 100, "the script makes some calls: {runs}");
    // What differs by kind is writing, which making the store has been through already.
    for (kind, from_then_on) in [(Kind::Full, false), (Kind::Torn, true)] {
        let mut bench = OnDisk::made(kind);
        let runs = conformance::faults::each_call(&mut bench, from_then_on);
        assert!(runs > 50, "the script makes some calls: {runs}");
    }
}

fn one_job(offset: u64) -> Lot {
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    builder.push(offset, b"data");
    let queue = QueueName::new(b"q").unwrap();
    let jobs = std::sync::Arc::new(builder.finish());
    let new = NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs };
    Lot { jobs: vec![new], ..Lot::default() }
}

/// The calls that this made.
fn calls(act: impl FnOnce()) -> u64 {
    fault::arm(Plan { nth: u64::MAX, from_then_on: false, kind: Kind::Error });
    act();
    fault::disarm().calls
}

#[test]
fn a_full_commit_syncs_what_os_commits_left_also_where_it_changes_nothing() {
    let _turn = alone();
    let mut bench = OnDisk::new(Kind::Error);
    let mut store = Bench::fresh(&mut bench);
    let full = |store: &mut Embedded| calls(|| assert!(store.commit(Durability::Full).is_ok()));
    store.admit(&one_job(1), Time(1)).unwrap();
    store.commit(Durability::Full).unwrap();
    assert_eq!(full(&mut store), 0, "everything is on disk, so nothing is done");
    store.admit(&one_job(2), Time(1)).unwrap();
    store.commit(Durability::Os).unwrap();
    assert_eq!(calls(|| assert!(store.commit(Durability::Os).is_ok())), 0, "an os commit does not sync");
    assert_eq!(full(&mut store), 1, "the log is synced once");
    assert_eq!(full(&mut store), 0, "and not again");
    store.admit(&one_job(3), Time(1)).unwrap();
    store.commit(Durability::Os).unwrap();
    fault::arm(Plan { nth: 1, from_then_on: false, kind: Kind::Error });
    let failed = store.commit(Durability::Full);
    assert_eq!(fault::disarm().failed, 1, "the sync failed");
    assert!(matches!(failed, Err(StoreError::Io(_))), "{failed:?}");
    for _ in 0..2 {
        let after = store.commit(Durability::Full);
        assert!(matches!(after, Err(StoreError::Io(_))), "a sync that failed is never taken back: {after:?}");
        let after = store.rollback();
        assert!(matches!(after, Err(StoreError::Io(_))), "not by a rollback either: {after:?}");
    }
}

/// So many jobs of 3 KiB make a lot of which a few bring the log to its first checkpoint.
const LARGE: u64 = 60;

fn large_lot(first: u64) -> Lot {
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    (first..first + LARGE).for_each(|offset| builder.push(offset, &[offset as u8; 3 << 10]));
    let mut lot = one_job(0);
    lot.jobs[0].jobs = std::sync::Arc::new(builder.finish());
    lot
}

/// A power cut after the answer of any turn: of what was not synced nothing stays, or some of it, in any order.
#[test]
fn a_power_cut_keeps_every_full_commit_also_across_checkpoints() {
    const TURNS: u64 = 70;
    let _turn = alone();
    fault::unsynced::record();
    let mut bench = OnDisk::new(Kind::Error);
    let mut store = Bench::fresh(&mut bench);
    let mut coin = 0x2545_f491_4f6c_dd1d_u64;
    let mut lost = 0;
    let mut turns = 0..4 * TURNS;
    // A checkpoint is under way only now and then where the machine has other things to do.
    while let Some(turn) = turns.next().filter(|turn| *turn < TURNS || lost <= 100) {
        store.admit(&large_lot(1 + turn * LARGE), Time(1)).unwrap();
        store.commit(Durability::Full).unwrap();
        for keep_some in [false, true] {
            let next = place();
            let flip = || {
                coin ^= coin << 13;
                coin ^= coin >> 7;
                coin ^= coin << 17;
                keep_some && coin & 1 == 0
            };
            lost += fault::unsynced::cut(&bench.files_in(&next), flip).unwrap();
            let dir = DataDir::open(next.path()).unwrap();
            let opened = Embedded::open(&dir, "another boot").map(|_| ());
            assert_eq!(opened, Ok(()), "the store cannot be opened after turn {turn}");
            let view = View::open(&dir.state_db()).unwrap();
            let found = conformance::audit::check(&view).len() as u64;
            assert_eq!(found, LARGE * (turn + 1), "jobs after a cut behind turn {turn}");
        }
    }
    fault::unsynced::forget();
    assert!(lost > 100, "only {lost} writes were not synced: there was no checkpoint under way");
}
