//! Typed handlers on the store that comes with the library: values in, answers out, and a server in this process.

use crate::Outcome;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use windlass::client::{Client, PushOptions};
use windlass::data_dir::DataDir;
use windlass::engine::Event;
use windlass::runner::handler::{Answer, Handlers, Job};
use windlass::server::{Server, ServerOptions};
use windlass::store::StoreView;
use windlass::store::embedded::View;
use windlass_core::life_cycle::State;
use windlass_core::policy::{Backoff, Policy, Service};

/// What a job of queue `order` is about.
#[derive(Debug, Deserialize, Serialize)]
struct Order {
    customer: String,
    items: Vec<u32>,
}

/// What a job of queue `item` is about.
#[derive(Debug, Deserialize, Serialize)]
struct Item {
    customer: String,
    number: u32,
}

/// Splits an order into its items. An error of `?` is a try that failed; an answer says it more exactly.
fn order(order: Order, job: &Job<'_>) -> Outcome<Answer> {
    if order.items.is_empty() {
        return Ok(Answer::Fail("an order without items".into()));
    }
    for number in &order.items {
        job.emit("item", &Item { customer: order.customer.clone(), number: *number })?;
    }
    Ok(Answer::Ok(format!("{} items for {}", order.items.len(), order.customer)))
}

/// Packs an item; the shelf with an odd number is locked at the first try.
fn item(item: Item, job: &Job<'_>, packed: &AtomicU32) -> Result<(), String> {
    if item.number % 2 == 1 && job.start() == 1 {
        return Err(format!("shelf {} is locked", item.number));
    }
    packed.fetch_add(item.number, Ordering::Relaxed);
    Ok(())
}

/// Four orders, one of them empty and one of no use at all; judged by what was packed and by the store's own counts.
pub(crate) fn run(place: &Path) -> Outcome<String> {
    let packed = Arc::new(AtomicU32::new(0));
    let theirs = Arc::clone(&packed);
    let handlers = Handlers::new().typed("order", order).typed("item", move |value, job| item(value, job, &theirs));
    let dir = DataDir::open(place)?;
    let served = |name: &str| {
        let quick = Backoff { base: std::time::Duration::from_millis(1), cap: std::time::Duration::from_millis(1) };
        Policy { backoff: quick, ..Policy::new(name, Service::Handler { name: name.into(), batch: 100 }) }
    };
    let policies = vec![served("order"), served("item")];
    let server = Server::start(ServerOptions { policies, handlers, ..ServerOptions::new(dir.clone()) })?;

    let client = Client::new(dir.clone());
    for (customer, items) in [("Ann", vec![1, 2, 3]), ("Bob", vec![4]), ("Eve", vec![])] {
        let order = Order { customer: customer.into(), items };
        client.push("order", &serde_json::to_vec(&order)?, PushOptions::default())?;
    }
    client.push("order", b"three of the blue ones", PushOptions::default())?;
    server.handle().ask(|answer| Event::AwaitDrained { answer, due_only: false, here_only: false })?;
    server.stop()?;

    let packed = packed.load(Ordering::Relaxed);
    let queues = View::open(&dir.state_db())?.queues()?;
    let count = |name: &str, state: State| {
        let queue = queues.iter().find(|queue| queue.name.as_str() == name);
        queue.map_or(0, |queue| queue.stats.by_state[state.index()])
    };
    let counts = [
        count("order", State::Succeeded),
        count("order", State::Failed),
        count("item", State::Succeeded),
        count("item", State::Failed),
    ];
    if (counts, packed) != ([2, 2, 4, 0], 10) {
        return Err(format!("wrong: orders and items ended as {counts:?}, and {packed} was packed").into());
    }
    Ok("typed: 2 orders done, 2 failed for good, 4 items packed, two of them at the second try".into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn typed_handlers_do_their_orders() {
        let place = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        super::run(place.path()).unwrap_or_else(|e| panic!("{e}"));
    }
}
