//! Why a queue's jobs do not start: a code for machines and a sentence for people, as `windlass why` says it.
//!
//! These are the very values that the plan decides by: what names a reason here is what held the start. It must not
//! know how a time is written; the edge does.

use super::memory::Shortage;
use crate::overrides::{Override, Target};
use crate::rate::Rate;
use crate::time::Time;
use std::fmt;
use std::sync::Arc;

/// Why the whole server starts nothing, as the engine told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stall {
    /// No server runs: this process only answers.
    NotServing,
    /// The disk is full.
    NoSpace,
    /// The database that holds the jobs does not answer.
    StoreAway,
    /// A person asked for quiet with a signal.
    Quiet,
    /// What has ended waits for the archive.
    ArchiveBehind,
}

/// What holds a queue back; the first that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No rule names the queue: its jobs are kept.
    NoRunner,
    /// A person paused the queue, or the server.
    Paused(Arc<Override>),
    /// Its table says `enabled = false`, or a person did.
    Disabled,
    OutsideHours {
        hours: Arc<str>,
        /// None where they never begin.
        opens: Option<Time>,
    },
    /// Its rate, or that of its key, lets none start before that time.
    RateReached {
        rate: Rate,
        next: Time,
    },
    /// What its jobs go to has failed so often in a row that it is only probed.
    DestinationDead {
        failures: u32,
        /// None while a probe, or what began before, is under way.
        probe: Option<Time>,
    },
    NothingWaits,
    /// The store gave no job at the last claim although some were counted as ready.
    Barren,
    /// Fewer jobs wait than one batch takes, and more may come.
    Lingering,
    Draining,
    Stalled(Stall),
    /// Only suspects wait, and the server has not stood for long enough to try one.
    SuspectHeld,
    /// Only suspects wait, and one is in flight.
    SuspectRunning,
    /// A person gave the queue fewer slots than its table has.
    QueueSlotsTaken {
        slots: u32,
    },
    CrewSlotsTaken {
        slots: u32,
    },
    ServerSlotsTaken {
        slots: u32,
    },
    /// Its process does not fit beside those that hold memory.
    MemoryShort(Box<Shortage>),
    /// A next stage of its pipeline has as much waiting as it may.
    NextStageFull {
        stage: Arc<str>,
        waiting: u64,
        limit: u32,
    },
    /// Remote workers serve it, and none asks now.
    NoWorkerAsks {
        /// When one last did.
        since: Option<Time>,
    },
    /// Nothing: it is served in its turn.
    Runnable,
}

