//! One queue as the scheduler sees it: what is ready in each lane, and which lane its next start takes.
//!
//! This file owns the counts and the share of retries. It must not know slots or other queues.

use super::CrewNo;
use crate::job::{Lane, LaneKind, Priority};
use crate::sabotage::{self, Sabotage};

/// While fresh jobs wait, one start in so many is a retry or a suspect.
pub const CAREFUL_SHARE: u8 = 5;

/// A point on the virtual clock of a priority.
pub(super) type Pass = u64;

/// The ready jobs of one priority.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// By `LaneKind`. Signed, so that news which overtake each other add up to the truth in the end.
    ready: [i64; 3],
    priority: Priority,
    /// Fresh starts since the last careful one, up to the share.
    fresh_starts: u8,
    /// The last careful start was a retry, so a waiting suspect is next.
    retried: bool,
    /// By `LaneKind`: the store gave nothing where jobs were counted, so no further claim until the count changes.
    barren: [bool; 3],
}

impl Level {
    fn waits(&self, kind: LaneKind) -> bool {
        self.ready[kind as usize] > 0 && !self.barren[kind as usize]
    }

    fn choose(&self, suspects: bool) -> Option<LaneKind> {
        let suspect = suspects && self.waits(LaneKind::Suspect);
        let careful = match (self.waits(LaneKind::Retry), suspect) {
            (true, true) if self.retried => Some(LaneKind::Suspect),
            (true, _) => Some(LaneKind::Retry),
            (false, true) => Some(LaneKind::Suspect),
            (false, false) => None,
        };
        let fresh = self.waits(LaneKind::Fresh).then_some(LaneKind::Fresh);
        let its_turn = self.fresh_starts >= CAREFUL_SHARE - 1 && !sabotage::on(Sabotage::RetriesStarve);
        if its_turn { careful.or(fresh) } else { fresh.or(careful) }
    }
}

/// What is said of a queue, a bit each: with fifty thousand queues every byte counts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    /// It waits for more jobs before it fills a batch.
    Lingers = 1,
    /// Others have subscribed to it: its jobs are handed on, not started.
    Topic = 2,
    /// It stands in the order of topics, with the priority of `class`.
    Routed = 4,
    /// It is a stage of a pipeline.
    Stage = 8,
    /// As much waits in it as may.
    Full = 16,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: Box<str>,
    /// Best priority first; few, and without the priorities at which nothing waits.
    levels: Vec<Level>,
    /// Where it stands on the clock of `class`, in jobs ÷ weight; on its crew's own clock while it is listed.
    pub(super) pass: Pass,
    pub(super) crew: Option<CrewNo>,
    /// The priority that `pass` counts for.
    pub(super) class: Priority,
    /// It stands in its crew's order.
    pub(super) listed: bool,
    pub(super) paused: bool,
    /// Its starts in flight, those in stock included.
    pub(super) used: u32,
    marks: u8,
}

/// The lane a queue's next start takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) priority: Priority,
    pub(super) kind: LaneKind,
}

impl Queue {
    pub(super) fn new(name: &str) -> Queue {
        Queue {
            name: name.into(),
            levels: Vec::new(),
            pass: 0,
            crew: None,
            class: Priority::NORMAL,
            listed: false,
            paused: false,
            used: 0,
            marks: 0,
        }
    }

    pub(super) fn is(&self, mark: Mark) -> bool {
        self.marks & mark as u8 != 0
    }

    pub(super) fn mark(&mut self, mark: Mark, on: bool) {
        self.marks = self.marks & !(mark as u8) | if on { mark as u8 } else { 0 };
    }

    /// Nothing is ready any more.
    pub(super) fn clear(&mut self) {
        self.levels.clear();
        self.mark(Mark::Routed, false);
        self.mark(Mark::Full, false);
    }

    /// The best startable lane; `suspects` says whether a suspect may start now. None where it waits for more jobs.
    pub(super) fn choose(&self, suspects: bool) -> Option<Choice> {
        let levels = if self.is(Mark::Lingers) { &[][..] } else { &self.levels };
        levels.iter().find_map(|level| level.choose(suspects).map(|kind| Choice { priority: level.priority, kind }))
    }

    pub(super) fn ready(&self, priority: Priority, kind: LaneKind) -> u64 {
        let level = self.levels.iter().find(|level| level.priority == priority);
        level.map_or(0, |level| u64::try_from(level.ready[kind as usize]).unwrap_or(0))
    }

    /// The lanes that have ready jobs, best first.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (Priority, LaneKind)> + '_ {
        let kinds = [LaneKind::Fresh, LaneKind::Retry, LaneKind::Suspect];
        let of = move |level: &Level| {
            let level = *level;
            kinds.into_iter().filter(move |kind| level.waits(*kind)).map(move |kind| (level.priority, kind))
        };
        self.levels.iter().flat_map(of)
    }

    /// Ready jobs at priorities above this one.
    pub(super) fn ahead(&self, priority: Priority) -> u64 {
        let above = self.levels.iter().filter(|level| level.priority > priority);
        above.flat_map(|level| level.ready).map(|count| u64::try_from(count).unwrap_or(0)).sum()
    }

    pub(super) fn waiting(&self) -> u64 {
        let counts = self.levels.iter().flat_map(|level| level.ready);
        counts.map(|count| u64::try_from(count).unwrap_or(0)).sum()
    }

    pub(super) fn add(&mut self, lane: Lane, delta: i64) {
        let found = self.levels.binary_search_by(|level| lane.priority.cmp(&level.priority));
        let at = found.unwrap_or_else(|at| {
            let (ready, priority) = ([0; 3], lane.priority);
            let level = Level { ready, priority, fresh_starts: 0, retried: false, barren: [false; 3] };
            // Most queues have one priority for ever; fifty thousand spare places would be paid for nothing.
            self.levels.reserve_exact(1);
            self.levels.insert(at, level);
            at
        });
        self.levels[at].ready[lane.kind as usize] += delta;
        self.levels[at].barren[lane.kind as usize] = false;
        if self.levels[at].ready == [0; 3] {
            self.levels.remove(at);
        }
    }

    /// Notes that a claim from this lane gave nothing.
    pub(super) fn found_barren(&mut self, lane: Lane) {
        if let Some(level) = self.levels.iter_mut().find(|level| level.priority == lane.priority) {
            level.barren[lane.kind as usize] = true;
        }
    }

    /// Forgets which lanes were found barren.
    pub(super) fn hope_again(&mut self) {
        self.levels.iter_mut().for_each(|level| level.barren = [false; 3]);
    }

    /// Takes `count` jobs off the chosen lane for one start.
    pub(super) fn take(&mut self, lane: Lane, count: u32) {
        if let Some(level) = self.levels.iter_mut().find(|level| level.priority == lane.priority) {
            match lane.kind {
                LaneKind::Fresh => level.fresh_starts = (level.fresh_starts + 1).min(CAREFUL_SHARE - 1),
                LaneKind::Retry | LaneKind::Suspect => {
                    level.fresh_starts = 0;
                    level.retried = lane.kind == LaneKind::Retry;
                }
            }
        }
        self.add(lane, -i64::from(count));
    }
}
