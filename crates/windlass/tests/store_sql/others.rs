//! A jobs table is not ours alone: other programs write to it with their own clients, and other servers work at it.
//!
//! Every story is told on PostgreSQL, MariaDB and SQLite. Nothing waits: a server that is to be dead has a lease of no
//! length, and a connection that is to be lost is cut.

use crate::databases::Place;
use crate::server::{
    NOW, Server, end, everywhere, evidence, fail, gained, ids, jobs, queue, server, server_with, succeed,
};
use std::sync::Arc;
use std::time::Duration;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::sql::{SqlOptions, SqlStore, SqlView};
use windlass::store::{
    Arriving, Durability, Evidence, FollowUp, Gone, Held, Lot, MOVED, NewJobs, NewRun, Occasion, Order, Past,
    Recovered, Seal, Settlement, Store, StoreError, StoreView,
};
use windlass_core::job::{JobId, Lane, Origin, Priority, Record, RunId};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

#[test]
fn a_plain_insert_is_a_job_and_its_row_tells_how_it_goes() {
    everywhere(|place| {
        let mut one = server(place, "one");
        place.statement(
            "INSERT INTO jobs (name, data, status, taskable_id, taskable_type) \
             VALUES ('mail', 'to: grün', 'pending', 42, 'Upload')",
        );
        let changes = one.look();
        assert_eq!(gained(&changes, one.lane("mail")), 1);
        let held = one.claim("mail", 9).remove(0);
        assert_eq!(held.jobs.data(0), "to: grün".as_bytes());
        let subject = held.jobs.particulars_of(0).unwrap().subject.clone().unwrap();
        assert_eq!((subject.kind.as_str(), subject.id.as_str()), ("Upload", "42"));
        let row = place.statement("SELECT status, attempts, locked_queue_id FROM jobs");
        assert!(row.starts_with("processing\t1\tone:"), "{row}");
        one.settle(&held, succeed()).unwrap();
        let row = place.statement("SELECT status, attempts, duration, details, locked_queue_id FROM jobs");
        assert_eq!(row.trim_end(), "completed\t1\t3\tdone");
        assert!(one.look().moves.is_empty(), "it is looked at once");
    });
}

#[test]
fn a_word_is_about_rows_and_one_that_is_not_soon_leads_to_a_look_at_all() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.look();
        let insert = "INSERT INTO jobs (name, data, status) VALUES ('q', 'x', 'pending')";
        place.statement(insert);
        assert!(!one.store.look(Occasion::Word, Evidence::UNTOLD, NOW).unwrap(), "a look for rows");
        assert_eq!(gained(&one.commit(), one.lane("q")), 1);
        // The word of a server that came since the last look at all: its job is no new row.
        server(place, "two").push(Lot { jobs: vec![jobs("q", 0, 1, None)], ..Lot::default() });
        assert!(!one.store.look(Occasion::Word, Evidence::UNTOLD, NOW).unwrap(), "that was a moment ago");
        assert_eq!(gained(&one.commit(), one.lane("q")), 0);
        let soon = one.store.next_look().unwrap();
        assert!(soon <= NOW.after(Duration::from_secs(1)), "nobody has to say it again: {soon:?}");
        assert!(one.store.look(Occasion::Word, Evidence::UNTOLD, soon).unwrap(), "a look at all");
        assert_eq!(gained(&one.commit(), one.lane("q")), 1);
        // Now it is known that there are others, and their word is enough.
        place.statement("UPDATE jobs SET status = 'completed' WHERE data = 'x'");
        assert!(!one.store.look(Occasion::Word, Evidence::UNTOLD, soon).unwrap());
        assert_eq!(gained(&one.commit(), one.lane("q")), -1);
    });
}

