//! Spans of traced jobs, and the thread that posts them to a collector of traces (`[traces]` of the config).
//!
//! Whoever has a span hands it over and goes on, as with the log. A thread of its own gathers them and posts them
//! together; what a collector that is slow, dead or unwilling does not take is dropped, counted, and said in the log
//! once, until it takes them again. It must not hold up anybody, and without a collector there is no thread.
//! `otlp` owns the words of the document.

mod otlp;

use crate::api;
use crate::client::Connection;
use crate::client::connection::is_authority;
use crate::error::{Failure, Kind};
use crate::log::{Level, Log};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use windlass_core::job::{JobId, QueueName};
use windlass_core::particulars::{Particulars, Trace};
use windlass_core::time::Time;

/// The most spans that wait for the thread.
const WAITING_MOST: usize = 8192;
/// The most spans of one document.
const TOGETHER_MOST: usize = 512;
/// How long a span waits for others to go with it.
const GATHERED_FOR: Duration = Duration::from_secs(1);
/// How long a collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the end of a server waits for its last spans to be taken.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// `[traces]` of the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Nothing is exported where there is none.
    pub export: Option<Collector>,
    /// What this server is called among those that have spans.
    pub service: String,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions { export: None, service: "windlass".to_owned() }
    }
}

/// Where spans are posted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// `http://HOST:PORT`.
    server: String,
    path: String,
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Collector, String> {
        let parts = text.strip_prefix("http://").and_then(|rest| Some(rest.split_at(rest.find('/')?)));
        let sound = |(host, path): &(&str, &str)| is_authority(host) && path.bytes().all(|b| b.is_ascii_graphic());
        match parts.filter(sound) {
            Some((host, path)) => Ok(Collector { server: format!("http://{host}"), path: path.to_owned() }),
            None if text.starts_with("https:") => {
                Err(format!("{text:?} asks for https, expected http://HOST:PORT/v1/traces of a collector near by"))
            }
            None => Err(format!("{text:?} is no collector, expected http://HOST:PORT/v1/traces")),
        }
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.server, self.path)
    }
}

/// Something that was done for one job of a trace.
#[derive(Clone, Debug)]
pub struct Span {
    pub job: JobId,
    pub queue: Arc<QueueName>,
    /// They have the trace.
    pub particulars: Arc<Particulars>,
    pub from: Time,
    pub to: Time,
    pub did: Did,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Did {
    /// The job was taken in.
    Send,
    /// It was tried.
    Process {
        attempt: u32,
        outcome: &'static str,
        ended: Ended,
        /// Others were in its process or call: nobody's child, but joined by a link.
        linked: bool,
    },
}

/// How an attempt ended, as far as a trace is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Well,
    Badly(String),
    /// Put off, taken back or cancelled.
    Otherwise,
}

impl Span {
    fn trace(&self) -> Option<&Trace> {
        self.particulars.trace.as_ref()
    }
}

/// The way to the thread; cheap to clone, and never waits for it.
#[derive(Clone, Debug)]
pub struct Spans {
    orders: Option<SyncSender<Order>>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Order {
    Span(Span),
    /// Everything before this is to be posted; then the sender is told.
    Flush(SyncSender<()>),
}

impl Spans {
    /// Takes nothing.
    pub fn off() -> Spans {
        Spans { orders: None, dropped: Arc::default() }
    }

    /// Starts the thread, if there is anybody to post to.
    pub fn start(options: TraceOptions, log: Log) -> Result<Spans, Failure> {
        let Some(collector) = options.export else { return Ok(Spans::off()) };
        let (orders, received) = sync_channel(WAITING_MOST);
        let dropped = Arc::<AtomicU64>::default();
        let overflowed = Arc::clone(&dropped);
        let exporter = Exporter { collector, service: options.service, log, overflowed, connection: None, lost: 0 };
        std::thread::Builder::new()
            .name("spans".into())
            .spawn(move || exporter.serve(&received))
            .map_err(|e| Failure::io("cannot start the thread of the spans", &e))?;
        Ok(Spans { orders: Some(orders), dropped })
    }

    /// Whether spans go anywhere at all.
    pub fn is_on(&self) -> bool {
        self.orders.is_some()
    }

