//! One thread that fetches for all fetchers: connections that are kept, so many at once and as often as a host allows,
//! and only what its `robots.txt` does.
//!
//! Redirects are not followed here: where they lead is a link like any other. A host that asks for a pause gets it from
//! everybody. An order to end answers whatever has not begun; what has begun ends within its time limit, or at once if
//! that is the order. It must not know about jobs.

use super::order::Order;
use super::page_url::canonical;
use super::robots::{self, Rules};
use super::scope::host_of;
use crate::clock;
use crate::error::Failure;
use crate::runner::url::pool::{Connection, Pool};
use crate::runner::url::retry_after;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT,
};
use hyper::{Request, Response, Uri};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::Instant;
use url::{Position, Url};
use windlass_core::outcome::RETRY_AFTER_MOST;
use windlass_core::policy::Host;

/// From the connection to the last byte.
const PAGE_WITHIN: Duration = Duration::from_secs(60);
/// A `robots.txt` that could not be had is asked for again after this.
const RULES_AGAIN: Duration = Duration::from_secs(10);
/// A page that would wait longer for its host is put back: its fetcher has pages of other hosts.
const PATIENCE: Duration = Duration::from_secs(1);
/// One that found no place at its host comes again after this.
const PLACE_AGAIN: Duration = Duration::from_millis(250);
/// The standard wants no fewer redirects of it to be followed.
const RULES_REDIRECTS: usize = 5;

/// What came of one page.
#[derive(Debug)]
pub(super) enum Fetched {
    Answer(Page),
    /// The host's rules forbid it.
    Forbidden,
    /// Not now: the host asked for a pause, or is busy with other pages.
    Later(Duration),
    /// As many pages as there may be were asked for.
    Beyond,
    /// No whole answer came, or none at all.
    Failed(String),
    /// The crawl stops; it was not begun.
    Stopped,
}

#[derive(Debug)]
pub(super) struct Page {
    pub(super) status: u16,
    pub(super) kind: String,
    pub(super) location: Option<String>,
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Vec<u8>,
    /// It had more than is taken.
    pub(super) cut: bool,
}

struct Asked {
    url: Url,
    place: usize,
    answer: Sender<(usize, Fetched)>,
}

/// How much of what was asked for is still done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// All of it.
    NotYet,
    /// What has begun.
    Drain,
    Now,
}

/// Pages that were asked for, as far as there may be only so many. What a host's rules forbid is never asked for.
#[derive(Debug)]
pub(super) struct AskedFor {
    most: u64,
    count: AtomicU64,
}

impl AskedFor {
    pub(super) fn new(most: Option<u64>) -> AskedFor {
        AskedFor { most: most.unwrap_or(u64::MAX), count: AtomicU64::new(0) }
    }

    pub(super) fn is_all(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.most
    }

    /// False where there were as many as there may be.
    fn take(&self) -> bool {
        let one_more = |count| (count < self.most).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// What failed does not count.
    pub(super) fn give_back(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// So many were asked for before this process.
    pub(super) fn recall(&self, count: u64) {
        self.count.store(count, Ordering::Relaxed);
    }
}

/// The fetchers' end of the thread.
#[derive(Debug)]
pub(super) struct Downloader {
    desk: Option<UnboundedSender<Asked>>,
    ending: watch::Sender<Ending>,
    thread: Option<JoinHandle<()>>,
}

impl Downloader {
    pub(super) fn start(order: Arc<Order>, asked_for: Arc<AskedFor>) -> Result<Downloader, Failure> {
        let failed = |e: std::io::Error| Failure::io("cannot start a thread", &e);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (desk, asked) = unbounded_channel();
        let (ending, told) = watch::channel(Ending::NotYet);
        let serve = move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, serve(Rc::new(Desk::new(order, asked_for)), asked, told));
            drop(local);
            // A name that is being resolved is not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("downloads".into()).spawn(serve).map_err(failed)?;
        Ok(Downloader { desk: Some(desk), ending, thread: Some(thread) })
    }

    /// Fetches a page; the answer comes with its place.
    pub(super) fn fetch(&self, url: Url, place: usize, answer: &Sender<(usize, Fetched)>) {
        let asked = Asked { url, place, answer: answer.clone() };
        if let Some(Err(unasked)) = self.desk.as_ref().map(|desk| desk.send(asked)) {
            // Whoever asked listens, or has no use for it.
            let _ = unasked.0.answer.send((place, Fetched::Stopped));
        }
    }

    pub(super) fn end(&self, how: Ending) {
        self.ending.send_replace(how);
    }
}

impl Drop for Downloader {
    fn drop(&mut self) {
        self.end(Ending::Now);
        self.desk = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has told so itself.
            let _told = thread.join();
        }
    }
}

