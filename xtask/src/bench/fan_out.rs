//! One message for a hundred listeners beside a hundred plain pushes: the whole life of as many jobs either way, with a
//! handler that does nothing.

use super::Outcome;
use super::bed::Bed;
use super::feed;
use super::figure::{Bar, Figure, rounds};
use std::cell::RefCell;
use std::time::Instant;
use windlass::runner::handler::{Batch, Handlers, Verdicts};
use windlass::server::{Server, ServerOptions};
use windlass_core::job::QueueName;
use windlass_core::life_cycle::State;
use windlass_core::policy::{Policy, Service};
use windlass_core::router::{Router, Subscription};

const LISTENERS: u64 = 100;

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let messages = bed.size(10_000);
    let times = bed.rounds();
    let shared = RefCell::new(&mut *bed);
    let sent = || served(*shared.borrow_mut(), messages, true);
    let plain = || served(*shared.borrow_mut(), messages, false);
    let (sent, plain) = rounds(times, sent, plain)?;
    bed.report(&Figure::new("fan-out", sent, "jobs/s").raw(plain).bar(Bar::RatioAtLeast(0.7, 1.0)));
    Ok(())
}

/// Jobs of the listeners a second: by way of a topic, or pushed to each of them.
fn served(bed: &mut Bed, messages: u64, by_topic: bool) -> Outcome<f64> {
    let (_scratch, dir) = bed.data_dir()?;
    let jobs = messages * LISTENERS;
    if by_topic {
        feed::write(&dir, messages, 1)?;
    } else {
        feed::write(&dir, jobs, LISTENERS)?;
    }
    let handlers = Handlers::new().on("none", |_: &Batch<'_>| Verdicts::succeeded());
    let service = Service::Handler { name: "none".into(), batch: 1000 };
    let policies = vec![Policy { slots: 100, ..Policy::new("*", service) }];
    let mut options = ServerOptions { policies, slots: 100, handlers, ..ServerOptions::new(dir.clone()) };
    if by_topic {
        let names = (0..LISTENERS).map(|n| QueueName::new(format!("listener.{n}").as_bytes()));
        let listeners = names.collect::<Result<_, _>>().map_err(|bad| bad.to_string())?;
        let topic = Subscription { pattern: "q.0".into(), listeners };
        options.config.config.router = Router::new(vec![topic]).map_err(|circle| format!("{circle:?}"))?;
    }
    let server = Server::start(options)?;
    let begun = Instant::now();
    feed::move_in(&dir)?;
    feed::drained(server.handle())?;
    let rate = jobs as f64 / begun.elapsed().as_secs_f64();
    server.stop()?;
    feed::expect(&dir, State::Succeeded, jobs + if by_topic { messages } else { 0 })?;
    Ok(rate)
}
