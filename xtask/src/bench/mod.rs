//! `cargo xtask bench [--quick] [NAME…]`: what it does a second, each figure beside the raw limit of the same run.
//!
//! The raw limit is a bare loop (`raw`) on the file system that holds the store, in turn with ours, because a shared
//! machine drifts. One line a figure: `name value unit [raw VALUE ratio R] [floor F goal G ok|MISSED]`. Benches are
//! built for release; `--quick` runs each of them in small as it was built, to show that it works, and judges nothing.

mod backlog;
mod bed;
mod bulk;
mod crawl;
mod databases;
mod fan_out;
mod feed;
mod figure;
mod foreign;
mod full;
mod idle;
mod ingest;
mod latency;
mod life;
mod lines;
mod moves;
mod peers;
mod push;
mod raw;
mod serving;
mod spawn;
mod spool;
mod sql;
mod urls;

use crate::setup::setup_for_some;
use crate::steps::{cargo, step};
use bed::Bed;
use std::error::Error;

pub(crate) use lines::{WORKER, work};
pub(crate) use serving::{WORD as SERVER, serve};
pub(crate) use spool::{STAGE, stage};

/// A bench stops at whatever goes wrong and says what it was.
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Name, and what it measures; the names of its figures begin with its own.
type Bench = (&'static str, fn(&mut Bed) -> Outcome<()>);

const BENCHES: &[Bench] = &[
    ("push", push::bench),
    ("push-c", foreign::bench_c),
    ("push-php", foreign::bench_php),
    ("bulk", bulk::bench),
    ("full", full::bench),
    ("ingest", ingest::bench),
    ("life", life::bench),
    ("move", moves::bench),
    ("spawn", spawn::bench),
    ("batch", lines::bench_batch),
    ("worker", lines::bench_worker),
    ("url", urls::bench),
    ("fan-out", fan_out::bench),
    ("crawl", crawl::bench),
    ("latency", latency::bench),
    ("backlog", backlog::bench),
    ("queues", backlog::bench_queues),
    ("queues-known", lines::bench_queues),
    ("idle", idle::bench),
    ("sql.postgres", sql::bench_kept),
    ("sql.postgres-none", sql::bench_none),
    ("sql.push", sql::bench_push),
    ("sql.passed", sql::bench_passed),
    ("sql.latency", sql::bench_latency),
    ("sql.mariadb", sql::bench_mariadb),
    ("sql.sqlite", sql::bench_sqlite),
    ("spool", spool::bench),
];

/// Runs the benches whose names begin with one of the given ones; with none, all of them.
pub(crate) fn bench(words: &[&str]) -> Result<(), String> {
    let (flags, names): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('-'));
    let quick = match flags.as_slice() {
        [] => false,
        ["--quick"] => true,
        _ => return Err(format!("unknown flags {flags:?}, expected --quick")),
    };
    let wanted = |bench: &str| {
        let exact = BENCHES.iter().any(|(name, _)| names.contains(name));
        names.is_empty() || names.iter().any(|name| if exact { bench == *name } else { bench.starts_with(name) })
    };
    let chosen: Vec<_> = BENCHES.iter().filter(|(name, _)| wanted(name)).collect();
    if chosen.is_empty() {
        let known: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
        return Err(format!("no bench is named {}, expected one of {}", names.join(" "), known.join(" ")));
    }
    if cfg!(debug_assertions) && !quick {
        return in_release(words);
    }
    setup_for_some();
    let mut bed = Bed::open(quick).map_err(|error| error.to_string())?;
    for (name, run) in chosen {
        run(&mut bed).map_err(|error| format!("bench {name}: {error}"))?;
    }
    Ok(())
}

/// A debug build measures nothing: builds for release and goes on there.
fn in_release(words: &[&str]) -> Result<(), String> {
    step("release build", &mut cargo(&["build", "--release", "--quiet", "-p", "xtask", "-p", "windlass"]))?;
    let arguments = ["run", "--release", "--quiet", "-p", "xtask", "--", "bench"];
    let status = cargo(&arguments).args(words).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the release build of the benches ended with {status}")),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}
