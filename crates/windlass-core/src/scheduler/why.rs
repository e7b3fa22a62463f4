//! What holds starts back, asked in three places: at the server, at a crew and at a queue.
//!
//! The plan starts only where all three say nothing; `why` tells the first that says something. So there is one
//! answer to "may this start", whoever asks.

use super::queue::{Mark, Queue};
use super::{Reason, Scheduler, Stall};
use crate::job::{Lane, LaneKind, QueueNo};
use std::sync::Arc;

/// What holds a queue, or one lane of it, back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    pub reason: Reason,
    /// The table of the config that serves the queue.
    pub table: Option<String>,
    /// Ready jobs of a higher priority that go first where slots are short.
    pub ahead: u64,
}

/// How a queue is closed, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Paused,
    Disabled,
    /// Outside its hours.
    Shut,
}

impl Closed {
    pub fn word(self) -> &'static str {
        match self {
            Closed::Paused => "paused",
            Closed::Disabled => "disabled",
            Closed::Shut => "shut",
        }
    }
}

impl Scheduler {
    /// What holds a queue back.
    pub fn why(&self, number: QueueNo) -> Reason {
        // Who serves a queue is not known where nobody serves.
        if let Some(stall @ Stall::NotServing) = self.stall {
            return Reason::Stalled(stall);
        }
        let Some(queue) = self.queues.get(number) else { return Reason::NoRunner };
        if queue.is(Mark::Topic) {
            return self.why_topic(number, queue);
        }
        let Some(crew) = queue.crew.and_then(|number| self.crews.get(&number)) else { return Reason::NoRunner };
        let held = self.queue_closed(number, queue).or_else(|| crew.closed()).or_else(|| self.server_closed());
        let held = held.or_else(|| self.nothing_to_start(queue)).or_else(|| self.pace_hold(number, queue));
        let full = || crew.is_full().then_some(Reason::CrewSlotsTaken { slots: crew.policy.slots });
        let held = held.or_else(full);
        if crew.is_remote() {
            return held.unwrap_or_else(|| Reason::NoWorkerAsks { since: self.asked.last(&queue.name) });
        }
        let held = held.or_else(|| self.server_hold());
        held.or_else(|| self.shortage(queue.crew?)).unwrap_or(Reason::Runnable)
    }

    /// What holds a ready job of this lane back, and how many stand in front of it.
    pub fn explain(&self, lane: Lane) -> Explained {
        let queue = self.queues.get(lane.queue);
        let crew = queue.and_then(|queue| self.crews.get(&queue.crew?));
        let reason = match self.why(lane.queue) {
            Reason::Runnable | Reason::NothingWaits if lane.kind == LaneKind::Suspect && !self.suspects_may() => {
                self.suspects_wait()
            }
            reason => reason,
        };
        let ahead = match &reason {
            Reason::QueueSlotsTaken { .. } | Reason::Runnable => queue.map_or(0, |queue| queue.ahead(lane.priority)),
            Reason::CrewSlotsTaken { .. } => {
                let own = queue.and_then(|queue| queue.crew);
                let rivals = self.queues.values().filter(|queue| queue.crew == own && !queue.paused);
                rivals.map(|queue| queue.ahead(lane.priority)).sum()
            }
            Reason::ServerSlotsTaken { .. } => {
                let open = |queue: &&Queue| {
                    let crew = queue.crew.and_then(|crew| self.crews.get(&crew));
                    !queue.paused && crew.is_some_and(|crew| crew.closed().is_none())
                };
                self.queues.values().filter(open).map(|queue| queue.ahead(lane.priority)).sum()
            }
            Reason::NoRunner
            | Reason::Paused(_)
            | Reason::Disabled
            | Reason::OutsideHours { .. }
            | Reason::RateReached { .. }
            | Reason::DestinationDead { .. }
            | Reason::NothingWaits
            | Reason::Barren
            | Reason::Lingering
            | Reason::Draining
            | Reason::Stalled(_)
            | Reason::SuspectHeld
            | Reason::SuspectRunning
            | Reason::MemoryShort(_)
            | Reason::NextStageFull { .. }
            | Reason::NoWorkerAsks { .. } => 0,
        };
        Explained { reason, table: crew.map(|crew| crew.own.pattern.clone()), ahead }
    }

    /// It has a runner and nobody stopped it, so a person may wait for it to be drained.
    pub fn can_run(&self, queue: QueueNo) -> bool {
        !self.why(queue).is_lasting()
    }

    /// True where what was claimed ahead for a queue must go back: a person or the hours closed it.
    pub fn is_closed(&self, number: QueueNo) -> bool {
        self.queues.has(number) && (self.paused.is_some() || self.closed(number).is_some())
    }

    /// How a person or the hours closed this queue, apart from the server's own pause.
    pub fn closed(&self, number: QueueNo) -> Option<Closed> {
        let queue = self.queues.get(number)?;
        let crew = queue.crew.and_then(|crew| self.crews.get(&crew)).filter(|crew| !crew.gone);
        match crew {
            _ if queue.paused => Some(Closed::Paused),
            Some(crew) if !crew.policy.enabled => Some(Closed::Disabled),
            Some(crew) if crew.closed().is_some() => Some(Closed::Shut),
            Some(_) | None => None,
        }
    }

    /// A person paused the whole server.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// What keeps everything back, but for the number of the server's slots.
    pub(super) fn server_closed(&self) -> Option<Reason> {
        if let Some(paused) = &self.paused {
            Some(Reason::Paused(Arc::clone(paused)))
        } else if self.draining {
            Some(Reason::Draining)
        } else {
            self.stall.map(Reason::Stalled)
        }
    }

    /// What keeps everything back.
    pub(super) fn server_hold(&self) -> Option<Reason> {
        let full = || (self.used >= self.slots).then_some(Reason::ServerSlotsTaken { slots: self.slots });
        self.server_closed().or_else(full)
    }

    /// What keeps a queue out of its crew's order although it has something to start.
    pub(super) fn queue_closed(&self, number: QueueNo, queue: &Queue) -> Option<Reason> {
        if queue.paused {
            let made = self.overrides.pause_of(&queue.name).cloned();
            return made.map(|made| Reason::Paused(Arc::new(made)));
        }
        let cap = self.caps.get(&number);
        let full = cap.filter(|cap| queue.used >= **cap).map(|slots| Reason::QueueSlotsTaken { slots: *slots });
        full.or_else(|| self.held_by_next(queue))
    }

    /// Why a queue has no job for a start.
    fn nothing_to_start(&self, queue: &Queue) -> Option<Reason> {
        if queue.choose(self.suspects_may()).is_some() {
            None
        } else if queue.waiting() == 0 {
            Some(Reason::NothingWaits)
        } else if queue.is(Mark::Lingers) {
            Some(Reason::Lingering)
        } else if queue.choose(true).is_none() {
            Some(Reason::Barren)
        } else {
            Some(self.suspects_wait())
        }
    }

    pub(super) fn suspects_may(&self) -> bool {
        !self.suspects_held && !self.suspect_runs
    }

    fn suspects_wait(&self) -> Reason {
        if self.suspects_held { Reason::SuspectHeld } else { Reason::SuspectRunning }
    }

    /// Starts no suspect until `allow_suspects`: a server that has only just come up proves nothing about them.
    pub fn hold_suspects(&mut self) {
        self.suspects_held = true;
    }

    /// Suspects may start from now on, one at a time.
    pub fn allow_suspects(&mut self) {
        self.suspects_held = false;
        for queue in std::mem::take(&mut self.behind_suspect) {
            self.place(queue);
        }
    }
}
