//! A directory as a queue of documents: a claim, and what becomes of it. Every change is one atomic rename.
//!
//! ```text
//! DOC.ready ──claim──► DOC.N.working ──publish──► gone, and OUT/DOC.N.writing.EXT is OUT/DOC.ready
//! DOC.failed ─claim──►      │ ├──────fail───────► DOC.failed, one more try used
//!                           │ └──────set aside──► failed/DOC.failed and failed/DOC.reason
//!                           └────────give back──► as it was
//! ```
//!
//! What must survive a power cut is synced before the step that rests on it: an output before it gets its name, its
//! name before the input goes, the count of tries before the document goes back. A claim rests on nothing. It must not
//! decide which of these becomes of a document.

use super::directory::{Directory, Facts};
use super::lease::{Doing, Lease};
use super::sidecar::{Charged, Sidecar, Tries};
use crate::clock;
use crate::error::Failure;
use crate::sabotage::{self, Sabotage};
use rustix::fs::FileType;
use serde_json::json;
use std::io::{Error, ErrorKind, Result};
use std::ops::ControlFlow;
use std::path::Path;
use windlass_core::document::{DONE, DocId, NAME_MAX, Name, Standing, Times};

/// Where what was given up is kept, within the queue's directory.
pub const FAILED: &str = "failed";

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    pub directory: Directory,
    pub sidecar: Sidecar,
}

/// Where output goes, and the extension that it has while it is being written.
#[derive(Clone, Debug)]
pub struct Output {
    pub directory: Directory,
    pub extension: String,
}

/// A document that is ours.
#[derive(Clone, Debug)]
pub struct Claim {
    pub doc: DocId,
    /// The driver's number as it stands in names.
    pub by: Vec<u8>,
    /// It had used tries before it was claimed.
    had_failed: bool,
    pub facts: Facts,
    pub tries: Tries,
    /// There is a note of its tries in the sidecar.
    noted: bool,
}

/// What came of claiming a document.
#[derive(Debug)]
pub enum Claimed {
    Ours(Box<Claim>),
    /// Another was first, or it went away.
    Lost,
    /// It is no document, and was set aside for this reason.
    Refused(String),
}

impl Claim {
    /// The name of its file now.
    pub fn file(&self) -> Vec<u8> {
        self.doc.named(Standing::Working { by: &self.by })
    }

    /// The name under which its output is written.
    pub fn writing(&self, output: &Output) -> Vec<u8> {
        self.doc.named(Standing::Writing { by: &self.by, extension: output.extension.as_bytes() })
    }

    fn charged(&self) -> Charged {
        Charged { by: String::from_utf8_lossy(&self.by).into_owned(), since: self.facts.changed }
    }
}

impl Queue {
    pub fn open(path: &Path) -> std::result::Result<Queue, Failure> {
        let directory = Directory::open(path)?;
        let sidecar = Sidecar::open(&directory)?;
        Ok(Queue { directory, sidecar })
    }

