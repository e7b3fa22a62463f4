//! The states of a job and the one table of legal changes.
//!
//! ```text
//!             admit                   claim                   succeed
//!  (new) ───────────────► ready ───────────────► running ───────────────► succeeded
//!    │ admit, later         ▲  ◄── interrupt ──────┘ │ │
//!    └─────► scheduled ─────┤ release                │ └──── fail ───────► failed ──┐
//!               ▲           │                        │                              │ revive
//!               └ snooze ───┼────────────────────────┤                              ▼
//!                           └──── retrying ◄─ retry ─┘                            ready
//!
//!  scheduled, ready, retrying, suspended ── expire ──► failed
//!  scheduled, ready, retrying ── suspend ──► suspended ── resume ──► ready
//!  scheduled, ready, retrying, suspended, running ── cancel ──► cancelled ── revive ──► ready
//!  scheduled, ready, retrying, suspended ── hold ──► running, on its way to another server
//! ```
//!
//! What may be trusted: a *running* job has a start number that is on disk; a *retrying* or *scheduled* job has
//! a due time; a *failed* or *cancelled* job keeps its data; a *succeeded* job is only in the archive. A running
//! job is *cancelled* when its process tree is proven dead, not when a person asked for it. Stores consult this
//! table and must not know another.

use std::fmt;
use std::str::FromStr;

/// The state of a job: the same words in code, commands, API, metrics and pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    Scheduled,
    Ready,
    Running,
    Retrying,
    Suspended,
    Succeeded,
    Failed,
    Cancelled,
}

impl State {
    pub const ALL: [State; 8] = [
        State::Scheduled,
        State::Ready,
        State::Running,
        State::Retrying,
        State::Suspended,
        State::Succeeded,
        State::Failed,
        State::Cancelled,
    ];

    pub fn word(self) -> &'static str {
        match self {
            State::Scheduled => "scheduled",
            State::Ready => "ready",
            State::Running => "running",
            State::Retrying => "retrying",
            State::Suspended => "suspended",
            State::Succeeded => "succeeded",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
        }
    }

    /// True where nothing more happens by itself; a run ends when all its jobs are here.
    pub fn is_end(self) -> bool {
        match self {
            State::Succeeded | State::Failed | State::Cancelled => true,
            State::Scheduled | State::Ready | State::Running | State::Retrying | State::Suspended => false,
        }
    }

    /// The state's place in arrays and stored numbers; fixed for ever.
    pub fn index(self) -> usize {
        self as usize
    }

    pub fn from_index(index: usize) -> Option<State> {
        State::ALL.get(index).copied()
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for State {
    type Err = String;
    fn from_str(text: &str) -> Result<State, String> {
        State::ALL.into_iter().find(|s| s.word() == text).ok_or_else(|| {
            let words: Vec<_> = State::ALL.iter().map(|s| s.word()).collect();
            format!("expected a state ({}), got: {text}", words.join(", "))
        })
    }
}

/// What can happen to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Its time has come.
    Release,
    /// A start was stored for it.
    Claim,
    /// It was taken out of its queue, in whatever state it waited, to go to another server.
    Hold,
    Succeed,
    /// It failed and has attempts left.
    Retry,
    /// It failed for good.
    Fail,
    /// It was stopped or lost through no fault of its own: back, at no charge.
    Interrupt,
    /// It asked to be run later, at no charge.
    Snooze,
    Suspend,
    Resume,
    Cancel,
    /// A person asked for another try.
    Revive,
    /// The time by which it had to begin or to end has passed.
    Expire,
}

impl Change {
    pub const ALL: [Change; 13] = [
        Change::Release,
        Change::Claim,
        Change::Hold,
        Change::Succeed,
        Change::Retry,
        Change::Fail,
        Change::Interrupt,
        Change::Snooze,
        Change::Suspend,
        Change::Resume,
        Change::Cancel,
        Change::Revive,
        Change::Expire,
    ];
}

/// The whole life cycle: every legal change, and nothing else is.
pub const TRANSITIONS: [(State, Change, State); 30] = {
    use {Change as C, State as S};
    [
        (S::Scheduled, C::Release, S::Ready),
        (S::Scheduled, C::Suspend, S::Suspended),
        (S::Scheduled, C::Cancel, S::Cancelled),
        (S::Ready, C::Claim, S::Running),
        (S::Ready, C::Suspend, S::Suspended),
        (S::Ready, C::Cancel, S::Cancelled),
        (S::Running, C::Succeed, S::Succeeded),
        (S::Running, C::Retry, S::Retrying),
        (S::Running, C::Fail, S::Failed),
        (S::Running, C::Interrupt, S::Ready),
        (S::Running, C::Snooze, S::Scheduled),
        (S::Running, C::Cancel, S::Cancelled),
        (S::Retrying, C::Release, S::Ready),
        (S::Retrying, C::Suspend, S::Suspended),
        (S::Retrying, C::Cancel, S::Cancelled),
        // A person may say "now" to a job that waits for its back-off or its time.
        (S::Retrying, C::Revive, S::Ready),
        (S::Scheduled, C::Revive, S::Ready),
        (S::Suspended, C::Resume, S::Ready),
        (S::Suspended, C::Cancel, S::Cancelled),
        (S::Failed, C::Revive, S::Ready),
        (S::Cancelled, C::Revive, S::Ready),
        // A failed job may be given up for good; its data then goes with its retention.
        (S::Failed, C::Cancel, S::Cancelled),
        // What runs is stopped first; then it fails as what runs does.
        (S::Scheduled, C::Expire, S::Failed),
        (S::Ready, C::Expire, S::Failed),
        (S::Retrying, C::Expire, S::Failed),
        (S::Suspended, C::Expire, S::Failed),
        // What goes to another server is held as what runs is, until the other one has it or has refused it.
        (S::Scheduled, C::Hold, S::Running),
        (S::Ready, C::Hold, S::Running),
        (S::Retrying, C::Hold, S::Running),
        (S::Suspended, C::Hold, S::Running),
    ]
};

/// The state a change leads to, or nothing if it is not legal there.
pub fn next(from: State, change: Change) -> Option<State> {
    TRANSITIONS.iter().find(|(f, c, _)| *f == from && *c == change).map(|(_, _, to)| *to)
}

#[cfg(test)]
mod tests;
