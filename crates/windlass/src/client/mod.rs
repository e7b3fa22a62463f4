//! The way in for programs: push jobs from any thread, with or without a server.
//!
//! A `full` push goes through the server's socket when it answers. Callers who come while a request is under way
//! are gathered into the next one: whoever came first sends for all of them, so that a commit is shared by all who
//! wait, and each gets an id of its own. Without a server, and for `os`, the job goes to the inbox (P3). A push
//! that failed says whether the job cannot exist or may (P5).

use crate::api;
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::inbox::{Envelope, InboxWriter};
use crate::particulars::trace_of_environment;
use crate::sabotage::{self, Sabotage};
use crate::store::Durability;
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use windlass_core::job::{DATA_MAX, JobId, Priority, QueueName, RunId};
use windlass_core::particulars::Particulars;
use windlass_core::time::Time;

pub mod connection;
mod response;

pub use connection::{Connection, Lines, Response, Target, query_value};

/// Requests under way at once: more of them would split those who wait into smaller groups, with a commit for each.
const FLIGHTS: usize = 1;
/// One request holds less than the server takes.
const GATHERED_MAX: usize = 8 << 20;
/// Those who shared the last commit come back one by one; a request waits so long for as many to join again.
const REJOIN_WITHIN: Duration = Duration::from_micros(200);
/// A server that turns answers a new connection within this time; one that is stopped must not hold up a push.
const PROBE_WITHIN: Duration = Duration::from_secs(1);
const AVOIDED_FOR: Duration = Duration::from_secs(5);
/// A commit can take long on a busy disk; past this its outcome is not known.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// How a job is pushed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushOptions {
    pub priority: Priority,
    pub at: Option<Time>,
    pub run: Option<RunId>,
    pub durability: Durability,
    /// What most jobs lack: trace, subject, parent.
    pub particulars: Option<Arc<Particulars>>,
}

impl PushOptions {
    /// With the trace that this process was started in, if it was started in one and no other is named.
    #[must_use]
    pub fn traced(mut self) -> PushOptions {
        let named = self.particulars.as_ref().is_some_and(|particulars| particulars.trace.is_some());
        if let Some(trace) = trace_of_environment().filter(|_| !named) {
            let known = self.particulars.map(Arc::unwrap_or_clone).unwrap_or_default();
            self.particulars = Some(Arc::new(Particulars { trace: Some(trace), ..known }));
        }
        self
    }
}

/// An accepted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    pub id: JobId,
    pub durability: Durability,
    /// It was not stored: the job with this id has its unique key.
    pub duplicate: bool,
}

/// A program's end of a data directory; shared by its threads.
pub struct Client {
    dir: DataDir,
    /// Opened with the first push that takes this door.
    inbox: Mutex<Option<InboxWriter>>,
    gathering: Mutex<Gathering>,
    /// A flight has landed: whoever leads the next one may start, and there may be room.
    landed: Condvar,
    /// For jobs that have more than a queue and a priority.
    single: Mutex<Option<Connection>>,
}

/// Jobs that wait to be sent together.
struct Gathering {
    records: Vec<u8>,
    count: u64,
    /// How many jobs the last request took along.
    last: u64,
    ticket: Arc<Ticket>,
    flying: usize,
    connections: Vec<Connection>,
    /// A server that did not answer is left alone until then.
    avoid_until: Option<Instant>,
}

/// What became of a gathered request.
#[derive(Clone, Debug)]
enum Delivery {
    /// Stored; the ids follow this one in the order of the records.
    Stored(JobId),
    /// Another job has its unique key.
    Duplicate(JobId),
    /// Nothing was stored there: take the inbox.
    Nobody,
    Failed(Failure),
}

#[derive(Default)]
struct Ticket {
    delivery: Mutex<Option<Delivery>>,
    delivered: Condvar,
}

impl Client {
    /// Opens the data directory; whether a server runs is looked at with each push.
    pub fn open(dir: &Path) -> Result<Client, Failure> {
        Ok(Client::new(DataDir::open(dir)?))
    }

    pub fn new(dir: DataDir) -> Client {
        let gathering = Gathering {
            records: Vec::new(),
            count: 0,
            last: 0,
            ticket: Arc::default(),
            flying: 0,
            connections: Vec::new(),
            avoid_until: None,
        };
        Client {
            dir,
            inbox: Mutex::new(None),
            gathering: Mutex::new(gathering),
            landed: Condvar::new(),
            single: Mutex::new(None),
        }
    }

