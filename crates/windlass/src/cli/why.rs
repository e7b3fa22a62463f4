//! `windlass why`: why a job or a queue does not start, or what a run waits for, out of the scheduler's own decision.

use super::Context;
use super::connect::{Link, encoded};
use super::print::{self, Out, field};
use super::show::whole_id;
use crate::error::Failure;
use crate::when;
use serde_json::Value;

const EXAMPLES: &str = "\
Examples:
  windlass why j-0c3k5p7m2x-1f
  windlass why mail
  windlass why r-0c3k5p7m2x --json";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// A job's or a run's id (its beginning is enough), or a queue
    #[arg(value_name = "ID|QUEUE|RUN")]
    of: String,
}

pub(super) fn why(args: &Args, context: &Context) -> Result<u8, Failure> {
    let place = context.place()?;
    let told: Value = Link::ask(&place, |server| {
        let of = whole_id(server, &args.of)?;
        server.get_json(&format!("/api/v1/why?of={}", encoded(&of)))
    })?;
    if context.json {
        return print::document(&told);
    }
    let mut out = Out::new();
    for reason in told.get("reasons").and_then(Value::as_array).into_iter().flatten() {
        out.line(on_the_clock(&field(reason, "text")));
    }
    out.finish()
}

/// A sentence of the server's with its times as people read them: on the clock of their zone, and how far off.
fn on_the_clock(sentence: &str) -> String {
    let told = |word: &str| {
        let time = word.trim_end_matches([',', ':', ';', '.']);
        format!("{}{}", when::told_text(time), &word[time.len()..])
    };
    sentence.split(' ').map(told).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_a_sentence_are_those_of_the_reader() {
        let (time, words) =
            ("2026-11-15T10:00:05.123Z", |time: &str| format!("paused until {time}: by hand, 10 of 12"));
        assert_eq!(on_the_clock(&words(time)), words(&when::told_text(time)));
        assert_ne!(on_the_clock(&words(time)), words(time));
        assert_eq!(on_the_clock("no time, no change"), "no time, no change");
    }
}
