//! `serve --idle D`: the server ends by itself when for so long nothing was left that it could do, now or later.
//!
//! It asks its own API, as anybody could. Jobs that no table serves do not keep it; jobs that wait for their time do.

use crate::cli::connect::Link;
use crate::data_dir::DataDir;
use crate::engine::event::Event;
use crate::engine::handle::EngineHandle;
use crate::error::Failure;
use crate::log::{Level, Log};
use serde_json::Value;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use windlass_core::life_cycle::State;

/// Watches until the server ends, or ends it.
pub(super) fn end_when_idle(dir: &DataDir, engine: &EngineHandle, idle: Duration, log: &Log, until: &Receiver<()>) {
    loop {
        // What cannot be asked is not idle.
        let before = nothing_left(dir).ok().flatten();
        if until.recv_timeout(idle) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        if before.is_some() && nothing_left(dir).ok().flatten() == before {
            log.say(Level::Info, "stopping", vec![("how", "idle".into())]);
            // One that has ended already needs no order.
            let _ = engine.send(Event::Drain);
            return;
        }
    }
}

/// Waits until nothing can run; then all counts, if nothing waits for a later time either.
fn nothing_left(dir: &DataDir) -> Result<Option<Value>, Failure> {
    let Some(mut server) = Link::to_server(dir)? else { return Ok(None) };
    server.set_patience(None);
    let _: Value = server.get_json("/api/v1/drained")?;
    let mut status: Value = server.get_json("/api/v1/status")?;
    let waiting = [State::Running, State::Retrying, State::Scheduled];
    let totals = status.get("totals").unwrap_or(&Value::Null);
    let waits = waiting.iter().any(|state| totals.get(state.word()).and_then(Value::as_u64) != Some(0));
    Ok(status.get_mut("queues").map(Value::take).filter(|_| !waits))
}
