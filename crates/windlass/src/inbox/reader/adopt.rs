//! How the reader comes to its files: finds them, refuses what is none of ours, gives each an origin.
//!
//! A file is renamed before it is read unless programs still append to it, and the directory is synced before
//! anything of it is handed over, so that its origin outlives a power cut.

use super::super::disk::{Disk, Facts, OpenFile};
use super::super::files::{self, Name};
use super::super::frame::{FileHeader, is_other_version};
use super::super::ingest::{Delivered, trouble};
use super::super::lock::{PATIENCE, Waited};
use super::super::source::Source;
use super::{Reader, SOURCES_MAX};
use crate::error::{Failure, Kind};
use std::path::Path;

impl<D: Disk> Reader<D> {
    /// Finds files that are new, and new names of those we know. True if there is something to do about it.
    pub(in crate::inbox) fn look(&mut self) -> Result<bool, Failure> {
        let wrong = |e: std::io::Error| Failure::io("cannot list the inbox", &e);
        let mut found = false;
        self.unopened = 0;
        self.moved = false;
        for entry in self.disk.list(&self.inbox).map_err(wrong)? {
            let inode = entry.inode;
            let Some(name) = entry.name.to_str().map(str::to_owned) else {
                self.refuse(inode, &self.inbox.join(&entry.name), "its name is not UTF-8 text");
                continue;
            };
            if let Some(source) = self.sources.get_mut(&inode) {
                if source.name != name {
                    source.appended = Name::of(&name) == Name::Appended;
                    source.name = name;
                }
            } else if Name::of(&name) != Name::Hidden && !self.refused.contains(&inode) {
                if self.sources.len() >= SOURCES_MAX {
                    self.unopened += 1;
                } else {
                    found |= self.adopt(&name, inode)?;
                }
            }
        }
        self.sync_directory()?;
        let forgot = self.forget_gone()?;
        self.set_targets();
        Ok(found || forgot)
    }

    /// Drops the cursors of files that a crash kept us from reporting as removed. A file that a writer renames while we
    /// look can be missed, but only once: what the second look does not find either is gone.
    fn forget_gone(&mut self) -> Result<bool, Failure> {
        let again = std::mem::replace(&mut self.looked, true);
        let all = again && !self.moved && self.unopened == 0 && self.refused.is_empty();
        if !all || self.cursors.is_empty() {
            return Ok(false);
        }
        // Their removal may not be on disk either: one that came back without its cursor would be read as a whole.
        self.directory_dirty = true;
        self.sync_directory()?;
        self.lot.closed.extend(std::mem::take(&mut self.cursors).into_keys());
        Ok(true)
    }

    fn refuse(&mut self, inode: u64, path: &Path, why: &str) {
        if self.refused.insert(inode) {
            self.deliver(trouble(Kind::BadData, format!("{} is not read: {why}", path.display())));
        }
    }

