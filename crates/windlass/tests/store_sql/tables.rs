//! What is done to somebody's database: as little as possible, and only when told.

use crate::databases::Place;
use crate::server::{NOW, end, everywhere, ids, jobs, server, server_with, succeed};
use std::sync::Arc;
use std::time::Duration;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::sql::{SqlOptions, SqlStore};
use windlass::store::{Durability, Evidence, Lot, NewJobs, Occasion, Recovered, Store};
use windlass_core::job::Origin;
use windlass_core::time::Time;

#[test]
fn a_plan_makes_no_file_and_changes_none() {
    let place = Place::sqlite();
    let file = place.options("plan").url.trim_start_matches("sqlite:").to_owned();
    assert!(!place.options("plan").plan().unwrap().is_done());
    assert!(!std::path::Path::new(&file).exists());
    place.statement("CREATE TABLE jobs (id integer PRIMARY KEY, name text)");
    let before = std::fs::read(&file).unwrap();
    let plan = place.options("plan").plan().unwrap();
    assert_eq!(plan.found, ["id", "name"]);
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert_eq!(place.statement("PRAGMA journal_mode"), "delete");
}

#[test]
fn a_table_that_is_in_use_gets_its_indexes_beside_that_and_an_unfinished_one_is_made_again() {
    let place = Place::postgres();
    let fresh = place.options("plan").plan().unwrap();
    assert!(fresh.steps.iter().all(|step| !step.sql.contains("CONCURRENTLY")), "nobody uses a new table");
    place.statement("CREATE TABLE jobs (id bigserial PRIMARY KEY, name text, data text)");
    let plan = place.options("setup").apply().unwrap();
    let made = plan.steps.iter().filter(|step| step.sql.contains("INDEX"));
    assert!(made.clone().count() > 5 && made.clone().all(|step| step.sql.contains("CONCURRENTLY")));
    // As a break in the middle leaves it.
    place.statement("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'windlass_jobs_lane'::regclass");
    let plan = place.options("setup").apply().unwrap();
    assert_eq!(plan.steps.len(), 2, "{plan:?}");
    assert!(place.options("plan").plan().unwrap().is_done());
}

#[test]
fn old_rows_go_by_their_age_and_by_their_number_and_soon_where_they_are_many() {
    everywhere(|place| {
        let mut one = server_with(SqlOptions { keep_most: Some(10), ..place.options("one") });
        one.push(Lot { jobs: vec![jobs("q", 0, 30, None)], ..Lot::default() });
        for held in one.claim("q", 30) {
            for at in 0..held.count {
                let now = Time(NOW.0 + i64::from(at));
                one.store.settle(&[end(&held.part(at, 1), succeed())], &[], now).unwrap();
            }
        }
        one.commit();
        one.look();
        assert_eq!(place.statement("SELECT count(*) FROM jobs"), "11", "the youngest stay");
        place.statement("DELETE FROM jobs");
        let rows = match place.is_mariadb() || place.is_postgres() {
            true if place.is_postgres() => "SELECT n FROM generate_series(1, 4500) AS s(n)".to_owned(),
            true => "SELECT seq FROM seq_1_to_4500".to_owned(),
            false => {
                "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 4500) SELECT n FROM s".into()
            }
        };
        place.statement(&format!(
            "INSERT INTO jobs (name, status, state, ended_at, queue_no, lane_kind, job_origin, job_offset, admitted) \
             SELECT 'q', 'completed', 5, 1, 1, 0, 7, t.n, 1 FROM ({}) AS t",
            rows.replace("SELECT seq", "SELECT seq AS n")
        ));
        let mut now = NOW;
        one.store.look(Occasion::Asked, Evidence::UNTOLD, now).unwrap();
        one.commit();
        for left in ["500", "0"] {
            let next = one.store.next_look().unwrap();
            assert!(next > now && next < now.after(Duration::from_secs(1)), "the rest goes soon");
            now = next;
            one.store.look(Occasion::Time, Evidence::UNTOLD, now).unwrap();
            one.commit();
            assert_eq!(place.statement("SELECT count(*) FROM jobs"), left);
        }
        assert!(one.store.next_look().unwrap() > now.after(Duration::from_secs(1)), "and then there is time");
        // What is too many again is looked for once in a minute.
        place.statement(&format!(
            "INSERT INTO jobs (name, status, state, ended_at, queue_no, lane_kind, job_origin, job_offset, admitted) \
             SELECT 'q', 'completed', 5, {} + t.n, 1, 0, 7, t.n, 1 FROM ({}) AS t",
            NOW.0,
            rows.replace("SELECT seq", "SELECT seq AS n").replace("4500", "30")
        ));
        for (seconds, left) in [(20, "30"), (90, "11")] {
            let later = now.after(Duration::from_secs(seconds));
            one.store.look(Occasion::Time, Evidence::UNTOLD, later).unwrap();
            one.commit();
            assert_eq!(place.statement("SELECT count(*) FROM jobs"), left, "after {seconds} s");
        }
    });
}