    /// Claims the file of a document that waits, for the driver of this number.
    pub fn claim(&self, file: &[u8], by: &[u8], extension: &str) -> Result<Claimed> {
        let Some(name) = Name::of(file).filter(Name::waits) else { return Ok(Claimed::Lost) };
        let doc = match DocId::new(name.document) {
            Ok(doc) => doc,
            Err(why) => return self.refuse(file, file, &why.to_string()),
        };
        if let Err(why) = doc.fits(by, extension.as_bytes()) {
            return self.refuse(file, file, &why.to_string());
        }
        let had_failed = name.standing == Standing::Failed;
        if had_failed && !self.note_found(&doc, file)? {
            return Ok(Claimed::Lost);
        }
        let working = doc.named(Standing::Working { by });
        match self.directory.rename_new(file, &self.directory, &working) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Claimed::Lost),
            renamed => renamed?,
        }
        let Some(facts) = self.directory.facts(&working)? else { return Ok(Claimed::Lost) };
        if let Some(why) = unfit(&facts) {
            return self.refuse(file, &working, why);
        }
        let noted = self.sidecar.tries(&doc, &facts)?;
        let (noted, tries) = (noted.is_some(), noted.unwrap_or_else(|| Tries::none(&facts)));
        Ok(Claimed::Ours(Box::new(Claim { doc, by: by.to_vec(), had_failed, facts, tries, noted })))
    }

    /// A document that others left as failed has used one try; that is on disk before its name is gone. False where it
    /// is not there any more.
    fn note_found(&self, doc: &DocId, file: &[u8]) -> Result<bool> {
        let Some(facts) = self.directory.facts(file)? else { return Ok(false) };
        if unfit(&facts).is_none() && self.sidecar.tries(doc, &facts)?.is_none() {
            let mut tries = Tries::none(&facts);
            tries.charge(None, clock::now(), "", "found as failed");
            self.sidecar.remember(doc, &tries)?;
        }
        Ok(true)
    }

    /// Sets aside what cannot be worked on, under the name it came with.
    fn refuse(&self, file: &[u8], now: &[u8], why: &str) -> Result<Claimed> {
        let failed = self.directory.inner(FAILED)?;
        match self.directory.rename_new(now, &failed, file) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Claimed::Lost),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                self.directory.rename_new(now, &failed, &another(file, self.sidecar.random() ^ now.len() as u64))?;
            }
            renamed => renamed?,
        }
        let reason = json!({ "document": String::from_utf8_lossy(file), "error": why, "tries": 0 });
        self.write_reason(&failed, file, &reason)?;
        Ok(Claimed::Refused(format!("{}: {why}", String::from_utf8_lossy(file))))
    }

    fn write_reason(&self, failed: &Directory, stem: &[u8], reason: &serde_json::Value) -> Result<()> {
        let suffix = b".reason";
        let stem = &stem[..stem.len().min(NAME_MAX - suffix.len())];
        let text = format!("{reason:#}\n");
        self.sidecar.root.write_durably(&self.sidecar.temporary(), text.as_bytes(), failed, &[stem, suffix].concat())
    }

    /// Hands the output on and lets the input go; an error is said where the try has failed by it.
    pub fn publish(
        &self,
        claim: &Claim,
        output: Option<&Output>,
        lease: &Lease,
        times: &Times,
    ) -> Result<std::result::Result<(), String>> {
        if let Some(output) = output {
            let writing = claim.writing(output);
            let file = match output.directory.open_file(&writing, false) {
                Ok(Some(file)) => file,
                Ok(None) => return Ok(Err("it succeeded and left no output".into())),
                Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
                    return Ok(Err("its output is a symbolic link, expected a file".into()));
                }
                Err(error) => return Err(error),
            };
            let facts = Facts::of_file(&file)?;
            if facts.kind != FileType::RegularFile {
                return Ok(Err("its output is no file".into()));
            }
            if !sabotage::on(Sabotage::OutputNotSynced) {
                file.sync_all()?;
            }
            lease.say(Doing::Publishing { input: claim.facts.inode, output: facts.inode }, times)?;
            // Whoever took over will make it anew. An input that is gone while the lease holds was moved by its own
            // command.
            if !lease.holds() {
                output.directory.remove(&writing)?;
                return Err(Error::other(format!("{} was taken from us: its lease had run out", claim.doc)));
            }
            output.directory.rename(&writing, &output.directory, &claim.doc.named(Standing::Ready))?;
            if !sabotage::on(Sabotage::InputGoneEarly) {
                output.directory.sync()?;
            }
        }
        self.finish(claim, output.is_some())
    }

    /// The input goes; what it was handed on as is there. Its tries go first where whoever takes over would know that.
    pub(super) fn finish(&self, claim: &Claim, handed_on: bool) -> Result<std::result::Result<(), String>> {
        if claim.noted && handed_on {
            self.sidecar.forget(&claim.doc)?;
        }
        self.directory.remove(&claim.file())?;
        if claim.noted && !handed_on {
            self.sidecar.forget(&claim.doc)?;
        }
        Ok(Ok(()))
    }

    /// Nothing was its fault: it goes back as it was.
    pub fn give_back(&self, claim: &Claim, output: Option<&Output>) -> Result<()> {
        self.remove_output(claim, output)?;
        let standing = if claim.had_failed { Standing::Failed } else { Standing::Ready };
        self.put_back(claim, standing)
    }

    /// It has used one more try, and goes to the end of the queue.
    pub fn fail(&self, claim: &mut Claim, output: Option<&Output>, by: &str, error: &str) -> Result<()> {
        self.remove_output(claim, output)?;
        self.charge(claim, by, error)?;
        self.put_back(claim, Standing::Failed)
    }

    /// It was the last try: body and reason are kept.
    pub fn set_aside(&self, claim: &mut Claim, output: Option<&Output>, by: &str, error: &str) -> Result<()> {
        self.remove_output(claim, output)?;
        claim.tries.charge(Some(claim.charged()), clock::now(), by, error);
        self.keep_aside(claim, error)
    }

    fn keep_aside(&self, claim: &Claim, error: &str) -> Result<()> {
        let failed = self.directory.inner(FAILED)?;
        let mut stem = claim.doc.as_bytes().to_vec();
        if failed.has(&[&stem[..], b".failed"].concat())? {
            stem = another(&stem, claim.facts.changed as u64);
        }
        let reason = json!({
            "document": claim.doc.to_string(),
            "error": error,
            "tries": claim.tries.used,
            "errors": claim.tries.errors,
        });
        self.write_reason(&failed, &stem, &reason)?;
        match self.directory.rename_new(&claim.file(), &failed, &[&stem[..], b".failed"].concat()) {
            // Whoever took it from us has settled it.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            renamed => renamed?,
        }
        self.sidecar.forget(&claim.doc)
    }

    fn charge(&self, claim: &mut Claim, by: &str, error: &str) -> Result<()> {
        claim.tries.charge(Some(claim.charged()), clock::now(), by, error);
        claim.noted = true;
        if sabotage::on(Sabotage::TryForgotten) {
            return Ok(());
        }
        self.sidecar.remember(&claim.doc, &claim.tries)
    }

    fn put_back(&self, claim: &Claim, standing: Standing<'_>) -> Result<()> {
        match self.directory.rename_new(&claim.file(), &self.directory, &claim.doc.named(standing)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            // Neither may be lost, and both cannot have the name.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                self.keep_aside(claim, "another document of its name has come to the queue meanwhile")
            }
            renamed => renamed,
        }
    }

    fn remove_output(&self, claim: &Claim, output: Option<&Output>) -> Result<()> {
        output.map_or(Ok(()), |output| output.directory.remove(&claim.writing(output)).map(drop))
    }

    /// Takes back what a driver held that is proven dead: its output may have been handed on, and then only the input
    /// has to go; otherwise it has used a try. `disown` is called before anything goes that the driver's word rests on.
    pub fn take_back(
        &self,
        name: Name<'_>,
        doing: Doing,
        output: Option<&Output>,
        terms: &Terms<'_>,
        disown: impl FnOnce() -> Result<()>,
    ) -> Result<TakenBack> {
        let Standing::Working { by } = name.standing else { return Ok(TakenBack::Gone) };
        let Ok(doc) = DocId::new(name.document) else { return Ok(TakenBack::Gone) };
        let file = name.file();
        let Some(facts) = self.directory.facts(&file)? else { return Ok(TakenBack::Gone) };
        let noted = self.sidecar.tries(&doc, &facts)?;
        let (noted, tries) = (noted.is_some(), noted.unwrap_or_else(|| Tries::none(&facts)));
        let mut claim = Claim { doc, by: by.to_vec(), had_failed: tries.used > 0, facts, tries, noted };
        if let (Doing::Publishing { input, output: made }, Some(output)) = (doing, output)
            && input == facts.inode
        {
            let written = output.directory.facts(&claim.writing(output))?;
            if written.is_none_or(|written| written.inode != made) {
                output.directory.sync()?;
                let _gone = self.finish(&claim, true)?;
                return Ok(TakenBack::WasDone);
            }
        }
        disown()?;
        let Some(error) = terms.error.filter(|_| !sabotage::on(Sabotage::DeathUncharged)) else {
            self.give_back(&claim, output)?;
            return Ok(TakenBack::Again);
        };
        // A try that was counted before its driver died is not counted again, and neither is its error another.
        let error = claim.tries.charged_for(&claim.charged()).unwrap_or(error).to_owned();
        self.remove_output(&claim, output)?;
        self.charge(&mut claim, &String::from_utf8_lossy(by), &error)?;
        if terms.most != 0 && claim.tries.used >= terms.most {
            self.keep_aside(&claim, &error)?;
            return Ok(TakenBack::Aside);
        }
        self.put_back(&claim, Standing::Failed)?;
        Ok(TakenBack::Again)
    }

    /// Whether something says that nothing more will come.
    pub fn is_closed(&self) -> Result<bool> {
        self.directory.has(DONE)
    }

    /// Whether nothing waits, is worked on or is being written.
    pub fn is_worked_off(&self) -> Result<bool> {
        let mut found = false;
        self.directory.each_name(|name| {
            let overlooked = |name: &Name<'_>| sabotage::on(Sabotage::DoneTooEarly) && !name.waits();
            found = Name::of(name).is_some_and(|name| !overlooked(&name));
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(!found)
    }
}

/// How a document is taken back.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'t> {
    /// How many tries there are, nought for no end of them.
    pub most: u32,
    /// What the try that its driver did not end counts as; none where nothing was the document's fault.
    pub error: Option<&'t str>,
}

