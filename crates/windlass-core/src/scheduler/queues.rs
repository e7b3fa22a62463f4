//! The known queues by number.
//!
//! Numbers are small and given out in order, so a plain list serves, and to find one of fifty thousand costs nothing.

use super::queue::Queue;
use crate::job::QueueNo;

#[derive(Debug, Default)]
pub(super) struct Queues(Vec<Option<Queue>>);

impl Queues {
    pub(super) fn get(&self, number: QueueNo) -> Option<&Queue> {
        self.0.get(number.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: QueueNo) -> Option<&mut Queue> {
        self.0.get_mut(number.0 as usize)?.as_mut()
    }

    pub(super) fn has(&self, number: QueueNo) -> bool {
        self.get(number).is_some()
    }

    pub(super) fn insert(&mut self, number: QueueNo, queue: Queue) {
        let at = number.0 as usize;
        self.0.resize_with(self.0.len().max(at + 1), || None);
        self.0[at] = Some(queue);
    }

    pub(super) fn remove(&mut self, number: QueueNo) -> Option<Queue> {
        self.0.get_mut(number.0 as usize)?.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (QueueNo, &Queue)> {
        self.0.iter().enumerate().filter_map(|(at, queue)| Some((QueueNo(at as u32), queue.as_ref()?)))
    }

    pub(super) fn numbers(&self) -> Vec<QueueNo> {
        self.iter().map(|(number, _)| number).collect()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Queue> {
        self.0.iter().flatten()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.0.iter_mut().flatten()
    }
}
