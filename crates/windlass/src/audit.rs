//! The audit log: one line of JSON for each change that a person made, with who and when; never changed, only longer.
//!
//! A line is written and synced after the turn that made the change is on disk and before anybody is answered. So
//! whatever was answered stands here; a crash in between leaves a change that nobody was told of.

use crate::data_dir::DataDir;
use crate::when;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use windlass_core::job::{JobId, RunId};
use windlass_core::life_cycle::State;
use windlass_core::overrides::{Key, Override};
use windlass_core::time::Time;

/// What was done to an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Set,
    Unset,
    /// It ended by itself at its time.
    End,
}

impl Action {
    pub fn word(self) -> &'static str {
        match self {
            Action::Set => "set",
            Action::Unset => "unset",
            Action::End => "end",
        }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    pub at: Time,
    pub by: String,
    pub what: What,
}

/// What was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Override(Action, Override),
    /// One job, named by its id.
    Job {
        verb: Verb,
        id: JobId,
        from: State,
        /// Nothing where it is gone, or still has to be stopped.
        to: Option<State>,
    },
    /// Many jobs at once.
    Operation {
        verb: Verb,
        /// By which its two lines are found; one that was done as soon as it was accepted has only one line.
        number: Option<u64>,
        selector: Option<String>,
        stage: Stage,
        /// Its account: how many were meant, and what came of them.
        counts: Value,
    },
    /// A schedule was fired by hand.
    Fired {
        schedule: String,
        run: RunId,
    },
    /// The config was read again and holds.
    Reload {
        /// What is another now, as it stands in the file: `[queue.mail] slots`.
        changed: Vec<String>,
        /// The same for what only a restart takes over.
        restart: Vec<String>,
    },
}

/// The verb of a change to jobs, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verb {
    pub word: String,
    pub priority: Option<i8>,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Accepted,
    Done,
}

impl Stage {
    pub fn word(self) -> &'static str {
        match self {
            Stage::Accepted => "accepted",
            Stage::Done => "done",
        }
    }
}

impl Audited {
    pub fn to_json(&self) -> Value {
        let mut line = match &self.what {
            What::Override(action, Override { target, key, value, until, reason, .. }) => json!({
                "action": action.word(),
                "target": target.as_text(),
                "key": key.word(),
                "value": value_of(*key, *value),
                "until": until.map(when::rfc3339),
                "reason": reason,
            }),
            What::Fired { schedule, run } => json!({ "action": "fire", "schedule": schedule, "run": run.to_string() }),
            What::Job { verb, id, from, to } => json!({
                "action": verb.word,
                "priority": verb.priority,
                "job": id.to_string(),
                "from": from.word(),
                "to": to.map(State::word),
            }),
            What::Operation { verb, number, selector, stage, counts } => json!({
                "action": verb.word,
                "priority": verb.priority,
                "operation": number,
                "selector": selector,
                "stage": stage.word(),
                "counts": counts,
            }),
            What::Reload { changed, restart } => {
                json!({ "action": "reload", "changed": changed, "restart": restart })
            }
        };
        line["time"] = when::rfc3339(self.at).into();
        line["by"] = self.by.clone().into();
        line
    }
}

/// A value as JSON has it.
pub fn value_of(key: Key, value: u32) -> Value {
    match key {
        Key::Paused | Key::Enabled => Value::Bool(value != 0),
        Key::Slots | Key::Weight | Key::Attempts => value.into(),
    }
}

/// The open log of a data directory.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
}

impl AuditLog {
    pub fn new(dir: &DataDir) -> AuditLog {
        AuditLog { path: dir.audit_log() }
    }

    /// Appends the changes of a turn in one write and brings them to disk. Changes by hand are rare, so the file is
    /// opened anew each time: one that somebody moved away is begun again. It is taken away again as a whole where it
    /// does not fit, so that the next line does not follow half of one.
    pub fn append(&self, changes: &[Audited]) -> std::io::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let lines: String = changes.iter().map(|change| format!("{}\n", change.to_json())).collect();
        let mut file = File::options().append(true).create(true).mode(0o600).open(&self.path)?;
        let before = file.metadata()?.len();
        if let Err(error) = file.write_all(lines.as_bytes()) {
            file.set_len(before)?;
            return Err(error);
        }
        file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::overrides::Target;

    #[test]
    fn a_line_for_each_change_in_their_order() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        let log = AuditLog::new(&dir);
        let what = Override {
            target: Target::Queues("a\nb".into()),
            key: Key::Paused,
            value: 1,
            by: "ada".into(),
            since: Time(0),
            until: Some(Time(60_000_000)),
            reason: "\"x\"".into(),
        };
        let set = Audited { at: Time(0), by: "ada".into(), what: What::Override(Action::Set, what.clone()) };
        let end = Audited { at: Time(60_000_000), by: "windlass".into(), what: What::Override(Action::End, what) };
        log.append(&[]).unwrap();
        assert!(!dir.audit_log().exists(), "no change, no file");
        log.append(std::slice::from_ref(&set)).unwrap();
        log.append(&[end, set]).unwrap();
        let text = std::fs::read_to_string(dir.audit_log()).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let actions: Vec<&str> = lines.iter().map(|line| line["action"].as_str().unwrap()).collect();
        assert_eq!(actions, ["set", "end", "set"]);
        assert_eq!(lines[1]["until"], "1970-01-01T00:01:00Z");
        assert_eq!((&lines[0]["value"], &lines[0]["target"]), (&true.into(), &"a\nb".into()));
    }
}
