//! `windlass config show`, `diff`, `reload`, `set` and `unset`: the config as it holds, and what people laid over it.

use super::super::Context;
use super::super::connect::Link;
use super::super::place::Place;
use super::super::print::{self, Out, visible};
use super::super::steer::{self, Terms};
use super::super::values;
use crate::api::steering::{Override, ShownConfig, ShownEntry, Steering, UnsetOverride};
use crate::config::{self, Change, Entry, Loaded};
use crate::error::{Failure, Kind};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use windlass_core::overrides::{Key, Target};

/// The server's own values stand in this table of the file.
const LIMITS: &str = "limits";

/// What holds, with where each value comes from.
pub(super) fn show(context: &Context) -> Result<u8, Failure> {
    let (shown, _) = fetch(context)?;
    if context.json {
        return print::document(&json!(shown));
    }
    let mut out = Out::new();
    let file = shown.file.as_deref().unwrap_or("no file, so every value is a default");
    out.line(format_args!("# {}", visible(file)));
    let mut title = String::new();
    for entry in &shown.entries {
        let name = entry.entry.name();
        let head = name.rsplit_once(' ').map_or("", |(head, _)| head);
        if head != title {
            out.line(format_args!("\n{}", visible(head)));
            title = head.to_owned();
        }
        out.line(visible(&line(entry)));
    }
    let of_entry = |made: &&Override| !shown.entries.iter().any(|e| e.overridden.as_ref() == Some(made));
    for (at, made) in shown.overrides.iter().filter(of_entry).enumerate() {
        if at == 0 {
            out.line("\n# beside the file");
        }
        let (target, value) = (Target::from_text(&made.target), &made.value);
        out.line(visible(&format!("# {target}: {} = {value}, {}", made.key, steer::about(made))));
    }
    out.finish()
}

/// `slots = 4  # line 12`; a key without a value is a comment.
fn line(shown: &ShownEntry) -> String {
    let Entry { key, value, line, file, .. } = &shown.entry;
    let from = match (line, file) {
        (None, _) => "default".to_owned(),
        (Some(line), None) => format!("line {line}"),
        (Some(line), Some(file)) => format!("{file}:{line}"),
    };
    match (&shown.overridden, value.as_deref()) {
        (Some(made), file) => {
            let file = file.unwrap_or("none");
            format!("{key} = {}  # override {}; {from} says {file}", made.value, steer::about(made))
        }
        (None, Some(value)) => format!("{key} = {value}  # {from}"),
        (None, None) => format!("# {key}  # {from}"),
    }
}

/// The config of whoever serves; where nobody does, the file that a server would read. True where somebody does.
fn fetch(context: &Context) -> Result<(ShownConfig, bool), Failure> {
    let place = context.place()?;
    let mut link = Link::open(&place)?;
    let served = !link.is_own();
    let fetched: Result<ShownConfig, Failure> = link.connection.get_json("/api/v1/config");
    let closed = link.close();
    let mut shown = fetched?;
    closed?;
    if let (false, Place::Directory { dir, .. }) = (served, &place) {
        let loaded = match context.config_file(None, dir.root()) {
            Some(path) => Loaded::load(&path)?,
            None => Loaded::default(),
        };
        shown = ShownConfig::new(&loaded, shown.overrides);
    }
    Ok((shown, served))
}

/// What a reload would change.
pub(super) fn diff(file: Option<&Path>, context: &Context) -> Result<u8, Failure> {
    let (shown, served) = fetch(context)?;
    let path = match (file, &shown.file) {
        (Some(path), _) => path.to_owned(),
        (None, _) if context.whereabouts.server.is_some() => {
            let text = "the server's file is on its own machine: name one here to compare with";
            return Err(Failure::new(Kind::Usage, text).hint("windlass config diff FILE"));
        }
        (None, _) if !served => {
            let text = "no server is running, so there is nothing to compare its file with";
            return Err(Failure::new(Kind::NoServer, text).hint("name a file to compare with the one that is there"));
        }
        (None, Some(path)) => PathBuf::from(path),
        (None, None) => match context.config_file(None, context.existing_dir()?.root()) {
            Some(path) => path,
            None => {
                return Err(Failure::new(Kind::NoInput, "the server has no config, and there is none to take over"));
            }
        },
    };
    let old: Vec<Entry> = shown.entries.iter().map(|shown| shown.entry.clone()).collect();
    let new: Vec<Entry> = Loaded::load(&path)?.entries().into_iter().map(Entry::masked).collect();
    let changes = config::diff(&old, &new);
    tell_changes(&changes, &shown.entries, context)
}

