//! The route of the workers: where each is and since when, what was counted, and the last steps.

use super::app::{Call, json};
use super::problem::Problem;
use crate::api;
use axum::http::StatusCode;
use axum::response::Response;

/// So many steps may be asked for.
const STEPS_MAX: u64 = 1000;

pub(super) async fn list(call: Call) -> Result<Response, Problem> {
    let wanted = call.query(&["steps"])?.number("steps", 0, STEPS_MAX)?.unwrap_or(0) as usize;
    let read = call.app.read(move |reads| {
        let (board, roster) = (&reads.board, reads.board.workers());
        let items = roster.shown().iter().map(|shown| api::Worker::new(shown, board)).collect();
        let (steps, now) = roster.steps();
        let steps = steps[steps.len().saturating_sub(wanted)..].iter().map(|step| api::WorkerStep::new(step, now));
        Ok(api::Workers { items, counts: (&roster.counts()).into(), steps: steps.collect() })
    });
    json(StatusCode::OK, &read.await?)
}
