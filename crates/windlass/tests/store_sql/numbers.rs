//! Rows of other programs are known by their number, and taken in ranges of it.

use crate::databases::Place;
use crate::server::{NOW, Server, end, everywhere, ids, jobs, server, succeed};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use windlass::store::sql::{FORMAT, SqlView};
use windlass::store::{Evidence, Held, Lot, Occasion, Order, Store, StoreError, StoreView};
use windlass_core::job::{JobId, Origin};

#[test]
fn a_row_of_another_program_is_known_by_its_number_and_no_other_job_is() {
    everywhere(|place| {
        let mut one = server(place, "one");
        place.statement("INSERT INTO jobs (name, data, status) VALUES ('q', 'theirs', 'pending')");
        let number: u64 = place.statement("SELECT max(id) FROM jobs").parse().unwrap();
        one.look();
        // Of ours, one has the offset that is the row's number, and one a number that is nobody's offset.
        one.push(Lot { jobs: vec![jobs("q", number, 1, None)], ..Lot::default() });
        let of = |origin, offset| JobId { origin, offset };
        let (theirs, ours) = (of(one.store.origin(), number), of(Origin::from_random(7), number));
        let nobodys = of(one.store.origin(), number + 1);
        let view = SqlView::open(place.options("view")).unwrap();
        let found = one.store.jobs(&[theirs, ours, nobodys]).unwrap();
        let data = |at: usize| found[at].as_ref().map(|info| String::from_utf8_lossy(&info.data).into_owned());
        let ours_says = format!("q {number}");
        assert_eq!([data(0), data(1), data(2)], [Some("theirs".into()), Some(ours_says), None]);
        for (id, known) in [(theirs, true), (ours, true), (nobodys, false)] {
            assert_eq!(view.job(id).unwrap().map(|info| info.id), known.then_some(id));
            assert_eq!(view.may_hold(id, id).unwrap(), known, "{id}");
        }
        let held = one.claim("q", 2);
        assert_eq!(ids(&held), [theirs, ours]);
        held.iter().for_each(|held| one.settle(held, succeed()).unwrap());
        assert!(held.iter().all(|held| matches!(one.settle(held, succeed()), Err(StoreError::Stale(_)))));
    });
}

/// Format 1 wrote into each row which job it is, and PostgreSQL had an index of all of them.
#[test]
fn a_table_of_format_1_is_brought_up_to_date_and_its_rows_are_found() {
    let place = Place::postgres();
    place.options("setup").apply().unwrap();
    let mut one = server(&place, "one");
    for n in 1..=3 {
        place.statement(&format!("INSERT INTO jobs (name, data, status) VALUES ('q', '{n}', 'pending')"));
    }
    one.look();
    let origin = one.store.origin();
    one.store.leave().unwrap();
    drop(one);
    place.statement(&format!("UPDATE jobs SET job_origin = {}, job_offset = id", origin.bits() as i64));
    place.statement("DROP INDEX windlass_jobs_named");
    place.statement("CREATE UNIQUE INDEX windlass_jobs_identity ON jobs (job_origin, job_offset)");
    place.statement("UPDATE windlass_meta SET format = 1");
    let plan = place.options("setup").apply().unwrap();
    assert_eq!(plan.steps.len(), 3, "{plan:?}");
    assert!(place.options("setup").plan().unwrap().is_done());
    assert_eq!(place.statement("SELECT format FROM windlass_meta"), FORMAT.to_string());
    assert_eq!(place.statement("SELECT count(*) FROM pg_class WHERE relname = 'windlass_jobs_identity'"), "0");
    let mut one = server(&place, "one");
    place.statement("INSERT INTO jobs (name, data, status) VALUES ('q', '4', 'pending')");
    one.look();
    let held = one.claim("q", 9);
    assert_eq!(ids(&held), (1..=4).map(|offset| JobId { origin, offset }).collect::<Vec<_>>());
    held.iter().for_each(|held| one.settle(held, succeed()).unwrap());
    assert_eq!(place.statement("SELECT count(*) FROM jobs WHERE status = 'completed'"), "4");
}

/// Another program's transaction that has a row locked until it is dropped.
struct Locking {
    client: Child,
}

impl Locking {
    fn row(place: &Place, id: u64) -> Locking {
        let mut client = Command::new("psql");
        client.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", &place.options("lock").url]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lock = format!("BEGIN; SELECT 'locked' FROM jobs WHERE id = {id} FOR UPDATE;\n");
        client.stdin.as_mut().unwrap().write_all(lock.as_bytes()).unwrap();
        let mut told = String::new();
        BufReader::new(client.stdout.as_mut().unwrap()).read_line(&mut told).unwrap();
        assert_eq!(told.trim_end(), "locked");
        Locking { client }
    }
}

impl Drop for Locking {
    fn drop(&mut self) {
        drop(self.client.stdin.take());
        self.client.wait().unwrap();
    }
}

/// Also by a server that is alone, which claims new rows as it finds them.
#[test]
fn a_new_row_that_is_locked_keeps_no_other_waiting() {
    const ALL: u64 = 12_000;
    let place = Place::postgres();
    place.options("setup").apply().unwrap();
    let mut one = server(&place, "one");
    place.statement(&format!(
        "INSERT INTO jobs (name, data, status) SELECT 'q', g::text, 'pending' FROM generate_series(1, {ALL}) AS g"
    ));
    let turn = |one: &mut Server, held: &[Held]| -> Result<Vec<Held>, StoreError> {
        let ends: Vec<_> = held.iter().map(|held| end(held, succeed())).collect();
        one.store.settle(&ends, &[], NOW)?;
        one.store.look(Occasion::Time, Evidence::UNTOLD, NOW)?;
        one.learn();
        let order = Order { lane: one.lane("q"), most: 1_000 };
        let held = one.store.claim(&[order], NOW)?;
        one.commit();
        Ok(held)
    };
    one.look();
    let mut seen: Vec<JobId> = Vec::new();
    let mut held = Vec::new();
    while seen.len() < 7_000 {
        held = turn(&mut one, &held).unwrap();
        seen.extend(ids(&held));
    }
    let locked = 10_500;
    let unread = place.statement(&format!("SELECT count(*) FROM jobs WHERE id = {locked} AND state IS NULL"));
    assert_eq!(unread, "1", "they are claimed as they are found");
    let locking = Locking::row(&place, locked);
    for _ in 0..9 {
        held = turn(&mut one, &held).unwrap();
        seen.extend(ids(&held));
    }
    assert!(!seen.iter().any(|id| id.offset == locked));
    assert_eq!(seen.len() as u64, ALL - 1);
    drop(locking);
    one.look();
    seen.extend(ids(&one.claim("q", 9)));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len() as u64, ALL, "each once, and the one that was locked last");
}
