//! Bodies of floods: on disk before their turn, read from their files, and gone with the last of them.

use super::*;
use std::path::PathBuf;
use std::sync::mpsc::channel;

/// Chunks of some hundred kilobytes, enough of them to fill more than one file.
fn flood(queue: &str, origin: u64, chunks: u64) -> Vec<NewJobs> {
    let chunk = |n: u64| {
        let mut builder = ChunkBuilder::new(Origin::from_random(origin));
        (0..3).for_each(|k| builder.push(n * 3 + k, &body(origin, n * 3 + k)));
        NewJobs { jobs: Arc::new(builder.finish()), ..jobs(queue, 1, 0..1) }
    };
    (0..chunks).map(chunk).collect()
}

fn body(origin: u64, offset: u64) -> Vec<u8> {
    let mut data = format!("{origin} {offset} ").into_bytes();
    data.resize(100_000, b'.');
    data
}

impl Bed {
    /// Has the bodies written, as the reader of the inbox does, and admits the lot.
    fn place(&mut self, jobs: Vec<NewJobs>) -> Lot {
        let (told, placed) = channel();
        let lot = Lot { jobs, ..Lot::default() };
        self.store().body_writer().place(lot, move |lot| told.send(lot).unwrap());
        placed.recv().unwrap().unwrap()
    }

    fn admit_flood(&mut self, jobs: Vec<NewJobs>) -> Vec<crate::store::Extent> {
        let lot = self.place(jobs);
        self.store().admit(&lot, NOW).unwrap();
        lot.bodies
    }

