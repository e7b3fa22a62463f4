//! What is kept of documents: of those that were given up, with the reason, of what is no document, and of what a
//! command has made away with.
//!
//! Nothing that is kept takes the place of anything: a second of its name gets another, `DOC~NUMBER`. It must not
//! decide that a document is given up.

use super::directory::Directory;
use super::queue::{Back, Claim, Claimed, FAILED, Output, Queue, left};
use crate::api::base64;
use serde_json::json;
use std::io::{Error, ErrorKind, Result};
use windlass_core::document::NAME_MAX;

impl Queue {
    /// Sets aside what cannot be worked on, under the name it came with.
    pub(super) fn refuse(&self, file: &[u8], now: &[u8], why: &str) -> Result<Claimed> {
        let failed = self.directory.inner(FAILED)?;
        let shown = String::from_utf8_lossy(file);
        let mut stem = file.to_vec();
        loop {
            match self.directory.rename_new(now, &failed, &stem) {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Claimed::Lost),
                Err(e) if e.kind() == ErrorKind::PermissionDenied => return Ok(Claimed::Left(left(&shown, &e))),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => stem = another(file)?,
                renamed => break renamed?,
            }
        }
        let reason = json!({ "document": shown, "error": why, "tries": 0 });
        self.write_reason(&failed, &stem, &reason)?;
        Ok(Claimed::Refused(format!("{shown}: {why}")))
    }

    fn write_reason(&self, failed: &Directory, stem: &[u8], reason: &serde_json::Value) -> Result<()> {
        let text = format!("{reason:#}\n");
        self.sidecar.root.write_durably(&self.sidecar.temporary(), text.as_bytes(), failed, &reason_of(stem))
    }

    /// Keeps body and reason of one that is ours.
    pub(super) fn keep_aside(&self, claim: &Claim, error: &str) -> Result<Back> {
        let failed = self.directory.inner(FAILED)?;
        let mut reason = json!({
            "document": claim.doc.to_string(),
            "error": error,
            "tries": claim.tries.used,
            "errors": claim.tries.errors,
        });
        if std::str::from_utf8(claim.doc.as_bytes()).is_err() {
            reason["document_base64"] = base64::encode(claim.doc.as_bytes()).into();
        }
        let body = |stem: &[u8]| [stem, b".failed"].concat();
        let mut stem = claim.doc.as_bytes().to_vec();
        loop {
            if failed.has(&body(&stem))? {
                stem = another(claim.doc.as_bytes())?;
            }
            self.write_reason(&failed, &stem, &reason)?;
            match self.directory.rename_new(&claim.file(), &failed, &body(&stem)) {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    // A reason without a body is nobody's; whoever took it from us may have set it aside, with both.
                    if !failed.has(&body(&stem))? {
                        failed.remove(&reason_of(&stem))?;
                    }
                    return Ok(Back::Gone);
                }
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                renamed => break renamed?,
            }
        }
        self.sidecar.forget(&claim.doc).map(|()| Back::Aside)
    }

    /// Looks for a document that is to go back. Its command may have moved it to its output, from where it comes back,
    /// or have removed it: then what the command wrote is all that is left of it, and is kept. Why it is not there any
    /// more comes back.
    pub(super) fn recall(&self, claim: &Claim, output: Option<&Output>) -> Result<Option<&'static str>> {
        const GONE: &str = "its command has removed it";
        let input = claim.file();
        if self.directory.has(&input)? {
            return Ok(None);
        }
        let Some(output) = output else { return Ok(Some(GONE)) };
        let writing = claim.writing(output);
        let Some(left) = output.directory.facts(&writing)? else { return Ok(Some(GONE)) };
        // On another file system the same number is another file's.
        if left.inode == claim.facts.inode && output.directory.is_beside(&self.directory)? {
            output.directory.rename_new(&writing, &self.directory, &input)?;
            return Ok(None);
        }
        keep_unfinished(&output.directory, &writing, claim.doc.as_bytes())?;
        Ok(Some("its command has removed it, and failed; what it wrote is kept in the `failed/` of the output"))
    }
}

/// Keeps what a driver that died had written of a document whose command had removed its input: nothing else is left.
pub(super) fn keep_unfinished(output: &Directory, file: &[u8], document: &[u8]) -> Result<()> {
    let aside = output.inner(FAILED)?;
    let error = "its command removed the input, and it was not done; this is the output as far as it was written";
    let reason = json!({ "document": String::from_utf8_lossy(document), "error": error, "tries": 1 });
    let mut stem = document.to_vec();
    loop {
        let (body, why) = ([&stem[..], b".failed"].concat(), [&stem[..], b".reason"].concat());
        if !aside.has(&body)? {
            aside.write_durably(&another(b"new")?, format!("{reason:#}\n").as_bytes(), &aside, &why)?;
            match output.rename_new(file, &aside, &body) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                renamed => return renamed,
            }
        }
        stem = another(document)?;
    }
}

/// The file that says why the one of this name was given up.
fn reason_of(stem: &[u8]) -> Vec<u8> {
    let suffix = b".reason";
    [&stem[..stem.len().min(NAME_MAX - suffix.len())], suffix].concat()
}

/// A name beside one that is taken.
fn another(stem: &[u8]) -> Result<Vec<u8>> {
    let number = getrandom::u64().map_err(|e| Error::other(format!("no random numbers: {e}")))?;
    let suffix = format!("~{number:x}");
    let most = NAME_MAX - suffix.len() - b".failed".len();
    Ok([&stem[..stem.len().min(most)], suffix.as_bytes()].concat())
}
