//! One `windlass run` under way: follows its run from server to server, prints what comes, and heeds signals.
//!
//! Three threads tell this one what happened: the feeder, the follower of the current leg, and the signals. A leg is
//! the time with one server; whatever still arrives from an earlier leg is ignored.

use super::Verdict;
use super::feeder::{Door, Wire, Wiring, feed};
use super::input::{Input, at_hand};
use super::order::Order;
use super::progress::{Progress, Tally};
use crate::api::hash_from_text;
use crate::cli::Context;
use crate::cli::connect::{Carry, Connection, Link, encoded, is_gone, went_away};
use crate::cli::lock_watch::LockWatch;
use crate::cli::print::{self, Out, count, counted_do, data_of, field, grouped, shortened, visible};
use crate::cli::signals::{Signals, exit_code};
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::store::Taken;
use crate::store::place::StorePlace;
use crate::when;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Legs in a row that may end without a word of any job; more is no change of servers but a fault.
const BARREN_LEGS: u32 = 8;
/// How long a server that is too busy for more lines is left alone.
const TRY_LATER: Duration = Duration::from_secs(1);
/// How long a signal waits for the end of the input to be handed over; another signal does not.
const SEAL_PATIENCE: Duration = Duration::from_secs(10);

/// What can happen to a run under way.
#[derive(Debug)]
pub(crate) enum Event {
    /// The follower will hear of every job that ends from now on.
    Listening {
        leg: u64,
    },
    /// A line of the follower: a finished job, or the end.
    Told {
        leg: u64,
        line: Vec<u8>,
    },
    /// The follower's connection is over.
    Closed {
        leg: u64,
        failure: Failure,
    },
    /// The feeder's connection is over.
    Lost {
        leg: u64,
        failure: Failure,
    },
    /// The run of this leg has taken other lines than the input has.
    Different {
        leg: u64,
    },
    /// The input begins with the lines that the run has taken.
    Agreed {
        leg: u64,
    },
    /// Everything is handed over, and the run is sealed.
    InputEnded,
    /// The feeder was told to leave, and did so before the end of the input.
    Left,
    FeedFailed(Failure),
    Signal(i32),
}

/// One run under way.
#[derive(Debug)]
pub(super) struct Session {
    order: Order,
    verdict: Verdict,
    /// It ends with the input, and the run goes on without it.
    detaches: bool,
    context: Context,
    dir: DataDir,
    store: StorePlace,
    link: Option<Link>,
    run: Value,
    /// Which of the runs of this name it is.
    number: u32,
    leg: u64,
    barren: u32,
    wiring: Arc<Wiring>,
    sender: SyncSender<Event>,
    events: Receiver<Event>,
    progress: Progress,
    out: Out,
    begun: Instant,
    /// When the feeder, whose connection was lost or refused, gets another door to the same server.
    rewire_at: Option<Instant>,
    /// The first signal, if one came.
    signal: Option<i32>,
    /// After a signal: the feeder gets until then to hand over the end of the input.
    leave_by: Option<Instant>,
}

impl Session {
    /// Starts the threads that do not need a server yet.
    pub(super) fn start(order: Order, verdict: Verdict, detaches: bool, context: &Context) -> Result<Session, Failure> {
        let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
        let dir = context.data_dir()?;
        let store = context.store_of(dir.root())?;
        let (sender, events) = sync_channel(64);
        let session = Session {
            progress: Progress::new(context),
            wiring: Arc::default(),
            out: Out::new(),
            begun: Instant::now(),
            context: context.clone(),
            link: None,
            run: Value::Null,
            number: 1,
            leg: 0,
            barren: 0,
            rewire_at: None,
            signal: None,
            leave_by: None,
            order,
            verdict,
            detaches,
            dir,
            store,
            sender,
            events,
        };
        session.spawn_signals(signals)?;
        session.spawn_feeder()?;
        Ok(session)
    }

    /// Opens or continues the run, and stays until it has ended or a signal or a failure ended this.
    pub(super) fn follow(mut self) -> Result<u8, Failure> {
        self.link = Some(self.connect()?);
        let result = self.open_run().and_then(|()| {
            loop {
                if let Some(code) = self.turn()? {
                    return Ok(code);
                }
            }
        });
        self.progress.clear();
        self.out.finish_accepted();
        let closed = self.link.take().map_or(Ok(()), Link::close);
        let code = result?;
        closed.map(|()| code)
    }

