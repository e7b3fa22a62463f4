//! Why a queue's jobs do not start, in one sentence: what `windlass why` says.

use std::fmt;

/// What holds a queue back; the first that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No rule names the queue: its jobs are kept.
    NoRunner,
    /// The queue or its crew is paused.
    Paused,
    NothingWaits,
    /// The store gave no job at the last claim although some were counted as ready.
    Barren,
    /// Fewer jobs wait than one batch takes, and more may come.
    Lingering,
    Draining,
    /// Only suspects wait, and one is in flight.
    SuspectRunning,
    CrewSlotsTaken {
        slots: u32,
    },
    ServerSlotsTaken {
        slots: u32,
    },
    /// Nothing: it is served in its turn.
    Runnable,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoRunner => f.write_str("no entry of the config serves this queue; its jobs are kept"),
            Reason::Paused => f.write_str("the queue is paused"),
            Reason::NothingWaits => f.write_str("no job of the queue is ready"),
            Reason::Barren => f.write_str("the last claim found no job; the next change of the queue tries again"),
            Reason::Lingering => f.write_str("it waits for more jobs to fill a batch, no longer than `batch_linger`"),
            Reason::Draining => f.write_str("the server is draining and starts nothing new"),
            Reason::SuspectRunning => {
                f.write_str("its jobs were running when a server died; such jobs run one at a time, and one runs now")
            }
            Reason::CrewSlotsTaken { slots } => write!(f, "all slots of its config entry are taken (slots = {slots})"),
            Reason::ServerSlotsTaken { slots } => write!(f, "all slots of the server are taken (slots = {slots})"),
            Reason::Runnable => f.write_str("it can run and is served in its turn"),
        }
    }
}
