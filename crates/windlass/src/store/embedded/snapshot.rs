//! A copy of the store as of one turn, made beside a server that goes on working; and what makes a copy another store.

use super::super::StoreError;
use super::bodies;
use super::schema::{self, failed};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, params};
use std::path::Path;

/// Copies the committed state to a new file and brings it to disk; returns the last turn in it.
///
/// One step: in several the copy would begin anew with every turn of the server. While it lasts the server's log
/// cannot start over, and grows.
pub fn snapshot(state_db: &Path, to: &Path) -> Result<u64, StoreError> {
    let from = schema::open_reader(state_db)?;
    let mut copy = Connection::open(to).map_err(failed)?;
    {
        let backup = Backup::new(&from, &mut copy).map_err(failed)?;
        match backup.step(-1).map_err(failed)? {
            StepResult::Done => {}
            StepResult::More | StepResult::Busy | StepResult::Locked => {
                return Err(StoreError::Locked("it is busy and cannot be copied now".into()));
            }
            other => return Err(StoreError::Io(format!("copying the store ended with {other:?}"))),
        }
    }
    // One file, whoever opens it: the log of the copy is brought in and switched off until a server opens it.
    copy.pragma_update(None, "journal_mode", "DELETE").map_err(failed)?;
    copy.query_row("SELECT turn FROM state", [], |row| row.get(0)).map_err(failed)
}

/// Looks through every page and index of a store that nobody has open, and for the bodies that it refers to.
pub fn check(state_db: &Path) -> Result<(), StoreError> {
    let db = schema::open_reader(state_db)?;
    let found: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if found != "ok" {
        return Err(schema::corrupt(format!("the store is damaged: {found}")));
    }
    bodies::check(&db, state_db)
}

/// Makes a copy a store of its own: with another epoch no token of the original means anything here, and with no boot
/// nothing that ran there is held against its jobs.
pub fn make_own(state_db: &Path) -> Result<(), StoreError> {
    let db = Connection::open(state_db).map_err(failed)?;
    db.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    db.execute("UPDATE state SET epoch = ?1, boot = ''", params![schema::random()? as i64]).map_err(failed)?;
    Ok(())
}
