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

use super::connect::Link;
use super::rows::Form;
use super::terms::Limits;
use super::values;
use super::{Context, background};
use crate::error::{Failure, Kind};
use session::Session;
use std::ffi::OsString;

pub(super) use progress::{Progress, Shown, Tally};
pub(crate) use session::Event;

const EXAMPLES: &str = "\
Examples:
  ls *.jpg | windlass run -j 8 -- convert {} -thumbnail 200x {.}.thumb.jpg
  windlass run --retry 3 -- curl -sSfO < urls.txt
  windlass run --name import -- ./import-one {} < ids.txt      killed? the same command goes on
  RUN=$(windlass run --detach -- ./import-one < ids.txt); windlass watch $RUN
  windlass run --shell 'gzip -dc \"$1\" | wc -l' < files.txt
  windlass run --csv --header -- ./invite {data.mail} {data.name} < people.csv

Templates: {} the line, {.} without extension, {/} base name, {//} directory,
           {1} {2} its columns between tabs, {#} number, {queue}, {id}. Empty lines are passed over.
           Of rows and objects: {data.NAME} a field; without --header {1} {2}.";

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
    /// Lines of stdin end with NUL instead of a newline, as `find -print0` writes them
    #[arg(short = '0', long)]
    null: bool,
    #[command(flatten)]
    form: Form,
    /// Exit with 0 if no more than this many jobs failed: N or N%
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true)]
    tolerate: Tolerance,
    #[command(flatten)]
    limits: Limits,
    /// Exit with the number of jobs that failed: 1 to 100, and 101 for more
    #[arg(long)]
    exit_count: bool,
    /// Leave when the input is taken, and print the run's id; where nobody serves, start a server that ends by itself
    #[arg(short, long, conflicts_with_all = ["tolerate", "exit_count"])]
    detach: bool,
    /// With --detach: start no server, refuse where nobody serves
    #[arg(long, requires = "detach")]
    no_start: bool,
    /// In place of CMD: a script for sh, in which "$1" is the line
    #[arg(long, value_name = "SCRIPT", conflicts_with = "command")]
    shell: Option<OsString>,
    /// The command and its arguments; without {} the line becomes its last argument
    #[arg(last = true, required_unless_present = "shell", value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Failure> {
    let order = order::Order::new(args)?;
    if args.detach {
        let dir = context.data_dir()?;
        match Link::to_server(&dir)? {
            None if args.no_start => {
                let text = format!("no server is running in {}", dir.root().display());
                return Err(
                    Failure::new(Kind::NoServer, text).hint("start one: windlass serve; or leave --no-start out")
                );
            }
            _ => background::have_served(&dir, context)?,
        }
    }
    let verdict = Verdict { tolerance: args.tolerate, counts: args.exit_count };
    Session::start(order, verdict, args.detach, context)?.follow()
}

/// How the end of a run becomes an exit code.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    tolerance: Tolerance,
    /// The number of failures is the code.
    counts: bool,
}

impl Verdict {
    fn exit_code(self, failed: u64, total: u64) -> u8 {
        match (self.tolerance.allows(failed, total), self.counts) {
            (true, _) => 0,
            (false, true) => u8::try_from(failed.min(101)).unwrap_or(101),
            (false, false) => Kind::JobFailed.exit_code(),
        }
    }
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
        let code = |tolerance, counts, failed| Verdict { tolerance, counts }.exit_code(failed, 1000);
        assert_eq!((code(Tolerance::Percent(1), false, 10), code(Tolerance::Percent(1), false, 11)), (0, 1));
        assert_eq!((code(Tolerance::Count(0), false, 0), code(Tolerance::Count(2), false, 3)), (0, 1));
        let counted = [0, 1, 100, 101, 1000].map(|failed| code(Tolerance::Count(0), true, failed));
        assert_eq!(counted, [0, 1, 100, 101, 101]);
        assert_eq!(code(Tolerance::Count(5), true, 5), 0, "what is tolerated is no failure");
    }
}
