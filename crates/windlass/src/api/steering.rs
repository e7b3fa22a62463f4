//! The shapes of steering: overrides, the config as it holds, and the answer to why.

use crate::audit::value_of;
use crate::config::{Entry, Loaded};
use crate::when;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::overrides;
use windlass_core::time::Time;

/// What a person changed while running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// A queue's name, a pattern, or nothing for the server.
    pub target: String,
    pub key: String,
    pub value: Value,
    pub by: String,
    pub since: String,
    pub until: Option<String>,
    pub reason: String,
}

impl From<&overrides::Override> for Override {
    fn from(made: &overrides::Override) -> Override {
        Override {
            target: made.target.as_text().into_owned(),
            key: made.key.word().to_owned(),
            value: value_of(made.key, made.value),
            by: made.by.clone(),
            since: when::rfc3339(made.since),
            until: made.until.map(when::rfc3339),
            reason: made.reason.clone(),
        }
    }
}

/// `POST /api/v1/overrides`: all of it happens, or nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steering {
    #[serde(default)]
    pub set: Vec<SetOverride>,
    #[serde(default)]
    pub unset: Vec<UnsetOverride>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetOverride {
    pub target: String,
    pub key: String,
    /// A number, or true or false.
    pub value: Value,
    #[serde(default)]
    pub until: Option<String>,
    #[serde(default)]
    pub reason: String,
}

/// A pattern names the overrides of everything that it covers; no key names all keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnsetOverride {
    pub target: String,
    #[serde(default)]
    pub key: Option<String>,
}

/// What steering did, and what is in force now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Steered {
    pub removed: Vec<Override>,
    pub overrides: Vec<Override>,
}

/// `GET /api/v1/config`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownConfig {
    pub file: Option<String>,
    pub entries: Vec<ShownEntry>,
    pub overrides: Vec<Override>,
}

impl ShownConfig {
    /// Lays the overrides over the keys of a config.
    pub fn new(loaded: &Loaded, overrides: Vec<Override>) -> ShownConfig {
        let entries = loaded.entries().into_iter().map(Entry::masked).map(|entry| {
            let target = match (entry.queue, entry.table.as_str()) {
                (true, table) => Some(table),
                (false, "limits") => Some(""),
                (false, _) => None,
            };
            let over = |made: &&Override| Some(made.target.as_str()) == target && made.key == entry.key;
            let overridden = overrides.iter().find(over).cloned();
            ShownEntry { entry, overridden }
        });
        // Whoever asks may stand in another directory.
        let file = loaded.file.as_ref().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
        let file = file.map(|file| file.display().to_string());
        ShownConfig { file, entries: entries.collect(), overrides }
    }
}

/// One key of the config, and the override that is laid over it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownEntry {
    #[serde(flatten)]
    pub entry: Entry,
    #[serde(rename = "override")]
    pub overridden: Option<Override>,
}

/// `GET /api/v1/why`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Why {
    /// `job`, `queue` or `run`.
    pub what: String,
    pub name: String,
    /// Of a job.
    pub state: Option<String>,
    pub queue: Option<String>,
    /// The table of the config that serves the queue.
    pub table: Option<String>,
    pub reasons: Vec<WhyReason>,
}

/// One reason: a code for machines, a sentence for people, and its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyReason {
    pub code: String,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    pub overridden: Option<Override>,
}

/// Jobs of a queue that are kept aside, and tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsideStatus {
    pub jobs: u64,
    /// The database's words for the last of them.
    pub why: String,
}

impl AsideStatus {
    /// What people are told of them; `jobs` is how many they are, in words.
    pub fn in_words(jobs: &str, queue: &str, why: &str) -> String {
        format!(
            "the database refuses {jobs} of queue `{queue}` that came by the inbox: {why}; set aside, tried again by \
             itself, and at once by `windlass nudge`"
        )
    }
}

impl WhyReason {
    pub fn new(code: &str, text: impl Into<String>) -> WhyReason {
        WhyReason { code: code.into(), text: text.into(), ..WhyReason::default() }
    }

    pub fn at(mut self, at: Time) -> WhyReason {
        self.at = Some(when::rfc3339(at));
        self
    }

    pub fn count(mut self, count: u64) -> WhyReason {
        self.count = Some(count);
        self
    }
}
