//! Keeps what was no job: a copy of the bytes, and one line of JSON that says where they came from and why.
//!
//! `quarantine/inbox.bad` has the copies end to end, `quarantine/inbox.log` a line each. Nothing is ever deleted
//! here. Both are on disk before the cursor passes the damage. It must not decide what is damage.

use super::disk::{Disk, OpenFile};
use super::frame::Reason;
use crate::error::Failure;
use serde_json::json;
use std::path::{Path, PathBuf};
use windlass_core::job::{DATA_MAX, Origin};

/// The open quarantine; its files are made with the first damage.
#[derive(Debug)]
pub struct Quarantine<F> {
    dir: PathBuf,
    files: Option<(F, F)>,
    dirty: bool,
    count: u64,
}

/// Bytes that are no job.
#[derive(Clone, Copy, Debug)]
pub struct Damage<'a> {
    pub file: &'a str,
    pub origin: Origin,
    pub offset: u64,
    pub reason: Reason,
    pub bytes: &'a [u8],
}

impl<F: OpenFile> Quarantine<F> {
    pub fn new(dir: &Path) -> Quarantine<F> {
        Quarantine { dir: dir.to_owned(), files: None, dirty: false, count: 0 }
    }

    /// How many pieces were set aside since the start.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn keep(&mut self, disk: &impl Disk<File = F>, damage: Damage<'_>) -> Result<(), Failure> {
        let dir = self.dir.clone();
        let wrong = |e: std::io::Error| Failure::io(format_args!("cannot write to {}", dir.display()), &e);
        let (copies, log) = match &mut self.files {
            Some(files) => files,
            none => {
                let open = |name| disk.open_to_append(&dir.join(name)).map_err(wrong);
                none.insert((open("inbox.bad")?, open("inbox.log")?))
            }
        };
        let at = copies.facts().map_err(wrong)?.length;
        let kept = &damage.bytes[..damage.bytes.len().min(DATA_MAX)];
        copies.append(kept).map_err(wrong)?;
        let mut line = json!({
            "time": jiff::Timestamp::from_microsecond(disk.now().0).unwrap_or_default().to_string(),
            "file": damage.file,
            "origin": damage.origin.to_string(),
            "offset": damage.offset,
            "length": damage.bytes.len(),
            "reason": damage.reason.to_string(),
            "kept_at": at,
            "kept": kept.len(),
        })
        .to_string();
        line.push('\n');
        log.append(line.as_bytes()).map_err(wrong)?;
        self.dirty = true;
        self.count += 1;
        Ok(())
    }

    /// Brings to disk what was kept since the last call. A failure is final.
    pub fn sync(&mut self, disk: &impl Disk<File = F>) -> Result<(), Failure> {
        if let Some((copies, log)) = self.files.as_ref().filter(|_| self.dirty) {
            copies
                .sync()
                .and_then(|()| log.sync())
                .and_then(|()| disk.sync_dir(&self.dir))
                .map_err(|e| Failure::io(format_args!("cannot sync {}", self.dir.display()), &e))?;
            self.dirty = false;
        }
        Ok(())
    }
}
