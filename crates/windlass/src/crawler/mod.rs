//! The crawler: fetchers and parsers that feed each other until a site is done.
//!
//! It is a program on the library's public parts, with an engine of its own in the directory it saves to: two queues,
//! `fetch` and `parse`, in one run. The frontier is the jobs of that run, each address once by its unique key, and
//! nothing of it is in memory: a crawl that was killed goes on where it was. It ends when the run does. The pure parts
//! first: `page_url` (one form of an address), `robots`, `links`, `sitemap`, `scope`, `place` (one file for an
//! address); then `distances`, `downloader`, `stages` and `report`. It must not know the command line.

mod distances;
mod downloader;
mod links;
mod note;
mod order;
mod page_url;
mod place;
mod report;
mod robots;
mod scope;
mod sitemap;
mod stages;
mod target;

pub use order::{Order, PER_HOST, USER_AGENT, Wishes};
pub use report::{Counts, PageLine, Report};

use crate::client::{Client, PushOptions};
use crate::clock;
use crate::data_dir::DataDir;
use crate::engine::event::{Answer, OpenRun};
use crate::engine::{EngineHandle, Event};
use crate::error::{Failure, Kind};
use crate::runner::handler::Handlers;
use crate::server::{ArchiveOptions, Server, ServerOptions};
use crate::store::embedded::View;
use crate::store::{RunInfo, StoreView};
use distances::Distances;
use downloader::{AskedFor, Downloader, Ending};
use note::Note;
use stages::{FETCH, PARSE, PARTIAL, Stages};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use target::Target;
use windlass_core::job::{QueueName, RunId};
use windlass_core::life_cycle::State;
use windlass_core::particulars::Scope;
use windlass_core::pipeline::Flow;
use windlass_core::policy::{Backoff, Policy, Service};

/// Where its engine lives, in the directory that it saves to.
const STATE: &str = ".windlass";
/// And there, how far from the start pages are.
const DISTANCES: &str = "distances";
/// The pipeline that its two stages are.
const PIPELINE: &str = "crawl";
/// Batches of pages at once. Each may wait for its slowest page, so there are more of them than hosts have places.
const FETCH_SLOTS: u32 = 16;
const FETCH_BATCH: u32 = 32;
const PARSE_SLOTS: u32 = 2;
const PARSE_BATCH: u32 = 32;
/// How often a page that fails is asked for.
const ATTEMPTS: u32 = 3;
const BACKOFF: Backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(60) };
/// What was fetched is known for so long: longer than any crawl takes.
const REMEMBERED: Duration = Duration::from_secs(366 * 24 * 3600);
/// Runs of one directory that are looked through for an unfinished one.
const RUNS_MOST: usize = 1000;

/// A crawl under way.
#[derive(Debug)]
pub struct Crawl {
    order: Arc<Order>,
    dir: DataDir,
    server: Server,
    stages: Arc<Stages>,
    run: RunInfo,
    continued: bool,
}

impl Crawl {
    /// Begins, or goes on with what an earlier process left unfinished. `ended` is told of the end, or that the engine
    /// was stopped before it.
    pub fn begin(
        order: Order,
        ended: impl FnOnce(Result<RunInfo, Failure>) + Send + 'static,
    ) -> Result<Crawl, Failure> {
        let order = Arc::new(order);
        let dir = prepare(&order.out)?;
        let continued = unfinished(&dir, &order)?.is_some();
        let distances = Distances::open(&order.out.join(STATE).join(DISTANCES), order.scope.depth.is_some(), continued);
        let asked_for = Arc::new(AskedFor::new(order.max_pages));
        let stages = Arc::new(Stages {
            downloader: Downloader::start(Arc::clone(&order), Arc::clone(&asked_for))?,
            distances: distances.map_err(|e| Failure::io("cannot make room for the distances of pages", &e))?,
            asked_for,
            partial: AtomicU64::new(0),
            ready: OnceLock::new(),
            order: Arc::clone(&order),
        });
        let server = Server::start(options(&dir, &stages))?;
        let opened = open(server.handle(), &order).and_then(|run| {
            let crawl = Crawl { order, dir, server, stages: Arc::clone(&stages), run, continued };
            crawl.recall().map(|()| crawl)
        });
        // Whatever came of it, nobody waits any longer.
        let _once = stages.ready.set(());
        let crawl = opened?;
        crawl.seed(ended)?;
        Ok(crawl)
    }

    /// Counts what an earlier process had asked for, where that has a limit. What failed for good was given back.
    fn recall(&self) -> Result<(), Failure> {
        if !self.continued || self.order.max_pages.is_none() {
            return Ok(());
        }
        self.server.handle().ask(|answer| Event::CatchUp { answer })?;
        let mut asked = BTreeSet::new();
        report::each_page(&self.dir.archive(), self.run.id, |target, record| {
            let skipped = Note::read(&record.message).and_then(|note| note.skipped);
            if record.state == State::Succeeded && skipped.is_none() {
                asked.insert(target.url);
            }
        })?;
        self.stages.asked_for.recall(asked.len() as u64);
        Ok(())
    }

    /// The addresses to begin with, and the seal: from now on only pages make more of them.
    fn seed(&self, ended: impl FnOnce(Result<RunInfo, Failure>) + Send + 'static) -> Result<(), Failure> {
        let (handle, run) = (self.server.handle(), self.run.id);
        let mut end = End(Some(ended));
        handle.send(Event::AwaitRun { run, answer: Answer::new(move |result| end.tell(result)) })?;
        if self.run.counts.sealed {
            return Ok(());
        }
        let (client, limited) = (Client::new(self.dir.clone()), self.order.scope.depth.is_some());
        for url in self.order.seeds() {
            let options = PushOptions { run: Some(run), ..PushOptions::default() };
            client.push(FETCH, &Target::start(url, limited).data(), options)?;
        }
        handle.ask(|answer| Event::SealRun { run, answer })
    }

