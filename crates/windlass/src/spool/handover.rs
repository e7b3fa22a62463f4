//! One document becomes several, in one step as far as anybody can tell: they are written and synced under names that
//! nobody reads, then it is promised in the sidecar which of them get which names, and then they get them. Whoever
//! takes over after the promise keeps it, so that each comes once; whoever takes over before it starts anew.

use super::directory::{Directory, Facts};
use super::lease::Lease;
use super::queue::{Claim, Queue};
use crate::api::base64;
use serde::{Deserialize, Serialize};
use std::io::{Error, Read, Result, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use windlass_core::document::{DocId, Standing};

/// A document that is to be.
pub(super) struct Handed<'d> {
    pub(super) into: &'d Directory,
    pub(super) doc: DocId,
    pub(super) data: Vec<u8>,
}

/// What was promised: the input that goes, and each rename. Names and paths are base64, since they are bytes.
#[derive(Serialize, Deserialize)]
struct Promise {
    file: String,
    inode: u64,
    doc: String,
    renames: Vec<(String, String, String)>,
}

fn promise_of(by: &[u8]) -> Vec<u8> {
    [b"handover-", by].concat()
}

fn writing(doc: &DocId, by: &[u8]) -> Vec<u8> {
    doc.named(Standing::Writing { by, extension: b"data" })
}

fn bytes(text: &str) -> Result<Vec<u8>> {
    base64::decode(text).ok_or_else(|| Error::other("a promise in the sidecar cannot be read"))
}

impl Queue {
    /// Hands on what a document became, and lets it go. Where that fails before it is promised, nothing of it is left.
    pub(super) fn hand_over(&self, claim: &mut Claim, handed: &[Handed<'_>], lease: &Lease) -> Result<()> {
        let promised = self.promise(claim, handed, lease);
        if promised.is_err() && !claim.handed_on {
            for Handed { into, doc, .. } in handed {
                // What stays is removed by whoever takes over.
                let _stays = into.remove(&writing(doc, &claim.by));
            }
        }
        match promised? {
            Some(promise) => self.keep_promise(&claim.by, &promise),
            None => self.let_go(&claim.file(), claim.facts.inode, &claim.doc),
        }
    }

    /// Writes what is handed on, and that it will be; none where nothing is.
    fn promise(&self, claim: &mut Claim, handed: &[Handed<'_>], lease: &Lease) -> Result<Option<Promise>> {
        let mut renames = Vec::new();
        for Handed { into, doc, data } in handed {
            let writing = writing(doc, &claim.by);
            into.remove(&writing)?;
            let mut file = into.create(&writing)?;
            file.write_all(data)?;
            file.sync_all()?;
            let path = base64::encode(into.path().as_os_str().as_bytes());
            renames.push((path, base64::encode(&writing), base64::encode(&doc.named(Standing::Ready))));
        }
        if !lease.holds() {
            return Err(Error::other(format!("{} was taken from us: its lease had run out", claim.doc)));
        }
        if renames.is_empty() {
            return Ok(None);
        }
        for Handed { into, .. } in handed {
            into.sync()?;
        }
        let (file, doc) = (base64::encode(&claim.file()), base64::encode(claim.doc.as_bytes()));
        let promise = Promise { file, inode: claim.facts.inode, doc, renames };
        let text = serde_json::to_vec(&promise).map_err(Error::from)?;
        let (root, name) = (&self.sidecar.root, promise_of(&claim.by));
        let written = root.write_durably(&self.sidecar.temporary(), &text, root, &name);
        // One that could not be synced is a promise all the same, unless it is certain that it is not there.
        claim.handed_on = written.is_ok() || root.has(&name).unwrap_or(true);
        written?;
        Ok(Some(promise))
    }

    /// Keeps the promise that a dead driver made, if it made one.
    pub(super) fn complete(&self, by: &[u8]) -> Result<bool> {
        let name = promise_of(by);
        let Some(mut file) = self.sidecar.root.open_file(&name, false)? else { return Ok(false) };
        // It renames files wherever it says, so it must be ours.
        if Facts::of_file(&file)?.owner != rustix::process::geteuid().as_raw() {
            return Ok(false);
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let promise: Promise = serde_json::from_slice(&text).map_err(Error::from)?;
        self.keep_promise(by, &promise)?;
        Ok(true)
    }

    fn keep_promise(&self, by: &[u8], promise: &Promise) -> Result<()> {
        let mut touched: Vec<Directory> = Vec::new();
        for (path, from, to) in &promise.renames {
            let path = PathBuf::from(std::ffi::OsString::from_vec(bytes(path)?));
            let known = touched.iter().position(|directory| directory.path() == path);
            let at = match known {
                Some(at) => at,
                None => {
                    touched.push(Directory::open(&path).map_err(|failure| Error::other(failure.text))?);
                    touched.len() - 1
                }
            };
            let directory = &touched[at];
            match directory.rename(&bytes(from)?, directory, &bytes(to)?) {
                // It has its name already.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                renamed => renamed?,
            }
        }
        touched.iter().try_for_each(Directory::sync)?;
        let doc = DocId::new(&bytes(&promise.doc)?).map_err(|why| Error::other(why.to_string()))?;
        self.let_go(&bytes(&promise.file)?, promise.inode, &doc)?;
        self.sidecar.root.remove(&promise_of(by)).map(drop)
    }

    fn let_go(&self, file: &[u8], inode: u64, doc: &DocId) -> Result<()> {
        if self.directory.facts(file)?.is_some_and(|facts| facts.inode == inode) {
            self.sidecar.forget(doc)?;
            self.directory.remove(file)?;
            // The promise must not outlive what it was made for: kept again, it would hand on nothing, but for ever.
            self.directory.sync()?;
        }
        Ok(())
    }
}
