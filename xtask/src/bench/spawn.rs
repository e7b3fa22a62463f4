//! One process per job, its output kept, `full`: `/bin/true` through the whole server, beside a bare `posix_spawn`
//! with three pipes, and beside other programs that start processes.

use super::bed::Bed;
use super::figure::{Bar, Figure, rounds};
use super::{Outcome, feed, raw};
use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use windlass_core::policy::{self, Identity, Limits, Policy, Service};

const SLOTS: u32 = 8;
const PROGRAM: &str = "/bin/true";

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let (count, times) = (bed.size(4_000), bed.rounds());
    let shared = RefCell::new(&mut *bed);
    let ours = || feed::live_under(*shared.borrow_mut(), count, policy());
    let (ours, raw) = rounds(times, ours, || raw::spawns(Path::new(PROGRAM), "data", count))?;
    bed.report(&Figure::new("spawn.true", ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.7, 0.9)));
    limited(bed, count, times)?;
    for (name, goal) in [("xargs", 1.0), ("make", 1.0), ("parallel", 8.0)] {
        match other(bed, name, if name == "parallel" { count.div_ceil(10) } else { count })? {
            None => println!("# spawn.over-{name} is left out: {name} is not installed"),
            Some(rate) => {
                let figure = Figure::new(format!("spawn.over-{name}"), ours, "jobs/s").raw(rate);
                bed.report(&figure.bar(Bar::RatioAtLeast(0.0, goal)));
            }
        }
    }
    Ok(())
}

/// The same with every limit, as another user; it takes root.
fn limited(bed: &mut Bed, count: u64, times: usize) -> Outcome<()> {
    if !rustix::process::geteuid().is_root() {
        println!("# spawn.limited is left out: only root runs jobs as another user");
        return Ok(());
    }
    let limits = Limits { memory: 1 << 30, processes: 100, cpu: Duration::from_secs(60), output: 1 << 20 };
    let nobody = Identity { name: "nobody".into(), uid: 65534, gid: 65534, groups: vec![65534], home: b"/".to_vec() };
    let shared = RefCell::new(&mut *bed);
    let policy = Policy { limits, user: Some(nobody), ..policy() };
    let ours = || feed::live_under(*shared.borrow_mut(), count, policy.clone());
    let (ours, raw) = rounds(times, ours, || raw::spawns(Path::new(PROGRAM), "data", count))?;
    bed.report(&Figure::new("spawn.limited", ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.5, 0.8)));
    Ok(())
}

fn policy() -> Policy {
    let argv = vec![PROGRAM.as_bytes().to_vec(), b"{}".to_vec()];
    let command = policy::Command { argv, ..policy::Command::default() };
    Policy { slots: SLOTS, ..Policy::new("*", Service::Command(command)) }
}

/// Jobs a second of another program that starts a process for each line or target.
fn other(bed: &mut Bed, name: &str, count: u64) -> Outcome<Option<f64>> {
    let scratch = bed.scratch()?;
    let input = scratch.path().join("input");
    let mut file = File::create(&input)?;
    let slots = SLOTS.to_string();
    let mut command = Command::new(name);
    match name {
        "make" => {
            let targets: Vec<String> = (0..count).map(|n| format!("t{n}")).collect();
            writeln!(file, "all: {0}\n.PHONY: {0}\n{0}:\n\t@{PROGRAM} $@", targets.join(" "))?;
            command.args(["-s", "-j", &slots, "-f"]).arg(&input);
        }
        "xargs" => {
            (0..count).try_for_each(|n| writeln!(file, "{n}"))?;
            command.args(["-P", &slots, "-n", "1", PROGRAM]).stdin(File::open(&input)?);
        }
        _ => {
            (0..count).try_for_each(|n| writeln!(file, "{n}"))?;
            command.args(["-j", &slots, PROGRAM]).stdin(File::open(&input)?);
        }
    }
    let begun = Instant::now();
    match command.stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(Some(count as f64 / begun.elapsed().as_secs_f64())),
        Ok(status) => Err(format!("{name} ended with {status}").into()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
