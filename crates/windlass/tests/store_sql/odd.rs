//! What other programs write that makes no sense, and columns that have no room for what we write.
//!
//! None of it may stop a server: such a row is marked in words and left, and what does not fit is cut.

use crate::databases::Place;
use crate::server::{NOW, Server, end, everywhere, fail, ids, jobs, server, succeed};
use std::sync::Arc;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::sql::SqlView;
use windlass::store::{Evidence, Filter, Held, Lot, NewJobs, Occasion, Order, Store, StoreView};
use windlass_core::job::{Arrival, Origin};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::particulars::{Particulars, Subject};

fn listed(place: &Place) -> usize {
    let view = SqlView::open(place.options("view")).unwrap();
    view.list(&Filter::default(), Arrival(0), 99).unwrap().jobs.len()
}

#[test]
fn a_job_that_another_program_gives_a_priority_that_there_is_not_is_marked_in_words() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 3, None)], ..Lot::default() });
        place.statement("UPDATE jobs SET status = 'pending', priority = 999 WHERE job_offset = 1");
        assert_eq!(listed(place), 3);
        one.look();
        let told = place.statement("SELECT status, details FROM jobs WHERE job_offset = 1");
        assert_eq!(told, "error\texpected a priority between -100 and 100, got: 999");
        assert_eq!(ids(&one.claim("q", 9)).len(), 2);
        assert_eq!(listed(place), 3);
        place.statement("UPDATE jobs SET status = 'pending', priority = 0 WHERE job_offset = 1");
        one.look();
        assert_eq!(ids(&one.claim("q", 9)).len(), 1, "once it makes sense it is run");
    });
}

/// More rows than one look takes in: those after it are found by the claims themselves, which must neither take one
/// twice nor pass one over, and leave what makes no sense to a look.
#[test]
fn of_thousands_of_new_rows_each_is_claimed_once_and_those_that_make_no_sense_are_marked_and_left() {
    const ALL: usize = 9_000;
    everywhere(|place| {
        let mut one = server(place, "one");
        let numbers = match (place.is_postgres(), place.is_mariadb()) {
            (true, _) => format!("SELECT g AS n FROM generate_series(1, {ALL}) AS g"),
            (_, true) => format!("SELECT seq AS n FROM seq_1_to_{ALL}"),
            _ => format!(
                "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {ALL}) SELECT n FROM c"
            ),
        };
        // Which is no YAML, and none of a store's business.
        let data = if place.is_mariadb() { "concat('n: [', n)" } else { "'n: [' || n" };
        place.statement(&format!(
            "INSERT INTO jobs (name, data, status) SELECT 'q', {data}, 'pending' FROM ({numbers}) AS t"
        ));
        let strange = ["status = 'postponed'", "name = NULL", "priority = 999", "status = NULL", "name = '-x'"];
        for (at, set) in strange.iter().enumerate() {
            place.statement(&format!("UPDATE jobs SET {set} WHERE id % 500 = {}", 7 + at));
        }
        // What only a look makes sense of, though it is a job like the others.
        place.statement("UPDATE jobs SET taskable_type = 'Upload', taskable_id = 4 WHERE id % 500 = 77");
        place.statement("UPDATE jobs SET failures = 2 WHERE id % 500 = 78");
        let (mut seen, mut held, mut unread) = (Vec::new(), Vec::<Held>::new(), 0);
        for _ in 0..40 {
            let ends: Vec<_> = held.iter().map(|held| end(held, succeed())).collect();
            one.store.settle(&ends, &[], NOW).unwrap();
            one.store.look(Occasion::Asked, Evidence::UNTOLD, NOW).unwrap();
            one.learn();
            let lane = one.lane("q");
            held = one.store.claim(&[Order { lane, most: 1_000 }], NOW).unwrap();
            one.commit();
            seen.extend(held.iter().flat_map(|held| held.range().map(|at| held.jobs.data(at).to_vec())));
            let waiting = place.statement("SELECT count(state), count(*) FROM jobs WHERE state IS NULL OR state = 1");
            unread += usize::from(waiting.starts_with("0\t") && !held.is_empty());
        }
        let odd = strange.len() * ALL / 500;
        assert_eq!(seen.len(), ALL - odd, "each that makes sense, and none twice");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), ALL - odd);
        let told =
            place.statement("SELECT count(*) FROM jobs WHERE status = 'error' AND details <> '' AND state IS NULL");
        assert_eq!(told, odd.to_string(), "the others are marked in words");
        let ended = place.statement("SELECT count(*) FROM jobs WHERE status = 'completed' AND attempts = 1");
        assert_eq!(ended, (ALL - odd).to_string());
        assert!(place.is_mariadb() || unread > 1, "none was claimed before it was read");
    });
}

