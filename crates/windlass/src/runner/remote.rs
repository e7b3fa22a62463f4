//! Remote workers: the counter at which jobs are handed to workers elsewhere, each under a lease, and taken back.
//!
//! A worker asks over HTTP and waits; the engine claims for it, and the starts come here to be handed over with a token
//! each. From then on only the token's holder can speak for the job. A sign of life renews the lease, which runs on the
//! monotonic clock; a worker that is silent for longer is taken for dead, its job is lost to it, and what it says later
//! is refused. The end of a start is reported once, and who asks again with the same token is told the same again. It
//! must not know HTTP, and it must not touch the store. Token and weighty words of a lease are stored by the engine, so
//! that a server that was started anew goes on with it: such a lease begins anew, and so does its time limit.

use super::progress::{Board, Channel};
use super::reply::{self, Emits, Said};
use super::{Emitted, Finished, Flight, Lent, Output, Start, Stop, given};
use crate::clock;
use crate::error::{Failure, Kind as Refused};
use crate::supervisor::{About, Kind, Roster, Worker};
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use windlass_core::job::JobId;
use windlass_core::outcome::Outcome;
use windlass_core::particulars::Particulars;
use windlass_core::policy::{Policy, Service};
use windlass_core::supervisor::{WorkerEvent, WorkerState};
use windlass_core::time::Time;

/// What is kept of each output stream that a worker sends with its reply.
pub const OUTPUT_MAX: usize = super::launcher::INLINE_MAX;
/// What a job may emit over HTTP in all, as in a file.
const EMIT_MAX: usize = super::launcher::EMIT_MAX as usize;
/// So many ended starts are remembered, for workers whose answer was lost on the way.
const REMEMBERED: usize = 10_000;
/// The most data that one ask is given; more jobs go back and wait for the next.
const BYTES_MOST: usize = 8 << 20;

type Hear = Arc<dyn Fn(Finished) + Send + Sync>;
type Taker = Box<dyn FnOnce(Handover) + Send>;

/// One job as a worker gets it.
#[derive(Clone, Debug)]
pub struct Handed {
    pub token: String,
    pub job: JobId,
    pub queue: String,
    pub attempt: u32,
    pub run: String,
    /// How far an earlier start had come; empty where none said so.
    pub checkpoint: String,
    pub particulars: Option<Arc<Particulars>>,
    pub data: Vec<u8>,
    pub lease: Duration,
    pub policy: Arc<Policy>,
}

/// The jobs of one ask on their way to the worker. Unless somebody says that they are out of the house, they go back
/// when this is dropped: whoever asked has left.
pub struct Handover {
    pub jobs: Vec<Handed>,
    counter: Option<Arc<Counter>>,
}

impl Handover {
    /// They are the worker's now.
    pub fn keep(mut self) -> Vec<Handed> {
        self.counter = None;
        std::mem::take(&mut self.jobs)
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if let Some(counter) = self.counter.take() {
            let tokens: Vec<String> = self.jobs.drain(..).map(|job| job.token).collect();
            for token in tokens {
                counter.end(&token, Outcome::Interrupted, Output::default());
            }
        }
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

/// What a worker is told at a sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    GoOn,
    /// A person cancelled the job.
    Cancel,
    /// It runs over its time limit.
    TimeLimit,
    /// The token is not that of a running start.
    Over,
}

struct Lease {
    start: Start,
    /// Whoever has it, as a worker.
    worker: Worker,
    /// An earlier server gave it out, and nobody has spoken for it since.
    resumed: bool,
    started: Time,
    until: Instant,
    /// When its time limit ends, extensions included.
    limit: Option<Instant>,
    cancelled: bool,
    said: Said,
    emitted: Emits,
    emitted_bytes: usize,
}

impl Lease {
    fn new(start: Start, lent: &Lent, workers: &Arc<Roster>) -> Lease {
        let now = Instant::now();
        let about = About::new(Kind::Remote, Some(&start.policy), start.flight);
        let job = start.held.ids().next();
        let mut lease = Lease {
            worker: workers.make_for(About { job, jobs: 1, ..about }),
            resumed: lent.ask.is_none(),
            started: lent.since,
            until: now,
            limit: start.policy.time_limit.and_then(|limit| now.checked_add(limit)),
            cancelled: false,
            said: Said::default(),
            emitted: Emits::new(),
            emitted_bytes: 0,
            start,
        };
        lease.until = now + lease.lease();
        for (channel, lines) in &lent.spoken {
            match channel {
                Channel::Control => lease.hear(lines),
                // It was looked at before it was stored.
                Channel::Emit => lease.emit(lines).unwrap_or_default(),
            }
        }
        lease
    }