    /// Pushes one job and returns when it is as durable as asked for.
    pub fn push(&self, queue: &str, data: &[u8], options: PushOptions) -> Result<Pushed, Failure> {
        let queue = QueueName::new(queue.as_bytes()).map_err(|bad| Failure::new(Kind::BadData, bad.to_string()))?;
        if data.len() > DATA_MAX {
            let text = format!("the data has {} bytes, expected at most {DATA_MAX}", data.len());
            return Err(Failure::new(Kind::BadData, text));
        }
        if let Some(particulars) = &options.particulars {
            particulars.check().map_err(|bad| Failure::new(Kind::BadData, bad.to_string()))?;
        }
        let delivery = match options {
            PushOptions { durability: Durability::Os, .. } => Delivery::Nobody,
            PushOptions { at: None, run: None, particulars: None, .. } => {
                self.push_gathered(&queue, data, options.priority)
            }
            _ => self.push_single(&queue, data, &options),
        };
        let (id, duplicate) = match delivery {
            Delivery::Stored(id) => (id, false),
            Delivery::Duplicate(id) => (id, true),
            Delivery::Nobody => (self.push_inbox(&queue, data, &options)?, false),
            Delivery::Failed(failure) => return Err(failure),
        };
        Ok(Pushed { id, durability: options.durability, duplicate })
    }

    /// The door that needs no server.
    fn push_inbox(&self, queue: &QueueName, data: &[u8], options: &PushOptions) -> Result<JobId, Failure> {
        if options.particulars.as_ref().is_some_and(|special| !special.after.is_empty()) {
            let text = "a job that waits for others needs a server, which knows those";
            return Err(Failure::new(Kind::NoServer, text).hint("start `windlass serve`"));
        }
        let PushOptions { priority, at, run, durability, particulars } = options.clone();
        let envelope = Envelope { queue: queue.clone(), priority, run, not_before: at, particulars };
        // A writer whose user panicked left no half record behind: a write is one call.
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = match &mut *inbox {
            Some(writer) => writer,
            empty => empty.insert(InboxWriter::open(&self.dir.inbox())?),
        };
        let id = writer.push(&envelope, data)?;
        if durability == Durability::Full {
            writer.sync()?;
        }
        Ok(id)
    }

    fn push_gathered(&self, queue: &QueueName, data: &[u8], priority: Priority) -> Delivery {
        let mut gathering = self.gathering();
        while gathering.records.len() >= GATHERED_MAX || gathering.count >= api::JOBS_MAX as u64 {
            gathering = self.wait_landed(gathering);
        }
        let index = gathering.add(queue, data, priority);
        if gathering.count == gathering.last {
            self.landed.notify_all();
        }
        let ticket = gathering.ticket.clone();
        let delivery = match index {
            0 => self.lead(gathering, &ticket),
            _ => {
                drop(gathering);
                ticket.wait()
            }
        };
        match delivery {
            Delivery::Stored(first) => Delivery::Stored(JobId { offset: first.offset + index, ..first }),
            Delivery::Duplicate(_) | Delivery::Nobody | Delivery::Failed(_) => delivery,
        }
    }

