//! Checksums of what decides which job is run: CRC-32, as chunks have it.
//!
//! SQLite believes what it reads. A row that was damaged on disk is told from a sound one by the sum beside it, which
//! is checked wherever the row is read. This file owns how numbers and bytes are laid out for a sum; what goes into
//! it is said by the owner of the row.

use super::super::StoreError;
use super::schema::corrupt;

/// Stands for an empty column: no time and no count has this value.
pub(super) const NONE: i64 = i64::MIN;

/// The most numbers in one sum.
const MOST: usize = 16;

/// The sum of some numbers, eight bytes each, and of the bytes behind them.
pub(super) fn sum<const N: usize>(numbers: [i64; N], bytes: &[u8]) -> u32 {
    const { assert!(N <= MOST, "a row has fewer numbers") }
    let mut laid = [0; 8 * MOST];
    for (place, number) in laid.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&laid[..8 * N]);
    hasher.update(bytes);
    hasher.finalize()
}

/// Damage, said of what was read, unless its sum is the stored one.
pub(super) fn check(stored: u32, found: u32, what: impl FnOnce() -> String) -> Result<(), StoreError> {
    if stored == found { Ok(()) } else { Err(corrupt(format!("{} is not as it was stored", what()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_the_order_count() {
        let whole = sum([1, NONE, 7], b"data");
        for bit in 0..64 {
            assert_ne!(sum([1 ^ 1 << bit, NONE, 7], b"data"), whole, "bit {bit}");
        }
        for other in [sum([NONE, 1, 7], b"data"), sum([1, NONE, 7], b"dat"), sum([1, NONE], b"data")] {
            assert_ne!(other, whole);
        }
        assert!(check(whole, whole, || unreachable!("it is sound")).is_ok());
        let told = check(whole, whole ^ 1, || "job 7".into()).unwrap_err().to_string();
        assert!(told.contains("job 7 is not as it was stored"), "{told}");
    }
}