/// SQLite takes any text for a number.
#[test]
fn a_text_where_a_number_belongs_is_marked_in_words() {
    let place = Place::sqlite();
    place.options("setup").apply().unwrap();
    let mut one = server(&place, "one");
    one.push(Lot { jobs: vec![jobs("q", 0, 3, None)], ..Lot::default() });
    place.statement("INSERT INTO jobs (name, data, status, run_at) VALUES ('q', 'a', 'pending', 'tomorrow')");
    place.statement("INSERT INTO jobs (name, data, status, priority) VALUES ('q', 'b', 'pending', 'urgent')");
    place.statement("UPDATE jobs SET run_at = 'soon' WHERE job_offset = 0");
    place.statement("UPDATE jobs SET priority = 'low' WHERE job_offset = 1");
    one.store.next_due().unwrap();
    assert_eq!(listed(&place), 3, "those that were taken in");
    one.store.backlog().unwrap();
    one.look();
    one.store.release(NOW, 9, Evidence::UNTOLD).unwrap();
    one.commit();
    let told = place.statement("SELECT details FROM jobs WHERE status = 'error' ORDER BY id");
    assert_eq!(
        told.lines().collect::<Vec<_>>(),
        [
            "expected a time in microseconds since 1970 in `run_at`, got: soon",
            "expected a priority between -100 and 100, got: low",
            "expected a time in microseconds since 1970 in `run_at`, got: tomorrow",
            "expected a priority between -100 and 100, got: urgent",
        ]
    );
    assert_eq!(ids(&one.claim("q", 9)).len(), 1, "the others run");
    assert!(one.look().moves.is_empty(), "each is marked once");
}

#[test]
fn a_row_without_a_status_is_marked_whether_it_is_new_or_not() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 1, None)], ..Lot::default() });
        place.statement("UPDATE jobs SET status = NULL");
        place.statement("INSERT INTO jobs (name, data, status) VALUES ('q', 'new', NULL)");
        one.look();
        let told = place.statement("SELECT status, details FROM jobs ORDER BY id");
        let told: Vec<&str> = told.lines().collect();
        assert_eq!(told[0], "error\tanother program took its status away");
        assert_eq!(told[1], "error\tit has no status, expected pending for a job that is to be run");
        assert!(one.look().moves.is_empty(), "once");
    });
}

#[test]
fn a_subject_that_is_too_long_for_a_job_is_told() {
    everywhere(|place| {
        if place.is_mariadb() {
            place.statement("ALTER TABLE jobs MODIFY taskable_type text");
        } else if place.is_postgres() {
            place.statement("ALTER TABLE jobs ALTER taskable_type TYPE text");
        }
        let mut one = server(place, "one");
        let long = "x".repeat(501);
        place.statement(&format!(
            "INSERT INTO jobs (name, status, taskable_id, taskable_type) VALUES ('q', 'pending', 1, '{long}')"
        ));
        one.look();
        let told = place.statement("SELECT status, details FROM jobs");
        assert!(told.starts_with("error\t") && told.contains("subject"), "{told}");
    });
}

#[test]
fn a_job_that_another_program_works_at_is_lent_once() {
    everywhere(|place| {
        let mut one = server(place, "one");
        one.push(Lot { jobs: vec![jobs("q", 0, 2, None)], ..Lot::default() });
        let held = one.claim("q", 1);
        place.statement("UPDATE jobs SET status = 'loading'");
        let changes = one.look();
        assert_eq!(changes.overdue, ids(&held), "what ran here is stopped");
        assert!(one.look().moves.is_empty() && one.look().overdue.is_empty(), "it is told once");
        place.statement("UPDATE jobs SET status = 'completed'");
        one.look();
        assert!(one.look().moves.is_empty());
    });
}

/// A table as an application had it before us: small numbers, short texts, and letters of three bytes.
fn small(place: &Place) {
    let (kinds, suffix) = match place.is_mariadb() {
        true => ("id bigint AUTO_INCREMENT PRIMARY KEY, details varchar(30), data text", " CHARACTER SET utf8mb3"),
        false if place.is_postgres() => ("id bigserial PRIMARY KEY, details varchar(30), data text", ""),
        false => ("id integer PRIMARY KEY, details varchar(30), data text", ""),
    };
    place.statement(&format!(
        "CREATE TABLE jobs ({kinds}, name varchar(100), status varchar(20), taskable_id integer, \
         taskable_type varchar(255), locked_queue_id varchar(10)){suffix}"
    ));
}

