//! Marks the jobs that kept workers are at, in a slot table of the server's own (`run/slots.kept`).
//!
//! Lines go straight from the server to a worker, so no launcher can note them. Without a mark a job that kills its
//! server through a kept worker would look as if it had never begun, and would do so for ever. A worker that does one
//! line after the other is at the first that it has not answered; one that works on several at once is at all of them.
//! A mark is a few words of mapped memory: it outlives the server, and costs next to nothing.

use super::kept::Line;
use crate::error::Failure;
use crate::runner::launcher::slots::{self, SLOTS, Table};
use std::path::Path;

#[derive(Debug)]
pub(super) struct Marks {
    table: Table,
    free: Vec<usize>,
}

impl Marks {
    pub(super) fn open(run: &Path) -> Result<Marks, Failure> {
        Ok(Marks { table: Table::open(&slots::kept_path(run))?, free: (0..SLOTS).rev().collect() })
    }

    /// Marks a line as begun by this process. Where thousands are marked already it is left out: should it kill its
    /// server, it is tried again as if it had not begun, and has a mark when fewer are in flight.
    pub(super) fn mark(&mut self, line: &mut Line, pid: i32) {
        if line.place.is_none() {
            line.place = self.free.pop();
            line.place.inspect(|place| self.table.mark(*place, line.id, line.start, pid));
        }
    }

    /// It was answered, so it did no harm.
    pub(super) fn clear(&mut self, place: usize) {
        self.table.clear(place);
        self.free.push(place);
    }

    /// Its worker died under it: the mark holds until its place is needed again.
    pub(super) fn died(&mut self, place: usize) {
        self.table.ended(place, true);
        self.free.insert(0, place);
    }
}
