//! Knowing that all is done: the counters of a run and the one rule of its end.
//!
//! The counters change in the same transactions as the jobs' states, so "ended" is a fact and never a guess.
//! Cycles, retries and follow-ups are in the count by construction. It must not know how jobs are stored.

use crate::job::RunId;
use crate::life_cycle::State;
use crate::sabotage::{self, Sabotage};
use terms::Stopped;

pub mod terms;

/// How many jobs of a run are in each state, and whether more may come from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCounts {
    pub by_state: [u64; State::ALL.len()],
    /// No more jobs will be added from outside.
    pub sealed: bool,
    /// The end was announced; it is announced once.
    pub ended: bool,
    /// Jobs that were never of it, because their key was taken or its limit was reached: they hold nothing back.
    pub dropped: u64,
    /// It takes no more jobs, and what had not ended was cancelled.
    pub stopped: Option<Stopped>,
}

impl RunCounts {
    pub fn admit(&mut self, state: State, count: u64) {
        self.by_state[state.index()] += count;
    }

    /// Moves jobs between states; more than are there is a fault of the caller and is said so.
    pub fn shift(&mut self, from: State, to: State, count: u64) -> Result<(), Miscount> {
        let held = &mut self.by_state[from.index()];
        *held = held.checked_sub(count).ok_or(Miscount { state: from })?;
        self.by_state[to.index()] += count;
        Ok(())
    }

    /// Jobs that are not in an end state.
    pub fn live(&self) -> u64 {
        State::ALL.iter().filter(|s| !s.is_end()).map(|s| self.by_state[s.index()]).sum()
    }

    pub fn total(&self) -> u64 {
        self.by_state.iter().sum()
    }

    /// True exactly once: when the run is sealed and nothing of it lives. Marks the end.
    pub fn take_end(&mut self) -> bool {
        let sealed = self.sealed || sabotage::on(Sabotage::EndUnsealed);
        let ended = self.ended && !sabotage::on(Sabotage::EndTwice);
        let over = sealed && !ended && self.live() == 0;
        self.ended |= over;
        over
    }

    /// What it came to, in the words of the API, for whoever it is announced to.
    pub fn report(&self, id: RunId) -> String {
        let ends = State::ALL.iter().filter(|state| state.is_end());
        let ends = ends.map(|state| format!(",\"{state}\":{}", self.by_state[state.index()])).collect::<String>();
        let stopped = self.stopped.map(|why| format!(",\"stopped\":\"{}\"", why.word())).unwrap_or_default();
        format!("{{\"run\":\"{id}\",\"total\":{}{ends},\"dropped\":{}{stopped}}}", self.total(), self.dropped)
    }

    pub fn all_succeeded(&self) -> bool {
        self.live() == 0 && self.by_state[State::Succeeded.index()] == self.total()
    }
}

/// The counters say that fewer jobs are in a state than are leaving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miscount {
    pub state: State,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_once_and_only_when_sealed_and_empty() {
        let mut run = RunCounts::default();
        assert!(!run.take_end(), "an unsealed run never ends");
        run.admit(State::Ready, 2);
        run.sealed = true;
        assert!(!run.take_end());
        run.shift(State::Ready, State::Running, 2).unwrap();
        run.shift(State::Running, State::Succeeded, 1).unwrap();
        run.shift(State::Running, State::Retrying, 1).unwrap();
        assert!(!run.take_end());
        run.shift(State::Retrying, State::Ready, 1).unwrap();
        run.shift(State::Ready, State::Running, 1).unwrap();
        run.shift(State::Running, State::Failed, 1).unwrap();
        assert!(run.take_end());
        assert!(!run.take_end());
        assert!(!run.all_succeeded());
    }

    #[test]
    fn a_sealed_empty_run_ends_at_once() {
        let mut run = RunCounts { sealed: true, ..RunCounts::default() };
        assert!(run.take_end());
    }

    #[test]
    fn a_miscount_is_an_error() {
        let mut run = RunCounts::default();
        assert_eq!(run.shift(State::Ready, State::Running, 1), Err(Miscount { state: State::Ready }));
    }
}
