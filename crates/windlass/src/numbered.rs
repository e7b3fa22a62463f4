//! Maps by numbers that this program gives out itself.
//!
//! The standard hasher guards against keys that somebody chose to collide. Arrivals, flights and queue numbers are
//! nobody's choice, and are looked up many times for each job. It must not hold keys that come from outside.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by such a number, or by a few of them.
pub(crate) type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Odd, with its bits spread evenly: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// So many bits of a number say which of a block of neighbours it is.
const NEAR: u32 = 6;
/// The map tells keys of neighbouring places apart by the bits from here on.
const TAG: u32 = 57;

/// Numbers are given out in a row, and mostly looked up in a row: blocks of neighbours fall anywhere, but those of a
/// block lie side by side, so that the next is in the processor's cache where the last one was. Of a key of several
/// numbers these are neighbours in the last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher {
    block: u64,
    near: u64,
}

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        // The product's high bits depend on all bits of the number, and the map looks at both ends.
        let place = (self.block ^ self.block >> 32).wrapping_add(self.near);
        place.wrapping_add(self.near << TAG)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_i8(&mut self, number: i8) {
        self.write_u64(number as u64);
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.block = (self.block.rotate_left(29) ^ number >> NEAR).wrapping_mul(SPREAD);
        self.near = (self.near << NEAR).wrapping_add(number & ((1 << NEAR) - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::Hash;

    fn hash(number: u64) -> u64 {
        let mut hasher = NumberHasher::default();
        (0i8, number).hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn numbers_in_a_row_fall_into_different_places() {
        let places = |step: u64| -> HashSet<u64> { (0..10_000).map(|n| hash(n * step) & 0xffff).collect() };
        // Of ten thousand in 65,536 places chance would leave some 9,300 different ones.
        for step in [1, 2, 64, 1000, 1 << 16, 1 << 32] {
            assert!(places(step).len() > 8000, "every {step}: {}", places(step).len());
        }
    }

    #[test]
    fn neighbours_lie_side_by_side_and_are_told_apart() {
        for first in [0, 64, 64 << 20] {
            let near: Vec<u64> = (first..first + 64).map(hash).collect();
            assert!(near.windows(2).all(|two| two[1] << 7 == (two[0] << 7).wrapping_add(1 << 7)), "from {first}");
            assert_eq!(near.iter().map(|hash| hash >> TAG).collect::<HashSet<_>>().len(), 64, "from {first}");
        }
    }
}
