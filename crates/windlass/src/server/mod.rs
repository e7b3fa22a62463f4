//! One running server: the lock, the store, the engine and everything beside it, put together and taken apart.
//!
//! `windlass serve` is this with a config; `windlass run` and verbs that find no server are this for their own
//! duration. It owns the order of starting and stopping. It must not decide about jobs.

mod ground;
mod live_config;
mod options;
mod reads;
mod replay;

pub use ground::Ground;
pub use live_config::LiveConfig;
pub use options::{ArchiveOptions, ReadConfig, ServerOptions};

use crate::archiver::{Archiver, ArchiverOptions, Told};
use crate::audit::AuditLog;
use crate::clock;
use crate::clock::watch::ClockWatch;
use crate::data_dir::{DataDir, Lock};
use crate::engine::drive::{Driver, retain_every};
use crate::engine::{Condition, Engine, EngineHandle, EngineOptions, Event, IdSource, TurnTimes};
use crate::error::{Failure, Kind};
use crate::handlers_dir::{self, HandlersDir};
use crate::http::{self, OpenView, Reads};
use crate::inbox::ingest::{Delivered, Ingest, IngestOptions};
use crate::log::Log;
use crate::memcached::Copies;
use crate::nudge::Nudges;
use crate::runner::front::Runners;
use crate::runner::launcher::slots;
use crate::runner::progress::{Board, Said};
use crate::runner::remote::Counter;
use crate::runner::{Finished, Runner};
use crate::spans::Spans;
use crate::store::embedded::BodyWriter;
use crate::store::place::StorePlace;
use crate::store::sql::SqlOptions;
use crate::store::{Cursor, Evidence, Lot, Recovered, Store, StoreError};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A server in this process.
pub struct Server {
    handle: EngineHandle,
    http: Option<http::Server>,
    engine: Option<JoinHandle<Result<(), Failure>>>,
    recovered: Recovered,
    times: Arc<TurnTimes>,
    config: Arc<LiveConfig>,
    board: Arc<Board>,
    told: Told,
    view: OpenView,
    nudges: Nudges,
    clock_watch: Option<ClockWatch>,
    lock: Lock,
}

impl Server {
    /// Starts to serve the place that the options name.
    pub fn start(options: ServerOptions) -> Result<Server, Failure> {
        match options.store.clone() {
            StorePlace::Embedded => Server::start_on(options, Ground::embedded),
            StorePlace::Table(table) => {
                let (keep_completed, slots, memory) = (options.archive.keep_succeeded, options.slots, options.memory);
                let controls = options.keeps_house;
                let opened = SqlOptions { keep_completed, slots, memory, controls, ..table.options("") };
                Server::start_on(options, |dir| Ground::table(&table, dir, opened))
            }
        }
    }

