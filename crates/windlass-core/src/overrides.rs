//! What a person changed while running: kept with who, when and until, and laid over the config's rules.
//!
//! An override names a queue, a pattern or the server, and one key. This file owns the keys, what each may be, and
//! how overrides change a rule. It must not store them, nor know who may make them.

use crate::policy::{Policy, pattern_matches};
use crate::time::Time;
use std::borrow::Cow;
use std::fmt;

/// The longest reason a person may give, in bytes.
pub const REASON_MAX: usize = 500;
/// The largest number of slots, weight or attempts; the config has the same bound.
pub const NUMBER_MAX: u32 = 1_000_000;

/// What an override is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    Server,
    /// A queue's name, or a pattern; for what belongs to a table of the config, that table's name.
    Queues(String),
    Schedule(String),
}

/// In front of a schedule's name, in the stored form: no queue's name holds a tab.
const SCHEDULE: &str = "schedule\t";

impl Target {
    /// The stored form: a queue's name is never empty.
    pub fn as_text(&self) -> Cow<'_, str> {
        match self {
            Target::Server => "".into(),
            Target::Queues(pattern) => pattern.into(),
            Target::Schedule(name) => format!("{SCHEDULE}{name}").into(),
        }
    }

    pub fn from_text(text: &str) -> Target {
        match text.strip_prefix(SCHEDULE) {
            Some(name) => Target::Schedule(name.to_owned()),
            None if text.is_empty() => Target::Server,
            None => Target::Queues(text.to_owned()),
        }
    }

    pub fn covers(&self, queue: &str) -> bool {
        match self {
            Target::Server | Target::Schedule(_) => false,
            Target::Queues(pattern) => pattern_matches(pattern.as_bytes(), queue.as_bytes()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Server => f.write_str("the server"),
            Target::Queues(pattern) => write!(f, "queue `{pattern}`"),
            Target::Schedule(name) => write!(f, "schedule `{name}`"),
        }
    }
}

/// What can be changed while running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Paused,
    Slots,
    Weight,
    Attempts,
    Enabled,
}

impl Key {
    pub const ALL: [Key; 5] = [Key::Paused, Key::Slots, Key::Weight, Key::Attempts, Key::Enabled];

    /// The word of the command line, the API and, but for `paused`, the config.
    pub fn word(self) -> &'static str {
        match self {
            Key::Paused => "paused",
            Key::Slots => "slots",
            Key::Weight => "weight",
            Key::Attempts => "attempts",
            Key::Enabled => "enabled",
        }
    }

    pub fn from_word(word: &str) -> Option<Key> {
        Key::ALL.into_iter().find(|key| key.word() == word)
    }

    /// Fails with a sentence where a value does not fit; truths are 0 and 1.
    pub fn check(self, target: &Target, value: u32) -> Result<(), String> {
        let (least, most) = match self {
            // Nobody needs "not paused": that is the absence of a pause.
            Key::Paused => (1, 1),
            Key::Enabled => (0, 1),
            Key::Slots | Key::Weight => (1, NUMBER_MAX),
            Key::Attempts => (0, NUMBER_MAX),
        };
        if *target == Target::Server && !matches!(self, Key::Paused | Key::Slots) {
            return Err(format!("the server has no `{}`, it belongs to a queue", self.word()));
        }
        if matches!(target, Target::Schedule(_)) && self != Key::Enabled {
            return Err(format!("a schedule has no `{}`", self.word()));
        }
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(format!("`{}` is {}, expected {} to {}", self.word(), self.spoken(value), least, most))
    }

    /// A value as people write it.
    pub fn spoken(self, value: u32) -> String {
        match self {
            Key::Paused | Key::Enabled => (value != 0).to_string(),
            Key::Slots | Key::Weight | Key::Attempts => value.to_string(),
        }
    }
}

/// One change that a person made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    pub target: Target,
    pub key: Key,
    /// A number, or a truth as 0 or 1.
    pub value: u32,
    /// Who made it, in words.
    pub by: String,
    pub since: Time,
    /// It ends by itself then.
    pub until: Option<Time>,
    /// Why, in the person's words; may be empty.
    pub reason: String,
}

/// The overrides in force: at most one for each target and key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(Vec<Override>);

impl Overrides {
    pub fn new(all: Vec<Override>) -> Overrides {
        Overrides(all)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Override> {
        self.0.iter()
    }

    pub fn get(&self, target: &Target, key: Key) -> Option<&Override> {
        self.0.iter().find(|made| made.target == *target && made.key == key)
    }

    /// Puts one in the place of an earlier one for the same target and key.
    pub fn set(&mut self, new: Override) {
        self.unset(&new.target, new.key);
        self.0.push(new);
    }

    pub fn unset(&mut self, target: &Target, key: Key) {
        self.0.retain(|made| made.target != *target || made.key != key);
    }

    /// When the next of them ends by itself.
    pub fn next_end(&self) -> Option<Time> {
        self.0.iter().filter_map(|made| made.until).min()
    }

    /// Those that have ended by this time.
    pub fn ended(&self, now: Time) -> impl Iterator<Item = &Override> {
        self.0.iter().filter(move |made| made.until.is_some_and(|until| until <= now))
    }

    /// The pause of the whole server.
    pub fn server_pause(&self) -> Option<&Override> {
        self.get(&Target::Server, Key::Paused)
    }

    /// The pause that holds a queue: its own before one by pattern.
    pub fn pause_of(&self, queue: &str) -> Option<&Override> {
        let covering = self.0.iter().filter(|made| made.key == Key::Paused && made.target.covers(queue));
        covering.min_by_key(|made| (made.target.as_text() != queue, made.since))
    }

    /// The server's slots with an override laid over them.
    pub fn server_slots(&self, slots: u32) -> u32 {
        self.get(&Target::Server, Key::Slots).map_or(slots, |made| made.value)
    }

    /// How many slots a single queue may have, where a person said so by its name.
    pub fn slots_of(&self, queue: &str) -> Option<u32> {
        let named = self.0.iter().find(|made| made.key == Key::Slots && made.target.as_text() == queue);
        named.map(|made| made.value)
    }

    /// A table's rules with the overrides that name it laid over them.
    pub fn lay_over(&self, policy: &Policy) -> Policy {
        let mut policy = policy.clone();
        let named = self.0.iter().filter(|made| !policy.pattern.is_empty() && made.target.as_text() == policy.pattern);
        for made in named {
            match made.key {
                Key::Paused => {}
                Key::Slots => policy.slots = made.value,
                Key::Weight => policy.weight = made.value,
                Key::Attempts => policy.attempts = made.value,
                Key::Enabled => policy.enabled = made.value != 0,
            }
        }
        policy
    }
}

#[cfg(test)]
mod tests;
