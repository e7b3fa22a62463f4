//! The thread that reads the inbox: sleeps on the kernel's events, reads to the end, hands over lots.
//!
//! This file owns the thread's orders and its sleep; `reader` has the files. A lot is handed over when its bytes
//! are on disk, at most six are under way, and the engine says `committed` after each durable commit, in order.
//! The first record after a sleep goes at once. Records that trickle in while it is under way go together, when it is
//! committed and a breath later, or four where they pour in: each lot costs a sync of the file, for which its writers
//! wait, and a turn.
//! It must not decide what becomes of a job.

use super::disk::{Disk, Kernel};
use super::reader::{LOT_BYTES, Reader, Round};
use super::watch::{Bell, Watch};
use crate::error::{Failure, Kind};
use crate::store::{Cursor, Lot};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most lots that are handed over and not committed: three that one turn takes in, and as many for the next.
pub(super) const LOTS_UNDER_WAY: u64 = 6;

/// How long records that trickle in are gathered after the last lot was committed.
const BREATH: Duration = Duration::from_millis(10);
/// Where so many bytes come in a breath they pour, and up to so many breaths are waited for more.
const POUR: u64 = 64 << 10;
const BREATHS_MOST: u32 = 4;
/// After a shortage of descriptors or memory the next look comes after this time.
const SHORTAGE_RETRY: Duration = Duration::from_secs(1);

/// What the reader hands over.
#[derive(Debug)]
pub enum Delivered {
    /// To be admitted and committed durably, in order; then `committed` is called.
    Lot(Lot),
    /// Everything that was in the inbox when this waiter asked is committed.
    ReadToEnd { waiter: u64 },
    /// Something a person should know; reading goes on.
    Trouble(Failure),
    /// The reader has ended: the process must end too.
    Ended(Failure),
}

pub struct IngestOptions {
    pub inbox: PathBuf,
    pub quarantine: PathBuf,
    /// How far the store has read.
    pub cursors: Vec<Cursor>,
    pub deliver: Box<dyn Fn(Delivered) + Send>,
}

impl fmt::Debug for IngestOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IngestOptions").field("inbox", &self.inbox).finish_non_exhaustive()
    }
}

/// What other threads ask of the reader.
#[derive(Debug, Default)]
struct Orders {
    committed: u64,
    waiters: Vec<u64>,
    nudged: bool,
    stop: bool,
    /// The reader sleeps and wants to hear of commits.
    wants_commits: bool,
    quarantined: u64,
}

#[derive(Debug)]
struct Shared {
    orders: Mutex<Orders>,
    bell: Bell,
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        // The orders are plain values: whoever panicked left them whole.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders());
        self.bell.ring();
    }
}

/// The engine's end of the reader.
#[derive(Debug)]
pub struct IngestHandle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the reader.
#[derive(Debug)]
pub struct Ingest;

impl Ingest {
    pub fn spawn(options: IngestOptions) -> Result<IngestHandle, Failure> {
        // SAFETY: a broken lease is announced by a signal that would end the process; nobody here waits for it.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let shared = Arc::new(Shared { orders: Mutex::default(), bell: Bell::new()? });
        let watch = Watch::new()?;
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("ingest".into()).spawn(move || run(options, &theirs, &watch));
        let thread = thread.map_err(|e| Failure::io("cannot start the inbox reader", &e))?;
        Ok(IngestHandle { shared, thread: Some(thread) })
    }
}

impl IngestHandle {
    /// The oldest lot under way is durable.
    pub fn committed(&self) {
        let mut orders = self.shared.orders();
        orders.committed += 1;
        if orders.wants_commits {
            self.shared.bell.ring();
        }
    }

    /// Asks for `ReadToEnd` with this number once everything that is in the inbox now is committed.
    pub fn read_to_end(&self, waiter: u64) {
        self.shared.order(|orders| orders.waiters.push(waiter));
    }