#[test]
fn ends_that_are_set_aside_behind_a_torn_one_are_found() {
    let place = Place::sqlite();
    place.options("setup").apply().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let outbox = Some(dir.path().join("outbox"));
    let options = SqlOptions { outbox: outbox.clone(), ..place.options("one") };
    std::fs::write(outbox.as_ref().unwrap(), [200, 0, 0, 0, 1, 2, 3]).unwrap();
    let mut one = server_with(options.clone());
    one.push(Lot { jobs: vec![jobs("q", 0, 1, None)], ..Lot::default() });
    let held = one.claim("q", 1).remove(0);
    one.store.set_aside(&[end(&held, succeed())], &[]).unwrap();
    drop(one);
    let next = server_with(options);
    assert_eq!(next.recovered, Recovered::default(), "its end was not lost");
    assert_eq!(place.statement("SELECT status FROM jobs"), "completed");
}

/// Twenty-four mebibytes at once; MariaDB takes statements of sixteen.
#[test]
fn a_turn_may_end_jobs_with_more_data_than_a_statement_may_have() {
    let place = Place::mariadb();
    place.options("setup").apply().unwrap();
    let mut one = server(&place, "one");
    for lot in 0..24 {
        let mut builder = ChunkBuilder::new(Origin::from_random(7));
        builder.push(lot, &vec![b'x'; 1 << 20]);
        one.push(Lot {
            jobs: vec![NewJobs { jobs: Arc::new(builder.finish()), ..jobs("q", 0, 1, None) }],
            ..Lot::default()
        });
    }
    let held = one.claim("q", 24);
    let ends: Vec<_> = held.iter().map(|held| end(held, succeed())).collect();
    one.store.settle(&ends, &[], NOW).unwrap();
    let turn = one.store.commit(Durability::Full).unwrap();
    let told = one.store.unarchived().unwrap();
    let settled = told.iter().flat_map(|told| told.settlements.iter().flat_map(|end| end.held.ids()));
    assert_eq!(settled.collect::<Vec<_>>(), ids(&held), "all of them, in order");
    one.store.archived(turn).unwrap();
    one.commit();
    assert!(one.store.unarchived().unwrap().is_empty(), "the number of the turn stands for all of it");
}

/// What a plan and an application of it are told of a table as it is.
fn refused(place: &Place, made: &str) -> String {
    place.statement(made);
    let told = place.options("setup").plan().unwrap_err().to_string();
    assert_eq!(place.options("setup").apply().unwrap_err().to_string(), told);
    told
}

