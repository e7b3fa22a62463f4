//! What a service manager is told while the server serves: that the engine turns, and how many jobs are where.

use crate::engine::event::{Answer, Event, FlightInfo};
use crate::engine::handle::EngineHandle;
use crate::error::Failure;
use crate::http::OpenView;
use crate::service_manager::ServiceManager;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use windlass_core::life_cycle::State;

/// Tells the manager that the engine turns, as long as it does: a sign is sent when it has answered.
pub(super) fn show(
    engine: &EngineHandle,
    view: &OpenView,
    manager: &ServiceManager,
    beat: Duration,
    until: &Receiver<()>,
) {
    let mut told = String::new();
    loop {
        let Some(flights) = flights(engine) else { return };
        let status = line(engine, view, &flights);
        manager.alive(&status, status != told);
        told = status;
        if until.recv_timeout(beat) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Says that the server is ready; where nobody listens, nothing is looked up for it.
pub(super) fn tell_ready(engine: &EngineHandle, view: &OpenView, manager: &ServiceManager) {
    if manager.beat().is_some() {
        manager.ready(&line(engine, view, &flights(engine).unwrap_or_default()));
    }
}

/// What is under way; nothing where the engine has ended.
fn flights(engine: &EngineHandle) -> Option<Vec<FlightInfo>> {
    let (give, given) = channel();
    let answer = Answer::new(move |flights: Result<Vec<FlightInfo>, Failure>| {
        // Whoever asked is gone with the server.
        let _ = give.send(flights);
    });
    engine.send(Event::Flights { answer }).ok()?;
    given.recv().ok()?.ok()
}

/// `serving: 412 ready, 8 running, 0 failed`; what was claimed ahead of a slot is ready.
fn line(engine: &EngineHandle, view: &OpenView, flights: &[FlightInfo]) -> String {
    let condition = engine.condition().word().replace('_', " ");
    // A store that cannot be read now, as without descriptors, has its own sentences in the log.
    let Ok(Ok(queues)) = view().map(|view| view.queues()) else { return condition };
    let of = |state: State| queues.iter().map(|queue| queue.stats.by_state[state.index()]).sum::<u64>();
    let stocked: u64 = flights.iter().filter(|flight| flight.stocked).map(|flight| u64::from(flight.count)).sum();
    let ahead = stocked.min(of(State::Running));
    let (ready, running) = (of(State::Ready) + ahead, of(State::Running) - ahead);
    format!("{condition}: {ready} ready, {running} running, {} failed", of(State::Failed))
}
