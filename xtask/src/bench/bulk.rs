//! Many lines at once, `os`: through the library, through `windlass push QUEUE -`, and as a file that is moved in.
//! Beside bare appends of 64 KiB under the lock.

use super::bed::{Bed, Scratch};
use super::figure::{Bar, Figure, rounds};
use super::{Outcome, feed, raw};
use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Instant;
use windlass::data_dir::DataDir;
use windlass::inbox::{Envelope, InboxWriter};
use windlass::server::{Server, ServerOptions};
use windlass_core::job::QueueName;
use windlass_core::life_cycle::State;

const PIECE: usize = 64 << 10;
/// Lines of one call: what the command line reads before it writes.
const CALL: u64 = 10_000;
const BAR: Bar = Bar::RatioAtLeast(0.25, 0.5);

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    let count = bed.size(3_000_000).div_ceil(CALL) * CALL;
    library(bed, count)?;
    command_line(bed, count)?;
    moved(bed, count)
}

fn bare(scratch: &Scratch, count: u64) -> Outcome<f64> {
    let lines = PIECE as f64 / feed::LINE as f64;
    let appends = (count as f64 / lines).ceil() as u64;
    Ok(raw::appends(&scratch.path().join("bare"), &[b'x'; PIECE], appends)? * lines)
}

fn library(bed: &mut Bed, count: u64) -> Outcome<()> {
    let (scratch, dir) = bed.data_dir()?;
    let lines = [&[b'x'; feed::LINE - 1][..], b"\n"].concat().repeat(CALL as usize);
    let envelope = Envelope::new(QueueName::new(b"bulk").map_err(|bad| bad.to_string())?);
    let ours = || {
        empty(&dir)?;
        let mut writer = InboxWriter::open(&dir.inbox())?;
        let begun = Instant::now();
        for _ in 0..count / CALL {
            writer.push_lines(&envelope, &lines)?;
        }
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    };
    let (ours, raw) = rounds(bed.rounds(), ours, || bare(&scratch, count))?;
    bed.report(&Figure::new("bulk.library", ours, "jobs/s").raw(raw).bar(BAR));
    Ok(())
}

/// A whole process: start, read, write, end.
fn command_line(bed: &mut Bed, count: u64) -> Outcome<()> {
    let (scratch, dir) = bed.data_dir()?;
    let lines = scratch.path().join("lines");
    let line = [&[b'x'; feed::LINE - 1][..], b"\n"].concat();
    std::fs::write(&lines, line.repeat(count as usize))?;
    let program = std::env::current_exe()?.with_file_name("windlass");
    let help = Command::new(&program).args(["push", "--help"]).stderr(Stdio::null()).output();
    if help.map_or(true, |help| help.stdout.is_empty()) {
        println!("# bulk.command-line is left out: no {} that knows `push`", program.display());
        return Ok(());
    }
    let ours = || {
        empty(&dir)?;
        let begun = Instant::now();
        let status = Command::new(&program)
            .arg("--dir")
            .arg(dir.root())
            .args(["push", "bulk", "--durability", "os", "-"])
            .stdin(File::open(&lines)?)
            .stderr(Stdio::null())
            .status()?;
        let rate = count as f64 / begun.elapsed().as_secs_f64();
        let accepted: u64 =
            std::fs::read_dir(dir.inbox())?.map(|file| Ok(file?.metadata()?.len())).sum::<Outcome<_>>()?;
        if !status.success() || accepted < count * feed::LINE as u64 {
            return Err(format!("{} push: {status}, {accepted} bytes in the inbox", program.display()).into());
        }
        Ok(rate)
    };
    let (ours, raw) = rounds(bed.rounds(), ours, || bare(&scratch, count))?;
    bed.report(&Figure::new("bulk.command-line", ours, "jobs/s").raw(raw).bar(BAR));
    Ok(())
}

fn empty(dir: &DataDir) -> Outcome<()> {
    std::fs::remove_dir_all(dir.inbox())?;
    Ok(std::fs::create_dir(dir.inbox())?)
}

/// A rename accepts all lines of a file; then they are read.
fn moved(bed: &mut Bed, count: u64) -> Outcome<()> {
    let (_scratch, dir) = bed.data_dir()?;
    feed::write(&dir, count, 1)?;
    let server = Server::start(ServerOptions::new(dir.clone()))?;
    let begun = Instant::now();
    feed::move_in(&dir)?;
    let accepted = begun.elapsed();
    feed::read(server.handle())?;
    let read = begun.elapsed();
    server.stop()?;
    feed::expect(&dir, State::Ready, count)?;
    let accepted = Figure::new("bulk.moved", count as f64 / accepted.as_secs_f64(), "jobs/s");
    bed.report(&accepted.bar(Bar::AtLeast(10e6, 10e6)));
    bed.report(&Figure::new("bulk.moved-to-ready", count as f64 / read.as_secs_f64(), "jobs/s"));
    Ok(())
}
