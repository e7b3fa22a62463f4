//! The keys of a queue that say what serves it: exactly one of `CHOICES`, and what belongs to it.
//!
//! A further kind of runner is one more name in `CHOICES`, its keys in `KEYS` with the choice they belong to, and its
//! function here.

use super::forward::read_forward;
use super::url::read_url;
use super::{Table, positive, read_command};
use crate::config::units::size;
use crate::config::{checks, path_bytes};
use crate::engine::linger::LINGER_MOST;
use crate::error::Failure;
use crate::runner::lua;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use windlass_core::policy::{BATCH_BYTES, Batch, Command, Framing, Lua, Remote, Reply, Service, Worker};
use windlass_core::template;

/// What a queue can be served by.
const CHOICES: [&str; 7] = ["run", "batch", "worker", "lua", "url", "remote", "forward"];

/// The keys that belong to one choice or to some; a key of another choice is a mistake that is told.
const BELONGING: [(&str, &[&str]); 15] = [
    ("batch_size", &["batch", "url"]),
    ("batch_bytes", &["batch", "url"]),
    ("batch_linger", &["batch", "url"]),
    ("reply", &["batch", "url"]),
    ("in_flight", &["worker"]),
    ("worker_jobs", &["worker", "lua"]),
    ("worker_age", &["worker", "lua"]),
    ("worker_memory", &["worker", "lua"]),
    ("worker_idle", &["worker", "lua"]),
    ("framing", &["batch", "worker", "url"]),
    ("method", &["url"]),
    ("secret_file", &["url"]),
    ("lua_memory", &["lua"]),
    ("lease", &["remote"]),
    ("token_file", &["forward"]),
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
        Service::Worker(worker) if worker.lua.is_some() => "lua",
        Service::Worker(_) => "worker",
        Service::Url(_) => "url",
        Service::Remote(_) => "remote",
        Service::Forward(_) => "forward",
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
            let hint = "add run = [\"PROGRAM\", \"ARGUMENT\"…], or `batch`, `worker`, `lua`, `url`, `remote` or \
                        `forward` in its place";
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
    if choice == "remote" {
        return read_remote(table).map(Service::Remote);
    }
    if choice == "lua" {
        return read_lua(table, enabled).map(Service::Worker);
    }
    if choice == "url" {
        return read_url(table, hosts, enabled).map(Service::Url);
    }
    if choice == "forward" {
        return read_forward(table, hosts, enabled).map(Service::Forward);
    }
    let command = read_command(table, choice, enabled)?;
    match choice {
        "batch" => read_batch(table, command).map(Service::Batch),
        "worker" => read_worker(table, command).map(Service::Worker),
        _ => Ok(Service::Command(command)),
    }
}

fn read_batch(table: &Table<'_, '_>, command: Command) -> Result<Batch, Failure> {
    refuse_templates_of_one_job(table, "batch", &command.argv)?;
    let default = Batch::new(command);
    let reply = |text: &str| match text {
        "lines" => Ok(Reply::Lines),
        "exit" => Ok(Reply::Exit),
        other => Err(format!("`reply` is {other:?}, expected \"lines\" or \"exit\"")),
    };
    Ok(Batch {
        size: table.count("batch_size")?.unwrap_or(default.size),
        bytes: read_bytes(table)?.unwrap_or(default.bytes),
        linger: read_linger(table)?.unwrap_or(default.linger),
        reply: table.map("reply", reply)?.unwrap_or(default.reply),
        framing: read_framing(table, &OF_JOBS)?,
        ..default
    })
}

pub(super) fn read_bytes(table: &Table<'_, '_>) -> Result<Option<u64>, Failure> {
    table.map("batch_bytes", |text| match size(text)? {
        bytes @ 1..=BATCH_BYTES => Ok(bytes),
        other => Err(format!("`batch_bytes` is {other} bytes, expected 1 to {BATCH_BYTES} (16 MiB)")),
    })
}

pub(super) fn read_linger(table: &Table<'_, '_>) -> Result<Option<Duration>, Failure> {
    table.map("batch_linger", |text| match crate::when::duration(text)? {
        long if long > LINGER_MOST => Err(format!("{text:?} is longer than an hour, expected at most 1h")),
        linger => Ok(linger),
    })
}

fn read_worker(table: &Table<'_, '_>, command: Command) -> Result<Worker, Failure> {
    refuse_templates_of_one_job(table, "worker", &command.argv)?;
    let default = Worker::new(command);
    let in_flight = table.count("in_flight")?.unwrap_or(default.in_flight);
    read_recycling(table, Worker { framing: read_framing(table, &OF_WORKERS)?, in_flight, ..default })
}

