//! The store on a `jobs` table: jobs that do nothing through the whole engine, beside the bare statements that a queue
//! on a table cannot do without, on the same server in the same run.
//!
//! Other queues on PostgreSQL stand beside it (`peers`). Bare are one UPDATE that claims and one statement that
//! settles, a thousand rows each, on a table of the same shape. The servers are those of the tests: their own, under
//! `target/`, with syncs on.

use super::bed::Bed;
use super::databases::{Database, Place, client};
use super::figure::{Bar, Figure, percentile, rounds};
use super::latency::Stamps;
use super::{Outcome, feed, peers, raw};
use crate::servers::Servers;
use std::cell::RefCell;
use std::fs::File;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use windlass::data_dir::DataDir;
use windlass::engine::Event;
use windlass::runner::handler::{Handlers, Verdicts};
use windlass::server::{Server, ServerOptions};
use windlass::store::place::{JobsTable, StorePlace};
use windlass::store::sql::Keep;
use windlass_core::policy::{Policy, Service};

const BATCH: u32 = 1000;
const SLOTS: u32 = 4;

/// Rows that are kept, beside the bare statements and the best of the peers.
pub(super) fn bench_kept(bed: &mut Bed) -> Outcome<()> {
    whole(bed, "sql.postgres", Keep::Rows, 0.9, 1.0)
}

/// The same where a row is deleted with its end.
pub(super) fn bench_none(bed: &mut Bed) -> Outcome<()> {
    whole(bed, "sql.postgres-none", Keep::None, 0.7, 2.0)
}

fn whole(bed: &mut Bed, name: &str, keep: Keep, goal: f64, times_best: f64) -> Outcome<()> {
    let servers = Servers::start()?;
    let postgres = Place::of(servers.postgres()?);
    let (count, times) = (bed.size(1_000_000), bed.rounds());
    let shared = RefCell::new(&mut *bed);
    let ours = || live(*shared.borrow_mut(), &postgres, keep, count);
    let bare = || bare(&postgres, keep, count);
    let (ours, raw) = rounds(times, ours, bare)?;
    bed.report(&Figure::new(name, ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.7, goal)));
    if let Some(best) = peers::best(bed, &postgres)? {
        let beside = Figure::new(format!("{name}-to-best-peer"), ours, "jobs/s").raw(best);
        bed.report(&beside.bar(Bar::RatioAtLeast(times_best, times_best)));
    }
    Ok(())
}

pub(super) fn bench_mariadb(bed: &mut Bed) -> Outcome<()> {
    let servers = Servers::start()?;
    let (mariadb, few) = (Place::of(servers.mariadb()?), bed.size(200_000));
    let rate = live(bed, &mariadb, Keep::Rows, few)?;
    bed.report(&Figure::new("sql.mariadb", rate, "jobs/s"));
    Ok(())
}

pub(super) fn bench_sqlite(bed: &mut Bed) -> Outcome<()> {
    let (file, few) = (bed.scratch()?, bed.size(200_000));
    let sqlite = Place::Sqlite(format!("sqlite:{}/jobs.db", file.path().display()));
    let rate = live(bed, &sqlite, Keep::Rows, few)?;
    bed.report(&Figure::new("sql.sqlite", rate, "jobs/s"));
    Ok(())
}

/// A server on a table that runs jobs which do nothing, and says when so many have ended.
struct Live {
    server: Server,
    left: Arc<AtomicU64>,
    ended: Receiver<()>,
}

impl Live {
    fn start(dir: DataDir, table: JobsTable, count: u64) -> Outcome<Live> {
        let (tell, ended) = channel();
        let left = Arc::new(AtomicU64::new(count));
        let counted = Arc::clone(&left);
        let handlers = Handlers::new().on("none", move |batch| {
            let ends = batch.len() as u64;
            if counted.fetch_sub(ends, Ordering::Relaxed) == ends {
                // The bench may have stopped listening because it failed.
                let _ = tell.send(());
            }
            Verdicts::succeeded()
        });
        let service = Service::Handler { name: "none".into(), batch: BATCH };
        let policies = vec![Policy { slots: SLOTS, ..Policy::new("*", service) }];
        let store = StorePlace::Table(table);
        let options = ServerOptions { policies, slots: SLOTS, handlers, store, ..ServerOptions::new(dir) };
        Ok(Live { server: Server::start(options)?, left, ended })
    }
}

