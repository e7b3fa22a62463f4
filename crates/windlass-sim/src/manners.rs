//! The manners of programs and servers that take many jobs: what they write, and what that says of each job.
//!
//! They answer in order or by name, too little, too much, for nobody, or break off. It must not say what becomes of
//! jobs that an answer does not speak of: whoever plays the process or the call does.

use crate::random::Random;
use windlass_core::job::JobId;
use windlass_core::outcome::{self, Word, from_word};

/// More than any process may write for the few jobs that it has here.
const NOISE: usize = 80 << 10;

/// What a job must come to: this, or nothing yet, because it is run again with fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Must {
    Be(&'static str),
    GoOn,
}

pub(crate) const FAILED: &str = "failed";

/// How a program or a server takes its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    InOrder,
    ByName,
    TooFew,
    TooMany,
    OneBadLine,
    Noise,
    DiesInTheMiddle,
    HangsInTheMiddle,
    IsBusy,
}

impl Manner {
    pub(crate) fn draw(random: &mut Random, calm: bool) -> Manner {
        match random.below(100) {
            _ if calm => Manner::InOrder,
            0..50 => Manner::InOrder,
            50..62 => Manner::ByName,
            62..69 => Manner::TooFew,
            69..76 => Manner::TooMany,
            76..82 => Manner::OneBadLine,
            82..85 => Manner::Noise,
            85..91 => Manner::DiesInTheMiddle,
            91..94 => Manner::HangsInTheMiddle,
            _ => Manner::IsBusy,
        }
    }

    /// The lines of an answer in this manner, and what they say of each job.
    pub(crate) fn written(
        self,
        random: &mut Random,
        wants: &[(String, &'static str)],
        ids: &[JobId],
    ) -> (Vec<String>, Vec<Must>) {
        let count = wants.len();
        let line = |at: usize| format!("{}\n", wants[at].0);
        let said = |at: usize| Must::Be(wants[at].1);
        let some = random.below(count as u64) as usize;
        match self {
            Manner::InOrder => ((0..count).map(line).collect(), (0..count).map(said).collect()),
            Manner::ByName => {
                let mut order: Vec<usize> = (0..count).collect();
                (1..count).rev().for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
                let lines = order.into_iter().map(|at| format!("{}\n", named(ids[at], &wants[at].0)));
                (lines.collect(), (0..count).map(said).collect())
            }
            Manner::TooMany => {
                let more = random.between(1, 3) as usize;
                let lines = (0..count).map(line).chain((0..more).map(|_| "ok more\n".to_owned()));
                (lines.collect(), vec![Must::GoOn; count])
            }
            Manner::OneBadLine => {
                let one = |at: usize| if at == some { "what is this\n".to_owned() } else { line(at) };
                let must = |at: usize| if at == some { Must::Be(FAILED) } else { said(at) };
                ((0..count).map(one).collect(), (0..count).map(must).collect())
            }
            Manner::Noise => (vec!["ok noise\n".repeat(NOISE / 9)], vec![Must::GoOn; count]),
            Manner::TooFew | Manner::DiesInTheMiddle | Manner::HangsInTheMiddle | Manner::IsBusy => {
                // The next line breaks off, and says nothing.
                let lines = (0..some).map(line).chain(["ok".to_owned()]);
                let must = |at: usize| if at < some { said(at) } else { Must::GoOn };
                (lines.collect(), (0..count).map(must).collect())
            }
        }
    }
}

/// The line with which a job's outcome is said, where it can be said at all, and the word that it is taken for.
pub(crate) fn reply(outcome: &outcome::Outcome) -> (String, &'static str) {
    let be = |word, after| from_word(word, "x".into(), after).word();
    match outcome {
        outcome::Outcome::Succeeded { .. } => ("ok x".into(), be(Word::Ok, None)),
        outcome::Outcome::FailedForGood { .. } => ("fail x".into(), be(Word::Fail, None)),
        outcome::Outcome::Snoozed { after } => {
            (format!("snooze {}ms", after.as_millis()), be(Word::Snooze, Some(*after)))
        }
        outcome::Outcome::RetryLater { after: Some(after), .. } => {
            let line = format!("{{\"status\":\"retry\",\"error\":\"x\",\"after\":{}}}", after.as_secs());
            (line, be(Word::Retry, Some(*after)))
        }
        _ => ("retry x".into(), be(Word::Retry, None)),
    }
}

/// The same, with the name of its job.
fn named(id: JobId, line: &str) -> String {
    match line.strip_prefix('{') {
        Some(rest) => format!("{{\"id\":\"{id}\",{rest}"),
        None => format!("@{id} {line}"),
    }
}
