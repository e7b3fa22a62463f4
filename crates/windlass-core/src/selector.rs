//! The one selector language: `queue:pdf state:failed -run:r-… priority>=5 age:1h..2d attempts>2 "text"`.
//!
//! Spaces mean AND, commas within a value mean OR, a leading `-` negates the word. `queue:` takes patterns with `*`.
//! Numbers and spans are compared (`>` `>=` `<` `<=`) or given as a range (`2..5`, `..5`, `2..`). A bare word is a
//! job's id, or the beginning of one if it is not whole; a bare word in double quotes is looked for in the data. Quotes
//! also keep spaces and commas in a value. This file owns the parse and the match; it must not look jobs up: whether a
//! beginning is unique is known to who holds the jobs.

use crate::job::{JobId, Priority, RunId};
use crate::judge::Reason;
use crate::life_cycle::State;
use crate::policy::pattern_matches;
use std::time::Duration;

/// The longest selector, in bytes; far more than a person types, far less than costs anything.
pub const SELECTOR_MAX: usize = 64 * 1024;

const KEYS: &str = "id:, queue:, state:, run:, reason:, error:, text:, subject:, priority, attempts, age, ended, due";
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
    /// Since it ended, if it has.
    pub ended: Option<Duration>,
    /// Until it may start, if it waits for a time.
    pub due: Option<Duration>,
    /// Why it failed for good.
    pub reason: Option<Reason>,
    /// What went wrong last; empty where nothing did.
    pub error: &'a str,
    pub data: &'a [u8],
    /// The record it is about: its type and id.
    pub subject: Option<(&'a str, &'a str)>,
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
    Reason(Vec<Reason>),
    Error(Vec<String>),
    Text(Vec<String>),
    /// A type, and an id unless all of that type are meant.
    Subject(Vec<(String, Option<String>)>),
    Within(Measure, Vec<Range>),
}

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Priority,
    Attempts,
    Age,
    Ended,
    Due,
}

/// Both ends belong to it; spans are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    from: i64,
    to: i64,
}

impl Measure {
    fn named(key: &str) -> Option<Measure> {
        match key {
            "priority" => Some(Measure::Priority),
            "attempts" | "attempt" => Some(Measure::Attempts),
            "age" => Some(Measure::Age),
            "ended" => Some(Measure::Ended),
            "due" => Some(Measure::Due),
            _ => None,
        }
    }

    /// A job that has no such thing is in no range of it.
    fn of(self, facts: &Facts<'_>) -> Option<i64> {
        match self {
            Measure::Priority => Some(i64::from(facts.priority.value())),
            Measure::Attempts => Some(i64::from(facts.failures)),
            Measure::Age => Some(micros(facts.age)),
            Measure::Ended => facts.ended.map(micros),
            Measure::Due => facts.due.map(micros),
        }
    }

    fn read(self, text: &str) -> Result<i64, String> {
        match self {
            Measure::Priority => text.parse::<Priority>().map(|priority| i64::from(priority.value())),
            Measure::Attempts => count(text).map(i64::from),
            Measure::Age | Measure::Ended | Measure::Due => span(text).map(micros),
        }
    }

