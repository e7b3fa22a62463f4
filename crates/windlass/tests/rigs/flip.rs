//! FLIP: bits flipped, sectors zeroed, ends cut, ranges copied over others and pages swapped, in inbox and store files.
//!
//! The shipped reader and the shipped store open what is left, in this process. Nothing may crash or hang. In the
//! inbox everything outside the damage must come through as it was; in the store damage must be said, and no job may
//! be handed out as another. A case is repeated with `WINDLASS_FLIP_SEED`.

use crate::chance::{Chance, size};
use std::ops::Range;

mod inbox;
mod store;

/// What was done to a file, and which bytes of it are not what they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    what: &'static str,
    places: Vec<Range<usize>>,
}

impl Damage {
    fn touches(&self, record: &Range<usize>) -> bool {
        self.places.iter().any(|place| place.start < record.end && record.start < place.end)
    }
}

/// Damages a file's bytes in one of five ways.
fn damage(bytes: &mut Vec<u8>, page: usize, chance: &mut Chance) -> Damage {
    let length = bytes.len();
    let (what, places) = match chance.below(5) {
        0 => {
            let mut places = Vec::new();
            for _ in 0..1 + chance.below(8) {
                let at = chance.below(length);
                bytes[at] ^= 1 << chance.below(8);
                places.push(at..at + 1);
            }
            ("flip", places)
        }
        1 => {
            let at = chance.below(length) / 512 * 512;
            let place = at..(at + 512).min(length);
            bytes[place.clone()].fill(0);
            ("zero", vec![place])
        }
        2 => {
            let at = chance.below(length);
            bytes.truncate(at);
            ("truncate", std::iter::once(at..length).collect())
        }
        3 => {
            let count = 1 + chance.below(2 * page);
            let (from, to) = (chance.below(length), chance.below(length));
            let count = count.min(length - from).min(length - to);
            bytes.copy_within(from..from + count, to);
            ("duplicate", std::iter::once(to..to + count).collect())
        }
        _ => {
            let pages = length.div_ceil(page);
            let (a, b) = (chance.below(pages) * page, chance.below(pages) * page);
            let count = page.min(length - a).min(length - b);
            for at in 0..count {
                bytes.swap(a + at, b + at);
            }
            ("swap", vec![a..a + count, b..b + count])
        }
    };
    Damage { what, places }
}

/// Cases that once failed, behind those of the short form.
const FOUND: &[u64] = &[845, 1231, 5424, 6595, 8182, 9864];

/// The cases of each of the two halves.
fn cases() -> impl Iterator<Item = u64> {
    let (first, count, found) = match std::env::var("WINDLASS_FLIP_SEED") {
        Ok(seed) => (seed.parse().unwrap(), 1, &[][..]),
        Err(_) => (1, size("WINDLASS_FLIP_CASES", 1000) / 2, FOUND),
    };
    (first..first + count).chain(found.iter().copied().filter(move |seed| *seed >= first + count))
}

/// Runs one case; a panic or more than a minute is a finding.
fn guarded<T: Send>(seed: u64, case: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, over) = std::sync::mpsc::channel::<()>();
        let watch = scope.spawn(move || {
            if over.recv_timeout(std::time::Duration::from_secs(60)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                eprintln!("case {seed} hangs; repeat it with WINDLASS_FLIP_SEED={seed}");
                std::process::abort();
            }
        });
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(case));
        drop(done);
        watch.join().unwrap();
        told.unwrap_or_else(|_| panic!("case {seed} crashed; repeat it with WINDLASS_FLIP_SEED={seed}"))
    })
}
