//! Where a bench runs: a folder on the file system in question, the sizes, and the printing of figures.
//!
//! The folder is `target/bench` or the one that `WINDLASS_BENCH_DIR` names. What syncs is not measured on tmpfs,
//! where a sync costs nothing.

use super::Outcome;
use super::figure::Figure;
use crate::steps::root;
use std::path::{Path, PathBuf};
use windlass::data_dir::DataDir;

/// The place of all benches of one call.
pub(super) struct Bed {
    folder: PathBuf,
    file_system: String,
    pub(super) quick: bool,
    made: u32,
}

/// A folder that is removed with everything in it.
pub(super) struct Scratch(PathBuf);

impl Bed {
    pub(super) fn open(quick: bool) -> Outcome<Bed> {
        let folder = std::env::var_os("WINDLASS_BENCH_DIR").map_or_else(|| root().join("target/bench"), PathBuf::from);
        let folder = folder.join(std::process::id().to_string());
        std::fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?;
        let file_system = file_system_of(&folder)?;
        let cores = std::thread::available_parallelism()?;
        println!(
            "# {} on {file_system}, {cores} cores{}",
            folder.display(),
            if quick { ", quick: no measure" } else { "" }
        );
        Ok(Bed { folder, file_system, quick, made: 0 })
    }

    /// A new empty folder.
    pub(super) fn scratch(&mut self) -> Outcome<Scratch> {
        self.made += 1;
        let path = self.folder.join(self.made.to_string());
        std::fs::create_dir(&path)?;
        Ok(Scratch(path))
    }

    /// A new data directory.
    pub(super) fn data_dir(&mut self) -> Outcome<(Scratch, DataDir)> {
        let scratch = self.scratch()?;
        let dir = DataDir::open(scratch.path())?;
        Ok((scratch, dir))
    }

    /// Refuses a place where a sync is free; a quick run measures nothing and is fine anywhere.
    pub(super) fn needs_disk(&self) -> Outcome<()> {
        if !self.quick && matches!(self.file_system.as_str(), "tmpfs" | "ramfs") {
            let place = self.folder.display();
            let text = format!("{place} is on {}, where `full` costs nothing", self.file_system);
            return Err(format!("{text}; name a folder on a disk in WINDLASS_BENCH_DIR").into());
        }
        Ok(())
    }

    /// The full size, or a hundredth of it and no more than a quick run can bear.
    pub(super) fn size(&self, full: u64) -> u64 {
        if self.quick { (full / 100).clamp(10, 20_000) } else { full }
    }

    /// Rounds of bare and ours in turn.
    pub(super) fn rounds(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    pub(super) fn report(&self, figure: &Figure) {
        println!("{}", figure.line(!self.quick));
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Left-overs are in `target`, where nobody misses the room.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Scratch {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The bed removes what could not be removed here.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The type of the file system that is mounted deepest above a path.
fn file_system_of(path: &Path) -> Outcome<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((Path::new(fields.next()?), fields.next()?))
    });
    let above = mounted.filter(|(mount, _)| path.starts_with(mount));
    let deepest = above.max_by_key(|(mount, _)| mount.components().count());
    Ok(deepest.ok_or_else(|| format!("{} is on no mounted file system", path.display()))?.1.to_owned())
}

/// Lets time pass: a bench of what happens in it, or of what follows a rest, has nothing else to wait for.
#[expect(clippy::disallowed_methods, reason = "the one place where time itself is waited for")]
pub(super) fn pause(time: std::time::Duration) {
    std::thread::sleep(time);
}
