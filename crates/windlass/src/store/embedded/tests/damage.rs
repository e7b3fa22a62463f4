//! Values that are not what was stored are told, whatever column they stand in, and nothing is handed out; stores of
//! older formats, which have fewer checksums or none, are brought up to date.

use super::*;
use rusqlite::params;
use rusqlite::types::Value;

/// A store with ready retries, one that waits for its time, a failed one, a running one, chunks and a run.
fn filled() -> Bed {
    let mut bed = Bed::new();
    let run = NewRun { name: "lint".into(), spec: b"{}".to_vec(), ..NewRun::default() };
    let id = RunId::first(Origin::from_random(77));
    bed.store().open_run(id, &run, NOW).unwrap();
    bed.admit(vec![NewJobs { run: Some(id), ..jobs("a", 1, 0..6) }, jobs("b", 2, 0..9)]);
    for verdict in [retry(0), retry(0), retry(900), fail()] {
        let held = bed.claim(0, LaneKind::Fresh, 1);
        bed.settle(&held[0], verdict);
    }
    bed.store().release(at(1), 10, Evidence::UNTOLD).unwrap();
    assert_eq!(bed.claim(0, LaneKind::Retry, 1).len(), 1);
    bed.claim(1, LaneKind::Fresh, 4);
    bed.commit();
    bed
}

/// Writes another value of the same kind into one column of every row of a table, as damage to the file would.
fn alter(bed: &Bed, table: &str, column: &str) {
    let db = rusqlite::Connection::open(bed.dir.state_db()).unwrap();
    let mut statement = db.prepare(&format!("SELECT rowid, {column} FROM {table}")).unwrap();
    let found = statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?))).unwrap();
    let found: Vec<(i64, Value)> = found.map(Result::unwrap).collect();
    assert!(!found.is_empty(), "{table} has rows");
    for (row, value) in found {
        let other = match value {
            Value::Null => Value::Integer(1),
            // Offsets must still differ from each other.
            Value::Integer(number) if column == "offset" => Value::Integer(number + 1000),
            Value::Integer(number) => Value::Integer(number ^ 1),
            Value::Text(text) => Value::Text(format!("{text}x")),
            Value::Blob(bytes) => Value::Blob(bytes.iter().map(|byte| byte ^ 1).chain([7]).collect()),
            Value::Real(_) => unreachable!("no column holds a fraction"),
        };
        db.execute(&format!("UPDATE {table} SET {column} = ?2 WHERE rowid = ?1"), params![row, other]).unwrap();
    }
}

/// Opens the store and takes everything that it hands out.
fn drain(bed: &mut Bed) -> Result<Vec<Held>, StoreError> {
    let (mut store, _) = Embedded::open(&bed.dir, "boot")?;
    store.recover(
        Evidence { begun: &|_, _| false, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD },
        NOW,
    )?;
    store.release(at(1000), 100, Evidence::UNTOLD)?;
    let lanes = store.backlog()?.moves.into_iter().filter(|step| step.to == Some(State::Ready)).map(|step| step.lane);
    let orders: Vec<Order> = lanes.map(|lane| Order { lane, most: 100 }).collect();
    let held = store.claim(&orders, NOW);
    bed.store = Some(store);
    held
}

#[test]
fn a_column_that_is_not_as_it_was_stored_is_told_and_nothing_is_handed_out() {
    let mut whole = filled();
    whole.store = None;
    assert_eq!(drain(&mut whole).unwrap().iter().map(|held| u64::from(held.count)).sum::<u64>(), 14);
    // Of a row what never changes has a sum, its errors too; state, rank and kind must be those of its lane.
    let job = ["origin", "offset", "queue", "rank", "kind", "state", "sum", "errors", "data"];
    let chunk = ["queue", "rank", "count", "run", "due", "admitted", "base", "last", "sum", "bytes"];
    let others = [("queue", "name"), ("queue", "sum"), ("tally", "counts"), ("part", "gone"), ("part", "bits")];
    let run = ["origin", "generation", "name", "spec", "created", "sum"].map(|column| ("run", column));
    for (table, column) in job
        .map(|column| ("job", column))
        .into_iter()
        .chain(chunk.map(|column| ("chunk", column)))
        .chain(others)
        .chain(run)
    {
        let mut bed = filled();
        bed.store = None;
        alter(&bed, table, column);
        let told = drain(&mut bed);
        assert!(matches!(told, Err(StoreError::Corrupt(_))), "{table}.{column}: {:?}", told.map(|held| held.len()));
    }
}