    /// Opens a file, gives it an origin, and finds the place to go on from.
    pub(super) fn adopt(&mut self, name: &str, inode: u64) -> Result<bool, Failure> {
        let path = self.inbox.join(name);
        let file = match self.open_checked(&path) {
            Ok(Some(file)) => file,
            Ok(None) => {
                self.moved = true;
                return Ok(false);
            }
            Err(why) => {
                self.refuse(inode, &path, &why);
                return Ok(false);
            }
        };
        // The name may lead to another file than when it was listed; what was opened is what counts.
        let listed = inode;
        let inode = file.facts().map_or(inode, |facts| facts.inode());
        self.moved |= inode != listed;
        if self.sources.contains_key(&inode) {
            return Ok(false);
        }
        match self.adopt_open(name, inode, file) {
            Ok(()) => Ok(true),
            // It was renamed by a writer meanwhile, and is found under its new name.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.moved = true;
                Ok(false)
            }
            Err(error) => {
                self.refuse(inode, &path, &error.to_string());
                Ok(false)
            }
        }
    }

    /// Opens what is a plain file of our own user; `None` when it is gone.
    fn open_checked(&self, path: &Path) -> Result<Option<D::File>, String> {
        let gone = |e: &std::io::Error| e.kind() == std::io::ErrorKind::NotFound;
        let facts = match self.disk.facts(path) {
            Ok(facts) => facts,
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        if let Some(why) = refusal(&facts) {
            return Err(why.into());
        }
        let file = match self.disk.open(path) {
            Ok(file) => file,
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        match file.facts().map(|facts| refusal(&facts)) {
            Ok(None) => Ok(Some(file)),
            Ok(Some(why)) => Err(why.into()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn adopt_open(&mut self, name: &str, inode: u64, file: D::File) -> std::io::Result<()> {
        let front = files::read_front(&file)?;
        if is_other_version(&front) {
            return Err(std::io::Error::other("it was written by another version"));
        }
        let header = FileHeader::decode(&front);
        let boot = self.disk.boot();
        let current = |header: &FileHeader| !header.sealed && header.boot == Some(boot);
        let (id, appended) = match (Name::of(name), &header) {
            (Name::Sealed(origin), _) => {
                files::mark_sealed(&file)?;
                (origin, false)
            }
            (Name::Appended, Some(header)) if current(header) => (header.origin, true),
            (Name::Appended, Some(header)) => (header.origin, false),
            _ => (files::random_origin(&self.disk)?, false),
        };
        let mut source = Source::new(name.to_owned(), file, id, header.as_ref(), appended);
        let known = self.cursors.get(&id).copied();
        let other = match &known {
            Some(cursor) => !source.resume(cursor)?,
            None => false,
        };
        if other {
            source.id = files::random_origin(&self.disk)?;
            source.appended = false;
        }
        if !source.appended && source.name != files::sealed_name(source.id) {
            self.set_aside(&mut source)?;
        }
        // Only now is it ours: a file that moved away under us keeps its cursor for when it is found again.
        self.cursors.remove(&id);
        if let Some(cursor) = known.filter(|_| other) {
            let text = format!("{} is not the file that was read up to byte {}", name, cursor.offset);
            let hint = "it was cut or replaced; it is read again as a whole, so jobs of it may run twice";
            self.deliver(Delivered::Trouble(Failure::new(Kind::BadData, text).hint(hint)));
            self.lot.closed.push(id);
        }
        self.sources.insert(inode, source);
        Ok(())
    }

    /// Renames a file to its origin's sealed name. The lock keeps writers that look at the path honest; one that
    /// does not let go cannot hold us up, because a late append to a sealed file is read as well.
    pub(super) fn set_aside(&mut self, source: &mut Source<D::File>) -> std::io::Result<()> {
        let path = self.inbox.join(&source.name);
        let guard = self.locked(&path)?;
        // While we waited a writer may have put it aside itself, and another file have taken its name.
        if !files::is_at(&self.disk, &source.file, &path)? {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let renamed = files::seal(&self.disk, &self.inbox, &source.name, source.id);
        if renamed.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::AlreadyExists) {
            source.id = files::random_origin(&self.disk)?;
            files::seal(&self.disk, &self.inbox, &source.name, source.id)?;
        } else {
            renamed?;
        }
        drop(guard);
        source.name = files::sealed_name(source.id);
        source.appended = false;
        self.directory_dirty = true;
        Ok(())
    }

    /// The lock of a file through a descriptor of its own; reports who keeps it and goes on without.
    pub(super) fn locked(&mut self, path: &Path) -> std::io::Result<Option<D::File>> {
        let file = self.disk.open(path)?;
        let facts = file.facts()?;
        match self.disk.wait_for_lock(file, PATIENCE)? {
            Waited::Locked(file) => Ok(Some(file)),
            Waited::Busy => {
                let by =
                    self.disk.holder(&facts).map_or("a program that is gone".into(), |pid| format!("process {pid}"));
                let text = format!("{} has been locked for {} s by {by}", path.display(), PATIENCE.as_secs());
                self.deliver(trouble(Kind::TryLater, text));
                Ok(None)
            }
        }
    }

    pub(super) fn sync_directory(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.directory_dirty) {
            self.disk.sync_dir(&self.inbox).map_err(|e| Failure::io("cannot sync the inbox directory", &e))?;
        }
        Ok(())
    }
}

/// Why a file is not ours to read.
fn refusal(facts: &Facts) -> Option<&'static str> {
    if !facts.is_file {
        Some("it is not a regular file")
    } else if !facts.is_ours {
        Some("it belongs to another user")
    } else if facts.links > 1 {
        Some("it has a second name")
    } else {
        None
    }
}