/// Jobs a second: rows that are there, from the start of a server until the last has ended and is settled.
fn live(bed: &mut Bed, place: &Place, keep: Keep, count: u64) -> Outcome<f64> {
    let (_scratch, dir) = bed.data_dir()?;
    let database = place.make()?;
    let table = database.table(keep)?;
    table.options("bench").apply()?;
    filled(&database, place, count)?;
    let begun = Instant::now();
    let live = Live::start(dir, table, count)?;
    live.ended.recv()?;
    live.server.stop()?;
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Rows of an application, with what the database knows of them up to date.
fn filled(database: &Database<'_>, place: &Place, count: u64) -> Outcome<()> {
    database.fill(count)?;
    if matches!(place, Place::Postgres(_)) { database.run("VACUUM ANALYZE jobs") } else { Ok(()) }
}

/// Lines of `windlass push`, until all of them are rows, beside a COPY of such rows.
pub(super) fn bench_push(bed: &mut Bed) -> Outcome<()> {
    let servers = Servers::start()?;
    let place = &Place::of(servers.postgres()?);
    let (count, times) = (bed.size(500_000), bed.rounds());
    let program = std::env::current_exe()?.with_file_name("windlass");
    if !program.is_file() {
        println!("# sql.push is left out: no {}", program.display());
        return Ok(());
    }
    let shared = RefCell::new(&mut *bed);
    let ours = || {
        let (scratch, dir) = shared.borrow_mut().data_dir()?;
        let database = place.make()?;
        let table = database.table(Keep::Rows)?;
        table.options("bench").apply()?;
        let lines = scratch.path().join("lines");
        std::fs::write(&lines, format!("{}\n", "x".repeat(95)).repeat(count as usize))?;
        let server =
            Server::start(ServerOptions { store: StorePlace::Table(table), ..ServerOptions::new(dir.clone()) })?;
        let begun = Instant::now();
        let mut command = Command::new(&program);
        command.arg("--dir").arg(dir.root()).args(["push", "q.0", "-"]).stdin(File::open(&lines)?);
        let output = command.stdout(Stdio::null()).env_remove("WINDLASS_DIR").output()?;
        feed::read(server.handle())?;
        let rate = count as f64 / begun.elapsed().as_secs_f64();
        server.stop()?;
        let waiting = database.waiting()?;
        if !output.status.success() || waiting != count {
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("{waiting} rows wait, expected {count}; push {}: {told}", output.status).into());
        }
        Ok(rate)
    };
    let (ours, raw) = rounds(times, ours, || place.make()?.copy(count, raw::TRANSACTION))?;
    bed.report(&Figure::new("sql.push", ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.7, 0.9)));
    Ok(())
}

/// One server and one table through which ten times a million jobs pass, and then one more: that beside the first.
pub(super) fn bench_passed(bed: &mut Bed) -> Outcome<()> {
    let servers = Servers::start()?;
    let place = &Place::of(servers.postgres()?);
    let (_scratch, dir) = bed.data_dir()?;
    let (database, count) = (place.make()?, bed.size(1_000_000));
    let table = database.table(Keep::Rows)?;
    table.options("bench").apply()?;
    let live = Live::start(dir, table, 0)?;
    let mut rates = Vec::new();
    for _ in 0..if bed.quick { 2 } else { 11 } {
        live.left.store(count, Ordering::Relaxed);
        database.fill(count)?;
        let begun = Instant::now();
        live.server.handle().send(Event::Nudge)?;
        live.ended.recv()?;
        feed::drained(live.server.handle())?;
        rates.push(count as f64 / begun.elapsed().as_secs_f64());
    }
    live.server.stop()?;
    let figure = Figure::new("sql.passed", rates[rates.len() - 1], "jobs/s").raw(rates[0]);
    bed.report(&figure.bar(Bar::RatioAtLeast(0.9, 1.0)));
    Ok(())
}

