//! Work comes in: bodies of four kinds become one lot, accepted as a whole or not at all.
//!
//! Everything is checked, numbered and laid into chunks here, so that the engine only has to store it. The ids of
//! one request are neighbours, whatever its jobs are.

use super::app::{App, Call, json, located};
use super::body::{Whole, too_large, unreadable};
use super::problem::Problem;
use super::query::{Query, durability};
use crate::api::{self, IDS_LISTED, JOBS_MAX, base64};
use crate::engine::event::Event;
use crate::particulars::TRACE_HEADERS;
use crate::store::chunk::ChunkBuilder;
use crate::store::keys::Duplicate;
use crate::store::{Durability, Lot, NewJobs, Taken};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use windlass_core::job::{DATA_MAX, JobId, Origin, Priority, QueueName, RunId};
use windlass_core::particulars::{Particulars, Trace};
use windlass_core::time::Time;

/// What jobs of one chunk have in common.
type Key<'a> = (&'a str, Priority, Option<RunId>, Option<Time>, Option<&'a Arc<Particulars>>);

/// One job of a request, borrowed from its body where it can be.
#[derive(Clone, Debug)]
pub(super) struct Incoming<'a> {
    queue: Cow<'a, str>,
    priority: Priority,
    run: Option<RunId>,
    at: Option<Time>,
    particulars: Option<Arc<Particulars>>,
    data: Cow<'a, [u8]>,
}

impl Incoming<'_> {
    /// A job that names no trace belongs to its request's.
    fn join(&mut self, traced: Option<&Arc<Particulars>>) {
        let Some(traced) = traced else { return };
        match &self.particulars {
            None => self.particulars = Some(Arc::clone(traced)),
            Some(own) if own.trace.is_some() => {}
            Some(own) => {
                let own = Particulars::clone(own);
                self.particulars = Some(Arc::new(Particulars { trace: traced.trace.clone(), ..own }));
            }
        }
    }
}

/// The trace that a request belongs to, as its headers say; a parent that is none is as if it were not there.
fn trace_of(headers: &HeaderMap) -> Option<Arc<Particulars>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let [parent, state, baggage] = TRACE_HEADERS.map(text);
    let trace = Trace::heard(parent, state, baggage)?;
    Some(Arc::new(Particulars { trace: Some(trace), ..Particulars::default() }))
}

pub(super) async fn push(mut call: Call) -> Result<Response, Problem> {
    let (media, whole) = call.body(&[api::JSON, api::LINES, api::BYTES, api::RECORDS]).await?;
    let traced = trace_of(&call.headers);
    match media {
        api::JSON => {
            let query = call.query(&["durability", "ids"])?;
            let (mut jobs, named) = from_json(&whole.bytes)?;
            jobs.iter_mut().for_each(|job| job.join(traced.as_ref()));
            accept(&call.app, &jobs, &query, named, None).await
        }
        api::RECORDS => {
            let query = call.query(&["run", "durability", "ids"])?;
            let mut jobs = from_records(&whole.bytes, run_of(&query)?)?;
            jobs.iter_mut().for_each(|job| job.join(traced.as_ref()));
            accept(&call.app, &jobs, &query, None, None).await
        }
        api::LINES | api::BYTES => {
            let query = call.query(&["queue", "priority", "at", "run", "durability", "ids"])?;
            let pattern = Incoming {
                queue: query.needed("queue")?.into(),
                priority: query
                    .get("priority")
                    .map(str::parse)
                    .transpose()
                    .map_err(Problem::refused)?
                    .unwrap_or_default(),
                run: run_of(&query)?,
                at: query.get("at").map(api::time_from_text).transpose()?,
                particulars: traced,
                data: Cow::Borrowed(&[]),
            };
            let jobs = match media {
                api::LINES => from_lines(&whole.bytes, b'\n', &pattern)?,
                _ => vec![Incoming { data: Cow::Borrowed(&whole.bytes), ..pattern.clone() }],
            };
            accept(&call.app, &jobs, &query, None, None).await
        }
        _ => Err(Problem::malformed("a body of an unknown type")),
    }
}

