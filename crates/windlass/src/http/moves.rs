//! Moves: waiting jobs of some queues, or those that a selector means, go to another server.
//!
//! The engine takes them out of their queues a claim at a time and has them sent; each claim is asked for when the one
//! before is known to have arrived, with two under way. Whoever goes away stops what is still to come, and nothing that
//! is on its way; asked again, a move goes on with what is left.

use super::app::{App, Call, json};
use super::guard::Peer;
use super::operations::Search;
use super::problem::Problem;
use super::selection;
use crate::api;
use crate::config;
use crate::engine::event::{Departed, Departure, Event, Wanted};
use crate::error::{Failure, Kind};
use crate::store::Filter;
use axum::http::StatusCode;
use axum::response::Response;
use std::path::Path;
use std::sync::Arc;
use tokio::task::JoinSet;
use windlass_core::job::{Arrival, JobId, QueueName};
use windlass_core::life_cycle::State;
use windlass_core::policy::Forward;

/// Claims of one queue that are on their way at once.
const AT_ONCE: usize = 2;
/// Jobs that are named to the engine at once.
const NAMED: usize = 1000;

/// Who moves what where.
#[derive(Clone)]
struct Errand {
    to: Forward,
    by: String,
    chosen: String,
}

pub(super) async fn start(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let asked: api::Move = call.json().await?;
    let to = target(&call, &asked)?;
    let chosen = asked.selector.clone().unwrap_or_else(|| {
        let named = asked.queues.as_ref().map(|queues| format!("queue:{}", queues.join(",")));
        named.unwrap_or_else(|| "by id".to_owned())
    });
    let errand = Errand { chosen: format!("{chosen}, to {to}"), to, by: call.caller() };
    // A job that was pushed before this was asked is meant too, though nobody has read it in yet.
    let mut report = Departed::default();
    match (asked.queues, asked.selector, asked.ids) {
        (Some(queues), None, None) => {
            for queue in &queues {
                QueueName::new(queue.as_bytes()).map_err(|e| Problem::refused(e.to_string()))?;
            }
            call.app.catch_up().await?;
            for queue in queues {
                if report.refused.is_none() {
                    report.add(whole_queue(&call.app, &queue, &errand).await?);
                }
            }
        }
        (None, Some(selector), None) => {
            let search = Search::by_selector(selection::parse(&selector)?);
            call.app.catch_up().await?;
            report = found(&call.app, search, &errand).await?;
        }
        (None, None, Some(ids)) => {
            let search = Search::by_id(&ids)?;
            call.app.catch_up().await?;
            report = found(&call.app, search, &errand).await?;
        }
        _ => return Err(Problem::refused("a move has either queues, a selector or ids")),
    }
    json(StatusCode::OK, &report)
}

/// Where it goes. What only the config may say of URLs, the server's own user may say too.
fn target(call: &Call, asked: &api::Move) -> Result<Forward, Problem> {
    let loaded = (call.app.config)();
    let hosts = &loaded.config.hosts;
    let mut to = config::forward_target(&asked.to, hosts).map_err(|why| Problem::refused(format!("`to`: {why}")))?;
    let own = call.peer == Peer::Own;
    to.host.inside |= own;
    if (asked.token_file.is_some() || asked.address_file.is_some()) && !own {
        let text = "only the server's own user may name a file with a token or an address";
        return Err(Failure::new(Kind::NotPermitted, text).hint("call it on its Unix socket").into());
    }
    if let Some(file) = &asked.token_file {
        config::token_file(Path::new(file)).map_err(|why| Problem::refused(format!("`token_file` {file}: {why}")))?;
    }
    (to.token_file, to.address_file) = (asked.token_file.clone(), asked.address_file.clone());
    Ok(to)
}

/// Everything of a queue that waits: what is ready in the order in which it would start, then the rest.
async fn whole_queue(app: &Arc<App>, queue: &str, errand: &Errand) -> Result<Departed, Failure> {
    let mut under_way = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (app, queue, errand) = (Arc::clone(app), queue.to_owned(), errand.clone());
        under_way.spawn(async move { ready_ones(&app, &queue, &errand).await });
    }
    let mut report = Departed::default();
    while let Some(done) = under_way.join_next().await {
        let ended = |e| Failure::new(Kind::Internal, format!("a part of the move did not end: {e}"));
        report.add(done.map_err(ended)??);
    }
    // Those of runs are met again below, by their names.
    report.left.clear();
    let states = vec![State::Scheduled, State::Ready, State::Retrying, State::Suspended];
    let filter = Filter { queues: vec![queue.to_owned()], states, ..Filter::default() };
    let mut from = Some(Arrival(0));
    while let Some(start) = from.filter(|_| report.refused.is_none()) {
        let filter = filter.clone();
        let page = app.read(move |reads| Ok((reads.view)()?.list(&filter, start, NAMED)?)).await?;
        from = page.next;
        let ids: Vec<JobId> = page.jobs.into_iter().map(|job| job.id).collect();
        if !ids.is_empty() {
            report.add(depart(app, Wanted::Ids(ids), errand).await?);
        }
    }
    Ok(report)
}

/// Until none is left, the other server refuses, or a job of a run stands in front.
async fn ready_ones(app: &App, queue: &str, errand: &Errand) -> Result<Departed, Failure> {
    let mut report = Departed::default();
    loop {
        let done = depart(app, Wanted::Ready(queue.to_owned()), errand).await?;
        let over = done.held == 0 || done.refused.is_some() || !done.left.is_empty();
        report.add(done);
        if over {
            return Ok(report);
        }
    }
}

async fn found(app: &App, mut search: Search, errand: &Errand) -> Result<Departed, Failure> {
    let mut report = Departed::default();
    while report.refused.is_none()
        && let Some(found) = search.next(app, 0).await?
    {
        if found.unknown > 0 {
            report.leave("are not here any more", found.unknown);
        }
        if !found.ids.is_empty() {
            report.add(depart(app, Wanted::Ids(found.ids), errand).await?);
        }
    }
    Ok(report)
}

async fn depart(app: &App, wanted: Wanted, errand: &Errand) -> Result<Departed, Failure> {
    let Errand { to, by, chosen } = errand.clone();
    let departure = Departure { wanted, to, by, chosen };
    app.ask(|answer| Event::Depart { departure, answer }).await
}