    /// Waits for a free flight, takes along everyone who has come by then, and tells them.
    fn lead(&self, mut gathering: MutexGuard<'_, Gathering>, ticket: &Ticket) -> Delivery {
        while gathering.flying >= FLIGHTS {
            gathering = self.wait_landed(gathering);
        }
        let until = Instant::now() + REJOIN_WITHIN;
        while gathering.count < gathering.last {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.landed.wait_timeout(gathering, left);
            gathering = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        gathering.flying += 1;
        gathering.last = gathering.count;
        gathering.ticket = Arc::default();
        gathering.count = 0;
        let records = std::mem::take(&mut gathering.records);
        let connection = gathering.connections.pop();
        let avoided = gathering.is_avoiding();
        drop(gathering);

        let (delivery, connection) = if avoided { (Delivery::Nobody, None) } else { self.send(connection, &records) };
        ticket.settle(delivery.clone());

        let mut gathering = self.gathering();
        gathering.flying -= 1;
        gathering.connections.extend(connection);
        drop(gathering);
        self.landed.notify_all();
        delivery
    }

    fn send(&self, connection: Option<Connection>, records: &[u8]) -> (Delivery, Option<Connection>) {
        let mut connection = match connection.map_or_else(|| self.connect(), |ready| Ok(Some(ready))) {
            Ok(Some(connection)) => connection,
            Ok(None) => return (Delivery::Nobody, None),
            Err(failure) => return (Delivery::Failed(failure), None),
        };
        let answer = connection.post("/api/v1/jobs?ids=false", api::RECORDS, records);
        match answer.and_then(stored) {
            Ok(delivery) => (delivery, Some(connection)),
            Err(failure) => (self.refused(failure), None),
        }
    }

    /// Where nothing was stored for sure the inbox takes over; where it may have been, the caller has to know.
    fn refused(&self, failure: Failure) -> Delivery {
        match failure.kind {
            // The server had gone before it took the request.
            Kind::NoServer => Delivery::Nobody,
            // It takes nothing now.
            Kind::TryLater | Kind::Shortage => {
                self.avoid();
                Delivery::Nobody
            }
            Kind::Io if sabotage::on(Sabotage::UnknownSaidRefused) => Delivery::Nobody,
            _ => Delivery::Failed(failure),
        }
    }

    /// Leaves the server alone for a moment, so that not every push finds out anew that it does not answer.
    fn avoid(&self) {
        self.gathering().avoid_until = Some(Instant::now() + AVOIDED_FOR);
    }

    /// A connection to a server that was seen to turn.
    fn connect(&self) -> Result<Option<Connection>, Failure> {
        let Some(mut connection) = Connection::open(&self.dir)? else { return Ok(None) };
        connection.set_patience(Some(PROBE_WITHIN));
        if connection.get("/livez").is_err() {
            self.avoid();
            return Ok(None);
        }
        connection.set_patience(Some(ANSWER_WITHIN));
        Ok(Some(connection))
    }

    fn push_single(&self, queue: &QueueName, data: &[u8], options: &PushOptions) -> Delivery {
        let body = single(queue, data, options).to_string();
        if self.gathering().is_avoiding() {
            return Delivery::Nobody;
        }
        let mut single = self.single.lock().unwrap_or_else(PoisonError::into_inner);
        let mut connection = match single.take().map_or_else(|| self.connect(), |ready| Ok(Some(ready))) {
            Ok(Some(connection)) => connection,
            Ok(None) => return Delivery::Nobody,
            Err(failure) => return Delivery::Failed(failure),
        };
        match connection.post("/api/v1/jobs", api::JSON, body.as_bytes()).and_then(stored) {
            Ok(delivery) => {
                *single = Some(connection);
                delivery
            }
            Err(failure) => self.refused(failure),
        }
    }

    fn gathering(&self) -> MutexGuard<'_, Gathering> {
        self.gathering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_landed<'g>(&self, gathering: MutexGuard<'g, Gathering>) -> MutexGuard<'g, Gathering> {
        self.landed.wait(gathering).unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Gathering {
    fn is_avoiding(&self) -> bool {
        self.avoid_until.is_some_and(|until| Instant::now() < until)
    }

    /// Lays a job down as a record and returns its place.
    fn add(&mut self, queue: &QueueName, data: &[u8], priority: Priority) -> u64 {
        let queue = queue.as_str().as_bytes();
        self.records.reserve(queue.len() + data.len() + 7);
        self.records.extend_from_slice(&(queue.len() as u16).to_le_bytes());
        self.records.extend_from_slice(queue);
        self.records.push(priority.value() as u8);
        self.records.extend_from_slice(&(data.len() as u32).to_le_bytes());
        self.records.extend_from_slice(data);
        self.count += 1;
        self.count - 1
    }
}

impl Ticket {
    fn settle(&self, delivery: Delivery) {
        *self.lock() = Some(delivery);
        self.delivered.notify_all();
    }

    fn wait(&self) -> Delivery {
        let mut delivery = self.lock();
        loop {
            match &*delivery {
                Some(known) => return known.clone(),
                None => delivery = self.delivered.wait(delivery).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Delivery>> {
        self.delivery.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The request for a job that has more than a queue and a priority.
fn single(queue: &QueueName, data: &[u8], options: &PushOptions) -> Value {
    let job = (api::Particulars::from(options.particulars.as_deref()), api::Data::new(data));
    let fields = [serde_json::to_value(job.0), serde_json::to_value(job.1)];
    let mut request = json!({
        "queue": queue.as_str(),
        "priority": options.priority.value(),
        "at": options.at.map(api::time_text),
        "run": options.run.map(|run| run.to_string()),
        "durability": options.durability.word(),
    });
    for (name, value) in fields.into_iter().flatten().filter_map(object).flatten() {
        request[name] = value;
    }
    request
}

fn object(value: Value) -> Option<serde_json::Map<String, Value>> {
    match value {
        Value::Object(fields) => Some(fields),
        _ => None,
    }
}

/// The first id of an acceptance.
fn stored(response: Response) -> Result<Delivery, Failure> {
    let accepted: api::Accepted = response.checked()?.json()?;
    let first = accepted.first.as_deref().and_then(|id| id.parse().ok()).ok_or_else(|| {
        Failure::new(Kind::Version, format!("the server accepted {} jobs but named no id", accepted.count))
    })?;
    Ok(if accepted.duplicate { Delivery::Duplicate(first) } else { Delivery::Stored(first) })
}

#[cfg(test)]
mod tests;
