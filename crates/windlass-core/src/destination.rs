//! Many destinations behind one queue, told apart by a key of the data: a meter and a circuit for each.
//!
//! What waits lies on disk and is not looked through, so a job is asked about when it is claimed: it goes, or it comes
//! back at the time that is said here. Those that came too early get the free places of their destination one after
//! the other, and whoever comes later stands behind them. It must not know how a key is read out of data.

use crate::circuit::{Circuit, Passage, Sign};
use crate::policy::Policy;
use crate::rate::{Meter, Rate};
use crate::scheduler::CrewNo;
use crate::time::Steady;
use std::collections::HashMap;
use std::time::Duration;

/// Nobody is sent away for longer: what holds a job may change meanwhile, and then it is asked about again.
const AWAY_MOST: Duration = Duration::from_secs(3600);
/// Behind a destination that seems dead, and with a probe under way, jobs are asked about again after this time.
const BUSY_AGAIN: Duration = Duration::from_secs(5);
/// Where more destinations are known than this, those of which nothing holds a job are forgotten.
const KNOWN_MOST: usize = 100_000;

/// The rules of a crew that bear on its destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub rate: Option<Rate>,
    /// Failures in a row after which it is only probed; nought means never.
    pub dead_after: u32,
}

impl From<&Policy> for Limits {
    fn from(policy: &Policy) -> Limits {
        Limits { rate: policy.rate, dead_after: policy.dead_after }
    }
}

/// What holds a job of a destination back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Until about that time.
    Rate(Rate, Steady),
    Dead {
        failures: u32,
    },
}

/// What a claimed job is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Go,
    /// Come back then.
    Later(Steady),
}

#[derive(Clone, Copy, Debug, Default)]
struct Destination {
    meter: Meter,
    circuit: Circuit,
    /// The last place that somebody was sent away with.
    promised: Steady,
}

/// The destinations of all crews.
#[derive(Debug, Default)]
pub struct Destinations {
    known: HashMap<(CrewNo, Box<[u8]>), Destination>,
    /// With so many known it is looked again whether some can be forgotten.
    look_at: usize,
}

impl Destinations {
    /// Asks for a claimed job; one that goes is under way from now on. `returns` says that it was sent away before.
    pub fn ask(&mut self, crew: CrewNo, key: &[u8], limits: Limits, returns: bool, now: Steady) -> Told {
        if self.known.len() >= self.look_at.max(KNOWN_MOST) {
            self.forget_some(now);
        }
        let destination = self.known.entry((crew, key.into())).or_default();
        match destination.circuit.passage(now) {
            Passage::Until(next) => return Told::Later(next.min(now.after(AWAY_MOST))),
            Passage::Busy => return Told::Later(now.after(BUSY_AGAIN)),
            Passage::Free | Passage::Probe => {}
        }
        if let Some(rate) = limits.rate {
            let behind = !returns && destination.promised > now;
            if behind || destination.meter.free(rate, now) == 0 {
                let place = match returns {
                    // Somebody without a place was faster; the next free one is its own.
                    true => destination.meter.due(),
                    false if destination.promised < destination.meter.due() => destination.meter.due(),
                    false => rate.next(destination.promised),
                };
                destination.promised = destination.promised.max(place);
                return Told::Later(place.min(now.after(AWAY_MOST)));
            }
            destination.meter.take(rate, 1, now);
        }
        destination.circuit.begun(1);
        Told::Go
    }

    /// A job has ended, or did not begin after all.
    pub fn ended(&mut self, crew: CrewNo, key: &[u8], sign: Sign, limits: Limits, now: Steady) {
        // One that was forgotten has nothing under way.
        if let Some(destination) = self.known.get_mut(&(crew, Box::from(key))) {
            destination.circuit.ended(1, sign, limits.dead_after, now);
        }
    }

    /// What holds the jobs of a destination back now.
    pub fn hold(&self, crew: CrewNo, key: &[u8], limits: Limits, now: Steady) -> Option<Hold> {
        let destination = self.known.get(&(crew, Box::from(key)))?;
        if let Some(failures) = destination.circuit.dead() {
            return Some(Hold::Dead { failures });
        }
        let rate = limits.rate?;
        let waits = destination.promised > now || destination.meter.free(rate, now) == 0;
        waits.then(|| Hold::Rate(rate, destination.meter.due().max(now)))
    }

