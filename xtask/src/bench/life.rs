//! The whole life of a job with a handler that does nothing, `full`: from a file that is moved into the inbox until
//! every job has ended and is in the archive. Beside bare insert, mark and delete of 1,000-job chunks.
//!
//! The same load tells how long a turn takes, and how far the log grows while a reader holds its snapshot.

use super::bed::Bed;
use super::figure::{Bar, Figure, rounds};
use super::{Outcome, feed, raw};
use rusqlite::{Connection, OpenFlags};
use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use windlass::data_dir::DataDir;
use windlass::engine::turn_times::TurnTimes;
use windlass::runner::handler::{Batch, Handlers, Verdicts};
use windlass::server::{Server, ServerOptions};
use windlass_core::life_cycle::State;
use windlass_core::outcome::Outcome as Ended;
use windlass_core::policy::{Backoff, Policy, Service};

const BATCH: u32 = 1000;
/// One for each queue, so that what a turn admits the same turn starts.
const SLOTS: u32 = 1000;

/// What came of one load.
struct Life {
    rate: f64,
    log_most: u64,
}

/// What is special about a load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Clean,
    /// One job in a hundred is retried and one fails for good.
    Faulty,
    /// A reader holds a snapshot for a second.
    Held,
}

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let count = bed.size(2_000_000);
    // The turns of all clean rounds together: a single round has too few for a percentile.
    let turns = TurnTimes::default();
    for (queues, floor, goal) in [(1, 0.4, 0.8), (1_000, 0.25, 0.5)] {
        let times = bed.rounds();
        let shared = RefCell::new(&mut *bed);
        let ours = || {
            let life = live(*shared.borrow_mut(), count, queues, Load::Clean, &turns)?;
            Ok(life.rate)
        };
        let bare = || raw::chunks(shared.borrow_mut().scratch()?.path(), count, true);
        let (ours, raw) = rounds(times, ours, bare)?;
        let name = format!("life.{queues}");
        bed.report(&Figure::new(name, ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(floor, goal)));
    }
    let shared = RefCell::new(&mut *bed);
    let aside = TurnTimes::default();
    let load = |load| live(*shared.borrow_mut(), count, 1, load, &aside).map(|life| life.rate);
    let times = shared.borrow().rounds();
    let (faulty, clean) = rounds(times, || load(Load::Faulty), || load(Load::Clean))?;
    bed.report(&Figure::new("life.faulty", faulty, "jobs/s").raw(clean).bar(Bar::RatioAtLeast(0.5, 0.7)));
    let millis = turns.percentile(0.99).as_secs_f64() * 1000.0;
    bed.report(&Figure::new("life.turn-p99", millis, "ms").bar(Bar::AtMost(50.0, 20.0)));
    let held = live(bed, 3 * count, 1, Load::Held, &TurnTimes::default())?;
    let mib = held.log_most as f64 / f64::from(1 << 20);
    bed.report(&Figure::new("life.log-while-read", mib, "MiB").bar(Bar::AtMost(128.0, 64.0)));
    Ok(())
}

fn live(bed: &mut Bed, count: u64, queues: u64, load: Load, turns: &TurnTimes) -> Outcome<Life> {
    let (_scratch, dir) = bed.data_dir()?;
    feed::write(&dir, count, queues)?;
    let (handlers, ended) = count_down(count, load);
    let service = Service::Handler { name: "none".into(), batch: BATCH };
    let backoff = Backoff { base: Duration::from_millis(1), cap: Duration::from_millis(1) };
    let policy = Policy { slots: SLOTS, backoff, ..Policy::new("*", service) };
    let options = ServerOptions { policies: vec![policy], slots: SLOTS, handlers, ..ServerOptions::new(dir.clone()) };
    let server = Server::start(options)?;
    let begun = Instant::now();
    feed::move_in(&dir)?;
    let log_most = if load == Load::Held { hold_snapshot(&dir.state_db(), &ended)? } else { 0 };
    if load != Load::Held {
        ended.recv()?;
    }
    turns.add(server.turn_times());
    server.stop()?;
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    let failed = if load == Load::Faulty { failures(count) } else { 0 };
    feed::expect(&dir, State::Succeeded, count - failed)?;
    check(&dir, failed)?;
    Ok(Life { rate, log_most })
}

fn check(dir: &DataDir, failed: u64) -> Outcome<()> {
    feed::expect(dir, State::Failed, failed)?;
    feed::expect(dir, State::Ready, 0)
}

/// How many of the first `count` jobs fail for good.
fn failures(count: u64) -> u64 {
    count.div_ceil(100)
}

/// A handler that does nothing but count, and who hears of the last end.
fn count_down(count: u64, load: Load) -> (Handlers, Receiver<()>) {
    let (tell, ended) = channel();
    let left = AtomicU64::new(count);
    let handler = move |batch: &Batch<'_>| {
        let (verdicts, ends) = match load {
            Load::Clean | Load::Held => (Verdicts::succeeded(), batch.len() as u64),
            Load::Faulty => judge(batch),
        };
        if left.fetch_sub(ends, Ordering::Relaxed) == ends {
            // The bench may have stopped listening because it failed.
            let _ = tell.send(());
        }
        verdicts
    };
    (Handlers::new().on("none", handler), ended)
}

/// By the number that each job carries, so that it does not matter how they were batched.
fn judge(batch: &Batch<'_>) -> (Verdicts, u64) {
    let again = AtomicI64::new(0);
    let first = batch.start() == 1;
    let verdicts = Verdicts::each(batch.jobs().map(|(_, data)| match &data[8..10] {
        b"00" => Ended::FailedForGood { error: "no use".into() },
        b"50" if first => {
            again.fetch_add(1, Ordering::Relaxed);
            Ended::RetryLater { after: None, error: "no luck".into() }
        }
        _ => Ended::Succeeded { message: String::new() },
    }));
    let again = again.into_inner().unsigned_abs();
    (verdicts, batch.len() as u64 - again)
}

/// Reads for a second in one snapshot while the load goes on; returns the largest size of the log until its end.
fn hold_snapshot(db: &Path, ended: &Receiver<()>) -> Outcome<u64> {
    let log = db.with_file_name("state.db-wal");
    let reader = Connection::open_with_flags(db, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    reader.execute_batch("BEGIN")?;
    reader.query_row("SELECT turn FROM state", [], |_| Ok(()))?;
    let begun = Instant::now();
    let (mut most, mut held) = (0, true);
    loop {
        most = most.max(std::fs::metadata(&log)?.len());
        if held && begun.elapsed() >= Duration::from_secs(1) {
            reader.execute_batch("COMMIT")?;
            held = false;
        }
        match ended.recv_timeout(Duration::from_millis(5)) {
            Ok(()) => return Ok(most),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("the server ended".into()),
        }
    }
}