    fn job(&self) -> JobId {
        self.start.held.jobs.id(self.start.held.range().start)
    }

    /// It lives, and has its time again.
    fn renew(&mut self, now: Instant) {
        self.resumed = false;
        self.until = now + self.lease();
    }

    fn hear(&mut self, lines: &[u8]) {
        let before = self.said.extend;
        self.said.at_least = None;
        lines.split(|b| *b == b'\n').for_each(|line| self.said.hear(line));
        if let Some(phase) = &self.said.phase {
            self.worker.is_in(phase);
        }
        let more = self.said.extend.saturating_sub(before);
        let anew = self.said.at_least.and_then(|more| Instant::now().checked_add(more));
        let longer = |limit: Instant| anew.map_or(limit, |anew| anew.max(limit)).checked_add(more).unwrap_or(limit);
        self.limit = self.limit.map(longer);
    }

    /// What these lines emit; an error says why they are refused.
    fn read_emit(&self, lines: &[u8]) -> Result<Emits, Failure> {
        let bad = |why: String| Failure::new(Refused::BadData, why);
        if self.emitted_bytes + lines.len() > EMIT_MAX {
            return Err(bad(format!("a job may emit {EMIT_MAX} bytes in all")));
        }
        let read = reply::read_emit_file(lines).map_err(bad)?;
        let emits: Emits = read.into_iter().map(|(_, queue, data)| (queue, data)).collect();
        reply::place(emits.clone(), &self.start.policy).map_err(bad)?;
        Ok(emits)
    }

    fn emit(&mut self, lines: &[u8]) -> Result<(), Failure> {
        let emitted = self.read_emit(lines)?;
        self.emitted_bytes += lines.len();
        self.emitted.extend(emitted);
        if self.worker.state() == WorkerState::Working {
            self.worker.happens(&[WorkerEvent::Emit, WorkerEvent::Emitted]);
        }
        Ok(())
    }

    fn lease(&self) -> Duration {
        match self.start.policy.service {
            Service::Remote(remote) => remote.lease,
            Service::Command(_)
            | Service::Batch(_)
            | Service::Worker(_)
            | Service::Url(_)
            | Service::Forward(_)
            | Service::Handler { .. } => Duration::ZERO,
        }
    }

    fn sign(&self, now: Instant) -> Sign {
        match self.limit {
            _ if self.cancelled => Sign::Cancel,
            Some(limit) if limit <= now => Sign::TimeLimit,
            Some(_) | None => Sign::GoOn,
        }
    }

    /// When it is over whatever the worker says: at the end of its lease, or when it had time to obey its time limit.
    fn ends(&self) -> Instant {
        let grace = self.start.policy.grace.saturating_add(self.lease());
        let last = self.limit.and_then(|limit| limit.checked_add(grace));
        last.map_or(self.until, |last| last.min(self.until))
    }
}

#[derive(Default)]
struct State {
    last_ask: u64,
    takers: HashMap<u64, Taker>,
    leases: HashMap<String, Lease>,
    tokens: HashMap<Flight, String>,
    /// Tokens of starts that have ended by a reply, and what they were taken as.
    ended: HashMap<String, &'static str>,
    ended_in_order: VecDeque<String>,
    /// Tells waiting signs of life that something has changed.
    news: u64,
    closed: bool,
}

/// Where remote workers come.
#[derive(Default)]
pub struct Counter {
    state: Mutex<State>,
    turned: Condvar,
    hear: OnceLock<(Hear, Arc<Board>)>,
    news: OnceLock<tokio::sync::watch::Sender<u64>>,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counter")
    }
}