    /// True where an earlier process had begun it.
    pub fn is_continued(&self) -> bool {
        self.continued
    }

    pub fn run(&self) -> RunId {
        self.run.id
    }

    /// The directory that pages are saved to.
    pub fn out(&self) -> &Path {
        &self.order.out
    }

    /// How the run stands now.
    pub fn info(&self) -> Result<Option<RunInfo>, Failure> {
        Ok(View::open(&self.dir.state_db())?.run(self.run.id)?)
    }

    /// Asks for no more pages; what is under way ends.
    pub fn drain(&self) {
        self.stages.downloader.end(Ending::Drain);
        self.server.drain();
    }

    /// Ends at once.
    pub fn halt(&self) {
        self.stages.downloader.end(Ending::Now);
        self.server.halt();
    }

    /// Waits for the end of an engine that was told to stop.
    pub fn join(self) -> Result<(), Failure> {
        self.server.join()
    }

    /// Ends the engine of a run that has ended, and tells what it came to.
    pub fn report(self) -> Result<Report, Failure> {
        self.server.handle().ask(|answer| Event::CatchUp { answer })?;
        let ended = self.info()?.and_then(|run| run.ended_at).unwrap_or_else(clock::now);
        let report = Report::of(&self.order, &self.dir.archive(), self.run.id, ended.since(self.run.created));
        self.server.stop()?;
        report
    }
}

/// Tells of the end exactly once: an engine that is stopped drops its answer.
struct End<F: FnOnce(Result<RunInfo, Failure>)>(Option<F>);

impl<F: FnOnce(Result<RunInfo, Failure>)> End<F> {
    fn tell(&mut self, result: Result<RunInfo, Failure>) {
        if let Some(ended) = self.0.take() {
            ended(result);
        }
    }
}

impl<F: FnOnce(Result<RunInfo, Failure>)> Drop for End<F> {
    fn drop(&mut self) {
        self.tell(Err(Failure::new(Kind::TryLater, "the engine of the crawl has ended before the crawl")));
    }
}

/// The directories of a crawl; what an earlier process had not finished writing goes.
fn prepare(out: &Path) -> Result<DataDir, Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(Kind::CannotCreate, format!("cannot make the directory {}: {e}", out.display()))
    };
    let partial = out.join(PARTIAL);
    std::fs::create_dir_all(out).map_err(failed)?;
    let dir = DataDir::open(&out.join(STATE))?;
    // Whoever crawls here now has the lock, and its partial files.
    drop(dir.lock()?);
    match std::fs::remove_dir_all(&partial) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => std::fs::create_dir_all(&partial).map_err(failed)?,
    }
    Ok(dir)
}

/// The run that an earlier process left; one that wanted something else is in the way.
fn unfinished(dir: &DataDir, order: &Order) -> Result<Option<RunInfo>, Failure> {
    if !dir.state_db().exists() {
        return Ok(None);
    }
    let runs = View::open(&dir.state_db())?.runs(RUNS_MOST)?;
    let Some(run) = runs.into_iter().find(|run| run.ended_at.is_none()) else { return Ok(None) };
    if run.name != order.name {
        let out = order.out.display();
        let text = format!("{out} holds an unfinished crawl of other addresses, or with other patterns or limits");
        let hint = format!("finish it with its own command, give another --out, or give it up: rm -r {out}/{STATE}");
        return Err(Failure::new(Kind::Conflict, text).hint(hint));
    }
    Ok(Some(run))
}

fn open(handle: &EngineHandle, order: &Order) -> Result<RunInfo, Failure> {
    let request = OpenRun { name: order.name.clone(), service: None, terms: Default::default() };
    handle.ask(|answer| Event::OpenRun { request, answer })
}

fn options(dir: &DataDir, stages: &Arc<Stages>) -> ServerOptions {
    // A cycle of two stages: what a page links to and leads to is fetched, what was fetched is parsed.
    let served = |name: &str, to: &[&str], slots, batch| Policy {
        slots,
        attempts: ATTEMPTS,
        backoff: BACKOFF,
        flow: Some(Flow::in_circle(PIPELINE, name, to.iter().filter_map(|to| QueueName::new(to.as_bytes()).ok()))),
        ..Policy::new(name, Service::Handler { name: name.into(), batch })
    };
    let (fetchers, parsers) = (Arc::clone(stages), Arc::clone(stages));
    let handlers = Handlers::new()
        .on(FETCH, move |batch| fetchers.fetch(batch))
        .on(PARSE, move |batch| parsers.parse(batch))
        .on_threads((FETCH_SLOTS + PARSE_SLOTS) as usize);
    let archive = ArchiveOptions { keep_succeeded: REMEMBERED, keep_failed: REMEMBERED, ..ArchiveOptions::default() };
    // Whatever links to a page, and however often it is begun again, the page has one job in the run.
    let fetch = Policy { unique: Some(Scope::Run), ..served(FETCH, &[PARSE, FETCH], FETCH_SLOTS, FETCH_BATCH) };
    ServerOptions {
        policies: vec![fetch, served(PARSE, &[FETCH], PARSE_SLOTS, PARSE_BATCH)],
        slots: FETCH_SLOTS + PARSE_SLOTS,
        handlers,
        archive,
        ..ServerOptions::new(dir.clone())
    }
}
