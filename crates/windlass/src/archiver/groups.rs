//! The archive for statistics: what ended alike, without the jobs' ids and data.
//!
//! It reads frame by frame and keeps none, so that its memory does not grow with the archive. It must not count:
//! whoever asks does.

use super::frame::{self, Frame};
use super::read::{ArchiveReader, Segment};
use super::segment::{self, Walk};
use crate::error::Failure;
use windlass_core::job::{Priority, RunId};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// Attempts that ended alike.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    pub queue: &'a str,
    pub run: Option<RunId>,
    pub priority: Priority,
    pub state: State,
    pub outcome: &'a str,
    pub start: u32,
    pub admitted: Time,
    pub started: Time,
    pub finished: Time,
    pub count: u64,
}

impl ArchiveReader {
    /// Shows every group that finished at or after `since`, in the order in which it was archived.
    pub fn groups(&self, since: Time, show: &mut dyn FnMut(&Group<'_>)) -> Result<(), Failure> {
        for number in segment::numbers(self.dir())? {
            let Some(segment) = Segment::open(self.dir(), number)?.filter(|segment| segment.may_hold_after(since))
            else {
                continue;
            };
            let cannot = |e| Failure::io(format_args!("cannot read the archive segment {number}"), &e);
            let mut walk = Walk::new(&segment.file, segment.seed, segment::HEADER, segment.length);
            while let Some(found) = walk.next().map_err(cannot)? {
                let Some(Frame::Attempts(attempts)) = frame::read(walk.payload(&found)) else { continue };
                let head = &attempts.head;
                if head.finished < since {
                    continue;
                }
                show(&Group {
                    queue: head.queue,
                    run: head.run,
                    priority: head.priority,
                    state: head.state,
                    outcome: head.outcome,
                    start: head.start,
                    admitted: head.admitted,
                    started: head.started,
                    finished: head.finished,
                    count: head.offsets.len() as u64,
                });
            }
        }
        Ok(())
    }
}
