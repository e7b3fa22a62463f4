//! Routes about jobs that are there: finding them, and what a person may ask of them.
//!
//! Live and kept jobs come from the store, finished ones from the archive.

use super::app::{App, Call, json};
use super::problem::Problem;
use super::selection;
use crate::api::{self, Action, PAGE_MAX};
use crate::clock;
use crate::engine::event::{Event, NewOperation, Report, Wish};
use crate::engine::operations::is_so;
use crate::error::{Failure, Kind};
use crate::store::{Amended, Amendment, Filter};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value};
use windlass_core::job::{Arrival, JobId};
use windlass_core::life_cycle::State;

/// Lists show so much of a job's data.
const DATA_LISTED: usize = 200;
const PAGE: u64 = 50;

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
        if let Some(from) = live.and(from) {
            let (jobs, next) = choice.page(&*view, Arrival(from), limit)?;
            for job in &jobs {
                let said = reads.board.of(job.id);
                page.items.push(to_value(&api::Job::new(job, DATA_LISTED).saying(said))?);
            }
            page.next = next.map(|next| next.0.to_string());
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
    json(StatusCode::OK, &find_or_wait(&call.app, id).await?)
}

/// A job, also one that is on its way in.
pub(super) async fn find_or_wait(app: &App, id: JobId) -> Result<Value, Problem> {
    let mut found = find(app, id).await?;
    let behind = found.as_ref().is_some_and(|job| !is_whole(job));
    if behind {
        app.catch_up_in_time().await;
    } else if found.is_none() {
        app.catch_up().await?;
    }
    if behind || found.is_none() {
        found = find(app, id).await?;
    }
    found.ok_or_else(|| no_job(id))
}

async fn find(app: &App, id: JobId) -> Result<Option<Value>, Failure> {
    let found = app.read(move |reads| {
        let info = (reads.view)()?.job(id)?;
        let history = (reads.archive.find)(id)?;
        Ok(match info {
            Some(info) => {
                let at = reads.board.workers().at(id).filter(|_| info.state == State::Running);
                let worker = at.map(|shown| api::Worker::new(&shown, &reads.board));
                let job = api::Job { history, worker, ..api::Job::new(&info, usize::MAX) };
                Some(to_value(&job.saying(reads.board.of(id)))?)
            }
            None => finished(id, history),
        })
    });
    found.await
}

/// Whether the archive has all attempts of a job that does not run; it comes a little behind the store.
fn is_whole(job: &Value) -> bool {
    let starts = job.pointer("/attempts/starts").and_then(Value::as_u64).unwrap_or(0);
    let attempts = job.get("history").and_then(Value::as_array).map_or(0, Vec::len);
    attempts as u64 >= starts || job.get("state").and_then(Value::as_str) == Some(State::Running.word())
}

/// A job that only the archive knows: what its last attempt says about it, and all attempts.
fn finished(id: JobId, history: Vec<Value>) -> Option<Value> {
    let mut job: Map<String, Value> = as_job(history.last()?.clone()).as_object().cloned().unwrap_or_default();
    job.insert("id".into(), id.to_string().into());
    job.entry("state").or_insert_with(|| State::Succeeded.word().into());
    job.insert("history".into(), history.into());
    Some(job.into())
}

pub(super) async fn retry(call: Call) -> Result<Response, Problem> {
    amend(call, Amendment::Retry).await
}

pub(super) async fn cancel(call: Call) -> Result<Response, Problem> {
    amend(call, Amendment::Cancel).await
}

pub(super) async fn suspend(call: Call) -> Result<Response, Problem> {
    amend(call, Amendment::Suspend).await
}

pub(super) async fn resume(call: Call) -> Result<Response, Problem> {
    amend(call, Amendment::Resume).await
}

pub(super) async fn priority(mut call: Call) -> Result<Response, Problem> {
    let wanted: api::NewPriority = call.json().await?;
    match super::operations::wish(Action::Priority, Some(wanted.priority))? {
        Wish::Amend(amendment) => amend_one(call, amendment).await,
        Wish::Delete => Err(Problem::refused("a priority does not delete")),
    }
}

/// Removes a job that does not run; the archive keeps its last line.
pub(super) async fn delete(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    call.no_body().await?;
    let id = call.job()?;
    call.app.catch_up().await?;
    let operation = NewOperation { wish: Wish::Delete, selector: None, asked: clock::now(), by: call.caller() };
    let report = call.app.ask(|answer| Event::Operate { operation, ids: vec![id], expect: None, answer }).await?;
    match report {
        Report { changed: 1, .. } => json(StatusCode::OK, &changed(id, "done", None, None)),
        Report { refused: 1, .. } => Err(refused(id, State::Running)),
        _ => Err(unknown(&call.app, id).await?),
    }
}

async fn amend(mut call: Call, amendment: Amendment) -> Result<Response, Problem> {
    call.no_body().await?;
    amend_one(call, amendment).await
}

async fn amend_one(call: Call, amendment: Amendment) -> Result<Response, Problem> {
    call.query(&[])?;
    let id = call.job()?;
    let (app, by) = (&call.app, call.caller());
    let ask = || app.ask(|answer| Event::Amend { ids: vec![id], amendment, by: by.clone(), answer });
    let mut amended = ask().await?;
    if amended.first() == Some(&Amended::Unknown) {
        call.app.catch_up().await?;
        amended = ask().await?;
    }
    match amended.first().copied().unwrap_or(Amended::Unknown) {
        Amended::Done { from, to } => json(StatusCode::OK, &changed(id, "done", Some(from), Some(to))),
        Amended::Running => json(StatusCode::ACCEPTED, &changed(id, "running", Some(State::Running), None)),
        Amended::Same(state) => json(StatusCode::OK, &changed(id, "already", Some(state), Some(state))),
        Amended::Refused(state) if is_so(amendment, state) => {
            json(StatusCode::OK, &changed(id, "already", Some(state), Some(state)))
        }
        Amended::Refused(state) => Err(refused(id, state)),
        Amended::Taken(holder) => Err(Failure::new(Kind::Conflict, format!("{holder} has the unique key of {id}"))
            .hint("windlass cancel the one or wait for its end")
            .into()),
        Amended::Unknown => Err(unknown(&call.app, id).await?),
    }
}

fn changed(id: JobId, result: &str, from: Option<State>, to: Option<State>) -> api::Changed {
    let word = |state: State| state.word().into();
    api::Changed { id: id.to_string(), result: result.into(), from: from.map(word), to: to.map(word) }
}

fn refused(id: JobId, state: State) -> Problem {
    Failure::new(Kind::Conflict, format!("{id} is {state}, which does not allow it")).into()
}

/// A job that succeeded has left the store for the archive: it is there, but nothing more can be done to it.
async fn unknown(app: &App, id: JobId) -> Result<Problem, Failure> {
    let known = app.read(move |reads| (reads.archive.find)(id)).await?;
    Ok(match known.is_empty() {
        true => no_job(id),
        false => Failure::new(Kind::Conflict, format!("{id} has ended, which does not allow it")).into(),
    })
}

fn no_job(id: JobId) -> Problem {
    Problem::not_found(format!("no job {id}")).hint("finished jobs are kept for their retention only")
}

fn to_value(job: &api::Job) -> Result<Value, Failure> {
    serde_json::to_value(job).map_err(|e| Failure::new(Kind::Internal, format!("cannot write a job: {e}")))
}
