//! Workers that hold memory: no more of a table live than there is memory set aside for, and idle ones make room.
//!
//! How many that is the scheduler decides, and says it with every start; it is told how many live. It must not count
//! memory itself.

use super::Desk;
use crate::runner::worker::pool::Pool;
use std::time::Instant;
use windlass_core::supervisor::WorkerState;

impl Desk {
    /// A start says for how many workers of its table there is memory.
    pub(super) fn learn_room(&mut self, at: usize) {
        let policy = &self.pools[at].policy;
        if policy.limits.memory > 0 {
            let (pattern, slots) = (policy.pattern.clone(), policy.slots);
            if self.room.insert(pattern.clone(), slots) != Some(slots) {
                self.stir(&pattern);
            }
        }
    }

    /// There may be room for another worker of this table: who waits looks again.
    fn stir(&mut self, pattern: &str) {
        let waits = |(_, pool): &(usize, &Pool)| pool.policy.pattern == pattern && pool.jobs() > 0;
        self.stirred.extend(self.pools.iter().enumerate().filter(waits).map(|(at, _)| at));
    }

    /// Whether one more worker of a pool's table may live; where not, one that idles for another queue of it goes, but
    /// one at a time.
    pub(super) fn has_room(&mut self, at: usize, now: Instant) -> bool {
        let policy = &self.pools[at].policy;
        if policy.limits.memory == 0 {
            return true;
        }
        let pattern = policy.pattern.clone();
        if self.alive(&pattern) < self.room.get(&pattern).copied().unwrap_or(1) {
            return true;
        }
        let of_table = |number: &u32| self.workers.get(number).is_some_and(|worker| worker.policy.pattern == pattern);
        if !self.going().any(|(number, _)| of_table(&number)) {
            let idle = self.idle().into_iter().find(of_table);
            self.send_home(idle, now);
        }
        false
    }

    /// So many bytes are needed elsewhere: workers that idle go, those first that have idled for longest. What those
    /// hold who are going already is as good as free, and may be asked for more than once.
    pub(super) fn make_room(&mut self, bytes: u64) {
        let now = Instant::now();
        let mut made = self.going().map(|(_, bytes)| bytes).sum::<u64>();
        for number in self.idle() {
            if made >= bytes {
                break;
            }
            made += self.workers.get(&number).map_or(0, |worker| worker.policy.limits.memory);
            self.send_home(Some(number), now);
        }
    }

    /// Tells how many workers of a pool's table live. Where one has gone its memory is given back: for another one
    /// there must be memory anew.
    pub(super) fn tell_alive(&mut self, at: usize, gone: bool) {
        let pattern = self.pools[at].policy.pattern.clone();
        // Those who never named a need are not counted.
        if !self.room.contains_key(&pattern) {
            return;
        }
        let alive = self.alive(&pattern);
        if gone && let Some(room) = self.room.get_mut(&pattern) {
            *room = (*room).min(alive.max(1));
        }
        if gone {
            self.stir(&pattern);
        }
        (self.shared.crewed)(&pattern, alive);
    }

    fn alive(&self, pattern: &str) -> u32 {
        let of_table = self.pools.iter().filter(|pool| pool.policy.pattern == pattern);
        of_table.map(|pool| pool.workers.len() as u32).sum()
    }

    /// Workers that were told to go and still hold memory, and how much.
    fn going(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let going = self.workers.iter().filter(|(_, worker)| worker.to.is_none());
        going.map(|(number, worker)| (*number, worker.policy.limits.memory))
    }

    /// Workers that hold memory and have nothing to do, longest first.
    fn idle(&self) -> Vec<u32> {
        let rests = |number: &u32| {
            let worker = self.workers.get(number)?;
            let rests = worker.state() == WorkerState::Waiting;
            let spare = self.pools[worker.pool].jobs() == 0 && worker.policy.limits.memory > 0;
            (rests && spare).then_some((worker.idle_since, *number))
        };
        let mut idle: Vec<(Instant, u32)> = self.workers.keys().filter_map(rests).collect();
        idle.sort();
        idle.into_iter().map(|(_, number)| number).collect()
    }

    fn send_home(&mut self, number: Option<u32>, now: Instant) {
        if let Some((number, mut worker)) = number.and_then(|number| self.workers.remove_entry(&number)) {
            self.dismiss(&mut worker, now);
            self.workers.insert(number, worker);
        }
    }
}