/// The next lines of a run's input; taken only if the run's input stands where the caller thinks.
pub(super) async fn push_lines(
    app: &App,
    whole: &Whole,
    query: &Query,
    run: RunId,
    (before, hash): (Taken, u64),
) -> Result<Response, Problem> {
    let pattern = Incoming {
        queue: query.needed("queue")?.into(),
        priority: Priority::NORMAL,
        run: Some(run),
        at: None,
        particulars: None,
        data: Cow::Borrowed(&[]),
    };
    let separator = if query.truth("null")?.unwrap_or(false) { 0 } else { b'\n' };
    let jobs = from_lines(&whole.bytes, separator, &pattern)?;
    let after = Taken { lines: before.lines + jobs.len() as u64, hash };
    accept(app, &jobs, query, None, Some((run, before, after))).await
}

async fn accept(
    app: &App,
    jobs: &[Incoming<'_>],
    query: &Query,
    named: Option<Durability>,
    taken: Option<(RunId, Taken, Taken)>,
) -> Result<Response, Problem> {
    let durability = query.durability()?.or(named).unwrap_or_default();
    let list = query.truth("ids")?.unwrap_or(jobs.len() <= IDS_LISTED);
    // A run's input names its jobs by their lines, so that a line has one id however often it is sent.
    let draw = || match taken {
        Some((run, before, _)) => (run.origin, before.lines + 1),
        None => app.handle.ids().take(jobs.len() as u64),
    };
    check_awaited(app, jobs).await?;
    let (mut lot, origin, first) = lay_out(jobs, draw)?;
    let mut duplicates = BTreeMap::new();
    if taken.is_some() || !jobs.is_empty() {
        lot.taken = taken;
        let found = app.ask(|answer| Event::Pushed { lot, durability, answer }).await?;
        duplicates.extend(found.into_iter().map(|Duplicate { id, of }| ((id.offset - first) as usize, of.to_string())));
    }
    // Who has the key stands for the one that was dropped.
    let own = |index: usize| JobId { origin, offset: first + index as u64 }.to_string();
    let id = |index: usize| duplicates.get(&index).cloned().unwrap_or_else(|| own(index));
    let answer = api::Accepted {
        count: jobs.len() as u64,
        ids: if list { (0..jobs.len()).map(id).collect() } else { Vec::new() },
        first: (!jobs.is_empty()).then(|| id(0)),
        last: jobs.len().checked_sub(1).map(id),
        durability: durability.word().into(),
        duplicate: jobs.len() == 1 && !duplicates.is_empty(),
        duplicates: duplicates.keys().copied().collect(),
    };
    let response = json(StatusCode::CREATED, &answer)?;
    Ok(if jobs.len() == 1 { located(response, &format!("/api/v1/jobs/{}", id(0))) } else { response })
}

/// Jobs can only wait for jobs that are known, and that may still succeed or have. The store looks again, in its turn.
async fn check_awaited(app: &App, jobs: &[Incoming<'_>]) -> Result<(), Problem> {
    let awaited = jobs.iter().filter_map(|job| job.particulars.as_ref()).flat_map(|special| special.after.clone());
    let awaited: BTreeSet<JobId> = awaited.collect();
    if awaited.is_empty() {
        return Ok(());
    }
    // An id is told before its job is read in.
    app.catch_up().await?;
    let refused = app.read(move |reads| {
        let view = (reads.view)()?;
        for id in awaited {
            if view.job(id)?.is_some() {
                continue;
            }
            let succeeded = |last: &serde_json::Value| last.get("state").is_some_and(|state| state == "succeeded");
            match (reads.archive.find)(id)?.last() {
                Some(last) if succeeded(last) => {}
                Some(_) => return Ok(Some(format!("{id} has ended, and did not succeed"))),
                None => return Ok(Some(format!("no job {id} to wait for"))),
            }
        }
        Ok(None)
    });
    match refused.await? {
        Some(why) => Err(Problem::refused(why).hint("nothing was stored")),
        None => Ok(()),
    }
}

/// Numbers the jobs in their order and gathers neighbours of one lane into chunks.
fn lay_out(jobs: &[Incoming<'_>], draw: impl FnOnce() -> (Origin, u64)) -> Result<(Lot, Origin, u64), Problem> {
    let mut lanes: Vec<(NewJobsOf, ChunkBuilder)> = Vec::new();
    let mut places: HashMap<Key<'_>, usize> = HashMap::new();
    let mut place = None;
    let mut lot = Lot::default();
    check_sizes(jobs)?;
    let (origin, first) = draw();
    for (index, job) in jobs.iter().enumerate() {
        let key: Key<'_> = (&job.queue, job.priority, job.run, job.at, job.particulars.as_ref());
        let lane = match place {
            Some((same, lane)) if same == key => lane,
            _ => match places.get(&key) {
                Some(lane) => *lane,
                None => {
                    let queue = QueueName::new(job.queue.as_bytes()).map_err(|bad| at_job(index, &bad))?;
                    let of = NewJobsOf { queue, priority: job.priority, run: job.run, not_before: job.at };
                    lanes.push((of, ChunkBuilder::new(origin).with(job.particulars.clone())));
                    places.insert(key, lanes.len() - 1);
                    lanes.len() - 1
                }
            },
        };
        place = Some((key, lane));
        let (of, builder) = &mut lanes[lane];
        builder.push(first + index as u64, &job.data);
        if builder.is_full() {
            lot.jobs.push(of.with(builder));
        }
    }
    let rest = lanes.iter_mut().filter(|(_, builder)| !builder.is_empty());
    lot.jobs.extend(rest.map(|(of, builder)| of.with(builder)));
    Ok((lot, origin, first))
}

/// A `NewJobs` without its chunk.
struct NewJobsOf {
    queue: QueueName,
    priority: Priority,
    run: Option<RunId>,
    not_before: Option<Time>,
}

impl NewJobsOf {
    fn with(&self, builder: &mut ChunkBuilder) -> NewJobs {
        let jobs = Arc::new(builder.finish());
        NewJobs { queue: self.queue.clone(), priority: self.priority, run: self.run, not_before: self.not_before, jobs }
    }
}

fn check_sizes(jobs: &[Incoming<'_>]) -> Result<(), Problem> {
    if jobs.len() > JOBS_MAX {
        return Err(too_large());
    }
    match jobs.iter().position(|job| job.data.len() > DATA_MAX) {
        Some(index) => {
            let length = jobs[index].data.len();
            Err(at_job(index, &format!("the data has {length} bytes, expected at most {DATA_MAX}")))
        }
        None => Ok(()),
    }
}

/// Says which job is meant; they are counted from nought, as in the request's own array.
fn at_job(index: usize, what: &dyn fmt::Display) -> Problem {
    Problem::refused(format!("job {index}: {what}")).hint("nothing was stored")
}

fn run_of(query: &Query) -> Result<Option<RunId>, Problem> {
    query.get("run").map(read_run).transpose()
}

fn read_run(text: &str) -> Result<RunId, Problem> {
    text.parse().map_err(|bad| Problem::refused(format!("{text:?} is no run: {bad}")))
}

/// One job a line; empty lines are nothing, and the last one may lack its end.
fn from_lines<'a>(body: &'a [u8], separator: u8, pattern: &Incoming<'a>) -> Result<Vec<Incoming<'a>>, Problem> {
    let lines = body.split(|byte| *byte == separator).filter(|line| !line.is_empty());
    let jobs: Vec<Incoming<'a>> =
        lines.take(JOBS_MAX + 1).map(|line| Incoming { data: Cow::Borrowed(line), ..pattern.clone() }).collect();
    if jobs.len() > JOBS_MAX { Err(too_large()) } else { Ok(jobs) }
}

fn from_records(body: &[u8], run: Option<RunId>) -> Result<Vec<Incoming<'_>>, Problem> {
    let mut jobs = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        if jobs.len() == JOBS_MAX {
            return Err(too_large());
        }
        let at = body.len() - rest.len();
        let record = read_record(&mut rest, run);
        jobs.push(
            record.ok_or_else(|| Problem::malformed(format!("job {}: no whole record at byte {at}", jobs.len())))?,
        );
    }
    Ok(jobs)
}

fn read_record<'a>(rest: &mut &'a [u8], run: Option<RunId>) -> Option<Incoming<'a>> {
    let length = u16::from_le_bytes(*rest.split_off(..2)?.first_chunk()?);
    let queue = std::str::from_utf8(rest.split_off(..usize::from(length))?).ok()?;
    let priority = Priority::new(i64::from(*rest.split_off_first()? as i8))?;
    let length = u32::from_le_bytes(*rest.split_off(..4)?.first_chunk()?);
    let data = rest.split_off(..length as usize)?;
    let (queue, data) = (Cow::Borrowed(queue), Cow::Borrowed(data));
    Some(Incoming { queue, priority, run, at: None, particulars: None, data })
}

