//! From an append to the start of the process, with an idle server: the job itself says when it started. Beside one
//! fdatasync and one bare spawn of the same program, taken in turn.

use super::bed::Bed;
use super::figure::{Bar, Figure, percentile};
use super::foreign::compile;
use super::{Outcome, feed, raw};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use windlass::inbox::{Envelope, InboxWriter};
use windlass::server::{Server, ServerOptions};
use windlass_core::job::QueueName;
use windlass_core::policy::{self, Policy, Service};

const DATA: [u8; 100] = [b'x'; 100];
/// Between two jobs, so that everything that follows an end is done and the server sleeps.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let (scratch, dir) = bed.data_dir()?;
    let mut stamps = Stamps::new(scratch.path())?;
    let policies = stamps.policies();
    let server = Server::start(ServerOptions { policies, serves: true, ..ServerOptions::new(dir.clone()) })?;
    let mut writer = InboxWriter::open(&dir.inbox())?;
    let envelope = Envelope::new(QueueName::new(b"latency").map_err(|bad| bad.to_string())?);
    let mut log = File::create(scratch.path().join("bare"))?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..bed.size(400) {
        let begun = raw::monotonic();
        writer.push(&envelope, &DATA)?;
        ours.push(stamps.started(begun)?);
        feed::drained(server.handle())?;
        super::bed::pause(PAUSE);
        bare.push(sync_and_spawn(&mut log, &mut stamps)?);
        super::bed::pause(PAUSE);
    }
    server.stop()?;
    for (name, share) in [("latency.p50", 0.5), ("latency.p99", 0.99)] {
        let figure = Figure::new(name, percentile(&mut ours, share), "ms").raw(percentile(&mut bare, share));
        bed.report(&figure.bar(Bar::RatioAtMost(3.0, 1.5)));
    }
    Ok(())
}

fn sync_and_spawn(log: &mut File, stamps: &mut Stamps) -> Outcome<f64> {
    let begun = raw::monotonic();
    log.write_all(&DATA)?;
    log.sync_data()?;
    stamps.spawn()?;
    stamps.started(begun)
}

/// A program that says when it started, and what it says it to.
pub(super) struct Stamps {
    program: PathBuf,
    pipe: PathBuf,
    file: File,
}

impl Stamps {
    pub(super) fn new(folder: &Path) -> Outcome<Stamps> {
        let program = compile(folder, "stamp.c")?;
        let pipe = folder.join("stamps");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)?;
        let file = OpenOptions::new().read(true).write(true).open(&pipe)?;
        Ok(Stamps { program, pipe, file })
    }

    /// Every queue is served by the program.
    pub(super) fn policies(&self) -> Vec<Policy> {
        let argv = vec![self.program.as_os_str().as_bytes().to_vec(), self.pipe.as_os_str().as_bytes().to_vec()];
        let command = policy::Command { argv, ..policy::Command::default() };
        vec![Policy::new("*", Service::Command(command))]
    }

    pub(super) fn spawn(&self) -> Outcome<()> {
        raw::spawn(&self.program, self.pipe.to_str().ok_or("a path that is no text")?)
    }

    /// Milliseconds until the start that the process told.
    pub(super) fn started(&mut self, begun: Duration) -> Outcome<f64> {
        let mut stamp = [0; 8];
        self.file.read_exact(&mut stamp)?;
        let told = Duration::from_nanos(u64::from_ne_bytes(stamp));
        Ok(told.saturating_sub(begun).as_secs_f64() * 1000.0)
    }
}
