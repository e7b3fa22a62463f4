//! Jobs that ended and did not succeed: those that failed and those that were cancelled, counted and said apart. To an
//! exit code they are the same.

use super::print::{count, grouped};
use serde_json::Value;
use windlass_core::life_cycle::State;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missed {
    pub(super) failed: u64,
    pub(super) cancelled: u64,
}

impl Missed {
    /// Out of the counters of a run.
    pub(super) fn of(counts: &Value) -> Missed {
        let of = |state: State| count(counts, state.word());
        Missed { failed: of(State::Failed), cancelled: of(State::Cancelled) }
    }

    /// One job that ended in this state, which was not hoped for.
    pub(super) fn one(state: State) -> Missed {
        let cancelled = u64::from(state == State::Cancelled);
        Missed { failed: 1 - cancelled, cancelled }
    }

    pub(super) fn and(self, other: Missed) -> Missed {
        Missed { failed: self.failed + other.failed, cancelled: self.cancelled + other.cancelled }
    }

    pub(super) fn all(self) -> u64 {
        self.failed + self.cancelled
    }

    /// `2 failed, 1 cancelled`
    pub(super) fn words(self) -> String {
        let (failed, cancelled) = (grouped(self.failed), grouped(self.cancelled));
        match (self.failed, self.cancelled) {
            (0, 0) => "nothing failed".to_owned(),
            (_, 0) => format!("{failed} failed"),
            (0, _) => format!("{cancelled} cancelled"),
            (_, _) => format!("{failed} failed, {cancelled} cancelled"),
        }
    }

    /// As a selector takes them: `state:failed,cancelled`.
    pub(super) fn selector(self) -> &'static str {
        match (self.failed, self.cancelled) {
            (_, 0) => "state:failed",
            (0, _) => "state:cancelled",
            (_, _) => "state:failed,cancelled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cancelled_did_not_fail() {
        let said = |failed, cancelled| {
            let missed = Missed { failed, cancelled };
            (missed.all(), missed.words(), missed.selector())
        };
        assert_eq!(said(0, 0), (0, "nothing failed".into(), "state:failed"));
        assert_eq!(said(1200, 0), (1200, "1,200 failed".into(), "state:failed"));
        assert_eq!(said(0, 2), (2, "2 cancelled".into(), "state:cancelled"));
        assert_eq!(said(1, 2), (3, "1 failed, 2 cancelled".into(), "state:failed,cancelled"));
        let both = Missed::one(State::Cancelled).and(Missed::one(State::Failed));
        assert_eq!(both, Missed::of(&serde_json::json!({ "failed": 1, "cancelled": 1, "succeeded": 4 })));
    }
}