/// What became of a document that a dead driver had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenBack {
    /// Its output had been handed on.
    WasDone,
    Again,
    Aside,
    /// Somebody else has settled it.
    Gone,
}

/// Says that nothing more will come.
pub fn close(directory: &Directory) -> Result<()> {
    match directory.create(DONE) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|_| directory.sync()),
    }
}

/// Why what was claimed is no document.
pub(super) fn unfit(facts: &Facts) -> Option<&'static str> {
    match facts.kind {
        FileType::RegularFile if facts.links > 1 && facts.owner != rustix::process::geteuid().as_raw() => {
            Some("another user's file that has a second name elsewhere, expected a file of its own")
        }
        FileType::RegularFile => None,
        FileType::Symlink => Some("a symbolic link, expected a file"),
        FileType::Directory => Some("a directory, expected a file"),
        FileType::Fifo => Some("a named pipe, expected a file"),
        FileType::Socket => Some("a socket, expected a file"),
        FileType::CharacterDevice | FileType::BlockDevice => Some("a device, expected a file"),
        FileType::Unknown => Some("neither a file nor anything known, expected a file"),
    }
}

/// A name beside one that is taken.
fn another(stem: &[u8], number: u64) -> Vec<u8> {
    let suffix = format!("~{number:x}");
    let most = NAME_MAX - suffix.len() - b".failed".len();
    [&stem[..stem.len().min(most)], suffix.as_bytes()].concat()
}
