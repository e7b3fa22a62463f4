//! Topics: queues that others have subscribed to. Their jobs are handed on in the order of their priorities, and take
//! no slot; a pause of the topic or of the server holds them as it holds starts.
//!
//! It must not know who listens: the router does, and the engine makes the copies.

use super::queue::{Mark, Queue};
use super::{Reason, Scheduler};
use crate::job::{Lane, QueueName, QueueNo};
use std::cmp::Reverse;

impl Scheduler {
    /// The lane whose jobs are to be handed on next, and how many there are.
    pub fn next_route(&self) -> Option<(Lane, u64)> {
        if self.server_closed().is_some() {
            return None;
        }
        let (_, number) = *self.topics.first()?;
        let queue = self.queues.get(number)?;
        let choice = queue.choose(true)?;
        let lane = Lane { queue: number, priority: choice.priority, kind: choice.kind };
        Some((lane, queue.ready(choice.priority, choice.kind)))
    }

    /// Who hears the jobs of a topic.
    pub fn listeners(&self, number: QueueNo) -> Vec<QueueName> {
        self.queues.get(number).map(|queue| self.router.listeners(&queue.name)).unwrap_or_default()
    }

    /// The store gave none of the jobs that were counted: no further try until the count changes.
    pub fn route_was_barren(&mut self, lane: Lane) {
        if let Some(queue) = self.queues.get_mut(lane.queue) {
            queue.found_barren(lane);
        }
        self.place(lane.queue);
    }

    /// Puts a topic where it belongs in the order of those that have something to hand on.
    pub(super) fn place_topic(&mut self, number: QueueNo) {
        self.unroute(number);
        self.unlist(number);
        let Some(queue) = self.queues.get_mut(number) else { return };
        let open = queue.is(Mark::Topic) && !queue.paused;
        if let Some(choice) = queue.choose(true).filter(|_| open) {
            queue.mark(Mark::Routed, true);
            queue.class = choice.priority;
            self.topics.insert((Reverse(choice.priority), number));
        }
    }

    /// Takes a queue out of that order.
    pub(super) fn unroute(&mut self, number: QueueNo) {
        let Some(queue) = self.queues.get_mut(number) else { return };
        if queue.is(Mark::Routed) {
            queue.mark(Mark::Routed, false);
            self.topics.remove(&(Reverse(queue.class), number));
        }
    }

    pub(super) fn why_topic(&self, number: QueueNo, queue: &Queue) -> Reason {
        let held = self.queue_closed(number, queue).or_else(|| self.server_closed());
        let held = held.or_else(|| (queue.waiting() == 0).then_some(Reason::NothingWaits));
        held.or_else(|| queue.choose(true).is_none().then_some(Reason::Barren)).unwrap_or(Reason::Runnable)
    }
}
