//! `[schedule.NAME]`: at which times, and what is pushed then.

use super::{Table, notify, positive, read_command};
use crate::error::Failure;
use crate::schedule::{Cron, Push, Schedule, What};
use jiff::tz::TimeZone;
use toml::de::DeValue;
use windlass_core::job::{DATA_MAX, Priority, QueueName};
use windlass_core::policy::Policy;
use windlass_core::run::terms::RunTerms;
use windlass_core::schedule::{CatchUp, Overlap};

/// The keys of a schedule.
const KEYS: [&str; 9] = ["cron", "zone", "overlap", "catch_up", "enabled", "time_limit", "notify", "notify_on", "push"];
/// The keys of what it pushes; the last two belong to `from`.
const PUSH_KEYS: [&str; 6] = ["queue", "data", "from", "priority", "directory", "environment"];

/// All schedules, in the order of the file.
pub(super) fn read(root: &Table<'_, '_>, channels: &[Policy]) -> Result<Vec<Schedule>, Failure> {
    let Some(section) = root.section("schedule")? else { return Ok(Vec::new()) };
    let mut entries: Vec<_> = section.table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    let read = entries.into_iter().map(|(name, value)| {
        let text = name.get_ref().as_ref();
        // It is part of a queue's name and of a run's.
        QueueName::new(text.as_bytes()).map_err(|bad| {
            root.source.refuse(name.span(), &bad.to_string().replace("queue name", "schedule's name"))
        })?;
        let title = format!("[schedule.{}]", super::quoted(text));
        let DeValue::Table(table) = value.get_ref() else {
            let why = format!("{title} is {}, expected a table", super::article(value));
            return Err(root.source.refuse(value.span(), &why));
        };
        let table = Table { source: root.source, title, table };
        read_schedule(&table, text, channels).map_err(|failure| match failure {
            Missing::Told(failure) => failure,
            Missing::Key(key, hint) => {
                let why = format!("{} has no `{key}`", table.title);
                root.source.refuse(name.span(), &why).hint(hint)
            }
        })
    });
    read.collect()
}

/// Why a schedule is refused: a sentence, or a key that is not there, which has no place of its own.
enum Missing {
    Told(Failure),
    Key(&'static str, &'static str),
}

impl From<Failure> for Missing {
    fn from(failure: Failure) -> Missing {
        Missing::Told(failure)
    }
}

fn read_schedule(table: &Table<'_, '_>, name: &str, channels: &[Policy]) -> Result<Schedule, Missing> {
    table.only(&KEYS)?;
    let zone = table.map("zone", |zone| {
        TimeZone::get(zone).map_err(|_| format!("no such zone {zone:?}; expected a name such as UTC or Europe/Berlin"))
    })?;
    let zone = zone.unwrap_or_else(TimeZone::system);
    let cron = table.map("cron", |text| Cron::parse(text, zone.clone()))?;
    let cron =
        cron.ok_or(Missing::Key("cron", "add cron = \"MINUTE HOUR DAY MONTH WEEKDAY\", such as \"0 2 * * *\""))?;
    let overlap = table.map("overlap", |text| one_of(text, &Overlap::ALL.map(|way| (way.word(), way))))?;
    let catch_up = table.map("catch_up", |text| one_of(text, &CatchUp::ALL.map(|way| (way.word(), way))))?;
    let enabled = table.flag("enabled")?.unwrap_or(true);
    let Some(push) = table.section("push")? else {
        return Err(Missing::Key("push", "add push = { queue = \"QUEUE\", data = \"TEXT\" }"));
    };
    let push = read_push(&Table { title: format!("`push` of {}", table.title), ..push }, enabled)?;
    let first_queue = Schedule::first_queue(name, &push).map_err(|why| table.refuse_value("push", &why))?;
    let (overlap, catch_up) = (overlap.unwrap_or_default(), catch_up.unwrap_or_default());
    let (time_limit, notify) = (table.map("time_limit", positive)?, notify::read(table, channels)?);
    let terms = RunTerms { time_limit, notify, ..RunTerms::default() };
    Ok(Schedule { name: name.to_owned(), cron, overlap, catch_up, enabled, push, first_queue, terms })
}

fn read_push(table: &Table<'_, '_>, enabled: bool) -> Result<Push, Missing> {
    table.only(&PUSH_KEYS)?;
    let queue = table.map("queue", super::queue_name)?;
    let queue = queue.ok_or(Missing::Key("push.queue", "add push = { queue = \"QUEUE\", data = \"TEXT\" }"))?;
    let priority = match table.get("priority").map(|value| value.get_ref()) {
        None => Priority::NORMAL,
        Some(DeValue::Integer(number)) => number
            .as_str()
            .parse()
            .map_err(|why: String| table.refuse_value("priority", &format!("`priority`: {why}")))?,
        Some(_) => table.map("priority", str::parse)?.unwrap_or_default(),
    };
    let data = table.text("data")?;
    let what = match (data, table.get("from").is_some()) {
        (Some(_), true) => {
            return Err(table.refuse_value("from", "`data` and `from` both say what is pushed, expected one").into());
        }
        (Some(text), false) if text.len() > DATA_MAX => {
            let why = format!("`data` has {} bytes, expected at most {DATA_MAX}", text.len());
            return Err(table.refuse_value("data", &why).into());
        }
        (data, false) => {
            for key in ["directory", "environment"] {
                if table.get(key).is_some() {
                    return Err(table
                        .refuse_value(key, &format!("`{key}` belongs to `from`, which is not there"))
                        .into());
                }
            }
            What::Data(data.unwrap_or("{time}").to_owned())
        }
        (None, true) => What::Lines(read_command(table, "from", enabled)?),
    };
    Ok(Push { queue, priority, what })
}

fn one_of<T: Copy>(text: &str, known: &[(&'static str, T)]) -> Result<T, String> {
    let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
    let found = known.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    found.ok_or_else(|| format!("{text:?} is not known, expected one of {}", words.join(", ")))
}