    /// Look now, also at what was refused before.
    pub fn nudge(&self) {
        self.shared.order(|orders| orders.nudged = true);
    }

    /// How many pieces of damage were set aside since the start.
    pub fn quarantined(&self) -> u64 {
        self.shared.orders().quarantined
    }

    /// Ends the reader between two lots and waits for it.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.order(|orders| orders.stop = true);
        if let Some(thread) = self.thread.take() {
            // A reader that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

impl Drop for IngestHandle {
    fn drop(&mut self) {
        self.end();
    }
}

fn run(options: IngestOptions, shared: &Shared, watch: &Watch) {
    let mut reader = Reader::new(options, Kernel::default());
    if let Err(failure) = turn_until_stopped(&mut reader, shared, watch) {
        reader.deliver(Delivered::Ended(failure));
    }
}

fn turn_until_stopped(reader: &mut Reader<impl Disk>, shared: &Shared, watch: &Watch) -> Result<(), Failure> {
    let mut short = false;
    loop {
        {
            let mut orders = shared.orders();
            orders.wants_commits = false;
            orders.quarantined = reader.quarantined();
            if orders.stop {
                return Ok(());
            }
            reader.note_commits(orders.committed);
            reader.take_waiters(std::mem::take(&mut orders.waiters));
            if std::mem::take(&mut orders.nudged) {
                reader.forget_refusals();
            }
        }
        let stepped = match reader.step() {
            Err(failure) if failure.kind == Kind::Shortage => {
                if !std::mem::replace(&mut short, true) {
                    let text = format!("{failure}; what is in the inbox waits there");
                    reader.deliver(trouble(Kind::Shortage, text));
                }
                shared.bell.wait_up_to(SHORTAGE_RETRY)?;
                continue;
            }
            stepped => stepped?,
        };
        short = false;
        match stepped {
            Round::Read => continue,
            Round::Blocked => {
                if may_sleep(reader, shared, true) {
                    shared.bell.wait()?;
                }
                continue;
            }
            Round::Gathers => {
                if may_sleep(reader, shared, true) {
                    shared.bell.wait()?;
                }
                take_breath(reader, shared)?;
                continue;
            }
            Round::AtEnd => {}
        }
        let armed = watch.arm(reader.inbox(), reader.awaits_closing())?;
        let slept = match reader.is_anything_new() {
            Ok(false) if may_sleep(reader, shared, reader.wants_commits()) => watch.wait(&shared.bell),
            Ok(_) => Ok(()),
            Err(failure) => Err(failure),
        };
        watch.disarm([armed]);
        reader.wake();
        slept?;
    }
}

/// Waits a breath for more records, and some more while they pour in: their writers wait for every sync of the file.
fn take_breath(reader: &Reader<impl Disk>, shared: &Shared) -> Result<(), Failure> {
    let mut unread = reader.unread();
    for _ in 0..BREATHS_MOST {
        if !may_sleep(reader, shared, false) {
            return Ok(());
        }
        shared.bell.wait_up_to(BREATH)?;
        let before = std::mem::replace(&mut unread, reader.unread());
        if unread.saturating_sub(before) < POUR || unread >= LOT_BYTES as u64 {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether nothing was ordered since the last look; from then on the bell tells.
fn may_sleep(reader: &Reader<impl Disk>, shared: &Shared, wants_commits: bool) -> bool {
    let mut orders = shared.orders();
    orders.wants_commits = wants_commits;
    orders.quarantined = reader.quarantined();
    let ordered = orders.stop || orders.nudged || !orders.waiters.is_empty();
    !ordered && (!wants_commits || orders.committed == reader.committed())
}

/// A failure to read that is not the end: the file waits for the next wake-up, the others go on.
pub(super) fn trouble(kind: Kind, text: String) -> Delivered {
    Delivered::Trouble(Failure::new(kind, text))
}

#[cfg(test)]
mod tests;