    /// Waits for one event and deals with it; a code ends the session.
    fn turn(&mut self) -> Result<Option<u8>, Failure> {
        let due = [self.progress.due(), self.rewire_at, self.leave_by].into_iter().flatten().min();
        let event = match due {
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => self.events.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        let ended = match event {
            Ok(Event::Told { leg, line }) if leg == self.leg => self.told(&line)?,
            Ok(Event::Listening { leg }) if leg == self.leg => {
                self.begin_feeding()?;
                None
            }
            Ok(Event::Closed { leg, failure }) if leg == self.leg => self.change_server(failure)?,
            Ok(Event::Lost { leg, .. }) if leg == self.leg && self.leave_by.is_some() => Some(self.detach()),
            Ok(Event::Lost { leg, failure }) if leg == self.leg => {
                self.plan_rewiring(&failure);
                None
            }
            Ok(Event::Different { leg }) if leg == self.leg => {
                self.open_another()?;
                None
            }
            Ok(Event::Agreed { leg }) if leg == self.leg => {
                let taken = counted_do(taken_of(&self.run).lines, "line", ("was", "were"));
                self.say(format!("continuing run {}: {taken} taken before", self.id()));
                self.begin_leg()?;
                None
            }
            // The end that was asked for ends the feeding, too: the follower will tell.
            Ok(Event::FeedFailed(_)) if self.signal.is_some() && self.leave_by.is_none() => None,
            Ok(Event::FeedFailed(failure)) => return Err(failure),
            Ok(Event::Signal(signal)) => self.signalled(signal)?,
            Ok(Event::InputEnded | Event::Left) if self.leave_by.is_some() => Some(self.detach()),
            Ok(Event::Left) => None,
            Ok(Event::InputEnded) if self.detaches => Some(self.hand_over()),
            Ok(Event::InputEnded) => {
                self.progress.changed();
                None
            }
            // Told by a leg that is over.
            Ok(Event::Listening { .. } | Event::Told { .. } | Event::Closed { .. }) => None,
            Ok(Event::Lost { .. } | Event::Different { .. } | Event::Agreed { .. }) => None,
            Err(RecvTimeoutError::Timeout) if self.leave_by.is_some_and(|by| by <= Instant::now()) => {
                Some(self.detach())
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new(Kind::Internal, "all threads of the run have ended"));
            }
        };
        if ended.is_none() {
            self.rewire()?;
            self.show_progress();
        }
        Ok(ended)
    }

    fn connect(&self) -> Result<Link, Failure> {
        Link::open_in(&self.dir, &self.store, Carry::Working { slots: self.order.slots })
    }

    fn connection(&mut self) -> Result<&mut Connection, Failure> {
        let link = self.link.as_mut().ok_or_else(|| Failure::new(Kind::NoServer, "not connected"))?;
        Ok(&mut link.connection)
    }

    /// Opens the run of this name, or finds the unfinished one.
    fn open_run(&mut self) -> Result<(), Failure> {
        let request = self.order.request(self.number);
        self.run = self.connection()?.post_json("/api/v1/runs", &request)?;
        if taken_of(&self.run).lines == 0 {
            return self.begin_leg();
        }
        // Following it would start what is left of it: first it must be certain that it is the run of this input.
        self.leg += 1;
        let connection = Link::to_server(&self.dir)?.ok_or_else(went_away)?;
        self.wire(connection, true);
        Ok(())
    }

    /// The unfinished run of that name has other lines: it is left alone, and the next name is tried.
    fn open_another(&mut self) -> Result<(), Failure> {
        let (left, name) = (self.id(), self.order.name(self.number));
        if self.order.shares_its_queue() {
            let text = format!("run {left} is unfinished in this queue and was begun with other lines");
            let hint = format!("finish it with its own input, give it up (windlass cancel {left}), or leave -Q out");
            return Err(Failure::new(Kind::Conflict, text).hint(hint));
        }
        self.number += 1;
        let next = self.order.name(self.number);
        self.say(format!(
            "run {left} ({name}) was begun with other lines and is left as it is; this one is {next}. \
             Give the other up: windlass cancel {left}"
        ));
        self.open_run()
    }