    /// Takes the lock, proves dead what an earlier server left running, opens the store and starts to serve.
    pub fn start_on<S: Store + Send + 'static>(
        options: ServerOptions,
        open: impl FnOnce(&DataDir) -> Result<Ground<S>, Failure>,
    ) -> Result<Server, Failure> {
        let lock = options.dir.lock()?;
        Server::start_locked(lock, options, open).map_err(not_of_the_lock)
    }

    fn start_locked<S: Store + Send + 'static>(
        lock: Lock,
        options: ServerOptions,
        open: impl FnOnce(&DataDir) -> Result<Ground<S>, Failure>,
    ) -> Result<Server, Failure> {
        ground::belongs(&options.dir, &options.store)?;
        let evidence = slots::prove_dead(&options.dir.run())?;
        let Ground { store, origin, same_boot, view, bodies, speaks } = open(&options.dir)?;
        let (events, receiver) = channel();
        let ids = Arc::new(IdSource::new(origin));
        let engine_options = engine_options(&options, &ids)?;
        let begun = |job, start| evidence.begun(job, start);
        let evidence = Evidence { begun: &begun, elsewhere: &|_, _| false, same_boot, convicted: Evidence::UNTOLD };
        let (mut engine, recovered) = Engine::new(store, engine_options, evidence, clock::now())?;
        if engine.condition() == Condition::NoSpace {
            options.log.warn("no space left: nothing is admitted or started until there is");
        }
        let trouble = Trouble::new(&events, &options);
        let (board, counter) = (Arc::<Board>::default(), Arc::<Counter>::default());
        let told = start_told(&options, &board)?;
        let archiver = start_archiver(&options, told.clone(), &events, &trouble)?;
        if let Some(turn) = replay::replay(engine.store(), &archiver)? {
            engine.archive_is_behind(turn);
        }
        let log = options.log.clone();
        board.workers().heard_by(move |what| log.warn(what));
        // Its files are told first of all, before anything could be given to a table that stands behind them.
        let handlers_dir = watch_handlers(&options, Arc::clone(&board), &events)?;
        let inbox = Inbox { cursors: view()?.cursors()?, bodies };
        let ingest = start_ingest(&options, inbox, &events, handlers_dir.clone(), &trouble)?;
        let mut runner = start_runners(&options, Arc::clone(&board), Arc::clone(&counter), &events, &trouble)?;
        // Known before anybody can ask: a worker that speaks for one must not be told that it is over.
        Runner::start(&mut runner, engine.take_resumed());
        let speaks = speaks.filter(|_| options.serves);
        let nudges = Nudges::start(options.nudge, speaks, &events, &options.log)?;
        let clock_watch = if options.serves { ClockWatch::start(events.clone())? } else { None };
        let handle = EngineHandle::new(events, ids);
        let (reload, current) = (options.reload.clone(), options.config.clone());
        let config = Arc::new(LiveConfig::new(reload, current, options.log.clone(), handlers_dir));
        let reads = reads::reads(&options.dir, Arc::clone(&view), Arc::clone(&board));
        let http = start_http(&options, reads, counter, &handle, &config)?;
        board.serve_at(http.address());
        let times = Arc::<TurnTimes>::default();
        let driver = Driver {
            engine,
            events: receiver,
            runner: Box::new(runner),
            archiver,
            audit: AuditLog::new(&options.dir),
            ingest,
            log: options.log.clone(),
            keep_failed: options.archive.keep_failed,
            keeps_house: options.keeps_house,
            retain_at: clock::now(),
            retain_every: retain_every(options.archive.keep_succeeded.min(options.archive.keep_failed)),
            times: Arc::clone(&times),
            shown: handle.shown(),
        };
        let dir = options.dir.clone();
        let turns = move || driver.run().and_then(|()| trouble.verdict()).map_err(|failure| explained(failure, &dir));
        let engine = std::thread::Builder::new()
            .name("engine".into())
            .spawn(turns)
            .map_err(|e| Failure::io("cannot start the engine's thread", &e))?;
        let (http, engine) = (Some(http), Some(engine));
        Ok(Server { handle, http, engine, recovered, times, config, board, told, view, nudges, clock_watch, lock })
    }

    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// A view of the committed state.
    pub fn view(&self) -> &OpenView {
        &self.view
    }

    /// The config it runs by.
    pub fn config(&self) -> &Arc<LiveConfig> {
        &self.config
    }

    /// What runs says of itself, and who is at what.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Where it listens, in words.
    pub fn address(&self) -> String {
        let Some(http) = &self.http else { return String::new() };
        let tcp = http.address().map(|address| format!(" http://{address}")).unwrap_or_default();
        format!("unix:{}{tcp}", http.socket().display())
    }

    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// How long its turns took so far.
    pub fn turn_times(&self) -> &TurnTimes {
        &self.times
    }

    /// Starts nothing more; ends when what runs has ended, or is put back after the drain time.
    pub fn drain(&self) {
        // An engine that has ended already needs no order.
        let _ = self.handle.send(Event::Drain);
    }

    /// Ends at once: what runs is killed and goes back without a charge.
    pub fn halt(&self) {
        let _ = self.handle.send(Event::Halt);
    }

    /// Waits for the engine's end, then takes the rest apart; the lock goes last.
    pub fn join(mut self) -> Result<(), Failure> {
        let panicked = || Failure::new(Kind::Internal, "the engine's thread panicked");
        let ended = self.engine.take().map_or(Ok(()), |engine| engine.join().unwrap_or_else(|_| Err(panicked())));
        self.config.stop();
        drop(self.nudges);
        drop(self.clock_watch);
        if let Some(http) = self.http.take() {
            http.stop();
        }
        // The archiver has ended with the engine: no more of them come.
        self.told.spans.flush();
        self.told.copies.flush();
        drop(self.lock);
        ended
    }

    /// For a server that only answers: whoever has asked it something is answered before its engine ends.
    pub fn retire(mut self) -> Result<(), Failure> {
        if let Some(http) = self.http.take() {
            http.stop();
        }
        self.stop()
    }

    /// Drains and waits.
    pub fn stop(self) -> Result<(), Failure> {
        self.drain();
        self.join()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("recovered", &self.recovered).finish_non_exhaustive()
    }
}

