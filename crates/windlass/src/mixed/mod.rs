//! Pipelines whose stages are kept in several places: directories, data directories and tables, in any mixture.
//!
//! Stages of one store that feed each other are one part of the pipeline: a server in this process works on them in one
//! run. Between two places there is always a directory. Its documents are handed into a store as jobs, each once by a
//! unique key in the run (`entry`); what jobs hand on to a stage elsewhere becomes documents in that stage's directory,
//! each once (`exit`). A part has ended when nothing more can come into it and its run is over (`part`), and then the
//! directories behind it are told so, as by any other stage. Drivers and renames are `spool`'s; this must not decide
//! about a document or a job.

mod entry;
mod exit;
mod part;
mod tally;

use crate::config::{Loaded, Pipeline};
use crate::data_dir::DataDir;
use crate::engine::event::Follower;
use crate::engine::{EngineHandle, Event};
use crate::error::{Failure, Kind};
use crate::log::Log;
use crate::runner::handler::Handlers;
use crate::server::{Server, ServerOptions};
use crate::spool::directory::Directory;
use crate::spool::drive::{Counts, Say};
use crate::spool::pipeline::{self, RESULTS, Stages, Then, Writers, cannot_hold, is_of_files, makes_output};
use crate::store::place::StorePlace;
use entry::Entry;
use exit::Exit;
use part::Part;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tally::Tally;
use windlass_core::pipeline::Plan;
use windlass_core::policy::Policy;

/// What whoever runs a pipeline holds, in the place of its directories.
const LOCK: &str = ".running";

/// Where a stage is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Directory(PathBuf),
    Store(Home),
}

/// A store, and the data directory of the server that works on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub dir: PathBuf,
    pub store: StorePlace,
}

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Here are the directories between stores, and the results.
    pub root: PathBuf,
    /// By stage.
    pub places: Vec<Place>,
}

/// What a stage has done in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Documents(Counts),
    /// And how many documents could not become jobs.
    Jobs {
        succeeded: u64,
        failed: u64,
        aside: u64,
    },
}

/// A pipeline at work.
pub struct Line {
    pub stages: Stages,
    stations: Vec<Station>,
    servers: Vec<Server>,
    tally: Arc<Tally>,
    /// Nobody else runs a pipeline here meanwhile.
    _locks: Vec<File>,
}

/// A stage at work.
struct Station {
    name: String,
    queue: String,
    /// It has drivers: its own, or those that hand documents in.
    drives: bool,
    is_store: bool,
}

/// A pipeline and where everything of it is, before anything is opened.
struct Drawing<'p> {
    pipeline: &'p Pipeline,
    layout: Layout,
    homes: Vec<Home>,
    /// By stage: which of the homes it is in.
    stores: Vec<Option<usize>>,
    /// By stage: the first stage of its part.
    parts: Vec<usize>,
    /// By stage: what serves it.
    rules: Vec<Policy>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("stages", &self.stages).finish_non_exhaustive()
    }
}

/// Refuses what cannot be, and makes nothing.
pub fn check(loaded: &Loaded, pipeline: &Pipeline, layout: Layout) -> Result<(), Failure> {
    Drawing::new(loaded, pipeline, layout).map(drop)
}

impl Line {
    /// Opens all directories and stores and starts to work on them.
    pub fn start(loaded: &Loaded, pipeline: &Pipeline, layout: Layout, log: &Log, say: &Say) -> Result<Line, Failure> {
        let drawing = Drawing::new(loaded, pipeline, layout)?;
        let rules = &drawing.rules[0];
        let takes_files = drawing.stores[0].is_none() && is_of_files(rules);
        let mut ways = Ways::default();
        let locks = drawing.lock()?;
        let first = ways.to(&drawing.directory(0))?;
        let stages = Stages::new(&first, rules, takes_files)?;
        let mut line = Line { stages, stations: Vec::new(), servers: Vec::new(), tally: Arc::default(), _locks: locks };
        match line.begin(loaded, &drawing, &mut ways, log, say) {
            Ok(()) => Ok(line),
            Err(failure) => {
                line.stages.stopper()();
                // Why it could not begin is what is told; that it ends is only tidy.
                let _told = line.join();
                Err(failure)
            }
        }
    }

