//! The same change to many jobs: found by reading, handed to the engine, done there.
//!
//! A set that fits one turn is handed over whole; a larger one is staged slice by slice and accepted at the end, so
//! that whoever goes away in the middle of the search has changed nothing, and whoever goes away later stops nothing.

use super::app::{App, Call, json};
use super::problem::Problem;
use super::selection::{self, Choice};
use crate::api::{self, Action};
use crate::clock;
use crate::engine::event::{Event, NewOperation, Report, Wish};
use crate::engine::handle::EngineHandle;
use crate::engine::operations::SLICE;
use crate::error::Failure;
use crate::store::Amendment;
use axum::http::StatusCode;
use axum::response::Response;
use std::sync::Arc;
use windlass_core::job::{Arrival, JobId, Priority};

/// A dry run shows so many of the jobs.
const SAMPLES: usize = 5;
/// So much of their data.
const DATA_SHOWN: usize = 200;

pub(super) async fn operate(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let asked: api::Operation = call.json().await?;
    let wish = wish(asked.action, asked.priority)?;
    let search = match (&asked.selector, &asked.ids) {
        (Some(selector), None) => Search::by_selector(selection::parse(selector)?),
        (None, Some(ids)) => Search::by_id(ids)?,
        (Some(_), Some(_)) | (None, None) => {
            return Err(Problem::refused("an operation has either a selector or ids"));
        }
    };
    // A job that was pushed before this was asked is meant too, though nobody has read it in yet.
    call.app.catch_up().await?;
    if asked.dry_run {
        return json(StatusCode::OK, &preview(&call.app, search, asked.expect).await?);
    }
    let (selector, by) = (asked.selector.clone(), call.caller());
    let operation = NewOperation { wish, selector, asked: clock::now(), by };
    let report = perform(&call.app, search, operation, asked.expect).await?;
    json(StatusCode::OK, &api::OperationResult { report, sample: Vec::new() })
}

/// The operations under way.
pub(super) async fn list(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let items = call.app.ask(|answer| Event::Operations { answer }).await?;
    json(StatusCode::OK, &api::Page { items: items.iter().map(api::OperationStatus::from).collect(), next: None })
}

pub(super) fn wish(action: Action, priority: Option<i8>) -> Result<Wish, Problem> {
    let range = "priority: expected a number from -100 to 100";
    let priority = match (action, priority) {
        (Action::Priority, Some(value)) => Priority::new(i64::from(value)).ok_or_else(|| Problem::refused(range))?,
        (Action::Priority, None) => return Err(Problem::refused(range)),
        (_, Some(_)) => return Err(Problem::refused("only the action priority has a priority")),
        (_, None) => Priority::NORMAL,
    };
    Ok(match action {
        Action::Retry => Wish::Amend(Amendment::Retry),
        Action::Cancel => Wish::Amend(Amendment::Cancel),
        Action::Suspend => Wish::Amend(Amendment::Suspend),
        Action::Resume => Wish::Amend(Amendment::Resume),
        Action::Priority => Wish::Amend(Amendment::Priority(priority)),
        Action::Delete => Wish::Delete,
    })
}

/// How many there are, and the first few.
async fn preview(app: &App, mut search: Search, expect: Option<u64>) -> Result<api::OperationResult, Failure> {
    let mut result = api::OperationResult::default();
    while let Some(found) = search.next(app, SAMPLES - result.sample.len()).await? {
        result.report.matched += found.ids.len() as u64;
        result.report.unknown += found.unknown;
        result.sample.extend(found.sample);
    }
    match expect.filter(|expected| *expected != result.report.matched) {
        Some(expected) => Err(crate::engine::operations::unexpected(expected, result.report.matched)),
        None => Ok(result),
    }
}