impl Counter {
    /// Says who hears of ends, and starts the thread that ends leases.
    pub(super) fn open(self: &Arc<Counter>, hear: Hear, board: Arc<Board>) -> Result<(), Failure> {
        // One that is opened twice keeps its first ears.
        let _first = self.hear.set((hear, board));
        let counter = Arc::clone(self);
        let thread = std::thread::Builder::new().name("leases".into()).spawn(move || counter.watch_leases());
        thread.map(drop).map_err(|e| Failure::io("cannot start a thread", &e))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing can fail between two changes of it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for an ask, and who takes what comes for it.
    pub fn ask(&self, taker: impl FnOnce(Handover) + Send + 'static) -> u64 {
        let mut state = self.state();
        state.last_ask += 1;
        let number = state.last_ask;
        state.takers.insert(number, Box::new(taker));
        number
    }

    /// Nobody takes any more; what comes for it from now on goes back.
    pub fn unask(&self, number: u64) {
        self.state().takers.remove(&number);
    }

    /// Hands starts to those who asked; what nobody waits for any more goes back.
    pub(super) fn start(self: &Arc<Counter>, starts: Vec<Start>) {
        let mut by_ask: HashMap<Option<u64>, Vec<Start>> = HashMap::new();
        for start in starts {
            match start.lent.clone() {
                Some(lent) if lent.ask.is_none() => drop(self.lease(&lent, start)),
                lent => by_ask.entry(lent.and_then(|lent| lent.ask)).or_default().push(start),
            }
        }
        for (ask, starts) in by_ask {
            let taker = ask.and_then(|number| self.state().takers.remove(&number));
            let mut jobs = Vec::with_capacity(starts.len());
            let mut bytes = 0;
            for start in starts {
                bytes += start.held.jobs.data(start.held.range().start).len();
                let fits = jobs.is_empty() || bytes <= BYTES_MOST;
                if let Err(error) = data(&start) {
                    let (never, now) = (Outcome::FailedForGood { error }, clock::now());
                    self.tell(Finished::all(start.flight, start.held.count, never, now, now));
                    continue;
                }
                match start.lent.clone().filter(|_| taker.is_some() && fits && start.held.count == 1) {
                    Some(lent) => jobs.push(self.lease(&lent, start)),
                    None => self.tell(Finished::all(
                        start.flight,
                        start.held.count,
                        Outcome::Interrupted,
                        clock::now(),
                        clock::now(),
                    )),
                }
            }
            if let Some(taker) = taker {
                taker(Handover { jobs, counter: Some(Arc::clone(self)) });
            }
        }
    }

    fn lease(&self, lent: &Lent, start: Start) -> Handed {
        let workers = self.hear.get().map(|(_, board)| Arc::clone(board.workers())).unwrap_or_default();
        let (token, lease) = (lent.token.clone(), Lease::new(start, lent, &workers));
        let start = &lease.start;
        let handed = Handed {
            token: token.clone(),
            job: lease.job(),
            queue: start.queue.as_str().to_owned(),
            attempt: start.held.start(),
            run: start.run.clone(),
            particulars: start.held.jobs.particulars().cloned(),
            checkpoint: start.checkpoint.clone(),
            // What cannot be given is not lent.
            data: data(start).unwrap_or_default().into_owned(),
            lease: lease.lease(),
            policy: Arc::clone(&start.policy),
        };
        let mut state = self.state();
        state.tokens.insert(start.flight, token.clone());
        state.leases.insert(token, lease);
        drop(state);
        self.turned.notify_all();
        handed
    }

    /// Signs of life: renews the leases, and tells of each what the worker is to do.
    pub fn renew(&self, tokens: &[String]) -> Vec<Sign> {
        let now = Instant::now();
        let mut state = self.state();
        let mut sign = |token: &String| {
            let Some(lease) = state.leases.get_mut(token) else { return Sign::Over };
            lease.renew(now);
            lease.sign(now)
        };
        tokens.iter().map(&mut sign).collect()
    }

    /// What a worker that waits for news is told now, without being taken for alive again.
    pub fn look(&self, tokens: &[String]) -> Vec<Sign> {
        let (now, state) = (Instant::now(), self.state());
        tokens.iter().map(|token| state.leases.get(token).map_or(Sign::Over, |lease| lease.sign(now))).collect()
    }

    /// Changes whenever `look` may say something else.
    pub fn news(&self) -> tokio::sync::watch::Receiver<u64> {
        self.news.get_or_init(|| tokio::sync::watch::channel(0).0).subscribe()
    }

    fn spread(&self, state: &mut State) {
        state.news += 1;
        if let Some(news) = self.news.get() {
            news.send_replace(state.news);
        }
    }

    /// Control lines of a job; an error says why they are refused.
    pub fn control(&self, job: JobId, token: &str, lines: &[u8]) -> Result<(), Failure> {
        let mut state = self.state();
        let lease = held(&mut state, job, token)?;
        lease.hear(lines);
        lease.renew(Instant::now());
        drop(state);
        if let Some((_, board)) = self.hear.get() {
            lines.split(|b| *b == b'\n').filter(|line| !line.is_empty()).for_each(|line| board.said(job, line));
        }
        Ok(())
    }

    /// Jobs that a job emits; they count if it succeeds.
    pub fn emit(&self, job: JobId, token: &str, lines: &[u8]) -> Result<(), Failure> {
        let mut state = self.state();
        let lease = held(&mut state, job, token)?;
        lease.emit(lines)?;
        lease.renew(Instant::now());
        Ok(())
    }

    /// The start to which something is said that must be on disk before it is taken: what counts at its end. None for
    /// what is only shown; an error says why it is refused.
    pub fn weighs(&self, job: JobId, token: &str, channel: Channel, lines: &[u8]) -> Result<Option<Flight>, Failure> {
        let mut state = self.state();
        let lease = held(&mut state, job, token)?;
        let weighs = match channel {
            Channel::Emit => !lease.read_emit(lines)?.is_empty(),
            Channel::Control => {
                let said = Said::read(lines);
                said.wish.is_some() || said.result.is_some() || said.checkpoint.is_some()
            }
        };
        Ok(weighs.then_some(lease.start.flight))
    }

    /// The end of a start, as its worker tells it: a reply object as of a batch, or a word of the archive. Tells what
    /// it was taken as; once more with the same token, the same again.
    pub fn reply(&self, job: JobId, token: &str, object: &[u8], output: Output) -> Result<&'static str, Failure> {
        let mut state = self.state();
        if let Some(word) = state.ended.get(token).copied() {
            return Ok(word);
        }
        let lease = held(&mut state, job, token)?;
        let (outcome, emitted) = read_reply(object, lease)?;
        lease.emitted.extend(emitted);
        drop(state);
        let word = outcome.word();
        let told = self.end(token, outcome, output);
        let mut state = self.state();
        if told {
            state.remember(token, word);
        } else {
            // Its lease ended in this very moment, and that was told first.
            held(&mut state, job, token)?;
        }
        Ok(word)
    }

