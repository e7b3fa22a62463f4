//! Routes about jobs that are there: finding them, and what a person may ask of them.
//!
//! Live and kept jobs come from the store, finished ones from the archive.

use super::app::{App, Call, json};
use super::problem::Problem;
use super::selection::{self, Choice};
use crate::api::{self, Action, PAGE_MAX};
use crate::engine::event::Event;
use crate::error::{Failure, Kind};
use crate::store::{Amended, Amendment, Filter};
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value};
use std::sync::Arc;
use windlass_core::job::{Arrival, JobId};
use windlass_core::life_cycle::State;

/// Lists show so much of a job's data.
const DATA_LISTED: usize = 200;
const PAGE: u64 = 50;
/// Bulk changes go to the engine in slices of this many.
const SLICE: usize = 1000;

pub(super) async fn list(call: Call) -> Result<Response, Problem> {
    let query = call.query(&["selector", "limit", "cursor"])?;
    let choice = selection::parse(query.get("selector").unwrap_or(""))?;
    let limit = query.number("limit", 1, PAGE_MAX as u64)?.unwrap_or(PAGE) as usize;
    // Live jobs come first, from an arrival on; then finished ones, from a place in the archive on.
    let (from, place) = match query.get("cursor").map(|cursor| cursor.strip_prefix('a').ok_or(cursor)) {
        Some(Ok(place)) => (None, Some(place.to_owned())),
        Some(Err(_)) => (query.number("cursor", 0, u64::MAX)?, None),
        None => (Some(0), None),
    };
    if from == Some(0) {
        call.app.catch_up().await?;
    }
    let page = call.app.read(move |reads| {
        let mut page = api::Page { items: Vec::new(), next: None };
        let view = (reads.view)()?;
        let Some(filter) = choice.filter(&*view)? else { return Ok(page) };
        let (live, archived) = split(&filter);
        if let Some((filter, from)) = live.zip(from) {
            let found = view.list(&filter, Arrival(from), limit)?;
            for job in found.jobs.iter().filter(|job| choice.wants(job)) {
                let said = reads.board.of(job.id);
                page.items.push(to_value(&api::Job::new(job, DATA_LISTED).saying(said))?);
            }
            page.next = found.next.map(|next| next.0.to_string());
        }
        let archived = archived.filter(|_| page.next.is_none() && choice.may_be_archived());
        if let Some(filter) = archived.filter(|_| page.items.len() < limit) {
            let (items, next) = (reads.archive.list)(&filter, place.as_deref(), limit - page.items.len())?;
            page.items.extend(items.into_iter().filter(|item| choice.wants_archived(item)).map(as_job));
            page.next = next.map(|place| format!("a{place}"));
        }
        Ok(page)
    });
    json(StatusCode::OK, &page.await?)
}

/// An archived attempt in the words of a job.
fn as_job(mut attempt: Value) -> Value {
    if let Some(fields) = attempt.as_object_mut() {
        let starts = fields.get("start").cloned().unwrap_or_default();
        fields.insert("attempts".into(), serde_json::json!({ "starts": starts }));
        fields.insert("ended".into(), fields.get("finished").cloned().unwrap_or_default());
    }
    attempt
}

/// The part of a choice that the store can answer, and the part that only the archive can.
fn split(filter: &Filter) -> (Option<Filter>, Option<Filter>) {
    let all = filter.states.is_empty();
    let live: Vec<State> = filter.states.iter().copied().filter(|state| *state != State::Succeeded).collect();
    let archived = all || filter.states.contains(&State::Succeeded);
    let live = (all || !live.is_empty()).then(|| Filter { states: live, ..filter.clone() });
    (live, archived.then(|| Filter { states: vec![State::Succeeded], ..filter.clone() }))
}

pub(super) async fn show(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let id = call.job()?;
    let mut found = find(&call.app, id).await?;
    if found.is_none() {
        call.app.catch_up().await?;
        found = find(&call.app, id).await?;
    }
    json(StatusCode::OK, &found.ok_or_else(|| no_job(id))?)
}

async fn find(app: &App, id: JobId) -> Result<Option<Value>, Failure> {
    let found = app.read(move |reads| {
        let info = (reads.view)()?.job(id)?;
        let history = (reads.archive.find)(id)?;
        Ok(match info {
            Some(info) => {
                let job = api::Job { history, ..api::Job::new(&info, usize::MAX) };
                Some(to_value(&job.saying(reads.board.of(id)))?)
            }
            None => finished(id, history),
        })
    });
    found.await
}

/// A job that only the archive knows: what its last attempt says about it, and all attempts.
fn finished(id: JobId, history: Vec<Value>) -> Option<Value> {
    let mut job: Map<String, Value> = as_job(history.last()?.clone()).as_object().cloned().unwrap_or_default();
    job.insert("id".into(), id.to_string().into());
    job.entry("state").or_insert_with(|| State::Succeeded.word().into());
    job.insert("history".into(), history.into());
    Some(job.into())
}

