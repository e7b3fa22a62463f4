//! Failure at every I/O call of SQLite, once and from then on, with errors, a full disk and torn writes.
//!
//! The fault layer's counters are those of the process, so these tests have a binary of their own and take turns.

use rusqlite::Connection;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use windlass::store::fault::{self, Kind, Plan};

/// How many transactions the script has.
const LOTS: usize = 4;

static TURN: Mutex<()> = Mutex::new(());

/// Waits for the other tests of this binary and puts the layer in place; one that failed does not stop the rest.
fn alone() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    fault::install();
    fault::disarm();
    turn
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    db.execute_batch(
        "PRAGMA journal_mode = wal; PRAGMA synchronous = full; PRAGMA wal_autocheckpoint = 2; PRAGMA cache_size = 10;
         CREATE TABLE IF NOT EXISTS t (a INTEGER PRIMARY KEY, b BLOB NOT NULL);",
    )?;
    Ok(db)
}

/// Inserts four lots of three rows, each lot a transaction; returns how many lots were answered.
fn script(path: &Path) -> usize {
    let Ok(mut db) = open(path) else { return 0 };
    for lot in 0..LOTS {
        let done = db.transaction().and_then(|turn| {
            for row in 0..3 {
                turn.execute("INSERT INTO t VALUES (?1, zeroblob(3000))", [(lot * 3 + row) as u32])?;
            }
            turn.commit()
        });
        if done.is_err() {
            return lot;
        }
    }
    LOTS
}

#[test]
fn sqlite_keeps_every_answered_transaction_whichever_call_fails() {
    let _turn = alone();
    let mut runs = 0;
    for kind in Kind::ALL {
        for from_then_on in [false, true] {
            for nth in 1.. {
                runs += 1;
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("db");
                fault::arm(Plan { nth, from_then_on, kind });
                let answered = script(&path);
                let tally = fault::disarm();
                let which = format!("{kind:?}, call {nth}, from then on: {from_then_on}");
                assert_eq!(tally.failed > 0, tally.calls >= nth, "{which}: {tally:?}");
                assert!(from_then_on || tally.failed <= 1, "{which}: {tally:?}");
                let db = open(&path).unwrap_or_else(|e| panic!("{which}: {e}"));
                let intact: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
                assert_eq!(intact, "ok", "{which}");
                let rows: u32 = db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
                let lots = rows as usize / 3;
                assert_eq!(rows % 3, 0, "{which}: half a transaction");
                assert!(lots == answered || lots == answered + 1, "{which}: {lots} lots, {answered} answered");
                if tally.failed == 0 {
                    assert_eq!(answered, LOTS, "{which}");
                    assert!(nth > 30, "the script makes some calls");
                    break;
                }
            }
        }
    }
    println!("store: SQLite {runs} times with each call failing in turn, no answered transaction lost");
}

#[test]
fn each_kind_fails_in_its_own_way() {
    let _turn = alone();
    let code = |kind, nth| {
        let dir = tempfile::tempdir().unwrap();
        let db = open(&dir.path().join("db")).unwrap();
        fault::arm(Plan { nth, from_then_on: true, kind });
        let answer = db.execute("INSERT INTO t VALUES (1, zeroblob(100000))", []);
        fault::disarm();
        answer.err().and_then(|error| error.sqlite_error_code())
    };
    let codes = |kind| (1..20).map(|nth| code(kind, nth)).collect::<Vec<_>>();
    use rusqlite::ErrorCode::{DiskFull, SystemIoFailure};
    assert!(codes(Kind::Full).contains(&Some(DiskFull)), "a write finds no space");
    for kind in [Kind::Error, Kind::Torn] {
        let codes = codes(kind);
        assert!(!codes.contains(&Some(DiskFull)) && codes.contains(&Some(SystemIoFailure)), "{kind:?}: {codes:?}");
    }
}

#[test]
fn nothing_fails_while_nothing_is_armed() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(script(&dir.path().join("db")), LOTS);
    fault::arm(Plan { nth: u64::MAX, from_then_on: true, kind: Kind::Error });
    assert_eq!(script(&dir.path().join("other")), LOTS);
    let tally = fault::disarm();
    assert!(tally.calls > 30 && tally.failed == 0, "{tally:?}");
}