#[test]
fn a_row_that_failed_waits_for_whoever_writes_pending_and_is_then_tried_again() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 1, None)], ..Lot::default() });
        let held = one.claim("q", 1).remove(0);
        one.settle(&held, fail()).unwrap();
        assert_eq!(place.statement("SELECT status, details FROM jobs"), "error\tit does not work");
        assert!(one.look().moves.is_empty() && one.claim("q", 1).is_empty(), "by itself nothing happens");
        place.statement("UPDATE jobs SET status = 'pending', locked_queue_id = ''");
        assert_eq!(gained(&one.look(), one.lane("q")), 1);
        let again = one.claim("q", 1).remove(0);
        assert_eq!((again.start(), again.record.failures), (2, 0));
        assert_eq!(ids(std::slice::from_ref(&again)), ids(&[held]), "it is the same job");
        one.settle(&again, succeed()).unwrap();
        assert_eq!(place.statement("SELECT status, attempts FROM jobs"), "completed\t2");
    });
}

#[test]
fn a_row_that_another_program_takes_back_ends_nothing_and_its_late_report_is_refused() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 2, None)], ..Lot::default() });
        let held = one.claim("q", 2).remove(0);
        place.statement("UPDATE jobs SET status = 'pending', locked_queue_id = '' WHERE job_offset = 0");
        let late = one.store.settle(&[end(&held, succeed())], &[], NOW);
        assert!(matches!(late, Err(StoreError::Stale(_))), "{late:?}");
        let lost = one.store.lost(&[(held.jobs.id(0), 1), (held.jobs.id(1), 1)]).unwrap();
        assert_eq!(lost, [held.jobs.id(0)]);
        one.store.rollback().unwrap();
        let changes = one.look();
        assert_eq!(changes.overdue, [held.jobs.id(0)], "whoever runs it is told to stop");
        one.settle(&held.part(1, 1), succeed()).unwrap();
        let again = one.claim("q", 2);
        assert_eq!((ids(&again), again[0].start()), (vec![held.jobs.id(0)], 2));
        place.statement("UPDATE jobs SET status = 'error' WHERE job_offset = 0");
        one.look();
        assert!(one.settle(&again[0], succeed()).is_err());
    });
}

#[test]
fn rows_that_make_no_sense_are_marked_in_words_and_left() {
    everywhere(|place| {
        let mut one = server(place, "one");
        place.statement("INSERT INTO jobs (name, data, status) VALUES ('', 'a', 'pending')");
        place.statement("INSERT INTO jobs (name, data, status) VALUES ('-x', 'b', 'pending')");
        place.statement("INSERT INTO jobs (name, data, status) VALUES ('q', 'c', 'postponed')");
        place.statement("INSERT INTO jobs (name, data, status, priority) VALUES ('q', 'd', 'pending', 999)");
        place.statement("INSERT INTO jobs (name, data, status) VALUES ('old', 'e', 'error')");
        place.statement("INSERT INTO jobs (name, data, status, locked_queue_id) VALUES ('q', 'f', 'pending', 'other')");
        place.statement("INSERT INTO jobs (name, data, status) VALUES (NULL, NULL, 'pending')");
        place.statement("INSERT INTO jobs (name, data, status) VALUES ('good', NULL, 'pending')");
        one.look();
        let rows = place.statement("SELECT data, status, details FROM jobs WHERE data IS NOT NULL ORDER BY data");
        let rows: Vec<&str> = rows.lines().map(str::trim_end).collect();
        assert_eq!(rows[0], "a\terror\tthe queue name is empty");
        assert_eq!(rows[1], "b\terror\ta queue name may not begin with `-`");
        assert!(rows[2].starts_with("c\terror\tunknown status `postponed`"), "{}", rows[2]);
        assert_eq!(rows[3], "d\terror\texpected a priority between -100 and 100, got: 999");
        assert!(rows[4].starts_with("e\terror") && rows[5].starts_with("f\tpending"), "others' rows stay: {rows:?}");
        assert_eq!(one.claim("good", 9).len(), 1, "no data is empty data");
        assert_eq!(place.statement("SELECT count(*) FROM jobs"), "8", "nothing is deleted");
    });
}

