//! Routes of schedules: how they stand, and firing one by hand. Switching one on or off is an override.

use super::app::{Call, json};
use super::problem::Problem;
use crate::api::Page;
use crate::api::schedules::{Fired, Schedule};
use crate::engine::event::Event;
use axum::http::StatusCode;
use axum::response::Response;

/// The most coming times that one request may ask for.
const COMING_MAX: usize = 1000;

pub(super) async fn list(call: Call) -> Result<Response, Problem> {
    let query = call.query(&["next"])?;
    let coming = match query.get("next") {
        None => 1,
        Some(text) => text
            .parse()
            .ok()
            .filter(|count| (1..=COMING_MAX).contains(count))
            .ok_or_else(|| Problem::refused(format!("`next` is {text:?}, expected 1 to {COMING_MAX}")))?,
    };
    let infos = call.app.ask(|answer| Event::Schedules { answer }).await?;
    let items: Vec<Schedule> = infos.iter().map(|info| Schedule::new(info, coming)).collect();
    json(StatusCode::OK, &Page { items, next: None })
}

pub(super) async fn run(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let name = call.id.clone();
    let by = call.caller();
    let run = call.app.ask(|answer| Event::FireSchedule { name, by, answer }).await?;
    json(StatusCode::ACCEPTED, &Fired { run: run.to_string() })
}
