//! The write-ahead log: synced when a turn promises `full`, and brought back into the main file before it grows.
//!
//! A helper thread checkpoints passively from 4 MiB on, round after round, and does the bulk without stopping the
//! engine. From 32 MiB on the engine restarts the log between two turns: after a turn that wrote little, so that no
//! turn is long twice, and when the helper has ended its round, for which it waits a moment, so that little is left to
//! do; from 56 MiB on after any turn. A reader that holds its snapshot keeps the log from restarting: from 64 MiB on
//! the engine waits for it up to two seconds, which bounds the log; only one that holds longer lets it grow, by
//! doubling. Our own readers hold a snapshot only within a call.

use super::super::{StoreError, fault};
use super::schema::{self, PAGE, failed};
use crate::sabotage::{self, Sabotage};
use rusqlite::Connection;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const MIB: u32 = (1 << 20) / PAGE;
const PASSIVE_AT: u32 = 4 * MIB;
const RESTART_AT: u32 = 32 * MIB;
const LATE_AT: u32 = 56 * MIB;
const PATIENT_AT: u32 = 64 * MIB;
/// A turn that wrote no more than this was short.
const LITTLE: u32 = 2 * MIB;
/// What a short turn waits for the helper's round: less than the rest of it would take the engine itself.
const MOMENT: Duration = Duration::from_millis(20);
/// A reader's call is over by then.
const SHORT: Duration = Duration::from_millis(5);
const PATIENT: Duration = Duration::from_secs(2);

/// Watches the size of the log and keeps it small.
#[derive(Debug)]
pub(super) struct Housekeeper {
    /// Pages in the log after the last commit.
    pages: Arc<AtomicU32>,
    /// Pages in the log at the last look.
    seen: u32,
    restart_at: u32,
    path: PathBuf,
    log: Option<File>,
    nudge: Option<SyncSender<()>>,
    round: Arc<Round>,
    helper: Option<JoinHandle<()>>,
    trouble: Arc<Mutex<Option<StoreError>>>,
}

/// The helper's round: begun by who asks for it, over when the helper says so.
#[derive(Debug, Default)]
struct Round {
    busy: Mutex<bool>,
    over: Condvar,
}

impl Round {
    fn begin(&self) {
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn end(&self) {
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.over.notify_all();
    }

    /// Whether it is over, or will be within this time.
    fn is_over_within(&self, most: Duration) -> bool {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.over.wait_timeout_while(busy, most, |busy| *busy);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }
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
        let round = Arc::new(Round::default());
        let ours = round.clone();
        let own = schema::open_checkpointer(path)?;
        let helper = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || checkpoint(&own, &nudged, &ours, &reported))
            .map_err(|error| StoreError::Io(format!("cannot start the checkpoint thread: {error}")))?;
        let path = log_path(path);
        let (nudge, helper) = (Some(nudge), Some(helper));
        // Opened now: later there may be no descriptor left for it.
        let log = File::open(&path).ok();
        Ok(Housekeeper { pages, seen: 0, restart_at: RESTART_AT, path, log, nudge, round, helper, trouble })
    }

    /// The log's path.
    pub(super) fn log(&self) -> &Path {
        &self.path
    }

    /// Makes the last commit survive a power cut. What failed once is not tried again: the process ends.
    pub(super) fn sync_log(&mut self) -> Result<(), StoreError> {
        let cannot = |error: std::io::Error| StoreError::Io(format!("cannot sync {}: {error}", self.path.display()));
        let log = match self.log.take() {
            Some(log) => log,
            None => File::open(&self.path).map_err(cannot)?,
        };
        if !sabotage::on(Sabotage::LogNotSynced) {
            fault::sync_data(&log).map_err(cannot)?;
        }
        self.log = Some(log);
        Ok(())
    }

    /// After each commit: asks the helper, or restarts the log.
    pub(super) fn look(&mut self, db: &Connection) -> Result<(), StoreError> {
        let pages = self.pages.load(Ordering::Relaxed);
        let wrote = pages.saturating_sub(std::mem::replace(&mut self.seen, pages));
        if pages < PASSIVE_AT {
            return Ok(());
        }
        if let Some(error) = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        // Two who checkpoint would wait for each other, so the engine does it only while the helper rests.
        let short = wrote <= LITTLE && pages >= self.restart_at;
        let rests = self.round.is_over_within(if short { MOMENT } else { Duration::ZERO });
        let due = short || pages >= self.restart_at.max(LATE_AT);
        if due && rests || pages >= self.restart_at.max(PATIENT_AT) {
            return self.restart(db, pages);
        }
        if let Some(nudge) = self.nudge.as_ref().filter(|_| rests) {
            self.round.begin();
            // It takes what it is sent as long as it lives, and says so if it does not.
            let _ = nudge.try_send(());
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
            (true, false) => (pages + PASSIVE_AT).min(PATIENT_AT),
            (true, true) => pages.saturating_mul(2),
        };
        if !busy {
            self.pages.store(0, Ordering::Relaxed);
            self.seen = 0;
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

/// The log of a database file.
pub(super) fn log_path(db: &Path) -> PathBuf {
    let mut log = db.as_os_str().to_owned();
    log.push("-wal");
    PathBuf::from(log)
}

fn checkpoint(db: &Connection, nudged: &Receiver<()>, round: &Round, trouble: &Mutex<Option<StoreError>>) {
    while nudged.recv().is_ok() {
        match db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(failed) {
            Ok(()) | Err(StoreError::Full(_) | StoreError::Locked(_)) => round.end(),
            Err(error) => {
                *trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                return round.end();
            }
        }
    }
}
