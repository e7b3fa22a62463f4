//! Rows of ours that another program changed, with or without a word in `status`.

use crate::databases::Place;
use crate::server::{NOW, Server, end, everywhere, fail, gained, ids, jobs, server, succeed};
use std::time::Duration;
use windlass::store::sql::{Keep, SqlOptions, SqlView};
use windlass::store::{Evidence, Filter, Lot, Occasion, Order, Store, StoreError, StoreView};
use windlass_core::job::{Arrival, DATA_MAX, Lane, Priority};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// A text of more bytes than a job may have.
fn too_much(place: &Place) -> String {
    let count = DATA_MAX + 1;
    if place.is_postgres() || place.is_mariadb() {
        format!("repeat('x', {count})")
    } else {
        format!("substr(hex(zeroblob({count})), 1, {count})")
    }
}

fn told_of(place: &Place, offset: u64) -> String {
    place.statement(&format!("SELECT status, details FROM jobs WHERE job_offset = {offset}"))
}

#[test]
fn more_data_than_a_job_may_have_is_marked_in_words_wherever_the_row_stands() {
    const WORDS: &str = "error\tthe data has 1048577 bytes, expected at most 1048576";
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 4, None)], ..Lot::default() });
        let grow = |offset: u64| {
            let data = too_much(place);
            place.statement(&format!("UPDATE jobs SET data = {data} WHERE job_offset = {offset}"));
        };
        let held = one.claim("q", 2).remove(0);
        grow(1);
        // A row that waits: whoever claims it finds out, and takes what stands behind it.
        grow(2);
        let next = one.claim("q", 1);
        assert_eq!(ids(&next), [held.jobs.id(0)].map(|id| windlass_core::job::JobId { offset: 3, ..id }));
        assert_eq!(told_of(place, 2), WORDS);
        assert_eq!(place.statement("SELECT attempts FROM jobs WHERE job_offset = 2"), "0", "it was not started");
        // One that has failed, and is to be tried again.
        one.settle(&held.part(0, 1), fail()).unwrap();
        grow(0);
        let view = SqlView::open(place.options("view")).unwrap();
        assert_eq!(view.list(&Filter::default(), Arrival(0), 9).unwrap().jobs.len(), 4);
        place.statement("UPDATE jobs SET status = 'pending' WHERE job_offset = 0");
        one.look();
        assert_eq!(told_of(place, 0), WORDS);
        // One that ran when its server died.
        drop(one);
        let mut next = server(place, "one");
        assert!(next.claim("q", 9).iter().all(|held| held.jobs.data(0).len() < DATA_MAX));
        let suspects = Lane { kind: windlass_core::job::LaneKind::Suspect, ..next.lane("q") };
        next.store.release(NOW.after(Duration::from_secs(3600)), 9, Evidence::UNTOLD).unwrap();
        next.store.claim(&[Order { lane: suspects, most: 9 }], NOW.after(Duration::from_secs(3600))).unwrap();
        next.commit();
        assert_eq!(told_of(place, 1), WORDS);
    });
}

#[test]
fn a_job_whose_priority_another_program_changes_stands_in_its_new_lane() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 3, None)], ..Lot::default() });
        place.statement("UPDATE jobs SET priority = 10 WHERE job_offset = 1");
        let changes = one.look();
        let high = Lane { priority: Priority::new(10).unwrap(), ..one.lane("q") };
        assert_eq!((gained(&changes, one.lane("q")), gained(&changes, high)), (-1, 1));
        let held = one.store.claim(&[Order { lane: high, most: 9 }], NOW).unwrap();
        assert_eq!(ids(&held).len(), 1);
        one.commit();
        // One that nobody has looked for comes short, and the next look counts.
        place.statement("UPDATE jobs SET priority = 20 WHERE job_offset = 2");
        assert_eq!(one.claim("q", 2).len(), 1);
        let changes = one.look();
        let higher = Lane { priority: Priority::new(20).unwrap(), ..one.lane("q") };
        assert_eq!(gained(&changes, higher), 1);
    });
}

