//! Ready work, a free slot, and nothing starts: that must not be. It is noticed, named, counted, said and cured.
//!
//! What is ready is counted here by what the store told; what may start is the scheduler's to say. Where jobs are ready
//! and the scheduler knows of nothing that holds them, they start in the same turn. If at two looks they have not, its
//! books are wrong: they are thrown away and read from the store again. Nobody looks while nothing is ready, while
//! nothing happens, or where something is started. It must not start anything itself.

use super::effects::Effects;
use super::{Engine, Stopping};
use crate::sabotage::{self, Sabotage};
use crate::store::{Store, StoreError};
use std::collections::BTreeSet;
use std::time::Duration;
use windlass_core::job::QueueNo;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// So few queues are looked through in any turn that starts nothing.
const FEW_QUEUES: usize = 256;
/// The time between the two looks; where there are many queues, also before the first.
pub const LOOK_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Stalemates {
    pub(super) look_at: Option<Time>,
    /// Queues that nothing held back at the last look, and of which nothing was started since.
    suspected: BTreeSet<QueueNo>,
    /// The scheduler's books are to be read anew.
    cure: bool,
    count: u64,
}

impl Stalemates {
    pub(super) fn started(&mut self, queue: QueueNo) {
        self.suspected.remove(&queue);
    }

    /// When a queue that nothing held back at the last look is looked at again.
    pub(super) fn suspects(&self, queue: QueueNo) -> Option<Time> {
        self.look_at.filter(|_| self.suspected.contains(&queue))
    }
}

impl<S: Store> Engine<S> {
    /// How often ready work did not start although nothing held it.
    pub fn stalemates(&self) -> u64 {
        self.stalemates.count
    }

    /// Before a turn: what is wrong with the scheduler's books goes with them.
    pub(super) fn cure_stalemate(&mut self) -> Result<(), StoreError> {
        if std::mem::take(&mut self.stalemates.cure) {
            self.read_anew()?;
        }
        Ok(())
    }

    /// After the plan: something happened, so what is ready must have started, or be held.
    pub(super) fn watch_for_stalemate(&mut self, happened: bool, now: Time, effects: &mut Effects) {
        match self.stalemates.look_at {
            Some(at) if at <= now => self.stalemates.look_at = None,
            Some(_) => return,
            None => {
                if happened && self.ready > 0 && effects.starts.is_empty() {
                    self.suspect(now);
                }
                return;
            }
        }
        let unheld = self.unheld();
        let stuck: Vec<QueueNo> = unheld.intersection(&self.stalemates.suspected).copied().collect();
        if stuck.is_empty() {
            self.stalemates.look_at = (!unheld.is_empty()).then(|| now.after(LOOK_AFTER));
            self.stalemates.suspected = unheld;
            return;
        }
        self.stalemates.suspected.clear();
        self.stalemates.count += 1;
        self.stalemates.cure = true;
        self.turn_again = true;
        let queue = &self.queues[stuck[0]];
        let (ready, name) = (queue.by_state[State::Ready.index()], &queue.name);
        let others = if stuck.len() > 1 { format!(" (and {} more)", stuck.len() - 1) } else { String::new() };
        effects.notes.push(format!(
            "stalemate: queue `{name}`{others} has {ready} ready jobs that nothing holds back, and none was started \
             within {LOOK_AFTER:?}; what is ready is read from the store again"
        ));
    }

    /// Nothing was started: that is looked into at once where there are few queues, else after a while.
    fn suspect(&mut self, now: Time) {
        let few = self.queues.0.len() <= FEW_QUEUES;
        self.stalemates.suspected = if few { self.unheld() } else { BTreeSet::new() };
        if !few || !self.stalemates.suspected.is_empty() {
            self.stalemates.look_at = Some(now.after(LOOK_AFTER));
        }
    }

    /// Queues with ready jobs of which the scheduler cannot say why they do not start.
    fn unheld(&self) -> BTreeSet<QueueNo> {
        let stands = self.stopping != Stopping::No || self.full_until.is_some();
        if self.turn_again || stands || sabotage::on(Sabotage::StalemateUnseen) {
            return BTreeSet::new();
        }
        let ready = self.queues.iter().filter(|(_, queue)| queue.by_state[State::Ready.index()] > 0);
        ready.map(|(no, _)| no).filter(|no| self.scheduler.why(*no).holds_nobody()).collect()
    }
}
