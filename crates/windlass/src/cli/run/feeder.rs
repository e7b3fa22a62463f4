//! Hands the lines of the input over to a run, each exactly once, whoever serves it at the moment.
//!
//! It has a thread of its own, because the input may be slow. A server that goes away is reported; the feeder then
//! waits for the next door, looks how far the run has come, and goes on from there.

use super::Event;
use super::input::{BATCH_LINES, Input, Reached};
use crate::cli::connect::is_gone;
use crate::cli::parts;
use crate::error::{Failure, Kind};
use crate::store::Taken;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A run as the feeder sees it.
pub(super) trait Door: Send + fmt::Debug {
    /// Adds lines; refused with a conflict where the run is not at `at`.
    fn add(&mut self, at: Taken, then: Taken, lines: &[u8]) -> Result<(), Failure>;
    fn seal(&mut self) -> Result<(), Failure>;
    /// How far the run has come, and whether it is sealed.
    fn taken(&mut self) -> Result<(Taken, bool), Failure>;
}

/// A door of one leg: legs are numbered, so that an old one's end is not taken for the new one's.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) leg: u64,
    pub(super) door: Box<dyn Door>,
    pub(super) taken: Taken,
    pub(super) sealed: bool,
    /// Only say whether the input begins with what the run has taken; nothing is handed over through this one.
    pub(super) probe: bool,
}

/// Where the main thread leaves the next door, and what the feeder tells without being asked.
#[derive(Debug, Default)]
pub(super) struct Wiring {
    next: Mutex<Option<Wire>>,
    left: Condvar,
    lines: AtomicU64,
    ended: AtomicBool,
    leaving: AtomicBool,
}

impl Wiring {
    pub(super) fn put(&self, wire: Wire) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(wire);
        self.left.notify_one();
    }

    /// Lines that the run has for certain.
    pub(super) fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    /// True once the run is sealed: no more will come.
    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Nothing more is to be handed over; an input that is at its end is still sealed.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> Wire {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = self.left.wait_while(next, |wire| wire.is_none()).unwrap_or_else(PoisonError::into_inner);
        match next.take() {
            Some(wire) => wire,
            None => unreachable!("the wait ends with a wire"),
        }
    }
}

/// The feeder's thread: ends when the run is sealed, or with a failure that nobody can wait out.
pub(super) fn feed(input: Input, wiring: &Arc<Wiring>, events: &SyncSender<Event>) {
    let mut feeder = Feeder { input, wiring, events };
    if let Err(failure) = feeder.run() {
        // Without a main thread there is nobody to tell.
        let _ = events.send(Event::FeedFailed(failure));
    }
}

struct Feeder<'a> {
    input: Input,
    wiring: &'a Wiring,
    events: &'a SyncSender<Event>,
}

impl Feeder<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let mut wire = self.wiring.take();
        loop {
            match self.input.reach(wire.taken, wire.sealed)? {
                Reached::Different => {
                    self.input.rewind()?;
                    self.tell(Event::Different { leg: wire.leg })?;
                }
                Reached::Same if wire.probe => self.tell(Event::Agreed { leg: wire.leg })?,
                Reached::Same => break,
            }
            wire = self.wiring.take();
        }
        self.input.forget();
        self.note();
        while !wire.sealed {
            if self.wiring.leaving.load(Ordering::Relaxed) && !self.input.is_over()? {
                return self.tell(Event::Left);
            }
            match self.step(&mut wire) {
                Ok(()) => {}
                Err(failure) if failure.kind == Kind::Conflict => {
                    // Another process feeds the same run, or an answer was lost: where is it now?
                    match wire.door.taken() {
                        // Neither: the run takes no more.
                        Ok((taken, false)) if taken == self.input.at() => return Err(failure),
                        Ok(taken) => self.catch_up(&mut wire, taken)?,
                        Err(gone) if is_gone(&gone) => wire = self.rewire(wire.leg, gone)?,
                        Err(other) => return Err(other),
                    }
                }
                Err(failure) if is_gone(&failure) => wire = self.rewire(wire.leg, failure)?,
                Err(failure) => return Err(failure),
            }
        }
        self.wiring.ended.store(true, Ordering::Relaxed);
        self.tell(Event::InputEnded)
    }

    /// One batch, or the seal where there is none left.
    fn step(&mut self, wire: &mut Wire) -> Result<(), Failure> {
        let next = self.input.peek(BATCH_LINES);
        match next.map_err(|failure| parts::after(failure, self.input.at().lines))? {
            Some(batch) => {
                wire.door.add(self.input.at(), batch.after, self.input.bytes(batch))?;
                self.input.consume(batch);
                self.note();
            }
            None => {
                wire.door.seal()?;
                wire.sealed = true;
            }
        }
        Ok(())
    }

    fn rewire(&mut self, leg: u64, failure: Failure) -> Result<Wire, Failure> {
        self.tell(Event::Lost { leg, failure })?;
        let mut wire = self.wiring.take();
        let taken = (wire.taken, wire.sealed);
        self.catch_up(&mut wire, taken)?;
        Ok(wire)
    }

    /// Goes to where the run is; it must have taken lines of this very input.
    fn catch_up(&mut self, wire: &mut Wire, (taken, sealed): (Taken, bool)) -> Result<(), Failure> {
        if self.input.reach(taken, sealed)? == Reached::Different {
            let text = format!("another process feeds this run: it is at line {} with other lines", taken.lines);
            return Err(Failure::new(Kind::Conflict, text).hint("give each its own --name"));
        }
        (wire.taken, wire.sealed) = (taken, sealed);
        self.note();
        Ok(())
    }

    fn note(&self) {
        self.wiring.lines.store(self.input.at().lines, Ordering::Relaxed);
    }

    fn tell(&self, event: Event) -> Result<(), Failure> {
        self.events.send(event).map_err(|_| Failure::new(Kind::Internal, "the run was given up"))
    }
}

#[cfg(test)]
mod tests;
