//! Room in the output: how many documents may wait there, and how many bytes, before the drivers are held.
//!
//! What waits is counted by a look, and then not again before half of the room may be used up: others write there too.
//! The limit is advice among several drivers, each of which may be one over it. It must not hold anybody itself.

use super::directory::Directory;
use std::io::Result;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use windlass_core::document::{Name, Standing};

/// What may wait in an output; nought is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    pub documents: u64,
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct Room {
    limit: Limit,
    /// So many may be handed on before it is counted again.
    left: Mutex<u64>,
}

impl Room {
    pub(super) fn new(limit: Limit) -> Room {
        Room { limit, left: Mutex::new(0) }
    }

    /// Whether one more may be made.
    pub(super) fn take(&self, output: &Directory) -> Result<bool> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if *left == 0 {
            *left = self.count(output)?;
        }
        let room = *left > 0;
        *left = left.saturating_sub(1);
        Ok(room)
    }

    /// How many may be handed on before it must be counted again.
    fn count(&self, output: &Directory) -> Result<u64> {
        let Limit { documents, bytes } = self.limit;
        let (mut found, mut size) = (0u64, 0u64);
        let mut trouble = None;
        output.each_name(|file| {
            // What the next stage works on has left the queue.
            let counts = |name: &Name<'_>| !matches!(name.standing, Standing::Working { .. });
            if Name::of(file).is_some_and(|name| counts(&name)) {
                found += 1;
                if bytes > 0 {
                    match output.facts(file) {
                        Ok(facts) => size += facts.map_or(0, |facts| facts.size),
                        Err(error) => trouble = Some(error),
                    }
                }
            }
            let full = (documents > 0 && found >= documents) || (bytes > 0 && size >= bytes);
            if full || trouble.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(error) = trouble {
            return Err(error);
        }
        if bytes > 0 {
            // Nobody knows how large the next one will be.
            let full = size >= bytes || (documents > 0 && found >= documents);
            return Ok(u64::from(!full));
        }
        Ok(documents.saturating_sub(found).div_ceil(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_holds_and_what_is_worked_on_does_not() {
        let root = tempfile::tempdir().unwrap();
        let output = Directory::open(root.path()).unwrap();
        let put = |name: &str| std::fs::write(root.path().join(name), "1234").unwrap();
        let room = |documents, bytes| Room::new(Limit { documents, bytes }).take(&output).unwrap();
        ["a.ready", "b.failed", "c.5.writing.xml", "d.5.working", "done", "note"].into_iter().for_each(put);
        assert!(room(4, 0) && !room(3, 0) && !room(2, 0));
        assert!(room(0, 13) && !room(0, 12) && !room(3, 1000) && room(4, 13));
    }
}
