//! Whether a destination seems dead: after so many failures in a row it is only probed, one start at a time.
//!
//! A destination is what the starts of a queue go to: a host, a service, a key of the data. While it seems dead
//! everything for it waits, so attempts are not burnt on it; a probe goes when the last start has ended and a wait is
//! over that doubles with each failed probe. One sign of life ends it. It must not start, count or store anything else.

use crate::policy::Backoff;
use crate::retry;
use crate::time::Steady;
use std::time::Duration;

/// The waits between probes: soon at first, and never so long that a recovery goes unnoticed for minutes.
const WAITS: Backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(60) };

/// What an outcome says of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Alive,
    Dead,
    /// It was stopped, or never began: nothing.
    None,
}

/// Whether something may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    Free,
    /// One job, to see whether it lives.
    Probe,
    /// Not before that time.
    Until(Steady),
    /// Not before what is under way has ended.
    Busy,
}

/// What is known of one destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circuit {
    /// Jobs that have begun and not ended.
    under_way: u32,
    failures: u32,
    /// There while it seems dead.
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    next: Steady,
    probes: u32,
    probing: bool,
}

impl Circuit {
    pub fn passage(&self, now: Steady) -> Passage {
        match self.open {
            None => Passage::Free,
            // What began before counts as well, so that the end that is heard of next is the probe's.
            Some(_) if self.under_way > 0 => Passage::Busy,
            Some(open) if open.next > now => Passage::Until(open.next),
            Some(_) => Passage::Probe,
        }
    }

    /// So many jobs begin.
    pub fn begun(&mut self, jobs: u32) {
        let quiet = self.under_way == 0;
        self.under_way += jobs;
        if let Some(open) = &mut self.open {
            open.probing = quiet;
        }
    }

    /// So many jobs have ended, and this is what each says. True where it seems dead from now on, or lives again.
    pub fn ended(&mut self, jobs: u32, sign: Sign, dead_after: u32, now: Steady) -> bool {
        if jobs == 0 {
            return false;
        }
        self.under_way = self.under_way.saturating_sub(jobs);
        match (sign, &mut self.open) {
            (Sign::Alive, open) => {
                self.failures = 0;
                return open.take().is_some();
            }
            (Sign::Dead, None) => {
                self.failures = self.failures.saturating_add(jobs);
                if dead_after > 0 && self.failures >= dead_after {
                    self.open = Some(Open { next: now.after(WAITS.base), probes: 0, probing: false });
                    return true;
                }
            }
            (Sign::Dead, Some(open)) => {
                self.failures = self.failures.saturating_add(jobs);
                if std::mem::take(&mut open.probing) {
                    open.probes = open.probes.saturating_add(1);
                    open.next = now.after(retry::ceiling(WAITS, open.probes + 1));
                }
            }
            // The probe came to nothing; the next one may go at once.
            (Sign::None, Some(open)) => open.probing = false,
            (Sign::None, None) => {}
        }
        false
    }

    /// Failures in a row, where it seems dead.
    pub fn dead(&self) -> Option<u32> {
        self.open.map(|_| self.failures)
    }

    /// True where nothing is known that would be missed.
    pub fn is_blank(&self) -> bool {
        *self == Circuit::default()
    }

    /// True where nothing is under way and it does not seem dead.
    pub fn is_quiet(&self) -> bool {
        self.under_way == 0 && self.open.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Steady {
        Steady::default().after(Duration::from_secs(seconds))
    }

    /// A destination that has failed three times in a row, at 100 s.
    fn dead() -> Circuit {
        let mut circuit = Circuit::default();
        for time in [98, 99, 100] {
            assert_eq!(circuit.passage(at(time)), Passage::Free);
            circuit.begun(1);
            circuit.ended(1, Sign::Dead, 3, at(time));
        }
        circuit
    }

    #[test]
    fn failures_in_a_row_close_it_and_a_success_between_them_does_not_let_it_come_to_that() {
        assert_eq!(dead().passage(at(100)), Passage::Until(at(101)));
        let mut circuit = Circuit::default();
        for sign in [Sign::Dead, Sign::Dead, Sign::Alive, Sign::Dead, Sign::None, Sign::Dead] {
            circuit.begun(1);
            assert!(!circuit.ended(1, sign, 3, at(1)));
        }
        assert_eq!(circuit.passage(at(1)), Passage::Free);
        circuit.begun(1);
        assert!(circuit.ended(1, Sign::Dead, 3, at(1)), "the third in a row; what says nothing does not break the row");
        assert_eq!(circuit.dead(), Some(3));
    }

    #[test]
    fn it_is_probed_by_one_at_a_time_with_longer_and_longer_waits() {
        let mut circuit = dead();
        let mut now = 100;
        for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(circuit.passage(at(now)), Passage::Until(at(now + wait)), "{wait}");
            now += wait;
            assert_eq!(circuit.passage(at(now)), Passage::Probe);
            circuit.begun(1);
            assert_eq!(circuit.passage(at(now + 500)), Passage::Busy);
            assert!(!circuit.ended(1, Sign::Dead, 3, at(now)));
        }
        circuit.begun(1);
        assert!(circuit.ended(1, Sign::Alive, 3, at(now)));
        assert_eq!((circuit.passage(at(now)), circuit.is_blank()), (Passage::Free, true));
    }

    #[test]
    fn ends_of_what_began_before_do_not_count_as_probes() {
        let mut circuit = Circuit::default();
        circuit.begun(10);
        circuit.ended(9, Sign::Dead, 3, at(100));
        assert_eq!(circuit.passage(at(200)), Passage::Busy, "one is still under way");
        circuit.ended(1, Sign::Dead, 3, at(100));
        assert_eq!(circuit.passage(at(100)), Passage::Until(at(101)), "the wait is still the first");
        let mut lives = dead();
        lives.begun(1);
        assert!(!lives.ended(1, Sign::None, 3, at(101)));
        assert_eq!(lives.passage(at(101)), Passage::Probe, "a probe that was stopped is made again");
    }

    #[test]
    fn the_end_of_no_job_says_nothing() {
        let mut circuit = dead();
        circuit.begun(1);
        assert!(!circuit.ended(0, Sign::None, 3, at(101)));
        circuit.ended(1, Sign::Dead, 3, at(101));
        assert_eq!(circuit.passage(at(101)), Passage::Until(at(103)), "the probe still counts as one");
    }

    #[test]
    fn nought_means_never() {
        let mut circuit = Circuit::default();
        for _ in 0..1000 {
            circuit.begun(1);
            assert!(!circuit.ended(1, Sign::Dead, 0, at(1)));
        }
        assert_eq!(circuit.passage(at(1)), Passage::Free);
    }
}