/// A job as a client writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonJob<'a> {
    #[serde(borrow)]
    queue: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
    #[serde(borrow)]
    data_base64: Option<Cow<'a, str>>,
    #[serde(default)]
    priority: i64,
    #[serde(borrow)]
    at: Option<Cow<'a, str>>,
    #[serde(borrow)]
    run: Option<Cow<'a, str>>,
    #[serde(borrow)]
    durability: Option<Cow<'a, str>>,
    parent: Option<String>,
    subject: Option<api::Subject>,
    trace: Option<api::Trace>,
    unique: Option<api::Unique>,
    start_by: Option<String>,
    finish_by: Option<String>,
    #[serde(default)]
    after: Vec<String>,
    #[serde(default)]
    notify: Vec<String>,
    #[serde(default)]
    notify_on: Vec<String>,
}

/// An array of jobs that stops gathering, but not checking, one past the limit.
struct JsonJobs<'a>(Vec<JsonJob<'a>>);

impl<'de> Deserialize<'de> for JsonJobs<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<JsonJobs<'de>, D::Error> {
        struct Gather;
        impl<'de> Visitor<'de> for Gather {
            type Value = JsonJobs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a job or an array of jobs")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonJobs<'de>, A::Error> {
                let mut jobs = Vec::new();
                while jobs.len() <= JOBS_MAX {
                    match items.next_element()? {
                        Some(job) => jobs.push(job),
                        None => return Ok(JsonJobs(jobs)),
                    }
                }
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(JsonJobs(jobs))
            }
        }
        deserializer.deserialize_seq(Gather)
    }
}

