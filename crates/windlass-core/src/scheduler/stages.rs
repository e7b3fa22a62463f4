//! Back-pressure between the stages of a pipeline: a stage is held while a next one has as much waiting as it may.
//!
//! Core's `pipeline` says which stages hold which, so that no circle can hold itself. What waits is what is ready, put
//! off or to be tried again; what was started before the limit was reached may still bring more than it.

use super::queue::{Mark, Queue};
use super::{Reason, Scheduler};
use crate::job::QueueNo;
use crate::pipeline::Flow;
use std::sync::Arc;

impl Scheduler {
    /// So many more jobs of a queue wait for their time, or fewer.
    pub fn put_off(&mut self, number: QueueNo, delta: i64) {
        let count = self.put_off.entry(number).or_insert(0);
        *count += delta;
        if *count == 0 {
            self.put_off.remove(&number);
        }
        if self.queues.get(number).is_some_and(|queue| queue.is(Mark::Stage)) {
            self.level_changed(number);
        }
    }

    /// Everything that waits in a queue, for a start or for its time.
    fn backlog(&self, number: QueueNo, queue: &Queue) -> u64 {
        let put_off = self.put_off.get(&number).copied().unwrap_or(0);
        queue.waiting() + u64::try_from(put_off).unwrap_or(0)
    }

    fn flow_of(&self, queue: &Queue) -> Option<&Flow> {
        self.crews.get(&queue.crew?)?.policy.flow.as_ref()
    }

    /// Notes whether a queue is a stage, by the rules as they are now.
    pub(super) fn note_stage(&mut self, number: QueueNo) {
        let Some(queue) = self.queues.get(number) else { return };
        let (stage, name) = (self.flow_of(queue).is_some(), queue.name.clone());
        if stage {
            self.stages.insert(name, number);
        } else {
            self.stages.remove(&name);
        }
        if let Some(queue) = self.queues.get_mut(number) {
            queue.mark(Mark::Stage, stage);
            queue.mark(Mark::Full, stage && queue.is(Mark::Full));
        }
    }

    /// What waits in a stage has changed: where that brings it to its limit, or under it, the stages before it are
    /// placed anew.
    pub(super) fn level_changed(&mut self, number: QueueNo) {
        let Some(queue) = self.queues.get(number) else { return };
        let limit = self.flow_of(queue).map_or(0, |flow| u64::from(flow.limit));
        let full = limit > 0 && self.backlog(number, queue) >= limit;
        if full == queue.is(Mark::Full) {
            return;
        }
        let name = queue.name.clone();
        if let Some(queue) = self.queues.get_mut(number) {
            queue.mark(Mark::Full, full);
        }
        let holds = |other: &QueueNo| {
            let flow = self.queues.get(*other).and_then(|queue| self.flow_of(queue));
            flow.is_some_and(|flow| flow.held_by.iter().any(|next| next.as_str() == &*name))
        };
        for before in self.stages.values().copied().filter(holds).collect::<Vec<_>>() {
            self.place(before);
        }
    }

    /// The next stage that holds a queue, if one does.
    pub(super) fn held_by_next(&self, queue: &Queue) -> Option<Reason> {
        if !queue.is(Mark::Stage) {
            return None;
        }
        let flow = self.flow_of(queue)?;
        flow.held_by.iter().find_map(|next| {
            let number = *self.stages.get(next.as_str())?;
            let next = self.queues.get(number).filter(|next| next.is(Mark::Full))?;
            let Flow { stage, limit, .. } = self.flow_of(next)?;
            Some(Reason::NextStageFull {
                stage: Arc::from(stage.as_str()),
                waiting: self.backlog(number, next),
                limit: *limit,
            })
        })
    }
}
