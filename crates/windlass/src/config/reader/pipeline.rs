//! `[pipeline.NAME]` and its stages: each stage is the queue `NAME.STAGE` with a table of its own, and all of them are
//! checked together.

use super::{Table, article, checks, queue_name, quoted, read_policy};
use crate::config::units::size;
use crate::config::{Config, Feeder, Pipeline};
use crate::error::Failure;
use crate::store::place::StagePlace;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use windlass_core::document::TRIES;
use windlass_core::job::QueueName;
use windlass_core::pipeline::{Fault, Flow, Pass, Plan, Stage, fit};
use windlass_core::policy::{Policy, Service};
use windlass_core::size;

/// The keys of a stage beside those of a queue.
const STAGE_KEYS: [&str; 6] = ["name", "store", "limit", "limit_bytes", "to", "pass"];

/// A stage as it was read, and where it stands.
struct Read {
    plan: Stage,
    policy: Policy,
    limit: u32,
    limit_bytes: u64,
    tries: u32,
    pass: Pass,
    store: Option<StagePlace>,
    place: Range<usize>,
}

/// All pipelines, in the order of the file.
pub(super) fn read(root: &Table<'_, '_>, config: &Config) -> Result<Vec<Pipeline>, Failure> {
    let Some(section) = root.section("pipeline")? else { return Ok(Vec::new()) };
    let mut entries: Vec<_> = section.table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    let read = entries.into_iter().map(|(name, value)| {
        let text = name.get_ref().as_ref();
        check_name(text).map_err(|why| root.source.refuse(name.span(), &format!("a pipeline's name {why}")))?;
        let title = format!("[pipeline.{}]", quoted(text));
        let DeValue::Table(table) = value.get_ref() else {
            return Err(root.source.refuse(value.span(), &format!("{title} is {}, expected a table", article(value))));
        };
        read_pipeline(&Table { source: root.source, title, table }, text, config, name.span())
    });
    read.collect()
}

/// Names of pipelines and of stages are parts of a queue's name, joined by a dot.
fn check_name(text: &str) -> Result<(), String> {
    queue_name(text)?;
    match text.contains(['.', '*', '\t', '/']) {
        true => Err(format!("is {text:?}, expected one without `.`, `*` and `/`")),
        false => Ok(()),
    }
}

fn read_pipeline(table: &Table<'_, '_>, name: &str, config: &Config, place: Range<usize>) -> Result<Pipeline, Failure> {
    table.only(&["memory", "stage"])?;
    let machine = config.machine.memory.or_else(checks::machine_memory);
    let memory = table.map("memory", size)?;
    if let (Some(memory), Some(machine)) = (memory, machine)
        && memory > machine
    {
        let (memory, machine) = (size::spoken(memory), size::spoken(machine));
        return Err(table.refuse_value("memory", &format!("the stages may have {memory}, and there is only {machine}")));
    }
    let stages = match table.get("stage").map(Spanned::get_ref) {
        Some(DeValue::Array(stages)) if !stages.is_empty() => stages,
        _ => {
            let refused = table.source.refuse(place, &format!("{} has no stages", table.title));
            return Err(refused.hint(format!("add [[pipeline.{}.stage]] with a name and what it runs", quoted(name))));
        }
    };
    let (mut feeder, mut read) = (None, Vec::new());
    for (at, stage) in stages.iter().enumerate() {
        let title = format!("stage {} of {}", at + 1, table.title);
        let DeValue::Table(inner) = stage.get_ref() else {
            return Err(table.source.refuse(stage.span(), &format!("{title} is {}, expected a table", article(stage))));
        };
        let inner = Table { source: table.source, title, table: inner };
        match inner.get("feed") {
            Some(_) if at == 0 => feeder = Some((read_feeder(&inner, stage.span())?, read_to(&inner)?, stage.span())),
            Some(_) => {
                let text = "`feed` makes the input of a pipeline, and only its first stage has none";
                return Err(inner.refuse_value("feed", text));
            }
            None => read.push(read_stage(&inner, name, config, stage.span())?),
        }
    }
    let feeder = match feeder {
        Some((feeder, to, place)) => {
            let fed = read.first().map(|first: &Read| first.plan.name.as_str());
            if fed.is_none() || to.iter().map(String::as_str).ne(fed) || read.iter().any(|r| r.plan.name == feeder.name)
            {
                let text = "a feeder has a name of its own and hands to the stage that stands behind it";
                let hint = format!("to = [{:?}]", fed.unwrap_or("STAGE"));
                return Err(table.source.refuse(place, text).hint(hint));
            }
            Some(feeder)
        }
        None => None,
    };
    Ok(Pipeline { feeder, ..join(table, name, memory, machine, read)? })
}

/// A stage without an input is no queue, and has nothing that one has.
fn read_feeder(table: &Table<'_, '_>, place: Range<usize>) -> Result<Feeder, Failure> {
    table.only(&["name", "feed", "to"])?;
    let Some(name) = table.text("name")? else {
        return Err(table.source.refuse(place, &format!("{} has no `name`", table.title)));
    };
    check_name(name).map_err(|why| table.refuse_value("name", &format!("a stage's name {why}")))?;
    Ok(Feeder { name: name.to_owned(), argv: table.argv("feed")? })
}

