//! What a directory of documents cannot say by its names, kept beside it in `.windlass/`: the tries that a document has
//! used and why they failed, the leases of the drivers, and where their time went.
//!
//! ```text
//! DIR/.windlass/FORMAT  clock  output  times  tries/DOC  drivers/N
//! ```
//!
//! A queue works without any of it, as one that only others have served; nothing is written on the way of a document
//! that succeeds. It must not move a document.

use super::directory::{Directory, Facts, prove_rename};
use crate::data_dir::boot_id;
use crate::error::{Failure, Kind};
use crate::when;
use rustix::fs::{FileType, FlockOperation, Timespec, Timestamps, UTIME_NOW};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{Read, Result, Seek, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use windlass_core::document::{DocId, Times};
use windlass_core::time::Time;

/// The directory's name; no document can be called so.
pub const NAME: &str = ".windlass";
const FORMAT: u32 = 1;
/// What is told of earlier tries.
const ERRORS_KEPT: usize = 10;

/// An open sidecar.
#[derive(Clone, Debug)]
pub struct Sidecar {
    pub(super) root: Directory,
    pub(super) drivers: Directory,
    tries: Directory,
    /// This process among all that write here.
    writer: u64,
}

/// The tries of one document, and which document it was: another of the same name begins anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tries {
    pub used: u32,
    inode: u64,
    size: u64,
    modified: i64,
    /// The claim that was charged last, so that none is charged twice.
    charged: Option<Charged>,
    /// When one of ours put it back as failed, by the file system's clock; none where that is not known. Every rename
    /// changes that time, so one that has another was in other hands since, and came back failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) left: Option<i64>,
    pub errors: Vec<Try>,
}

/// A claim: who had it, and since when by the file system's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charged {
    pub by: String,
    pub since: i64,
}

/// One try that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Try {
    pub at: String,
    pub by: String,
    pub error: String,
}

impl Tries {
    /// Of a document that has used none.
    pub fn none(facts: &Facts) -> Tries {
        let Facts { inode, size, modified, .. } = *facts;
        Tries { used: 0, inode, size, modified, charged: None, left: None, errors: Vec::new() }
    }

    /// Whether they are of this document, as it was when its last try was counted.
    pub(super) fn is_of(&self, facts: &Facts) -> bool {
        (self.inode, self.size, self.modified) == (facts.inode, facts.size, facts.modified)
    }

    /// Whether a document that waits for another try has used one more than is noted, in the hands of others.
    pub(super) fn were_others_at_it(&self, facts: &Facts) -> bool {
        self.left.is_some_and(|left| left != facts.changed)
    }

    /// The same for one that somebody may have written to since.
    pub(super) fn are_of_inode(&self, facts: &Facts) -> bool {
        self.inode == facts.inode
    }

    /// The document is this file now.
    pub(super) fn are_of(&mut self, facts: &Facts) {
        (self.inode, self.size, self.modified) = (facts.inode, facts.size, facts.modified);
    }

    /// Counts a try; one that was counted before it could be settled is not counted again.
    pub fn charge(&mut self, claim: Option<Charged>, at: Time, by: &str, error: &str) {
        if claim.is_some() && self.charged == claim {
            return;
        }
        self.charged = claim;
        self.left = None;
        self.used = self.used.saturating_add(1);
        self.errors.push(Try { at: when::rfc3339(at), by: by.to_owned(), error: error.to_owned() });
        if self.errors.len() > ERRORS_KEPT {
            self.errors.remove(0);
        }
    }

    /// The error of a claim that was counted already, if this one was.
    pub fn charged_for(&self, claim: &Charged) -> Option<&str> {
        self.errors.last().filter(|_| self.charged.as_ref() == Some(claim)).map(|last| last.error.as_str())
    }
}

impl Sidecar {
    /// Opens it, made where it is missing.
    pub fn open(dir: &Directory) -> std::result::Result<Sidecar, Failure> {
        let cannot = |e: std::io::Error| {
            let failure = Failure::io(format_args!("cannot use {}/{NAME}", dir.path().display()), &e);
            failure.hint("drivers keep tries and leases there: the directory must be writable")
        };
        let writer = getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?;
        let root = dir.inner(NAME).map_err(cannot)?;
        let (drivers, tries) = (root.inner("drivers").map_err(cannot)?, root.inner("tries").map_err(cannot)?);
        let sidecar = Sidecar { root, drivers, tries, writer };
        sidecar.check_format()?;
        Ok(sidecar)
    }

