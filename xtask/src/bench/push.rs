//! One record a call through the library, `os`, beside a bare lock, write and unlock.
//!
//! Asleep: the server has its watch armed and is stopped there, so that every append pays for the watch and none for
//! the reading. Awake: it reads along on the other cores, with its syncs of the same file.

use super::bed::Bed;
use super::figure::{Bar, Figure, rounds};
use super::serving::{Kind, Serving};
use super::{Outcome, raw};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use windlass::inbox::{Envelope, InboxWriter};
use windlass_core::job::QueueName;

const DATA: [u8; 100] = [b'x'; 100];

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    let count = bed.size(300_000);
    for asleep in [true, false] {
        let (scratch, dir) = bed.data_dir()?;
        let mut serving = Serving::start(&dir, Kind::Accept)?;
        let mut writer = InboxWriter::open(&dir.inbox())?;
        let envelope = Envelope::new(QueueName::new(b"push").map_err(|bad| bad.to_string())?);
        writer.push(&envelope, &DATA)?;
        let ours = || {
            serving.read()?;
            let stopped = asleep.then(|| Stopped::at_its_watch(&serving)).transpose()?;
            let begun = Instant::now();
            for _ in 0..count {
                writer.push(&envelope, &DATA)?;
            }
            let rate = count as f64 / begun.elapsed().as_secs_f64();
            drop(stopped);
            serving.read()?;
            Ok(rate)
        };
        let (ours, raw) = rounds(bed.rounds(), ours, || raw::appends(&scratch.path().join("bare"), &DATA, count))?;
        let name = if asleep { "push.asleep" } else { "push.awake" };
        bed.report(&Figure::new(name, ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.7, 0.9)));
        serving.stop()?;
    }
    Ok(())
}

/// A server that was stopped while it slept; it goes on when this is dropped.
pub(super) struct Stopped(Pid);

impl Stopped {
    /// Waits until the server has armed its watch, and stops it there.
    pub(super) fn at_its_watch(serving: &Serving) -> Outcome<Stopped> {
        let pid = Pid::from_raw(serving.pid() as i32).ok_or("a server without a process")?;
        let since = Instant::now();
        while !has_watch(serving.pid())? {
            if since.elapsed() > Duration::from_secs(10) {
                return Err("the server did not go to sleep".into());
            }
            super::bed::pause(Duration::from_millis(1));
        }
        kill_process(pid, Signal::STOP)?;
        Ok(Stopped(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It can only have died, which the bench finds out with its next question.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Whether some descriptor of the process watches something.
fn has_watch(pid: u32) -> Outcome<bool> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may be closed between the listing and the look.
        let about = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        if about.lines().any(|line| line.starts_with("inotify wd:")) {
            return Ok(true);
        }
    }
    Ok(false)
}
