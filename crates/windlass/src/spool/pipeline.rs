//! A pipeline in directories: each stage is a directory with drivers of its own, all in one process, and `done` travels
//! from stage to stage.
//!
//! A stage whose command names `{in}` and `{out}`, or whose kept command is told of them line by line, works on files;
//! any other gets the document's text as a job gets its data, and what it hands on becomes documents of the next ones.
//! A stage is told that nothing more will come when all stages before it have ended. What a directory cannot hold is
//! refused before anything starts.

use super::directory::Directory;
use super::drive::{Counts, Drive, Order, Say};
use super::queue::{self, Queue};
use super::room::{Entrance, Limit};
use super::way::Task;
use super::{NEVER_IDLE, TRIES};
use crate::config::Pipeline;
use crate::error::{Failure, Kind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use windlass_core::document::DONE;
use windlass_core::pipeline::{Flow, Plan};
use windlass_core::policy::{Framing, Policy, Service, Worker};
use windlass_core::template::{makes_document, takes_document};

/// Where the files go that the last stages make.
pub const RESULTS: &str = "results";

/// A pipeline at work.
pub struct Stages {
    /// Where documents come in, and whether they are files.
    pub first: Queue,
    pub takes_files: bool,
    /// Where those wait who feed it while the first stage is full.
    pub entrance: Entrance,
    stoppers: Arc<Stoppers>,
    threads: Vec<JoinHandle<Result<Counts, Failure>>>,
}

impl std::fmt::Debug for Stages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stages").field("first", &self.first).finish_non_exhaustive()
    }
}

/// How the drivers of all stages are told to end. One stage that cannot go on ends all: those before it would wait for
/// room for ever, and those behind it for an end.
#[derive(Default)]
struct Stoppers {
    all: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
    failed: AtomicBool,
}

impl Stoppers {
    fn add(&self, stopper: impl Fn() + Send + Sync + 'static) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // One that failed before this one was there has told the others only.
        if self.failed.load(Ordering::Relaxed) {
            stopper();
        }
        all.push(Box::new(stopper));
    }

    fn stop(&self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|stop| stop());
    }

    fn fail(&self) {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.failed.swap(true, Ordering::Relaxed) {
            all.iter().for_each(|stop| stop());
        }
    }
}

/// Who still writes into a directory.
struct Writers {
    directory: Directory,
    left: Mutex<usize>,
}

impl Stages {
    /// Opens the directories of all stages under one and starts their drivers.
    pub fn start(pipeline: &Pipeline, root: &Path, say: &Say) -> Result<Stages, Failure> {
        check(pipeline)?;
        pipeline.rules.iter().for_each(|rules| tell_of_idle(rules, say));
        let place = |stage: &str| root.join(stage);
        let mut writers: Vec<(PathBuf, Arc<Writers>)> = Vec::new();
        for (stage, rules) in pipeline.stages.iter().zip(&pipeline.rules) {
            let makes_results = stage.to.is_empty() && is_of_files(rules) && makes_output(rules);
            for path in std::iter::once(place(&stage.name)).chain(makes_results.then(|| place(RESULTS))) {
                if !writers.iter().any(|(known, _)| *known == path) {
                    writers.push((path.clone(), Arc::new(Writers::new(&path)?)));
                }
            }
        }
        let into =
            |path: &Path| writers.iter().find(|(known, _)| known == path).map(|(_, writers)| Arc::clone(writers));
        let mut drives = Vec::new();
        for (stage, rules) in pipeline.stages.iter().zip(&pipeline.rules) {
            let next: Vec<PathBuf> = match stage.to.is_empty() {
                true => (is_of_files(rules) && makes_output(rules)).then(|| place(RESULTS)).into_iter().collect(),
                false => stage.to.iter().map(|to| place(to)).collect(),
            };
            let after: Vec<Arc<Writers>> = next.iter().filter_map(|path| into(path)).collect();
            after.iter().for_each(|writers| writers.add());
            drives.push((order(pipeline, rules, place(&stage.name), &next), after));
        }
        let first = Queue::open(&place(&pipeline.stages[0].name))?;
        let takes_files = is_of_files(&pipeline.rules[0]);
        let entrance = Entrance::new(&first.directory, limit_of(&pipeline.rules[0]));
        let mut stages = Stages { first, takes_files, entrance, stoppers: Arc::default(), threads: Vec::new() };
        for (order, after) in drives {
            stages.employ(order, after, say)?;
        }
        Ok(stages)
    }