#[test]
fn marks_that_are_gone_are_missed() {
    let mut bed = filled();
    bed.store = None;
    let db = rusqlite::Connection::open(bed.dir.state_db()).unwrap();
    db.execute_batch("DELETE FROM part").unwrap();
    drop(db);
    let told = drain(&mut bed).unwrap_err().to_string();
    assert_eq!(told, "the store is damaged: 0 chunks have marks, expected 2");
}

#[test]
fn a_damaged_row_is_told_in_words_to_whoever_asks_for_it() {
    let mut bed = filled();
    bed.store = None;
    alter(&bed, "job", "data");
    let told = bed.view().job(id(1, 3)).unwrap_err().to_string();
    assert!(told.starts_with("the store is damaged: job ") && told.ends_with("is not as it was stored"), "{told}");
    assert!(bed.view().list(&Filter::default(), Arrival(0), 10).is_err());
}

/// Makes the store what a program of an older format would have left behind.
fn age(bed: &Bed, format: u32) {
    let db = rusqlite::Connection::open(bed.dir.state_db()).unwrap();
    if format < 5 {
        db.execute_batch("DROP TABLE shared").unwrap();
    }
    if format >= 4 {
        db.execute_batch(&format!("UPDATE state SET format = {format}; PRAGMA user_version = {format};")).unwrap();
        return;
    }
    db.execute_batch("ALTER TABLE state DROP COLUMN parts; ALTER TABLE job DROP COLUMN particulars;").unwrap();
    db.execute_batch("ALTER TABLE run DROP COLUMN terms; DROP TABLE unique_key;").unwrap();
    db.execute_batch("DROP TABLE expiry; DROP TABLE waits_for;").unwrap();
    for table in ["queue", "chunk", "run"] {
        db.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN sum")).unwrap();
    }
    if format < 3 {
        db.execute_batch("DROP TABLE body; ALTER TABLE job DROP COLUMN sum;").unwrap();
    }
    let blobs =
        [("tally", "counts"), ("job", "errors"), ("turn", "outcomes"), ("progress", "counts"), ("part", "bits")];
    for (table, column) in blobs {
        let mut statement = db.prepare(&format!("SELECT rowid, {column} FROM {table}")).unwrap();
        let found = statement.query_map([], |r| Ok((r.get(0)?, r.get::<_, Option<Vec<u8>>>(1)?))).unwrap();
        let found: Vec<(i64, Option<Vec<u8>>)> = found.map(Result::unwrap).collect();
        for (row, bytes) in found.into_iter().filter_map(|(row, bytes)| Some((row, bytes?))) {
            // Marks of all jobs alike and all other blobs began with a 1, packed marks with a 2.
            let first = if table == "part" && bytes[0] == 7 { 2 } else { 1 };
            let old = [&[first], &bytes[5..]].concat();
            db.execute(&format!("UPDATE {table} SET {column} = ?2 WHERE rowid = ?1"), params![row, old]).unwrap();
        }
    }
    if format < 2 {
        db.execute_batch("DROP TABLE override; DROP TABLE note;").unwrap();
    }
    db.execute_batch(&format!("UPDATE state SET format = {format}; PRAGMA user_version = {format};")).unwrap();
}

#[test]
fn a_store_of_an_older_format_is_brought_up_to_date_and_keeps_everything() {
    for format in [1, 2, 3, 4, 5] {
        let mut bed = filled();
        let before = bed.view().list(&Filter::default(), Arrival(0), 100).unwrap().jobs;
        bed.store = None;
        age(&bed, format);
        let unread = bed.view().list(&Filter::default(), Arrival(0), 100).unwrap().jobs;
        assert_eq!(before, unread, "format {format} can be read as it is");
        bed.kill("boot");
        let after = bed.view().list(&Filter::default(), Arrival(0), 100).unwrap().jobs;
        assert_eq!((before.len(), &before), (15, &after), "format {format}");
        assert_eq!((bed.view().overrides().unwrap().len(), row_count(&bed, "body")), (0, 0));
        assert_eq!(bed.store().unarchived().unwrap().len(), 1);
        bed.check();
        let header = std::fs::read(bed.dir.state_db()).unwrap();
        assert_eq!(header[60..64], 6u32.to_be_bytes(), "an older program is told before SQLite opens the file");
        bed.admit(vec![jobs("c", 3, 0..2)]);
        bed.commit();
        bed.store = None;
        alter(&bed, "chunk", "queue");
        assert!(drain(&mut bed).is_err(), "what is stored from then on has checksums");
    }
}