#[test]
fn times_and_priorities_can_be_inserted_too() {
    everywhere(|place| {
        let mut one = server(place, "one");
        let later = NOW.0 + 60_000_000;
        place.statement(&format!("INSERT INTO jobs (name, status, run_at) VALUES ('q', 'pending', {later})"));
        place.statement("INSERT INTO jobs (name, status, priority) VALUES ('q', 'pending', 10)");
        one.look();
        assert_eq!(one.store.next_due().unwrap(), Some(Time(later)));
        assert!(one.claim("q", 9).is_empty(), "its time has not come, and the other stands in another lane");
        one.store.release(Time(later), 10, Evidence::UNTOLD).unwrap();
        one.commit();
        assert_eq!(one.claim("q", 9).len(), 1);
        let high = Lane { priority: Priority::new(10).unwrap(), ..one.lane("q") };
        assert_eq!(one.store.claim(&[Order { lane: high, most: 9 }], NOW).unwrap().len(), 1);
    });
}

#[test]
fn rows_of_others_are_taken_in_and_claimed_in_one_turn_and_those_that_are_not_wait() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 1, None)], ..Lot::default() });
        for n in 1..=5 {
            place.statement(&format!("INSERT INTO jobs (name, data, status) VALUES ('q', 'row {n}', 'pending')"));
        }
        one.store.look(Occasion::Asked, Evidence::UNTOLD, NOW).unwrap();
        let held = one.claim("q", 3);
        let data = |held: &[Held]| -> Vec<String> {
            let of = |held: &Held| held.range().map(|at| held.jobs.data(at).to_vec()).collect::<Vec<_>>();
            held.iter().flat_map(of).map(|data| String::from_utf8(data).unwrap()).collect()
        };
        assert_eq!(data(&held), ["q 0", "row 1", "row 2"], "what was there first is first");
        let rows = place.statement("SELECT status, attempts, count(*) FROM jobs GROUP BY status, attempts ORDER BY 1");
        assert_eq!(rows, "pending\t0\t3\nprocessing\t1\t3");
        assert_eq!(place.statement("SELECT count(*) FROM jobs WHERE state = 1 AND coalesce(job_offset, id) = id"), "3");
        held.iter().for_each(|held| one.settle(held, succeed()).unwrap());
        assert_eq!(data(&one.claim("q", 9)), ["row 3", "row 4", "row 5"]);
    });
}

#[test]
fn a_dropped_turn_leaves_rows_of_others_as_they_wrote_them() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 1, None)], ..Lot::default() });
        one.claim("q", 1);
        place.statement("INSERT INTO jobs (name, data, status) VALUES ('q', 'a', 'pending')");
        place.statement("INSERT INTO jobs (name, data, status) VALUES ('q', 'b', 'pending')");
        one.store.look(Occasion::Asked, Evidence::UNTOLD, NOW).unwrap();
        let lane = one.lane("q");
        assert_eq!(ids(&one.store.claim(&[Order { lane, most: 1 }], NOW).unwrap()).len(), 1);
        one.store.rollback().unwrap();
        assert_eq!(place.statement("SELECT count(*) FROM jobs WHERE state IS NULL AND status = 'pending'"), "2");
        assert_eq!(gained(&one.look(), lane), 2, "they are found again");
        assert_eq!(ids(&one.claim("q", 9)).len(), 2);
    });
}

#[test]
fn data_of_many_jobs_at_once_comes_back_byte_for_byte() {
    const ODD: [&[u8]; 8] =
        [b"", b"\\N", b"\\.", b"a\tb\nc\rd\\e", b"\\x41", b"nul\0", b"\xff\xfe", "gr\u{fc}n \u{1f600}".as_bytes()];
    everywhere(|place| {
        let mut one = server(place, "one");
        let mut builder = ChunkBuilder::new(Origin::from_random(7));
        (0..200).for_each(|offset: u64| builder.push(offset, ODD[offset as usize % ODD.len()]));
        let new = NewJobs { jobs: Arc::new(builder.finish()), ..jobs("q", 0, 1, None) };
        one.push(Lot { jobs: vec![new], ..Lot::default() });
        let held = one.claim("q", 200);
        assert_eq!(ids(&held).len(), 200);
        for held in &held {
            for at in held.range() {
                let offset = held.jobs.id(at).offset as usize;
                assert_eq!(held.jobs.data(at), ODD[offset % ODD.len()], "job {offset}");
            }
        }
        let row = place.statement("SELECT name, status, priority, attempts FROM jobs ORDER BY id LIMIT 1");
        assert_eq!(row, "q\tprocessing\t0\t1");
    });
}

