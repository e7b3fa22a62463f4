//! The bytes of an output file, back in the order in which the job wrote them.
//!
//! A file keeps the beginning and the end of a long output: its first half is filled once, its second half is a
//! ring. The byte at position `p` of the output lies at `p` in the first half, and behind it at
//! `half + (p - half) % (max - half)`, where `max` is the file's length once it is full.

/// What is left of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unrolled {
    pub head: Vec<u8>,
    /// Bytes that were dropped between head and tail.
    pub missing: u64,
    pub tail: Vec<u8>,
}

impl Unrolled {
    /// Head and tail with a line between them that says how much is missing.
    pub fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.head;
        if self.missing > 0 {
            bytes.extend_from_slice(format!("\n[… {} bytes not kept …]\n", self.missing).as_bytes());
        }
        bytes.extend_from_slice(&self.tail);
        bytes
    }
}

/// Where the ring begins in a file that keeps `max` bytes.
pub fn half(max: u64) -> u64 {
    max / 2
}

/// Puts the bytes of a file in order; `total` is how many bytes the job wrote.
pub fn unroll(mut kept: Vec<u8>, total: u64) -> Unrolled {
    let max = kept.len() as u64;
    if total <= max {
        kept.truncate(total as usize);
        return Unrolled { head: kept, missing: 0, tail: Vec::new() };
    }
    let half = half(max);
    let ring = max - half;
    if ring == 0 {
        return Unrolled { head: Vec::new(), missing: total, tail: Vec::new() };
    }
    let mut tail = kept.split_off(half as usize);
    // The oldest byte of a full ring lies where the next one would have gone.
    tail.rotate_left(((total - half) % ring) as usize);
    Unrolled { head: kept, missing: total - max, tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes byte by byte as the rule says, so that `unroll` is checked against the rule and not against itself.
    fn written(max: u64, total: u64) -> Vec<u8> {
        let mut file = vec![0; max.min(total) as usize];
        for p in 0..total {
            let at = if p < half(max) { p } else { half(max) + (p - half(max)) % (max - half(max)) };
            file[at as usize] = (p % 251) as u8;
        }
        file
    }

    #[test]
    fn every_length_around_the_ring_comes_back_in_order() {
        for max in 1..=17u64 {
            for total in 0..=3 * max + 2 {
                let unrolled = unroll(written(max, total), total);
                let all: Vec<u8> = (0..total).map(|p| (p % 251) as u8).collect();
                let kept = unrolled.head.len() + unrolled.tail.len();
                assert_eq!(kept as u64 + unrolled.missing, total, "max {max} total {total}");
                assert_eq!(unrolled.head, all[..unrolled.head.len()], "max {max} total {total}");
                assert_eq!(unrolled.tail, all[all.len() - unrolled.tail.len()..], "max {max} total {total}");
            }
        }
    }

    #[test]
    fn a_file_that_is_gone_or_empty_is_all_missing() {
        assert_eq!(unroll(Vec::new(), 5), Unrolled { head: Vec::new(), missing: 5, tail: Vec::new() });
        assert_eq!(unroll(b"ab".to_vec(), 2).into_bytes(), b"ab");
        assert!(String::from_utf8(unroll(b"abcd".to_vec(), 9).into_bytes()).unwrap().contains("5 bytes not kept"));
    }
}
