//! The shipped reader in the world: when it looks, what it hands over, and how it ends.
//!
//! It does what the reader's thread does but for the sleep: here it looks again and again after random pauses. A
//! failure of the reader ends the process, as it does outside.

use crate::disk::FakeDisk;
use crate::producers::{INBOX, QUARANTINE};
use crate::world::{Due, Outcome, World};
use std::sync::mpsc::{Receiver, channel};
use windlass::engine::Event;
use windlass::inbox::{Delivered, IngestOptions, Reader, Round};
use windlass::store::Cursor;

/// A file is rotated once it has this many bytes, so that rotations happen in a world of some thousand jobs.
const ROTATE_AT: u64 = 6000;

/// The reader of one engine's life.
#[derive(Debug)]
pub(crate) struct Inbox {
    reader: Reader<FakeDisk>,
    delivered: Receiver<Delivered>,
    /// Lots that are durable.
    pub(crate) committed: u64,
    /// Those who wait for a look at everything.
    waiting: u64,
}

impl Inbox {
    pub(crate) fn new(disk: &FakeDisk, cursors: Vec<Cursor>) -> Inbox {
        let (hand_over, delivered) = channel();
        let deliver = Box::new(move |what| {
            // The world outlives its reader.
            let _ = hand_over.send(what);
        });
        let options = IngestOptions { inbox: INBOX.into(), quarantine: QUARANTINE.into(), cursors, deliver };
        let reader = Reader::new(options, disk.clone()).rotate_at(ROTATE_AT);
        Inbox { reader, delivered, committed: 0, waiting: 0 }
    }

    pub(crate) fn wait_for_look(&mut self, waiters: Vec<u64>) {
        self.waiting += waiters.len() as u64;
        self.reader.take_waiters(waiters);
    }
}

impl World {
    /// Looks after a while, unless a look is due already.
    pub(crate) fn look_soon(&mut self) {
        if !std::mem::replace(&mut self.look_due, true) {
            let after = self.random.between(500, 200_000);
            self.at(after, Due::Look);
        }
    }

    pub(crate) fn look(&mut self) -> Outcome<()> {
        self.look_due = false;
        if !self.may_die() {
            self.disk.works_again();
        }
        let steps = self.random.between(1, 4);
        let Some(inbox) = &mut self.inbox else { return Ok(()) };
        inbox.reader.note_commits(inbox.committed);
        inbox.reader.wake();
        let mut failure = None;
        for _ in 0..steps {
            match inbox.reader.step() {
                Ok(Round::Read) => {}
                Ok(Round::Blocked | Round::Gathers | Round::AtEnd) => break,
                Err(what) => {
                    failure = Some(what);
                    break;
                }
            }
        }
        let delivered: Vec<Delivered> = inbox.delivered.try_iter().collect();
        for what in delivered {
            self.take_delivered(what)?;
        }
        if let Some(failure) = failure {
            self.tell(|| format!("the reader ended: {failure}"));
            return self.die(false);
        }
        let unread = || self.producers.ids_written().iter().any(|id| !self.ledger.jobs.contains_key(id));
        if !self.calm || self.inbox.as_ref().is_some_and(|inbox| inbox.waiting > 0) || unread() {
            self.look_soon();
        }
        Ok(())
    }

    fn take_delivered(&mut self, what: Delivered) -> Outcome<()> {
        match what {
            Delivered::Lot(lot) => self.send(Event::Ingested(lot)),
            Delivered::ReadToEnd { waiter } => {
                if let Some(inbox) = &mut self.inbox {
                    inbox.waiting -= 1;
                }
                self.send(Event::InboxRead { waiter });
            }
            Delivered::Trouble(failure) => {
                self.tell(|| format!("trouble: {failure}"));
                // Nothing here replaces or cuts a file, so none may seem to be another one.
                if failure.text.contains("is not the file that was read") {
                    return Err(failure.to_string());
                }
            }
            Delivered::Ended(failure) => return Err(format!("the reader ended by itself: {failure}")),
        }
        Ok(())
    }
}
