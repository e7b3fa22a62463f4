//! The suite that every store passes, and what a journal adds: records cut off anywhere, damage, and writing it anew.

use super::JournalStore;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::conformance::{self, Bench};
use windlass::store::{Durability, Filter, JobInfo, Lot, NewJobs, Store, StoreError, StoreView};
use windlass_core::job::{Arrival, Origin, Priority, QueueName};
use windlass_core::time::Time;

/// Every store of the suite has a directory of its own.
struct OnTheBench {
    place: tempfile::TempDir,
    stores: u32,
}

impl OnTheBench {
    fn new() -> OnTheBench {
        OnTheBench { place: tempfile::tempdir().unwrap(), stores: 0 }
    }

    fn dir(&self) -> PathBuf {
        self.place.path().join(self.stores.to_string())
    }

    fn open(&self) -> JournalStore {
        JournalStore::open(&self.dir()).unwrap()
    }
}

impl Bench for OnTheBench {
    type Store = JournalStore;

    fn fresh(&mut self) -> JournalStore {
        self.stores += 1;
        self.open()
    }

    /// All that the next process finds is in the file.
    fn crash(&mut self, store: JournalStore) -> JournalStore {
        drop(store);
        self.open()
    }

    fn view<'a>(&'a self, store: &'a JournalStore) -> Box<dyn StoreView + 'a> {
        Box::new(store.view())
    }
}

#[test]
fn it_passes_the_suite_that_every_store_passes() {
    conformance::run(&mut OnTheBench::new());
}

fn push(store: &mut JournalStore, first: u64, count: u64) {
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    (first..first + count).for_each(|number| builder.push(number, &[b'x'; 100]));
    let (queue, jobs) = (QueueName::new(b"q").unwrap(), Arc::new(builder.finish()));
    let new = NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs };
    store.admit(&Lot { jobs: vec![new], ..Lot::default() }, Time(1)).unwrap();
    store.commit(Durability::Full).unwrap();
}

fn listed(store: &JournalStore) -> Vec<JobInfo> {
    store.view().list(&Filter::default(), Arrival(0), usize::MAX).unwrap().jobs
}

#[test]
fn a_turn_that_was_cut_off_anywhere_is_gone_and_all_before_it_are_there() {
    let bench = OnTheBench::new();
    let (mut store, path) = (bench.open(), bench.dir().join("journal"));
    push(&mut store, 1, 3);
    let whole = fs::metadata(&path).unwrap().len();
    push(&mut store, 10, 2);
    drop(store);
    let bytes = fs::read(&path).unwrap();
    for length in whole as usize..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let mut store = bench.open();
        assert_eq!(listed(&store).len(), 3, "cut at {length}");
        // What comes next is not hidden by what was half there.
        push(&mut store, 20, 1);
        drop(store);
        assert_eq!(listed(&bench.open()).len(), 4, "cut at {length}");
    }
}

#[test]
fn damage_to_what_was_on_disk_is_refused_in_words() {
    let bench = OnTheBench::new();
    let (mut store, path) = (bench.open(), bench.dir().join("journal"));
    push(&mut store, 1, 3);
    let place = fs::metadata(&path).unwrap().len() as usize - 5;
    push(&mut store, 10, 1);
    push(&mut store, 20, 1);
    drop(store);
    let mut bytes = fs::read(&path).unwrap();
    bytes[place] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let refused = JournalStore::open(&bench.dir()).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Corrupt(why) if why.contains("the journal is damaged at byte")),
        "{refused}"
    );
    assert_eq!(fs::read(&path).unwrap(), bytes, "nothing of it was touched");
}

#[test]
fn a_long_journal_is_written_anew_with_all_that_is_there() {
    let bench = OnTheBench::new();
    let (mut store, path) = (bench.open(), bench.dir().join("journal"));
    push(&mut store, 1, 5);
    let mut longest = 0;
    for value in 0..3000u32 {
        store.note("n", Some(&[value as u8; 1000])).unwrap();
        store.commit(Durability::Os).unwrap();
        longest = longest.max(fs::metadata(&path).unwrap().len());
    }
    assert!(longest < 2 << 20, "it is {longest} bytes long");
    let before = listed(&store);
    drop(store);
    let mut store = bench.open();
    assert_eq!((listed(&store), before.len()), (before, 5));
    assert_eq!(store.notes("n", 9).unwrap(), [("n".to_owned(), vec![(2999 % 256) as u8; 1000])]);
}

#[test]
fn two_programs_cannot_have_it_at_once() {
    let bench = OnTheBench::new();
    let _first = bench.open();
    assert!(matches!(JournalStore::open(&bench.dir()), Err(StoreError::Locked(_))));
}
