//! The one selector language: `queue:pdf state:failed -run:r-… priority>=5 age>1h attempt>=3`.
//!
//! Spaces mean AND, commas within a value mean OR, a leading `-` negates the word. `queue:` takes patterns with `*`.
//! A bare word is a job's id, or the beginning of one if it is not whole. Double quotes keep spaces and commas in a
//! value. This file owns the parse and the match; it must not look jobs up: whether a beginning is unique is known to
//! who holds the jobs.

use crate::job::{JobId, Priority, RunId};
use crate::life_cycle::State;
use crate::policy::pattern_matches;
use std::time::Duration;

/// The longest selector, in bytes; far more than a person types, far less than costs anything.
pub const SELECTOR_MAX: usize = 64 * 1024;

const KEYS: &str = "queue:, state:, run:, priority:, attempt:, and with > >= < <= also priority, attempt, age";
const UNITS: [(&str, u64); 6] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

/// What a selector can ask of a job.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub id: &'a str,
    pub queue: &'a str,
    pub state: State,
    pub run: Option<&'a str>,
    pub priority: Priority,
    /// Since it was admitted.
    pub age: Duration,
    pub failures: u32,
}

/// A checked selector; the empty one matches every job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    negated: bool,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Id(Vec<String>),
    Queue(Vec<String>),
    State(Vec<State>),
    Run(Vec<String>),
    Priority(Vec<Priority>),
    Attempt(Vec<u32>),
    PriorityIs(Comparison, Priority),
    AttemptIs(Comparison, u32),
    AgeIs(Comparison, Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Over,
    AtLeast,
    Under,
    AtMost,
}

impl Comparison {
    fn holds<T: Ord>(self, left: T, right: T) -> bool {
        match self {
            Comparison::Over => left > right,
            Comparison::AtLeast => left >= right,
            Comparison::Under => left < right,
            Comparison::AtMost => left <= right,
        }
    }
}

#[derive(Clone, Copy)]
enum Operator {
    Is,
    Compared(Comparison),
}

impl Selector {
    /// Reads a selector; the error names the word, where it stands and what is known.
    pub fn parse(text: &str) -> Result<Selector, String> {
        if text.len() > SELECTOR_MAX {
            return Err(format!("the selector has {} bytes, expected at most {SELECTOR_MAX}", text.len()));
        }
        let mut terms = Vec::new();
        for (position, word) in words(text)? {
            let term = term(word).map_err(|fault| format!("in the selector at character {position}: {fault}"))?;
            terms.push(term);
        }
        Ok(Selector { terms })
    }

    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        self.terms.iter().all(|term| term.test.holds(facts) != term.negated)
    }

    /// True where it matches every job.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The only id, or beginning of one, that a matching job can have: who finds several must say so.
    pub fn id_prefix(&self) -> Option<&str> {
        self.terms.iter().find_map(|term| match &term.test {
            Test::Id(ids) if !term.negated && ids.len() == 1 => Some(ids[0].as_str()),
            _ => None,
        })
    }

    /// The states that a matching job can be in, so that a store reads no others.
    pub fn states(&self) -> Vec<State> {
        let possible = |state: &State| {
            self.terms.iter().all(|term| match &term.test {
                Test::State(states) => states.contains(state) != term.negated,
                _ => true,
            })
        };
        State::ALL.into_iter().filter(possible).collect()
    }

    /// True where not every queue is meant.
    pub fn names_queues(&self) -> bool {
        self.terms.iter().any(|term| matches!(term.test, Test::Queue(_)))
    }

    /// The only run that a matching job can belong to, if there is one.
    pub fn only_run(&self) -> Option<&str> {
        self.terms.iter().find_map(|term| match &term.test {
            Test::Run(runs) if !term.negated && runs.len() == 1 => Some(runs[0].as_str()),
            _ => None,
        })
    }

    /// True where priorities or failures are asked for.
    pub fn asks_numbers(&self) -> bool {
        let asks = |test: &Test| {
            matches!(test, Test::Priority(_) | Test::Attempt(_) | Test::PriorityIs(..) | Test::AttemptIs(..))
        };
        self.terms.iter().any(|term| asks(&term.test))
    }

    /// Whether a job of this queue can match, so that a store reads no other queue.
    pub fn may_match_queue(&self, queue: &str) -> bool {
        self.terms.iter().all(|term| match &term.test {
            Test::Queue(patterns) => any_pattern(patterns, queue) != term.negated,
            _ => true,
        })
    }
}

impl std::str::FromStr for Selector {
    type Err = String;
    fn from_str(text: &str) -> Result<Selector, String> {
        Selector::parse(text)
    }
}

impl Test {
    fn holds(&self, facts: &Facts<'_>) -> bool {
        match self {
            Test::Id(ids) => ids.iter().any(|id| id_matches(id, facts.id)),
            Test::Queue(patterns) => any_pattern(patterns, facts.queue),
            Test::State(states) => states.contains(&facts.state),
            Test::Run(runs) => runs.iter().any(|run| facts.run == Some(run)),
            Test::Priority(priorities) => priorities.contains(&facts.priority),
            Test::Attempt(attempts) => attempts.contains(&facts.failures),
            Test::PriorityIs(comparison, value) => comparison.holds(facts.priority, *value),
            Test::AttemptIs(comparison, value) => comparison.holds(facts.failures, *value),
            Test::AgeIs(comparison, value) => comparison.holds(facts.age, *value),
        }
    }
}

/// A whole id names one job, though others begin with it: `j-…-1` must never cancel `j-…-12`.
fn id_matches(asked: &str, id: &str) -> bool {
    if asked.parse::<JobId>().is_ok() { asked == id } else { id.starts_with(asked) }
}

