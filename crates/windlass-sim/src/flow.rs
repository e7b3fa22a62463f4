//! Messages and error handlers: every third world has a queue whose jobs go to two others, and a queue that is told of
//! every job that fails for good.
//!
//! What comes of them are ordinary follow-ups. That each is there, once and in the same turn, is `checkers/told.rs`'s
//! to see.

use crate::ledger::Known;
use crate::random;
use crate::watched::Verb;
use crate::world::Outcome;
use windlass::store::Settlement;
use windlass_core::job::{JobId, QueueName};
use windlass_core::life_cycle::State;
use windlass_core::policy::{Policy, Service};
use windlass_core::router::{Router, Subscription};

/// Nobody serves it: what comes here goes to those who have subscribed.
pub(crate) const TOPIC: &str = "nobody";
pub(crate) const LISTENERS: [&str; 2] = ["mail", "bulk"];
/// The queue that is told of failures; its own are told to nobody.
pub(crate) const ERRORS: &str = "errors";

/// Whether a world has them.
pub(crate) fn is_in(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

pub(crate) fn is_topic(seed: u64, queue: &str) -> bool {
    is_in(seed) && queue == TOPIC
}

pub(crate) fn router(seed: u64) -> Outcome<Router> {
    let listeners = LISTENERS.map(|name| QueueName::new(name.as_bytes()).map_err(|bad| bad.to_string()));
    let listeners = listeners.into_iter().collect::<Result<_, _>>()?;
    let topic = Subscription { pattern: TOPIC.into(), listeners };
    let subscriptions = if is_in(seed) { vec![topic] } else { Vec::new() };
    Router::new(subscriptions).map_err(|circle| format!("{circle:?}"))
}

/// The same rules, with a queue that is told of the failures of all others.
pub(crate) fn with_handlers(seed: u64, mut policies: Vec<Policy>) -> Outcome<Vec<Policy>> {
    if is_in(seed) {
        let errors = QueueName::new(ERRORS.as_bytes()).map_err(|bad| bad.to_string())?;
        policies.iter_mut().for_each(|policy| policy.on_failure = Some(errors.clone()));
        let service = Service::Handler { name: "work".into(), batch: 3 };
        policies.push(Policy { slots: 2, ..Policy::new(ERRORS, service) });
    }
    Ok(policies)
}

/// A message that came and was handed on in one turn: nobody has seen it wait.
pub(crate) fn passed_on(id: JobId, settled: &[Settlement], verbs: &[Verb]) -> Option<Known> {
    let of = |settlement: &&Settlement| settlement.held.ids().any(|held| held == id);
    let held = &settled.iter().find(of)?.held;
    let index = held.range().find(|index| held.jobs.id(*index) == id)?;
    // Its copies are in its run, which has counted it as one of its jobs.
    let emitted = verbs.iter().filter_map(|verb| if let Verb::Emitted(emitted) = verb { Some(emitted) } else { None });
    let run = emitted.flatten().find(|copy| copy.parent == Some(id)).and_then(|copy| copy.run);
    Some(Known {
        state: State::Succeeded,
        queue: TOPIC.into(),
        priority: held.lane.priority,
        kind: held.lane.kind,
        run,
        record: held.record,
        reason: None,
        data: random::hash(held.jobs.data(index)),
        ended: None,
        forgotten: false,
        deleted: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cast;
    use crate::world::World;

    /// A checker that never sees any proves nothing.
    #[test]
    fn every_third_world_has_messages_that_were_handed_on_and_failures_that_were_told() {
        let (mut messages, mut told) = (0, 0);
        for seed in [3, 6, 9, 12] {
            let mut world = World::new(seed, false, Cast::Plain).unwrap();
            world.run().unwrap();
            let of = |queue: &str| world.ledger.jobs.values().filter(|job| &*job.queue == queue).count();
            (messages, told) = (messages + of(TOPIC), told + of(ERRORS));
        }
        assert!(messages > 20 && told > 20, "{messages} messages, {told} failures told");
    }
}
