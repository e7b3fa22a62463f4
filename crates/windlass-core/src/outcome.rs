//! What one start of a job came to, and the tables that read it out of words, exits and HTTP statuses.
//!
//! This file owns the closed list of outcomes and those tables. It must not decide what follows from an
//! outcome: that is `judge`.

use crate::circuit::Sign;
use std::fmt;
use std::time::Duration;

/// What a runner reports, exactly once for every start, also when the job was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; the message is the job's own completion line and may be empty.
    Succeeded { message: String },
    /// It asked to be run again after this time, with the same data and at no charge.
    Snoozed { after: Duration },
    /// It asked for another try later; `after` is the shortest wait it named.
    RetryLater { after: Option<Duration>, error: String },
    /// It cannot succeed however often it is tried.
    FailedForGood { error: String },
    /// It ended badly in any other way that its program chose.
    Failed { error: String },
    /// Its process died of a signal that nobody here sent.
    Crashed { error: String },
    /// It ran over its time limit and was killed.
    TimedOut { limit: Duration },
    /// It was stopped or lost through no fault of its own, or never began.
    Interrupted,
    /// Its worker died while it had begun: counts as a suspicion, not as a failure.
    Lost,
    /// It was killed because a person cancelled it; its tree is proven dead.
    Cancelled,
    /// Another server has it now, under the same id.
    Moved { to: String },
    /// The other server did not take it, and certainly does not have it: back, at no charge.
    NotMoved { why: String },
}

impl Outcome {
    /// Whether both are the same. Most jobs succeed and say nothing, which is seen here without comparing texts: two
    /// that are empty are compared by looking at where nothing is, and that costs a processor more than a job does.
    pub fn is_same(&self, other: &Outcome) -> bool {
        match (self, other) {
            (Outcome::Succeeded { message }, Outcome::Succeeded { message: other }) if message.is_empty() => {
                other.is_empty()
            }
            (one, other) => one == other,
        }
    }

    /// The one word of this outcome in the archive, logs and metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Succeeded { .. } => "succeeded",
            Outcome::Snoozed { .. } => "snoozed",
            Outcome::RetryLater { .. } => "retry_later",
            Outcome::FailedForGood { .. } => "failed_for_good",
            Outcome::Failed { .. } => "failed",
            Outcome::Crashed { .. } => "crashed",
            Outcome::TimedOut { .. } => "timed_out",
            Outcome::Interrupted => "interrupted",
            Outcome::Lost => "lost",
            Outcome::Cancelled => "cancelled",
            Outcome::Moved { .. } => "moved",
            Outcome::NotMoved { .. } => "not_moved",
        }
    }

    /// What it says of the destination that the job went to. One that refuses a job for good has answered.
    pub fn sign(&self) -> Sign {
        match self {
            Outcome::Succeeded { .. } | Outcome::Snoozed { .. } | Outcome::FailedForGood { .. } => Sign::Alive,
            Outcome::Moved { .. } => Sign::Alive,
            Outcome::RetryLater { .. } | Outcome::Failed { .. } | Outcome::Crashed { .. } => Sign::Dead,
            Outcome::TimedOut { .. } => Sign::Dead,
            Outcome::Interrupted | Outcome::Lost | Outcome::Cancelled | Outcome::NotMoved { .. } => Sign::None,
        }
    }
}

/// The words with which a job, or whoever does it, says what became of it: in reply lines, in the `status` of a
/// reply object and in control lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Ok,
    Retry,
    Fail,
    Again,
    Snooze,
}

