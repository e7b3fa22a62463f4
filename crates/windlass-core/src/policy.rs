//! The rules of a crew after they were checked: what serves which queues, and within which limits.
//!
//! A crew is one entry of the config, for a queue name or a pattern; its slots are shared by all queues it
//! matches. This file owns the checked form and the defaults. It must not read files: the config does.

use crate::hours::Hours;
use std::time::Duration;

/// What serves a crew's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// One process per job.
    Command(Command),
    /// A Rust handler of the embedding program, by name; gets up to `batch` jobs at once.
    Handler { name: String, batch: u32 },
}

/// How a command is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments; templates as in `template`. Bytes, because arguments need not be text.
    pub argv: Vec<Vec<u8>>,
    /// The working directory; the data directory's parent decides nothing here, an empty one means `/`.
    pub directory: Vec<u8>,
    /// The whole environment of the child but for the `WINDLASS_…` variables of the job.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The wait before a retry: uniform between nothing and `base × 2ⁿ`, at most `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub base: Duration,
    pub cap: Duration,
}

/// One crew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A queue name, or a pattern in which `*` stands for any text.
    pub pattern: String,
    pub service: Service,
    /// How many starts of this crew may be in flight at once.
    pub slots: u32,
    /// A queue's share of the starts among queues whose best jobs have the same priority.
    pub weight: u32,
    /// How many failures end a job; nought means none ever does.
    pub attempts: u32,
    pub time_limit: Option<Duration>,
    /// Between TERM and KILL.
    pub grace: Duration,
    pub backoff: Backoff,
    /// How much of each output stream of an attempt is kept.
    pub output_max: u64,
    /// False accepts everything and starts nothing.
    pub enabled: bool,
    /// When jobs may start; none means always. What runs when they end goes on.
    pub hours: Option<Hours>,
}

impl Policy {
    /// The defaults of every key, for one service.
    pub fn new(pattern: impl Into<String>, service: Service) -> Policy {
        Policy {
            pattern: pattern.into(),
            service,
            slots: 4,
            weight: 1,
            attempts: 5,
            time_limit: None,
            grace: Duration::from_secs(10),
            backoff: Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(3600) },
            output_max: 1 << 20,
            enabled: true,
            hours: None,
        }
    }

    pub fn matches(&self, queue: &str) -> bool {
        pattern_matches(self.pattern.as_bytes(), queue.as_bytes())
    }
}

/// Matches `*` against any text, everything else against itself; linear but for the last star's retries.
pub fn pattern_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("img", "img", true),
            ("img", "img.x", false),
            ("img.*", "img.thumb", true),
            ("img.*", "img", false),
            ("*", "", true),
            ("*.jpg", "a.b.jpg", true),
            ("a*b*c", "aXXbYYbZc", true),
            ("a*b*c", "aXXbYY", false),
        ] {
            assert_eq!(pattern_matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