#[test]
fn thousands_that_another_program_wants_tried_again_are_looked_at_without_a_pause() {
    const ALL: i64 = 12_000;
    everywhere(|place| {
        let mut one = server(place, "one");
        let looks = |one: &mut Server| {
            let mut looks = 0;
            let mut sum = 0;
            loop {
                one.store
                    .look(if looks == 0 { Occasion::Asked } else { Occasion::Time }, Evidence::UNTOLD, NOW)
                    .unwrap();
                let changes = one.commit();
                sum += gained(&changes, one.lane("q"));
                looks += 1;
                if one.store.next_look().unwrap() > NOW {
                    return (looks, sum);
                }
            }
        };
        let some = |first| jobs("q", first * 500, 500, None);
        one.push(Lot { jobs: (0..ALL as u64 / 500).map(some).collect(), ..Lot::default() });
        place.statement("UPDATE jobs SET status = 'error'");
        assert_eq!(looks(&mut one), (3, -ALL), "three looks at 5,000 rows each, one after the other");
        place.statement("UPDATE jobs SET status = 'pending'");
        assert_eq!(looks(&mut one), (3, ALL));
        assert_eq!(place.statement("SELECT count(*) FROM jobs WHERE state = 1"), ALL.to_string());
    });
}

#[test]
fn a_row_that_succeeded_says_nothing_of_an_earlier_error_and_when_it_changed() {
    everywhere(|place| {
        place.statement("INSERT INTO jobs (name, data, status, updated_at) VALUES ('q', 'x', 'pending', '2001-01-01')");
        let mut one = server(place, "one");
        one.look();
        let changed = |place: &Place| {
            let told = place.statement("SELECT updated_at FROM jobs");
            assert!(told.starts_with("2030-03-17 17:46:40"), "{told}");
            place.statement("UPDATE jobs SET updated_at = '2001-01-01'");
        };
        let held = one.claim("q", 1).remove(0);
        changed(place);
        one.settle(&held, fail()).unwrap();
        changed(place);
        assert_eq!(place.statement("SELECT status, details FROM jobs"), "error\tit does not work");
        place.statement("UPDATE jobs SET status = 'pending', locked_queue_id = ''");
        one.look();
        changed(place);
        let again = one.claim("q", 1).remove(0);
        let quiet = windlass_core::judge::Verdict::Succeed { message: String::new() };
        one.settle(&again, quiet).unwrap();
        assert_eq!(place.statement("SELECT status, coalesce(details, '') FROM jobs").trim_end(), "completed");
        assert_eq!(place.statement("SELECT duration, attempts, locked_queue_id FROM jobs").trim_end(), "3\t2");
        changed(place);
    });
}

#[test]
fn another_try_is_of_the_queue_and_the_record_that_the_row_names_by_then() {
    everywhere(|place| {
        let mut one = server(place, "one");
        place.statement(
            "INSERT INTO jobs (name, data, status, taskable_id, taskable_type) \
             VALUES ('old', 'x', 'pending', 42, 'Upload')",
        );
        one.look();
        let held = one.claim("old", 1).remove(0);
        one.settle(&held, fail()).unwrap();
        place.statement("UPDATE jobs SET status = 'pending', name = 'new', taskable_id = 43, taskable_type = 'Page'");
        one.look();
        assert!(one.claim("old", 9).is_empty());
        let again = one.claim("new", 9).remove(0);
        let subject = again.jobs.particulars_of(0).unwrap().subject.clone().unwrap();
        assert_eq!((subject.kind.as_str(), subject.id.as_str(), again.start()), ("Page", "43", 2));
        one.settle(&again, succeed()).unwrap();
        assert_eq!(place.statement("SELECT status, name FROM jobs"), "completed\tnew");
        place.statement("UPDATE jobs SET status = 'pending', name = '-no'");
        one.look();
        assert_eq!(place.statement("SELECT status, details FROM jobs"), "error\ta queue name may not begin with `-`");
    });
}

