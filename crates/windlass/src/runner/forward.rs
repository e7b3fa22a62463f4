//! Hands jobs over to other servers, a lot at a time.
//!
//! One thread with its own small runtime sends all lots; it is started with the first of them. A lot is sent until it
//! is known what became of it: a server that cannot be reached, or does not answer, is tried again, less and less
//! often, and meanwhile the jobs of the lot stay claimed here and the rest waits untouched. A person's move gives up
//! where it is certain that the other server has nothing of the lot. It must not judge outcomes: core does.

use super::progress::Board;
use super::url::call::{self, Answer};
use super::url::pool::Pool;
use super::{Finished, Flight, Output, Runner, Start, Stop};
use crate::clock;
use crate::config;
use crate::lot::{self, Departing, Manner};
use crate::supervisor::{About, Kind};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Forward, Host};

/// Where the ends of lots are told.
type Hear = Arc<dyn Fn(Finished) + Send + Sync>;

/// How long one try may take: the other server reads the lot, stores it and syncs.
const TRY_WITHIN: Duration = Duration::from_secs(120);
/// Between two tries: at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(30);
/// The most that is heard of an answer.
const ANSWER_MOST: usize = 4 << 20;

enum Message {
    Starts(Vec<Start>),
    Settled(Arc<Departing>),
    Close,
}

/// Sends lots.
pub struct ForwardRunner {
    hear: Hear,
    board: Arc<Board>,
    /// There once something has been started.
    desk: Option<(UnboundedSender<Message>, JoinHandle<()>)>,
}

impl fmt::Debug for ForwardRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardRunner").field("started", &self.desk.is_some()).finish_non_exhaustive()
    }
}

impl ForwardRunner {
    pub fn new(hear: Hear, board: Arc<Board>) -> ForwardRunner {
        ForwardRunner { hear, board, desk: None }
    }

    fn send(&mut self, message: Message) -> Result<(), String> {
        if self.desk.is_none() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|e| e.to_string())?;
            let (sender, receiver) = unbounded_channel();
            let (hear, board) = (Arc::clone(&self.hear), Arc::clone(&self.board));
            let thread = std::thread::Builder::new().name("forward".into());
            let serve = move || serve(&runtime, receiver, &hear, &board);
            self.desk = Some((sender, thread.spawn(serve).map_err(|e| e.to_string())?));
        }
        let sent = self.desk.as_ref().map(|(desk, _)| desk.send(message));
        sent.and_then(Result::ok).ok_or_else(|| "its thread has ended".to_owned())
    }
}

impl Runner for ForwardRunner {
    fn start(&mut self, starts: Vec<Start>) {
        let flights: Vec<(Flight, u16)> = starts.iter().map(|start| (start.flight, start.held.count)).collect();
        if let Err(why) = self.send(Message::Starts(starts)) {
            let now = clock::now();
            for (flight, count) in flights {
                let outcome = Outcome::NotMoved { why: format!("cannot send anything: {why}") };
                (self.hear)(Finished::all(flight, count, outcome, now, now));
            }
        }
    }

    /// What has been sent cannot be called back, and a lot that waits is asked about by the next server.
    fn stop(&mut self, _flight: Flight, _why: Stop) {}

    /// Nor can a part of it.
    fn cancel(&mut self, _flight: Flight, _position: u16) {}

    fn confirm(&mut self, lot: Arc<Departing>) {
        // A server that is not told forgets the lot after a long time.
        let _ended = self.send(Message::Settled(lot));
    }
}

impl Drop for ForwardRunner {
    /// Lots on their way are cut off unreported: the store has them.
    fn drop(&mut self) {
        if let Some((desk, thread)) = self.desk.take() {
            let _ended = desk.send(Message::Close);
            // One that panicked has told so itself.
            let _told = thread.join();
        }
    }
}

fn serve(runtime: &tokio::runtime::Runtime, mut messages: UnboundedReceiver<Message>, hear: &Hear, board: &Arc<Board>) {
    let local = tokio::task::LocalSet::new();
    local.block_on(runtime, async {
        let pool = Rc::<Pool>::default();
        while let Some(message) = messages.recv().await {
            match message {
                Message::Starts(starts) => {
                    for (lot, starts) in by_lot(starts) {
                        let (pool, hear, board) = (Rc::clone(&pool), Arc::clone(hear), Arc::clone(board));
                        drop(tokio::task::spawn_local(deliver(pool, lot, starts, hear, board)));
                    }
                }
                Message::Settled(lot) => drop(tokio::task::spawn_local(confirm(Rc::clone(&pool), lot))),
                Message::Close => return,
            }
        }
    });
}

