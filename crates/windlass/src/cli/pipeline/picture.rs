//! `windlass pipeline graph`: a pipeline with what is where now, wherever its stages are kept.

use super::super::Context;
use super::super::connect::Link;
use super::super::graph::{self, Node};
use super::super::place::Place as Engine;
use super::super::print::{self, Out, count, grouped};
use super::{Named, chosen, directories, fitting, loaded};
use crate::config::{Loaded, Pipeline};
use crate::data_dir::DataDir;
use crate::error::Failure;
use crate::mixed::{Home, Place};
use crate::spool::status::{Stage, Status};
use serde_json::{Value, json};
use std::path::Path;
use windlass_core::life_cycle::State;

/// What is in a stage.
#[derive(Default)]
struct Contents {
    /// By state, as the server of its store tells them; null where nobody ever had any.
    jobs: Value,
    /// Those of its directory; in front of a store they are yet to become jobs.
    documents: Option<Stage>,
    is_store: bool,
}

pub(super) fn graph(of: &Named, svg: bool, context: &Context) -> Result<u8, Failure> {
    let (path, loaded) = loaded(of, context)?;
    let pipeline = chosen(of.name.as_deref(), &path, &loaded)?;
    let contents = contents(&loaded, pipeline, context)?;
    if context.json {
        let mut told = fitting(pipeline, loaded.config.memory());
        for (stage, contents) in told["stages"].as_array_mut().into_iter().flatten().zip(contents) {
            stage["counts"] = contents.counts();
        }
        return print::document(&told);
    }
    let stages = pipeline.stages.iter().zip(&pipeline.rules).zip(&contents).map(|((stage, rules), contents)| {
        let waiting = contents.count(&[State::Ready, State::Retrying, State::Scheduled]);
        let limit = rules.flow.as_ref().map_or(0, |flow| u64::from(flow.limit));
        let most = if limit > 0 { format!(" of {}", grouped(limit)) } else { String::new() };
        let of = |state: State| grouped(contents.count(&[state]));
        Node {
            name: stage.name.clone(),
            lines: vec![
                format!("{}{most} waiting", grouped(waiting)),
                format!("{} running in {}", of(State::Running), rules.slots),
                format!("{} succeeded, {} failed", of(State::Succeeded), of(State::Failed)),
            ],
            full: limit > 0 && waiting >= limit,
            workers: rules.slots as usize,
            to: stage.to.clone(),
        }
    });
    let stages: Vec<Node> = stages.collect();
    let mut out = Out::new();
    let text = if svg { graph::svg(&pipeline.name, &stages) } else { graph::text(&pipeline.name, &stages) };
    out.bytes(text.as_bytes());
    out.finish()
}

fn contents(loaded: &Loaded, pipeline: &Pipeline, context: &Context) -> Result<Vec<Contents>, Failure> {
    let queues = pipeline.rules.iter().map(|rules| &rules.pattern);
    if !directories::are_needed(pipeline, context) {
        let status = status_here(context)?;
        let jobs = queues.map(|queue| status["queues"][queue].clone());
        return Ok(jobs.map(|jobs| Contents { jobs, documents: None, is_store: true }).collect());
    }
    let layout = directories::layout(loaded, pipeline, context)?;
    let mut asked: Vec<(Home, Value)> = Vec::new();
    let mut all = Vec::new();
    for ((stage, queue), place) in pipeline.stages.iter().zip(queues).zip(&layout.places) {
        let mut contents = Contents::default();
        match place {
            Place::Directory(path) => contents.documents = documents_in(path)?,
            Place::Store(home) => {
                if !asked.iter().any(|(known, _)| known == home) {
                    asked.push((home.clone(), status_at(home)?));
                }
                let status = asked.iter().find(|(known, _)| known == home).map(|(_, status)| status);
                contents.jobs = status.map_or(Value::Null, |status| status["queues"][queue].clone());
                contents.documents = documents_in(&layout.root.join(&stage.name))?;
                contents.is_store = true;
            }
        }
        all.push(contents);
    }
    Ok(all)
}

fn status_of(engine: &Engine) -> Result<Value, Failure> {
    Link::ask(engine, |server| server.get_json("/api/v1/status"))
}

/// The same of the place that was named; null where nobody has ever run anything, so a file can be drawn as it is.
fn status_here(context: &Context) -> Result<Value, Failure> {
    if context.address()?.is_none() && DataDir::find(&context.dir_path()?)?.is_none() {
        return Ok(Value::Null);
    }
    status_of(&context.place()?)
}

/// What the server of a store tells; null where there never was one.
fn status_at(home: &Home) -> Result<Value, Failure> {
    let dir = DataDir::find(&home.dir)?;
    dir.map_or(Ok(Value::Null), |dir| status_of(&Engine::Directory { dir, store: home.store.clone() }))
}

/// How the directory of a stage stands; nothing where nobody has made it yet.
fn documents_in(path: &Path) -> Result<Option<Stage>, Failure> {
    if !path.exists() {
        return Ok(None);
    }
    Ok(Status::look(&[path.to_owned()], false)?.stages.into_iter().next())
}

impl Contents {
    fn count(&self, states: &[State]) -> u64 {
        let jobs: u64 = states.iter().map(|state| count(&self.jobs, state.word())).sum();
        let documents = |stage: &Stage| states.iter().map(|state| self.documents(stage, *state)).sum::<u64>();
        jobs + self.documents.as_ref().map_or(0, documents)
    }

    /// How many documents are in the state, in the words for jobs. One that is being handed in to a store waits.
    fn documents(&self, stage: &Stage, state: State) -> u64 {
        match state {
            State::Ready => stage.ready + if self.is_store { stage.working } else { 0 },
            State::Retrying => stage.failed,
            State::Running if !self.is_store => stage.working,
            State::Succeeded if !self.is_store => stage.times().done,
            State::Failed => stage.aside,
            State::Running | State::Succeeded | State::Scheduled | State::Suspended | State::Cancelled => 0,
        }
    }

    /// For machines: as the server tells its own, and for a directory in the same words.
    fn counts(&self) -> Value {
        let Some(stage) = &self.documents else { return self.jobs.clone() };
        let mut counts = if self.jobs.is_object() { self.jobs.clone() } else { json!({}) };
        for state in [State::Ready, State::Retrying, State::Running, State::Succeeded, State::Failed] {
            counts[state.word()] = json!(count(&self.jobs, state.word()) + self.documents(stage, state));
        }
        counts
    }
}