impl Word {
    pub const ALL: [(&'static str, Word); 5] = [
        ("ok", Word::Ok),
        ("retry", Word::Retry),
        ("fail", Word::Fail),
        ("again", Word::Again),
        ("snooze", Word::Snooze),
    ];

    pub fn from_text(text: &str) -> Option<Word> {
        Word::ALL.iter().find(|(word, _)| *word == text).map(|(_, word)| *word)
    }
}

/// The one table from words to outcomes; `text` is what was said beside the word, `after` the time it named.
pub fn from_word(word: Word, text: String, after: Option<Duration>) -> Outcome {
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    match word {
        Word::Ok => Outcome::Succeeded { message: text },
        Word::Retry => Outcome::RetryLater { after, error: or(text, "asked to be tried later") },
        Word::Fail => Outcome::FailedForGood { error: or(text, "said that it cannot succeed") },
        Word::Again | Word::Snooze => Outcome::Snoozed { after: after.unwrap_or_default() },
    }
}

/// What somebody else saw of a job's end, in the words of the archive; none where the word is none of these. Who only
/// knows the job's own words says those (`Word`).
pub fn from_report(word: &str, error: String, limit: Duration) -> Option<Outcome> {
    match word {
        "failed" => Some(Outcome::Failed { error }),
        "crashed" => Some(Outcome::Crashed { error }),
        "timed_out" => Some(Outcome::TimedOut { limit }),
        "interrupted" => Some(Outcome::Interrupted),
        "cancelled" => Some(Outcome::Cancelled),
        _ => None,
    }
}

/// How a process ended, as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit {code}"),
            Exit::Signal(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

/// The one table from exits to outcomes (sysexits: 75 try later; 64, 65, 78 cannot succeed).
pub fn from_exit(exit: Exit) -> Outcome {
    match exit {
        Exit::Code(0) => Outcome::Succeeded { message: String::new() },
        Exit::Code(75) => Outcome::RetryLater { after: None, error: "exit 75: asked to be tried later".into() },
        Exit::Code(code @ (64 | 65 | 78)) => {
            Outcome::FailedForGood { error: format!("exit {code}: said that it cannot succeed") }
        }
        Exit::Code(code) => Outcome::Failed { error: format!("exit {code}") },
        Exit::Signal(signal) => Outcome::Crashed { error: format!("killed by signal {signal}") },
    }
}

/// No answer makes a job wait longer than this; who names a longer time is asked again then.
pub const RETRY_AFTER_MOST: Duration = Duration::from_secs(24 * 3600);

/// The one table from HTTP statuses to outcomes; `after` is what a `Retry-After` said.
pub fn from_status(status: u16, after: Option<Duration>) -> Outcome {
    let after = after.map(|after| after.min(RETRY_AFTER_MOST));
    let error = format!("HTTP {status}");
    match (status, after) {
        (200..=299, _) => Outcome::Succeeded { message: String::new() },
        (300..=399, _) => Outcome::FailedForGood { error: format!("{error}: redirects are not followed") },
        // It has done nothing yet and has named a time: no charge.
        (429, Some(after)) => Outcome::Snoozed { after },
        (429 | 503, after) => Outcome::RetryLater { after, error },
        // Too early, too slow, in conflict with something else: another time may do.
        (408 | 409 | 425, after) => Outcome::RetryLater { after, error },
        (400..=499, _) => Outcome::FailedForGood { error },
        (_, Some(after)) => Outcome::RetryLater { after: Some(after), error },
        (_, None) => Outcome::Failed { error },
    }
}

/// True where a status that is no success speaks of the destination, or asks for patience, so that it holds for all
/// jobs of a call; any other may be the fault of one of them.
pub fn status_is_for_all(status: u16) -> bool {
    matches!(status, 300..=399 | 401..=407 | 410 | 429 | 503)
}

/// The exit that an error of `from_exit` begins with; none where it came about in another way.
pub fn exit_in(error: &str) -> Option<Exit> {
    let number = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse::<i32>().ok().filter(|_| text[end..].is_empty() || text[end..].starts_with(':'))
    };
    let code = error.strip_prefix("exit ").and_then(number).map(Exit::Code);
    code.or_else(|| error.strip_prefix("killed by signal ").and_then(number).map(Exit::Signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_what_is_equal() {
        let text = |text: &str| text.to_owned();
        let outcomes = [
            Outcome::Succeeded { message: String::new() },
            Outcome::Succeeded { message: text("done") },
            Outcome::Succeeded { message: text("gone") },
            Outcome::Failed { error: String::new() },
            Outcome::Failed { error: text("done") },
            Outcome::Interrupted,
            Outcome::Lost,
        ];
        for (at, one) in outcomes.iter().enumerate() {
            for (with, other) in outcomes.iter().enumerate() {
                assert_eq!(one.is_same(&other.clone()), at == with, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn statuses() {
        let seconds = |n| Some(Duration::from_secs(n));
        for (status, after, word, waits) in [
            (200, None, "succeeded", None),
            (204, seconds(5), "succeeded", None),
            (301, None, "failed_for_good", None),
            (302, None, "failed_for_good", None),
            (400, None, "failed_for_good", None),
            (404, seconds(3), "failed_for_good", None),
            (408, None, "retry_later", None),
            (409, None, "retry_later", None),
            (410, None, "failed_for_good", None),
            (425, seconds(1), "retry_later", seconds(1)),
            (429, None, "retry_later", None),
            (429, seconds(7), "snoozed", seconds(7)),
            (429, seconds(1 << 40), "snoozed", Some(RETRY_AFTER_MOST)),
            (500, None, "failed", None),
            (502, seconds(2), "retry_later", seconds(2)),
            (503, seconds(9), "retry_later", seconds(9)),
            (503, None, "retry_later", None),
            (600, None, "failed", None),
            (999, None, "failed", None),
            (100, None, "failed", None),
        ] {
            let outcome = from_status(status, after);
            assert_eq!(outcome.word(), word, "{status}");
            let wait = match outcome {
                Outcome::Snoozed { after } => Some(after),
                Outcome::RetryLater { after, .. } => after,
                _ => None,
            };
            assert_eq!(wait, waits, "{status}");
        }
    }

    #[test]
    fn the_exit_is_found_again_in_what_is_told_of_it() {
        let ends = (1..256).map(Exit::Code).chain((1..65).map(Exit::Signal));
        for exit in ends {
            let (Outcome::RetryLater { error, .. }
            | Outcome::FailedForGood { error }
            | Outcome::Failed { error }
            | Outcome::Crashed { error }) = from_exit(exit)
            else {
                panic!("{exit} is a failure")
            };
            assert_eq!(exit_in(&error), Some(exit));
            assert_eq!(exit_in(&format!("{error}: exit 9 and more")), Some(exit));
        }
        for other in ["", "exit", "exit x", "exit 3x", "exit 99999999999", "no such program: exit 3"] {
            assert_eq!(exit_in(other), None, "{other}");
        }
    }
}