#[test]
fn a_view_tells_in_one_question_whether_any_of_many_ids_may_be_here() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 10, 3, None)], ..Lot::default() });
        let view = SqlView::open(place.options("one")).unwrap();
        let id = |offset| JobId { origin: Origin::from_random(7), offset };
        let holds = |first, last| view.may_hold(id(first), id(last)).unwrap();
        assert!(holds(0, 10) && holds(11, 11) && holds(12, 99) && holds(0, u64::MAX));
        assert!(!holds(0, 9) && !holds(13, 99));
        let stranger = |offset| JobId { origin: Origin::from_random(8), offset };
        assert!(!view.may_hold(stranger(0), stranger(99)).unwrap());
        let held = one.claim("q", 3).remove(0);
        one.settle(&held, succeed()).unwrap();
        assert!(holds(10, 12), "what has ended is here, too");
    });
}

#[test]
fn two_servers_never_hold_the_same_job_and_learn_of_each_other() {
    everywhere(|place| {
        let (mut one, mut two) = (server(place, "one"), server(place, "two"));
        one.push(Lot { jobs: vec![jobs("q", 0, 10, None)], ..Lot::default() });
        assert_eq!(gained(&two.look(), two.lane("q")), 10, "what one took in, the other sees");
        let first = one.claim("q", 4);
        let second = two.claim("q", 4);
        assert_eq!((ids(&first).len(), ids(&second).len()), (4, 4));
        assert!(ids(&first).iter().all(|id| !ids(&second).contains(id)), "each job has one holder");
        two.store.settle(&[end(&first[0], succeed())], &[], NOW).unwrap_err();
        two.store.rollback().unwrap();
        two.store.backlog().unwrap();
        one.claim("q", 9);
        // It believes in two more, and finds none.
        let lane = two.lane("q");
        assert!(two.store.claim(&[Order { lane, most: 9 }], NOW).unwrap().is_empty());
        two.store.commit(Durability::Full).unwrap();
        assert!(two.store.has_news(), "it is told to turn again");
        let changes = two.learn();
        assert_eq!(gained(&changes, lane), -2, "a lane that gives nothing is empty");
    });
}

#[test]
fn what_a_dead_server_held_goes_to_the_living_and_the_late_one_changes_nothing() {
    everywhere(|place| {
        let dead = SqlOptions { lease: Duration::ZERO, ..place.options("dead") };
        let mut dead = server_with(dead);
        dead.push(Lot { jobs: vec![jobs("q", 0, 3, None)], ..Lot::default() });
        let held = dead.claim("q", 2);
        let mut alive = server(place, "alive");
        assert_eq!(alive.recovered, Recovered { returned: 0, repeated: 2, convicted: 0 }, "at its start");
        let late = dead.settle(&held[0], succeed());
        assert!(late.is_err(), "the late report is refused: {late:?}");
        dead.store.rollback().unwrap();
        dead.store.admit(&Lot { jobs: vec![jobs("q", 50, 1, None)], ..Lot::default() }, NOW).unwrap();
        let fenced = dead.store.commit(Durability::Full);
        assert!(matches!(&fenced, Err(StoreError::Io(why)) if why.contains("taken this one")), "{fenced:?}");
        drop(dead);
        assert_eq!(ids(&alive.claim("q", 9)).len(), 3, "all are there once");
        let record = alive.store.jobs(&ids(&held)).unwrap().remove(0).unwrap().record;
        assert_eq!((record.starts, record.suspicions), (2, 1));
        // While it lives, whoever dies is noticed by a look.
        let third = SqlOptions { lease: Duration::ZERO, ..place.options("third") };
        let mut third = server_with(third);
        third.push(Lot { jobs: vec![jobs("r", 100, 1, None)], ..Lot::default() });
        third.claim("r", 1);
        drop(third);
        let changes = alive.look();
        assert_eq!(gained(&changes, alive.lane("r")), 1);
    });
}

