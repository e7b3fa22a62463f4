//! The invariants, one file each. A checker sees everything that happens and says at once what must not be.
//!
//! Each keeps what it needs of the past itself and may look at the ledger. None may change anything.

mod acceptance;
mod archive;
mod attempts;
mod chains;
mod checkpoints;
mod deleted;
mod drained;
mod duplicates;
mod life;
mod memory;
mod order;
mod outcomes;
mod poison;
mod rates;
mod run_end;
mod schedules;
mod slots;
mod steered;
mod terms;
#[cfg(test)]
mod tests;
mod times;
mod tokens;
mod told;

use crate::agenda::Plan;
use crate::ledger::{Ledger, Turned};
use crate::rules::Rules;
use std::collections::BTreeSet;
use windlass::store::Durability;
use windlass_core::job::JobId;
use windlass_core::overrides::Override;
use windlass_core::time::Time;

/// Something that happened, as seen from outside the engine.
#[derive(Debug)]
pub(crate) enum Seen<'a> {
    /// A producer is about to hand this over: from now on it may become a job.
    Offered {
        id: JobId,
        data: u64,
        not_before: Option<Time>,
    },
    /// What is about to be handed over must have begun by then.
    MustBegin {
        id: JobId,
        by: Time,
    },
    /// What is about to be handed over must have ended by then.
    MustEnd {
        id: JobId,
        by: Time,
    },
    /// What is about to be handed over waits for these.
    Chained {
        id: JobId,
        after: &'a [JobId],
    },
    /// The schedules that hold from now on.
    Agenda(&'a [Plan]),
    /// How a start ended, as its hands say, and when it asked to be started again at the earliest.
    Reported {
        id: JobId,
        start: u32,
        word: &'static str,
        again_at: Option<u64>,
    },
    /// Somebody was told that it is safe.
    Accepted {
        id: JobId,
        durability: Durability,
        at: u64,
    },
    /// Somebody was told that it is not there and never will be.
    Rejected {
        id: JobId,
    },
    Turned(&'a Turned),
    /// A start reached its process.
    Begun {
        id: JobId,
        start: u32,
        epoch: u64,
        data: u64,
        attempts: u32,
    },
    /// The engine is dead; after a power cut these jobs went back to what the disk knew.
    Died {
        power_cut: bool,
        undone: &'a BTreeSet<JobId>,
        at: u64,
    },
    /// Rules that hold from now on.
    Rules(&'a Rules),
    /// A person was told that what this name wished for holds.
    Steered {
        by: &'a str,
    },
    /// A new engine has read what the disk has of what people changed.
    Overrides(&'a [Override]),
    /// Whether somebody asked for quiet.
    Quiet(bool),
    /// A person was told that these are gone.
    Deleted {
        ids: &'a [JobId],
    },
    /// Somebody was told that everything has ended: whether that was so before or after this turn, and what stood in
    /// the inbox when it was asked for and is no job.
    Drained {
        quiet: bool,
        unread: Option<JobId>,
    },
    /// Somebody was told that the inbox was read, and that so many settled starts are in the archive.
    CaughtUp {
        unread: Option<JobId>,
        settled: usize,
    },
    /// A turn's outcomes are in the archive now, by job and start.
    Archived {
        turn: u64,
        starts: &'a [(JobId, u32)],
    },
    /// A job that kills its server.
    Killer {
        id: JobId,
    },
    /// It runs where it can kill nobody.
    Harmless {
        id: JobId,
    },
    /// A worker elsewhere goes on with this start, as a new engine knows.
    Resumed {
        id: JobId,
        start: u32,
    },
    /// A start that ended said how far its job has come for good.
    Said {
        id: JobId,
        start: u32,
        text: &'a str,
    },
    /// A start that began was told how far an earlier one had come.
    WentOnFrom {
        id: JobId,
        checkpoint: &'a str,
    },
    /// The memory that all needs together may not exceed.
    Budget(Option<u64>),
    /// Whether the engine may leave slots free: no space, a stop, or an archive that is behind.
    Holding(bool),
}

/// One invariant.
pub(crate) trait Checker: std::fmt::Debug {
    fn name(&self) -> &'static str;
    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String>;
    /// Everything is quiet and nothing more will happen.
    fn end(&mut self, _ledger: &Ledger) -> Result<(), String> {
        Ok(())
    }
}

/// All of them.
pub(crate) fn all() -> Vec<Box<dyn Checker>> {
    vec![
        Box::<acceptance::Acceptance>::default(),
        Box::<life::Life>::default(),
        Box::<tokens::Tokens>::default(),
        Box::<duplicates::Duplicates>::default(),
        Box::<run_end::RunEnd>::default(),
        Box::<slots::Slots>::default(),
        Box::<order::Order>::default(),
        Box::<poison::Poison>::default(),
        Box::<attempts::Attempts>::default(),
        Box::<drained::Drained>::default(),
        Box::<archive::Archive>::default(),
        Box::<times::Times>::default(),
        Box::<steered::SteeredWell>::default(),
        Box::<deleted::Deleted>::default(),
        Box::<memory::Memory>::default(),
        Box::<rates::Rates>::default(),
        Box::<checkpoints::Checkpoints>::default(),
        Box::<told::Told>::default(),
        Box::<schedules::Schedules>::default(),
        Box::<chains::Chains>::default(),
        Box::<terms::Terms>::default(),
        Box::<outcomes::Outcomes>::default(),
    ]
}