    fn employ(&mut self, order: Order, after: Vec<Arc<Writers>>, say: &Say) -> Result<(), Failure> {
        let drive = Drive::start(order, Arc::clone(say))?;
        self.stoppers.add(drive.stopper());
        let stoppers = Arc::clone(&self.stoppers);
        let wait = move || {
            let ended = drive.join().inspect_err(|_| stoppers.fail())?;
            if ended.closed {
                after.iter().try_for_each(|writers| writers.leave())?;
            }
            Ok(ended.counts)
        };
        let thread = std::thread::Builder::new().name("stage".into()).spawn(wait);
        self.threads.push(thread.map_err(|e| Failure::io("cannot start a thread", &e))?);
        Ok(())
    }

    /// A stage could not go on, and all of them end.
    pub fn have_failed(&self) -> bool {
        self.stoppers.failed.load(Ordering::Relaxed)
    }

    /// Nothing more will come in.
    pub fn close(&self) -> Result<(), Failure> {
        let place = self.first.directory.path().display();
        queue::close(&self.first.directory).map_err(|e| Failure::io(format_args!("cannot close {place}"), &e))
    }

    /// For another thread: first what is under way is finished, then, asked again, it goes back.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + use<> {
        let stoppers = Arc::clone(&self.stoppers);
        move || stoppers.stop()
    }

    /// Waits for the end of all stages: what each has done, in their order.
    pub fn join(self) -> Result<Vec<Counts>, Failure> {
        let ended = |thread: JoinHandle<Result<Counts, Failure>>| {
            thread.join().unwrap_or_else(|_| Err(Failure::new(Kind::Internal, "the thread of a stage has ended")))
        };
        let ended: Vec<Result<Counts, Failure>> = self.threads.into_iter().map(ended).collect();
        ended.into_iter().collect()
    }
}

impl Writers {
    /// An earlier run may have said that nothing more will come.
    fn new(path: &Path) -> Result<Writers, Failure> {
        let directory = Directory::make(path)?;
        let removed = directory.remove(DONE).map(drop);
        removed.map_err(|e| Failure::io(format_args!("cannot write into {}", path.display()), &e))?;
        Ok(Writers { directory, left: Mutex::new(0) })
    }

    fn add(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// The last one says that nothing more will come.
    fn leave(&self) -> Result<(), Failure> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left -= 1;
        if *left > 0 {
            return Ok(());
        }
        let place = self.directory.path().display();
        queue::close(&self.directory).map_err(|e| Failure::io(format_args!("cannot close {place}"), &e))
    }
}

fn order(pipeline: &Pipeline, rules: &Policy, input: PathBuf, next: &[PathBuf]) -> Order {
    let stage = rules.flow.as_ref().map(|flow| flow.stage.clone()).unwrap_or_default();
    let task = match is_of_files(rules) {
        true => Task::Files { output: next.first().cloned() },
        false => {
            let queues = rules.flow.iter().flat_map(|flow| flow.to.iter().cloned());
            Task::Data { stage, to: queues.zip(next.iter().cloned()).collect() }
        }
    };
    let held_by = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let rules = pipeline.stages.iter().zip(&pipeline.rules).find(|(stage, _)| stage.name == name)?.1;
        Some(limit_of(rules)).filter(|limit| *limit != Limit::default())
    };
    let limits = next.iter().filter_map(|path| Some((path.clone(), held_by(path)?)));
    Order {
        drivers: rules.slots,
        tries: rules.flow.as_ref().map_or(TRIES, |flow| flow.tries),
        limits: limits.collect(),
        closes: false,
        ..Order::new(input, task, Policy { service: kept_for_good(&rules.service), ..rules.clone() })
    }
}

