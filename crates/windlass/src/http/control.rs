//! Routes about the server itself: health, counters, what runs, and the few orders it takes.

use super::app::{App, Call, json};
use super::problem::Problem;
use crate::api;
use crate::engine::Condition;
use crate::engine::event::{AsideInfo, Event, FlightInfo};
use crate::error::{Failure, Kind};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;
use windlass_core::life_cycle::State;
use windlass_core::supervisor::WorkerState;

/// An engine that has not turned for so long is not ready.
const TURN_PATIENCE: Duration = Duration::from_secs(5);
/// Open runs are counted up to here.
const RUNS_COUNTED: usize = 10_000;

pub(super) async fn alive(call: Call) -> Result<Response, Problem> {
    let verbose = call.query(&["verbose"])?.get("verbose").is_some();
    Ok(if verbose { "the process answers\nok\n" } else { "ok\n" }.into_response())
}

/// Ready is a server whose engine turns, which can store, and which nobody asked to stop.
pub(super) async fn ready(call: Call) -> Result<Response, Problem> {
    let verbose = call.query(&["verbose"])?.get("verbose").is_some();
    let turned = tokio::time::timeout(TURN_PATIENCE, call.app.ask(|answer| Event::Flights { answer })).await;
    match turned {
        _ if call.app.draining.load(Ordering::Relaxed) => Err(super::app::stopping().into()),
        Ok(Ok(flights)) => match call.app.handle.condition() {
            Condition::Halting | Condition::Draining => Err(super::app::stopping().into()),
            Condition::StoreAway => {
                Err(Failure::new(Kind::TryLater, "the database does not answer: nothing is accepted").into())
            }
            Condition::NoSpace => Err(Failure::new(Kind::TryLater, "the disk is full: nothing is accepted").into()),
            condition @ (Condition::ArchiveBehind | Condition::Paused | Condition::Quiet | Condition::Serving) => {
                let word = condition.word().replace('_', " ");
                let refused = (call.app.config)().refused.clone();
                let refused = refused.map(|why| format!("the last reload was refused, the old config holds: {why}\n"));
                let refused = refused.unwrap_or_default();
                let starts = flights.len();
                let told = format!("the engine turns\nthe server is {word}\nstarts under way: {starts}\n{refused}ok\n");
                Ok(if verbose { told.into_response() } else { "ok\n".into_response() })
            }
        },
        Ok(Err(failure)) => Err(Failure { kind: Kind::TryLater, ..failure }.into()),
        Err(_) => Err(Failure::new(Kind::TryLater, "the engine is busy and has not answered").into()),
    }
}

pub(super) async fn status(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let read = call.app.read(|reads| {
        let view = (reads.view)()?;
        let workers = reads.board.workers().counts();
        Ok((view.queues()?, view.runs(RUNS_COUNTED)?, reads.board.troubles(), workers))
    });
    let (queues, runs, troubles, workers) = read.await?;
    let stocked = stocked(&call.app).await?;
    let closed = call.app.ask(|answer| Event::Closed { answer }).await?;
    let mut aside: BTreeMap<String, api::steering::AsideStatus> = BTreeMap::new();
    for AsideInfo { queue, ids, why, .. } in call.app.ask(|answer| Event::Aside { answer }).await? {
        let known = aside.entry(queue).or_insert(api::steering::AsideStatus { jobs: 0, why: String::new() });
        (known.jobs, known.why) = (known.jobs + ids.len() as u64, why);
    }
    let mut totals: BTreeMap<String, u64> = State::ALL.iter().map(|state| (state.word().into(), 0)).collect();
    totals.insert("started".into(), 0);
    let mut by_name = BTreeMap::new();
    for queue in queues {
        let mut counts = api::queue_counts(&queue.stats);
        let ahead = stocked.get(queue.name.as_str()).copied().unwrap_or(0);
        let ahead = ahead.min(queue.stats.by_state[State::Running.index()]);
        counts.entry(State::Running.word().into()).and_modify(|count| *count -= ahead);
        counts.entry(State::Ready.word().into()).and_modify(|count| *count += ahead);
        for (word, count) in &counts {
            *totals.entry(word.clone()).or_default() += count;
        }
        by_name.insert(queue.name.to_string(), counts);
    }
    let peopled = WorkerState::ALL.iter().filter(|state| workers.in_state(**state) > 0);
    let status = api::Status {
        server: api::ServerStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            dir: call.app.dir.root().display().to_string(),
            durability: crate::store::Durability::Full.word().into(),
            condition: call.app.handle.condition().word().into(),
            stalemates: call.app.handle.stalemates(),
        },
        queues: by_name,
        closed: closed.into_iter().map(|(name, closed)| (name, closed.word().to_owned())).collect(),
        totals,
        aside,
        runs: api::RunsStatus { open: runs.iter().filter(|run| !run.counts.ended).count() as u64 },
        troubles: troubles.into_iter().collect(),
        workers: peopled.map(|state| (state.word().into(), u64::from(workers.in_state(*state)))).collect(),
    };
    json(StatusCode::OK, &status)
}