pub(super) async fn output(call: Call) -> Result<Response, Problem> {
    let query = call.query(&["stream", "start"])?;
    let id = call.job()?;
    let start = query.number("start", 1, u64::from(u32::MAX))?.map(|start| start as u32);
    let stderr = match query.get("stream").unwrap_or("stdout") {
        "stdout" => false,
        "stderr" => true,
        other => return Err(Problem::malformed(format!("stream={other}: expected stdout or stderr"))),
    };
    let mut bytes = call.app.read(move |reads| (reads.archive.output)(id, start, stderr)).await?;
    if bytes.is_none() {
        call.app.catch_up().await?;
        bytes = call.app.read(move |reads| (reads.archive.output)(id, start, stderr)).await?;
    }
    let bytes = bytes.ok_or_else(|| {
        Problem::not_found(format!("no output of {id} is kept")).hint("it comes with the end of an attempt")
    })?;
    let mut response = Response::new(Body::from(bytes));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(api::BYTES));
    Ok(response)
}

pub(super) async fn retry(call: Call) -> Result<Response, Problem> {
    amend(call, Amendment::Retry).await
}

pub(super) async fn cancel(call: Call) -> Result<Response, Problem> {
    amend(call, Amendment::Cancel).await
}

async fn amend(mut call: Call, amendment: Amendment) -> Result<Response, Problem> {
    call.query(&[])?;
    call.no_body().await?;
    let id = call.job()?;
    let mut amended = call.app.ask(|answer| Event::Amend { ids: vec![id], amendment, answer }).await?;
    if amended.first() == Some(&Amended::Unknown) {
        call.app.catch_up().await?;
        amended = call.app.ask(|answer| Event::Amend { ids: vec![id], amendment, answer }).await?;
    }
    let changed = |result: &str, from: Option<State>, to: Option<State>| api::Changed {
        id: id.to_string(),
        result: result.into(),
        from: from.map(|state| state.word().into()),
        to: to.map(|state| state.word().into()),
    };
    match amended.first().copied().unwrap_or(Amended::Unknown) {
        Amended::Done { from, to } => json(StatusCode::OK, &changed("done", Some(from), Some(to))),
        Amended::Running => json(StatusCode::ACCEPTED, &changed("running", Some(State::Running), None)),
        Amended::Refused(state) => {
            Err(Failure::new(Kind::Conflict, format!("{id} is {state}, which does not allow it")).into())
        }
        Amended::Unknown => {
            // A job that succeeded has left the store for the archive: it is there, but nothing more can be done to it.
            let known = call.app.read(move |reads| (reads.archive.find)(id)).await?;
            Err(if known.is_empty() {
                no_job(id)
            } else {
                Failure::new(Kind::Conflict, format!("{id} has ended, which does not allow it")).into()
            })
        }
    }
}

/// The same change to many jobs, a slice at a time; a caller that goes away stops it between two slices.
pub(super) async fn operate(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let operation: api::Operation = call.json().await?;
    let choice = Arc::new(selection::parse(&operation.selector)?);
    let amendment = match operation.action {
        Action::Retry => Amendment::Retry,
        Action::Cancel => Amendment::Cancel,
    };
    let mut result = api::OperationResult::default();
    let mut from = Some(Arrival(0));
    while let Some(start) = from {
        let (ids, next) = slice(&call.app, &choice, start).await?;
        result.matched += ids.len() as u64;
        from = next;
    }
    if let Some(expected) = operation.expect.filter(|expected| *expected != result.matched) {
        let text = format!("{} jobs match, {expected} were expected; nothing was changed", result.matched);
        return Err(Failure::new(Kind::Conflict, text).into());
    }
    let mut left = if operation.dry_run { 0 } else { result.matched };
    from = Some(Arrival(0));
    // A job that was changed may come by again behind the others; the count bounds the work for good.
    while let Some(start) = from.filter(|_| left > 0) {
        let (mut ids, next) = slice(&call.app, &choice, start).await?;
        ids.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= ids.len() as u64;
        from = next;
        if ids.is_empty() {
            continue;
        }
        for amended in call.app.ask(|answer| Event::Amend { ids, amendment, answer }).await? {
            match amended {
                Amended::Done { .. } => result.changed += 1,
                Amended::Running => result.running += 1,
                Amended::Refused(_) | Amended::Unknown => result.refused += 1,
            }
        }
    }
    json(StatusCode::OK, &result)
}

async fn slice(app: &App, choice: &Arc<Choice>, from: Arrival) -> Result<(Vec<JobId>, Option<Arrival>), Failure> {
    let choice = choice.clone();
    let read = app.read(move |reads| {
        let view = (reads.view)()?;
        let Some(filter) = choice.filter(&*view)? else { return Ok((Vec::new(), None)) };
        let page = view.list(&filter, from, SLICE)?;
        Ok((page.jobs.iter().filter(|job| choice.wants(job)).map(|job| job.id).collect(), page.next))
    });
    read.await
}

fn no_job(id: JobId) -> Problem {
    Problem::not_found(format!("no job {id}")).hint("finished jobs are kept for their retention only")
}

fn to_value(job: &api::Job) -> Result<Value, Failure> {
    serde_json::to_value(job).map_err(|e| Failure::new(Kind::Internal, format!("cannot write a job: {e}")))
}
