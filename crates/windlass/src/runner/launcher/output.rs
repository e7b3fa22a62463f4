//! Keeps what a job writes within bounds: all of it where it is little, else its head and its tail.
//!
//! Up to 64 KiB stays in memory; more goes to a file as it comes. Either is laid out the same way: the first
//! half of the limit is the head, the second half a ring that later bytes overwrite. This file owns that layout
//! and the way back (`unroll`). It must not wait for a pipe.

use super::message::Kept;
use crate::sabotage::{self, Sabotage};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use windlass_core::job::JobId;

/// More than this goes to a file, where the order does not say otherwise.
pub(in crate::runner) const INLINE_MAX: usize = 64 << 10;
/// How much of the end is sent along where a file has the rest.
const TAIL: u64 = 1024;

/// The name of the file of an attempt's output under `output/`; `stream` is `out` or `err`.
pub fn file_name(job: JobId, start: u32, stream: &str) -> String {
    format!("{job}.{start}.{stream}")
}

/// Puts kept bytes back in order: the head, then the ring from its oldest byte. Where `total` is larger than what
/// is kept, the middle is missing between `head_length(kept.len())` and the rest.
pub fn unroll(mut kept: Vec<u8>, total: u64) -> Vec<u8> {
    let limit = kept.len() as u64;
    let head = head_length(limit);
    if total > limit && limit > head {
        let oldest = (total - head) % (limit - head);
        kept[head as usize..].rotate_left(oldest as usize);
    }
    kept
}

/// How many bytes of the beginning survive within a limit.
pub fn head_length(limit: u64) -> u64 {
    limit / 2
}

/// One stream of one attempt as it grows.
#[derive(Debug)]
pub(super) struct Capture {
    limit: u64,
    in_memory: u64,
    total: u64,
    memory: Vec<u8>,
    file: Option<(File, PathBuf)>,
    /// The file could not be written; nothing more is kept.
    broken: bool,
}

impl Capture {
    pub(super) fn new(limit: u64, in_memory: u64) -> Capture {
        Capture { limit, in_memory, total: 0, memory: Vec::new(), file: None, broken: false }
    }

    /// Takes more bytes; `path` names the file should one be needed now.
    pub(super) fn take(&mut self, mut bytes: &[u8], path: impl Fn() -> PathBuf) {
        let grown = self.total + bytes.len() as u64;
        if self.file.is_none() && !self.broken && self.limit > self.in_memory && grown > self.in_memory {
            self.spill(&path());
        }
        let head = head_length(self.limit);
        let ring = self.limit - head;
        while !bytes.is_empty() {
            // What the same piece would overwrite again is not written at all.
            let lost = (bytes.len() as u64).saturating_sub(ring);
            if self.total >= head && lost > 0 {
                self.total += lost;
                bytes = &bytes[lost as usize..];
                continue;
            }
            let (at, room) = place(self.limit, self.total);
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            self.put(now, at);
            self.total += now.len() as u64;
            bytes = later;
        }
    }

    /// From now on everything goes to the file as it comes, because somebody reads it there.
    pub(super) fn show(&mut self, path: impl Fn() -> PathBuf) {
        self.in_memory = 0;
        if self.file.is_none() && !self.broken && self.total > 0 && self.limit > 0 {
            self.spill(&path());
        }
    }

