//! An idle server sleeps: the context switches of all its threads and launchers over a minute.

use super::Outcome;
use super::bed::Bed;
use super::feed;
use super::figure::{Bar, Figure};
use super::serving::{Kind, Serving};
use std::time::Duration;

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    let (_scratch, dir) = bed.data_dir()?;
    feed::write(&dir, 10, 1)?;
    let mut serving = Serving::start(&dir, Kind::Command)?;
    feed::move_in(&dir)?;
    serving.read()?;
    // The jobs end and everything that they made dirty is written.
    let (settle, watched) = if bed.quick { (1, 1) } else { (10, 60) };
    super::bed::pause(Duration::from_secs(settle));
    let before = switches(serving.pid())?;
    super::bed::pause(Duration::from_secs(watched));
    let switches = switches(serving.pid())? - before;
    serving.stop()?;
    bed.report(&Figure::new("idle.switches", switches as f64, "switches").bar(Bar::AtMost(0.0, 0.0)));
    Ok(())
}

/// Voluntary and involuntary, of all threads of a process and of its children.
fn switches(pid: u32) -> Outcome<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        let status = std::fs::read_to_string(thread.join("status"))?;
        let counts = status.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
        sum += counts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>();
        for child in std::fs::read_to_string(thread.join("children"))?.split_whitespace() {
            sum += switches(child.parse()?)?;
        }
    }
    Ok(sum)
}
