//! When a crew's worker that died is made anew: after a growing wait where it had done nothing, and never more often
//! than its budget allows where it had.
//!
//! A worker that cannot even start must not be tried in a loop, and one that dies after every few jobs must not cost
//! more than a process per job would. Either way the budget is spent, and whoever owns the crew says so. It must not
//! read a clock, and it makes nothing itself.

use crate::policy::Backoff;
use crate::retry;
use crate::time::Steady;
use std::collections::VecDeque;
use std::time::Duration;

/// How often the workers of a crew may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The wait after deaths in a row without any work done.
    pub backoff: Backoff,
    /// So many of those cost no wait: somebody killed it.
    pub free: u32,
    /// So many of those spend the budget.
    pub fruitless: u32,
    /// So does one more death of any kind than this within the window.
    pub deaths: u32,
    pub window: Duration,
}

/// The deaths of one crew's workers.
#[derive(Clone, Debug)]
pub struct Regeneration {
    budget: Budget,
    /// Deaths in a row without any work done.
    fruitless: u32,
    /// Deaths within the window, oldest first; at most one more than the budget has.
    deaths: VecDeque<Steady>,
    not_before: Option<Steady>,
}

impl Regeneration {
    pub fn new(budget: Budget) -> Regeneration {
        Regeneration { budget, fruitless: 0, deaths: VecDeque::new(), not_before: None }
    }

    /// A worker died that nobody had told to; says how long it is until another may be made.
    pub fn died(&mut self, did_something: bool, now: Steady) -> Duration {
        let Budget { backoff, free, deaths, window, .. } = self.budget;
        self.deaths.push_back(now);
        self.forget_old(now);
        self.fruitless = if did_something { 0 } else { self.fruitless.saturating_add(1) };
        let waits = self.fruitless.checked_sub(free).filter(|counted| *counted > 0);
        let backoff = waits.map_or(Duration::ZERO, |counted| retry::ceiling(backoff, counted));
        // As many as the budget has, spread over the window.
        let pace = if self.is_overspent() { window / deaths.max(1) } else { Duration::ZERO };
        let wait = backoff.max(pace);
        self.not_before = Some(now.after(wait));
        wait
    }

    /// A worker did something: what kept its like from working is over, and deaths of long ago are forgotten.
    pub fn worked(&mut self, now: Steady) {
        self.fruitless = 0;
        self.forget_old(now);
        if !self.is_overspent() {
            self.not_before = None;
        }
    }

    /// True where there is nothing to forgive and nothing to wait for.
    pub fn is_well(&self) -> bool {
        self.deaths.is_empty() && self.fruitless == 0 && self.not_before.is_none()
    }

    fn forget_old(&mut self, now: Steady) {
        let Budget { deaths, window, .. } = self.budget;
        let old = |death: &Steady| now.since(*death) >= window;
        while self.deaths.len() > deaths as usize + 1 || self.deaths.front().is_some_and(old) {
            self.deaths.pop_front();
        }
    }

    /// Other rules may do what the old ones could not.
    pub fn forgive(&mut self) {
        *self = Regeneration::new(self.budget);
    }

    /// No worker is to be made before this.
    pub fn not_before(&self) -> Option<Steady> {
        self.not_before
    }

    pub fn may_make(&self, now: Steady) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// They died too often: that is to be said.
    pub fn is_spent(&self) -> bool {
        self.is_fruitless() || self.is_overspent()
    }

    /// They cannot even start.
    pub fn is_fruitless(&self) -> bool {
        self.fruitless >= self.budget.fruitless
    }

    fn is_overspent(&self) -> bool {
        self.deaths.len() > self.budget.deaths as usize
    }

    /// How they died, for the sentence.
    pub fn in_words(&self) -> String {
        match self.fruitless {
            0 => format!("{} deaths within {:?}", self.deaths.len(), self.budget.window),
            1 => "once".to_owned(),
            times => format!("{times} times in a row"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn crew(free: u32) -> Regeneration {
        let backoff = Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(60) };
        Regeneration::new(Budget { backoff, free, fruitless: 3, deaths: 4, window: 60 * SECOND })
    }

    fn at(millis: u64) -> Steady {
        Steady::default().after(Duration::from_millis(millis))
    }

    #[test]
    fn the_wait_doubles_while_nothing_is_done_and_work_ends_it() {
        let mut crew = crew(0);
        assert!(crew.may_make(at(0)));
        let waits: Vec<u128> = (0..3).map(|_| crew.died(false, at(0)).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400]);
        assert!(crew.is_spent() && crew.is_fruitless() && !crew.may_make(at(399)) && crew.may_make(at(400)));
        assert_eq!(crew.in_words(), "3 times in a row");
        crew.worked(at(400));
        assert!(!crew.is_spent() && crew.may_make(at(0)) && !crew.is_well());
        crew.worked(at(60_000));
        assert!(crew.is_well());
    }

    #[test]
    fn deaths_that_are_free_cost_no_wait() {
        let mut crew = crew(1);
        let waits: Vec<u128> = (0..3).map(|_| crew.died(false, at(0)).as_millis()).collect();
        assert_eq!(waits, [0, 100, 200]);
    }

    #[test]
    fn those_that_work_and_die_again_and_again_are_made_at_the_pace_of_the_budget() {
        let mut crew = crew(0);
        for death in 0..4 {
            assert_eq!(crew.died(true, at(death)), Duration::ZERO);
            assert!(!crew.is_spent());
        }
        assert_eq!(crew.died(true, at(4)), 15 * SECOND);
        assert!(crew.is_spent() && !crew.is_fruitless());
        assert_eq!(crew.in_words(), "5 deaths within 60s");
        crew.worked(at(5));
        assert!(crew.is_spent() && !crew.may_make(at(5)), "work does not pay for deaths");
        crew.worked(at(60_003));
        assert!(!crew.is_spent() && crew.may_make(at(60_003)), "after the window it does");
        assert_eq!(crew.died(true, at(60_004)), Duration::ZERO);
        crew.forgive();
        assert!(!crew.is_spent() && crew.not_before().is_none());
    }
}
