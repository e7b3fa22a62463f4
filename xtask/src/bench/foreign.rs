//! The same from programs that know nothing of us: plain lines from C and from PHP, each beside the bare loop in its
//! own language, with the server asleep on its watch.

use super::Outcome;
use super::bed::Bed;
use super::figure::{Bar, Figure, rounds};
use super::push::Stopped;
use super::serving::{Kind, Serving};
use crate::steps::root;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) fn bench_c(bed: &mut Bed) -> Outcome<()> {
    let scratch = bed.scratch()?;
    let program = compile(scratch.path(), "append.c")?;
    bench(bed, "push-c", 300_000, || Command::new(&program))
}

pub(super) fn bench_php(bed: &mut Bed) -> Outcome<()> {
    let script = producer("append.php");
    bench(bed, "push-php", 100_000, || {
        let mut command = Command::new("php");
        command.arg(&script);
        command
    })
}

fn bench(bed: &mut Bed, name: &str, full: u64, program: impl Fn() -> Command) -> Outcome<()> {
    let count = bed.size(full);
    let (scratch, dir) = bed.data_dir()?;
    let mut serving = Serving::start(&dir, Kind::Accept)?;
    let inbox = dir.inbox().join(rustix::process::geteuid().as_raw().to_string());
    let ours = || {
        let stopped = Stopped::at_its_watch(&serving)?;
        let rate = count as f64 / seconds(program(), "push", &inbox, count)?;
        drop(stopped);
        serving.read()?;
        Ok(rate)
    };
    let bare = || {
        let path = scratch.path().join("bare");
        let rate = count as f64 / seconds(program(), "bare", &path, count)?;
        std::fs::remove_file(path)?;
        Ok(rate)
    };
    let (ours, raw) = rounds(bed.rounds(), ours, bare)?;
    bed.report(&Figure::new(name, ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.7, 0.9)));
    serving.stop()
}

/// What the program says that its loop took.
fn seconds(mut command: Command, what: &str, path: &Path, count: u64) -> Outcome<f64> {
    let output = command.arg(what).arg(path).arg(count.to_string()).output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Compiles one of the small C programs of the benches.
pub(super) fn compile(folder: &Path, source: &str) -> Outcome<PathBuf> {
    let program = folder.join(source.trim_end_matches(".c"));
    let done = Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(producer(source)).status()?;
    if done.success() { Ok(program) } else { Err(format!("cc cannot compile {source}: {done}").into()) }
}

fn producer(name: &str) -> PathBuf {
    root().join("xtask/src/bench/producers").join(name)
}
