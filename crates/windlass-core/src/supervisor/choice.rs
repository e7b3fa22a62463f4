//! Which of several workers gets the next job: the one that will be free first, by what is known of each.
//!
//! A worker that answers one line after the other gets a second line only while what it has in hand is sure to be done
//! in a moment; so no job waits behind a long one while another worker is, or soon will be, free. One that says that it
//! works on several at once is free as long as it has room.

use std::time::Duration;

/// Work in hand that takes longer than this is not worth waiting behind.
const MOMENT: Duration = Duration::from_millis(2);
/// A job that has taken so many times the usual time is not a usual one, and nobody knows when it will end.
const UNUSUAL: u32 = 4;

/// What is known of a worker that can be given jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub in_flight: u32,
    /// How many it may have in flight.
    pub window: u32,
    /// It works on several jobs at once, and not on one after the other.
    pub parallel: bool,
    /// How long a job takes it lately; nothing is known at first.
    pub usual: Option<Duration>,
    /// How long it has been at the job that it must answer next.
    pub running: Duration,
}

impl Load {
    /// When it can begin with one more job; none where that cannot be known, or is too far away.
    pub fn free_in(self) -> Option<Duration> {
        if self.in_flight >= self.window {
            return None;
        }
        if self.in_flight == 0 || self.parallel {
            return Some(Duration::ZERO);
        }
        let usual = self.usual.filter(|usual| self.running <= *usual * UNUSUAL)?;
        let left = usual.saturating_sub(self.running) + usual * (self.in_flight - 1);
        (left <= MOMENT).then_some(left)
    }
}

impl Load {
    /// How many jobs it may be given at once, one behind the other.
    pub fn room(mut self) -> u32 {
        let before = self.in_flight;
        while self.free_in().is_some() {
            self.in_flight += 1;
        }
        self.in_flight - before
    }
}

/// The one that will be free first; among equals the one with the least in hand, then the first.
pub fn free_first<K>(workers: impl Iterator<Item = (K, Load)>) -> Option<K> {
    let free = workers.filter_map(|(worker, load)| Some((load.free_in()?, load.in_flight, worker)));
    free.min_by_key(|(wait, in_flight, _)| (*wait, *in_flight)).map(|(.., worker)| worker)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(in_flight: u32, window: u32, usual: Option<u64>, running: u64) -> Load {
        let micros = Duration::from_micros;
        Load { in_flight, window, parallel: false, usual: usual.map(micros), running: micros(running) }
    }

    #[test]
    fn an_idle_worker_goes_first_and_a_long_job_keeps_others_out() {
        let idle = load(0, 1, None, 0);
        for (workers, chosen) in [
            (vec![idle, idle], Some(0)),
            (vec![load(1, 1, None, 5), idle], Some(1)),
            (vec![load(1, 1, Some(10), 5)], None),
            (vec![load(1, 9, None, 5)], None),
            (vec![load(1, 9, Some(10), 5), idle], Some(1)),
            (vec![load(3, 9, Some(10), 5), load(1, 9, Some(10), 0)], Some(1)),
            (vec![load(1, 9, Some(10), 41)], None),
            (vec![load(1, 9, Some(5000), 0)], None),
            (vec![load(9, 9, Some(1), 0)], None),
            (vec![load(250, 1000, Some(10), 0)], None),
            (vec![load(150, 1000, Some(10), 0)], Some(0)),
            (vec![], None),
        ] {
            assert_eq!(free_first(workers.iter().copied().enumerate()), chosen, "{workers:?}");
        }
    }

    #[test]
    fn room_is_what_can_be_given_one_by_one() {
        for (load, room) in [
            (load(0, 1, None, 0), 1),
            (load(1, 1, Some(1), 0), 0),
            (load(0, 9, None, 0), 1),
            (load(0, 9, Some(1), 0), 9),
            (load(0, 1000, Some(10), 0), 201),
            (load(200, 1000, Some(10), 0), 1),
            (load(1, 9, Some(10), 41), 0),
            (Load { parallel: true, ..load(3, 8, None, 5) }, 5),
        ] {
            assert_eq!(load.room(), room, "{load:?}");
        }
    }

    #[test]
    fn one_that_works_on_several_at_once_is_free_while_it_has_room() {
        let busy = |in_flight| Load { parallel: true, ..load(in_flight, 4, Some(9_000_000), 8_000_000) };
        assert_eq!(free_first([busy(3), busy(2), busy(4)].into_iter().enumerate()), Some(1));
        assert_eq!(free_first([busy(4)].into_iter().enumerate()), None);
    }
}
