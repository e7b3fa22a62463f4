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

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        // The product's high bits depend on all bits of the number, and the map looks at both ends.
        self.0 ^ self.0 >> 32
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
        self.0 = (self.0.rotate_left(29) ^ number).wrapping_mul(SPREAD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::Hash;

    #[test]
    fn numbers_in_a_row_fall_into_different_places() {
        let places = |step: u64| -> HashSet<u64> {
            let hash = |number: u64| {
                let mut hasher = NumberHasher::default();
                (number, 0i8).hash(&mut hasher);
                hasher.finish() & 0xffff
            };
            (0..10_000).map(|n| hash(n * step)).collect()
        };
        // Of ten thousand in 65,536 places chance would leave some 9,300 different ones.
        for step in [1, 2, 64, 1000, 1 << 16, 1 << 32] {
            assert!(places(step).len() > 8000, "every {step}: {}", places(step).len());
        }
    }
}
