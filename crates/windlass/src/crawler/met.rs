//! Which pages this crawl has met, how far from the start, and what followed from each.
//!
//! It is no frontier: that is the jobs, each once in the run. It is what the archive says of those that have ended,
//! kept at hand, so that a link to a page that is known is dropped before it becomes a job, and so that a page which
//! is met again on a shorter way passes that on without being fetched again. Lost with the process, it is read anew.

use super::target::Target;
use ring::digest::{SHA256, digest};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What follows from a page that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    /// It is saved and may have links.
    Parse,
    /// It leads to this address.
    Redirect(Box<str>),
}

#[derive(Debug)]
struct Entry {
    depth: u32,
    /// None while it is being fetched.
    next: Option<Next>,
}

/// What is to be done with a page that a job names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    /// It is new.
    Fetch,
    /// It is known, and this way is no shorter.
    Known,
    /// It is known by a longer way: what follows from it is nearer than was thought.
    Nearer(Next),
    /// The same, but it is being fetched at this moment.
    Later,
}

type Key = [u8; 16];

#[derive(Debug, Default)]
pub(super) struct Met(Mutex<HashMap<Key, Entry>>);

impl Met {
    /// A job for this page begins.
    pub(super) fn meet(&self, target: &Target) -> Meeting {
        let (mut met, depth) = (self.lock(), target.depth());
        let Some(entry) = met.get_mut(&key(target)) else {
            met.insert(key(target), Entry { depth, next: None });
            return Meeting::Fetch;
        };
        match &entry.next {
            _ if entry.depth <= depth => Meeting::Known,
            None => Meeting::Later,
            Some(next) => {
                entry.depth = depth;
                Meeting::Nearer(next.clone())
            }
        }
    }

    /// The page was fetched, for good.
    pub(super) fn done(&self, target: &Target, next: Next) {
        self.lock().insert(key(target), Entry { depth: target.depth(), next: Some(next) });
    }

    /// It was not: another start will meet it anew.
    pub(super) fn forget(&self, target: &Target) {
        self.lock().remove(&key(target));
    }

    /// As the archive has it, in any order: the shortest way counts.
    pub(super) fn learn(&self, target: &Target, next: Next) {
        let mut met = self.lock();
        let entry = met.entry(key(target)).or_insert_with(|| Entry { depth: u32::MAX, next: None });
        *entry = Entry { depth: entry.depth.min(target.depth()), next: Some(next) };
    }

    /// A job for it would do nothing.
    pub(super) fn is_known(&self, target: &Target) -> bool {
        self.lock().get(&key(target)).is_some_and(|entry| entry.depth <= target.depth())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A digest, so that a million pages take little room.
fn key(target: &Target) -> Key {
    let whole = digest(&SHA256, target.url.as_str().as_bytes());
    let mut key = Key::default();
    key.copy_from_slice(&whole.as_ref()[..16]);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(depth: u32) -> Target {
        Target::read(format!("{depth} http://example.org/").as_bytes()).unwrap()
    }

    #[test]
    fn each_page_is_fetched_once_and_shorter_ways_are_passed_on() {
        let met = Met::default();
        assert_eq!(met.meet(&at(5)), Meeting::Fetch);
        assert_eq!(
            (met.meet(&at(6)), met.meet(&at(5)), met.meet(&at(4))),
            (Meeting::Known, Meeting::Known, Meeting::Later)
        );
        met.done(&at(5), Next::Parse);
        assert_eq!((met.meet(&at(5)), met.meet(&at(3))), (Meeting::Known, Meeting::Nearer(Next::Parse)));
        assert!(met.is_known(&at(3)) && !met.is_known(&at(2)));
        met.forget(&at(3));
        assert_eq!(met.meet(&at(9)), Meeting::Fetch);
    }

    #[test]
    fn the_archive_may_tell_it_in_any_order() {
        let met = Met::default();
        met.learn(&at(2), Next::Nothing);
        met.learn(&at(7), Next::Nothing);
        assert!(met.is_known(&at(2)) && !met.is_known(&at(1)));
    }
}