/// Starts of one lot come together, but a claim may have several.
fn by_lot(starts: Vec<Start>) -> Vec<(Arc<Departing>, Vec<Start>)> {
    let mut lots: Vec<(Arc<Departing>, Vec<Start>)> = Vec::new();
    let mut places = HashMap::new();
    for start in starts {
        // Nothing else is given to this runner.
        let Some(lot) = start.lot.clone() else { continue };
        let place = *places.entry(lot.number).or_insert_with(|| {
            lots.push((lot, Vec::new()));
            lots.len() - 1
        });
        lots[place].1.push(start);
    }
    lots
}

/// What became of a lot.
enum Fate {
    Taken(lot::Answer),
    Refused(String),
}

async fn deliver(pool: Rc<Pool>, lot: Arc<Departing>, starts: Vec<Start>, hear: Hear, board: Arc<Board>) {
    let started = clock::now();
    let first = starts.first().and_then(|start| start.held.ids().next());
    let jobs = starts.iter().map(|start| u32::from(start.held.count)).sum();
    let policy = starts.first().map(|start| &start.policy);
    let flight = starts.first().map_or(Flight(0), |start| start.flight);
    let about = About { job: first, jobs, ..About::new(Kind::Call, policy, flight) };
    let mut worker = board.workers().make_for(about);
    let pattern = policy.map(|policy| policy.pattern.clone()).unwrap_or_default();
    let trouble = |words: Option<&str>| {
        worker.is_in(words.unwrap_or_default());
        if lot.manner == Manner::Forward {
            board.ails(&pattern, words.map(str::to_owned));
        }
        if let Some(words) = words {
            board.workers().say(|| format!("lot {} of {jobs} jobs to {} waits: {words}", lot.number, lot.to));
        }
    };
    let fate = match lay(&lot, &starts) {
        Some(bytes) => send(&pool, &lot, bytes.into(), &trouble).await,
        None => Fate::Taken(lot::Answer { taken: true, ..lot::Answer::default() }),
    };
    worker.is_done(false);
    let finished = clock::now();
    for start in &starts {
        let outcomes = outcomes(start, &lot, &fate);
        let (emitted, checkpoints, output) = (Vec::new(), Vec::new(), Output::default());
        hear(Finished { flight: start.flight, first: 0, outcomes, emitted, checkpoints, started, finished, output });
    }
}

/// The lot's bytes; none where no job of it may go.
fn lay(lot: &Departing, starts: &[Start]) -> Option<Vec<u8>> {
    let going = || starts.iter().filter(|start| may_go(start));
    let size: usize = going().map(|start| start.held.jobs.as_bytes().len() + 128).sum();
    let mut bytes = lot::begin(lot.manner, size);
    for Start { held, queue, .. } in going() {
        let (priority, jobs) = (held.lane.priority, &held.jobs);
        let alone = |index: usize| jobs.rebuilt(jobs.particulars().cloned(), |other| other == index);
        if held.ids().any(|id| lot.pasts.contains_key(&id)) {
            for index in held.range() {
                let past = lot.pasts.get(&jobs.id(index));
                lot::add(&mut bytes, queue, priority, past, alone(index).as_bytes());
            }
        } else if usize::from(held.count) == jobs.len() {
            lot::add(&mut bytes, queue, priority, None, jobs.as_bytes());
        } else {
            let some = jobs.rebuilt(jobs.particulars().cloned(), |index| held.range().contains(&index));
            lot::add(&mut bytes, queue, priority, None, some.as_bytes());
        }
    }
    lot::end(&mut bytes);
    going().next().is_some().then_some(bytes)
}

/// Jobs of a run end where the run ends.
fn may_go(start: &Start) -> bool {
    start.run.is_empty()
}

fn outcomes(start: &Start, lot: &Departing, fate: &Fate) -> Vec<(u16, Outcome)> {
    let count = start.held.count;
    if !may_go(start) {
        let error = format!("it belongs to run {}, and jobs of a run are not given to another server", start.run);
        return vec![(count, Outcome::FailedForGood { error })];
    }
    let answer = match fate {
        Fate::Refused(why) => return vec![(count, Outcome::NotMoved { why: why.clone() })],
        Fate::Taken(answer) => answer,
    };
    let moved = Outcome::Moved { to: lot.to.to_string() };
    if answer.duplicates.is_empty() {
        return vec![(count, moved)];
    }
    let duplicates: HashMap<&str, &str> = answer.duplicates.iter().map(|(id, of)| (id.as_str(), of.as_str())).collect();
    let outcome = |id: String| match duplicates.get(id.as_str()) {
        Some(of) => {
            let error = format!("{} did not take it: {of} has its unique key there", lot.to);
            Outcome::FailedForGood { error }
        }
        None => moved.clone(),
    };
    start.held.ids().map(|id| (1, outcome(id.to_string()))).collect()
}

