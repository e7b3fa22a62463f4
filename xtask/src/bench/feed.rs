//! Jobs for the benches: a file of 100-byte lines, on disk and ready to be moved into the inbox.

use super::Outcome;
use super::bed::Bed;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant};
use windlass::data_dir::DataDir;
use windlass::engine::{EngineHandle, Event};
use windlass::server::{Server, ServerOptions};
use windlass::store::StoreView;
use windlass::store::embedded::View;
use windlass_core::life_cycle::State;
use windlass_core::policy::{Policy, Service};

/// Bytes of a line with its queue, its tab and its line feed.
pub(super) const LINE: usize = 100;

/// Writes `queue<TAB>data` lines, the queues in turn, under a name that the inbox does not look at; synced, so that
/// what is measured is the way in and not the disk that the lines came to before.
pub(super) fn write(dir: &DataDir, count: u64, queues: u64) -> Outcome<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(dir.inbox().join(".feed"))?);
    let mut line = Vec::with_capacity(LINE);
    for n in 0..count {
        line.clear();
        write!(line, "q.{}\t{n:010} ", n % queues)?;
        line.resize(LINE - 1, b'x');
        line.push(b'\n');
        file.write_all(&line)?;
    }
    Ok(file.into_inner()?.sync_all()?)
}

/// Jobs a second of the whole server, archive and statistics included.
pub(super) fn live(bed: &mut Bed, count: u64, slots: u32, service: Service) -> Outcome<f64> {
    live_under(bed, count, Policy { slots, ..Policy::new("*", service) })
}

/// The same under rules that say more than how many slots there are.
pub(super) fn live_under(bed: &mut Bed, count: u64, policy: Policy) -> Outcome<f64> {
    let (_scratch, dir) = bed.data_dir()?;
    write(&dir, count, 1)?;
    let (slots, policies) = (policy.slots, vec![policy]);
    let options = ServerOptions { policies, slots, serves: true, ..ServerOptions::new(dir.clone()) };
    let server = Server::start(options)?;
    let begun = Instant::now();
    move_in(&dir)?;
    drained(server.handle())?;
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    server.stop()?;
    expect(&dir, State::Succeeded, count)?;
    Ok(rate)
}

/// Moves the file in: from here on its lines are accepted.
pub(super) fn move_in(dir: &DataDir) -> Outcome<()> {
    Ok(std::fs::rename(dir.inbox().join(".feed"), dir.inbox().join("feed"))?)
}

/// Waits until everything in the inbox is in the store.
pub(super) fn read(handle: &EngineHandle) -> Outcome<()> {
    Ok(handle.ask(|answer| Event::CatchUp { answer })?)
}

/// Waits until everything that can run has ended.
pub(super) fn drained(handle: &EngineHandle) -> Outcome<()> {
    handle.ask(|answer| Event::AwaitDrained { answer, due_only: false, here_only: false })?;
    Ok(())
}

/// Moves the file in and takes the time until all of it is in the store.
pub(super) fn ingest(dir: &DataDir, server: &Server) -> Outcome<Duration> {
    let begun = Instant::now();
    move_in(dir)?;
    read(server.handle())?;
    Ok(begun.elapsed())
}

/// Checks that the store counts this many jobs in a state: a bench that lost some measured nothing.
pub(super) fn expect(dir: &DataDir, state: State, count: u64) -> Outcome<()> {
    let queues = View::open(&dir.state_db())?.queues()?;
    let found: u64 = queues.iter().map(|queue| queue.stats.by_state[state.index()]).sum();
    if found == count { Ok(()) } else { Err(format!("{found} jobs are {state:?}, expected {count}").into()) }
}