impl Reason {
    /// The stable word of it.
    pub fn code(&self) -> &'static str {
        match self {
            Reason::NoRunner => "no_runner",
            Reason::Paused(made) if made.target == Target::Server => "server_paused",
            Reason::Paused(_) => "paused",
            Reason::Disabled => "disabled",
            Reason::OutsideHours { .. } => "outside_hours",
            Reason::RateReached { .. } => "rate_reached",
            Reason::DestinationDead { .. } => "destination_dead",
            Reason::NothingWaits => "nothing_waits",
            Reason::Barren => "barren",
            Reason::Lingering => "lingering",
            Reason::Draining => "draining",
            Reason::Stalled(Stall::NotServing) => "no_server",
            Reason::Stalled(Stall::NoSpace) => "no_space",
            Reason::Stalled(Stall::StoreAway) => "store_away",
            Reason::Stalled(Stall::Quiet) => "quiet",
            Reason::Stalled(Stall::ArchiveBehind) => "archive_behind",
            Reason::SuspectHeld => "suspect_held",
            Reason::SuspectRunning => "suspect_running",
            Reason::QueueSlotsTaken { .. } => "queue_slots_taken",
            Reason::CrewSlotsTaken { .. } => "crew_slots_taken",
            Reason::ServerSlotsTaken { .. } => "server_slots_taken",
            Reason::MemoryShort(_) => "memory_short",
            Reason::NextStageFull { .. } => "next_stage_full",
            Reason::NoWorkerAsks { .. } => "no_worker_asks",
            Reason::Runnable => "runnable",
        }
    }

    /// The sentence, with times as the caller writes them.
    pub fn sentence(&self, time: impl Fn(Time) -> String) -> String {
        match self {
            Reason::Paused(made) => {
                let until = made.until.map(|until| format!(" until {}", time(until))).unwrap_or_default();
                let why = if made.reason.is_empty() { String::new() } else { format!(": {}", made.reason) };
                format!("{} was paused by {} on {}{until}{why}", made.target, made.by, time(made.since))
            }
            Reason::OutsideHours { hours, opens: Some(opens) } => {
                format!("it is outside the queue's hours ({hours}); they begin on {}", time(*opens))
            }
            Reason::RateReached { next, .. } => format!("{self}; the next may on {}", time(*next)),
            Reason::DestinationDead { probe: Some(probe), .. } => {
                format!("{self}; the next probe may start on {}", time(*probe))
            }
            Reason::NoWorkerAsks { since: Some(since) } => {
                format!("it waits for a remote worker; none has asked since {}", time(*since))
            }
            other => other.to_string(),
        }
    }

    /// True where nothing keeps the queue's ready jobs: they come in their turn, or there are none.
    pub fn holds_nobody(&self) -> bool {
        match self {
            Reason::Runnable | Reason::Barren | Reason::NothingWaits => true,
            Reason::NoRunner
            | Reason::Paused(_)
            | Reason::Disabled
            | Reason::OutsideHours { .. }
            | Reason::RateReached { .. }
            | Reason::DestinationDead { .. }
            | Reason::Lingering
            | Reason::Draining
            | Reason::Stalled(_)
            | Reason::SuspectHeld
            | Reason::SuspectRunning
            | Reason::QueueSlotsTaken { .. }
            | Reason::CrewSlotsTaken { .. }
            | Reason::ServerSlotsTaken { .. }
            | Reason::MemoryShort(_)
            | Reason::NextStageFull { .. }
            | Reason::NoWorkerAsks { .. } => false,
        }
    }

    /// True where only a person, or a new config, makes the queue go on.
    pub fn is_lasting(&self) -> bool {
        match self {
            Reason::NoRunner | Reason::Paused(_) | Reason::Disabled | Reason::Stalled(Stall::NotServing) => true,
            Reason::OutsideHours { .. }
            | Reason::RateReached { .. }
            | Reason::DestinationDead { .. }
            | Reason::NothingWaits
            | Reason::Barren
            | Reason::Lingering
            | Reason::Draining
            | Reason::Stalled(Stall::NoSpace | Stall::StoreAway | Stall::Quiet | Stall::ArchiveBehind)
            | Reason::SuspectHeld
            | Reason::SuspectRunning
            | Reason::QueueSlotsTaken { .. }
            | Reason::CrewSlotsTaken { .. }
            | Reason::ServerSlotsTaken { .. }
            | Reason::MemoryShort(_)
            | Reason::NextStageFull { .. }
            | Reason::NoWorkerAsks { .. }
            | Reason::Runnable => false,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoRunner => f.write_str("no entry of the config serves this queue; its jobs are kept"),
            Reason::Paused(made) => write!(f, "{} was paused by {}", made.target, made.by),
            Reason::Disabled => f.write_str("the config entry of the queue is not enabled; its jobs are kept"),
            Reason::OutsideHours { hours, .. } => write!(f, "it is outside the queue's hours ({hours})"),
            Reason::RateReached { rate, .. } => write!(f, "its rate ({rate}) lets no further job start yet"),
            Reason::DestinationDead { failures, probe: None } => {
                write!(f, "its destination has failed {failures} times in a row; a probe is under way")
            }
            Reason::DestinationDead { failures, probe: Some(_) } => {
                write!(f, "its destination has failed {failures} times in a row and is only probed")
            }
            Reason::NothingWaits => f.write_str("no job of the queue is ready"),
            Reason::Barren => f.write_str("the last claim found no job; the next change of the queue tries again"),
            Reason::Lingering => f.write_str("it waits for more jobs to fill a batch, no longer than `batch_linger`"),
            Reason::Draining => f.write_str("the server is draining and starts nothing new"),
            Reason::Stalled(Stall::NotServing) => f.write_str("no server is running, so nothing starts"),
            Reason::Stalled(Stall::NoSpace) => f.write_str("the disk is full, so nothing starts until there is space"),
            Reason::Stalled(Stall::StoreAway) => {
                f.write_str("the database does not answer, so nothing starts until it does")
            }
            Reason::Stalled(Stall::Quiet) => {
                f.write_str("the server was asked for quiet by a signal; CONT or USR1 ends it")
            }
            Reason::Stalled(Stall::ArchiveBehind) => {
                f.write_str("the archive is behind with what has ended; nothing starts until it has caught up")
            }
            Reason::SuspectHeld => f.write_str(
                "it was running when a server died; such jobs wait until the new server has stood for a while",
            ),
            Reason::SuspectRunning => {
                f.write_str("it was running when a server died; such jobs run one at a time, and one runs now")
            }
            Reason::QueueSlotsTaken { slots } => write!(f, "all slots of the queue itself are taken (slots = {slots})"),
            Reason::CrewSlotsTaken { slots } => write!(f, "all slots of its config entry are taken (slots = {slots})"),
            Reason::ServerSlotsTaken { slots } => write!(f, "all slots of the server are taken (slots = {slots})"),
            Reason::MemoryShort(shortage) => shortage.fmt(f),
            Reason::NextStageFull { stage, waiting, limit } if *waiting == u64::from(*limit) => {
                write!(f, "held: stage {stage} has {waiting} waiting, its limit")
            }
            Reason::NextStageFull { stage, waiting, limit } => {
                write!(f, "held: stage {stage} has {waiting} waiting, and its limit is {limit}")
            }
            Reason::NoWorkerAsks { .. } => {
                f.write_str("it waits for a remote worker; none has asked since the server started")
            }
            Reason::Runnable => f.write_str("it can run and is served in its turn"),
        }
    }
}
