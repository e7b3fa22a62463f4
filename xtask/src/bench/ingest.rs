//! Inbox to ready in the store, `full`, no runner: 100-byte lines of one queue, of a thousand in turn, of fifty
//! thousand in turn. Beside bare inserts of 1,000-job chunks.

use super::bed::Bed;
use super::figure::{Bar, Figure, rounds};
use super::{Outcome, feed, raw};
use std::cell::RefCell;
use windlass::server::{Server, ServerOptions};
use windlass_core::life_cycle::State;

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let rows = [(1, 2_000_000, 0.5, 0.9), (1_000, 2_000_000, 0.3, 0.6), (50_000, 500_000, 0.05, 0.2)];
    for (queues, full, floor, goal) in rows {
        let (count, times) = (bed.size(full), bed.rounds());
        let bare_count = bed.size(2_000_000);
        let shared = RefCell::new(&mut *bed);
        let ours = || {
            let (_scratch, dir) = shared.borrow_mut().data_dir()?;
            feed::write(&dir, count, queues)?;
            let server = Server::start(ServerOptions::new(dir.clone()))?;
            let spent = feed::ingest(&dir, &server)?;
            server.stop()?;
            feed::expect(&dir, State::Ready, count)?;
            Ok(count as f64 / spent.as_secs_f64())
        };
        let bare = || raw::chunks(shared.borrow_mut().scratch()?.path(), bare_count, false);
        let (ours, raw) = rounds(times, ours, bare)?;
        let name = format!("ingest.{queues}");
        bed.report(&Figure::new(name, ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(floor, goal)));
    }
    Ok(())
}