fn tell_changes(changes: &[Change], entries: &[ShownEntry], context: &Context) -> Result<u8, Failure> {
    if context.json {
        return print::document(&json!({ "changed": changes }));
    }
    let mut out = Out::new();
    for change in changes {
        let (old, new) = (change.old.as_deref().unwrap_or("none"), change.new.as_deref().unwrap_or("none"));
        let held = |shown: &&ShownEntry| shown.entry.name() == change.name && shown.overridden.is_some();
        let note = match entries.iter().any(|shown| held(&shown)) {
            _ if !change.live => "  # takes a restart",
            true => "  # an override holds instead",
            false => "",
        };
        out.line(visible(&format!("{}: {old} -> {new}{note}", change.name)));
    }
    let code = out.finish()?;
    if changes.is_empty() {
        context.say("no differences");
    }
    Ok(code)
}

pub(super) fn reload(context: &Context) -> Result<u8, Failure> {
    let (_, mut server) = context.server("")?;
    let answer: Value = server.post_empty("/api/v1/reload")?;
    let changes = answer.get("changed").cloned().unwrap_or_default();
    let changes: Vec<Change> = serde_json::from_value(changes)
        .map_err(|e| Failure::new(Kind::Internal, format!("the server's answer cannot be read: {e}")))?;
    tell_changes(&changes, &[], context)
}

/// Changes one value while running.
pub(super) fn set(name: &str, value: &str, terms: &Terms, context: &Context) -> Result<u8, Failure> {
    let (target, key) = split(name)?;
    let keys = || Key::ALL.map(Key::word).join(", ");
    let usage = |text: String| Failure::new(Kind::Usage, text);
    let key = key.ok_or_else(|| usage(format!("{name:?} has no key; expected QUEUE.KEY with one of {}", keys())))?;
    let wrong = |why: String| usage(format!("`{}`: {why}", key.word()));
    let value: Value = match key {
        Key::Paused | Key::Enabled => {
            let expected = |_| wrong(format!("expected true or false, got: {value}"));
            value.parse::<bool>().map_err(expected)?.into()
        }
        Key::Slots | Key::Weight => values::slots(value).map_err(wrong)?.into(),
        Key::Attempts => values::times(value).map_err(wrong)?.into(),
    };
    let set = vec![terms.setting(&target, key, value.clone())?];
    let steered = steer::send(context, &Steering { set, unset: Vec::new() })?;
    if context.json {
        return print::document(&json!(steered));
    }
    context.say(format_args!("`{}` of {target} is {value} now", key.word()));
    Ok(0)
}

/// Removes overrides: what the file says holds again.
pub(super) fn unset(names: &[String], context: &Context) -> Result<u8, Failure> {
    let mut unset = Vec::new();
    for name in names {
        let (target, key) = split(name)?;
        unset.push(UnsetOverride { target: target.as_text().into(), key: key.map(|key| key.word().into()) });
    }
    let steered = steer::send(context, &Steering { set: Vec::new(), unset })?;
    if context.json {
        return print::document(&json!(steered));
    }
    for made in &steered.removed {
        context.say(format_args!("`{}` of {} is the config's again", made.key, Target::from_text(&made.target)));
    }
    if steered.removed.is_empty() {
        context.say("there was no such override");
    }
    Ok(0)
}

/// `QUEUE`, `QUEUE.KEY`, `limits` or `limits.KEY`: a queue's name may have dots, a key has none.
fn split(name: &str) -> Result<(Target, Option<Key>), Failure> {
    let keyed = name.rsplit_once('.').and_then(|(queue, word)| Some((queue, Key::from_word(word)?)));
    let (queue, key) = keyed.map_or((name, None), |(queue, key)| (queue, Some(key)));
    let target = if queue == LIMITS { Target::Server } else { steer::target(queue)? };
    Ok((target, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys() {
        let queue = |name: &str| Target::Queues(name.into());
        for (name, target, key) in [
            ("mail", queue("mail"), None),
            ("mail.slots", queue("mail"), Some(Key::Slots)),
            ("img.*.weight", queue("img.*"), Some(Key::Weight)),
            ("img.thumb", queue("img.thumb"), None),
            ("limits.slots", Target::Server, Some(Key::Slots)),
            ("limits", Target::Server, None),
        ] {
            assert_eq!(split(name), Ok((target, key)), "{name}");
        }
        assert_eq!(split(".slots").unwrap_err().kind, Kind::Usage);
    }
}
