//! `full` pushes through the library over the socket, one job a call from many threads, beside a bare group commit.

use super::bed::Bed;
use super::figure::{Bar, Figure, rounds};
use super::serving::{Kind, Serving};
use super::{Outcome, raw};
use std::time::Instant;
use windlass::client::{Client, PushOptions};
use windlass::error::{self, Failure};

const DATA: [u8; 100] = [b'x'; 100];

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    for (threads, full) in [(8, 16_000), (64, 64_000)] {
        let each = bed.size(full).div_ceil(threads);
        let (scratch, dir) = bed.data_dir()?;
        let serving = Serving::start(&dir, Kind::Accept)?;
        let client = Client::new(dir.clone());
        let client = &client;
        let ours = || {
            let begun = Instant::now();
            std::thread::scope(|scope| {
                let push = |_| client.push("full", &DATA, PushOptions::default()).map(|_| ());
                let pusher = move || (0..each).try_for_each(push);
                let threads: Vec<_> = (0..threads).map(|_| scope.spawn(pusher)).collect();
                let panicked = || Failure::new(error::Kind::Internal, "a producer panicked");
                threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
            })?;
            Ok((threads * each) as f64 / begun.elapsed().as_secs_f64())
        };
        let bare = || raw::group_commits(&scratch.path().join("bare"), threads, each, &DATA);
        let (ours, raw) = rounds(bed.rounds(), ours, bare)?;
        let name = format!("full.{threads}");
        bed.report(&Figure::new(name, ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.7, 0.9)));
        serving.stop()?;
    }
    Ok(())
}