    fn put(&mut self, bytes: &[u8], at: u64) {
        if self.broken {
            return;
        }
        if let Some((file, path)) = &self.file {
            if file.write_all_at(bytes, at).is_err() {
                self.give_up(&path.clone());
            }
            return;
        }
        let at = at as usize;
        if self.memory.len() < at + bytes.len() {
            self.memory.resize(at + bytes.len(), 0);
        }
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn spill(&mut self, path: &Path) {
        let memory = std::mem::take(&mut self.memory);
        match create(path).and_then(|file| file.write_all_at(&memory, 0).map(|()| file)) {
            Ok(file) => self.file = Some((file, path.to_owned())),
            Err(_) => self.give_up(path),
        }
    }

    /// A full disk must not change a job's outcome: its output is let go and only counted.
    fn give_up(&mut self, path: &Path) {
        self.broken = true;
        self.file = None;
        // Half a file would be read as a whole one; if it cannot go either, its name is never handed out.
        let _gone = std::fs::remove_file(path);
    }

    /// Bytes that have come so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// What is reported.
    pub(super) fn finish(&mut self) -> Kept {
        let most = if sabotage::on(Sabotage::CutOutputUnmarked) { self.limit } else { u64::MAX };
        let total = self.total.min(most);
        match self.file.take() {
            None => Kept { total, filed: false, bytes: unroll(std::mem::take(&mut self.memory), total) },
            Some((file, _)) => Kept { total, filed: true, bytes: self.tail(&file).unwrap_or_default() },
        }
    }

    /// The last bytes out of a file.
    fn tail(&self, file: &File) -> io::Result<Vec<u8>> {
        let kept = self.total.min(self.limit).min(TAIL);
        let mut bytes = vec![0; kept as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            let (at, room) = place(self.limit, self.total - kept + filled as u64);
            let end = bytes.len().min(filled + usize::try_from(room).unwrap_or(usize::MAX));
            file.read_exact_at(&mut bytes[filled..end], at)?;
            filled = end;
        }
        Ok(bytes)
    }
}

/// Where the byte at this offset of a stream is kept, and how many from there on lie behind one another.
fn place(limit: u64, offset: u64) -> (u64, u64) {
    let head = head_length(limit);
    if offset < head {
        (offset, head - offset)
    } else {
        let ring = limit - head;
        let at = (offset - head) % ring;
        (head + at, ring - at)
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    fn expected(written: &[u8], limit: usize) -> Vec<u8> {
        if written.len() <= limit {
            return written.to_vec();
        }
        let head = limit / 2;
        [&written[..head], &written[written.len() - (limit - head)..]].concat()
    }

    #[test]
    fn what_is_shown_is_in_its_file_at_once_and_laid_out_as_ever() {
        let dir = tempfile::tempdir().unwrap();
        let (path, limit) = (dir.path().join("shown"), 100usize);
        for before in [0usize, 1, 60] {
            let written = pattern(250);
            let mut capture = Capture::new(limit as u64, INLINE_MAX as u64);
            capture.take(&written[..before], || path.clone());
            capture.show(|| path.clone());
            capture.take(&written[before..90], || path.clone());
            assert_eq!(std::fs::read(&path).unwrap(), written[..90]);
            capture.take(&written[90..], || path.clone());
            let kept = capture.finish();
            assert!(kept.filed && kept.total == 250);
            assert_eq!(unroll(std::fs::read(&path).unwrap(), 250), expected(&written, limit));
            std::fs::remove_file(&path).unwrap();
        }
        let mut silent = Capture::new(limit as u64, INLINE_MAX as u64);
        silent.show(|| path.clone());
        assert!(!silent.finish().filed && !path.exists());
    }

    #[test]
    fn head_and_tail_survive_whatever_the_pieces() {
        let dir = tempfile::tempdir().unwrap();
        for limit in [0usize, 1, 2, 7, 1000, 64 << 10, (64 << 10) + 1, 100_001] {
            for length in [0usize, 1, 7, 8, 999, 1001, 65_536, 65_537, 100_001, 100_002, 350_000] {
                for piece in [1000usize, 65_536, 77_777] {
                    let written = pattern(length);
                    let path = dir.path().join(format!("{limit}.{length}.{piece}"));
                    let mut capture = Capture::new(limit as u64, INLINE_MAX as u64);
                    written.chunks(piece).for_each(|bytes| capture.take(bytes, || path.clone()));
                    let kept = capture.finish();
                    assert_eq!(kept.total, length as u64);
                    assert_eq!(kept.filed, limit > INLINE_MAX && length > INLINE_MAX, "{limit} {length}");
                    let whole = expected(&written, limit);
                    if kept.filed {
                        assert_eq!(unroll(std::fs::read(&path).unwrap(), kept.total), whole, "{limit} {length}");
                        assert_eq!(kept.bytes, whole[whole.len() - 1024..]);
                    } else {
                        assert_eq!(kept.bytes, whole, "{limit} {length} {piece}");
                        assert!(!path.exists());
                    }
                }
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_costs_the_output_only() {
        let mut capture = Capture::new(1 << 20, INLINE_MAX as u64);
        capture.take(&pattern(200_000), || PathBuf::from("/nonexistent/x"));
        assert_eq!(capture.finish(), Kept { total: 200_000, filed: false, bytes: Vec::new() });
    }
}