    /// The names in the directory; the thread has done what it was told once the store is closed.
    fn body_files(&mut self) -> Vec<String> {
        self.store = None;
        let names = std::fs::read_dir(self.dir.bodies()).unwrap();
        let mut names: Vec<String> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn body_path(&self, no: u32) -> PathBuf {
        self.dir.bodies().join(format!("{no:08}"))
    }

    fn work_off(&mut self, queue: u32) -> u64 {
        let held = self.claim(queue, LaneKind::Fresh, u32::MAX);
        held.iter().for_each(|held| self.settle(held, succeed()));
        let turn = self.commit();
        self.store().archived(turn).unwrap();
        held.iter().map(|held| u64::from(held.count)).sum()
    }
}

#[test]
fn a_flood_is_read_from_its_files_and_survives_a_death() {
    let mut bed = Bed::new();
    let small = bed.admit_flood(vec![jobs("small", 1, 0..10)]);
    assert_eq!(small, [], "a small lot is rows");
    let extents = bed.admit_flood(flood("a", 2, 20));
    assert_eq!(extents.iter().map(|extent| extent.file).collect::<Vec<_>>(), vec![1; 20]);
    bed.commit();
    let stored: u64 =
        bed.store().db.query_row("SELECT count(*) FROM chunk WHERE bytes IS NULL", [], |r| r.get(0)).unwrap();
    assert_eq!(stored, 20, "the bytes are not in the database too");
    bed.kill("boot");
    assert!(bed.job(id(2, 31)).unwrap().data == body(2, 31));
    let held = bed.claim(1, LaneKind::Fresh, u32::MAX);
    assert_eq!(offsets(&held), (0..60).collect::<Vec<_>>());
    for held in &held {
        held.range().for_each(|at| assert!(held.jobs.data(at) == body(2, held.jobs.id(at).offset)));
    }
    bed.check();
}

#[test]
fn a_body_file_goes_when_its_last_chunk_is_forgotten_on_disk() {
    let mut bed = Bed::new();
    let first = bed.admit_flood(flood("a", 1, 60));
    let second = bed.admit_flood(flood("b", 2, 2));
    assert_eq!((first[59].file, second[0].file), (1, 2), "a long file is followed by another");
    bed.commit();
    assert_eq!(bed.work_off(0), 180);
    // The turn that forgets is in the kernel's hands only: after a power cut the older one would look for the file.
    bed.store().commit(Durability::Os).unwrap();
    assert_eq!(bed.body_files(), ["00000001", "00000002"]);
    bed.kill("boot");
    assert_eq!(bed.body_files(), ["00000002"], "an opening removes what nothing refers to");
    bed.kill("boot");
    assert_eq!(bed.work_off(1), 6);
    bed.commit();
    bed.admit_flood(flood("c", 3, 2));
    bed.commit();
    assert_eq!(bed.body_files(), ["00000003"], "nothing lives in the second, and no lot under way is in it");
    bed.kill("boot");
    assert_eq!(bed.work_off(2), 6);
    bed.commit();
    bed.kill("boot");
    assert!(bed.body_files().is_empty());
    bed.kill("boot");
    assert_eq!(bed.admit_flood(flood("c", 3, 2))[0].file, 4, "no number is given out twice");
}

#[test]
fn a_lot_whose_turn_was_dropped_keeps_its_bodies() {
    let mut bed = Bed::new();
    bed.admit_flood(flood("a", 1, 2));
    bed.commit();
    let lot = bed.place(flood("b", 2, 60));
    bed.store().admit(&lot, NOW).unwrap();
    bed.store().rollback().unwrap();
    assert_eq!(bed.work_off(0), 6);
    bed.commit();
    bed.store().admit(&lot, NOW).unwrap();
    bed.commit();
    bed.kill("boot");
    let held = bed.claim(1, LaneKind::Fresh, u32::MAX);
    assert_eq!(offsets(&held).len(), 180);
    bed.check();
}

#[test]
fn what_waits_for_long_does_not_hold_the_space_of_a_flood() {
    let mut bed = Bed::new();
    for round in 0..6 {
        let mut lot = flood("busy", 10 + round, 60);
        lot.extend(flood("idle", 20 + round, 1));
        bed.admit_flood(lot);
        bed.commit();
        bed.work_off(0);
        bed.commit();
    }
    bed.commit();
    for turn in 0..20 {
        bed.admit(vec![jobs("little", 30, turn..turn + 1)]);
        bed.commit();
    }
    let files = bed.body_files().len();
    assert!(files < 6, "{files} files are held by one chunk each");
    bed.kill("boot");
    let held = bed.claim(1, LaneKind::Fresh, u32::MAX);
    assert_eq!(held.len(), 6);
    for held in &held {
        let origin = (20..26).find(|origin| held.jobs.origin() == Origin::from_random(*origin)).unwrap();
        held.range().for_each(|at| assert!(held.jobs.data(at) == body(origin, held.jobs.id(at).offset)));
    }
    bed.check();
}

#[test]
fn a_missing_or_short_body_file_is_said_at_the_opening_and_a_damaged_one_never_is_a_job() {
    let mut bed = Bed::new();
    bed.admit_flood(flood("a", 1, 4));
    bed.commit();
    bed.store = None;
    let path = bed.body_path(1);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(matches!(Embedded::open(&bed.dir, "boot"), Err(StoreError::Corrupt(_))));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(Embedded::open(&bed.dir, "boot"), Err(StoreError::Corrupt(_))));
    let mut damaged = whole.clone();
    damaged[5000] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    bed.kill("boot");
    let lane = Lane { queue: QueueNo(0), priority: Priority::NORMAL, kind: LaneKind::Fresh };
    let claimed = bed.store().claim(&[Order { lane, most: 1 }], NOW).map(|held| held.len());
    assert!(matches!(claimed, Err(StoreError::Corrupt(_))), "{claimed:?}");
}

#[test]
fn a_torn_end_that_no_turn_refers_to_is_not_read() {
    let mut bed = Bed::new();
    bed.admit_flood(flood("a", 1, 2));
    bed.commit();
    bed.place(flood("lost", 2, 2));
    bed.store = None;
    let path = bed.body_path(1);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 70_000).unwrap();
    bed.kill("boot");
    assert_eq!(bed.admit_flood(flood("b", 3, 2))[0].file, 2, "nothing is written behind an end that may be torn");
    assert_eq!(bed.work_off(0), 6);
    bed.commit();
    bed.check();
}

#[test]
fn a_backup_keeps_body_files_from_going() {
    let mut bed = Bed::new();
    bed.admit_flood(flood("a", 1, 60));
    bed.admit_flood(flood("b", 2, 2));
    bed.commit();
    let held = crate::store::embedded::bodies::hold(&bed.dir.bodies()).unwrap();
    bed.work_off(0);
    bed.commit();
    assert_eq!(bed.body_files().len(), 2);
    drop(held);
    bed.kill("boot");
    assert_eq!(bed.body_files(), ["00000002"]);
}
