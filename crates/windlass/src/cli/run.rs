//! `windlass run`: a command for each line of stdin, to the end, with one exit code for all of it.
//!
//! It opens a run with the command, feeds it from a thread of its own (`feeder`), and follows it here, printing each
//! job's output whole when it ends. Whoever serves may change in the middle: then it connects to the next server or
//! becomes it. The same command with the same input goes on where a killed one stopped.

mod feeder;
mod input;
mod order;
mod progress;
mod session;

use super::Context;
use super::values;
use crate::error::{Failure, Kind};
use session::Session;
use std::ffi::OsString;

pub(super) use progress::{Progress, Tally};
pub(crate) use session::Event;

const EXAMPLES: &str = "\
Examples:
  ls *.jpg | windlass run -j 8 -- convert {} -thumbnail 200x {.}.thumb.jpg
  windlass run --retry 3 -- curl -sSfO < urls.txt
  windlass run --name import -- ./import-one {} < ids.txt      killed? the same command goes on

Templates: {} the line, {.} without extension, {/} base name, {//} directory,
           {#} number, {queue}, {id}. Empty lines are passed over.";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The queue of the jobs; by default one of its own
    #[arg(short = 'Q', long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Jobs at once; by default the number of cores
    #[arg(short, long, value_name = "N", value_parser = values::slots)]
    jobs: Option<u32>,
    /// Try a job that fails this many more times
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::times)]
    retry: u32,
    /// The name by which an unfinished run is continued; by default a digest of queue, command and directory
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Exit with 0 if no more than this many jobs failed: N or N%
    #[arg(long, value_name = "N", default_value = "0")]
    tolerate: Tolerance,
    /// The command and its arguments; without {} the line becomes its last argument
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Failure> {
    let order = order::Order::new(args)?;
    Session::start(order, args.tolerate, context)?.follow()
}

/// How many failures are still a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tolerance {
    Count(u64),
    Percent(u64),
}

impl Tolerance {
    fn allows(self, failed: u64, total: u64) -> bool {
        match self {
            Tolerance::Count(most) => failed <= most,
            Tolerance::Percent(most) => u128::from(failed) * 100 <= u128::from(most) * u128::from(total),
        }
    }

    /// The exit code for so many failures.
    fn exit_code(self, failed: u64, total: u64) -> u8 {
        if self.allows(failed, total) { 0 } else { Kind::JobFailed.exit_code() }
    }
}

impl std::str::FromStr for Tolerance {
    type Err = String;
    fn from_str(text: &str) -> Result<Tolerance, String> {
        let refused = |_| format!("expected a number of jobs such as 5, or 1%; got: {text}");
        match text.strip_suffix('%') {
            Some(percent) => match percent.parse().map_err(refused)? {
                percent @ 0..=100 => Ok(Tolerance::Percent(percent)),
                more => Err(format!("expected 0% to 100%, got: {more}%")),
            },
            None => text.parse().map(Tolerance::Count).map_err(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerance() {
        assert_eq!("5".parse(), Ok(Tolerance::Count(5)));
        assert_eq!("1%".parse(), Ok(Tolerance::Percent(1)));
        for text in ["", "%", "-1", "101%", "1.5", "5 %"] {
            assert!(text.parse::<Tolerance>().is_err(), "{text}");
        }
        assert_eq!(Tolerance::Percent(1).exit_code(10, 1000), 0);
        assert_eq!(Tolerance::Percent(1).exit_code(11, 1000), 1);
        assert_eq!(Tolerance::Count(0).exit_code(0, 0), 0);
        assert_eq!(Tolerance::Count(2).exit_code(3, 1000), 1);
    }
}