fn push_about(one: &mut Server, first: u64, count: u64, subject: &Subject, data: &str) {
    let particulars = Particulars { subject: Some(subject.clone()), ..Particulars::default() };
    let mut builder = ChunkBuilder::new(Origin::from_random(7)).with(Some(Arc::new(particulars)));
    (first..first + count).for_each(|offset| builder.push(offset, data.as_bytes()));
    one.push(Lot {
        jobs: vec![NewJobs { jobs: Arc::new(builder.finish()), ..jobs("q", 0, 1, None) }],
        ..Lot::default()
    });
}

#[test]
fn what_a_column_has_no_room_for_is_cut_there_and_whole_in_the_job() {
    for place in [Place::sqlite(), Place::postgres(), Place::mariadb()] {
        small(&place);
        place.options("setup").apply().unwrap();
        let mut one = server(&place, "one");
        let subject = Subject { kind: "Upload".repeat(60), id: "9000000000".into() };
        let data = "gr\u{fc}n \u{1f600}";
        // Few are inserted, many are copied where a database can.
        push_about(&mut one, 0, 1, &subject, data);
        push_about(&mut one, 10, 100, &subject, data);
        let held = one.claim("q", 200);
        assert_eq!(ids(&held).len(), 101);
        for held in &held {
            assert_eq!(held.jobs.data(0), data.as_bytes());
            assert_eq!(held.jobs.particulars_of(0).unwrap().subject.as_ref(), Some(&subject));
        }
        let error = "it does not work \u{1f600} and there is much to say about it";
        one.settle(&held[0].part(0, 1), Verdict::Fail { reason: Reason::Refused, error: error.into() }).unwrap();
        let message = Verdict::Succeed { message: error.into() };
        one.settle(&held[0].part(1, 1), message).unwrap();
        assert_eq!(one.store.jobs(&[ids(&held)[0]]).unwrap()[0].as_ref().unwrap().errors[0].text, error);
    }
}

#[test]
fn a_record_can_have_any_kind_of_number() {
    let place = Place::postgres();
    place.statement("CREATE TABLE jobs (id bigserial PRIMARY KEY, name text, data text, taskable_id uuid)");
    place.options("setup").apply().unwrap();
    let mut one = server(&place, "one");
    let subject = Subject { kind: "Upload".into(), id: "7".into() };
    push_about(&mut one, 0, 1, &subject, "x");
    push_about(&mut one, 10, 100, &subject, "x");
    let held = one.claim("q", 200);
    assert_eq!(held[0].jobs.particulars_of(0).unwrap().subject.as_ref(), Some(&subject));
    one.settle(&held[0], succeed()).unwrap();
    place.statement(
        "INSERT INTO jobs (name, status, taskable_type, taskable_id) \
         VALUES ('r', 'pending', 'Upload', '00000000-0000-0000-0000-000000000007')",
    );
    one.look();
    let held = one.claim("r", 1).remove(0);
    let told = held.jobs.particulars_of(0).unwrap().subject.clone().unwrap();
    assert_eq!(told.id, "00000000-0000-0000-0000-000000000007");
    one.settle(&held, fail()).unwrap();
}

#[test]
fn columns_of_types_that_cannot_be_written_to_are_refused_before_anything_is_done() {
    let refused = |place: &Place, table: &str, column: &str| {
        place.statement(table);
        let told = place.options("setup").apply().unwrap_err().to_string();
        assert!(told.contains(column) && told.contains("expected"), "{told}");
        let told = place.options("setup").plan().unwrap_err().to_string();
        assert!(told.contains(column), "{told}");
    };
    for (columns, column) in [
        ("id bigserial PRIMARY KEY, data jsonb", "`data` of type jsonb"),
        ("id uuid PRIMARY KEY", "`id` of type uuid"),
        ("id serial PRIMARY KEY, status mood", "`status` of type"),
        ("id serial PRIMARY KEY, status varchar(5)", "`status` for 5 characters"),
        ("id serial PRIMARY KEY, created_at bigint", "`created_at` of type bigint"),
    ] {
        let place = Place::postgres();
        place.statement("CREATE TYPE mood AS ENUM ('pending', 'error')");
        refused(&place, &format!("CREATE TABLE jobs ({columns})"), column);
        assert_eq!(place.statement("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'windlass%'"), "0");
    }
    refused(&Place::mariadb(), "CREATE TABLE jobs (id char(36) PRIMARY KEY)", "`id` of type char");
    let enumerated = "CREATE TABLE jobs (id int AUTO_INCREMENT PRIMARY KEY, status enum('pending', 'error'))";
    refused(&Place::mariadb(), enumerated, "`status` of type enum");
    refused(&Place::sqlite(), "CREATE TABLE jobs (id text PRIMARY KEY)", "`id` of type text");
}