#[test]
fn what_an_opening_held_that_nobody_lists_any_more_is_taken_back() {
    everywhere(|place| {
        let mut gone = server(place, "gone");
        gone.push(Lot { jobs: vec![jobs("q", 0, 2, None)], ..Lot::default() });
        gone.claim("q", 2);
        drop(gone);
        place.statement("DELETE FROM windlass_servers");
        let mut alive = server(place, "alive");
        assert_eq!(gained(&alive.look(), alive.lane("q")), 2);
        assert_eq!(ids(&alive.claim("q", 9)).len(), 2);
        assert!(alive.look().moves.is_empty(), "what a living one holds stays with it");
    });
}

#[test]
fn what_a_server_held_whose_row_was_locked_when_it_came_back_is_taken_back_later() {
    // SQLite has one writer at a time, so nobody locks a row there.
    for place in [Place::postgres(), Place::mariadb()] {
        place.options("setup").apply().unwrap();
        let mut first = server_with(SqlOptions { lease: Duration::ZERO, ..place.options("one") });
        first.push(Lot { jobs: vec![jobs("q", 0, 2, None)], ..Lot::default() });
        first.claim("q", 2);
        let mut looking = SqlStore::open(place.options("looking")).unwrap();
        let mut store = SqlStore::open(place.options("one")).unwrap();
        drop(first);
        // Another server is about to take over, and breaks off.
        looking.look(Occasion::Asked, Evidence::UNTOLD, NOW).unwrap();
        assert_eq!(store.recover(evidence(), NOW).unwrap(), Recovered::default(), "its row is locked");
        looking.rollback().unwrap();
        let changes = store.backlog().unwrap();
        let mut back = Server { store, recovered: Recovered::default(), changes };
        assert_eq!(gained(&back.look(), back.lane("q")), 2);
        assert_eq!(ids(&back.claim("q", 9)).len(), 2);
    }
}

#[test]
fn what_a_dead_server_was_sending_elsewhere_is_its_own_until_it_is_back() {
    everywhere(|place| {
        let options = SqlOptions { lease: Duration::ZERO, ..place.options("sender") };
        let mut sender = server_with(options.clone());
        sender.push(Lot { jobs: vec![jobs("q", 0, 2, None)], ..Lot::default() });
        sender.store.note("moving/l-1", Some(b"a lot")).unwrap();
        let held = sender.claim("q", 2);
        drop(sender);
        let mut alive = server(place, "alive");
        assert_eq!(alive.recovered, Recovered::default(), "nobody but the sender can ask whether they arrived");
        assert!(alive.look().moves.is_empty());
        let mut back = SqlStore::open(options).unwrap();
        let elsewhere = Evidence { elsewhere: &|_, _| true, ..evidence() };
        assert_eq!(back.recover(elsewhere, NOW).unwrap(), Recovered::default());
        back.backlog().unwrap();
        let again = back.held(ids(&held)[0]).unwrap().unwrap();
        assert_eq!(again.start(), held[0].start(), "it goes on with the claim that it had");
        back.note("moving/l-1", None).unwrap();
        back.commit(Durability::Full).unwrap();
        drop(back);
        assert_eq!(gained(&alive.look(), alive.lane("q")), 2, "what is not on its way any more is taken over");
    });
}

#[test]
fn a_run_whose_last_jobs_two_servers_settle_at_once_ends_once() {
    // SQLite has one writer at a time, so nothing is at once there.
    for place in [Place::postgres(), Place::mariadb()] {
        place.options("setup").apply().unwrap();
        let (mut one, mut two) = (server(&place, "one"), server(&place, "two"));
        let run = RunId::first(Origin::from_random(9));
        one.store.open_run(run, &NewRun::default(), NOW).unwrap();
        let seals = vec![Seal { run, after: Vec::new() }];
        one.push(Lot { jobs: vec![jobs("q", 0, 2, Some(run))], seals, ..Lot::default() });
        two.look();
        let (first, second) = (one.claim("q", 1).remove(0), two.claim("q", 1).remove(0));
        one.store.settle(&[end(&first, succeed())], &[], NOW).unwrap();
        two.store.settle(&[end(&second, succeed())], &[], NOW).unwrap();
        let (by_one, by_two) = (one.commit(), two.commit());
        assert_eq!((by_one.ended.len(), by_two.ended.len()), (0, 1), "the last to commit sees it");
        let counts = by_two.ended[0].counts;
        assert_eq!((counts.by_state[State::Succeeded.index()], counts.ended), (2, true));
        assert_eq!(one.look().ended.len(), 1, "the other hears of it, too");
        assert!(one.look().ended.is_empty() && two.look().ended.is_empty(), "once");
    }
}

