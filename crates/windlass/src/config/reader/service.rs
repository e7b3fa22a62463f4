//! The keys of a queue that say what serves it: exactly one of `run`, `batch`, `worker` and `url`.
//!
//! A further kind of runner is one more name in `CHOICES`, its keys in `KEYS` with the choice they belong to, and its
//! function here.

use super::url::read_url;
use super::{Table, positive, read_command};
use crate::config::units::size;
use crate::engine::linger::LINGER_MOST;
use crate::error::Failure;
use std::ops::Range;
use std::time::Duration;
use windlass_core::policy::{Batch, Command, Framing, Reply, Service, Worker};
use windlass_core::template;

/// What a queue can be served by.
const CHOICES: [&str; 4] = ["run", "batch", "worker", "url"];

/// The keys that belong to one choice or to some; a key of another choice is a mistake that is told.
const BELONGING: [(&str, &[&str]); 11] = [
    ("batch_size", &["batch", "url"]),
    ("batch_linger", &["batch", "url"]),
    ("reply", &["batch", "url"]),
    ("in_flight", &["worker"]),
    ("worker_jobs", &["worker"]),
    ("worker_age", &["worker"]),
    ("worker_memory", &["worker"]),
    ("worker_idle", &["worker"]),
    ("framing", &["batch", "worker", "url"]),
    ("method", &["url"]),
    ("secret_file", &["url"]),
];

/// All keys of this file.
pub(super) const KEYS: [&str; CHOICES.len() + BELONGING.len()] = {
    let mut keys = [""; CHOICES.len() + BELONGING.len()];
    let mut at = 0;
    while at < keys.len() {
        keys[at] = if at < CHOICES.len() { CHOICES[at] } else { BELONGING[at - CHOICES.len()].0 };
        at += 1;
    }
    keys
};

/// The keys of this file that may stand beside a service.
pub(super) fn keys_of(service: &Service) -> impl Iterator<Item = &'static str> {
    let choice = match service {
        Service::Batch(_) => "batch",
        Service::Worker(_) => "worker",
        Service::Url(_) => "url",
        Service::Command(_) | Service::Handler { .. } => "run",
    };
    let belongs = move |(key, of): (&'static str, &[&str])| of.contains(&choice).then_some(key);
    std::iter::once(choice).chain(BELONGING.into_iter().filter_map(belongs))
}

/// Reads the one service of a queue; a queue that is switched off may have none.
pub(super) fn read(
    table: &Table<'_, '_>,
    hosts: &[String],
    enabled: bool,
    place: Range<usize>,
) -> Result<Service, Failure> {
    let chosen: Vec<&str> = CHOICES.into_iter().filter(|key| table.get(key).is_some()).collect();
    let choice = match chosen[..] {
        [choice] => choice,
        [] if enabled => {
            let text = format!("{} has no `run`, so nothing would do its jobs", table.title);
            let hint = "add run = [\"PROGRAM\", \"ARGUMENT\"…], or `batch`, `worker` or `url` in its place";
            return Err(table.source.refuse(place, &text).hint(hint));
        }
        [] => "run",
        [first, second, ..] => {
            let text = format!("{} has `{first}` and `{second}`, expected exactly one of them", table.title);
            return Err(table.refuse_value(second, &text));
        }
    };
    if let Some((key, of)) = BELONGING.iter().find(|(key, of)| table.get(key).is_some() && !of.contains(&choice)) {
        let text = format!("`{key}` belongs to `{}`, and {} has `{choice}`", of.join("` or `"), table.title);
        return Err(table.refuse_value(key, &text));
    }
    if choice == "url" {
        return read_url(table, hosts, enabled).map(Service::Url);
    }
    let command = read_command(table, choice, enabled)?;
    match choice {
        "batch" => read_batch(table, command).map(Service::Batch),
        "worker" => read_worker(table, command).map(Service::Worker),
        _ => Ok(Service::Command(command)),
    }
}

fn read_batch(table: &Table<'_, '_>, command: Command) -> Result<Batch, Failure> {
    refuse_templates_of_one_job(table, "batch", &command)?;
    let default = Batch::new(command);
    let reply = |text: &str| match text {
        "lines" => Ok(Reply::Lines),
        "exit" => Ok(Reply::Exit),
        other => Err(format!("`reply` is {other:?}, expected \"lines\" or \"exit\"")),
    };
    Ok(Batch {
        size: table.count("batch_size")?.unwrap_or(default.size),
        linger: read_linger(table)?.unwrap_or(default.linger),
        reply: table.map("reply", reply)?.unwrap_or(default.reply),
        framing: read_framing(table)?,
        ..default
    })
}

pub(super) fn read_linger(table: &Table<'_, '_>) -> Result<Option<Duration>, Failure> {
    table.map("batch_linger", |text| match crate::when::duration(text)? {
        long if long > LINGER_MOST => Err(format!("{text:?} is longer than an hour, expected at most 1h")),
        linger => Ok(linger),
    })
}

fn read_worker(table: &Table<'_, '_>, command: Command) -> Result<Worker, Failure> {
    refuse_templates_of_one_job(table, "worker", &command)?;
    let default = Worker::new(command);
    Ok(Worker {
        framing: read_framing(table)?,
        in_flight: table.count("in_flight")?.unwrap_or(default.in_flight),
        jobs: table.number("worker_jobs", 0)?.map_or(default.jobs, u64::from),
        age: table.map("worker_age", positive)?.or(default.age),
        memory: table.map("worker_memory", size)?.unwrap_or(default.memory),
        idle: table.map("worker_idle", positive)?.unwrap_or(default.idle).min(IDLE_MOST),
        ..default
    })
}

/// No idle worker is kept longer; a longer time in the file is as good as this.
const IDLE_MOST: Duration = Duration::from_secs(30 * 24 * 3600);

fn read_framing(table: &Table<'_, '_>) -> Result<Framing, Failure> {
    let framing = table.map("framing", |text| match text {
        "raw" => Ok(Framing::Raw),
        "json" => Ok(Framing::Json),
        other => Err(format!("`framing` is {other:?}, expected \"raw\" or \"json\"")),
    })?;
    Ok(framing.unwrap_or(Framing::Raw))
}

/// Where a process serves many jobs, its arguments cannot tell one of them.
fn refuse_templates_of_one_job(table: &Table<'_, '_>, key: &str, command: &Command) -> Result<(), Failure> {
    refuse_template(table, key, &command.argv)
}

pub(super) fn refuse_template(table: &Table<'_, '_>, key: &str, texts: &[Vec<u8>]) -> Result<(), Failure> {
    match template::of_one_job(texts) {
        None => Ok(()),
        Some(name) => {
            let many = if key == "url" { "this call has many" } else { "this process gets many" };
            let text = format!("`{{{name}}}` in `{key}` means one job, and {many}; only {{queue}} is known");
            Err(table.refuse_value(key, &text))
        }
    }
}
