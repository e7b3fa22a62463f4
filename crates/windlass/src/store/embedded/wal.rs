//! The write-ahead log: synced when a turn promises `full`, and brought back into the main file before it grows.
//!
//! A helper thread checkpoints passively from 16 MiB on and does the bulk without stopping the engine; from 64 MiB on
//! the engine restarts the log between two turns. A reader that holds its snapshot keeps the log from restarting:
//! from 96 MiB on the engine waits for it up to a second. Our own readers hold one only within a call.

use super::super::{StoreError, fault};
use super::schema::{self, PAGE, failed};
use rusqlite::Connection;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const MIB: u32 = (1 << 20) / PAGE;
const PASSIVE_AT: u32 = 16 * MIB;
const RESTART_AT: u32 = 64 * MIB;
const PATIENT_AT: u32 = 96 * MIB;
/// Long enough for the helper to end its round.
const SHORT: Duration = Duration::from_millis(20);
const PATIENT: Duration = Duration::from_secs(1);

/// Watches the size of the log and keeps it small.
#[derive(Debug)]
pub(super) struct Housekeeper {
    /// Pages in the log after the last commit.
    pages: Arc<AtomicU32>,
    restart_at: u32,
    path: PathBuf,
    log: Option<File>,
    nudge: Option<SyncSender<()>>,
    helper: Option<JoinHandle<()>>,
    trouble: Arc<Mutex<Option<StoreError>>>,
}

impl Housekeeper {
    pub(super) fn start(db: &mut Connection, path: &Path) -> Result<Housekeeper, StoreError> {
        let pages = Arc::new(AtomicU32::new(0));
        let seen = pages.clone();
        db.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, count: std::os::raw::c_int| {
            seen.store(count.unsigned_abs(), Ordering::Relaxed);
            Ok(())
        }))
        .map_err(failed)?;
        let (nudge, nudged) = sync_channel(1);
        let trouble = Arc::new(Mutex::new(None));
        let reported = trouble.clone();
        let own = schema::open_checkpointer(path)?;
        let helper = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || checkpoint(&own, &nudged, &reported))
            .map_err(|error| StoreError::Io(format!("cannot start the checkpoint thread: {error}")))?;
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let path = PathBuf::from(log);
        let (nudge, helper) = (Some(nudge), Some(helper));
        Ok(Housekeeper { pages, restart_at: RESTART_AT, path, log: None, nudge, helper, trouble })
    }

    /// Makes the last commit survive a power cut. What failed once is not tried again: the process ends.
    pub(super) fn sync_log(&mut self) -> Result<(), StoreError> {
        let cannot = |error: std::io::Error| StoreError::Io(format!("cannot sync {}: {error}", self.path.display()));
        let log = match self.log.take() {
            Some(log) => log,
            None => File::open(&self.path).map_err(cannot)?,
        };
        fault::sync_data(&log).map_err(cannot)?;
        self.log = Some(log);
        Ok(())
    }

    /// After each commit: asks the helper, or restarts the log.
    pub(super) fn look(&mut self, db: &Connection) -> Result<(), StoreError> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < PASSIVE_AT {
            return Ok(());
        }
        if let Some(error) = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        if let Some(nudge) = &self.nudge {
            // A full channel means that the helper is asked already.
            let _ = nudge.try_send(());
        }
        if pages >= self.restart_at {
            self.restart(db, pages)?;
        }
        Ok(())
    }

    fn restart(&mut self, db: &Connection, pages: u32) -> Result<(), StoreError> {
        let patient = pages >= PATIENT_AT;
        db.busy_timeout(if patient { PATIENT } else { SHORT }).map_err(failed)?;
        let busy = db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |r| r.get::<_, i64>(0));
        db.busy_timeout(Duration::from_secs(5)).map_err(failed)?;
        let busy = match busy.map_err(failed) {
            Ok(busy) => busy != 0,
            // The main file cannot grow now, or somebody reads: the log still holds everything.
            Err(StoreError::Full(_) | StoreError::Locked(_)) => true,
            Err(error) => return Err(error),
        };
        self.restart_at = match (busy, patient) {
            (false, _) => RESTART_AT,
            (true, false) => (pages + PASSIVE_AT).min(PATIENT_AT.max(pages + 1)),
            (true, true) => pages.saturating_mul(2),
        };
        if !busy {
            self.pages.store(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        self.nudge = None;
        if let Some(helper) = self.helper.take() {
            // It can only have panicked, and then it has said so.
            let _ = helper.join();
        }
    }
}

fn checkpoint(db: &Connection, nudged: &Receiver<()>, trouble: &Mutex<Option<StoreError>>) {
    while nudged.recv().is_ok() {
        match db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(failed) {
            Ok(()) | Err(StoreError::Full(_) | StoreError::Locked(_)) => {}
            Err(error) => {
                *trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                return;
            }
        }
    }
}