    fn begin(
        &mut self,
        loaded: &Loaded,
        drawing: &Drawing<'_>,
        ways: &mut Ways,
        log: &Log,
        say: &Say,
    ) -> Result<(), Failure> {
        let stages = 0..drawing.rules.len();
        let mut parts: HashMap<usize, Arc<Part>> = HashMap::new();
        for number in 0..drawing.homes.len() {
            let server = self.serve(loaded, drawing, number, ways, log)?;
            for first in stages.clone().filter(|stage| drawing.begins_part_in(*stage, number)) {
                let name = format!("{} from {}", drawing.pipeline.name, drawing.pipeline.stages[first].name);
                let after = drawing.exits(|stage| drawing.parts[stage] == first);
                let after = after.into_iter().map(|exit| ways.to(&drawing.directory(exit)));
                let after: Vec<Arc<Writers>> = after.collect::<Result<_, Failure>>()?;
                let entries = stages.clone().filter(|stage| drawing.parts[*stage] == first && drawing.is_entry(*stage));
                let part = Part::open(server.clone(), &name, entries.count(), after, self.stages.stoppers())?;
                parts.insert(first, Arc::new(part));
            }
        }
        for stage in stages {
            let part = parts.get(&drawing.parts[stage]).filter(|_| drawing.is_entry(stage));
            let drives = match (drawing.stores[stage], part) {
                (None, _) => {
                    pipeline::tell_of_idle(&drawing.rules[stage], say);
                    let next = drawing.next(stage);
                    let after: Vec<Arc<Writers>> =
                        next.iter().map(|path| ways.to(path)).collect::<Result<_, Failure>>()?;
                    after.iter().for_each(|writers| writers.add());
                    let before = ways.to(&drawing.directory(stage))?;
                    let order = pipeline::order(drawing.pipeline, &drawing.rules[stage], &before, &next);
                    let then: Then = Box::new(move || after.iter().try_for_each(|writers| writers.leave()));
                    self.stages.employ(order, then, say)?;
                    true
                }
                (Some(_), Some(part)) => {
                    let before = ways.to(&drawing.directory(stage))?;
                    let entry = Entry::new(&before, &drawing.rules[stage], Arc::clone(part), &self.tally)?;
                    let then = Arc::clone(part);
                    self.stages.employ(entry.order(), Box::new(move || then.an_entry_has_ended()), say)?;
                    part.note_way(&drawing.directory(stage))?;
                    true
                }
                (Some(_), None) => false,
            };
            let (name, queue) = (drawing.pipeline.stages[stage].name.clone(), drawing.rules[stage].pattern.clone());
            self.stations.push(Station { name, queue, drives, is_store: drawing.stores[stage].is_some() });
        }
        Ok(())
    }

    /// Starts the server of a store; what its jobs hand on to stages elsewhere becomes documents.
    fn serve(
        &mut self,
        loaded: &Loaded,
        drawing: &Drawing<'_>,
        number: usize,
        ways: &mut Ways,
        log: &Log,
    ) -> Result<EngineHandle, Failure> {
        let of_it = |stage: usize| drawing.stores[stage] == Some(number);
        let stages = (0..drawing.rules.len()).filter(|stage| of_it(*stage));
        let mut policies: Vec<Policy> = stages.map(|stage| drawing.rules[stage].clone()).collect();
        // What leads to a stage elsewhere goes by that stage's name, and is none of its jobs.
        let own: HashSet<String> = policies.iter().map(|policy| policy.pattern.clone()).collect();
        let (mut handlers, mut slots) = (Handlers::new(), 0);
        for exit in drawing.exits(of_it) {
            let directory = ways.to(&drawing.directory(exit))?.directory.clone();
            let exit = Exit::new(&directory, &drawing.rules[exit], self.stages.stoppers())?;
            let (served, handled) = exit.serve(handlers);
            slots += served.iter().map(|policy| policy.slots).sum::<u32>();
            policies.extend(served);
            handlers = handled;
        }
        let (home, config) = (&drawing.homes[number], &loaded.config);
        let server = Server::start(ServerOptions {
            store: home.store.clone(),
            policies,
            // Who waits for room in a directory must not keep those from working who would make some.
            slots: config.slots + slots,
            memory: config.memory(),
            serves: true,
            drain: config.server.drain,
            archive: config.archive,
            handlers: handlers.on_threads(slots as usize),
            log: log.clone(),
            ..ServerOptions::new(DataDir::open(&home.dir)?)
        })?;
        let handle = server.handle().clone();
        self.servers.push(server);
        let (told, again) = (handle.clone(), AtomicBool::new(false));
        self.stages.stoppers().add(move || {
            let order = if again.swap(true, Ordering::Relaxed) { Event::Halt } else { Event::Drain };
            // An engine that has ended needs no order.
            let _ended = told.send(order);
        });
        let tally = Arc::clone(&self.tally);
        let follower = Follower(Box::new(move |what| {
            tally.hear(&what, &own);
            true
        }));
        handle.ask(|answer| Event::Watch { follower, answer })?;
        Ok(handle)
    }