    /// A new follower and a new door for the feeder.
    fn begin_leg(&mut self) -> Result<(), Failure> {
        self.leg += 1;
        let (id, leg, dir, events) = (self.id(), self.leg, self.dir.clone(), self.sender.clone());
        let follow = move || {
            let failure = follow_leg(&dir, &id, leg, &events).unwrap_or_else(|failure| failure);
            // Without a main thread there is nobody to tell.
            let _ = events.send(Event::Closed { leg, failure });
        };
        spawn("follower", follow)
    }

    /// The follower listens: now jobs may come, and none can end unheard.
    fn begin_feeding(&mut self) -> Result<(), Failure> {
        // A server that has gone away again is told of by the follower.
        if let Some(connection) = Link::to_server(&self.dir)? {
            self.wire(connection, false);
        }
        Ok(())
    }

    /// Gives the feeder a door to the run as it is now known.
    fn wire(&mut self, connection: Connection, probe: bool) {
        let door = RunDoor { connection, run: self.id(), queue: self.order.queue(self.number), null: self.order.null };
        let sealed = self.run.get("sealed") == Some(&Value::Bool(true));
        self.wiring.put(Wire { leg: self.leg, door: Box::new(door), taken: taken_of(&self.run), sealed, probe });
        self.rewire_at = None;
    }

    /// The feeder was refused or cut off. A server that is gone is noticed by the follower too; one that only asked to
    /// try later is tried later.
    fn plan_rewiring(&mut self, failure: &Failure) {
        let wait = if failure.kind == Kind::TryLater { TRY_LATER } else { Duration::ZERO };
        // A stopping server takes no more lines, and should not.
        self.rewire_at = self.signal.is_none().then(|| Instant::now() + wait);
    }

