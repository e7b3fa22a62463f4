//! Documents through a directory with a stage that does nothing, beside a bare loop with the same renames and the same
//! syncs: a claim, an output that is written, synced and named, its directory synced, and the input gone.

use super::Outcome;
use super::bed::Bed;
use super::figure::{Bar, Figure, rounds};
use std::fs::{File, create_dir_all, read_dir, remove_file, rename, write};
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const DRIVERS: u64 = 4;
/// The word by which this program is asked to be the stage: a shell reads a line byte by byte, a call for each.
pub(crate) const STAGE: &str = "__bench_stage";

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let (count, times) = (bed.size(8_000), bed.rounds());
    let (ours, bare) = (bed.scratch()?, bed.scratch()?);
    let (ours, raw) = rounds(times, || drive(ours.path(), count), || bare_loop(bare.path(), count))?;
    bed.report(&Figure::new("spool.drive", ours, "documents/s").raw(raw).bar(Bar::RatioAtLeast(0.6, 0.9)));
    Ok(())
}

fn fill(queue: &Path, count: u64) -> Outcome<()> {
    create_dir_all(queue)?;
    for number in 0..count {
        let hidden = queue.join("being-written");
        write(&hidden, "text\n")?;
        rename(&hidden, queue.join(format!("d{number}.ready")))?;
    }
    rustix::fs::syncfs(File::open(queue)?)?;
    Ok(())
}

fn drive(folder: &Path, count: u64) -> Outcome<f64> {
    let (input, output) = (folder.join("in"), folder.join("out"));
    fill(&input, count)?;
    write(input.join("done"), "")?;
    let begun = Instant::now();
    let program = std::env::current_exe()?.with_file_name("windlass");
    let mut command = Command::new(program);
    command.args(["-q", "drive", "--keep", "-j", &DRIVERS.to_string(), "--in"]).arg(&input).arg("--out").arg(&output);
    let stage = std::env::current_exe()?;
    let status = command.arg("--").arg(stage).arg(STAGE).stdin(Stdio::null()).status()?;
    if !status.success() {
        return Err(format!("the drivers ended with {status}").into());
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    clear(&output)?;
    remove_file(input.join("done"))?;
    Ok(rate)
}

fn bare_loop(folder: &Path, count: u64) -> Outcome<f64> {
    let (input, output) = (folder.join("in"), folder.join("out"));
    fill(&input, count)?;
    create_dir_all(&output)?;
    let directory = File::open(&output)?;
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let work = || -> std::io::Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            let working = input.join(format!("d{number}.1.working"));
            rename(input.join(format!("d{number}.ready")), &working)?;
            let writing = output.join(format!("d{number}.1.writing.xml"));
            File::create(&writing)?.sync_all()?;
            rename(&writing, output.join(format!("d{number}.ready")))?;
            directory.sync_all()?;
            remove_file(&working)?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..DRIVERS).map(|_| scope.spawn(work)).collect();
        let ended = |thread: std::thread::ScopedJoinHandle<'_, std::io::Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
        };
        threads.into_iter().try_for_each(ended)
    })?;
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    clear(&output)?;
    Ok(rate)
}

/// A kept command that does nothing: an empty output for each document.
pub(crate) fn stage() -> Result<(), String> {
    let wrong = |error: std::io::Error| error.to_string();
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(wrong)?;
        let (_, made) = line.split_once('\t').ok_or_else(|| format!("a line without a tab: {line}"))?;
        File::create(made).map_err(wrong)?;
        output.write_all(b"ok\n").and_then(|()| output.flush()).map_err(wrong)?;
    }
    Ok(())
}

/// Empty for the next round.
fn clear(output: &Path) -> Outcome<()> {
    for entry in read_dir(output)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            remove_file(entry.path())?;
        }
    }
    Ok(())
}