fn read_stage(table: &Table<'_, '_>, pipeline: &str, config: &Config, place: Range<usize>) -> Result<Read, Failure> {
    table.only(&[&STAGE_KEYS[..], &super::all_queue_keys()[..]].concat())?;
    let Some(name) = table.text("name")? else {
        return Err(table.source.refuse(place, &format!("{} has no `name`", table.title)));
    };
    check_name(name).map_err(|why| table.refuse_value("name", &format!("a stage's name {why}")))?;
    let whole = format!("{pipeline}.{name}");
    queue_name(&whole).map_err(|why| table.refuse_value("name", &why))?;
    let to = read_to(table)?;
    let policy = read_policy(table, &whole, config, place.clone())?;
    if matches!(policy.service, Service::Forward(_)) {
        let text = "`forward` gives jobs away for good, and the jobs of a pipeline stay with their run";
        return Err(table.refuse_value("forward", text));
    }
    let pass = table.map("pass", |text| {
        let found = Pass::ALL.iter().find(|(word, _)| *word == text).map(|(_, pass)| *pass);
        found.ok_or_else(|| format!("{text:?} is not known, expected one of emitted, message, lines, data"))
    })?;
    let pass = pass.unwrap_or_default();
    if pass == Pass::Lines && !matches!(policy.service, Service::Command(_)) {
        return Err(table.refuse_value("pass", "`pass = \"lines\"` is for `run`: elsewhere the lines are replies"));
    }
    if pass != Pass::Emitted && to.is_empty() {
        return Err(table.refuse_value("pass", "`pass` says what goes on, and there is no `to`"));
    }
    let plan = Stage { name: name.to_owned(), slots: policy.slots, memory: policy.limits.memory, to };
    let limit = table.count("limit")?.unwrap_or(0);
    let limit_bytes = table.map("limit_bytes", size)?.unwrap_or(0);
    // A document is tried twice, a job five times, unless somebody says how often.
    let said = table.get("attempts").is_some() || policy.attempts != Policy::new("", policy.service.clone()).attempts;
    let tries = if said { policy.attempts } else { TRIES };
    let store = table.map("store", str::parse)?;
    let place = table.get("name").map_or(place, Spanned::span);
    Ok(Read { plan, policy, limit, limit_bytes, tries, pass, store, place })
}

fn read_to(table: &Table<'_, '_>) -> Result<Vec<String>, Failure> {
    let Some(value) = table.get("to") else { return Ok(Vec::new()) };
    let DeValue::Array(names) = value.get_ref() else {
        return Err(table.wrong("to", value, "an array of stage names"));
    };
    let mut to: Vec<String> = Vec::new();
    for name in names {
        let text = name.get_ref().as_str().ok_or_else(|| table.wrong("to", name, "stage names only"))?;
        if to.iter().any(|known| known == text) {
            return Err(table.source.refuse(name.span(), &format!("{text:?} stands here twice")));
        }
        to.push(text.to_owned());
    }
    Ok(to)
}

/// Checks how the stages are joined, fits them into memory, and gives each its rules.
fn join(
    table: &Table<'_, '_>,
    name: &str,
    memory: Option<u64>,
    machine: Option<u64>,
    read: Vec<Read>,
) -> Result<Pipeline, Failure> {
    let stages: Vec<Stage> = read.iter().map(|stage| stage.plan.clone()).collect();
    let refuse = |fault: Fault| {
        let why = fault.to_string();
        match fault {
            Fault::Duplicate { stage } | Fault::Unreachable { stage, .. } | Fault::Unknown { stage, .. } => {
                table.source.refuse(read[stage].place.clone(), &why)
            }
            Fault::DoesNotFit { .. } if memory.is_some() => table.refuse_value("memory", &why),
            Fault::DoesNotFit { .. } => table.source.refuse(read[0].place.clone(), &why),
        }
    };
    let plan = Plan::new(&stages).map_err(refuse)?;
    let fitted = fit(&stages, memory.or(machine)).map_err(refuse)?;
    let queue = |at: usize| queue_of(name, &stages[at].name);
    let mut rules = Vec::new();
    for (at, (stage, slots)) in read.iter().zip(fitted).enumerate() {
        let to = stages[at].to.iter().filter_map(|to| queue_of(name, to)).collect();
        let held_by = plan.held_by(at).filter(|next| read[*next].limit > 0).filter_map(queue).collect();
        let (pipeline, stage_name) = (name.to_owned(), stage.plan.name.clone());
        let Read { limit, limit_bytes, tries, pass, .. } = *stage;
        let flow = Flow { pipeline, stage: stage_name, limit, limit_bytes, tries, pass, to, held_by };
        rules.push(Policy { slots, flow: Some(flow), ..stage.policy.clone() });
    }
    let stores = read.iter().map(|stage| stage.store.clone()).collect();
    Ok(Pipeline { name: name.to_owned(), memory, stages, rules, stores, feeder: None })
}

fn queue_of(pipeline: &str, stage: &str) -> Option<QueueName> {
    queue_name(&format!("{pipeline}.{stage}")).ok()
}

/// A table with a stage's name would never serve anything.
pub(super) fn check_tables(root: &Table<'_, '_>, config: &Config) -> Result<(), Failure> {
    let mut rules = config.pipelines.iter().flat_map(|pipeline| &pipeline.rules);
    let Some(twice) = rules.find(|stage| config.queues.iter().any(|queue| queue.pattern == stage.pattern)) else {
        return Ok(());
    };
    let place = root.section("queue")?.and_then(|section| {
        let table: &DeTable<'_> = section.table;
        table.iter().find(|(name, _)| **name.get_ref() == *twice.pattern).map(|(name, _)| name.span())
    });
    let why = format!("`{}` is a stage of a pipeline, which says how it is served", twice.pattern);
    place.map_or(Ok(()), |place| Err(root.source.refuse(place, &why)))
}
