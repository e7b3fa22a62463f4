//! Drives the engine: waits for events, turns, and performs what the turn led to.
//!
//! The one loop of the engine's thread. It waits without polling: until the next event or the engine's next
//! deadline. It owns the parts that effects go to, and must not decide anything.

use super::condition::Shown;
use super::{Effects, Engine, Event, TurnTimes};
use crate::archiver::{ArchivedTurn, Archiver};
use crate::audit::AuditLog;
use crate::clock;
use crate::error::Failure;
use crate::inbox::ingest::IngestHandle;
use crate::log::Log;
use crate::runner::Runner;
use crate::store::Store;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use windlass_core::time::Time;

/// The most events that one turn is handed; the rest waits in the channel.
const EVENTS_MOST: usize = 4096;
/// With more than this waiting for the archive, nothing new is started.
const ARCHIVE_BEHIND: u64 = 64 << 20;

/// How often old results are looked through at least and at most.
const RETAIN_EVERY: Duration = Duration::from_secs(3600);
const RETAIN_PAUSE: Duration = Duration::from_secs(60);

/// How often old results are looked through: once an hour, or what is kept for minutes would stay for an hour.
pub fn retain_every(shortest: Duration) -> Duration {
    shortest.clamp(RETAIN_PAUSE, RETAIN_EVERY)
}

/// Everything that the engine's thread owns.
pub struct Driver<S> {
    pub engine: Engine<S>,
    pub events: Receiver<Event>,
    pub runner: Box<dyn Runner + Send>,
    pub archiver: Archiver,
    pub audit: AuditLog,
    pub ingest: IngestHandle,
    pub log: Log,
    /// How long failed and cancelled jobs are kept.
    pub keep_failed: Duration,
    /// False where that is others' to decide: nothing old is removed.
    pub keeps_house: bool,
    /// When old results are looked through next, and how often.
    pub retain_at: Time,
    pub retain_every: Duration,
    pub times: Arc<TurnTimes>,
    pub shown: Arc<Shown>,
}

impl<S> std::fmt::Debug for Driver<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Driver")
    }
}

impl<S: Store> Driver<S> {
    /// Turns until the engine was told to stop and nothing is in flight.
    pub fn run(mut self) -> Result<(), Failure> {
        // What waited through a restart announces itself to nobody: the first turn looks for it, by what is known of
        // the world already.
        self.engine.tell_steady(clock::steady());
        let known: Vec<Event> = self.events.try_iter().take(EVENTS_MOST).collect();
        let effects = self.engine.turn(clock::now(), known)?;
        self.shown.set(self.engine.condition(), self.engine.stalemates());
        self.perform(effects);
        while !self.engine.is_over() {
            let mut events = self.wait()?;
            self.retain(&mut events);
            let begun = Instant::now();
            self.engine.archive_keeps_up(self.archiver.pending_bytes() < ARCHIVE_BEHIND);
            self.engine.tell_steady(clock::steady());
            let effects = self.engine.turn(clock::now(), events)?;
            if effects.has_ends() {
                self.engine.turn_took(begun.elapsed());
            }
            self.shown.set(self.engine.condition(), self.engine.stalemates());
            self.perform(effects);
            let took = begun.elapsed();
            self.times.note(took);
            self.shown.worked(took);
        }
        self.ingest.stop();
        drop(self.archiver);
        // What the archive took last is forgotten by the store now, or archived again after the next start.
        let last: Vec<Event> = self.events.try_iter().filter(|e| matches!(e, Event::Archived { .. })).collect();
        let effects = self.engine.turn(clock::now(), last)?;
        effects.answers.give();
        Ok(self.engine.store().leave()?)
    }

    /// Now and then what is older than its retention goes, in the archive and in the store.
    fn retain(&mut self, events: &mut Vec<Event>) {
        let now = clock::now();
        if now >= self.retain_at {
            self.retain_at = now.after(self.retain_every);
            if !self.keeps_house {
                return;
            }
            self.archiver.retain(now);
            let keep = i64::try_from(self.keep_failed.as_micros()).unwrap_or(i64::MAX);
            events.push(Event::Forget { before: Time(now.0.saturating_sub(keep)) });
        }
    }

    /// The next events; none when a deadline came first.
    fn wait(&mut self) -> Result<Vec<Event>, Failure> {
        let at = self.engine.next_wake()?.map_or(self.retain_at, |wake| wake.min(self.retain_at));
        let left = at.since(clock::now());
        let first = match left {
            Duration::ZERO => self.events.try_recv().ok(),
            left => self.events.recv_timeout(left).ok(),
        };
        let mut events: Vec<Event> = first.into_iter().collect();
        events.extend(self.events.try_iter().take(EVENTS_MOST));
        Ok(events)
    }

    fn perform(&mut self, effects: Effects) {
        let archives = effects.has_ends();
        if let Err(error) = self.audit.append(&effects.audit) {
            self.log.error(format!("cannot write the audit log: {error}"));
        }
        effects.answers.give();
        if !effects.starts.is_empty() {
            self.runner.start(effects.starts);
        }
        for (flight, why) in effects.stops {
            self.runner.stop(flight, why);
        }
        for (flight, position) in effects.cancels {
            self.runner.cancel(flight, position);
        }
        for lot in effects.confirms {
            self.runner.confirm(lot);
        }
        if effects.make_room > 0 {
            self.runner.make_room(effects.make_room);
        }
        if archives {
            let (turn, entries, together) = (effects.turn, effects.archive, effects.together);
            self.archiver.append(ArchivedTurn { turn, entries, together });
        }
        for _ in 0..effects.ingested {
            self.ingest.committed();
        }
        for waiter in effects.read_inbox {
            self.ingest.read_to_end(waiter);
        }
        if effects.nudge {
            self.ingest.nudge();
        }
        for note in effects.notes {
            self.log.warn(note);
        }
    }
}
