//! The keys that say what a queue's processes may use and whom they run as, and the machine's share of both.
//!
//! A need that can never be met and a user that is not on the list are refused here, by the same check at every load.

use super::{Table, positive};
use crate::config::checks;
use crate::config::units::{exact_size, size};
use crate::error::Failure;
use std::time::Duration;
use toml::de::DeValue;
use windlass_core::policy::{Identity, Limits, Policy, Service};
use windlass_core::size;

/// The keys of `[limits]` beside `slots`.
pub(super) const MACHINE_KEYS: [&str; 2] = ["memory", "users"];

const KEYS: [&str; 5] = ["memory", "process_limit", "cpu_limit", "output_limit", "user"];

/// The keys of a queue that this serves: without a process only memory counts, and a process that stays has no end to
/// count processor time or output up to.
pub(super) fn keys_of(service: &Service) -> impl Iterator<Item = &'static str> {
    let (process, stays) = (service.command().is_some(), stays(service));
    KEYS.into_iter().filter(move |key| match *key {
        "memory" => true,
        "cpu_limit" | "output_limit" => process && !stays,
        _ => process,
    })
}

/// All of them.
pub(super) const ALL_KEYS: [&str; 5] = KEYS;

fn stays(service: &Service) -> bool {
    match service {
        Service::Worker(_) => true,
        Service::Command(_)
        | Service::Batch(_)
        | Service::Url(_)
        | Service::Remote(_)
        | Service::Forward(_)
        | Service::Handler { .. } => false,
    }
}

/// What all queues share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::config) struct Machine {
    /// None where the file does not say.
    pub(in crate::config) memory: Option<u64>,
    pub(in crate::config) users: Vec<String>,
}

pub(super) fn read_machine(table: &Table<'_, '_>, default: &Machine) -> Result<Machine, Failure> {
    let memory = table.map("memory", |text| match size(text)? {
        0 => Err(format!("{text:?} is no memory at all; leave the key out to have all that the machine has")),
        bytes => Ok(bytes),
    })?;
    let memory = memory.or(default.memory);
    let Some(value) = table.get("users") else { return Ok(Machine { memory, users: default.users.clone() }) };
    let DeValue::Array(names) = value.get_ref() else {
        return Err(table.wrong("users", value, "an array of names"));
    };
    let names = names.iter().map(|name| match name.get_ref().as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(table.wrong("users", name, "names only")),
    });
    Ok(Machine { memory, users: names.collect::<Result<_, _>>()? })
}

/// The limits of a queue that this serves.
pub(super) fn read_limits(table: &Table<'_, '_>, service: &Service, machine: &Machine) -> Result<Limits, Failure> {
    if let Some(key) = ["cpu_limit", "output_limit"].into_iter().find(|key| stays(service) && table.get(key).is_some())
    {
        let text = format!("`{key}` is for a process that ends with its jobs, and {} has one that stays", table.title);
        return Err(table.refuse_value(key, &text).hint("`time_limit` bounds each of its jobs"));
    }
    let process = service.command().is_some();
    if let Some(key) = KEYS[1..4].iter().find(|key| !process && table.get(key).is_some()) {
        let text = format!("`{key}` is for a process, and {} has none", table.title);
        return Err(table.refuse_value(key, &text));
    }
    let memory = table.map("memory", size)?.unwrap_or(0);
    let budget = machine.memory.or_else(checks::machine_memory);
    if let Some(budget) = budget.filter(|budget| memory > *budget) {
        let of = if machine.memory.is_some() { "`memory` in [limits] is" } else { "this machine has" };
        let (need, budget) = (size::spoken(memory), size::spoken(budget));
        return Err(table.refuse_value("memory", &format!("it needs {need} and could never start: {of} {budget}")));
    }
    let output = table.map("output_limit", |text| match size(text)? {
        0 => Err(format!("{text:?} is no output at all, expected more; `output = \"0\"` keeps none of it")),
        bytes => Ok(bytes),
    })?;
    Ok(Limits {
        memory,
        processes: table.number("process_limit", 1)?.unwrap_or(0),
        cpu: table.map("cpu_limit", positive)?.unwrap_or(Duration::ZERO),
        output: output.unwrap_or(0),
    })
}

/// Whom a queue's processes run as.
pub(super) fn read_user(
    table: &Table<'_, '_>,
    service: &Service,
    machine: &Machine,
) -> Result<Option<Identity>, Failure> {
    let Some(name) = table.text("user")? else { return Ok(None) };
    if service.command().is_none() {
        return Err(table.refuse_value("user", &format!("{} has no process that could run as {name:?}", table.title)));
    }
    if !machine.users.iter().any(|allowed| allowed == name) {
        let listed = if machine.users.is_empty() { "which is empty".into() } else { machine.users.join(", ") };
        let refused = table.refuse_value("user", &format!("{name:?} is not in `users` of [limits] ({listed})"));
        return Err(refused.hint(format!("whoever may write this file may allow it: users = [{name:?}]")));
    }
    checks::identity(name).map(Some).map_err(|why| table.refuse_value("user", &why))
}

/// The value of a key of this file as it is shown.
pub(in crate::config) fn value(policy: &Policy, key: &str) -> Option<Option<String>> {
    let limits = policy.limits;
    let bytes = |bytes: u64| (bytes > 0).then(|| format!("\"{}\"", exact_size(bytes)));
    Some(match key {
        "memory" => bytes(limits.memory),
        "process_limit" => (limits.processes > 0).then(|| limits.processes.to_string()),
        "cpu_limit" => (!limits.cpu.is_zero()).then(|| format!("\"{}\"", crate::when::exact(limits.cpu))),
        "output_limit" => bytes(limits.output),
        "user" => policy.user.as_ref().map(|user| format!("{:?}", user.name)),
        _ => return None,
    })
}
