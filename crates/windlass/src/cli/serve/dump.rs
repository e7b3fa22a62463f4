//! TTIN: everything that the server is doing, as lines of its log: engine, memory, queues, flights, workers, threads.

use crate::allocator;
use crate::api;
use crate::clock;
use crate::engine::dump::{Dump, QueueDump};
use crate::engine::event::{Event, FlightInfo};
use crate::engine::handle::EngineHandle;
use crate::error::Failure;
use crate::log::{Level, Log};
use crate::runner::progress::Board;
use crate::supervisor::Shown;
use crate::when;
use serde_json::Value;
use std::fs;
use windlass_core::life_cycle::State;
use windlass_core::supervisor::Counts;

pub(super) fn tell(engine: &EngineHandle, board: &Board, log: &Log) -> Result<(), Failure> {
    // Before the dump takes some itself.
    let memory = allocator::held();
    let threads = threads();
    let dump = engine.ask(|answer| Event::Dump { answer })?;
    let say = |what: &'static str, values| log.say(Level::Info, what, values);
    say("dump", summary(&dump, threads.len()));
    if let Some((used, free)) = memory {
        say("dump memory", vec![("used", used.into()), ("free", free.into())]);
    }
    for queue in &dump.queues {
        say("dump queue", counts(queue));
    }
    if dump.more_queues > 0 {
        say("dump more queues", vec![("count", dump.more_queues.into())]);
    }
    for flight in &dump.flights {
        say("dump flight", in_flight(flight));
    }
    for shown in board.workers().shown() {
        say("dump worker", worker(&shown, board));
    }
    say("dump workers", changes(&board.workers().counts()));
    for (name, state) in threads {
        say("dump thread", vec![("name", name.into()), ("state", state.into())]);
    }
    say("dump ends", Vec::new());
    Ok(())
}

fn summary(dump: &Dump, threads: usize) -> Vec<(&'static str, Value)> {
    vec![
        ("condition", dump.condition.word().into()),
        ("flights", dump.flights.len().into()),
        ("pending", dump.pending.into()),
        ("stalemates", dump.stalemates.into()),
        ("drained_waiters", dump.drained_waiters.into()),
        ("settled_turn", dump.settled.into()),
        ("archived_turn", dump.archived.into()),
        ("threads", threads.into()),
    ]
}

fn counts(queue: &QueueDump) -> Vec<(&'static str, Value)> {
    let live = State::ALL.into_iter().filter(|state| !state.is_end());
    let counts = live.map(|state| (state.word(), queue.by_state[state.index()].into()));
    std::iter::once(("queue", queue.name.as_str().into())).chain(counts).collect()
}

fn in_flight(flight: &FlightInfo) -> Vec<(&'static str, Value)> {
    let since = when::spoken(clock::now().since(flight.started));
    vec![
        ("job", flight.job.to_string().into()),
        ("and", flight.count.saturating_sub(1).into()),
        ("queue", flight.queue.as_str().into()),
        ("start", flight.start.into()),
        ("since", since.into()),
    ]
}

fn worker(shown: &Shown, board: &Board) -> Vec<(&'static str, Value)> {
    let worker = api::Worker::new(shown, board);
    let texts = [("table", worker.table), ("phase", worker.phase), ("job", worker.job.unwrap_or_default())];
    let known = texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(key, text)| (key, text.into()));
    let first = [
        ("worker", worker.worker.into()),
        ("kind", worker.kind.into()),
        ("state", worker.state.into()),
        ("since", when::spoken(shown.since).into()),
    ];
    let last = [("jobs", worker.jobs.into()), ("pid", worker.pid.into())];
    first.into_iter().chain(known).chain(last).filter(|(_, value): &(_, Value)| !value.is_null()).collect()
}

/// How often each change of a worker's state happened.
fn changes(counts: &Counts) -> Vec<(&'static str, Value)> {
    let told = api::WorkerCounts::from(counts);
    let transitions = serde_json::to_string(&told.transitions).unwrap_or_default();
    vec![("transitions", transitions.into()), ("forbidden", told.forbidden.into())]
}

/// The threads of this process with the kernel's letter for what each does; none where there is no /proc.
fn threads() -> Vec<(String, String)> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let of = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        // The name stands in brackets and may hold anything; what follows the last one is plain.
        let (before, after) = stat.rsplit_once(')')?;
        let name = before.split_once('(')?.1;
        Some((name.to_owned(), after.split_whitespace().next()?.to_owned()))
    };
    let mut threads: Vec<(String, String)> = tasks.flatten().filter_map(of).collect();
    threads.sort();
    threads
}