async fn perform(
    app: &App,
    mut search: Search,
    operation: NewOperation,
    expect: Option<u64>,
) -> Result<Report, Failure> {
    let mut ids = Vec::new();
    let mut staging: Option<Staging> = None;
    let mut unknown = 0;
    while let Some(found) = search.next(app, 0).await? {
        unknown += found.unknown;
        ids.extend(found.ids);
        while ids.len() > SLICE {
            let rest = ids.split_off(SLICE);
            let slice = std::mem::replace(&mut ids, rest);
            let number = match &staging {
                Some(staging) => staging.number,
                None => {
                    let operation = operation.clone();
                    let number = app.ask(|answer| Event::OpenOperation { operation, answer }).await?;
                    staging = Some(Staging { handle: app.handle.clone(), number, accepted: false });
                    number
                }
            };
            app.ask(|answer| Event::StageOperation { number, ids: slice, answer }).await?;
        }
    }
    let mut report = match staging {
        None => app.ask(|answer| Event::Operate { operation, ids, expect, answer }).await?,
        Some(mut staging) => {
            let number = staging.number;
            app.ask(|answer| Event::StageOperation { number, ids, answer }).await?;
            staging.accepted = true;
            app.ask(|answer| Event::AcceptOperation { number, expect, answer }).await?
        }
    };
    report.unknown += unknown;
    Ok(report)
}

/// An operation that is not accepted yet: gives it up if its caller goes away.
struct Staging {
    handle: EngineHandle,
    number: u64,
    accepted: bool,
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.accepted {
            // An engine that has ended forgets what was only staged.
            let _ = self.handle.send(Event::AbandonOperation { number: self.number });
        }
    }
}

/// Where the jobs come from, a slice at a time.
pub(super) enum Search {
    Ids(Vec<JobId>),
    Scan { choice: Arc<Choice>, from: Option<Arrival> },
}

#[derive(Default)]
pub(super) struct Found {
    pub(super) ids: Vec<JobId>,
    sample: Vec<api::Job>,
    pub(super) unknown: u64,
}

impl Search {
    pub(super) fn by_selector(choice: Choice) -> Search {
        Search::Scan { choice: Arc::new(choice), from: Some(Arrival(0)) }
    }

    pub(super) fn by_id(ids: &[String]) -> Result<Search, Problem> {
        let read = |text: &String| text.parse().map_err(|bad| Problem::refused(format!("{text} is {bad}")));
        let mut ids = ids.iter().map(read).collect::<Result<Vec<JobId>, Problem>>()?;
        ids.sort_unstable();
        ids.dedup();
        Ok(Search::Ids(ids))
    }

    /// The next jobs, and up to so many of them to show; nothing at the end.
    pub(super) async fn next(&mut self, app: &App, samples: usize) -> Result<Option<Found>, Failure> {
        match self {
            Search::Ids(ids) if ids.is_empty() => Ok(None),
            Search::Ids(ids) => {
                let slice: Vec<JobId> = ids.drain(..ids.len().min(SLICE)).collect();
                app.read(move |reads| by_id(&*(reads.view)()?, &slice, samples)).await.map(Some)
            }
            Search::Scan { choice, from } => {
                let Some(start) = *from else { return Ok(None) };
                let (chosen, view_of) = (choice.clone(), start);
                let (found, next) = app.read(move |reads| scan(&*(reads.view)()?, &chosen, view_of, samples)).await?;
                *from = next;
                Ok(Some(found))
            }
        }
    }
}

fn by_id(view: &dyn crate::store::StoreView, ids: &[JobId], samples: usize) -> Result<Found, Failure> {
    let mut found = Found::default();
    for id in ids {
        match view.job(*id)? {
            None => found.unknown += 1,
            Some(job) => {
                found.ids.push(*id);
                if found.sample.len() < samples {
                    found.sample.push(api::Job::new(&job, DATA_SHOWN));
                }
            }
        }
    }
    Ok(found)
}

fn scan(
    view: &dyn crate::store::StoreView,
    choice: &Choice,
    from: Arrival,
    samples: usize,
) -> Result<(Found, Option<Arrival>), Failure> {
    let mut found = Found::default();
    let (jobs, next) = choice.page(view, from, SLICE)?;
    for job in jobs {
        found.ids.push(job.id);
        if found.sample.len() < samples {
            found.sample.push(api::Job::new(&job, DATA_SHOWN));
        }
    }
    Ok((found, next))
}
