//! `[notify.NAME]`: channels, each a queue `notify.NAME` with a table of its own; and who tells them of what.

use super::{Table, all_queue_keys, article, queue_name, quoted, read_policy};
use crate::config::Config;
use crate::error::Failure;
use toml::de::DeValue;
use windlass_core::job::QueueName;
use windlass_core::notify::{CHANNELS, Ending, Endings, MOST, Notify, name_of};
use windlass_core::policy::Policy;

/// What a channel cannot have: of its own ends nobody is told.
const NOT_FOR_CHANNELS: [&str; 3] = ["on_failure", "notify", "notify_on"];

/// The keys that the table of a channel may have where this serves it.
pub(in crate::config) fn is_for_channels(key: &str) -> bool {
    !NOT_FOR_CHANNELS.contains(&key)
}

/// The channels of one file, in its order.
pub(super) fn channels(root: &Table<'_, '_>, config: &Config) -> Result<Vec<Policy>, Failure> {
    let Some(section) = root.section("notify")? else { return Ok(Vec::new()) };
    let mut entries: Vec<_> = section.table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    let read = entries.into_iter().map(|(name, value)| {
        let text = name.get_ref().as_ref();
        let queue = queue_name(&format!("{CHANNELS}{text}"));
        let queue =
            queue.map_err(|why| root.source.refuse(name.span(), &why.replace("queue name", "channel's name")))?;
        let title = format!("[notify.{}]", quoted(text));
        let DeValue::Table(table) = value.get_ref() else {
            return Err(root.source.refuse(value.span(), &format!("{title} is {}, expected a table", article(value))));
        };
        let table = Table { source: root.source, title, table };
        if let Some(key) = NOT_FOR_CHANNELS.into_iter().find(|key| table.get(key).is_some()) {
            return Err(
                table.refuse_value(key, &format!("`{key}`: nobody is told of the ends of a channel's own jobs"))
            );
        }
        table.only(&all_queue_keys())?;
        read_policy(&table, queue.as_str(), config, name.span())
    });
    read.collect()
}

/// Whom a table tells of what; every channel must be there.
pub(super) fn read(table: &Table<'_, '_>, channels: &[Policy]) -> Result<Notify, Failure> {
    let names = texts(table, "notify", "an array of channels such as [\"ops\"]")?;
    if names.is_empty() {
        return match table.get("notify_on") {
            None => Ok(Notify::default()),
            Some(_) => Err(table.refuse_value("notify_on", "`notify_on` says of what, and there is no `notify`")),
        };
    }
    let mut told: Vec<QueueName> = Vec::new();
    for name in names {
        let queue = format!("{CHANNELS}{name}");
        let queue = channels.iter().find(|channel| channel.pattern == queue).and_then(|_| queue_name(&queue).ok());
        let Some(queue) = queue else {
            let refused = table.refuse_value("notify", &format!("`notify`: no channel {name:?}"));
            let known: Vec<&str> = channels.iter().map(|channel| name_of(&channel.pattern)).collect();
            return Err(refused.hint(match known.is_empty() {
                true => format!("add [notify.{}] with what serves it, as a queue has it", quoted(name)),
                false => format!("there are: {}", known.join(", ")),
            }));
        };
        if told.contains(&queue) || told.len() == MOST {
            let why = format!("`notify`: expected up to {MOST} channels, each once, got {name:?} beside them");
            return Err(table.refuse_value("notify", &why));
        }
        told.push(queue);
    }
    Ok(Notify { channels: told, on: endings(table)? })
}

fn endings(table: &Table<'_, '_>) -> Result<Endings, Failure> {
    if table.get("notify_on").is_none() {
        return Ok(Endings::default());
    }
    let words = texts(table, "notify_on", "an array such as [\"failed\", \"late\"]")?;
    if words.is_empty() {
        return Err(table.refuse_value("notify_on", "`notify_on` is empty, expected some of failed, succeeded, late"));
    }
    let endings = words
        .into_iter()
        .map(|word| Ending::from_text(word).ok_or_else(|| table.refuse_value("notify_on", &Ending::unknown(word))));
    endings.collect()
}

/// An array of strings; none where the key is not there.
pub(super) fn texts<'t>(table: &Table<'t, '_>, key: &str, expected: &str) -> Result<Vec<&'t str>, Failure> {
    let Some(value) = table.get(key) else { return Ok(Vec::new()) };
    let DeValue::Array(array) = value.get_ref() else { return Err(table.wrong(key, value, expected)) };
    let texts = array.iter().map(|text| text.get_ref().as_str().ok_or_else(|| table.wrong(key, text, "strings only")));
    texts.collect()
}