/// Whoever is to try later waits until the directory's lock is free. Where this process has it, there is something else
/// to wait for, a database that is away, and waiting for the lock would be trying without a pause.
fn not_of_the_lock(failure: Failure) -> Failure {
    match failure.kind {
        Kind::TryLater => Failure { kind: Kind::Shortage, ..failure },
        _ => failure,
    }
}

/// The store says of many things only that reading or writing failed: the directory itself is asked why.
fn explained(failure: Failure, dir: &DataDir) -> Failure {
    let Some(error) = Some(dir).filter(|_| failure.kind == Kind::Io).and_then(DataDir::write_error) else {
        return failure;
    };
    let root = dir.root().display();
    let text =
        format!("cannot write in the data directory {root}: {error}, expected a writable file system; {failure}");
    Failure { text, ..failure }.hint("mend the file system and start again: everything accepted is kept")
}

/// The first failure of a part beside the engine: it stops the server, and is its verdict.
#[derive(Clone)]
struct Trouble {
    first: Arc<Mutex<Option<Failure>>>,
    events: Sender<Event>,
    log: Log,
}

impl Trouble {
    fn new(events: &Sender<Event>, options: &ServerOptions) -> Trouble {
        Trouble { first: Arc::default(), events: events.clone(), log: options.log.clone() }
    }

    fn fatal(&self, failure: Failure) {
        self.log.error(failure.text.clone());
        if let Ok(mut first) = self.first.lock() {
            first.get_or_insert(failure);
        }
        // If the engine has ended there is nothing left to halt.
        let _ = self.events.send(Event::Halt);
    }

    fn verdict(&self) -> Result<(), Failure> {
        let first = self.first.lock().ok().and_then(|mut first| first.take());
        first.map_or(Ok(()), Err)
    }
}

/// Who is told of attempts. Who serves nothing finishes nothing that there could be spans of, and runs nothing that
/// could say anything.
fn start_told(options: &ServerOptions, board: &Arc<Board>) -> Result<Told, Failure> {
    let (config, log) = (&options.config.config, options.log.clone());
    if !options.serves {
        return Ok(Told::log(log));
    }
    let said = Arc::downgrade(board);
    let look = move |job| said.upgrade()?.of(job).map(|said: Said| said.words());
    let copies = Copies::start(config.progress.clone(), log.clone(), Box::new(look))?;
    board.copied_to(copies.clone());
    Ok(Told { spans: Spans::start(config.traces.clone(), log.clone())?, log, copies })
}

fn start_archiver(
    options: &ServerOptions,
    told: Told,
    events: &Sender<Event>,
    trouble: &Trouble,
) -> Result<Archiver, Failure> {
    let archive = ArchiverOptions {
        keep_bodies: options.archive.bodies,
        keep_succeeded: options.archive.keep_succeeded,
        keep_failed: options.archive.keep_failed,
        max_bytes: options.archive.max_size,
        ..ArchiverOptions::new(options.dir.archive(), options.dir.output())
    };
    let (events, trouble) = (events.clone(), trouble.clone());
    let archived = move |turn| {
        // An engine that has ended finds the turn in the archive at its next start.
        let _ = events.send(Event::Archived { turn });
    };
    let failed = move |failure| trouble.fatal(failure);
    Archiver::spawn(archive, told, Box::new(archived), Box::new(failed))
}

/// What the reader of the inbox needs of the store.
struct Inbox {
    cursors: Vec<Cursor>,
    bodies: Option<BodyWriter>,
}

