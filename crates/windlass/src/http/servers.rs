//! Routes of the servers that share a store: who is there, and asking one of them to end in order.

use super::app::{Call, json};
use super::problem::Problem;
use crate::api::{Page, servers::Server};
use crate::engine::event::Event;
use axum::http::StatusCode;
use axum::response::Response;

pub(super) async fn list(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let servers = call.app.read(|reads| Ok((reads.view)()?.servers()?)).await?;
    json(StatusCode::OK, &Page { items: servers.iter().map(Server::from).collect(), next: None })
}

pub(super) async fn drain(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let name = call.id.clone();
    match call.app.ask(|answer| Event::DrainServer { name, answer }).await? {
        true => json(StatusCode::ACCEPTED, &serde_json::json!({ "draining": call.id })),
        false => {
            Err(Problem::not_found(format!("no server is called {:?}", call.id)).hint("windlass servers lists them"))
        }
    }
}