#[test]
fn one_server_controls_and_another_takes_over_when_its_time_is_past() {
    everywhere(|place| {
        let mut one = server_with(SqlOptions { lease: Duration::ZERO, ..place.options("one") });
        one.look();
        assert!(one.store.controls());
        one.store.note("schedule/nightly", Some(b"fired")).unwrap();
        one.commit();
        let mut two = server(place, "two");
        two.look();
        assert!(two.store.controls(), "its time was past");
        let notes = two.store.notes("schedule/", 9).unwrap();
        assert_eq!(notes, [("schedule/nightly".to_owned(), b"fired".to_vec())], "what is shared is known");
        let mut three = server(place, "three");
        three.look();
        assert!(!three.store.controls());
        three.store.note("schedule/nightly", Some(b"fired twice")).unwrap();
        assert!(matches!(three.store.commit(Durability::Full), Err(StoreError::Away(_))), "only one may");
        three.store.rollback().unwrap();
        two.store.note("own", Some(b"x")).unwrap();
        two.commit();
        assert!(three.store.notes("own", 9).unwrap().is_empty(), "other notes are each server's own");
    });
}

#[test]
fn a_server_that_ends_in_order_leaves_nothing_that_others_wait_for() {
    everywhere(|place| {
        let (mut one, mut two) = (server(place, "one"), server(place, "two"));
        one.look();
        two.look();
        assert!(one.store.controls() && !two.store.controls());
        one.push(Lot { jobs: vec![jobs("q", 0, 1, None)], ..Lot::default() });
        let held = one.claim("q", 1).remove(0);
        one.store.leave().unwrap();
        assert_eq!(place.statement("SELECT count(*) FROM windlass_servers"), "2", "somebody works for it still");
        one.settle(&held, succeed()).unwrap();
        one.store.leave().unwrap();
        assert_eq!(place.statement("SELECT server FROM windlass_servers"), "two");
        two.look();
        assert!(two.store.controls(), "at once");
    });
}

/// The archive tells what it holds by these numbers.
#[test]
fn no_number_of_a_turn_comes_twice_though_others_took_the_server_for_dead() {
    everywhere(|place| {
        let mut first = server_with(SqlOptions { lease: Duration::ZERO, ..place.options("one") });
        first.push(Lot { jobs: vec![jobs("q", 0, 1, None)], ..Lot::default() });
        let last = first.store.commit(Durability::Full).unwrap();
        drop(first);
        server(place, "other").look();
        assert_eq!(place.statement("SELECT count(*) FROM windlass_servers WHERE server = 'one'"), "0");
        let mut back = server(place, "one");
        back.push(Lot { jobs: vec![jobs("q", 5, 1, None)], ..Lot::default() });
        assert!(back.store.commit(Durability::Full).unwrap() > last);
    });
}

#[test]
fn a_lost_connection_costs_the_turn_and_is_opened_again() {
    for place in [Place::postgres(), Place::mariadb()] {
        place.options("setup").apply().unwrap();
        let mut one = server(&place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 2, None)], ..Lot::default() });
        place.cut_connections();
        let lane = one.lane("q");
        let claimed = one.store.claim(&[Order { lane, most: 1 }], NOW);
        assert!(matches!(claimed, Err(StoreError::Away(_))), "{claimed:?}");
        one.store.rollback().unwrap();
        assert!(matches!(one.store.backlog(), Err(StoreError::Away(_))), "nothing is tried behind the engine's back");
        assert!(one.store.has_room(), "it is there again");
        one.store.backlog().unwrap();
        assert_eq!(ids(&one.claim("q", 9)).len(), 2);
    }
}

