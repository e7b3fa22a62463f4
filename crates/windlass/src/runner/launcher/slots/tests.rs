//! Notes survive their writer, ring round oldest first, and stay readable in every state.

use super::*;

fn job(offset: u64) -> JobId {
    JobId { origin: Origin::from_random(9), offset }
}

#[test]
fn notes_tell_what_had_begun() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), 0);
    {
        let table = Table::open(&file).unwrap();
        let never = table.note(job(1), 1, 1).unwrap();
        let told = table.note(job(2), 2, 3).unwrap();
        table.pid_of(told).store(77, Ordering::Release);
        table.started(told);
        table.ended(told, true);
        let killed = table.note(job(3), 3, 1).unwrap();
        table.pid_of(killed).store(78, Ordering::Release);
        table.ended(killed, false);
        assert_eq!([never, told, killed], [0, 1, 2]);
        let notes = read_all(dir.path()).unwrap();
        let fates: Vec<Fate> = notes.iter().map(|note| note.fate).collect();
        assert_eq!(fates, [Fate::Unknown, Fate::Reported, Fate::Dead]);
        assert!(notes.iter().all(|note| note.this_boot));
    }
    for _ in 0..2 {
        let evidence = prove_dead(dir.path()).unwrap();
        assert!(!evidence.begun(job(1), 1), "noted, but it never became a process");
        assert!(evidence.begun(job(2), 3) && !evidence.was_running(job(2), 3));
        assert!(!evidence.begun(job(2), 2), "another start");
        assert!(evidence.begun(job(3), 1) && evidence.was_running(job(3), 1));
        assert!(!evidence.begun(job(4), 1));
        assert!(evidence.same_boot());
    }
    assert_eq!(read_all(dir.path()).unwrap()[0].fate, Fate::Dead);
}

#[test]
fn what_a_kept_worker_is_at_had_begun_and_what_it_answered_had_not() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::open(&kept_path(dir.path())).unwrap();
    let pid = std::process::id() as i32;
    for (at, offset) in [(0, 1), (1, 2), (2, 3), (0, 4)] {
        table.mark(at, job(offset), 7, pid);
    }
    table.clear(1);
    table.ended(2, true);
    drop(table);
    let evidence = prove_dead(dir.path()).unwrap();
    let begun: Vec<u64> = (1..=5).filter(|offset| evidence.begun(job(*offset), 7)).collect();
    assert_eq!(begun, [3, 4], "and who had its number since is not killed: this test goes on");
    assert!(!evidence.begun(job(4), 6), "another start");
}

#[test]
fn a_process_for_many_jobs_speaks_for_all_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::open(&path(dir.path(), 0)).unwrap();
    let many = table.note(job(10), 19, 1).unwrap();
    table.pid_of(many).store(77, Ordering::Release);
    table.ended(many, false);
    drop(table);
    let evidence = prove_dead(dir.path()).unwrap();
    for (offset, start, begun) in
        [(9, 1, false), (10, 1, true), (15, 1, true), (19, 1, true), (20, 1, false), (15, 2, false)]
    {
        assert_eq!(evidence.begun(job(offset), start), begun, "{offset} {start}");
    }
    let other = JobId { origin: Origin::from_random(8), offset: 15 };
    assert!(!evidence.begun(other, 1));
}

#[test]
fn old_notes_give_way_last_and_live_ones_never() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::open(&path(dir.path(), 0)).unwrap();
    let kept = table.note(job(0), 0, 1).unwrap();
    for offset in 1..SLOTS as u64 {
        let slot = table.note(job(offset), offset, 1).unwrap();
        table.ended(slot, true);
    }
    assert_eq!(table.note(job(9999), 9999, 1), Some(1), "the oldest that is not live");
    assert_eq!(read_all(dir.path()).unwrap()[kept].job, job(0));
    for _ in 2..SLOTS {
        table.note(job(1), 1, 1).unwrap();
    }
    assert_eq!(table.note(job(1), 1, 1), None, "all are live");
}

#[test]
fn another_boot_accuses_nobody_and_kills_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), 3);
    {
        let mut table = Table::open(&file).unwrap();
        table.boot = 12;
        let slot = table.note(job(1), 1, 1).unwrap();
        // Our own pid: were the boot not looked at, this test would end here.
        table.pid_of(slot).store(u64::from(std::process::id()), Ordering::Release);
        table.slot(slot)[BORN_FROM].store(0, Ordering::Release);
        table.slot(slot)[BORN_TO].store(u64::MAX, Ordering::Release);
    }
    let evidence = prove_dead(dir.path()).unwrap();
    assert!(evidence.begun(job(1), 1) && !evidence.was_running(job(1), 1) && !evidence.same_boot());
}

#[test]
fn a_number_that_was_given_to_another_is_not_the_process() {
    let dir = tempfile::tempdir().unwrap();
    {
        let table = Table::open(&path(dir.path(), 0)).unwrap();
        let slot = table.note(job(1), 1, 1).unwrap();
        // Our own pid with a birth that is not ours.
        table.pid_of(slot).store(u64::from(std::process::id()), Ordering::Release);
        table.slot(slot)[BORN_FROM].store(1, Ordering::Release);
        table.slot(slot)[BORN_TO].store(2, Ordering::Release);
    }
    assert!(prove_dead(dir.path()).unwrap().was_running(job(1), 1));
}

#[test]
fn garbage_is_no_table() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(path(dir.path(), 0), b"short").unwrap();
    std::fs::write(path(dir.path(), 1), vec![0xa5; SIZE]).unwrap();
    assert_eq!(read_all(dir.path()).unwrap(), []);
    assert!(prove_dead(dir.path()).unwrap().begun(job(1), 1), "nothing is known, so it may have");
    Table::open(&path(dir.path(), 1)).unwrap();
    assert!(!prove_dead(dir.path()).unwrap().begun(job(1), 1));
}

#[test]
fn of_a_full_table_only_what_is_asked_for_is_kept_and_all_of_it_is_proven_dead() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), 0);
    {
        let table = Table::open(&file).unwrap();
        for offset in 0..SLOTS as u64 {
            let slot = table.note(job(offset), offset, 1).unwrap();
            if offset % 2 == 0 {
                table.ended(slot, true);
            }
        }
    }
    let asked = [(job(6), 1), (job(7), 1), (job(SLOTS as u64 - 1), 1), (job(6), 2)];
    let evidence = prove_one_dead(&file, |job, start| asked.contains(&(job, start))).unwrap();
    assert_eq!(evidence.notes.len(), 3, "a launcher dies with thousands of old notes");
    assert!(
        evidence.notes.capacity() < 64 && asked[..3].iter().all(|(job, start)| evidence.note(*job, *start).is_some())
    );
    let left = read_all(dir.path()).unwrap().iter().filter(|note| note.fate == Fate::Unknown).count();
    assert_eq!(left, 0, "what nobody asked for is proven dead too");
}