fn limit_of(rules: &Policy) -> Limit {
    let limit = |flow: &Flow| Limit { documents: flow.limit.into(), bytes: flow.limit_bytes };
    rules.flow.as_ref().map(limit).unwrap_or_default()
}

/// What a driver gives a kept command is a line already, and the command stays for as long as the driver does: its
/// memory is set aside for it whether it has something to do or not.
fn kept_for_good(service: &Service) -> Service {
    match service {
        Service::Worker(worker) => {
            let framing = if worker_paths(worker).is_some() { Framing::Raw } else { worker.framing };
            Service::Worker(Worker { framing, idle: NEVER_IDLE, ..worker.clone() })
        }
        other => other.clone(),
    }
}

/// Whether a kept command is told of files, and if so, whether of one to write.
fn worker_paths(worker: &Worker) -> Option<bool> {
    match worker.framing {
        Framing::Paths { out } => Some(out),
        Framing::Raw | Framing::Json | Framing::Array => None,
    }
}

fn is_of_files(rules: &Policy) -> bool {
    match &rules.service {
        Service::Command(command) => takes_document(&command.argv),
        Service::Worker(worker) => worker_paths(worker).is_some(),
        _ => false,
    }
}

fn makes_output(rules: &Policy) -> bool {
    match &rules.service {
        Service::Worker(worker) => worker_paths(worker) == Some(true),
        service => service.command().is_some_and(|command| makes_document(&command.argv)),
    }
}

/// What does nothing in a directory, though somebody has set it.
fn tell_of_idle(rules: &Policy, say: &Say) {
    let usual = Policy::new(rules.pattern.as_str(), rules.service.clone());
    let idle = [
        (rules.backoff != usual.backoff, "backoff", "what failed goes to the end of the queue"),
        (rules.weight != usual.weight, "weight", "its drivers are its own"),
        (rules.dead_after != usual.dead_after, "dead_after", "drivers do not know of each other"),
    ];
    for (_, key, why) in idle.into_iter().filter(|(set, ..)| *set) {
        say(&format!("the `{key}` of {} does nothing in a directory: {why}", rules.pattern));
    }
}

const NO_OUTPUT: &str = "`to`, and neither `{out}` nor `framing = \"in-out\"` says what it writes";

/// What a directory cannot hold is a sentence at the start.
fn check(pipeline: &Pipeline) -> Result<(), Failure> {
    let plan = Plan::new(&pipeline.stages).map_err(|fault| Failure::new(Kind::Config, fault.to_string()))?;
    for (at, (stage, rules)) in pipeline.stages.iter().zip(&pipeline.rules).enumerate() {
        let lacks = [
            (rules.hours.is_some(), "`hours`: nobody starts them later"),
            (rules.rate.is_some(), "`rate`: drivers do not know of each other"),
            (rules.unique.is_some(), "`unique`: a name is all the key a document has"),
            (rules.on_failure.is_some(), "`on_failure`: what failed is kept in `failed/`"),
            (!rules.enabled, "`enabled = false`: its drivers would start"),
            (!rules.notify.channels.is_empty(), "`notify`: what became of them is in the names of the files"),
            (rules.service.is_remote(), "`remote`: remote workers ask a server"),
            (plan.turns(at), "a way back to itself: no file `done` could ever say that it has ended"),
            (stage.name == RESULTS, "the name of the directory of the results"),
            (is_of_files(rules) && stage.to.len() > 1, "one file that it writes, and several stages in `to`"),
            (is_of_files(rules) && !stage.to.is_empty() && !makes_output(rules), NO_OUTPUT),
        ];
        if let Some((_, what)) = lacks.into_iter().find(|(found, _)| *found) {
            let text = format!("the stage {} of {} cannot be a directory: it has {what}", stage.name, pipeline.name);
            return Err(Failure::new(Kind::Config, text).hint("an embedded store or a table can hold it"));
        }
    }
    Ok(())
}