#[test]
fn a_later_time_that_another_program_gives_a_row_that_waits_is_waited_for() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 2, None)], ..Lot::default() });
        let later = NOW.0 + 60_000_000;
        place.statement(&format!("UPDATE jobs SET run_at = {later} WHERE job_offset = 0"));
        let held = one.claim("q", 2);
        assert_eq!(ids(&held).iter().map(|id| id.offset).collect::<Vec<_>>(), [1]);
        assert_eq!(place.statement("SELECT status, attempts FROM jobs WHERE job_offset = 0"), "pending\t0");
        assert_eq!(one.store.next_due().unwrap(), Some(Time(later)));
        one.store.release(Time(later), 9, Evidence::UNTOLD).unwrap();
        let changes = one.commit();
        assert_eq!(gained(&changes, one.lane("q")), 1);
        let moved = changes.moves.iter().find(|step| step.to == Some(State::Ready)).unwrap();
        assert_eq!(moved.from, Some(State::Scheduled));
        assert_eq!(one.claim("q", 2).len(), 1);
    });
}

#[test]
fn a_server_that_may_not_control_removes_nothing_that_is_old() {
    everywhere(|place| {
        let options = |controls| windlass::store::sql::SqlOptions { controls, ..place.options("one") };
        let mut one = crate::server::server_with(options(true));
        one.push(Lot { jobs: vec![jobs("q", 0, 1, None)], ..Lot::default() });
        let held = one.claim("q", 1).remove(0);
        one.settle(&held, succeed()).unwrap();
        place.statement("UPDATE jobs SET ended_at = 1");
        drop(one);
        place.statement("UPDATE windlass_meta SET controller = 0, controller_until = 0");
        let mut idle = crate::server::server_with(options(false));
        idle.look();
        assert!(!idle.store.controls());
        assert_eq!(place.statement("SELECT count(*) FROM jobs"), "1");
        drop(idle);
        crate::server::server_with(options(true)).look();
        assert_eq!(place.statement("SELECT count(*) FROM jobs"), "0");
    });
}

#[test]
fn rows_that_another_table_refers_to_stay_and_that_is_said_once() {
    for place in [Place::postgres(), Place::mariadb()] {
        place.options("setup").apply().unwrap();
        place.statement("CREATE TABLE notes (job_id bigint NOT NULL REFERENCES jobs (id))");
        let plan = place.options("setup").plan().unwrap();
        assert!(plan.remarks[0].contains("the table `notes` refers to `jobs`"), "{plan:?}");
        for keep in [Keep::None, Keep::Rows] {
            let mut one = crate::server::server_with(SqlOptions { keep, ..place.options("one") });
            assert_eq!(one.store.remarks().len(), 1, "it is said at the beginning");
            one.push(Lot { jobs: vec![jobs("q", 0, 2, None)], ..Lot::default() });
            place.statement("INSERT INTO notes SELECT id FROM jobs");
            let held = one.claim("q", 2).remove(0);
            let ends = [end(&held.part(0, 1), succeed()), end(&held.part(1, 1), fail())];
            if keep == Keep::None {
                assert!(matches!(one.store.settle(&ends, &[], NOW), Err(StoreError::Busy(_))));
                one.store.rollback().unwrap();
            }
            one.store.settle(&ends, &[], NOW).unwrap();
            one.commit();
            place.statement("UPDATE jobs SET ended_at = 1 WHERE ended_at IS NOT NULL");
            one.look();
            assert_eq!(one.store.forget(NOW, 9).unwrap(), 0);
            one.commit();
            one.look();
            let said = if keep == Keep::None { 2 } else { 1 };
            assert_eq!(one.store.remarks().len(), said);
            let left = place.statement("SELECT status FROM jobs ORDER BY id");
            assert_eq!(left.lines().collect::<Vec<_>>(), ["completed", "error"]);
            place.statement("DELETE FROM notes");
            one.look();
            assert_eq!(one.store.forget(NOW, 9).unwrap(), 1);
            one.commit();
            assert_eq!(place.statement("SELECT count(*) FROM jobs"), "0", "what nobody refers to goes");
            one.store.leave().unwrap();
        }
    }
}
