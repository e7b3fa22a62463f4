//! Routes about runs: opening, feeding, sealing and awaiting them.

use super::app::{App, Call, json, located};
use super::guard::Peer;
use super::problem::Problem;
use super::push;
use crate::api::{self, PAGE_MAX};
use crate::engine::event::{Answer, Event, OpenRun};
use crate::error::{Failure, Kind};
use crate::store::{RunInfo, Taken};
use axum::http::StatusCode;
use axum::response::Response;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use windlass_core::job::RunId;

const NAME_MAX: usize = 200;
const PAGE: u64 = 50;

pub(super) async fn open(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let asked: api::NewRun = call.json().await?;
    if asked.service.is_some() && call.peer != Peer::Own {
        let text = "a run with a command is taken over the Unix socket only";
        return Err(Problem::new(StatusCode::FORBIDDEN, Kind::NotPermitted, text)
            .hint("only there does the kernel say whose command it is"));
    }
    if asked.name.len() > NAME_MAX || asked.name.chars().any(char::is_control) {
        return Err(Problem::refused(format!("a run's name has at most {NAME_MAX} bytes and no control characters")));
    }
    let service = asked.service.as_ref().map(api::NewService::to_service).transpose()?;
    let terms = asked.terms().checked()?;
    let request = OpenRun { name: asked.name, service, terms };
    let info = call.app.ask(|answer| Event::OpenRun { request, answer }).await?;
    Ok(located(json(StatusCode::CREATED, &api::Run::from(&info))?, &format!("/api/v1/runs/{}", info.id)))
}

pub(super) async fn list(call: Call) -> Result<Response, Problem> {
    let limit = call.query(&["limit"])?.number("limit", 1, PAGE_MAX as u64)?.unwrap_or(PAGE) as usize;
    call.app.catch_up_in_time().await;
    let runs = call.app.read(move |reads| Ok((reads.view)()?.runs(limit)?)).await?;
    json(StatusCode::OK, &api::Page { items: runs.iter().map(api::Run::from).collect(), next: None })
}

pub(super) async fn show(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let id = call.run()?;
    let find = async || call.app.read(move |reads| Ok((reads.view)()?.run(id)?)).await;
    let mut info = find().await?;
    // The seal is the last that a producer writes: before it, jobs that were told may still stand in the inbox.
    if !info.as_ref().is_some_and(|info| info.counts.sealed) {
        call.app.catch_up_in_time().await;
        info = find().await?;
    }
    let info = info.ok_or_else(|| Problem::not_found(format!("no run {id}")))?;
    json(StatusCode::OK, &api::Run::from(&info))
}

pub(super) async fn lines(mut call: Call) -> Result<Response, Problem> {
    let query = call.query(&["queue", "lines", "hash", "then_hash", "null", "durability", "ids"])?;
    let run = call.run()?;
    let hash = |key: &str| {
        let text = query.needed(key)?;
        api::hash_from_text(text)
            .ok_or_else(|| Problem::malformed(format!("{key}={text}: expected up to 16 hexadecimal digits")))
    };
    query.needed("lines")?;
    let before = Taken { lines: query.number("lines", 0, u64::MAX >> 1)?.unwrap_or(0), hash: hash("hash")? };
    let after = hash("then_hash")?;
    let (_, whole) = call.body(&[api::LINES, api::BYTES]).await?;
    push::push_lines(&call.app, &whole, &query, run, (before, after)).await
}

pub(super) async fn seal(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    call.no_body().await?;
    let run = call.run()?;
    call.app.ask(|answer| Event::SealRun { run, answer }).await?;
    json(StatusCode::OK, &serde_json::json!({ "id": run.to_string() }))
}

/// Answers when the run has ended.
pub(super) async fn wait(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let run = call.run()?;
    let _place = call.app.stream()?;
    let ended = async {
        let (answer, first) = call.app.waiting.join(run);
        if first {
            let answer = call.app.waiting.answer(run);
            call.app.handle.send(Event::AwaitRun { run, answer })?;
        }
        answer.await.unwrap_or_else(|_| Err(super::app::stopping()))
    };
    let info = or_ended(&call.app, run, call.app.unless_stopped(ended).await).await?;
    json(StatusCode::OK, &api::Run::from(&info))
}

/// The engine knows only runs that have not ended; the store knows the others.
pub(super) async fn or_ended(app: &App, run: RunId, told: Result<RunInfo, Failure>) -> Result<RunInfo, Failure> {
    match told {
        Err(failure) if failure.kind == Kind::NotFound => {
            let info = app.read(move |reads| Ok((reads.view)()?.run(run)?)).await?;
            info.filter(|info| info.counts.ended).ok_or(failure)
        }
        told => told,
    }
}

type Waiter = oneshot::Sender<Result<RunInfo, Failure>>;

/// Who waits for which run: the engine is asked once a run, however many clients come and go meanwhile.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<HashMap<RunId, Vec<Waiter>>>);

impl Waiting {
    /// A place in the line, and whether the engine has to be asked.
    fn join(&self, run: RunId) -> (oneshot::Receiver<Result<RunInfo, Failure>>, bool) {
        let (give, answer) = oneshot::channel();
        let mut runs = self.lock();
        let first = !runs.contains_key(&run);
        let waiters = runs.entry(run).or_default();
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(give);
        (answer, first)
    }

    /// What the engine is given: tells all who still wait, and lets them go if the engine ends instead.
    fn answer(self: &Arc<Waiting>, run: RunId) -> Answer<RunInfo> {
        let mut told = Told { waiting: self.clone(), run, done: false };
        Answer::new(move |result| {
            for waiter in told.take() {
                // Whoever has gone away no longer wants it.
                let _ = waiter.send(result.clone());
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Vec<Waiter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Empties its line when it goes, also unanswered.
struct Told {
    waiting: Arc<Waiting>,
    run: RunId,
    /// The line that this answer is for was taken; a later one belongs to a later question.
    done: bool,
}

impl Told {
    fn take(&mut self) -> Vec<Waiter> {
        if std::mem::replace(&mut self.done, true) {
            return Vec::new();
        }
        self.waiting.lock().remove(&self.run).unwrap_or_default()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.take();
    }
}