async fn serve(desk: Rc<Desk>, mut asked: UnboundedReceiver<Asked>, ending: watch::Receiver<Ending>) {
    while let Some(Asked { url, place, answer }) = asked.recv().await {
        let (desk, ending) = (Rc::clone(&desk), ending.clone());
        tokio::task::spawn_local(async move {
            let fetched = desk.fetch(&url, ending).await;
            // A fetcher that no longer listens has no use for it.
            let _ = answer.send((place, fetched));
        });
    }
}

/// Does it unless the end comes first.
async fn unless<T>(ending: Ending, mut told: watch::Receiver<Ending>, work: impl Future<Output = T>) -> Option<T> {
    let (mut told, mut work) = (pin!(told.wait_for(|told| *told >= ending)), pin!(work));
    poll_fn(|context| match told.as_mut().poll(context) {
        // A sender that is gone has told the same.
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => work.as_mut().poll(context).map(Some),
    })
    .await
}

/// One host, as politeness sees it.
struct Gate {
    places: Semaphore,
    /// The rules, and when they were read.
    rules: Mutex<Option<(Rc<Rules>, Instant)>>,
    /// When the next page may be asked for, where there is a pause between two.
    next: Cell<Instant>,
    /// When the last of the pages that were put back comes again, each a pause after the one before it.
    line: Cell<Instant>,
    quiet_until: Cell<Instant>,
}

struct Desk {
    order: Arc<Order>,
    asked_for: Arc<AskedFor>,
    pool: Pool,
    gates: RefCell<HashMap<String, Rc<Gate>>>,
}

impl Desk {
    fn new(order: Arc<Order>, asked_for: Arc<AskedFor>) -> Desk {
        Desk { order, asked_for, pool: Pool::default(), gates: RefCell::default() }
    }

    fn gate(&self, url: &Url) -> Rc<Gate> {
        let mut gates = self.gates.borrow_mut();
        let made = || {
            let (now, places) = (Instant::now(), Semaphore::new(self.order.per_host as usize));
            let (next, line, quiet_until) = (Cell::new(now), Cell::new(now), Cell::new(now));
            Rc::new(Gate { places, rules: Mutex::default(), next, line, quiet_until })
        };
        Rc::clone(gates.entry(host_of(url)).or_insert_with(made))
    }

    async fn fetch(&self, url: &Url, ending: watch::Receiver<Ending>) -> Fetched {
        let gate = self.gate(url);
        let ready = unless(Ending::Drain, ending.clone(), self.ready(&gate, url)).await;
        match ready {
            None => Fetched::Stopped,
            Some(Err(fetched)) => fetched,
            Some(Ok(_place)) => {
                let page = unless(Ending::Now, ending, self.page(&gate, url)).await.unwrap_or(Fetched::Stopped);
                if !matches!(page, Fetched::Answer(_)) {
                    self.asked_for.give_back();
                }
                page
            }
        }
    }

