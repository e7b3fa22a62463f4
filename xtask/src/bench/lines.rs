//! Jobs as lines: batch commands and kept workers through the whole server, beside a bare program that feeds the same
//! processes, in turn.

use super::bed::Bed;
use super::figure::{Bar, Figure, percentile, rounds};
use super::{Outcome, feed};
use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use windlass::engine::Event;
use windlass::server::{Server, ServerOptions};
use windlass_core::life_cycle::State;
use windlass_core::policy::{self, Batch, Policy, Reply, Service, Worker};

/// Jobs of one process, and processes at once.
const BATCH: u32 = 2000;
const PROCESSES: u32 = 4;
/// Jobs of one process that only counts them: what is measured is the way there, so there are few starts.
const COUNTED: u32 = 10_000;
/// What answers each line of a batch.
const ANSWER: [&str; 2] = ["awk", "{ print \"ok\" }"];
/// The first argument that makes this program a kept worker. Not every `awk` answers a line before it has the next.
pub(crate) const WORKER: &str = "__bench_worker";
/// As long as the data of a job that `feed` writes.
const LINE: &[u8] = &{
    let mut line = [b'x'; feed::LINE - 4];
    line[feed::LINE - 5] = b'\n';
    line
};

pub(super) fn bench_batch(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let (count, times) = (bed.size(400_000), bed.rounds());
    let shared = RefCell::new(&mut *bed);
    let answered = || Batch { size: BATCH, ..Batch::new(command(&ANSWER)) };
    let ours = || feed::live(*shared.borrow_mut(), count, PROCESSES, Service::Batch(answered()));
    let (ours, raw) = rounds(times, ours, || bare_batches(count))?;
    bed.report(&Figure::new("batch.awk", ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.4, 0.8)));
    bed.report(&Figure::new("batch.awk-rate", ours, "jobs/s").bar(Bar::AtLeast(300_000.0, 300_000.0)));
    let shared = RefCell::new(&mut *bed);
    let count = 5 * count;
    let counted = || Batch { size: COUNTED, reply: Reply::Exit, ..Batch::new(command(&["wc", "-l"])) };
    let ours = || feed::live(*shared.borrow_mut(), count, PROCESSES, Service::Batch(counted()));
    let (ours, raw) = rounds(times, ours, || bare_pipe(count))?;
    bed.report(&Figure::new("batch.wc", ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.2, 0.5)));
    bed.report(&Figure::new("batch.wc-rate", ours, "jobs/s").bar(Bar::AtLeast(1e6, 1e6)));
    Ok(())
}

pub(super) fn bench_worker(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let times = bed.rounds();
    for (window, count) in [(1, 60_000), (64, 600_000)] {
        let count = bed.size(count);
        let shared = RefCell::new(&mut *bed);
        let kept = kept(window)?;
        let ours = || feed::live(*shared.borrow_mut(), count, 1, Service::Worker(kept.clone()));
        let (ours, raw) = rounds(times, ours, || bare_exchange(count, window as usize))?;
        let name = format!("worker.window-{window}");
        bed.report(&Figure::new(name, ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.5, 0.8)));
    }
    Ok(())
}

/// Very many queues that are known already, with one job each, in the hands of one kept worker; beside the same jobs in
/// one queue.
pub(super) fn bench_queues(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let (queues, times) = (bed.size(50_000), bed.rounds());
    let shared = RefCell::new(&mut *bed);
    let making = Cell::new(0.0);
    let many = || {
        let (rate, made) = known(*shared.borrow_mut(), queues, queues)?;
        making.set(made);
        Ok(rate)
    };
    let (many, one) = rounds(times, many, || known(*shared.borrow_mut(), queues, 1).map(|(rate, _)| rate))?;
    bed.report(&Figure::new("queues-known", many, "jobs/s").raw(one).bar(Bar::RatioAtLeast(0.2, 0.4)));
    bed.report(&Figure::new("queues-known.making", making.get(), "s"));
    Ok(())
}

/// Jobs a second out of the store, in queues that have had a job before, and how long it took to make those.
fn known(bed: &mut Bed, count: u64, queues: u64) -> Outcome<(f64, f64)> {
    let (_scratch, dir) = bed.data_dir()?;
    let policies = vec![Policy { slots: 1, ..Policy::new("*", Service::Worker(kept(64)?)) }];
    let server = Server::start(ServerOptions { policies, slots: 1, serves: true, ..ServerOptions::new(dir.clone()) })?;
    let mut spent = Vec::new();
    for _ in 0..2 {
        server.handle().send(Event::Quiet)?;
        feed::write(&dir, count, queues)?;
        let making = feed::ingest(&dir, &server)?;
        let begun = Instant::now();
        server.handle().send(Event::Nudge)?;
        feed::drained(server.handle())?;
        spent.push((making.as_secs_f64(), begun.elapsed().as_secs_f64()));
    }
    server.stop()?;
    feed::expect(&dir, State::Succeeded, 2 * count)?;
    let [(making, _), (_, working)] = spent[..] else { return Err("two rounds".into()) };
    Ok((count as f64 / working, making))
}