    /// True for a job that is out under a lease.
    pub fn has(&self, job: JobId) -> bool {
        self.state().leases.values().any(|lease| lease.job() == job)
    }

    /// Ends a lease and tells of it; false where it had ended before.
    fn end(&self, token: &str, outcome: Outcome, output: Output) -> bool {
        let mut state = self.state();
        let Some(mut lease) = state.leases.remove(token) else { return false };
        if outcome == Outcome::Lost {
            lease.worker.died()
        } else {
            lease.worker.is_done(false)
        };
        state.tokens.remove(&lease.start.flight);
        self.spread(&mut state);
        drop(state);
        let (job, flight) = (lease.job(), lease.start.flight);
        let (outcome, placed) = match reply::place(lease.emitted, &lease.start.policy) {
            Err(error) if matches!(outcome, Outcome::Succeeded { .. }) => (Outcome::Failed { error }, Vec::new()),
            placed => (outcome, placed.unwrap_or_default()),
        };
        let emitted = placed.into_iter().map(|(queue, data)| Emitted { by: 0, queue, data }).collect();
        let (outcomes, finished) = (vec![(1, outcome)], clock::now());
        if let Some((_, board)) = self.hear.get() {
            board.ended(job);
        }
        let checkpoints = lease.said.checkpoint.map(|text| (0, text)).into_iter().collect();
        let started = lease.started;
        self.tell(Finished { flight, first: 0, outcomes, emitted, checkpoints, started, finished, output });
        true
    }

    fn tell(&self, finished: Finished) {
        if let Some((hear, _)) = self.hear.get() {
            hear(finished);
        }
    }

    /// The engine wants a start to end. A worker is told that its job was cancelled; what the server cannot wait for
    /// any longer goes back.
    pub(super) fn stop(&self, flight: Flight, why: Stop) {
        let mut state = self.state();
        let Some(token) = state.tokens.get(&flight).cloned() else { return };
        match why {
            Stop::Withdraw => {}
            Stop::Cancel => {
                if let Some(lease) = state.leases.get_mut(&token) {
                    lease.cancelled = true;
                    lease.worker.stop();
                }
                self.spread(&mut state);
            }
            Stop::Interrupt | Stop::Kill => {
                drop(state);
                self.end(&token, Outcome::Interrupted, Output::default());
            }
        }
    }