    /// The same for those who only look: none where nobody of ours was here, and nothing is made.
    pub fn find(dir: &Directory) -> std::result::Result<Option<Sidecar>, Failure> {
        let cannot =
            |e: std::io::Error| Failure::io(format_args!("cannot look into {}/{NAME}", dir.path().display()), &e);
        let Some(root) = dir.existing(NAME).map_err(cannot)? else { return Ok(None) };
        let inner = |name| root.existing(name).map_err(cannot);
        let (Some(drivers), Some(tries)) = (inner("drivers")?, inner("tries")?) else { return Ok(None) };
        let sidecar = Sidecar { drivers, tries, writer: 0, root: root.clone() };
        match root.has(b"FORMAT").map_err(cannot)? {
            true => sidecar.check_format().map(|()| Some(sidecar)),
            false => Ok(None),
        }
    }

    fn check_format(&self) -> std::result::Result<(), Failure> {
        let path = self.root.at(b"FORMAT");
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot use {}", path.display()), &e);
        let Some(text) = self.read(&self.root, b"FORMAT").map_err(cannot)? else {
            // The line itself gets its name by a rename, and would only tell that it failed.
            prove_rename(&self.root, self.writer)?;
            let line = format!("windlass spool {FORMAT}\n");
            return self.root.write_durably(&self.temporary(), line.as_bytes(), &self.root, b"FORMAT").map_err(cannot);
        };
        let text = String::from_utf8_lossy(&text);
        match text.trim().strip_prefix("windlass spool ").and_then(|number| number.parse::<u32>().ok()) {
            Some(found) if found <= FORMAT => Ok(()),
            Some(found) => {
                let text = format!("{} has format {found}, this program knows up to {FORMAT}", path.display());
                Err(Failure::new(Kind::Version, text))
            }
            None => Err(Failure::new(Kind::BadData, format!("{} is not ours: {text:?}", path.display()))),
        }
    }

    pub(super) fn temporary(&self) -> Vec<u8> {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        format!("new-{:016x}-{thread}", self.writer).into_bytes()
    }

    pub(super) fn random(&self) -> u64 {
        self.writer
    }