#[test]
fn ends_that_were_set_aside_are_written_by_the_next_process_once() {
    for place in [Place::postgres(), Place::mariadb(), Place::sqlite()] {
        place.options("setup").apply().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let outbox = Some(dir.path().join("outbox"));
        let mut one = server_with(SqlOptions { outbox: outbox.clone(), ..place.options("one") });
        one.push(Lot { jobs: vec![jobs("q", 0, 4, None)], ..Lot::default() });
        let held = one.claim("q", 3).remove(0);
        let ends = [end(&held.part(0, 1), succeed()), end(&held.part(2, 1), fail())];
        let mut builder = ChunkBuilder::new(Origin::from_random(8));
        builder.push_from(held.jobs.id(0), 1, b"emitted");
        let emitted = Arc::new(builder.finish());
        let emitted = FollowUp { queue: queue("next"), priority: Priority::NORMAL, run: None, jobs: emitted };
        for _ in 0..3 {
            one.store.set_aside(&ends, std::slice::from_ref(&emitted)).unwrap();
        }
        drop(one);
        let mut next = server_with(SqlOptions { outbox: outbox.clone(), ..place.options("one") });
        assert_eq!(next.recovered, Recovered { returned: 0, repeated: 1, convicted: 0 }, "only one has no end");
        let states: Vec<_> = next.store.jobs(&ids(std::slice::from_ref(&held))).unwrap();
        let states: Vec<_> = states.into_iter().map(|job| job.map(|job| job.state)).collect();
        assert_eq!(states, [None, Some(State::Ready), Some(State::Failed)]);
        assert_eq!(ids(&next.claim("next", 9)).len(), 1, "what it emitted is there once");
        assert!(!outbox.as_ref().unwrap().exists());
        assert_eq!(next.store.unarchived().unwrap()[0].settlements.len(), 2, "the archive will hear of it");
        drop(next);
        let view = SqlView::open(place.options("one")).unwrap();
        let stats = view.queues().unwrap().remove(0).stats;
        assert_eq!(stats.by_state[State::Succeeded.index()], 1);
    }
}

#[test]
fn a_job_that_comes_back_is_in_its_row_once_and_no_end_of_an_earlier_start_is_its() {
    everywhere(|place| {
        let (mut one, mut two) = (server(place, "one"), server(place, "two"));
        one.push(Lot { jobs: vec![jobs("q", 0, 1, None)], ..Lot::default() });
        let held = one.claim("q", 1).remove(0);
        let moved = Settlement { outcome: MOVED, ..end(&held, succeed()) };
        one.store.settle(std::slice::from_ref(&moved), &[], NOW).unwrap();
        one.store.note("lot/l-1", Some(b"taken")).unwrap();
        one.commit();
        assert_eq!(two.store.notes("lot/", 9).unwrap().len(), 1, "all know what one has taken");
        let (view, id) = (SqlView::open(place.options("view")).unwrap(), held.jobs.id(0));
        assert_eq!(view.gone(&[id]).unwrap(), [(id, Gone::Moved)]);
        let past = Past { state: State::Ready, due: None, record: Record::default(), errors: Vec::new() };
        let back = Arriving { queue: queue("q"), priority: Priority::NORMAL, past, jobs: Arc::clone(&held.jobs) };
        for server in [&mut two, &mut one] {
            server.store.arrive(std::slice::from_ref(&back), NOW).unwrap();
            server.commit();
        }
        let row = || place.statement("SELECT count(*), min(status) FROM jobs").trim_end().to_owned();
        assert_eq!((row().as_str(), view.gone(&[id]).unwrap()), ("1\tpending", Vec::new()));
        let again = one.claim("q", 9);
        assert_eq!(ids(&again), [id]);
        assert!(matches!(one.store.settle(&[moved], &[], NOW), Err(StoreError::Stale(_))), "that was another start");
        one.store.rollback().unwrap();
        one.settle(&again[0], succeed()).unwrap();
        assert_eq!(view.gone(&[id]).unwrap(), [(id, Gone::Ended)]);
        two.store.arrive(&[back], NOW).unwrap();
        two.commit();
        assert_eq!(row(), "1\tcompleted", "what has ended here is left as it is");
    });
}
