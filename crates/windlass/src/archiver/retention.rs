//! The removal of what is past its time: whole segments, and the output files they spoke of.
//!
//! A segment goes when its newest attempt is older than succeeded jobs are kept, unless it has failed or cancelled
//! ones that are not older than those are; and the oldest go while all of them are too large. The newest segment
//! stays in any case: it knows the last turn. An output file goes when it is older than what the archive still
//! holds, and the oldest go while all of them are too large. Each step is small, for the writer has better to do. What
//! cannot be removed stays until the next round: that is no reason to stop archiving.

use super::ArchiverOptions;
use super::index::{Stored, Summary};
use super::segment::{self, index_name, segment_path};
use crate::error::Failure;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, Metadata, ReadDir};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use windlass_core::time::Time;

/// So many output files are looked at in one step.
const FILES_A_STEP: usize = 256;
/// Output files are weighed by the hour of their last change.
const HOUR: i64 = 3600 * 1_000_000;

/// One round of removal.
pub(super) struct Sweep {
    output_dir: PathBuf,
    max_bytes: u64,
    /// Files changed after this may still be written to, and stay however much they are.
    in_use: Time,
    /// Segments to remove, oldest first: each is unlinked in a step of its own.
    doomed: VecDeque<PathBuf>,
    /// Output files last changed before this go.
    horizon: Time,
    stage: Stage,
}

enum Stage {
    Segments,
    /// Removes what is too old and weighs the rest.
    Weigh(ReadDir, BTreeMap<i64, u64>),
    /// Removes what is older than the limit of size allows.
    Trim(ReadDir),
}

/// What retention knows of one segment.
struct Aged {
    path: PathBuf,
    bytes: u64,
    oldest: Time,
    newest: Time,
    newest_failed: Time,
}

impl Sweep {
    /// Decides what goes; removes nothing yet.
    pub(super) fn new(options: &ArchiverOptions, open: Option<&Summary>, now: Time) -> Result<Sweep, Failure> {
        let mut segments = VecDeque::new();
        for number in segment::numbers(&options.dir)? {
            segments.extend(look_at(&options.dir, number));
        }
        let mut total: u64 = segments.iter().map(|segment| segment.bytes).sum();
        let succeeded_until = before(now, options.keep_succeeded);
        let failed_until = before(now, options.keep_failed);
        let mut doomed = VecDeque::new();
        let mut horizon = succeeded_until;
        let newest = segments.pop_back();
        for segment in segments {
            let old = segment.newest < succeeded_until && segment.newest_failed < failed_until;
            if old || total > options.max_bytes {
                total -= segment.bytes;
                doomed.push_back(segment.path);
            } else {
                horizon = horizon.min(segment.oldest);
            }
        }
        // The open segment is the newest, and has no index that covers it.
        let newest = open.map(|summary| summary.oldest).or(newest.map(|segment| segment.oldest));
        horizon = newest.map_or(horizon, |oldest| horizon.min(oldest));
        Ok(Sweep {
            output_dir: options.output_dir.clone(),
            max_bytes: options.max_bytes,
            in_use: Time(now.as_micros().saturating_sub(HOUR)),
            doomed,
            horizon,
            stage: Stage::Segments,
        })
    }

    /// Does one small piece; false once nothing is left to do.
    pub(super) fn step(&mut self) -> bool {
        let horizon = self.horizon;
        match &mut self.stage {
            Stage::Segments => match self.doomed.pop_front() {
                Some(path) => {
                    // The index goes first: a segment without one is whole, an index without one is litter.
                    remove(&path.with_extension("idx"));
                    remove(&path);
                }
                None => match fs::read_dir(&self.output_dir) {
                    Ok(listing) => self.stage = Stage::Weigh(listing, BTreeMap::new()),
                    Err(_) => return false,
                },
            },
            Stage::Weigh(listing, weights) => {
                let done = some_files(listing, |path, metadata| match changed(metadata) {
                    at if at < horizon => remove(path),
                    at => *weights.entry(at.as_micros().div_euclid(HOUR)).or_default() += metadata.len(),
                });
                if done {
                    let Some(cut) = cut(weights, self.max_bytes) else { return false };
                    let Ok(listing) = fs::read_dir(&self.output_dir) else { return false };
                    self.horizon = cut.min(self.in_use);
                    self.stage = Stage::Trim(listing);
                }
            }
            Stage::Trim(listing) => {
                return !some_files(listing, |path, metadata| {
                    if changed(metadata) < horizon {
                        remove(path);
                    }
                });
            }
        }
        true
    }
}

/// The age of a segment; `None` where it went away meanwhile.
fn look_at(dir: &Path, number: u32) -> Option<Aged> {
    let path = segment_path(dir, number);
    let metadata = fs::metadata(&path).ok()?;
    let index_bytes = fs::metadata(dir.join(index_name(number))).map_or(0, |index| index.len());
    let bytes = metadata.len() + index_bytes;
    Some(match Stored::open(dir, number) {
        // An index that lags behind says nothing of what came later, which is as new as the file.
        Some(stored) if stored.summary.length == metadata.len() => {
            let summary = stored.summary;
            Aged { path, bytes, oldest: summary.oldest, newest: summary.newest, newest_failed: summary.newest_failed }
        }
        // Without an index its file's age stands for all of it, and the oldest is unknown: outputs stay.
        Some(_) | None => {
            let newest = changed(&metadata);
            Aged { path, bytes, oldest: Time(i64::MIN), newest, newest_failed: newest }
        }
    })
}

/// The last hour that must go so that the rest fits; `None` where all of it does.
fn cut(weights: &BTreeMap<i64, u64>, max_bytes: u64) -> Option<Time> {
    let mut kept = 0u64;
    let over = weights.iter().rev().find(|(_, bytes)| {
        kept = kept.saturating_add(**bytes);
        kept > max_bytes
    });
    over.map(|(hour, _)| Time((hour + 1).saturating_mul(HOUR)))
}

/// Shows some files of a listing; true at its end, also where it cannot be read further.
fn some_files(listing: &mut ReadDir, mut each: impl FnMut(&Path, &Metadata)) -> bool {
    for _ in 0..FILES_A_STEP {
        let Some(Ok(file)) = listing.next() else { return true };
        // A file that cannot be looked at went away meanwhile, or is left to the next round.
        if let Some(metadata) = file.metadata().ok().filter(Metadata::is_file) {
            each(&file.path(), &metadata);
        }
    }
    false
}

fn remove(path: &Path) {
    // What is not there needs no removal, and what cannot be removed is tried again in the next round.
    let _ = fs::remove_file(path);
}

fn changed(metadata: &Metadata) -> Time {
    Time(metadata.mtime().saturating_mul(1_000_000).saturating_add(metadata.mtime_nsec() / 1000))
}

fn before(now: Time, by: std::time::Duration) -> Time {
    Time(now.as_micros().saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
}
