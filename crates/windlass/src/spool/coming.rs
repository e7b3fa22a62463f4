//! Documents that are about to come: whole and on disk beside their directory, and without a name in it yet.
//!
//! Whoever makes one writes it here, then notes for good, wherever that is, that it is to be named, and then names it.
//! One that has no file here any more has its name, so whoever was killed in between names nothing twice. It must not
//! name a document by itself.

use super::directory::Directory;
use super::queue::Queue;
use std::io::{ErrorKind, Read, Result};
use windlass_core::document::{DocId, Standing};

/// Where they lie, in the sidecar.
const COMING: &str = "coming";

/// The documents that are about to come into one directory.
#[derive(Debug)]
pub struct Coming {
    into: Directory,
    place: Directory,
}

impl Coming {
    pub fn into(queue: &Queue) -> Result<Coming> {
        Ok(Coming { into: queue.directory.clone(), place: queue.sidecar.root.inner(COMING)? })
    }

    /// Writes one; it is on disk with the next `sync`.
    pub fn write(&self, doc: &DocId, body: &mut impl Read) -> Result<u64> {
        // An earlier process may have left it, whole or not.
        self.place.remove(doc.as_bytes())?;
        let mut file = self.place.create(doc.as_bytes())?;
        let size = std::io::copy(body, &mut file)?;
        file.sync_all()?;
        Ok(size)
    }

    pub fn sync(&self) -> Result<()> {
        self.place.sync()
    }

    /// Gives one its name, which is on disk with the next `sync_names`; false where it has it already. One whose name
    /// another document has is an error, and stays.
    pub fn name(&self, doc: &DocId) -> Result<bool> {
        match self.place.rename_new(doc.as_bytes(), &self.into, &doc.named(Standing::Ready)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            renamed => renamed.map(|()| true),
        }
    }

    pub fn sync_names(&self) -> Result<()> {
        self.into.sync()
    }
}
