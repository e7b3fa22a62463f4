//! What a long wait costs: memory, the start and the rate with ten million waiting jobs, and memory with very many
//! queues. The server whose memory is measured is a process of its own.

use super::Outcome;
use super::bed::Bed;
use super::feed;
use super::figure::{Bar, Figure, rounds};
use super::serving::{Kind, Serving};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;
use windlass::data_dir::DataDir;
use windlass::runner::handler::{Batch, Handlers, Verdicts};
use windlass::server::{Server, ServerOptions};
use windlass_core::policy::{Policy, Service};

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let waiting = bed.size(10_000_000);
    let (_scratch, dir) = bed.data_dir()?;
    let memory = ingested(&dir, waiting, 1)?;
    bed.report(&Figure::new("backlog.memory", memory.resting, "MiB").bar(Bar::AtMost(128.0, 48.0)));
    bed.report(&Figure::new("backlog.memory-most", memory.most, "MiB"));

    let begun = Instant::now();
    let mut serving = Serving::spawn(&dir, Kind::First)?;
    serving.hear("ready")?;
    serving.hear("first")?;
    let start = begun.elapsed().as_secs_f64();
    let resting = serving.memory("VmRSS")?;
    serving.stop()?;
    bed.report(&Figure::new("backlog.start", start, "s").bar(Bar::AtMost(1.0, 0.1)));
    bed.report(&Figure::new("backlog.memory-after-start", resting, "MiB").bar(Bar::AtMost(128.0, 48.0)));

    let count = bed.size(10_000);
    // One takes a fraction of a second, so there are more of them.
    let times = 5 * bed.rounds();
    let shared = RefCell::new(&mut *bed);
    let few = || {
        let (_scratch, few) = shared.borrow_mut().data_dir()?;
        ingested(&few, 2 * count + count / 10, 1)?;
        paced(&few, count)
    };
    let (many, few) = rounds(times, || paced(&dir, count), few)?;
    bed.report(&Figure::new("backlog.rate", many, "jobs/s").raw(few).bar(Bar::RatioAtLeast(0.9, 0.95)));
    Ok(())
}

pub(super) fn bench_queues(bed: &mut Bed) -> Outcome<()> {
    let queues = bed.size(50_000);
    let (_scratch, dir) = bed.data_dir()?;
    let memory = ingested(&dir, queues, queues)?;
    bed.report(&Figure::new("queues.memory", memory.resting, "MiB").bar(Bar::AtMost(256.0, 128.0)));
    bed.report(&Figure::new("queues.memory-most", memory.most, "MiB"));
    Ok(())
}

struct Memory {
    resting: f64,
    most: f64,
}

/// Lets a server take in a file; its memory right after.
fn ingested(dir: &DataDir, count: u64, queues: u64) -> Outcome<Memory> {
    feed::write(dir, count, queues)?;
    let mut serving = Serving::start(dir, Kind::Accept)?;
    feed::move_in(dir)?;
    serving.read()?;
    let memory = Memory { resting: serving.memory("VmRSS")?, most: serving.memory("VmHWM")? };
    serving.stop()?;
    Ok(memory)
}

/// Jobs a second over `count` of them, in small batches so that claiming counts, after a tenth of that as a run-up.
fn paced(dir: &DataDir, count: u64) -> Outcome<f64> {
    let (tell, told) = channel();
    let done = AtomicU64::new(0);
    let marks = [count / 10, count / 10 + count];
    let handler = move |batch: &Batch<'_>| {
        let jobs = batch.len() as u64;
        let before = done.fetch_add(jobs, Ordering::Relaxed);
        for _ in marks.iter().filter(|mark| (before..before + jobs).contains(mark)) {
            // Nobody listens any more once both marks are passed.
            let _ = tell.send(Instant::now());
        }
        Verdicts::succeeded()
    };
    let policies = vec![Policy { slots: 8, ..Policy::new("*", Service::Handler { name: "none".into(), batch: 10 }) }];
    let handlers = Handlers::new().on("none", handler);
    let server = Server::start(ServerOptions { policies, handlers, ..ServerOptions::new(dir.clone()) })?;
    let spent = |from: Instant, to: Instant| count as f64 / to.duration_since(from).as_secs_f64();
    let rate = spent(told.recv()?, told.recv()?);
    server.halt();
    server.join()?;
    Ok(rate)
}
