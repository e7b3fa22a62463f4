//! From an outcome to a verdict: what becomes of the job now.
//!
//! Every outcome gets exactly one verdict, and failures never exceed the policy's attempts. It must not look at
//! the job's data, and it must not draw the jitter itself.

use crate::job::Record;
use crate::life_cycle::State;
use crate::outcome::Outcome;
use crate::policy::{Backoff, Policy};
use crate::retry;
use crate::sabotage::{self, Sabotage};
use crate::suspicion::{self, Ruling};
use crate::time::Time;

/// Why a failed job failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Its last allowed attempt failed.
    Exhausted,
    /// It said itself that it cannot succeed.
    Refused,
    /// It killed its worker or its server, again and again.
    Poison,
    /// Its time to start or finish had passed.
    Expired,
}

impl Reason {
    pub const ALL: [Reason; 4] = [Reason::Exhausted, Reason::Refused, Reason::Poison, Reason::Expired];

    pub fn word(self) -> &'static str {
        match self {
            Reason::Exhausted => "exhausted",
            Reason::Refused => "refused",
            Reason::Poison => "poison",
            Reason::Expired => "expired",
        }
    }
}

/// What is written about a job when one start of it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Succeed {
        message: String,
    },
    /// Charge one failure and try again at that time.
    Retry {
        at: Time,
        error: String,
    },
    /// Charge one failure and set it aside with its data.
    Fail {
        reason: Reason,
        error: String,
    },
    /// Run it again at that time, without a charge.
    Snooze {
        at: Time,
    },
    /// Give it back without a charge.
    Return,
    /// Its worker died under it: one more suspicion, and what follows from that.
    Suspect(Ruling),
    Cancel,
}

impl Verdict {
    /// The state that a running job goes to.
    pub fn state(&self) -> State {
        match self {
            Verdict::Succeed { .. } => State::Succeeded,
            Verdict::Retry { .. } => State::Retrying,
            Verdict::Snooze { .. } => State::Scheduled,
            Verdict::Fail { .. } => State::Failed,
            Verdict::Suspect(Ruling::Ready(_)) | Verdict::Return => State::Ready,
            Verdict::Suspect(Ruling::Wait(_)) => State::Retrying,
            Verdict::Suspect(Ruling::Convicted) => State::Failed,
            Verdict::Cancel => State::Cancelled,
        }
    }

    /// Why a job fails for good by this, and in which words; none where it does not. `record` is as it was before.
    pub fn failure(&self, record: Record) -> Option<(Reason, String)> {
        match self {
            Verdict::Fail { reason, error } => Some((*reason, error.clone())),
            Verdict::Suspect(Ruling::Convicted) => {
                let times = record.suspicions + 1;
                Some((Reason::Poison, format!("its worker died {times} times while it ran")))
            }
            Verdict::Succeed { .. }
            | Verdict::Retry { .. }
            | Verdict::Snooze { .. }
            | Verdict::Return
            | Verdict::Suspect(Ruling::Ready(_) | Ruling::Wait(_))
            | Verdict::Cancel => None,
        }
    }
}

/// The rules of a crew that bear on a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub attempts: u32,
    pub backoff: Backoff,
}

impl From<&Policy> for Terms {
    fn from(policy: &Policy) -> Terms {
        Terms { attempts: policy.attempts, backoff: policy.backoff }
    }
}

/// Judges one start of a job; `record` is as it was before this outcome, `random` is the jitter.
pub fn judge(outcome: Outcome, record: Record, terms: Terms, now: Time, random: u64) -> Verdict {
    match outcome {
        Outcome::Succeeded { message } => Verdict::Succeed { message },
        Outcome::Snoozed { after } => Verdict::Snooze { at: now.after(after) },
        Outcome::Interrupted | Outcome::NotMoved { .. } => Verdict::Return,
        Outcome::Moved { to } => Verdict::Succeed { message: format!("moved to {to}") },
        Outcome::Cancelled => Verdict::Cancel,
        Outcome::Lost => Verdict::Suspect(suspicion::suspect(&mut record.clone(), now)),
        Outcome::FailedForGood { error } => Verdict::Fail { reason: Reason::Refused, error },
        Outcome::RetryLater { after, error } => charge(error, after, record, terms, now, random),
        Outcome::Failed { error } | Outcome::Crashed { error } => charge(error, None, record, terms, now, random),
        Outcome::TimedOut { limit } => {
            charge(format!("ran over its time limit of {limit:?}"), None, record, terms, now, random)
        }
    }
}

/// Why a job is late.
pub fn late_sentence(begin: bool) -> &'static str {
    if begin { "the time by which it had to begin has passed" } else { "the time by which it had to end has passed" }
}

/// A job that is to be tried again, or was stopped, and is past the time by which it had to end, has failed.
pub fn in_time(verdict: Verdict, finish_by: Option<Time>, now: Time) -> Verdict {
    let late = finish_by.is_some_and(|by| by <= now);
    match verdict {
        Verdict::Succeed { .. } | Verdict::Fail { .. } | Verdict::Suspect(Ruling::Convicted) => verdict,
        Verdict::Retry { .. } | Verdict::Snooze { .. } | Verdict::Return | Verdict::Suspect(_) | Verdict::Cancel
            if late =>
        {
            Verdict::Fail { reason: Reason::Expired, error: late_sentence(false).into() }
        }
        Verdict::Retry { .. } | Verdict::Snooze { .. } | Verdict::Return | Verdict::Suspect(_) | Verdict::Cancel => {
            verdict
        }
    }
}

fn charge(
    error: String,
    at_least: Option<std::time::Duration>,
    record: Record,
    terms: Terms,
    now: Time,
    random: u64,
) -> Verdict {
    let before = if sabotage::on(Sabotage::FailuresNotCounted) { 0 } else { record.failures };
    let failures = before.saturating_add(1);
    if terms.attempts != 0 && failures >= terms.attempts {
        return Verdict::Fail { reason: Reason::Exhausted, error };
    }
    Verdict::Retry { at: now.after(retry::delay(terms.backoff, failures, at_least, random)), error }
}

#[cfg(test)]
mod tests;
