//! Attacks the engine: the shipped turn on a model store and virtual time, with faults and checkers, from one seed.
//!
//! `windlass-sim --seeds N [--from S]` runs the seeds of `seeds.txt`, then N more; the first that breaks an
//! invariant is named and ends it with exit 1. `--replay SEED` tells one seed's story, a line for each event.
//! Every fiftieth seed is run twice, and must tell the same story twice.

mod checkers;
mod disk;
mod faults;
mod hands;
mod ledger;
mod people;
mod random;
mod watched;
mod workload;
mod world;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;
use world::{Totals, World};

/// Seeds that once broke something.
const SEEDS: &str = include_str!("../seeds.txt");
/// One seed in so many is run twice.
const TWICE: u64 = 50;

enum Command {
    Seeds { from: u64, count: u64 },
    Replay(u64),
}

fn main() -> ExitCode {
    let command = match command(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(wrong) => {
            eprintln!("{wrong}\nusage: windlass-sim --seeds N [--from S] | --replay SEED");
            return ExitCode::from(64);
        }
    };
    match command {
        Command::Replay(seed) => match run(seed, true) {
            Ok(totals) => {
                println!("seed {seed}: fine, trace {:016x}", totals.trace);
                ExitCode::SUCCESS
            }
            Err(what) => {
                println!("seed {seed}: {what}");
                ExitCode::FAILURE
            }
        },
        Command::Seeds { from, count } => seeds(from, count),
    }
}

fn command(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let (mut from, mut count, mut replay) = (1, 2000, None);
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok());
        let value: u64 = value.ok_or_else(|| format!("expected a number after {argument}"))?;
        match argument.as_str() {
            "--seeds" => count = value,
            "--from" => from = value,
            "--replay" => replay = Some(value),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(replay.map_or(Command::Seeds { from, count }, Command::Replay))
}

/// One seed; a panic of an assertion in the engine is a finding like any other.
fn run(seed: u64, verbose: bool) -> Result<Totals, String> {
    let story = AssertUnwindSafe(|| World::new(seed, verbose)?.run());
    std::panic::catch_unwind(story).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn seeds(from: u64, count: u64) -> ExitCode {
    let began = Instant::now();
    let kept = SEEDS.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
    let mut sum = Totals::default();
    let mut seeds = 0;
    for seed in kept.chain(from..from.saturating_add(count)) {
        let told = run(seed, false).and_then(|totals| {
            if seed % TWICE == 0 && run(seed, false)?.trace != totals.trace {
                return Err("it tells another story the second time".into());
            }
            Ok(totals)
        });
        match told {
            Ok(totals) => {
                seeds += 1;
                sum.jobs += totals.jobs;
                sum.starts += totals.starts;
                sum.crashes += totals.crashes;
                sum.cuts += totals.cuts;
                sum.checks += totals.checks;
            }
            Err(what) => {
                println!("seed {seed}: {what}");
                println!("replay with: cargo run --release -p windlass-sim -- --replay {seed}");
                return ExitCode::FAILURE;
            }
        }
    }
    let Totals { jobs, starts, crashes, cuts, checks, .. } = sum;
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds, {jobs} jobs, {starts} starts, {crashes} crashes, {cuts} cuts, {checks} checks, {seconds:.1} s"
    );
    ExitCode::SUCCESS
}