/// A job that we push into such a table would be in no row that anybody finds.
#[test]
fn a_table_that_does_not_number_its_rows_is_refused_before_anything_is_done() {
    for (table, why) in [
        ("CREATE TABLE jobs (id bigint, name text)", "ALTER id ADD GENERATED BY DEFAULT AS IDENTITY"),
        ("CREATE TABLE jobs (id bigserial, name text)", "could have the same `id`"),
        ("CREATE VIEW jobs AS SELECT 1 AS id", "is a view"),
    ] {
        let place = Place::postgres();
        let told = refused(&place, table);
        assert!(told.contains(why), "{told}");
        assert_eq!(place.statement("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'windlass%'"), "0");
    }
    for (table, why) in [
        ("CREATE TABLE jobs (id bigint NOT NULL PRIMARY KEY)", "MODIFY id bigint AUTO_INCREMENT UNIQUE"),
        ("CREATE TABLE jobs (id int AUTO_INCREMENT, KEY (id))", "could have the same `id`"),
        ("CREATE VIEW jobs AS SELECT 1 AS id", "is a view"),
    ] {
        let told = refused(&Place::mariadb(), table);
        assert!(told.contains(why), "{told}");
    }
    for (table, why) in [
        ("CREATE TABLE jobs (id bigint PRIMARY KEY, name text)", "`id integer PRIMARY KEY`"),
        ("CREATE TABLE jobs (id integer PRIMARY KEY, name text) WITHOUT ROWID", "`id integer PRIMARY KEY`"),
        ("CREATE TABLE jobs (name text)", "no column `id`"),
        ("CREATE VIEW jobs AS SELECT 1 AS id", "is a view"),
    ] {
        let told = refused(&Place::sqlite(), table);
        assert!(told.contains(why), "{told}");
    }
}

/// As Rails makes them where it is told that keys are UUIDs.
#[test]
fn a_table_with_a_key_of_another_kind_gets_a_number_beside_it() {
    let uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
    for (place, key, record, push) in [
        (
            Place::postgres(),
            "uuid PRIMARY KEY DEFAULT gen_random_uuid()",
            "uuid",
            format!("SELECT windlass_push('r', subject_type => 'Upload', subject_id => '{uuid}')"),
        ),
        (
            Place::mariadb(),
            "char(36) PRIMARY KEY DEFAULT uuid()",
            "char(36)",
            format!("SELECT windlass_push_about('r', 'x', 0, NULL, 'Upload', '{uuid}')"),
        ),
    ] {
        place.statement(&format!(
            "CREATE TABLE jobs (id {key}, name varchar(99), data text, status varchar(20), taskable_id {record})"
        ));
        let numbered = |name: &str| {
            let columns = [("id".to_owned(), "number".to_owned())].into();
            SqlOptions { columns, ..place.options(name) }
        };
        let plan = numbered("setup").apply().unwrap();
        assert!(plan.refused.is_empty(), "{plan:?}");
        let mut one = server_with(numbered("one"));
        one.push(Lot { jobs: vec![jobs("q", 0, 3, None)], ..Lot::default() });
        let held = one.claim("q", 9);
        assert_eq!(ids(&held).len(), 3);
        held.iter().for_each(|held| one.settle(held, succeed()).unwrap());
        assert_eq!(place.statement("SELECT count(DISTINCT number), count(DISTINCT id) FROM jobs"), "3\t3");
        assert_eq!(place.statement(&push), "4");
        one.look();
        let held = one.claim("r", 1).remove(0);
        assert_eq!(held.jobs.particulars_of(0).unwrap().subject.clone().unwrap().id, uuid);
        one.settle(&held, succeed()).unwrap();
        assert_eq!(place.statement("SELECT status FROM jobs WHERE number = 4"), "completed");
    }
}

/// Who made the tables is often another than who serves them.
#[test]
fn a_table_that_the_user_may_not_touch_is_not_taken_for_one_that_is_missing() {
    let place = Place::postgres();
    place.options("setup").apply().unwrap();
    let role = format!("windlass_stranger_{}", std::process::id());
    place.statement(&format!("CREATE ROLE {role} LOGIN PASSWORD 'stranger'"));
    let mut url = url::Url::parse(&place.options("x").url).unwrap();
    url.set_username(&role).unwrap();
    url.set_password(Some("stranger")).unwrap();
    let options = SqlOptions { url: url.into(), ..place.options("x") };
    let told = options.plan().map(|plan| plan.steps.len());
    let served = SqlStore::open(options).map(|_| ());
    place.statement(&format!("DROP ROLE {role}"));
    assert!(told.clone().is_err_and(|error| error.to_string().contains("permission denied")), "{told:?}");
    assert!(served.clone().is_err_and(|error| error.to_string().contains("permission denied")), "{served:?}");
}