/// Where there is a directory of handlers, whoever waits for the inbox to be read waits for a look through that, too.
fn start_ingest(
    options: &ServerOptions,
    inbox: Inbox,
    events: &Sender<Event>,
    handlers_dir: Option<Arc<HandlersDir>>,
    trouble: &Trouble,
) -> Result<crate::inbox::ingest::IngestHandle, Failure> {
    let Inbox { cursors, bodies } = inbox;
    let (events, trouble) = (events.clone(), trouble.clone());
    let deliver = move |delivered| match delivered {
        Delivered::Lot(lot) => {
            let (events, trouble) = (events.clone(), trouble.clone());
            let then = move |placed: Result<Lot, StoreError>| match placed {
                // What an ended engine did not take is read again from the cursor.
                Ok(lot) => drop(events.send(Event::Ingested(lot))),
                Err(error) => trouble.fatal(error.into()),
            };
            match &bodies {
                Some(bodies) => bodies.place(lot, then),
                None => then(Ok(lot)),
            }
        }
        Delivered::ReadToEnd { waiter } => {
            let events = events.clone();
            let read = move || drop(events.send(Event::InboxRead { waiter }));
            match &handlers_dir {
                Some(handlers_dir) => handlers_dir.after_look(read),
                None => read(),
            }
        }
        Delivered::Trouble(failure) => trouble.log.warn(failure.text),
        Delivered::Ended(failure) => trouble.fatal(failure),
    };
    let (inbox, quarantine) = (options.dir.inbox(), options.dir.quarantine());
    Ingest::spawn(IngestOptions { inbox, quarantine, cursors, deliver: Box::new(deliver) })
}

fn start_runners(
    options: &ServerOptions,
    board: Arc<Board>,
    counter: Arc<Counter>,
    events: &Sender<Event>,
    trouble: &Trouble,
) -> Result<Runners, Failure> {
    let (events, crews) = (events.clone(), events.clone());
    let crewed = move |table: &str, alive: u32| {
        // As below.
        let _ = crews.send(Event::Workers { table: table.to_owned(), alive });
    };
    let finished = move |finished: Finished| {
        // An engine that has ended has no flights: the claim is taken back at the next start.
        let _ = events.send(Event::Finished(finished));
    };
    let dir = options.serves.then_some(&options.dir);
    let trouble = trouble.clone();
    let fatal = Box::new(move |failure| trouble.fatal(failure));
    Runners::start(dir, board, options.handlers.clone(), counter, Arc::new(finished), Box::new(crewed), fatal)
}

fn engine_options(options: &ServerOptions, ids: &Arc<IdSource>) -> Result<EngineOptions, Failure> {
    Ok(EngineOptions {
        policies: options.policies.clone(),
        slots: options.slots,
        memory: options.memory,
        schedules: options.config.config.schedules.clone(),
        router: options.config.config.router.clone(),
        durability: options.durability,
        serve_open_runs: options.serve_open_runs,
        serves_runs: options.serves,
        drain: options.drain,
        seed: getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?,
        ids: Arc::clone(ids),
        files: options.handlers_dir.as_deref().map(handlers_dir::files_in).unwrap_or_default(),
    })
}

/// Who serves nothing, or can never be told of a directory, needs no watch.
fn watch_handlers(
    options: &ServerOptions,
    board: Arc<Board>,
    events: &Sender<Event>,
) -> Result<Option<Arc<HandlersDir>>, Failure> {
    if !options.serves || options.handlers_dir.is_none() && options.reload.is_none() {
        return Ok(None);
    }
    let events = events.clone();
    let tell = move |files| {
        // An engine that has ended starts nothing any more.
        let _ended = events.send(Event::HandlerFiles(files));
    };
    let watched = HandlersDir::watch(options.handlers_dir.clone(), board, options.log.clone(), Box::new(tell))?;
    Ok(Some(Arc::new(watched)))
}

fn start_http(
    options: &ServerOptions,
    reads: Reads,
    counter: Arc<Counter>,
    handle: &EngineHandle,
    config: &Arc<LiveConfig>,
) -> Result<http::Server, Failure> {
    let (engine, live, shown) = (handle.clone(), Arc::clone(config), Arc::clone(config));
    let reload = move |by| live.reload(&engine, by);
    let http = http::Options {
        listen: options.listen,
        config: Box::new(move || shown.current()),
        log: options.log.clone(),
        counter,
        ..http::Options::new(options.dir.clone(), reload)
    };
    http::Server::start(http, handle.clone(), reads)
}
