//! Attacks the engine: the shipped turn on a model store and virtual time, with faults and checkers, from one seed.
//!
//! `windlass-sim --seeds N [--from S] [--twice]` runs the seeds of `seeds.txt`, then N more; the first that breaks an
//! invariant is named and ends it with exit 1. Those of the file and every fiftieth, or with `--twice` all, are run
//! twice and must tell the same story twice. `--end N` asks "is it over?" after every step until it was answered N
//! times. `--replay SEED` tells one seed's story, a line for each event. Half of all seeds have schedules, chains,
//! terms of runs, batches that die, jobs that ask to be run again and a destination that asks for patience; with
//! `--crews` none has. Every second has kept workers, batches, calls with many jobs, workers elsewhere, memory, rates
//! and checkpoints; with `--people` none has, and with `--plain` nobody steers or operates either: older seeds tell
//! their old stories then.

mod agenda;
mod asks;
mod bulk;
mod checkers;
mod disk;
mod faults;
mod feeders;
mod flow;
mod hands;
mod inbox;
mod kept;
mod ledger;
#[cfg(test)]
mod lies;
mod manners;
mod over;
mod people;
mod producers;
mod promises;
mod random;
mod remotes;
mod rules;
mod steering;
mod story;
mod together;
mod totals;
mod watched;
mod workload;
mod world;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;
use totals::Totals;
use world::World;

/// Seeds that once broke something.
const SEEDS: &str = include_str!("../seeds.txt");
/// One seed in so many is run twice.
const TWICE: u64 = 50;

/// Who is there besides those who push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cast {
    /// Nobody steers or operates.
    Plain,
    /// Somebody does, and every worker is a process for one job.
    People,
    /// The same, and every second seed has crews of all kinds.
    Crews,
    /// The same, and half of the seeds have schedules, chains, terms of runs and batches that die.
    #[default]
    All,
}

impl Cast {
    fn option(self) -> &'static str {
        match self {
            Cast::Plain => " --plain",
            Cast::People => " --people",
            Cast::Crews => " --crews",
            Cast::All => "",
        }
    }
}

/// What to do with the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Seeds { from: u64, count: u64, twice: u64, cast: Cast },
    End { from: u64, answers: u64, cast: Cast },
    Replay { seed: u64, end: bool, cast: Cast },
}

const USAGE: &str = "usage: windlass-sim [--plain | --people | --crews] --seeds N [--from S] [--twice] \
                     | --end N [--from S] | --replay SEED";

fn main() -> ExitCode {
    let command = match command(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(wrong) => {
            eprintln!("{wrong}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    let told = match command {
        Command::Replay { seed, end, cast } => run(seed, Mode { verbose: true, end, cast })
            .map_err(|what| format!("seed {seed}: {what}"))
            .map(|totals| format!("seed {seed}: fine, trace {:016x}", totals.trace)),
        Command::Seeds { from, count, twice, cast } => seeds(from, count, twice, cast),
        Command::End { from, answers, cast } => end(from, answers, cast),
    };
    match told {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn command(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let (mut from, mut count, mut twice, mut replay, mut end) = (1, 2000, TWICE, None, None);
    let mut cast = Cast::default();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        if argument == "--twice" {
            twice = 1;
            continue;
        }
        if let Some(chosen) =
            [Cast::Plain, Cast::People, Cast::Crews].into_iter().find(|cast| cast.option().trim_start() == argument)
        {
            cast = chosen;
            continue;
        }
        let value = arguments.next().and_then(|value| value.parse().ok());
        let value: u64 = value.ok_or_else(|| format!("expected a number after {argument}"))?;
        match argument.as_str() {
            "--seeds" => count = value,
            "--from" => from = value,
            "--replay" => replay = Some(value),
            "--end" => end = Some(value),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(match (replay, end) {
        (Some(seed), end) => Command::Replay { seed, end: end.is_some(), cast },
        (None, Some(answers)) => Command::End { from, answers, cast },
        (None, None) => Command::Seeds { from, count, twice, cast },
    })
}

/// How a seed's story is told.
#[derive(Clone, Copy, Debug, Default)]
struct Mode {
    verbose: bool,
    end: bool,
    cast: Cast,
}

/// One seed; a panic of an assertion in the engine is a finding like any other.
fn run(seed: u64, mode: Mode) -> Result<Totals, String> {
    let story = || {
        let mut world = World::new(seed, mode.verbose, mode.cast)?;
        world.over = mode.end.then(over::Over::default);
        world.run()
    };
    caught(story)
}

fn caught(story: impl FnOnce() -> Result<Totals, String>) -> Result<Totals, String> {
    std::panic::catch_unwind(AssertUnwindSafe(story)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn failed(seed: u64, what: &str, mode: Mode) -> String {
    let end = if mode.end { " --end 1" } else { "" };
    let cast = mode.cast.option();
    format!("seed {seed}: {what}\nreplay with: cargo run --release -p windlass-sim -- --replay {seed}{end}{cast}")
}

fn seeds(from: u64, count: u64, twice: u64, cast: Cast) -> Result<String, String> {
    let began = Instant::now();
    let kept: Vec<u64> = SEEDS.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    // They tell the story that broke something, and the one they tell today.
    let told =
        kept.iter().flat_map(|seed| [Cast::Plain, Cast::People, Cast::Crews, Cast::All].map(|cast| (*seed, cast)));
    let mut sum = Totals::default();
    let (mut seeds, mut repeated) = (0u64, 0u64);
    let new = (from..from.saturating_add(count)).map(|seed| (seed, cast));
    for (seed, cast) in told.chain(new) {
        let mode = Mode { cast, ..Mode::default() };
        let totals = run(seed, mode).map_err(|what| failed(seed, &what, mode))?;
        if seed.is_multiple_of(twice) || kept.contains(&seed) {
            repeated += 1;
            let again = run(seed, mode).map_err(|what| failed(seed, &what, mode))?;
            if again.trace != totals.trace {
                return Err(failed(seed, "it tells another story the second time", mode));
            }
        }
        seeds += 1;
        sum.add(&totals);
    }
    let Totals {
        jobs,
        starts,
        crashes,
        cuts,
        checks,
        steered,
        operations,
        kept,
        leases,
        together,
        fired,
        chained,
        snoozed,
        ..
    } = sum;
    let seconds = began.elapsed().as_secs_f64();
    let hourly = (seeds + repeated) as f64 / seconds * 3600.0;
    Ok(format!(
        "{seeds} seeds, failing 0, {repeated} told twice alike, {jobs} jobs, {starts} starts, {crashes} crashes, \
         {cuts} cuts, {steered} steerings, {operations} operations, {kept} jobs of kept workers, \
         {leases} leases, {together} jobs of batches and calls, {fired} times of schedules, \
         {chained} chained jobs, {snoozed} snoozes, {checks} checks, {seconds:.1} s, {hourly:.0} seeds an hour"
    ))
}

fn end(from: u64, answers: u64, cast: Cast) -> Result<String, String> {
    let began = Instant::now();
    let mut sum = Totals::default();
    let mut seed = from;
    let mode = Mode { end: true, cast, ..Mode::default() };
    while sum.answers < answers {
        sum.add(&run(seed, mode).map_err(|what| failed(seed, &what, mode))?);
        seed += 1;
    }
    let (worlds, seconds) = (seed - from, began.elapsed().as_secs_f64());
    Ok(format!(
        "end: {} answers, early 0, late 0, in {worlds} worlds with {} crashes and {} cuts, {seconds:.1} s",
        sum.answers, sum.crashes, sum.cuts
    ))
}