fn kept(window: u32) -> Outcome<Worker> {
    let [program, word] = worker()?;
    Ok(Worker { in_flight: window, ..Worker::new(command(&[&program, &word])) })
}

/// The worker's side: an answer for each line, written whenever there is nothing more to read for now.
pub(crate) fn work() -> Result<(), String> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut buffer = vec![0; 64 << 10];
    loop {
        let got = input.read(&mut buffer).map_err(|error| error.to_string())?;
        if got == 0 {
            return Ok(());
        }
        let lines = buffer[..got].iter().filter(|byte| **byte == b'\n').count();
        output.write_all(&b"ok\n".repeat(lines)).map_err(|error| error.to_string())?;
        output.flush().map_err(|error| error.to_string())?;
    }
}

/// This program as a worker.
fn worker() -> Outcome<[String; 2]> {
    let program = std::env::current_exe()?.into_os_string().into_string().map_err(|_| "a path that is no text")?;
    Ok([program, WORKER.to_owned()])
}

fn command(argv: &[&str]) -> policy::Command {
    let argv = argv.iter().map(|word| word.as_bytes().to_vec()).collect();
    policy::Command { argv, ..policy::Command::default() }
}

fn start(argv: &[&str]) -> Outcome<Child> {
    let mut command = Command::new(argv[0]);
    Ok(command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
}

/// The same processes, fed and read by as many bare threads.
fn bare_batches(count: u64) -> Outcome<f64> {
    let lines = LINE.repeat(BATCH as usize);
    let each = count / u64::from(BATCH * PROCESSES);
    let begun = Instant::now();
    let feed = || -> std::io::Result<()> {
        for _ in 0..each {
            let mut child =
                Command::new(ANSWER[0]).args(&ANSWER[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let mut input = child.stdin.take().ok_or_else(|| std::io::Error::other("no input"))?;
            input.write_all(&lines)?;
            drop(input);
            let mut replies = Vec::new();
            child.stdout.take().ok_or_else(|| std::io::Error::other("no output"))?.read_to_end(&mut replies)?;
            child.wait()?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PROCESSES).map(|_| scope.spawn(feed)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(std::io::Error::other("panic"))))
    })?;
    Ok((each * u64::from(BATCH * PROCESSES)) as f64 / begun.elapsed().as_secs_f64())
}

/// Lines a second through one large pipe into one `wc -l`: the median of nine.
fn bare_pipe(count: u64) -> Outcome<f64> {
    let block = LINE.repeat(4096);
    let mut rates = Vec::new();
    for _ in 0..9 {
        let mut child = start(&["wc", "-l"])?;
        let mut input = child.stdin.take().ok_or("no input")?;
        rustix::pipe::fcntl_setpipe_size(&input, 1 << 20)?;
        let begun = Instant::now();
        for _ in 0..count.div_ceil(4096) {
            input.write_all(&block)?;
        }
        drop(input);
        child.wait_with_output()?;
        rates.push((count.div_ceil(4096) * 4096) as f64 / begun.elapsed().as_secs_f64());
    }
    Ok(percentile(&mut rates, 0.5))
}

/// One process, so many lines unanswered at most: a line for each reply.
fn bare_exchange(count: u64, window: usize) -> Outcome<f64> {
    let [program, word] = worker()?;
    let mut child = start(&[&program, &word])?;
    let mut input = child.stdin.take().ok_or("no input")?;
    let mut output = child.stdout.take().ok_or("no output")?;
    let lines = LINE.repeat(window);
    let (mut sent, mut heard) = (0u64, 0u64);
    let mut buffer = vec![0; 64 << 10];
    let begun = Instant::now();
    while heard < count {
        let room = (window as u64 - (sent - heard)).min(count - sent) as usize;
        input.write_all(&lines[..room * LINE.len()])?;
        sent += room as u64;
        let got = output.read(&mut buffer)?;
        heard += buffer[..got].iter().filter(|byte| **byte == b'\n').count() as u64;
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    drop(input);
    child.wait()?;
    Ok(rate)
}
