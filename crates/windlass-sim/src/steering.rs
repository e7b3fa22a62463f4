//! People who steer: they pause, scale, switch off and let go, ask for quiet, nudge, and ask why.
//!
//! Each steering has a name of its own, so that it is known again in what is committed and what survives.

use crate::asks::{Ask, Said};
use crate::feeders;
use crate::world::{Outcome, World};
use std::time::Duration;
use windlass::engine::Event;
use windlass::engine::event::{Follower, Steering};
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::time::Time;

/// What people steer: tables, single queues, patterns, a run's queue and the server.
const TARGETS: [&str; 10] = ["mail", "thumb.*", "thumb.a", "thumb.b", "report", "bulk", "*", "nobody", "run.0", ""];
/// Something that ends later than this is let go by a person in the end, and does not end by itself.
const PATIENCE: Duration = Duration::from_secs(3 * 3600);

impl World {
    pub(crate) fn steer_some(&mut self) -> Outcome<()> {
        let mut steering = Steering::default();
        for _ in 0..self.random.between(1, 2) {
            let target = Target::from_text(self.random.pick::<&str>(&TARGETS));
            let key = *self.random.pick(&Key::ALL);
            match self.random.below(5) {
                0 => steering.unset.push((target, Some(key))),
                1 => steering.unset.push((target, None)),
                _ => {
                    let made = self.some_override(target, key);
                    steering.set.push(made);
                }
            }
        }
        self.steer(steering);
        Ok(())
    }

    fn some_override(&mut self, target: Target, key: Key) -> Override {
        let value = match key {
            Key::Paused => 1,
            Key::Enabled => self.random.below(2) as u32,
            Key::Slots | Key::Weight => self.random.between(1, 5) as u32,
            Key::Attempts => self.random.between(0, 4) as u32,
        };
        let until = self.random.chance(500).then(|| Duration::from_millis(self.random.between(1, 20_000)));
        let (until, reason) = (until.map(|after| self.now().after(after)), "the weather".to_owned());
        Override { target, key, value, by: String::new(), since: Time(0), until, reason }
    }

    pub(crate) fn steer(&mut self, steering: Steering) {
        self.people.steerings += 1;
        let by = format!("somebody {}", self.people.steerings);
        let sets = !steering.set.is_empty();
        let ask = if sets { Ask::Steer(by.clone()) } else { Ask::Question };
        let answer = self.people.ask(ask, |_| Said::Nothing);
        self.send(Event::Steer { steering: Steering { by, ..steering }, answer });
    }

    /// Nothing is steered any more; what ends by itself soon must do so.
    pub(crate) fn let_go(&mut self) -> Outcome<()> {
        let latest = self.now().after(PATIENCE);
        let stays = |made: &Override| made.until.is_some_and(|until| until <= latest);
        let let_go = self.ledger.overrides.iter().filter(|made| !stays(made));
        let unset: Vec<(Target, Option<Key>)> = let_go.map(|made| (made.target.clone(), Some(made.key))).collect();
        if !unset.is_empty() {
            self.steer(Steering { unset, ..Steering::default() });
        }
        self.end_bulks();
        Ok(())
    }

    pub(crate) fn hush_or_nudge(&mut self) -> Outcome<()> {
        let event = if self.random.chance(300) { Event::Quiet } else { Event::Nudge };
        self.send(event);
        Ok(())
    }

    /// Questions change nothing, and each is answered.
    pub(crate) fn ask_something(&mut self) -> Outcome<()> {
        let ask = Ask::Question;
        let event = match self.random.below(6) {
            0 => {
                let queue = self.random.pick(&TARGETS).to_string();
                let answer = self.people.ask(ask, |_| Said::Nothing);
                Event::Explain { queue, lane: None, data: Vec::new(), answer }
            }
            1 => Event::Closed { answer: self.people.ask(ask, |_| Said::Nothing) },
            2 => Event::Flights { answer: self.people.ask(ask, |_| Said::Nothing) },
            3 => Event::Dump { answer: self.people.ask(ask, |_| Said::Nothing) },
            4 => {
                // It goes away with the first word.
                let follower = Follower(Box::new(|_| false));
                Event::Watch { follower, answer: self.people.ask(ask, |()| Said::Nothing) }
            }
            _ => self.ask_for_operations(),
        };
        self.send(event);
        Ok(())
    }

    /// Whether the queue is a run's own.
    pub(crate) fn is_of_a_run(queue: &str) -> bool {
        queue.starts_with(feeders::QUEUE)
    }
}
