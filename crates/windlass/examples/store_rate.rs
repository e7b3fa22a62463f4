//! How fast the embedded store is, beside a bare loop on the same database engine and file system.
//!
//! `cargo run --release --example store_rate [DIR]`: admit into 1, 1,000 and 50,000 queues, the whole life of a job
//! (admit, claim, settle, archived), and the same with retries and failures. All turns are `full`.

use rusqlite::{Connection, params};
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use windlass::data_dir::DataDir;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::embedded::{Embedded, View};
use windlass::store::{Durability, Held, Lot, NewJobs, Order, Settlement, Store, StoreView};
use windlass_core::job::{Lane, LaneKind, Origin, Priority, QueueName, QueueNo};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::time::Time;

type Outcome<T> = Result<T, Box<dyn Error>>;

const BODY: [u8; 86] = [b'x'; 86];
const LOT: u64 = 42_000;
const JOBS: u64 = 1_050_000;

fn main() -> Outcome<()> {
    let root = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let place = tempfile::tempdir_in(root)?;
    let insert = best(|n| bare(&place.path().join(format!("insert{n}")), false))?;
    report("bare insert of 1,000-job chunks", insert, insert);
    for queues in [1, 1_000, 50_000] {
        let rate = best(|n| admit(&place.path().join(format!("admit{queues}-{n}")), queues))?;
        report(&format!("admit, {queues} queues"), rate, insert);
    }
    let life = best(|n| bare(&place.path().join(format!("life{n}")), true))?;
    report("bare insert, mark, delete", life, life);
    for (queues, bad) in [(1, 0), (1_000, 0), (1, 1)] {
        let rate = best(|n| whole_life(&place.path().join(format!("whole{queues}-{bad}-{n}")), queues, bad))?;
        report(&format!("whole life, {queues} queues, {bad} % retries and {bad} % failures"), rate, life);
    }
    many_waiting(&place.path().join("many"))
}

/// The best of three: the machine's noise only ever slows down.
fn best(mut measure: impl FnMut(u32) -> Outcome<f64>) -> Outcome<f64> {
    let mut rates = Vec::new();
    for n in 0..3 {
        rates.push(measure(n)?);
    }
    Ok(rates.into_iter().fold(0.0, f64::max))
}

fn report(what: &str, rate: f64, raw: f64) {
    println!("{what:<52} {:>8.0} thousand jobs/s   {:.2} of bare", rate / 1000.0, rate / raw);
}

/// A lot of jobs dealt to the queues in turn, as an inbox reader would group them.
fn lot(from: u64, queues: u64) -> Lot {
    let mut jobs = Vec::new();
    let each = (LOT / queues).max(1);
    for first in (0..LOT).step_by(each as usize) {
        let queue = (from + first) / each % queues;
        let name = QueueName::new(format!("queue-{queue}").as_bytes());
        for start in (first..first + each).step_by(1000) {
            let (begin, end) = (from + start, from + (start + 1000).min(first + each));
            let queue = name.clone().unwrap_or_else(|bad| unreachable!("{bad}"));
            let jobs_of = chunk(begin..end);
            jobs.push(NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs: jobs_of });
        }
    }
    Lot { jobs, ..Lot::default() }
}

fn chunk(offsets: Range<u64>) -> Arc<windlass::store::chunk::Chunk> {
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    offsets.for_each(|offset| builder.push(offset, &BODY));
    Arc::new(builder.finish())
}

fn open(dir: &std::path::Path) -> Outcome<(DataDir, Embedded)> {
    let dir = DataDir::open(dir).map_err(|failure| failure.to_string())?;
    let (store, _) = Embedded::open(&dir, "boot")?;
    Ok((dir, store))
}

fn admit(dir: &std::path::Path, queues: u64) -> Outcome<f64> {
    let (_, mut store) = open(dir)?;
    let mut spent = 0.0;
    let total = if queues > 1000 { JOBS / 5 } else { JOBS };
    for from in (0..total).step_by(LOT as usize) {
        let lot = lot(from, queues);
        let begun = Instant::now();
        store.admit(&lot, Time(1))?;
        store.changes();
        store.commit(Durability::Full)?;
        spent += begun.elapsed().as_secs_f64();
    }
    Ok(total as f64 / spent)
}

/// Each turn settles what the last one claimed, admits a lot and claims it; the archive follows one turn behind.
fn whole_life(dir: &std::path::Path, queues: u64, bad: u64) -> Outcome<f64> {
    let (_, mut store) = open(dir)?;
    let mut held: Vec<Held> = Vec::new();
    let (mut spent, mut turn, mut from, mut slowest) = (0.0, 0, 0, 0f64);
    while from < JOBS || !held.is_empty() {
        let next = if from < JOBS { lot(from, queues) } else { Lot::default() };
        from += next.len();
        let begun = Instant::now();
        let settlements = judge(&std::mem::take(&mut held), bad);
        store.archived(turn)?;
        store.settle(&settlements, Time(3))?;
        store.admit(&next, Time(1))?;
        store.release(Time(1000), 100_000)?;
        let ready = store.changes().moves;
        let mut lanes: Vec<Lane> = ready.iter().filter(|m| m.to.is_some_and(is_ready)).map(|m| m.lane).collect();
        lanes.sort();
        lanes.dedup();
        let orders: Vec<Order> = lanes.into_iter().map(|lane| Order { lane, most: LOT as u32 }).collect();
        held = store.claim(&orders, Time(2))?;
        store.changes();
        turn = store.commit(Durability::Full)?;
        let took = begun.elapsed().as_secs_f64();
        spent += took;
        slowest = slowest.max(took);
    }
    store.archived(turn)?;
    store.commit(Durability::Full)?;
    println!("    slowest turn {:.0} ms", slowest * 1000.0);
    Ok(JOBS as f64 / spent)
}

