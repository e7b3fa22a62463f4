//! What the engine is doing, for a person who asks why: its condition, its queues, what is in flight.

use super::event::FlightInfo;
use super::{Condition, Engine};
use crate::store::Store;
use windlass_core::life_cycle::State;

/// The most queues that are told one by one.
const QUEUES_MOST: usize = 100;

/// A picture of the engine between two turns.
#[derive(Clone, Debug)]
pub struct Dump {
    pub condition: Condition,
    pub flights: Vec<FlightInfo>,
    /// Queues with live jobs, most of them first, and how many more there are.
    pub queues: Vec<QueueDump>,
    pub more_queues: usize,
    /// Events that did not fit into the last turn.
    pub pending: usize,
    /// How often ready work did not start although nothing held it.
    pub stalemates: u64,
    /// Who waits for the end of everything.
    pub drained_waiters: usize,
    /// The last turn that settled anything, and the last one that the archive holds.
    pub settled: u64,
    pub archived: u64,
}

#[derive(Clone, Debug)]
pub struct QueueDump {
    pub name: String,
    pub by_state: [u64; State::ALL.len()],
}

impl QueueDump {
    fn live(&self) -> u64 {
        State::ALL.iter().filter(|state| !state.is_end()).map(|state| self.by_state[state.index()]).sum()
    }
}

impl<S: Store> Engine<S> {
    pub(super) fn dump(&self) -> Dump {
        let named = self.queues.iter().map(|(_, queue)| (queue.name.to_string(), queue.by_state));
        let mut queues: Vec<QueueDump> = named.map(|(name, by_state)| QueueDump { name, by_state }).collect();
        queues.retain(|queue| queue.live() > 0);
        queues.sort_by_key(|queue| std::cmp::Reverse(queue.live()));
        let more_queues = queues.len().saturating_sub(QUEUES_MOST);
        queues.truncate(QUEUES_MOST);
        Dump {
            condition: self.condition(),
            flights: self.flight_infos(),
            queues,
            more_queues,
            pending: self.pending.len(),
            stalemates: self.stalemates(),
            drained_waiters: self.waiters.drained.len(),
            settled: self.settled,
            archived: self.archived,
        }
    }
}