    /// Waits for the end of everything: what each stage has done, in their order.
    pub fn join(self) -> Result<Vec<(String, Done)>, Failure> {
        let counts = self.stages.join();
        let ended: Vec<Result<(), Failure>> = self.servers.into_iter().map(Server::stop).collect();
        // That a server failed is why its stages could not go on.
        ended.into_iter().collect::<Result<Vec<()>, Failure>>()?;
        let mut counts = counts?.into_iter();
        let done = self.stations.into_iter().map(|station| {
            let by_drivers = if station.drives { counts.next().unwrap_or_default() } else { Counts::default() };
            let done = match station.is_store {
                false => Done::Documents(by_drivers),
                true => {
                    let (succeeded, failed) = self.tally.of(&station.queue);
                    Done::Jobs { succeeded, failed, aside: by_drivers.aside }
                }
            };
            (station.name, done)
        });
        Ok(done.collect())
    }
}

impl<'p> Drawing<'p> {
    /// Draws it, and refuses what cannot be before anything is made.
    fn new(loaded: &Loaded, pipeline: &'p Pipeline, layout: Layout) -> Result<Drawing<'p>, Failure> {
        let refuse = |stage: usize, place: &str, what: &str| {
            let name = &pipeline.stages[stage].name;
            let text = format!("the stage {name} of {} cannot be {place}: it has {what}", pipeline.name);
            Failure::new(Kind::Config, text)
        };
        let plan = Plan::new(&pipeline.stages).map_err(|fault| Failure::new(Kind::Config, fault.to_string()))?;
        let (homes, stores) = layout.stores();
        let other = "an embedded store or a table can hold it";
        let parts = plan.parts(&stores).map_err(|stage| {
            let what = "a way back to itself through a directory: no file `done` could ever say that it has ended";
            let place = if stores[stage].is_none() { "a directory" } else { "apart from the others" };
            refuse(stage, place, what).hint("keep all stages of the circle in one store")
        })?;
        let drawing = Drawing { pipeline, layout, homes, stores, parts, rules: loaded.config.rules_of(pipeline) };
        for (at, (stage, rules)) in pipeline.stages.iter().zip(&pipeline.rules).enumerate() {
            let cannot = match drawing.stores[at] {
                None => cannot_hold(stage, rules).map(|what| refuse(at, "a directory", what).hint(other)),
                Some(_) if is_of_files(rules) => {
                    let what = "a command that is told of files, and a job is none";
                    Some(refuse(at, "in a store", what).hint("keep it in a directory: store = \"dir:PATH\""))
                }
                Some(_) if rules.unique.is_some() && drawing.is_entry(at) => {
                    let what = "`unique`: the documents that become its jobs are told apart by a key already";
                    Some(refuse(at, "behind a directory", what))
                }
                Some(_) => None,
            };
            let cannot = cannot.or_else(|| {
                let between = drawing.stores[at].is_none() || drawing.is_entry(at);
                let what = "the name of the directory of the results";
                (between && stage.name == RESULTS).then(|| refuse(at, "a directory", what))
            });
            cannot.map_or(Ok(()), Err)?;
        }
        Ok(drawing)
    }

    /// Takes the places of its directories for this process: two that run a pipeline in one place would each say `done`
    /// to the stages of the other.
    fn lock(&self) -> Result<Vec<File>, Failure> {
        let directories = (0..self.rules.len()).filter(|stage| self.stores[*stage].is_none() || self.is_entry(*stage));
        let places = directories.filter_map(|stage| self.directory(stage).parent().map(Path::to_owned));
        let places: BTreeSet<PathBuf> = places.chain([self.layout.root.clone()]).collect();
        let mut held: Vec<(PathBuf, File)> = Vec::new();
        for place in places {
            let place = Directory::make(&place)?.path().to_owned();
            if held.iter().any(|(known, _)| *known == place) {
                continue;
            }
            let path = place.join(LOCK);
            let cannot = |e: std::io::Error| Failure::io(format_args!("cannot use {}", path.display()), &e);
            let file = File::options().create(true).append(true).open(&path).map_err(cannot)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let text = format!("another process runs a pipeline here: it holds {}", path.display());
                    return Err(Failure::new(Kind::TryLater, text));
                }
                // A file system without locks keeps nobody out.
                Ok(()) | Err(_) => held.push((place, file)),
            }
        }
        Ok(held.into_iter().map(|(_, file)| file).collect())
    }

    /// Where the documents of a stage wait: those of a directory in it, those for a store in front of it.
    fn directory(&self, stage: usize) -> PathBuf {
        match &self.layout.places[stage] {
            Place::Directory(path) => path.clone(),
            Place::Store(_) => self.layout.root.join(&self.pipeline.stages[stage].name),
        }
    }

    /// The directories that a stage in a directory writes to.
    fn next(&self, stage: usize) -> Vec<PathBuf> {
        let after: Vec<PathBuf> = self.after(stage).map(|next| self.directory(next)).collect();
        let rules = &self.rules[stage];
        let makes_results = after.is_empty() && is_of_files(rules) && makes_output(rules);
        if makes_results { vec![self.layout.root.join(RESULTS)] } else { after }
    }

    fn after(&self, stage: usize) -> impl Iterator<Item = usize> + '_ {
        let stages = &self.pipeline.stages;
        stages[stage].to.iter().filter_map(|to| stages.iter().position(|other| other.name == *to))
    }

    /// A stage of a store into which documents come: the first one, and those behind stages that are kept elsewhere.
    fn is_entry(&self, stage: usize) -> bool {
        let fed_by =
            |before: usize| self.parts[before] != self.parts[stage] && self.after(before).any(|to| to == stage);
        self.stores[stage].is_some() && (stage == 0 || (0..self.rules.len()).any(fed_by))
    }

    /// The first stage of a part that is kept in this store.
    fn begins_part_in(&self, stage: usize, store: usize) -> bool {
        self.stores[stage] == Some(store) && self.parts[stage] == stage
    }

    /// The stages elsewhere to which these hand on, each once.
    fn exits(&self, from: impl Fn(usize) -> bool) -> Vec<usize> {
        let stages = (0..self.rules.len()).filter(|stage| from(*stage));
        let leads_out = |from: usize| self.after(from).filter(move |to| self.parts[*to] != self.parts[from]);
        let exits: BTreeSet<usize> = stages.flat_map(leads_out).collect();
        exits.into_iter().collect()
    }
}

impl Layout {
    /// The stores, each once, and by stage which it is in.
    fn stores(&self) -> (Vec<Home>, Vec<Option<usize>>) {
        let mut homes: Vec<Home> = Vec::new();
        let mut by_stage = Vec::new();
        for place in &self.places {
            by_stage.push(match place {
                Place::Directory(_) => None,
                Place::Store(home) => {
                    if !homes.contains(home) {
                        homes.push(home.clone());
                    }
                    homes.iter().position(|known| known == home)
                }
            });
        }
        (homes, by_stage)
    }
}

/// The directories, each with those who write into it.
#[derive(Default)]
struct Ways(Vec<(PathBuf, Arc<Writers>)>);

impl Ways {
    fn to(&mut self, path: &Path) -> Result<Arc<Writers>, Failure> {
        if let Some((_, known)) = self.0.iter().find(|(known, _)| known == path) {
            return Ok(Arc::clone(known));
        }
        let writers = Arc::new(Writers::new(path)?);
        self.0.push((path.to_owned(), Arc::clone(&writers)));
        Ok(writers)
    }
}