    /// Crews that are gone have no destinations.
    pub fn keep_crews(&mut self, is_known: impl Fn(CrewNo) -> bool) {
        self.known.retain(|(crew, _), _| is_known(*crew));
    }

    fn forget_some(&mut self, now: Steady) {
        self.known.retain(|_, known| {
            let waits = known.meter.due() > now || known.promised > now;
            waits || !known.circuit.is_quiet()
        });
        self.look_at = self.known.len() * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREW: CrewNo = CrewNo(1);

    fn at(millis: u64) -> Steady {
        Steady::default().after(Duration::from_millis(millis))
    }

    fn limits(count: u32, dead_after: u32) -> Limits {
        Limits { rate: Rate::new(count, Duration::from_secs(1)), dead_after }
    }

    #[test]
    fn each_job_is_sent_away_once_and_the_rate_is_kept() {
        let (mut all, limits) = (Destinations::default(), limits(10, 0));
        let mut away = Vec::new();
        for job in 0..50 {
            match all.ask(CREW, b"a", limits, false, at(1000)) {
                Told::Go => assert!(job < 3, "a fifth of a second's worth at most"),
                Told::Later(place) => away.push(place),
            }
        }
        assert!(away.is_sorted() && away.windows(2).all(|pair| pair[1].since(pair[0]) == Duration::from_millis(100)));
        assert_eq!(all.ask(CREW, b"b", limits, false, at(1000)), Told::Go, "another key has a meter of its own");
        for place in &away[..20] {
            assert_eq!(all.ask(CREW, b"a", limits, true, *place), Told::Go, "its place is kept for it");
        }
        let later = away[20];
        let fresh = all.ask(CREW, b"a", limits, false, Steady(later.0 - 1));
        assert!(matches!(fresh, Told::Later(place) if place > away[away.len() - 1]), "who comes later stands behind");
    }

    #[test]
    fn nobody_is_sent_away_for_more_than_an_hour() {
        let (mut all, limits) = (Destinations::default(), Limits { rate: Rate::new(1, AWAY_MOST), dead_after: 0 });
        let told: Vec<Told> = (0..5).map(|_| all.ask(CREW, b"a", limits, false, at(5_000_000))).collect();
        let hour = Told::Later(at(5_000_000).after(AWAY_MOST));
        assert_eq!((told[0], &told[2..]), (Told::Go, &[hour; 3][..]));
    }

    #[test]
    fn a_dead_destination_is_probed_and_the_others_are_served() {
        let (mut all, limits) = (Destinations::default(), Limits { rate: None, dead_after: 2 });
        for _ in 0..2 {
            assert_eq!(all.ask(CREW, b"dead", limits, false, at(0)), Told::Go);
            all.ended(CREW, b"dead", Sign::Dead, limits, at(0));
        }
        assert_eq!(all.hold(CREW, b"dead", limits, at(0)), Some(Hold::Dead { failures: 2 }));
        assert_eq!(all.ask(CREW, b"dead", limits, false, at(0)), Told::Later(at(1000)));
        assert_eq!(all.ask(CREW, b"fine", limits, false, at(0)), Told::Go);
        assert_eq!(all.hold(CREW, b"fine", limits, at(0)), None);
        assert_eq!(all.ask(CREW, b"dead", limits, true, at(1000)), Told::Go, "the probe");
        assert_eq!(all.ask(CREW, b"dead", limits, true, at(1000)), Told::Later(at(6000)), "one at a time");
        all.ended(CREW, b"dead", Sign::Alive, limits, at(1100));
        assert_eq!(all.ask(CREW, b"dead", limits, true, at(1100)), Told::Go);
        assert_eq!(all.hold(CREW, b"dead", limits, at(1100)), None);
    }

    #[test]
    fn what_holds_nothing_is_forgotten() {
        let (mut all, limits) = (Destinations::default(), limits(1, 3));
        for number in 0..KNOWN_MOST as u64 {
            let key = number.to_le_bytes();
            assert_eq!(all.ask(CREW, &key, limits, false, at(0)), Told::Go);
            // Every hundredth is still under way.
            if number % 100 > 0 {
                all.ended(CREW, &key, Sign::Alive, limits, at(0));
            }
        }
        all.ask(CREW, b"one more", limits, false, at(5000));
        assert_eq!(all.known.len(), KNOWN_MOST / 100 + 1);
        all.keep_crews(|crew| crew != CREW);
        assert!(all.known.is_empty());
    }
}
