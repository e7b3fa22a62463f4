//! `windlass watchdog`: watches queues of documents, gives back what dead drivers held, and starts drivers again.
//!
//! The watching is the library's (`spool::watchdog`); here it gets its words and its signals.

use super::Context;
use super::print::{self, visible};
use super::signals::Signals;
use super::values;
use crate::error::{Failure, Kind};
use crate::spool::TRIES;
use crate::spool::watchdog::{Crew, Guard, Watchdog};
use crate::when;
use serde_json::json;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  windlass watchdog work                                             # a directory of queues, whoever drives them
  windlass watchdog texts -j 3 -- windlass drive --in texts --out parsed --keep -- ./parser
  windlass watchdog texts -j 2 --out parsed -- ./driver.sh texts parsed {n}
  windlass watchdog texts --foreign-after 1h --once                  # from cron

In the command {n} is the number that the driver has to work under, DOC.{n}.working; a driver of ours leases its own.";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The queue, or a directory of queues
    directory: PathBuf,
    /// Drivers to run
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = values::slots, requires = "driver")]
    jobs: u32,
    /// Where drivers of other programs write, so that what they leave half written goes away
    #[arg(long = "out", value_name = "DIR")]
    output: Option<PathBuf>,
    /// What dead drivers had is tried so often; 0 for no end of it
    #[arg(long, value_name = "N", default_value_t = TRIES, value_parser = values::times)]
    tries: u32,
    /// Give back what a driver without a lease has had for so long and has written nothing of for as long; never by
    /// default
    #[arg(long, value_name = "DURATION", value_parser = when::duration)]
    foreign_after: Option<Duration>,
    /// Wait so long before a driver is started again, and twice as long each time after; 1s by default
    #[arg(long, value_name = "DURATION", value_parser = when::duration, requires = "driver")]
    restart: Option<Duration>,
    /// Look once, and end
    #[arg(long, conflicts_with = "driver")]
    once: bool,
    /// The driver and its arguments
    #[arg(last = true, value_name = "DRIVER")]
    driver: Vec<OsString>,
}

pub(super) fn watchdog(args: &Args, context: &Context) -> Result<u8, Failure> {
    if args.driver.first().is_some_and(|program| program.is_empty()) {
        return Err(Failure::new(Kind::Usage, "the driver is the empty string").hint("name a program behind --"));
    }
    let crew = (!args.driver.is_empty()).then(|| Crew {
        command: args.driver.clone(),
        drivers: args.jobs as usize,
        restart: args.restart.unwrap_or(Duration::from_secs(1)),
    });
    let guard = Guard {
        place: args.directory.clone(),
        output: args.output.clone(),
        tries: args.tries,
        unleased_after: args.foreign_after,
        crew,
    };
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
    let quiet = context.quiet;
    let say = move |sentence: &str| {
        if !quiet {
            print::say(visible(sentence));
        }
    };
    let mut watchdog = Watchdog::new(guard, Arc::new(say));
    let taken = if args.once {
        watchdog.look()?
    } else {
        let stop = watchdog.stopper();
        let watch = move || {
            while signals.next().is_some() {
                stop();
            }
        };
        let spawned = std::thread::Builder::new().name("watchdog signals".into()).spawn(watch);
        spawned.map_err(|e| Failure::io("cannot start a thread", &e))?;
        watchdog.watch()?
    };
    if context.json {
        let told = json!({ "drivers": taken.drivers, "again": taken.again, "aside": taken.aside, "done": taken.done });
        print::document(&told)?;
    }
    Ok(if taken.aside > 0 { Kind::JobFailed.exit_code() } else { 0 })
}