/// What one try came to.
enum Try {
    Answered(lot::Answer),
    /// The other server has nothing of it, unless an earlier try brought it there.
    No(String),
    /// It may have it.
    Unknown(String),
}

/// Sends until it is known what became of the lot.
async fn send(pool: &Rc<Pool>, lot: &Departing, bytes: Bytes, trouble: &dyn Fn(Option<&str>)) -> Fate {
    let (mut may_be_there, mut pause, mut said) = (lot.resumed, PAUSE_FIRST, String::new());
    loop {
        let path = format!("/api/v1/lots/{}", lot.number);
        let words = match post(pool, &lot.to, &path, bytes.clone()).await {
            Try::Answered(answer) if answer.taken => {
                trouble(None);
                return Fate::Taken(answer);
            }
            // It was looked for there and not found.
            Try::Answered(answer) if lot.manner == Manner::Move => return Fate::Refused(answer.why),
            Try::No(why) if lot.manner == Manner::Move && !may_be_there => return Fate::Refused(why),
            Try::Answered(answer) => answer.why,
            Try::No(why) => why,
            Try::Unknown(why) => {
                may_be_there = true;
                why
            }
        };
        if words != said {
            trouble(Some(&words));
            said = words;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MOST);
    }
}

async fn confirm(pool: Rc<Pool>, lot: Arc<Departing>) {
    let path = format!("/api/v1/lots/{}/settled", lot.number);
    // A server that does not hear it forgets the lot after a long time.
    let _heard = post(&pool, &lot.to, &path, Bytes::new()).await;
}

async fn post(pool: &Rc<Pool>, to: &Forward, path: &str, bytes: Bytes) -> Try {
    let (to, request) = match located(to).and_then(|to| Ok((request(&to, path, bytes)?, to))) {
        Ok((request, to)) => (to, request),
        Err(why) => return Try::No(why),
    };
    let (answer, connection) = call::make(pool, &to.host, request, Some(TRY_WITHIN), ANSWER_MOST).await;
    if let Some(connection) = connection {
        let (pool, host) = (Rc::clone(pool), to.host.clone());
        drop(tokio::task::spawn_local(async move { pool.keep(&host, connection).await }));
    }
    match answer {
        Answer::Unreached(why) => Try::No(why),
        Answer::Broken(why) => Try::Unknown(why),
        Answer::TimedOut => Try::Unknown(format!("no answer within {} s", TRY_WITHIN.as_secs())),
        Answer::Whole { status: 200, body, .. } => match serde_json::from_slice(&body) {
            Ok(answer) => Try::Answered(answer),
            Err(_) => Try::Unknown("the answer is not that of a windlass server".into()),
        },
        Answer::Whole { status: 404 | 405, .. } => {
            Try::No("HTTP 404: there is no server that takes lots, or an older one".into())
        }
        Answer::Whole { status: status @ (400..=499 | 505 | 507), body, .. } => Try::No(told(status, &body)),
        Answer::Whole { status, body, .. } => Try::Unknown(told(status, &body)),
    }
}

/// Where the other server is now: one that serves a directory only while jobs move to it listens elsewhere each time.
fn located(to: &Forward) -> Result<Cow<'_, Forward>, String> {
    let Some(file) = &to.address_file else { return Ok(Cow::Borrowed(to)) };
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read the address in {file}: {e}"))?;
    let Forward { host, base, .. } = config::forward_target(text.trim(), &[])?;
    let host = Host { inside: to.host.inside, ..host };
    Ok(Cow::Owned(Forward { host, base, ..to.clone() }))
}

/// What a refusal says, in the server's own words where it has some.
fn told(status: u16, body: &[u8]) -> String {
    let document: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let words = document.as_ref().and_then(|document| document.get("detail")).and_then(|detail| detail.as_str());
    words.map_or_else(|| format!("HTTP {status}"), |words| format!("HTTP {status}: {words}"))
}

fn request(to: &Forward, path: &str, bytes: Bytes) -> Result<Request<Full<Bytes>>, String> {
    let uri = Uri::try_from(format!("{}{path}", to.base)).map_err(|e| format!("the URL cannot be called: {e}"))?;
    let value = |text: String| HeaderValue::try_from(text).map_err(|e| format!("cannot make a header: {e}"));
    let mut request = Request::new(Full::new(bytes));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert(HOST, value(to.host.to_string())?);
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("windlass/", env!("CARGO_PKG_VERSION"))));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(lot::MEDIA));
    if let Some(file) = &to.token_file {
        let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read the token in {file}: {e}"))?;
        let token = text.lines().next().unwrap_or_default().trim();
        headers.insert(AUTHORIZATION, value(format!("Bearer {token}"))?);
    }
    Ok(request)
}