    /// Ends leases when their time comes, for as long as the server lives.
    fn watch_leases(&self) {
        let mut state = self.state();
        while !state.closed {
            let now = Instant::now();
            let over = state.leases.iter().filter(|(_, lease)| lease.ends() <= now);
            let over: Vec<(String, Outcome)> = over.map(|(token, lease)| (token.clone(), silent(lease, now))).collect();
            if !over.is_empty() {
                drop(state);
                for (token, outcome) in over {
                    self.end(&token, outcome, Output::default());
                }
                state = self.state();
                continue;
            }
            // A waiting sign of life hears of a time limit when it comes.
            let limits = state.leases.values().filter_map(|lease| lease.limit).filter(|limit| *limit > now);
            let next = limits.chain(state.leases.values().map(Lease::ends)).min();
            let passed = state.leases.values().any(|lease| lease.limit.is_some_and(|limit| limit <= now));
            if passed {
                self.spread(&mut state);
            }
            state = match next {
                Some(next) => {
                    let left = next.saturating_duration_since(now);
                    self.turned.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.turned.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Ends the thread; what is out goes on, and the next server knows of it.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.turned.notify_all();
    }
}

impl State {
    fn remember(&mut self, token: &str, word: &'static str) {
        if self.ended.insert(token.to_owned(), word).is_none() {
            self.ended_in_order.push_back(token.to_owned());
        }
        while self.ended_in_order.len() > REMEMBERED
            && let Some(oldest) = self.ended_in_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }
}

/// What a start that nobody speaks for any more came to.
/// The data of a start's one job, as it is given.
fn data(start: &Start) -> Result<Cow<'_, [u8]>, String> {
    given(&start.policy, start.held.jobs.data(start.held.range().start))
}

fn silent(lease: &Lease, now: Instant) -> Outcome {
    match lease.limit {
        _ if lease.cancelled => Outcome::Cancelled,
        // Its worker may have stopped it because the server was away for too long; that accuses nobody.
        _ if lease.resumed => Outcome::Interrupted,
        Some(limit) if limit <= now => Outcome::TimedOut { limit: lease.start.policy.time_limit.unwrap_or_default() },
        Some(_) | None => Outcome::Lost,
    }
}

/// The lease of a job, if this is its token.
fn held<'s>(state: &'s mut State, job: JobId, token: &str) -> Result<&'s mut Lease, Failure> {
    let lease = state.leases.get_mut(token).filter(|lease| lease.job() == job);
    lease.ok_or_else(|| {
        let text = format!("the token is not that of a running start of {job}: nothing was changed");
        Failure::new(Refused::Conflict, text)
            .hint("its end was told before, its lease has ended, or it was taken back and runs again elsewhere")
    })
}

fn read_reply(object: &[u8], lease: &Lease) -> Result<(Outcome, Emits), Failure> {
    let bad = |why: String| Failure::new(Refused::BadData, why);
    let value: serde_json::Value = serde_json::from_slice(object).map_err(|e| bad(format!("no reply: {e}")))?;
    let text = |key: &str| value.get(key).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    let limit = lease.start.policy.time_limit.unwrap_or_default();
    let error = if text("error").is_empty() { "it did not say why".to_owned() } else { text("error") };
    let seen = windlass_core::outcome::from_report(&text("status"), error, limit);
    if let Some(outcome) = seen {
        // Only a person cancels; a worker that says so by itself gives the job back.
        let outcome = if outcome == Outcome::Cancelled && !lease.cancelled { Outcome::Interrupted } else { outcome };
        let outcome = if outcome == Outcome::Interrupted && lease.cancelled { Outcome::Cancelled } else { outcome };
        return Ok((outcome, Emits::new()));
    }
    let reply = reply::read(object).map_err(|(_, why)| bad(why))?;
    let outcome = match (reply.outcome, &lease.said) {
        (Outcome::Succeeded { .. }, Said { wish: Some(wish), .. }) => wish.clone(),
        (Outcome::Succeeded { message }, Said { result: Some(result), .. }) if message.is_empty() => {
            Outcome::Succeeded { message: result.clone() }
        }
        (outcome, _) => outcome,
    };
    Ok((outcome, reply.emitted))
}

/// A token for each job of an ask.
pub fn new_tokens(count: u32) -> Result<Vec<String>, Failure> {
    let tokens: Option<Vec<String>> = (0..count).map(|_| new_token()).collect();
    tokens.ok_or_else(|| Failure::new(Refused::Internal, "no random numbers for tokens"))
}

/// 128 random bits; none where the machine gives no random numbers, and then nothing is handed out.
pub(super) fn new_token() -> Option<String> {
    let (high, low) = (getrandom::u64().ok()?, getrandom::u64().ok()?);
    Some(format!("{high:016x}{low:016x}"))
}