/// A module of the program's own worker, which is asked for as any other; what it needs of JSON is not a choice.
fn read_lua(table: &Table<'_, '_>, enabled: bool) -> Result<Worker, Failure> {
    if !lua::IS_BUILT_IN {
        let text = "`lua`: this windlass was built without Lua";
        return Err(table.refuse_value("lua", text).hint("build it with the feature `lua`, which is a default"));
    }
    let name = table.text("lua")?.unwrap_or_default();
    let base = table.source.path.parent().unwrap_or(Path::new(""));
    let file = std::path::absolute(base.join(name)).map_err(|e| table.refuse_value("lua", &e.to_string()))?;
    let file = path_bytes(&file);
    refuse_templates_of_one_job(table, "lua", std::slice::from_ref(&file))?;
    if enabled && table.source.asks_machine {
        checks::module(&file).map_err(|why| table.refuse_value("lua", &why))?;
    }
    // Without a key of that name there is no argv to read, and the rest of the command is read as everywhere.
    let command = Command { argv: lua::argv(), ..read_command(table, "", enabled)? };
    let memory = table.map("lua_memory", size)?.unwrap_or(Lua::MEMORY);
    if memory < lua::MEMORY_LEAST {
        return Err(table.refuse_value("lua_memory", "`lua_memory` is too little for any Lua, expected 1MiB or more"));
    }
    read_recycling(table, lua::worker(command, Lua { file, memory }))
}

/// Workers elsewhere, who come and ask.
fn read_remote(table: &Table<'_, '_>) -> Result<Remote, Failure> {
    if table.flag("remote")? != Some(true) {
        let text = "`remote` is false, expected true, or another runner in its place";
        return Err(table.refuse_value("remote", text));
    }
    for key in ["environment", "directory"] {
        if table.get(key).is_some() {
            let text = format!("`{key}` does nothing where the jobs run elsewhere; the worker's own holds");
            return Err(table.refuse_value(key, &text));
        }
    }
    let lease = |text: &str| match positive(text)? {
        lease if (LEASE_LEAST..=LEASE_MOST).contains(&lease) => Ok(lease),
        _ => Err(format!("{text:?} is no lease, expected 1s to 1d")),
    };
    Ok(Remote { lease: table.map("lease", lease)?.unwrap_or(Remote::default().lease) })
}

/// A shorter lease would end between two signs of life; a longer one keeps a dead worker's jobs for too long.
const LEASE_LEAST: Duration = Duration::from_secs(1);
const LEASE_MOST: Duration = Duration::from_secs(24 * 3600);

/// When a worker is replaced.
fn read_recycling(table: &Table<'_, '_>, default: Worker) -> Result<Worker, Failure> {
    Ok(Worker {
        jobs: table.number("worker_jobs", 0)?.map_or(default.jobs, u64::from),
        age: table.map("worker_age", positive)?.or(default.age),
        memory: table.map("worker_memory", size)?.unwrap_or(default.memory),
        idle: table.map("worker_idle", positive)?.unwrap_or(default.idle).min(IDLE_MOST),
        ..default
    })
}

/// No idle worker is kept longer; a longer time in the file is as good as this.
const IDLE_MOST: Duration = Duration::from_secs(30 * 24 * 3600);

/// What a line can be, for a batch and for a kept worker.
const OF_JOBS: [Framing; 2] = [Framing::Raw, Framing::Json];
const OF_WORKERS: [Framing; 4] =
    [Framing::Raw, Framing::Json, Framing::Paths { out: false }, Framing::Paths { out: true }];

fn read_framing(table: &Table<'_, '_>, known: &[Framing]) -> Result<Framing, Failure> {
    let framing = table.map("framing", |text| {
        let found = known.iter().find(|framing| framing.word() == text).copied();
        let words = || known.iter().map(|framing| format!("{:?}", framing.word())).collect::<Vec<_>>().join(" or ");
        found.ok_or_else(|| format!("`framing` is {text:?}, expected {}", words()))
    })?;
    Ok(framing.unwrap_or(Framing::Raw))
}

/// Where a process serves many jobs, its arguments cannot tell one of them.
fn refuse_templates_of_one_job(table: &Table<'_, '_>, key: &str, argv: &[Vec<u8>]) -> Result<(), Failure> {
    refuse_template(table, key, argv)
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