    fn read(&self, dir: &Directory, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(mut file) = dir.open_regular(name, false)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// The tries of a document, if they are of this very one; one of the same name that was here before is another.
    /// What cannot be read counts for nothing, as if only others had been here.
    pub fn tries(&self, doc: &DocId, are_its: impl Fn(&Tries) -> bool) -> Result<Option<Tries>> {
        let bytes = match self.read(&self.tries, doc.as_bytes()) {
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => None,
            read => read?,
        };
        let tries = bytes.and_then(|bytes| serde_json::from_slice::<Tries>(&bytes).ok());
        Ok(tries.filter(are_its))
    }

    /// On disk when it comes back.
    pub fn remember(&self, doc: &DocId, tries: &Tries) -> Result<()> {
        let text = serde_json::to_vec(tries).map_err(std::io::Error::from)?;
        let write = || self.root.write_durably(&self.temporary(), &text, &self.tries, doc.as_bytes());
        match write() {
            Err(e) if e.kind() == std::io::ErrorKind::IsADirectory => self.unplant(doc).and_then(|()| write()),
            written => written,
        }
    }

    pub fn forget(&self, doc: &DocId) -> Result<()> {
        match self.tries.remove(doc.as_bytes()) {
            Err(e) if e.kind() == std::io::ErrorKind::IsADirectory => self.unplant(doc),
            removed => removed.map(drop),
        }
    }

    /// A directory that somebody made where the tries of a document belong goes out of the way.
    fn unplant(&self, doc: &DocId) -> Result<()> {
        let random = getrandom::u64().map_err(|e| std::io::Error::other(format!("no random numbers: {e}")))?;
        self.tries.rename(doc.as_bytes(), &self.root, format!("planted-{random:016x}").as_bytes())
    }

    /// Notes where the output of this queue goes, for those who look when no driver is here to say it.
    pub fn note_outputs(&self, outputs: &[&Directory]) -> Result<()> {
        let paths: Vec<PathBuf> = outputs.iter().map(|output| output.path().to_owned()).collect();
        if self.noted_outputs()?.as_deref() == Some(&paths) {
            return Ok(());
        }
        // No path has a NUL in it.
        let text = paths.iter().map(|path| path.as_os_str().as_bytes()).collect::<Vec<_>>().join(&0);
        self.root.write_durably(&self.temporary(), &text, &self.root, b"output")
    }

    /// None where nobody has ever said.
    pub fn noted_outputs(&self) -> Result<Option<Vec<PathBuf>>> {
        let Some(text) = self.read(&self.root, b"output")? else { return Ok(None) };
        let paths = text.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        Ok(Some(paths.map(|path| PathBuf::from(OsString::from_vec(path.to_vec()))).collect()))
    }

    /// What the file system's clock shows, by touching a file.
    pub fn clock(&self) -> Result<i64> {
        const CLOCK: &[u8] = b"clock";
        let file = match self.root.create(CLOCK) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                self.root.open_file(CLOCK, true)?.ok_or(std::io::ErrorKind::NotFound)?
            }
            made => made?,
        };
        touch(&file)?;
        Ok(Facts::of_file(&file)?.modified)
    }

    /// Removes what the dead left: half-written files, and tries of documents that are not there any more; once they
    /// are so old that they can be nobody's.
    pub fn clear(&self, now: i64, is_there: impl Fn(&[u8]) -> Result<bool>) -> Result<()> {
        const OLD: i64 = 24 * 3600 * 1_000_000_000;
        for (dir, may_go) in [(&self.root, false), (&self.tries, true)] {
            let mut left = Vec::new();
            dir.each_name(|name| {
                let temporary = name.starts_with(b"new-") || name.starts_with(b"proof-");
                left.extend((may_go || temporary).then(|| name.to_vec()));
                ControlFlow::Continue(())
            })?;
            for name in left {
                let is_old = |facts: Facts| facts.kind != FileType::Directory && now - facts.modified > OLD;
                if dir.facts(&name)?.is_some_and(is_old) && !(may_go && is_there(&name)?) {
                    dir.remove(&name)?;
                }
            }
        }
        Ok(())
    }

    /// Adds what a driver that is gone has spent.
    pub fn add_times(&self, times: &Times) -> Result<()> {
        const TIMES: &[u8] = b"times";
        let mut file = match self.root.create(TIMES) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                self.root.open_file(TIMES, true)?.ok_or(std::io::ErrorKind::NotFound)?
            }
            made => made?,
        };
        // Without locks two drivers that end at once may count as one: it is a statistic.
        let _unlocked = rustix::fs::flock(&file, FlockOperation::LockExclusive);
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut sum = Times::read(&text);
        sum.add(times);
        file.rewind()?;
        // It never gets shorter, since no number does.
        file.write_all(sum.to_string().as_bytes())
    }

    /// What the drivers that are gone have spent.
    pub fn times(&self) -> Result<Times> {
        let text = self.read(&self.root, b"times")?.unwrap_or_default();
        Ok(Times::read(&String::from_utf8_lossy(&text)))
    }
}

/// Sets a file's time stamp to what its file system's clock shows.
pub(super) fn touch(file: &std::fs::File) -> Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Ok(rustix::fs::futimens(file, &Timestamps { last_access: now, last_modification: now })?)
}