fn from_json(body: &[u8]) -> Result<(Vec<Incoming<'_>>, Option<Durability>), Problem> {
    let array = body.trim_ascii_start().starts_with(b"[");
    let jobs = match array {
        true => serde_json::from_slice::<JsonJobs<'_>>(body).map(|jobs| jobs.0),
        false => serde_json::from_slice::<JsonJob<'_>>(body).map(|job| vec![job]),
    };
    let jobs = jobs.map_err(|e| unreadable(&e))?;
    if jobs.len() > JOBS_MAX {
        return Err(too_large());
    }
    let mut strongest = None;
    let mut incoming = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.into_iter().enumerate() {
        let named = job.durability.as_deref().map(durability).transpose()?;
        // One request is one commit: it is made as durable as the most careful of its jobs asks for.
        strongest = strongest.max(named);
        incoming.push(job.check(index)?);
    }
    Ok((incoming, strongest))
}

impl<'a> JsonJob<'a> {
    fn check(self, index: usize) -> Result<Incoming<'a>, Problem> {
        let data = match (self.data, self.data_base64) {
            (Some(Cow::Borrowed(text)), None) => Cow::Borrowed(text.as_bytes()),
            (Some(Cow::Owned(text)), None) => Cow::Owned(text.into_bytes()),
            (None, Some(text)) => {
                Cow::Owned(base64::decode(&text).ok_or_else(|| at_job(index, &"data_base64 is not base64"))?)
            }
            (None, None) => return Err(at_job(index, &"neither data nor data_base64 is given")),
            (Some(_), Some(_)) => return Err(at_job(index, &"both data and data_base64 are given")),
        };
        let JsonJob { parent, subject, trace, unique, start_by, finish_by, after, notify, notify_on, .. } = self;
        if self.at.is_some() && !after.is_empty() {
            return Err(at_job(index, &"both at and after are given"));
        }
        let times = api::Particulars { start_by, finish_by, after, ..api::Particulars::default() };
        let particulars = api::Particulars { parent, subject, trace, unique, notify, notify_on, ..times };
        let priority = Priority::new(self.priority);
        let range = format!("expected a priority between -100 and 100, got: {}", self.priority);
        Ok(Incoming {
            queue: self.queue,
            priority: priority.ok_or_else(|| at_job(index, &range))?,
            run: self.run.as_deref().map(read_run).transpose()?,
            at: self.at.as_deref().map(api::time_from_text).transpose()?,
            particulars: particulars.checked().map_err(|bad| at_job(index, &bad))?,
            data,
        })
    }
}