fn is_ready(state: windlass_core::life_cycle::State) -> bool {
    state == windlass_core::life_cycle::State::Ready
}

/// Success in whole ranges, but for the first jobs of each range where some are to go wrong.
fn judge(held: &[Held], bad: u64) -> Vec<Settlement> {
    let mut settlements = Vec::new();
    let mut settle = |held: Held, verdict, outcome| {
        settlements.push(Settlement { held, verdict, outcome, started: Time(2), finished: Time(3) });
    };
    for held in held {
        let each = if held.lane.kind == LaneKind::Fresh { u64::from(held.count) * bad / 100 } else { 0 } as u16;
        for index in 0..each {
            let again = Verdict::Retry { at: Time(4), error: "no luck".into() };
            settle(held.part(2 * index, 1), again, "failed");
            let never = Verdict::Fail { reason: Reason::Refused, error: "no use".into() };
            settle(held.part(2 * index + 1, 1), never, "failed");
        }
        settle(held.part(2 * each, held.count - 2 * each), Verdict::Succeed { message: String::new() }, "succeeded");
    }
    settlements
}

/// The raw limit: chunks of the same bytes into one table, and for a life a small row beside each, and deletion.
fn bare(dir: &std::path::Path, life: bool) -> Outcome<f64> {
    std::fs::create_dir_all(dir)?;
    let db = Connection::open(dir.join("bare.db"))?;
    db.execute_batch(
        "PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -16384;
         PRAGMA wal_autocheckpoint = 2048;
         CREATE TABLE chunk (first INTEGER PRIMARY KEY, bytes BLOB);
         CREATE TABLE part (first INTEGER PRIMARY KEY, bits BLOB);",
    )?;
    let (mut spent, mut before) = (0.0, 0..0);
    for from in (0..JOBS).step_by(LOT as usize) {
        let firsts = (from..from + LOT).step_by(1000);
        let chunks: Vec<_> = firsts.map(|first| (first, chunk(first..first + 1000))).collect();
        let begun = Instant::now();
        db.execute_batch("BEGIN IMMEDIATE")?;
        for (first, chunk) in &chunks {
            db.prepare_cached("INSERT INTO chunk VALUES (?1, ?2)")?.execute(params![first, chunk.as_bytes()])?;
        }
        if life {
            for first in before.step_by(1000) {
                db.prepare_cached("DELETE FROM chunk WHERE first = ?1")?.execute([first])?;
                db.prepare_cached("DELETE FROM part WHERE first = ?1")?.execute([first])?;
            }
            for (first, _) in &chunks {
                db.prepare_cached("INSERT INTO part VALUES (?1, ?2)")?.execute(params![first, [1u8, 1]])?;
            }
        }
        db.execute_batch("COMMIT")?;
        spent += begun.elapsed().as_secs_f64();
        before = from..from + LOT;
    }
    Ok(JOBS as f64 / spent)
}

/// Opening with many waiting jobs, and single jobs among them.
fn many_waiting(dir: &std::path::Path) -> Outcome<()> {
    let (place, mut store) = open(dir)?;
    let many = 10_000_000 / LOT * LOT;
    for from in (0..many).step_by(LOT as usize) {
        store.admit(&lot(from, 1), Time(1))?;
        store.changes();
        store.commit(Durability::Os)?;
    }
    drop(store);
    let begun = Instant::now();
    let (mut store, _) = Embedded::open(&place, "boot")?;
    store.backlog()?;
    let lane = Lane { queue: QueueNo(0), priority: Priority::NORMAL, kind: LaneKind::Fresh };
    let held = store.claim(&[Order { lane, most: 1 }], Time(2))?;
    store.commit(Durability::Full)?;
    println!("{many} waiting: open to first claim {:.1} ms", begun.elapsed().as_secs_f64() * 1000.0);
    let view = View::open(&place.state_db())?;
    let begun = Instant::now();
    let mut id = held[0].jobs.id(0);
    let looks = 100;
    for look in 0..looks {
        id.offset = many / looks * look;
        view.job(id)?.ok_or("a waiting job is not found")?;
    }
    println!("{many} waiting: find by id {:.2} ms", begun.elapsed().as_secs_f64() * 1000.0 / looks as f64);
    let status = std::fs::read_to_string("/proc/self/status")?;
    status.lines().filter(|line| line.starts_with("VmHWM")).for_each(|line| println!("{line}"));
    Ok(())
}