    /// A single moment is never hit, so spans must be compared or be a range.
    fn is_span(self) -> bool {
        match self {
            Measure::Age | Measure::Ended | Measure::Due => true,
            Measure::Priority | Measure::Attempts => false,
        }
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Over,
    AtLeast,
    Under,
    AtMost,
}

impl Comparison {
    fn range(self, value: i64) -> Range {
        match self {
            Comparison::Over => Range { from: value.saturating_add(1), to: i64::MAX },
            Comparison::AtLeast => Range { from: value, to: i64::MAX },
            Comparison::Under => Range { from: i64::MIN, to: value.saturating_sub(1) },
            Comparison::AtMost => Range { from: i64::MIN, to: value },
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

    /// The only jobs that can match, where they are named by their whole ids: nobody has to search for them.
    pub fn only_ids(&self) -> Option<Vec<JobId>> {
        self.terms.iter().find_map(|term| match &term.test {
            Test::Id(ids) if !term.negated => ids.iter().map(|id| id.parse().ok()).collect(),
            _ => None,
        })
    }

    /// True where it asks for what only live and kept jobs have.
    pub fn asks_the_living(&self) -> bool {
        let asks = |test: &Test| match test {
            Test::Reason(_) | Test::Error(_) | Test::Within(Measure::Attempts | Measure::Due, _) => true,
            Test::Within(Measure::Priority | Measure::Age | Measure::Ended, _) => false,
            Test::Id(_) | Test::Queue(_) | Test::State(_) | Test::Run(_) | Test::Text(_) | Test::Subject(_) => false,
        };
        self.terms.iter().any(|term| asks(&term.test))
    }

    /// True where it asks for what tells one job from another that ended alike.
    pub fn asks_single_jobs(&self) -> bool {
        self.terms.iter().any(|term| matches!(term.test, Test::Id(_) | Test::Text(_) | Test::Subject(_)))
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
            Test::Reason(reasons) => facts.reason.is_some_and(|reason| reasons.contains(&reason)),
            Test::Error(parts) => parts.iter().any(|part| facts.error.contains(part.as_str())),
            Test::Text(parts) => parts.iter().any(|part| holds(facts.data, part.as_bytes())),
            Test::Subject(subjects) => facts.subject.is_some_and(|(kind, id)| {
                subjects.iter().any(|(asked, one)| asked == kind && one.as_ref().is_none_or(|one| one == id))
            }),
            Test::Within(measure, ranges) => measure
                .of(facts)
                .is_some_and(|value| ranges.iter().any(|range| (range.from..=range.to).contains(&value))),
        }
    }
}

/// A whole id names one job, though others begin with it: `j-…-1` must never cancel `j-…-12`.
fn id_matches(asked: &str, id: &str) -> bool {
    if asked.parse::<JobId>().is_ok() { asked == id } else { id.starts_with(asked) }
}

/// Whether some bytes have these among them.
fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
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
        None if rest.starts_with('"') && rest.ends_with('"') => Test::Text(values(rest, word)?),
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
    if let Some(measure) = Measure::named(key) {
        let ranges = match operator {
            Operator::Is => each(text, word, |value| range(measure, key, value))?,
            Operator::Compared(by) => {
                let value = unquoted(text).ok_or_else(|| fault(format!("no value after {key}")))?;
                vec![by.range(measure.read(&value).map_err(fault)?)]
            }
        };
        return Ok(Test::Within(measure, ranges));
    }
    match (key, operator) {
        ("id", Operator::Is) => ids(text, word),
        ("queue", Operator::Is) => Ok(Test::Queue(values(text, word)?)),
        ("state", Operator::Is) => each(text, word, |value| value.parse()).map(Test::State),
        ("run", Operator::Is) => {
            let run = |value: &str| value.parse::<RunId>().map_err(|bad| format!("`{value}` is {bad}"));
            each(text, word, run).map(|runs| Test::Run(runs.iter().map(RunId::to_string).collect()))
        }
        ("reason", Operator::Is) => each(text, word, reason).map(Test::Reason),
        ("error", Operator::Is) => Ok(Test::Error(values(text, word)?)),
        ("text", Operator::Is) => Ok(Test::Text(values(text, word)?)),
        ("subject", Operator::Is) => each(text, word, subject).map(Test::Subject),
        ("id" | "queue" | "state" | "run" | "reason" | "error" | "text" | "subject", Operator::Compared(_)) => {
            Err(fault(format!("{key} cannot be compared, expected {key}:VALUE")))
        }
        _ => Err(fault(format!("unknown key `{key}` (known: {KEYS})"))),
    }
}

/// `5`, `2..5`, `..5` or `2..`.
fn range(measure: Measure, key: &str, text: &str) -> Result<Range, String> {
    let Some((from, to)) = text.split_once("..") else {
        let value = measure.read(text)?;
        return match measure.is_span() {
            true => Err(format!("{key} is compared, such as {key}>1h, or a range, such as {key}:1h..2d")),
            false => Ok(Range { from: value, to: value }),
        };
    };
    let end = |text: &str, open: i64| if text.is_empty() { Ok(open) } else { measure.read(text) };
    let range = Range { from: end(from, i64::MIN)?, to: end(to, i64::MAX)? };
    match range.from <= range.to && !(from.is_empty() && to.is_empty()) {
        true => Ok(range),
        false => Err(format!("the range {text} is empty, expected LOW..HIGH, LOW.. or ..HIGH")),
    }
}

fn reason(text: &str) -> Result<Reason, String> {
    Reason::ALL.into_iter().find(|reason| reason.word() == text).ok_or_else(|| {
        let words: Vec<_> = Reason::ALL.iter().map(|reason| reason.word()).collect();
        format!("expected a reason ({}), got: {text}", words.join(", "))
    })
}

/// `TYPE:ID`, or `TYPE` alone for every record of that type; the id may have colons of its own.
fn subject(text: &str) -> Result<(String, Option<String>), String> {
    let (kind, id) = text.split_once(':').map_or((text, None), |(kind, id)| (kind, Some(id)));
    match kind.is_empty() || id.is_some_and(str::is_empty) {
        true => Err(format!("expected subject:TYPE:ID or subject:TYPE, got: {text}")),
        false => Ok((kind.to_owned(), id.map(str::to_owned))),
    }
}

/// Ids or their beginnings.
fn ids(text: &str, word: &str) -> Result<Test, String> {
    let ids = values(text, word)?;
    let ours = |id: &String| id.starts_with("j-") || "j-".starts_with(id.as_str());
    match ids.iter().find(|id| !ours(id)) {
        None => Ok(Test::Id(ids)),
        Some(id) => Err(format!(
            "`{id}` is neither a job's id (j-…), a run's (r-…) nor KEY:VALUE (known: {KEYS}); \
             text to look for stands in double quotes"
        )),
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
