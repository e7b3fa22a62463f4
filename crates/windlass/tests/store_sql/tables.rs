//! What is done to somebody's database: as little as possible, and only when told.

use crate::databases::Place;
use crate::server::{NOW, end, everywhere, ids, jobs, server, server_with, succeed};
use std::sync::Arc;
use std::time::Duration;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::sql::SqlOptions;
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
