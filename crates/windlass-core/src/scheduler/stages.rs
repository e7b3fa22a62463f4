//! Back-pressure between the stages of a pipeline: a stage is held while a next one has as much waiting as it may.
//!
//! Core's `pipeline` says which stages hold which, so that no circle can hold itself. What waits is what is ready, put
//! off or to be tried again; what was started before the limit was reached may still bring more than it.

use super::queue::Queue;
use super::{Reason, Scheduler};
use crate::job::QueueNo;
use crate::pipeline::Flow;
use std::sync::Arc;

impl Scheduler {
    /// So many more jobs of a queue wait for their time, or fewer.
    pub fn put_off(&mut self, number: QueueNo, delta: i64) {
        let Some(queue) = self.queues.get_mut(&number) else { return };
        queue.put_off += delta;
        if queue.stage {
            self.level_changed(number);
        }
    }

    fn flow_of(&self, queue: &Queue) -> Option<&Flow> {
        self.crews.get(&queue.crew?)?.policy.flow.as_ref()
    }

    /// Notes whether a queue is a stage, by the rules as they are now.
    pub(super) fn note_stage(&mut self, number: QueueNo) {
        let Some(queue) = self.queues.get(&number) else { return };
        let (stage, name) = (self.flow_of(queue).is_some(), queue.name.clone());
        if stage {
            self.stages.insert(name, number);
        } else {
            self.stages.remove(&name);
        }
        if let Some(queue) = self.queues.get_mut(&number) {
            queue.stage = stage;
            queue.full &= stage;
        }
    }

    /// What waits in a stage has changed: where that brings it to its limit, or under it, the stages before it are
    /// placed anew.
    pub(super) fn level_changed(&mut self, number: QueueNo) {
        let Some(queue) = self.queues.get(&number) else { return };
        let limit = self.flow_of(queue).map_or(0, |flow| u64::from(flow.limit));
        let full = limit > 0 && queue.backlog() >= limit;
        if full == queue.full {
            return;
        }
        let name = queue.name.clone();
        if let Some(queue) = self.queues.get_mut(&number) {
            queue.full = full;
        }
        let holds = |other: &QueueNo| {
            let flow = self.queues.get(other).and_then(|queue| self.flow_of(queue));
            flow.is_some_and(|flow| flow.held_by.iter().any(|next| next.as_str() == &*name))
        };
        for before in self.stages.values().copied().filter(holds).collect::<Vec<_>>() {
            self.place(before);
        }
    }

    /// The next stage that holds a queue, if one does.
    pub(super) fn held_by_next(&self, queue: &Queue) -> Option<Reason> {
        if !queue.stage {
            return None;
        }
        let flow = self.flow_of(queue)?;
        flow.held_by.iter().find_map(|next| {
            let next = self.queues.get(self.stages.get(next.as_str())?).filter(|next| next.full)?;
            let Flow { stage, limit, .. } = self.flow_of(next)?;
            Some(Reason::NextStageFull { stage: Arc::from(stage.as_str()), waiting: next.backlog(), limit: *limit })
        })
    }
}