/// The statements that no queue on a table can do without, on a table of the same shape with the same indexes.
fn bare(place: &Place, keep: Keep, count: u64) -> Outcome<f64> {
    let database = place.make()?;
    database.table(keep)?.options("bench").apply()?;
    filled(&database, place, count)?;
    let claim = format!(
        "UPDATE jobs SET status = 'processing', locked_queue_id = 'bench', attempts = attempts + 1 WHERE id IN \
         (SELECT id FROM jobs WHERE status = 'pending' AND id > $1 ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED) \
         RETURNING id, name, data"
    );
    let settle = match keep {
        Keep::Rows => {
            "UPDATE jobs SET status = 'completed', locked_queue_id = '', duration = 0, updated_at = now() \
             WHERE id = ANY($1) AND locked_queue_id = 'bench'"
        }
        Keep::None => "DELETE FROM jobs WHERE id = ANY($1) AND locked_queue_id = 'bench'",
    };
    client(&database.url(), |client, runtime| {
        runtime.block_on(async {
            let (claim, settle) = (client.prepare(&claim).await?, client.prepare(settle).await?);
            let (begun, mut done, mut last) = (Instant::now(), 0, 0i64);
            while done < count {
                let rows = client.query(&claim, &[&last]).await?;
                let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                last = ids.iter().copied().max().ok_or("the rows are used up")?;
                done += client.execute(&settle, &[&ids]).await?;
            }
            Ok(count as f64 / begun.elapsed().as_secs_f64())
        })
    })
}

/// From the insert of a foreign client to the start of the process, beside two commits and a bare spawn.
pub(super) fn bench_latency(bed: &mut Bed) -> Outcome<()> {
    let servers = Servers::start()?;
    let place = &Place::of(servers.postgres()?);
    let (scratch, dir) = bed.data_dir()?;
    let database = place.make()?;
    let table = database.table(Keep::Rows)?;
    table.options("bench").apply()?;
    let mut stamps = Stamps::new(scratch.path())?;
    let policies = stamps.policies();
    let nudge = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    let store = StorePlace::Table(table);
    let options = ServerOptions { policies, serves: true, store, nudge: Some(nudge), ..ServerOptions::new(dir) };
    let server = Server::start(options)?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    client(&database.url(), |client, runtime| {
        let insert = "INSERT INTO jobs (name, data, status) VALUES ('q', 'x', 'pending')";
        runtime.block_on(client.batch_execute("CREATE TABLE bare (id bigserial PRIMARY KEY, data text)"))?;
        for _ in 0..bed.size(400) {
            let begun = raw::monotonic();
            runtime.block_on(client.batch_execute(insert))?;
            sender.send_to(b"1", nudge)?;
            ours.push(stamps.started(begun)?);
            super::bed::pause(PAUSE);
            let begun = raw::monotonic();
            for _ in 0..2 {
                runtime.block_on(client.batch_execute("INSERT INTO bare (data) VALUES ('x')"))?;
            }
            stamps.spawn()?;
            bare.push(stamps.started(begun)?);
            super::bed::pause(PAUSE);
        }
        Ok(())
    })?;
    server.stop()?;
    for (name, share, floor, goal) in [("sql.latency-p50", 0.5, 3.0, 1.5), ("sql.latency-p99", 0.99, 5.0, 3.0)] {
        let figure = Figure::new(name, percentile(&mut ours, share), "ms").raw(percentile(&mut bare, share));
        bed.report(&figure.bar(Bar::RatioAtMost(floor, goal)));
    }
    Ok(())
}

/// Between two jobs, so that everything that follows an end is done and the server sleeps.
const PAUSE: Duration = Duration::from_millis(100);