/// Jobs that were claimed ahead of their slots, by queue: they have not begun, so people count them as ready.
async fn stocked(app: &App) -> Result<HashMap<String, u64>, Failure> {
    let flights = app.ask(|answer| Event::Flights { answer }).await?;
    let mut stocked = HashMap::new();
    for flight in flights.iter().filter(|flight| flight.stocked) {
        *stocked.entry(flight.queue.clone()).or_default() += u64::from(flight.count);
    }
    Ok(stocked)
}

/// Answers when everything that can run has ended.
pub(super) async fn drained(call: Call) -> Result<Response, Problem> {
    let query = call.query(&["due_only", "here_only"])?;
    let [due_only, here_only] = ["due_only", "here_only"].map(|name| query.truth(name));
    let (due_only, here_only) = (due_only?.unwrap_or(false), here_only?.unwrap_or(false));
    let _place = call.app.stream()?;
    let ask = call.app.ask(|answer| Event::AwaitDrained { due_only, here_only, answer });
    let drained = call.app.unless_stopped(ask).await?;
    json(StatusCode::OK, &api::Drained { failed: drained.failed, cancelled: drained.cancelled })
}

pub(super) async fn flights(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let flights = call.app.ask(|answer| Event::Flights { answer }).await?;
    let shown = call.app.reads.board.workers().shown();
    let at: HashMap<_, _> = shown.iter().filter_map(|worker| Some((worker.about.job?, worker))).collect();
    let flight = |info: &FlightInfo| {
        let (worker, flight) = (at.get(&info.job), api::Flight::from(info));
        let state = worker.map(|worker| worker.state.word().to_owned());
        api::Flight { worker: worker.map(|worker| worker.number.0), worker_state: state, ..flight }
    };
    let items = flights.iter().map(flight).collect();
    json(StatusCode::OK, &api::Page { items, next: None })
}

pub(super) async fn nudge(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    call.no_body().await?;
    call.app.handle.send(Event::Nudge)?;
    json(StatusCode::ACCEPTED, &serde_json::json!({}))
}

pub(super) async fn stop(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let stop: api::Stop = call.json().await?;
    call.app.draining.store(true, Ordering::Relaxed);
    call.app.handle.send(match stop.mode {
        api::StopMode::Drain => Event::Drain,
        api::StopMode::Now => Event::Halt,
    })?;
    json(StatusCode::ACCEPTED, &stop)
}

/// The whole config is checked before anything of it holds; a refusal leaves the old one.
pub(super) async fn reload(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    call.no_body().await?;
    let reload = call.app.reload.clone();
    let by = call.caller();
    let changed = super::app::blocking(move || reload(by)).await?;
    json(StatusCode::OK, &serde_json::json!({ "changed": changed }))
}
