//! Stages in directories: each is a directory with drivers of its own, all in one process, and `done` travels from
//! stage to stage.
//!
//! A stage whose command names `{in}` and `{out}`, or whose kept command is told of them line by line, works on files;
//! any other gets the document's text as a job gets its data, and what it hands on becomes documents of the next ones.
//! A stage is told that nothing more will come when all stages before it have ended. `mixed` puts the stages of a
//! pipeline together; this must not know of stages that are kept elsewhere.

use super::directory::Directory;
use super::drive::{Counts, Drive, Order, Say};
use super::queue::{self, Queue};
use super::room::{Entrance, Limit};
use super::way::Task;
use super::{NEVER_IDLE, TRIES};
use crate::config::Pipeline;
use crate::error::{Failure, Kind};
use crate::inbox::watch::Bell;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use windlass_core::document::DONE;
use windlass_core::pipeline::{Flow, Stage};
use windlass_core::policy::{Batch, Framing, Policy, Service, Worker};
use windlass_core::template::{makes_document, takes_document};

/// Where the files go that the last stages make.
pub const RESULTS: &str = "results";

/// The stages of a pipeline that have drivers in this process.
pub struct Stages {
    /// Where documents come in, and whether they are files.
    pub first: Queue,
    pub takes_files: bool,
    /// Where those wait who feed it while the first stage is full.
    pub entrance: Entrance,
    /// Until then nobody believes that nothing more will come in.
    fed: Arc<AtomicBool>,
    /// Rung when all of them are to end.
    trouble: Bell,
    stoppers: Arc<Stoppers>,
    threads: Vec<JoinHandle<Result<Counts, Failure>>>,
}

impl std::fmt::Debug for Stages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stages").field("first", &self.first).finish_non_exhaustive()
    }
}

/// How all that works on a pipeline is told to end. One stage that cannot go on ends all: those before it would wait
/// for room for ever, and those behind it for an end.
#[derive(Default)]
pub(crate) struct Stoppers {
    all: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
    /// Somebody has told them.
    told: AtomicBool,
    failed: AtomicBool,
    /// Why, where it was none of the drivers.
    failure: Mutex<Option<Failure>>,
}

impl Stoppers {
    pub(crate) fn add(&self, stopper: impl Fn() + Send + Sync + 'static) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // One that failed before this one was there has told the others only.
        if self.failed.load(Ordering::Relaxed) {
            stopper();
        }
        all.push(Box::new(stopper));
    }

    fn stop(&self) {
        self.told.store(true, Ordering::Relaxed);
        self.all.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|stop| stop());
    }

    fn fail(&self) {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.failed.swap(true, Ordering::Relaxed) {
            all.iter().for_each(|stop| stop());
        }
    }

    /// Somebody who is no driver cannot go on. Whoever was told to end finds others gone, which is no failure.
    pub(crate) fn fail_for(&self, failure: Failure) {
        if !self.told.load(Ordering::Relaxed) {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            self.fail();
        }
    }

    /// All are to end, for whatever reason.
    pub(crate) fn is_over(&self) -> bool {
        self.told.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }
}

/// Who still writes into a directory.
pub(crate) struct Writers {
    pub(crate) directory: Directory,
    left: Mutex<usize>,
    /// All of them have left. Before, a file `done` is somebody else's, and not believed.
    pub(crate) have_left: Arc<AtomicBool>,
}

/// What follows when a stage has ended, and nothing more will come of it.
pub(crate) type Then = Box<dyn FnOnce() -> Result<(), Failure> + Send>;

impl Stages {
    /// Without any stage yet: where documents come in, and what holds them there.
    pub(crate) fn new(first: &Writers, rules: &Policy, takes_files: bool) -> Result<Stages, Failure> {
        let fed = Arc::clone(&first.have_left);
        let first = Queue::open(first.directory.path())?;
        let entrance = Entrance::new(&first.directory, limit_of(rules));
        let (trouble, stoppers) = (Bell::new()?, Arc::<Stoppers>::default());
        let bell = trouble.clone();
        stoppers.add(move || bell.ring());
        Ok(Stages { first, takes_files, entrance, fed, trouble, stoppers, threads: Vec::new() })
    }

    /// Starts the drivers of a stage.
    pub(crate) fn employ(&mut self, order: Order, then: Then, say: &Say) -> Result<(), Failure> {
        let drive = Drive::start(order, Arc::clone(say))?;
        self.stoppers.add(drive.stopper());
        let stoppers = Arc::clone(&self.stoppers);
        let wait = move || {
            let ended = drive.join().inspect_err(|_| stoppers.fail())?;
            if ended.closed {
                then().inspect_err(|_| stoppers.fail())?;
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

    /// Something to read is there when all of them are to end.
    pub(crate) fn trouble(&self) -> BorrowedFd<'_> {
        self.trouble.as_fd()
    }

    pub(crate) fn stoppers(&self) -> Arc<Stoppers> {
        Arc::clone(&self.stoppers)
    }

    /// Nothing more will come in.
    pub fn close(&self) -> Result<(), Failure> {
        self.fed.store(true, Ordering::SeqCst);
        close(&self.first.directory)
    }

    /// For another thread: first what is under way is finished, then, asked again, it goes back.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + use<> {
        let stoppers = Arc::clone(&self.stoppers);
        move || stoppers.stop()
    }

    /// Waits for the end of all stages: what each has done, in the order in which they were employed.
    pub fn join(self) -> Result<Vec<Counts>, Failure> {
        let ended = |thread: JoinHandle<Result<Counts, Failure>>| {
            thread.join().unwrap_or_else(|_| Err(Failure::new(Kind::Internal, "the thread of a stage has ended")))
        };
        let ended: Vec<Result<Counts, Failure>> = self.threads.into_iter().map(ended).collect();
        match self.stoppers.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failure) => Err(failure),
            None => ended.into_iter().collect(),
        }
    }
}

