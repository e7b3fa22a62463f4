//! How fast the embedded store is, beside a bare loop on the same database engine and file system.
//!
//! `cargo run --release --example store_rate [DIR]`: admit into 1, 1,000 and 50,000 queues, the whole life of a job
//! (admit, claim, settle, archived), the same with retries and failures, and under a reader that holds its snapshot.
//! All turns are `full`. Each round measures bare and ours in turn, so that a busy machine slows both; medians are
//! reported, by the clock and by processor time (all threads).

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
const ROUNDS: usize = 5;

/// Jobs per second, by the clock and by processor time, and how long its turns took, in milliseconds.
#[derive(Clone, Debug, Default)]
struct Rate {
    jobs: f64,
    wall: f64,
    processor: f64,
    turns: Vec<f64>,
}

impl Rate {
    fn turn<T>(&mut self, act: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let (begun, used) = (Instant::now(), processor_time()?);
        let done = act()?;
        let took = begun.elapsed().as_secs_f64();
        self.wall += took;
        self.processor += processor_time()? - used;
        self.turns.push(took * 1000.0);
        Ok(done)
    }

    fn percentile(&self, percent: usize) -> f64 {
        let mut turns = self.turns.clone();
        turns.sort_by(f64::total_cmp);
        turns.get((turns.len() * percent / 100).min(turns.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }
}

fn processor_time() -> Outcome<f64> {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(used.tv_sec as f64 + used.tv_nsec as f64 / 1e9)
}

fn main() -> Outcome<()> {
    let root = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let place = tempfile::tempdir_in(root)?;
    let at = |what: &str, round: usize| place.path().join(format!("{what}-{round}"));
    let mut rounds: Vec<Vec<(String, usize, Rate)>> = Vec::new();
    for round in 0..ROUNDS {
        let mut rates = vec![("bare insert of 1,000-job chunks".to_owned(), 0, bare(&at("insert", round), false)?)];
        for queues in [1, 1_000, 50_000] {
            rates.push((format!("admit, {queues} queues"), 0, admit(&at(&format!("admit{queues}"), round), queues)?));
        }
        let base = rates.len();
        rates.push(("bare insert, mark, delete".to_owned(), base, bare(&at("life", round), true)?));
        for (queues, bad) in [(1, 0), (1_000, 0), (1, 1)] {
            let what = format!("whole life, {queues} queues, {bad} % retried, {bad} % failed");
            rates.push((what, base, whole_life(&at(&format!("whole{queues}-{bad}"), round), queues, bad, false)?.0));
        }
        rounds.push(rates);
    }
    report(&rounds);
    let (rate, log) = whole_life(&at("reader", 0), 1, 0, true)?;
    println!(
        "a reader holds its snapshot for 1 s: log at most {} MiB, slowest turn {:.0} ms",
        log >> 20,
        rate.percentile(100)
    );
    many_waiting(&place.path().join("many"))
}

/// The medians over the rounds, and the medians of the ratios to the bare loop of the same round.
fn report(rounds: &[Vec<(String, usize, Rate)>]) {
    println!(
        "{:<46} {:>10} {:>8} {:>10} {:>8} {:>24}",
        "", "jobs/s", "of bare", "per CPU s", "of bare", "turn ms 50 % 99 % max"
    );
    for (index, (what, base, _)) in rounds[0].iter().enumerate() {
        let median = |value: &dyn Fn(&Rate, &Rate) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(|rates| value(&rates[index].2, &rates[*base].2)).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!(
            "{what:<46} {:>9.0}k {:>8.2} {:>9.0}k {:>8.2} {:>8.0} {:>6.0} {:>6.0}",
            median(&|own, _| own.jobs / own.wall / 1000.0),
            median(&|own, bare| own.jobs / own.wall / (bare.jobs / bare.wall)),
            median(&|own, _| own.jobs / own.processor / 1000.0),
            median(&|own, bare| own.jobs / own.processor / (bare.jobs / bare.processor)),
            median(&|own, _| own.percentile(50)),
            median(&|own, _| own.percentile(99)),
            median(&|own, _| own.percentile(100)),
        );
    }
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

fn admit(dir: &std::path::Path, queues: u64) -> Outcome<Rate> {
    let (_, mut store) = open(dir)?;
    let total = if queues > 1000 { JOBS / 5 } else { JOBS };
    let mut rate = Rate { jobs: total as f64, ..Rate::default() };
    for from in (0..total).step_by(LOT as usize) {
        let lot = lot(from, queues);
        rate.turn(|| {
            store.admit(&lot, Time(1))?;
            store.changes();
            Ok(store.commit(Durability::Full)?)
        })?;
    }
    Ok(rate)
}

/// Each turn settles what the last one claimed, admits a lot and claims it; the archive follows one turn behind.
/// Says how large the log became; with a reader, one holds its snapshot for a second from the fifth turn on.
fn whole_life(dir: &std::path::Path, queues: u64, bad: u64, reader: bool) -> Outcome<(Rate, u64)> {
    let (place, mut store) = open(dir)?;
    let log = place.state_db().with_file_name("state.db-wal");
    let total = if reader { 10 * JOBS } else { JOBS };
    let mut rate = Rate { jobs: total as f64, ..Rate::default() };
    let mut held: Vec<Held> = Vec::new();
    let (mut turn, mut from, mut largest, mut holder) = (0, 0, 0, None);
    while from < total || !held.is_empty() {
        let next = if from < total { lot(from, queues) } else { Lot::default() };
        from += next.len();
        if reader && rate.turns.len() == 5 {
            holder = Some(hold_snapshot(place.state_db())?);
        }
        (held, turn) = rate.turn(|| one_turn(&mut store, &held, &next, turn, bad))?;
        largest = largest.max(std::fs::metadata(&log)?.len());
    }
    store.archived(turn)?;
    store.commit(Durability::Full)?;
    if let Some(holder) = holder {
        holder.join().map_err(|_| "the reader failed")?;
    }
    Ok((rate, largest))
}

/// A reader on a thread of its own; its snapshot is open when this returns, for a second.
fn hold_snapshot(db: std::path::PathBuf) -> Outcome<std::thread::JoinHandle<()>> {
    let (told, held) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let hold = || -> rusqlite::Result<()> {
            let reader = Connection::open(db)?;
            let snapshot = reader.unchecked_transaction()?;
            snapshot.query_row("SELECT count(*) FROM queue", [], |_| Ok(()))?;
            // Who asked waits for it.
            let _ = told.send(());
            // Nobody speaks here: it is a second's wait.
            let (_silent, nothing) = std::sync::mpsc::channel::<()>();
            let _ = nothing.recv_timeout(std::time::Duration::from_secs(1));
            snapshot.finish()
        };
        hold().unwrap_or_else(|error| println!("the reader failed: {error}"));
    });
    held.recv()?;
    Ok(reader)
}

fn one_turn(store: &mut Embedded, held: &[Held], next: &Lot, archived: u64, bad: u64) -> Outcome<(Vec<Held>, u64)> {
    let settlements = judge(held, bad);
    store.archived(archived)?;
    store.settle(&settlements, &[], Time(3))?;
    store.admit(next, Time(1))?;
    store.release(Time(1000), 100_000)?;
    let ready = store.changes().moves;
    let mut lanes: Vec<Lane> = ready.iter().filter(|m| m.to.is_some_and(is_ready)).map(|m| m.lane).collect();
    lanes.sort();
    lanes.dedup();
    let orders: Vec<Order> = lanes.into_iter().map(|lane| Order { lane, most: LOT as u32 }).collect();
    let held = store.claim(&orders, Time(2))?;
    store.changes();
    Ok((held, store.commit(Durability::Full)?))
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
fn bare(dir: &std::path::Path, life: bool) -> Outcome<Rate> {
    std::fs::create_dir_all(dir)?;
    let db = Connection::open(dir.join("bare.db"))?;
    db.execute_batch(
        "PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -16384;
         PRAGMA wal_autocheckpoint = 2048;
         CREATE TABLE chunk (first INTEGER PRIMARY KEY, bytes BLOB);
         CREATE TABLE part (first INTEGER PRIMARY KEY, bits BLOB);",
    )?;
    let mut rate = Rate { jobs: JOBS as f64, ..Rate::default() };
    let mut before = 0..0;
    for from in (0..JOBS).step_by(LOT as usize) {
        let firsts = (from..from + LOT).step_by(1000);
        let chunks: Vec<_> = firsts.map(|first| (first, chunk(first..first + 1000))).collect();
        rate.turn(|| {
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
            Ok(db.execute_batch("COMMIT")?)
        })?;
        before = from..from + LOT;
    }
    Ok(rate)
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