    /// Waits for a place at the host and its time; an error is an answer that needs no request.
    async fn ready<'g>(&self, gate: &'g Gate, url: &Url) -> Result<tokio::sync::SemaphorePermit<'g>, Fetched> {
        let place = tokio::time::timeout(PATIENCE, gate.places.acquire()).await;
        let place = place.map_err(|_| Fetched::Later(PLACE_AGAIN))?.map_err(|_| Fetched::Stopped)?;
        let quiet = gate.quiet_until.get().saturating_duration_since(Instant::now());
        if !quiet.is_zero() {
            return Err(Fetched::Later(quiet));
        }
        let rules = self.rules(gate, url).await;
        match rules.allow(url) {
            Ok(true) => {}
            Ok(false) => return Err(Fetched::Forbidden),
            Err(why) => return Err(Fetched::Failed(why)),
        }
        let pause = rules.delay().max(self.order.pause);
        let now = Instant::now();
        let at = if pause.is_zero() { now } else { gate.next.get().max(now) };
        if at > now + PATIENCE {
            let again = gate.line.get().max(at);
            gate.line.set(again + pause);
            return Err(Fetched::Later(again - now));
        }
        if !self.asked_for.take() {
            return Err(Fetched::Beyond);
        }
        gate.next.set(at + pause);
        tokio::time::sleep_until(at).await;
        Ok(place)
    }

    async fn page(&self, gate: &Gate, url: &Url) -> Fetched {
        match self.get(url, self.order.body_most).await {
            Err(why) => Fetched::Failed(why),
            Ok(page) => {
                if let (429 | 503, Some(after)) = (page.status, page.retry_after) {
                    gate.quiet_until.set(Instant::now() + after.min(RETRY_AFTER_MOST));
                }
                Fetched::Answer(page)
            }
        }
    }

    /// The rules of a host: read once, by whoever comes first.
    async fn rules(&self, gate: &Gate, url: &Url) -> Rc<Rules> {
        let mut kept = gate.rules.lock().await;
        if let Some((rules, read)) = &*kept
            && (matches!(**rules, Rules::Known(_)) || read.elapsed() < RULES_AGAIN)
        {
            return Rc::clone(rules);
        }
        let rules = Rc::new(self.read_rules(url).await);
        *kept = Some((Rc::clone(&rules), Instant::now()));
        rules
    }

    async fn read_rules(&self, url: &Url) -> Rules {
        let Ok(mut at) = url.join("/robots.txt") else { return Rules::from_answer(404, b"", "") };
        let mut answer = self.get(&at, robots::READ_MOST).await;
        for _ in 0..RULES_REDIRECTS {
            let Ok(page) = &answer else { break };
            let to = page.location.as_deref().filter(|_| (300..400).contains(&page.status));
            let Some(to) = to.and_then(|to| canonical(Some(&at), to)) else { break };
            answer = self.get(&to, robots::READ_MOST).await;
            at = to;
        }
        match answer {
            Ok(page) => Rules::from_answer(page.status, &page.body, &self.order.user_agent),
            Err(why) => Rules::Unknown(format!("robots.txt cannot be had, so nothing may be fetched: {why}")),
        }
    }

    async fn get(&self, url: &Url, most: usize) -> Result<Page, String> {
        let (host, request) = (self.host(url), self.request(url)?);
        let exchanged = tokio::time::timeout(PAGE_WITHIN, self.exchange(&host, request, most)).await;
        let (page, connection) = exchanged.map_err(|_| format!("no whole answer within {PAGE_WITHIN:?}"))??;
        if let Some(connection) = connection {
            self.pool.keep(&host, connection).await;
        }
        Ok(page)
    }

    fn host(&self, url: &Url) -> Host {
        let tls = url.scheme() == "https";
        let name = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = url.port_or_known_default().unwrap_or(if tls { 443 } else { 80 });
        // Whoever named it may call it wherever it is; where pages lead by themselves is outside.
        Host { tls, name, port, inside: self.order.scope.is_at_home(url) }
    }

    fn request(&self, url: &Url) -> Result<Request<Full<Bytes>>, String> {
        let bad = |e: hyper::http::Error| format!("cannot ask for it: {e}");
        let target = &url[Position::BeforePath..Position::AfterQuery];
        let mut request = Request::new(Full::default());
        *request.uri_mut() = Uri::try_from(target).map_err(|e| bad(e.into()))?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::try_from(host_of(url)).map_err(|e| bad(e.into()))?);
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(USER_AGENT, HeaderValue::try_from(&self.order.user_agent).map_err(|e| bad(e.into()))?);
        if self.order.scope.is_at_home(url) {
            // What the user has given for these hosts is nobody else's business.
            for (name, value) in &self.order.headers {
                headers.insert(name.clone(), value.clone());
            }
        }
        Ok(request)
    }

    async fn exchange(
        &self,
        host: &Host,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<(Page, Option<Connection>), String> {
        if let Some(mut kept) = self.pool.kept(host) {
            // One that was closed while nobody used it costs nothing but another try.
            if let Ok(response) = kept.sender.try_send_request(request.clone()).await {
                return read(response, kept, most).await;
            }
        }
        let mut fresh = self.pool.dial(host).await?;
        let response = fresh.sender.send_request(request).await.map_err(|e| broken(&e))?;
        read(response, fresh, most).await
    }
}

/// Reads the body, at most so many bytes of it; a connection that is not read to its end is not kept.
async fn read(
    response: Response<Incoming>,
    connection: Connection,
    most: usize,
) -> Result<(Page, Option<Connection>), String> {
    let (parts, mut incoming) = response.into_parts();
    let text = |headers: &HeaderMap, name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut page = Page {
        status: parts.status.as_u16(),
        kind: text(&parts.headers, CONTENT_TYPE).unwrap_or_default(),
        location: text(&parts.headers, LOCATION),
        retry_after: text(&parts.headers, RETRY_AFTER).and_then(|text| retry_after(&text, clock::now())),
        body: Vec::new(),
        cut: false,
    };
    while let Some(frame) = incoming.frame().await {
        let Ok(bytes) = frame.map_err(|e| broken(&e))?.into_data() else { continue };
        let room = most - page.body.len();
        page.body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            page.cut = true;
            return Ok((page, None));
        }
    }
    Ok((page, Some(connection)))
}

fn broken(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("the answer broke off: {error}{cause}")
}