impl Writers {
    /// An earlier run may have said that nothing more will come.
    pub(crate) fn new(path: &Path) -> Result<Writers, Failure> {
        let directory = Directory::make(path)?;
        let removed = directory.remove(DONE).map(drop);
        removed.map_err(|e| Failure::io(format_args!("cannot write into {}", path.display()), &e))?;
        Ok(Writers { directory, left: Mutex::new(0), have_left: Arc::default() })
    }

    pub(crate) fn add(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// The last one says that nothing more will come.
    pub(crate) fn leave(&self) -> Result<(), Failure> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left -= 1;
        if *left > 0 {
            return Ok(());
        }
        self.have_left.store(true, Ordering::SeqCst);
        close(&self.directory)
    }
}

fn close(directory: &Directory) -> Result<(), Failure> {
    let place = directory.path().display();
    queue::close(directory).map_err(|e| Failure::io(format_args!("cannot close {place}"), &e))
}

/// How the drivers of a stage work whose documents lie here, and go there.
pub(crate) fn order(pipeline: &Pipeline, rules: &Policy, before: &Writers, next: &[PathBuf]) -> Order {
    let input = before.directory.path().to_owned();
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
        fed: Arc::clone(&before.have_left),
        ..Order::new(input, task, Policy { service: kept_for_good(&rules.service), ..rules.clone() })
    }
}

pub(crate) fn limit_of(rules: &Policy) -> Limit {
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

pub(crate) fn is_of_files(rules: &Policy) -> bool {
    match &rules.service {
        Service::Command(command) => takes_document(&command.argv),
        Service::Worker(worker) => worker_paths(worker).is_some(),
        _ => false,
    }
}

pub(crate) fn makes_output(rules: &Policy) -> bool {
    match &rules.service {
        Service::Worker(worker) => worker_paths(worker) == Some(true),
        service => service.command().is_some_and(|command| makes_document(&command.argv)),
    }
}

/// What does nothing in a directory, though somebody has set it.
pub(crate) fn tell_of_idle(rules: &Policy, say: &Say) {
    let usual = Policy::new(rules.pattern.as_str(), rules.service.clone());
    let batch = match &rules.service {
        Service::Batch(batch) => batch.size != Batch::new(batch.command.clone()).size,
        Service::Url(url) => url.size > 1,
        _ => false,
    };
    let in_flight = matches!(&rules.service, Service::Worker(worker) if worker.in_flight > 1);
    let one_each = "each of its drivers has one document at a time";
    let idle = [
        (batch, "batch_size", one_each),
        (in_flight, "in_flight", one_each),
        (rules.slots_each != usual.slots_each, "slots_each", "its drivers are its own"),
        (rules.backoff != usual.backoff, "backoff", "what failed goes to the end of the queue"),
        (rules.weight != usual.weight, "weight", "its drivers are its own"),
        (rules.dead_after != usual.dead_after, "dead_after", "drivers do not know of each other"),
    ];
    for (_, key, why) in idle.into_iter().filter(|(set, ..)| *set) {
        say(&format!("the `{key}` of {} does nothing in a directory: {why}", rules.pattern));
    }
}

const NO_OUTPUT: &str = "`to`, and neither `{out}` nor `framing = \"in-out\"` says what it writes";

/// What a directory cannot hold of a stage, if there is something.
pub(crate) fn cannot_hold(stage: &Stage, rules: &Policy) -> Option<&'static str> {
    let lacks = [
        (rules.hours.is_some(), "`hours`: nobody starts them later"),
        (rules.rate.is_some(), "`rate`: drivers do not know of each other"),
        (rules.unique.is_some(), "`unique`: a name is all the key a document has"),
        (rules.on_failure.is_some(), "`on_failure`: what failed is kept in `failed/`"),
        (!rules.enabled, "`enabled = false`: its drivers would start"),
        (!rules.notify.channels.is_empty(), "`notify`: what became of them is in the names of the files"),
        (rules.service.is_remote(), "`remote`: remote workers ask a server"),
        (is_of_files(rules) && stage.to.len() > 1, "one file that it writes, and several stages in `to`"),
        (is_of_files(rules) && !stage.to.is_empty() && !makes_output(rules), NO_OUTPUT),
    ];
    lacks.into_iter().find(|(found, _)| *found).map(|(_, what)| what)
}