    /// Hands a span over, unless its trace was not chosen to be looked at.
    pub fn put(&self, span: Span) {
        let Some(orders) = &self.orders else { return };
        if span.trace().is_some_and(Trace::is_sampled) && orders.try_send(Order::Span(span)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until everything handed over so far is posted or dropped, but not for a collector that is slow.
    pub fn flush(&self) {
        let Some(orders) = &self.orders else { return };
        let (done, posted) = sync_channel(1);
        // Where no order fits in any more the collector is behind: nobody waits for that.
        if orders.try_send(Order::Flush(done)).is_ok() {
            let _ = posted.recv_timeout(LAST_SPANS);
        }
    }
}

/// The thread's own.
struct Exporter {
    collector: Collector,
    service: String,
    log: Log,
    /// Spans that found no room in front of the thread.
    overflowed: Arc<AtomicU64>,
    connection: Option<Connection>,
    /// Spans that were dropped since the collector took some last.
    lost: u64,
}

impl Exporter {
    fn serve(mut self, orders: &Receiver<Order>) {
        let (mut spans, mut due) = (Vec::new(), None::<Instant>);
        loop {
            let order = match due {
                None => orders.recv().map_err(RecvTimeoutError::from),
                Some(due) => orders.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            let mut asked = None;
            match order {
                Ok(Order::Span(span)) => {
                    spans.push(span);
                    due = due.or_else(|| Some(Instant::now() + GATHERED_FOR));
                    if spans.len() < TOGETHER_MOST {
                        continue;
                    }
                }
                Ok(Order::Flush(done)) => asked = Some(done),
                Err(RecvTimeoutError::Timeout) => {}
                // Nobody is left to hand anything over, and what was is posted below for the last time.
                Err(RecvTimeoutError::Disconnected) if spans.is_empty() => return,
                Err(RecvTimeoutError::Disconnected) => {}
            }
            if !spans.is_empty() {
                let posted = self.post(&spans);
                self.account(spans.len() as u64, posted);
            }
            (spans, due) = (Vec::new(), None);
            if let Some(done) = asked {
                // Whoever asked has waited long enough if it is gone.
                let _ = done.send(());
            }
        }
    }

    fn post(&mut self, spans: &[Span]) -> Result<(), Failure> {
        let body = otlp::document(&self.service, spans, &draw)?;
        let connection = match &mut self.connection {
            Some(open) => open,
            none => none.insert(open(&self.collector)?),
        };
        match connection.post(&self.collector.path, api::JSON, body.as_bytes())?.status {
            200..=299 => Ok(()),
            other => Err(Failure::new(Kind::Io, format!("{} answered with status {other}", self.collector))),
        }
    }

    /// Says that spans are dropped when that begins, and how many there were when it is over.
    fn account(&mut self, count: u64, posted: Result<(), Failure>) {
        let overflowed = self.overflowed.swap(0, Ordering::Relaxed);
        let (lost, why) = match posted {
            Err(failure) => (overflowed + count, failure.text),
            Ok(()) if overflowed > 0 => (overflowed, format!("{} takes them too slowly", self.collector)),
            Ok(()) => {
                if self.lost > 0 {
                    let dropped = ("dropped", self.lost.into());
                    self.log.say(Level::Info, "spans are exported again", vec![dropped]);
                    self.lost = 0;
                }
                return;
            }
        };
        if self.lost == 0 {
            self.log.say(Level::Warn, "spans are dropped", vec![("error", why.into())]);
        }
        self.lost += lost;
    }
}

fn open(collector: &Collector) -> Result<Connection, Failure> {
    let nobody = || Failure::new(Kind::NoServer, format!("nobody listens at {}", collector.server));
    let mut connection = Connection::open_url(&collector.server, None)?.ok_or_else(nobody)?;
    connection.set_patience(Some(PATIENCE));
    Ok(connection)
}

/// A number that nobody else has drawn, for a span's id or, twice, for a trace's.
fn draw() -> Result<u64, Failure> {
    // Nought is no id.
    let drawn = getrandom::u64().map(|number| number.max(1));
    drawn.map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_an_address_with_a_path() {
        for text in ["http://127.0.0.1:4318/v1/traces", "http://[::1]:80/", "http://otel.example:4318/a?b=c"] {
            assert_eq!(text.parse::<Collector>().map(|collector| collector.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "127.0.0.1:4318/v1/traces", "http://h/v1/traces", "http://h:1", "http://h:1/a b", "http://:1/"]
        {
            assert!(text.parse::<Collector>().unwrap_err().contains("expected http://HOST:PORT/v1/traces"), "{text}");
        }
        assert!("https://h:1/".parse::<Collector>().unwrap_err().contains("asks for https"));
    }
}
