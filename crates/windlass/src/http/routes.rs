//! The table of routes: all there are, each with what serves it.
//!
//! `docs/http-api.md` describes every line of this table, and a test holds it to that.

use super::app::{App, Call};
use super::caller::Uid;
use super::guard::Peer;
use super::problem::Problem;
use super::{
    control, follow, import, jobs, lots, moves, operations, output, page, push, runs, schedules, servers, spools,
    stats, steer, watch, why, work, workers,
};
use crate::error::Kind;
use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

type Answering = Pin<Box<dyn Future<Output = Result<Response, Problem>> + Send>>;

/// One route.
#[derive(Clone, Copy)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    serve: fn(Call) -> Answering,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// Every route there is.
pub const TABLE: [Route; 53] = [
    get("/", |call| Box::pin(page::page(call))),
    get("/page.css", |call| Box::pin(page::style(call))),
    get("/page.js", |call| Box::pin(page::script(call))),
    get("/livez", |call| Box::pin(control::alive(call))),
    get("/healthz", |call| Box::pin(control::alive(call))),
    get("/readyz", |call| Box::pin(control::ready(call))),
    get("/api/v1/status", |call| Box::pin(control::status(call))),
    post("/api/v1/jobs", |call| Box::pin(push::push(call))),
    get("/api/v1/jobs", |call| Box::pin(jobs::list(call))),
    get("/api/v1/jobs/{id}", |call| Box::pin(jobs::show(call))),
    get("/api/v1/jobs/{id}/output", |call| Box::pin(output::output(call))),
    post("/api/v1/jobs/{id}/retry", |call| Box::pin(jobs::retry(call))),
    post("/api/v1/jobs/{id}/cancel", |call| Box::pin(jobs::cancel(call))),
    post("/api/v1/jobs/{id}/suspend", |call| Box::pin(jobs::suspend(call))),
    post("/api/v1/jobs/{id}/resume", |call| Box::pin(jobs::resume(call))),
    post("/api/v1/jobs/{id}/priority", |call| Box::pin(jobs::priority(call))),
    post("/api/v1/jobs/{id}/delete", |call| Box::pin(jobs::delete(call))),
    post("/api/v1/operations", |call| Box::pin(operations::operate(call))),
    get("/api/v1/operations", |call| Box::pin(operations::list(call))),
    get("/api/v1/stats", |call| Box::pin(stats::stats(call))),
    get("/api/v1/watch", |call| Box::pin(watch::watch(call))),
    post("/api/v1/import", |call| Box::pin(import::import(call))),
    post("/api/v1/moves", |call| Box::pin(moves::start(call))),
    post("/api/v1/lots/{id}", |call| Box::pin(lots::take(call))),
    get("/api/v1/lots/{id}", |call| Box::pin(lots::show(call))),
    post("/api/v1/lots/{id}/settled", |call| Box::pin(lots::settled(call))),
    post("/api/v1/runs", |call| Box::pin(runs::open(call))),
    get("/api/v1/runs", |call| Box::pin(runs::list(call))),
    get("/api/v1/runs/{id}", |call| Box::pin(runs::show(call))),
    post("/api/v1/runs/{id}/lines", |call| Box::pin(runs::lines(call))),
    post("/api/v1/runs/{id}/seal", |call| Box::pin(runs::seal(call))),
    get("/api/v1/runs/{id}/wait", |call| Box::pin(runs::wait(call))),
    get("/api/v1/runs/{id}/follow", |call| Box::pin(follow::follow(call))),
    get("/api/v1/drained", |call| Box::pin(control::drained(call))),
    get("/api/v1/flights", |call| Box::pin(control::flights(call))),
    get("/api/v1/workers", |call| Box::pin(workers::list(call))),
    post("/api/v1/nudge", |call| Box::pin(control::nudge(call))),
    post("/api/v1/stop", |call| Box::pin(control::stop(call))),
    post("/api/v1/reload", |call| Box::pin(control::reload(call))),
    get("/api/v1/config", |call| Box::pin(steer::config(call))),
    get("/api/v1/overrides", |call| Box::pin(steer::overrides(call))),
    post("/api/v1/overrides", |call| Box::pin(steer::steer(call))),
    post("/api/v1/work/claim", |call| Box::pin(work::claim(call))),
    post("/api/v1/work/heartbeat", |call| Box::pin(work::heartbeat(call))),
    post("/api/v1/jobs/{id}/reply", |call| Box::pin(work::reply(call))),
    post("/api/v1/jobs/{id}/control", |call| Box::pin(work::control(call))),
    post("/api/v1/jobs/{id}/emit", |call| Box::pin(work::emit(call))),
    get("/api/v1/schedules", |call| Box::pin(schedules::list(call))),
    post("/api/v1/schedules/{id}/run", |call| Box::pin(schedules::run(call))),
    get("/api/v1/servers", |call| Box::pin(servers::list(call))),
    post("/api/v1/servers/{id}/drain", |call| Box::pin(servers::drain(call))),
    get("/api/v1/spools", |call| Box::pin(spools::list(call))),
    get("/api/v1/why", |call| Box::pin(why::why(call))),
];

const fn get(path: &'static str, serve: fn(Call) -> Answering) -> Route {
    Route { method: "GET", path, serve }
}

const fn post(path: &'static str, serve: fn(Call) -> Answering) -> Route {
    Route { method: "POST", path, serve }
}

pub(super) fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new();
    for route in TABLE {
        let filter = if route.method == "GET" { MethodFilter::GET } else { MethodFilter::POST };
        let app = app.clone();
        router = router.route(route.path, on(filter, move |request: Request| dispatch(app, route, request)));
    }
    router.fallback(no_route).method_not_allowed_fallback(no_method)
}

async fn dispatch(app: Arc<App>, route: Route, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let id = match RawPathParams::from_request_parts(&mut parts, &()).await {
        Ok(params) => params.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default(),
        Err(bad) => return Problem::malformed(format!("the path is not text: {bad}")).into_response(),
    };
    let peer = parts.extensions.get::<Peer>().copied().unwrap_or(Peer::Stranger);
    let uid = parts.extensions.get::<Uid>().copied().unwrap_or(Uid(None));
    let query = parts.uri.query().map(str::to_owned);
    let call = Call { app, peer, uid, id, query, headers: parts.headers, body };
    (route.serve)(call).await.unwrap_or_else(IntoResponse::into_response)
}

async fn no_route() -> Response {
    Problem::not_found("there is no such route").hint("docs/http-api.md has them all").into_response()
}

async fn no_method() -> Response {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, Kind::Usage, "this route does not take that method").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that a caller can meet stands in the page, in the table's own words.
    #[test]
    fn every_route_stands_in_the_documentation() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/http-api.md");
        let text = std::fs::read_to_string(page).unwrap();
        let documented: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        let table: Vec<_> = TABLE.iter().map(|route| format!("{} {}", route.method, route.path)).collect();
        for route in &table {
            assert!(
                documented.iter().any(|heading| heading.trim_matches('`') == route),
                "{route} is not in docs/http-api.md"
            );
        }
        for heading in documented {
            assert!(table.iter().any(|route| heading.trim_matches('`') == route), "{heading} is not a route");
        }
    }
}