/// The machine and the time since it was started: who shares it, shares the kernel's locks.
pub(super) fn boot() -> String {
    boot_id()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn sidecar(root: &tempfile::TempDir) -> (Directory, Sidecar) {
        let dir = Directory::open(root.path()).unwrap();
        let sidecar = Sidecar::open(&dir).unwrap();
        (dir, sidecar)
    }

    #[test]
    fn tries_are_of_one_document_and_not_of_its_name() {
        let root = tempfile::tempdir().unwrap();
        let (dir, sidecar) = sidecar(&root);
        let doc = DocId::new(b"a b.\xff").unwrap();
        fs::write(dir.at(b"first"), "one").unwrap();
        let facts = dir.facts(b"first").unwrap().unwrap();
        assert_eq!(sidecar.tries(&doc, |tries| tries.is_of(&facts)).unwrap(), None);
        let mut tries = Tries::none(&facts);
        tries.charge(None, Time::ZERO, "7", "exit 1");
        sidecar.remember(&doc, &tries).unwrap();
        dir.rename(b"first", &dir, b"second").unwrap();
        let facts = dir.facts(b"second").unwrap().unwrap();
        assert_eq!(
            sidecar.tries(&doc, |tries| tries.is_of(&facts)).unwrap(),
            Some(tries),
            "a rename changes nothing of it"
        );
        fs::write(dir.at(b"other"), "longer").unwrap();
        let other = dir.facts(b"other").unwrap().unwrap();
        assert_eq!(sidecar.tries(&doc, |tries| tries.is_of(&other)).unwrap(), None);
        sidecar.forget(&doc).unwrap();
        assert_eq!(sidecar.tries(&doc, |tries| tries.is_of(&facts)).unwrap(), None);
    }

    #[test]
    fn one_claim_is_charged_once() {
        let root = tempfile::tempdir().unwrap();
        let (dir, _) = sidecar(&root);
        let mut tries = Tries::none(&dir.facts(NAME.as_bytes()).unwrap().unwrap());
        let claim = |since| Some(Charged { by: "7".into(), since });
        tries.charge(claim(1), Time::ZERO, "7", "died");
        tries.charge(claim(1), Time::ZERO, "8", "died once more");
        assert_eq!((tries.used, tries.errors.len()), (1, 1));
        tries.charge(claim(2), Time::ZERO, "7", "died");
        tries.charge(None, Time::ZERO, "", "found");
        tries.charge(None, Time::ZERO, "", "found");
        assert_eq!(tries.used, 4);
    }

    #[test]
    fn who_only_looks_makes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let dir = Directory::open(root.path()).unwrap();
        assert!(Sidecar::find(&dir).unwrap().is_none() && fs::read_dir(root.path()).unwrap().next().is_none());
        let made = Sidecar::open(&dir).unwrap();
        assert_eq!(made.noted_outputs().unwrap(), None);
        made.note_outputs(&[]).unwrap();
        assert_eq!(made.noted_outputs().unwrap(), Some(Vec::new()), "of a sink nothing comes out");
        made.note_outputs(&[&dir, &made.root]).unwrap();
        let found = Sidecar::find(&dir).unwrap().unwrap();
        assert_eq!(found.noted_outputs().unwrap().unwrap(), [dir.path(), made.root.path()]);
        fs::write(made.root.at(b"FORMAT"), "windlass spool 99\n").unwrap();
        assert_eq!(Sidecar::find(&dir).unwrap_err().kind, Kind::Version);
    }

    #[test]
    fn another_format_is_refused_and_times_are_summed() {
        let root = tempfile::tempdir().unwrap();
        let (dir, sidecar) = sidecar(&root);
        let times = Times { documents: 3, ..Times::default() };
        sidecar.add_times(&times).unwrap();
        sidecar.add_times(&times).unwrap();
        assert_eq!(sidecar.times().unwrap().documents, 6);
        assert!(sidecar.clock().unwrap() <= sidecar.clock().unwrap());
        fs::write(sidecar.root.at(b"new-1"), "").unwrap();
        ["here", "gone"].iter().for_each(|doc| fs::write(sidecar.tries.at(doc.as_bytes()), "").unwrap());
        let is_there = |doc: &[u8]| Ok(doc == b"here");
        sidecar.clear(sidecar.clock().unwrap(), is_there).unwrap();
        assert!(sidecar.root.has(b"new-1").unwrap(), "somebody may be writing it");
        sidecar.clear(sidecar.clock().unwrap() + 25 * 3600 * 1_000_000_000, is_there).unwrap();
        assert!(!sidecar.root.has(b"new-1").unwrap() && !sidecar.tries.has(b"gone").unwrap());
        assert!(sidecar.tries.has(b"here").unwrap() && sidecar.root.has(b"FORMAT").unwrap());
        fs::write(sidecar.root.at(b"FORMAT"), "windlass spool 99\n").unwrap();
        assert_eq!(Sidecar::open(&dir).unwrap_err().kind, Kind::Version);
    }
}