    fn rewire(&mut self) -> Result<(), Failure> {
        if self.rewire_at.is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        self.rewire_at = None;
        let path = format!("/api/v1/runs/{}", self.id());
        let Some(mut connection) = Link::to_server(&self.dir)? else { return Ok(()) };
        match connection.get_json(&path) {
            Ok(run) => {
                self.run = run;
                self.wire(connection, false);
                Ok(())
            }
            // Going away or not ready: if the follower does not tell of its end, it will answer later.
            Err(failure) if is_gone(&failure) => {
                self.rewire_at = Some(Instant::now() + TRY_LATER);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whoever served is gone: unless that was wished for, the run goes on with the next server.
    fn change_server(&mut self, failure: Failure) -> Result<Option<u8>, Failure> {
        if let Some(link) = self.link.take() {
            link.close()?;
        }
        if let Some(signal) = self.signal {
            return Ok(Some(self.stopped(signal)));
        }
        if !is_gone(&failure) {
            return Err(failure);
        }
        loop {
            self.barren += 1;
            if self.barren > BARREN_LEGS {
                return Err(failure);
            }
            // Watched from before the try, so that the end of a server that is still going is not missed.
            let watch = LockWatch::new(&self.dir)?;
            match self.resume() {
                Err(gone) if is_gone(&gone) => {
                    self.link.take().map_or(Ok(()), Link::close)?;
                    watch.wait()?;
                }
                result => return result,
            }
        }
    }

    /// Connects to the next server, or becomes it, and takes the run up again; a code if it has ended meanwhile.
    fn resume(&mut self) -> Result<Option<u8>, Failure> {
        self.link = Some(self.connect()?);
        let path = format!("/api/v1/runs/{}", self.id());
        self.run = self.connection()?.get_json(&path)?;
        if self.run.get("ended") == Some(&Value::Bool(true)) {
            return Ok(Some(self.ended()));
        }
        // Asked for once more by its name, so that the new server knows the command.
        let request = self.order.request(self.number);
        let named: Value = self.connection()?.post_json("/api/v1/runs", &request)?;
        if field(&named, "id") == self.id() {
            self.run = named;
            return self.begin_leg().map(|()| None);
        }
        // It ended in between, and the name has begun an empty run, which ends with its seal.
        let empty = format!("/api/v1/runs/{}/seal", field(&named, "id"));
        self.connection()?.post_empty::<Value>(&empty)?;
        self.run = self.connection()?.get_json(&path)?;
        Ok(Some(self.ended()))
    }

    /// A finished job, or the end.
    fn told(&mut self, line: &[u8]) -> Result<Option<u8>, Failure> {
        let told: Value = serde_json::from_slice(line)
            .map_err(|e| Failure::new(Kind::Internal, format!("the server said something else than JSON: {e}")))?;
        self.barren = 0;
        if let Some(run) = told.get("ended") {
            self.run = run.clone();
            return Ok(Some(self.ended()));
        }
        if told.get("error").is_some_and(Value::is_object) {
            // The server ends the stream before the run; that it closes comes next.
            return Ok(None);
        }
        if self.detaches {
            return Ok(None);
        }
        let (stdout, stderr) = (data_of(&told, "stdout")?, data_of(&told, "stderr")?);
        self.progress.clear();
        if !stdout.is_empty() {
            self.out.bytes(&stdout);
            self.out.flush();
        }
        if !stderr.is_empty() {
            // A closed stderr is nobody's fault.
            let _ = std::io::stderr().lock().write_all(&stderr);
        }
        if ["failed", "cancelled"].contains(&field(&told, "state").as_str()) {
            let data = visible(&String::from_utf8_lossy(&data_of(&told, "data")?));
            let (id, state, error) = (field(&told, "job"), field(&told, "state"), field(&told, "error"));
            self.say(format!("{id} {state}: {error} ({})", shortened(&data, 60)));
        }
        if self.context.verbose > 0 && field(&told, "state") == "succeeded" {
            let data = visible(&String::from_utf8_lossy(&data_of(&told, "data")?));
            self.say(format!("{} succeeded ({})", field(&told, "job"), shortened(&data, 60)));
        }
        self.progress.changed();
        Ok(None)
    }

    fn signalled(&mut self, signal: i32) -> Result<Option<u8>, Failure> {
        let again = self.signal.is_some();
        self.signal.get_or_insert(signal);
        let own = self.link.as_ref().is_some_and(Link::is_own);
        if !own {
            // A run whose input is at its end has to be sealed, or nobody could ever wait for it. An input that may
            // still come is not waited for.
            if !again && !self.wiring.ended() && at_hand(&std::io::stdin()) {
                self.wiring.leave();
                self.leave_by = Some(Instant::now() + SEAL_PATIENCE);
                return Ok(None);
            }
            return Ok(Some(self.detach()));
        }
        let mode = if again { "now" } else { "drain" };
        match self.connection()?.post_json::<Value>("/api/v1/stop", &json!({ "mode": mode })) {
            Err(failure) if !is_gone(&failure) => return Err(failure),
            // Already going away: the follower will tell.
            Ok(_) | Err(_) => {}
        }
        if !again {
            // Said when it is true: before the server knows, a job that ends makes room for the next one.
            self.say("stopping when the running jobs have ended; once more stops them now".to_owned());
        }
        Ok(None)
    }

    /// The last words of a run that goes on without this process.
    fn detach(&mut self) -> u8 {
        let id = self.id();
        self.say(format!("detached; the jobs of {id} go on. Wait: windlass wait {id}  Stop: windlass cancel {id}"));
        self.tell_untaken();
        self.signal.map_or(0, exit_code)
    }

    /// The last words of one who leaves with the end of the input: the run is sealed and goes on.
    fn hand_over(&mut self) -> u8 {
        let (id, taken) = (self.id(), print::jobs(self.wiring.lines()));
        self.say(format!(
            "{taken} taken. Watch: windlass watch {id}  Wait: windlass wait {id}  Stop: windlass cancel {id}"
        ));
        if self.context.json {
            self.out.line(json!({ "run": id }));
        } else {
            self.out.line(id);
        }
        0
    }

    /// The last words of a run that was stopped by a signal.
    fn stopped(&mut self, signal: i32) -> u8 {
        self.say(format!("stopped; run {} is kept, and the same command goes on with it", self.id()));
        self.tell_untaken();
        exit_code(signal)
    }

    fn tell_untaken(&mut self) {
        if !self.wiring.ended() {
            let lines = counted_do(self.wiring.lines(), "line", ("was", "were"));
            let sentence = format!("{lines} taken; the rest of the input was not, and the run stays open for it");
            self.say(sentence);
        }
    }

    /// The last words of a run that has ended.
    fn ended(&mut self) -> u8 {
        if self.detaches {
            return self.hand_over();
        }
        let tally = Tally::of(self.run.get("counts").unwrap_or(&Value::Null), false);
        let code = self.verdict.exit_code(tally.missed.all(), tally.total);
        if self.context.json {
            print::say_json(&self.run);
            return code;
        }
        let (id, took) = (self.id(), when::spoken(self.begun.elapsed()));
        let (missed, succeeded) = (tally.missed, grouped(tally.done - tally.missed.all()));
        match missed.all() {
            0 => self.say(format!("run {id} ended in {took}: {succeeded} succeeded")),
            _ => self.say(format!(
                "run {id} ended in {took}: {succeeded} succeeded, {}; list: windlass ls run:{id} {}",
                missed.words(),
                missed.selector()
            )),
        }
        code
    }

    fn show_progress(&mut self) {
        let now = Instant::now();
        if !self.progress.wants(now) {
            return;
        }
        let path = format!("/api/v1/runs/{}", self.id());
        // A run that cannot be asked about now is told of by its follower, or by the loss of it.
        if let Ok(run) = self.connection().and_then(|connection| connection.get_json::<Value>(&path)) {
            let mut tally = Tally::of(run.get("counts").unwrap_or(&Value::Null), !self.wiring.ended());
            // Short jobs are claimed ahead of their slots; those have not begun.
            tally.running = tally.running.min(u64::from(self.order.slots));
            self.progress.speak(now, tally);
        }
    }

    fn say(&mut self, sentence: String) {
        self.progress.clear();
        if !self.context.json {
            self.context.say(sentence);
        }
    }

    fn id(&self) -> String {
        field(&self.run, "id")
    }

    fn spawn_signals(&self, signals: Signals) -> Result<(), Failure> {
        let events = self.sender.clone();
        spawn("run signals", move || {
            while let Some(signal) = signals.next() {
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })
    }

    fn spawn_feeder(&self) -> Result<(), Failure> {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            self.context.say("reading lines from the terminal; end with Ctrl-D");
        }
        let source = rustix::io::dup(&stdin).map_err(|e| Failure::io("cannot read standard input", &e.into()))?;
        let input = Input::new(File::from(source), scratch(&self.dir)?, self.order.rows);
        let input = input.ending_with(self.order.separator());
        let (wiring, events) = (self.wiring.clone(), self.sender.clone());
        spawn("feeder", move || feed(input, &wiring, &events))
    }
}

/// Passes on what the server tells of a run; comes back with why that is over.
fn follow_leg(dir: &DataDir, id: &str, leg: u64, events: &SyncSender<Event>) -> Result<Failure, Failure> {
    let Some(connection) = Link::to_server(dir)? else { return Ok(went_away()) };
    let mut lines = connection.lines(&format!("/api/v1/runs/{}/follow", encoded(id)))?;
    if events.send(Event::Listening { leg }).is_err() {
        return Ok(went_away());
    }
    while let Some(line) = lines.next_line()? {
        if events.send(Event::Told { leg, line }).is_err() {
            break;
        }
    }
    Ok(went_away())
}

/// The feeder's way into a run.
#[derive(Debug)]
struct RunDoor {
    connection: Connection,
    run: String,
    queue: String,
    null: bool,
}

impl Door for RunDoor {
    fn add(&mut self, at: Taken, then: Taken, lines: &[u8]) -> Result<(), Failure> {
        let queue = encoded(&self.queue);
        let place = format!("lines={}&hash={:x}&then_hash={:x}", at.lines, at.hash, then.hash);
        let path = format!("/api/v1/runs/{}/lines?queue={queue}&{place}&null={}&ids=false", self.run, self.null);
        self.connection.post(&path, "text/plain", lines)?.checked().map(drop)
    }

    fn seal(&mut self) -> Result<(), Failure> {
        self.connection.post_empty::<Value>(&format!("/api/v1/runs/{}/seal", self.run)).map(drop)
    }

    fn taken(&mut self) -> Result<(Taken, bool), Failure> {
        let run: Value = self.connection.get_json(&format!("/api/v1/runs/{}", self.run))?;
        Ok((taken_of(&run), run.get("sealed") == Some(&Value::Bool(true))))
    }
}

fn taken_of(run: &Value) -> Taken {
    let taken = run.get("taken").unwrap_or(&Value::Null);
    let hash = taken.get("hash").and_then(Value::as_str).and_then(hash_from_text);
    Taken { lines: count(taken, "lines"), hash: hash.unwrap_or(0) }
}

/// A file without a name, for an input that must perhaps be read again.
fn scratch(dir: &DataDir) -> Result<File, Failure> {
    let path = dir.run().join(format!("input.{}", std::process::id()));
    let made = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let file = made.and_then(|file| std::fs::remove_file(&path).map(|()| file));
    file.map_err(|e| Failure::io(format_args!("cannot make {}", path.display()), &e))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(|e| Failure::io("cannot start a thread", &e))
}
