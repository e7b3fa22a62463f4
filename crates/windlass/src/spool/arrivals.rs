//! Which documents wait, in the order in which they came, without a look at the whole directory for each.
//!
//! A document came when its file got the name it has: one that failed came again, and so stands at the end, and nobody
//! who comes later overtakes it. A look at the directory keeps the first so many of what waits, however many wait; when
//! they are worked off, and there were more, the next look brings the next ones. What the kernel tells in between is
//! added. It must not claim anything: what it has may be gone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// So many names are held at most.
const MOST: usize = 1 << 16;
/// A look that takes longer than this does not keep anybody waiting: what it has seen so far is given out.
const PATIENCE: Duration = Duration::from_millis(300);
/// But a look that has seen fewer is waited for however long it takes: on a busy machine it may be held up itself, and
/// the order of few documents is one that people see.
const FEW: usize = 1000;

/// What waits.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// By when it came.
    waiting: BTreeSet<(i64, Box<[u8]>)>,
    /// Nothing waits in the directory that is not here, as far as is known.
    whole: bool,
    looking: Option<Look>,
    most: usize,
}

/// A look at the whole directory that goes on.
#[derive(Debug)]
struct Look {
    since: Instant,
    seen: usize,
}

impl Arrivals {
    pub(super) fn new() -> Arrivals {
        Arrivals::of(MOST)
    }

    fn of(most: usize) -> Arrivals {
        Arrivals { waiting: BTreeSet::new(), whole: false, looking: None, most }
    }

    /// A document waits since then.
    pub(super) fn saw(&mut self, changed: i64, file: &[u8]) {
        if let Some(look) = &mut self.looking {
            look.seen += 1;
        }
        let later = |last: &(i64, Box<[u8]>)| (last.0, &*last.1) <= (changed, file);
        if self.waiting.len() >= self.most && self.waiting.last().is_some_and(later) {
            self.whole = false;
            return;
        }
        self.waiting.insert((changed, file.into()));
        if self.waiting.len() > self.most {
            self.waiting.pop_last();
            self.whole = false;
        }
    }

    /// Something came, as the kernel tells; where more waits than is here, the next look finds it.
    pub(super) fn came(&mut self, changed: i64, file: &[u8]) {
        if self.whole {
            self.saw(changed, file);
        }
    }

    /// A look at the whole directory begins; what it sees is told by `saw`.
    pub(super) fn look_begins(&mut self) {
        self.whole = true;
        self.looking = Some(Look { since: Instant::now(), seen: 0 });
    }

    pub(super) fn look_ends(&mut self) {
        self.looking = None;
    }

    /// Something was missed: only a look can tell.
    pub(super) fn missed(&mut self) {
        self.whole = false;
    }

    /// A short look is waited for, so that the first is the first of all.
    pub(super) fn may_take(&self) -> bool {
        self.looking.as_ref().is_none_or(|look| look.seen >= FEW && look.since.elapsed() >= PATIENCE)
    }

    /// The one that has waited longest.
    pub(super) fn take(&mut self) -> Option<Box<[u8]>> {
        if !self.may_take() {
            return None;
        }
        self.waiting.pop_first().map(|(_, file)| file)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// It is worked off, and there may be more in the directory.
    pub(super) fn wants_look(&self) -> bool {
        self.waiting.is_empty() && !self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(arrivals: &mut Arrivals) -> Vec<String> {
        std::iter::from_fn(|| arrivals.take()).map(|file| String::from_utf8(file.into()).unwrap()).collect()
    }

    #[test]
    fn the_first_come_first_and_what_failed_is_last() {
        let mut arrivals = Arrivals::of(10);
        arrivals.look_begins();
        for (changed, file) in [(30, "c.ready"), (10, "a.ready"), (40, "b.failed"), (20, "d.ready")] {
            arrivals.saw(changed, file.as_bytes());
        }
        assert_eq!(arrivals.take(), None, "a short look is waited for");
        arrivals.looking.as_mut().unwrap().since -= 2 * PATIENCE;
        assert_eq!(arrivals.take(), None, "and one at few documents, too, where it was held up");
        arrivals.looking.as_mut().unwrap().seen = FEW;
        assert!(arrivals.may_take(), "one at many is not");
        arrivals.look_ends();
        arrivals.came(50, b"late.ready");
        arrivals.came(10, b"a.ready");
        assert_eq!(all(&mut arrivals), ["a.ready", "d.ready", "c.ready", "b.failed", "late.ready"]);
        assert!(!arrivals.wants_look());
    }

    #[test]
    fn however_many_wait_only_so_many_are_held_and_the_next_look_brings_the_rest() {
        let mut arrivals = Arrivals::of(3);
        let directory = ["e", "b", "d", "a", "c"].map(|name| (i64::from(name.as_bytes()[0]), name));
        arrivals.look_begins();
        directory.iter().for_each(|(changed, name)| arrivals.saw(*changed, name.as_bytes()));
        arrivals.look_ends();
        arrivals.came(200, b"f");
        assert!(!arrivals.wants_look(), "what is here is first");
        assert_eq!(all(&mut arrivals), ["a", "b", "c"]);
        assert!(arrivals.wants_look());
        arrivals.look_begins();
        directory
            .iter()
            .filter(|(_, name)| *name > "c")
            .for_each(|(changed, name)| arrivals.saw(*changed, name.as_bytes()));
        arrivals.look_ends();
        assert_eq!(all(&mut arrivals), ["d", "e"]);
        assert!(!arrivals.wants_look());
        arrivals.missed();
        assert!(arrivals.wants_look());
    }
}