fn any_pattern(patterns: &[String], queue: &str) -> bool {
    patterns.iter().any(|pattern| pattern_matches(pattern.as_bytes(), queue.as_bytes()))
}

/// Cuts at spaces outside quotes; each word comes with the number of its first character, from 1.
fn words(text: &str) -> Result<Vec<(usize, &str)>, String> {
    let mut words = Vec::new();
    let mut begun: Option<(usize, usize)> = None;
    let mut quoted_at = None;
    for (number, (at, c)) in text.char_indices().enumerate() {
        if c.is_whitespace() && quoted_at.is_none() {
            if let Some((position, start)) = begun.take() {
                words.push((position, &text[start..at]));
            }
            continue;
        }
        begun = begun.or(Some((number + 1, at)));
        if c == '"' {
            quoted_at = if quoted_at.is_none() { Some(number + 1) } else { None };
        }
    }
    if let Some(position) = quoted_at {
        return Err(format!("in the selector at character {position}: the quote is not closed"));
    }
    words.extend(begun.map(|(position, start)| (position, &text[start..])));
    Ok(words)
}

fn term(word: &str) -> Result<Term, String> {
    let (negated, rest) = word.strip_prefix('-').map_or((false, word), |rest| (true, rest));
    let test = match split(rest) {
        None => ids(rest, word)?,
        Some((key, operator, text)) => test(key, operator, text, word)?,
    };
    Ok(Term { negated, test })
}

/// Finds the operator in front of the value.
fn split(word: &str) -> Option<(&str, Operator, &str)> {
    let at = word.find([':', '<', '>', '=', '"']).filter(|at| !word[*at..].starts_with('"'))?;
    let (key, rest) = word.split_at(at);
    let operators = [
        (">=", Operator::Compared(Comparison::AtLeast)),
        ("<=", Operator::Compared(Comparison::AtMost)),
        (">", Operator::Compared(Comparison::Over)),
        ("<", Operator::Compared(Comparison::Under)),
        (":", Operator::Is),
        ("=", Operator::Is),
    ];
    operators.into_iter().find_map(|(sign, operator)| Some((key, operator, rest.strip_prefix(sign)?)))
}

fn test(key: &str, operator: Operator, text: &str, word: &str) -> Result<Test, String> {
    let fault = |reason: String| format!("`{word}`: {reason}");
    let value = || unquoted(text).ok_or_else(|| fault(format!("no value after {key}")));
    match (key, operator) {
        ("queue", Operator::Is) => Ok(Test::Queue(values(text, word)?)),
        ("state", Operator::Is) => each(text, word, |value| value.parse()).map(Test::State),
        ("run", Operator::Is) => {
            let run = |value: &str| value.parse::<RunId>().map_err(|bad| format!("`{value}` is {bad}"));
            each(text, word, run).map(|runs| Test::Run(runs.iter().map(RunId::to_string).collect()))
        }
        ("priority", Operator::Is) => each(text, word, |value| value.parse()).map(Test::Priority),
        ("attempt", Operator::Is) => each(text, word, count).map(Test::Attempt),
        ("priority", Operator::Compared(by)) => Ok(Test::PriorityIs(by, value()?.parse().map_err(fault)?)),
        ("attempt", Operator::Compared(by)) => Ok(Test::AttemptIs(by, count(&value()?).map_err(fault)?)),
        ("age", Operator::Compared(by)) => Ok(Test::AgeIs(by, span(&value()?).map_err(fault)?)),
        ("age", Operator::Is) => Err(fault("an age is compared, such as age>1h".into())),
        ("queue" | "state" | "run", Operator::Compared(_)) => {
            Err(fault(format!("{key} cannot be compared, expected {key}:VALUE")))
        }
        _ => Err(fault(format!("unknown key `{key}` (known: {KEYS})"))),
    }
}

/// A bare word: ids or their beginnings.
fn ids(text: &str, word: &str) -> Result<Test, String> {
    let ids = values(text, word)?;
    let ours = |id: &String| id.starts_with("j-") || "j-".starts_with(id.as_str());
    match ids.iter().find(|id| !ours(id)) {
        None => Ok(Test::Id(ids)),
        Some(id) => Err(format!("`{id}` is neither a job's id (j-…) nor KEY:VALUE (known: {KEYS})")),
    }
}

fn each<T>(text: &str, word: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let read = |value: &String| read(value).map_err(|reason| format!("`{word}`: {reason}"));
    values(text, word)?.iter().map(read).collect()
}

/// Cuts at commas outside quotes and takes the quotes off; an empty value is a slip, not a wish.
fn values(text: &str, word: &str) -> Result<Vec<String>, String> {
    let mut quoted = false;
    let parts = text.split(|c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    });
    parts.map(|part| unquoted(part).ok_or_else(|| format!("`{word}`: a value is empty"))).collect()
}

fn unquoted(text: &str) -> Option<String> {
    Some(text.replace('"', "")).filter(|text| !text.is_empty())
}

fn count(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("expected a whole number, got: {text}"))
}

/// Reads a span such as `90s`, `1h` or `1h30m`.
fn span(text: &str) -> Result<Duration, String> {
    let fault = || format!("expected a span such as 90s, 30m, 1h30m, 7d or 2w, got: {text}");
    let mut millis = 0u64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().map_err(|_| fault())?;
        rest = &rest[digits..];
        let unit = &rest[..rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len())];
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(fault)?;
        rest = &rest[unit.len()..];
        millis = number.checked_mul(*factor).and_then(|part| millis.checked_add(part)).ok_or_else(fault)?;
    }
    Ok(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests;
