//! Backups: a data directory as of one moment, checksummed, in one file or in a directory, and the way back.
//!
//! Made beside a working server. The order makes it whole: the caller first has the inbox read to its end, so that
//! everything accepted before is in the store; then the store is copied as of one turn, while no body file of it may
//! go; then the archive up to that turn, and the inbox, whose files go only after the store has what was in them.
//! What is accepted meanwhile may be in it or not. This part must not talk to a server.

mod manifest;
mod pack;
mod restore;

pub use restore::restore;

use crate::archiver::extent;
use crate::clock;
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::store::embedded::{bodies, snapshot};
use manifest::Manifest;
use pack::{Packer, Sink};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The name of the store's copy in a backup.
const STORE: &str = "state.db";
/// Directories that are taken as they are; the archive is cut to the store's turn.
const PLAIN: [&str; 4] = ["bodies", "inbox", "output", "quarantine"];
/// Files of the data directory's root that belong to a process, or are rebuilt.
const LEFT_OUT: [&str; 6] = ["lock", "reserve", "state.db", "state.db-wal", "state.db-shm", "windlass.toml"];

/// What was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    pub files: usize,
    pub bytes: u64,
    /// The last turn of the store in it.
    pub turn: u64,
}

/// Writes a backup to a new file, or into a directory that is empty.
pub fn make(dir: &DataDir, config: Option<&Path>, to: &Path) -> Result<Made, Failure> {
    let sink = Sink::new(to)?;
    let copy = sink.scratch();
    let made = fill(dir, config, sink, &copy);
    // The copy of the store is in the backup now, or nobody wants it.
    let _ = fs::remove_file(&copy);
    made
}

fn fill(dir: &DataDir, config: Option<&Path>, sink: Sink, copy: &Path) -> Result<Made, Failure> {
    let cannot = |e: io::Error| Failure::io(format_args!("cannot hold {}", dir.bodies().display()), &e);
    let held = bodies::hold(&dir.bodies()).map_err(cannot)?;
    let turn = snapshot::snapshot(&dir.state_db(), copy)?;
    let mut packer = Packer::new(sink);
    packer.add("FORMAT", &dir.root().join("FORMAT"), None)?;
    packer.add(STORE, copy, None)?;
    for (name, length) in extent::up_to(&dir.archive(), turn)? {
        packer.add_if_there(&format!("archive/{name}"), &dir.archive().join(&name), Some(length))?;
    }
    for folder in PLAIN {
        for (name, path) in regular_files(&dir.root().join(folder))? {
            packer.add_if_there(&format!("{folder}/{name}"), &path, None)?;
        }
    }
    drop(held);
    for (name, path) in regular_files(dir.root())? {
        if !LEFT_OUT.contains(&name.as_str()) && name != "FORMAT" {
            packer.add_if_there(&name, &path, None)?;
        }
    }
    if let Some(config) = config {
        packer.add("windlass.toml", config, None)?;
    }
    packer.finish(&Manifest::head(turn, clock::now())).map(|(files, bytes)| Made { files, bytes, turn })
}

/// The files of a directory by name, without what is hidden or no file; their names must be text.
fn regular_files(dir: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
    let cannot = |e: &io::Error| Failure::io(format_args!("cannot list {}", dir.display()), e);
    let mut files = Vec::new();
    let listing = match fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(files),
        Err(error) => return Err(cannot(&error)),
    };
    for entry in listing {
        let entry = entry.map_err(|e| cannot(&e))?;
        let is_file = match entry.file_type() {
            Ok(kind) => kind.is_file(),
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(cannot(&error)),
        };
        // A name that is no text is no file of ours, and the inbox does not read it either.
        if let Some(name) = entry.file_name().to_str().filter(|name| is_file && !name.starts_with('.')) {
            files.push((name.to_owned(), entry.path()));
        }
    }
    files.sort();
    Ok(files)
}

/// Checks that a backup is whole, without writing anything.
pub fn verify(from: &Path) -> Result<usize, Failure> {
    restore::verify(from)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn damaged(from: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::BadData, format!("{} is not a whole backup: {why}", from.display()))
        .hint("nothing was changed; use another backup")
}

#[cfg(test)]
mod tests;
