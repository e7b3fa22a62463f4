//! Messages in the turn: the jobs of topics become a job for each listener, in the transaction that ends them.
//!
//! The message is claimed and settled at once, as succeeded, with its copies as follow-ups: they are in its run and
//! have its priority, and a run whose last job is a message goes on with them. So a crash neither loses a listener nor
//! serves one twice. Who listens is core's to say (`windlass_core::router`).

use super::effects::Effects;
use super::turn;
use super::{Engine, IdSource, unique};
use crate::runner::Output;
use crate::sabotage::{self, Sabotage};
use crate::store::chunk::{Chunk, ChunkBuilder};
use crate::store::{FollowUp, Held, Order, Settlement, Store, StoreError};
use std::sync::Arc;
use windlass_core::job::{Origin, QueueName, RunNo};
use windlass_core::judge::Verdict;
use windlass_core::outcome::Outcome;
use windlass_core::particulars::Particulars;
use windlass_core::scheduler::Scheduler;
use windlass_core::time::Time;

/// So many copies are made in one turn; the next turn goes on.
const COPIES_MOST: u64 = 40 << 10;
/// Messages with so much data share it with their copies.
const SHARED_LEAST: u64 = 4 << 10;

impl<S: Store> Engine<S> {
    /// Hands on what waits in topics, and what that brings to other topics.
    pub(super) fn route(&mut self, now: Time, effects: &mut Effects) -> Result<(), StoreError> {
        let mut made = 0;
        while let Some((lane, ready)) = self.scheduler.next_route() {
            if made >= COPIES_MOST {
                self.operations_wait = true;
                break;
            }
            let mut listeners = self.scheduler.listeners(lane.queue);
            if sabotage::on(Sabotage::ListenerForgotten) && listeners.len() > 1 {
                listeners.pop();
            }
            let each = listeners.len().max(1) as u64;
            let most = ((COPIES_MOST - made) / each).clamp(1, ready);
            let order = Order { lane, most: u32::try_from(most).unwrap_or(u32::MAX) };
            let held = self.store.claim(&[order], now)?;
            if held.is_empty() {
                self.scheduler.route_was_barren(lane);
                continue;
            }
            made += each * held.iter().map(|held| u64::from(held.count)).sum::<u64>();
            self.hand_on(held, &listeners, now, effects)?;
            self.stalemates.started(lane.queue);
        }
        Ok(())
    }

    /// Ends messages and admits their copies.
    fn hand_on(
        &mut self,
        held: Vec<Held>,
        listeners: &[QueueName],
        now: Time,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        let follow_ups = copies(&held, listeners, &self.options.ids, &self.scheduler);
        let message = told(listeners);
        let outcome = Outcome::Succeeded { message: String::new() }.word();
        let settle = |held| {
            let verdict = Verdict::Succeed { message: message.clone() };
            Settlement { held, verdict, outcome, started: now, finished: now }
        };
        let settlements: Vec<Settlement> = held.into_iter().map(settle).collect();
        self.store.settle(&settlements, &follow_ups, now)?;
        let entries = settlements.iter();
        effects.archive.extend(entries.map(|done| turn::entry(&self.queues, &self.runs, done, Output::default())));
        let changes = self.store.changes();
        self.learn(changes, effects);
        Ok(())
    }
}

/// A copy of each message for each listener, which knows the message as its parent. Messages that lie together share
/// their data with all copies; lonely ones are laid together for each listener.
fn copies(held: &[Held], listeners: &[QueueName], ids: &IdSource, scheduler: &Scheduler) -> Vec<FollowUp> {
    let mut follow_ups = Vec::new();
    for run in held.chunk_by(|one, next| alike(one) == alike(next) && !shares(one) && !shares(next)) {
        let shared = shares(&run[0]).then(|| run[0].jobs.laid(run[0].range()));
        for queue in listeners {
            let lineage = unique::lineage(run[0].jobs.particulars(), scheduler.unique_of(queue.as_str()));
            let (origin, base) = ids.take(run.iter().map(|held| u64::from(held.count)).sum());
            let chunks = match &shared {
                Some(messages) => vec![messages.copied(origin, base, lineage)],
                None => lay(run, ChunkBuilder::new(origin).with(lineage), base),
            };
            let (priority, run) = (run[0].lane.priority, run[0].run);
            let follow_up = |jobs| FollowUp { queue: queue.clone(), priority, run, jobs: Arc::new(jobs) };
            follow_ups.extend(chunks.into_iter().map(follow_up));
        }
    }
    follow_ups
}

/// Copies with their data, in as many chunks as it takes.
fn lay(messages: &[Held], mut builder: ChunkBuilder, base: u64) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let each = messages.iter().flat_map(|held| held.range().map(move |index| (held, index)));
    for (offset, (held, index)) in (base..).zip(each) {
        if builder.is_full() {
            chunks.push(builder.finish());
        }
        builder.push_from(held.jobs.id(index), offset, held.jobs.data(index));
    }
    chunks.push(builder.finish());
    chunks
}

/// Whether what is stored beside each copy of these messages is worth the data that it saves.
fn shares(held: &Held) -> bool {
    held.bytes(0, held.count) >= SHARED_LEAST
}

/// What messages have in common whose copies lie together.
fn alike(held: &Held) -> (Option<RunNo>, Origin, Option<&Arc<Particulars>>) {
    (held.run, held.jobs.origin(), held.jobs.particulars())
}

/// What `show` says of a message that was handed on.
fn told(listeners: &[QueueName]) -> String {
    /// More names than a person reads at once.
    const NAMED: usize = 10;
    let names: Vec<&str> = listeners.iter().take(NAMED).map(QueueName::as_str).collect();
    let more = listeners.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("sent to {}{rest}", names.join(", "))
}
