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
use rustix::fs::{FileType, FlockOperation};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};
use windlass_core::document::{DONE, DocId, Name, Standing, Times};

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
    /// What it became has its name, or is promised one: it must not be made again, whatever fails from here on.
    pub(super) handed_on: bool,
}

/// What came of claiming a document.
#[derive(Debug)]
pub enum Claimed {
    Ours(Box<Claim>),
    /// Another was first, or it went away.
    Lost,
    /// It is no document, and was set aside for this reason.
    Refused(String),
    /// It stays where it is, since nobody lets us have it.
    Left(String),
}

/// Where a document is that was to go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    InTheQueue,
    /// Another of its name has come meanwhile, or it was its last try: it is kept with those that were given up.
    Aside,
    /// It is not there any more.
    Gone,
}

/// How long a note about a document that was put back may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a document that was to go back is kept instead.
pub(super) const NAME_TAKEN: &str = "another document of its name has come to the queue meanwhile";

impl Claim {
    /// The name of its file now.
    pub fn file(&self) -> Vec<u8> {
        self.doc.named(Standing::Working { by: &self.by })
    }

    /// The name under which its output is written.
    pub fn writing(&self, output: &Output) -> Vec<u8> {
        self.doc.named(Standing::Writing { by: &self.by, extension: output.extension.as_bytes() })
    }

    fn new(doc: DocId, by: &[u8], facts: Facts, noted: Option<Tries>) -> Claim {
        let (noted, tries) = (noted.is_some(), noted.unwrap_or_else(|| Tries::none(&facts)));
        Claim { doc, by: by.to_vec(), had_failed: tries.used > 0, facts, tries, noted, handed_on: false }
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
            // In a directory of many users a file may be its owner's alone, and some files nobody may rename.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => return Ok(Claimed::Left(left(&doc, &e))),
            renamed => renamed?,
        }
        let Some(facts) = self.settled_facts(&working)? else { return Ok(Claimed::Lost) };
        if let Some(why) = self.unfit(&facts)? {
            return self.refuse(file, &working, why);
        }
        let noted = self.sidecar.tries(&doc, |tries| tries.is_of(&facts))?;
        Ok(Claimed::Ours(Box::new(Claim { had_failed, ..Claim::new(doc, by, facts, noted) })))
    }

    /// About a file that was claimed. One that was just put has two names for a moment, where the file system cannot
    /// refuse a name by itself.
    fn settled_facts(&self, working: &[u8]) -> Result<Option<Facts>> {
        const MOMENTS: usize = 20;
        let mut facts = self.directory.facts(working)?;
        for _ in 0..MOMENTS {
            let Some(found) = facts.filter(|found| found.kind == FileType::RegularFile && found.links > 1) else {
                break;
            };
            if self.unfit(&found)?.is_none() {
                break;
            }
            std::thread::park_timeout(Duration::from_millis(1));
            facts = self.directory.facts(working)?;
        }
        Ok(facts)
    }

    /// Why a file of this queue is no document.
    pub(super) fn unfit(&self, facts: &Facts) -> Result<Option<&'static str>> {
        Ok(match facts.kind {
            // Who can give names here could have given one to any file of ours, wherever it is.
            FileType::RegularFile if facts.links > 1 && !self.directory.is_ours_alone()? => {
                Some("a file with a second name elsewhere, expected one of its own where others can write")
            }
            FileType::RegularFile => None,
            FileType::Symlink => Some("a symbolic link, expected a file"),
            FileType::Directory => Some("a directory, expected a file"),
            FileType::Fifo => Some("a named pipe, expected a file"),
            FileType::Socket => Some("a socket, expected a file"),
            FileType::CharacterDevice | FileType::BlockDevice => Some("a device, expected a file"),
            FileType::Unknown => Some("neither a file nor anything known, expected a file"),
        })
    }

    /// The text of a document that is ours; an error is why it has none.
    pub fn read(&self, claim: &Claim, most: usize) -> std::result::Result<Vec<u8>, String> {
        let cannot = |e: Error| format!("cannot read it: {e}");
        let file = self.directory.open_regular(&claim.file(), false).map_err(cannot)?;
        let file = file.ok_or("cannot read it: it is no file any more")?;
        if let Some(why) = Facts::of_file(&file).and_then(|facts| self.unfit(&facts)).map_err(cannot)? {
            return Err(why.into());
        }
        let mut text = Vec::new();
        file.take(most as u64 + 1).read_to_end(&mut text).map_err(cannot)?;
        match text.len() <= most {
            true => Ok(text),
            false => Err(format!("it has more than the {most} bytes that the data of a job has at most")),
        }
    }

    /// A document that others left as failed has used one try; that is on disk before its name is gone. False where it
    /// is not there any more.
    fn note_found(&self, doc: &DocId, file: &[u8]) -> Result<bool> {
        match self.directory.facts(file)? {
            None => return Ok(false),
            Some(facts) if self.unfit(&facts)?.is_some() => return Ok(true),
            // Whoever of ours has just put it back notes when that was.
            Some(_) => drop(self.note_lock(file, FlockOperation::NonBlockingLockShared, PATIENCE)?),
        }
        let Some(facts) = self.directory.facts(file)? else { return Ok(false) };
        let noted = self.sidecar.tries(doc, |tries| tries.is_of(&facts))?;
        if noted.as_ref().is_none_or(|tries| tries.were_others_at_it(&facts)) {
            let mut tries = noted.unwrap_or_else(|| Tries::none(&facts));
            tries.charge(None, clock::now(), "", "found as failed");
            self.sidecar.remember(doc, &tries)?;
        }
        Ok(true)
    }

    /// The lock under which it is noted when a document was put back as failed. None where there is none to be had: it
    /// may be another's, and file systems without locks have none.
    fn note_lock(&self, file: &[u8], how: FlockOperation, patience: Duration) -> Result<Option<File>> {
        let opened = match self.directory.open_regular(file, false) {
            Err(e) if e.kind() == ErrorKind::PermissionDenied => None,
            opened => opened?,
        };
        let Some(opened) = opened else { return Ok(None) };
        let begun = Instant::now();
        loop {
            match rustix::fs::flock(&opened, how) {
                Ok(()) => return Ok(Some(opened)),
                Err(Errno::WOULDBLOCK) if begun.elapsed() < patience => {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
                Err(_) => return Ok(None),
            }
        }
    }

    /// Hands the output on and lets the input go: its size, or why the try has failed by it.
    pub fn publish(
        &self,
        claim: &mut Claim,
        output: Option<&Output>,
        lease: &Lease,
        times: &Times,
    ) -> Result<std::result::Result<u64, String>> {
        let mut size = 0;
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
            // Its command may have put another file in its place.
            let input = self.directory.facts(&claim.file())?.map_or(claim.facts.inode, |input| input.inode);
            lease.say(Doing::Publishing { input, output: facts.inode }, times)?;
            // Whoever took over will make it anew. An input that is gone while the lease holds was moved by its own
            // command.
            if !lease.holds() {
                output.directory.remove(&writing)?;
                return Err(Error::other(format!("{} was taken from us: its lease had run out", claim.doc)));
            }
            let renamed = output.directory.rename(&writing, &output.directory, &claim.doc.named(Standing::Ready));
            // One that failed may have been done all the same, where the disk is another machine's.
            let unnamed = |found: Option<Facts>| found.is_some_and(|found| found.inode == facts.inode);
            claim.handed_on = renamed.is_ok() || !output.directory.facts(&writing).is_ok_and(unnamed);
            renamed?;
            size = facts.size;
            if !sabotage::on(Sabotage::InputGoneEarly) {
                output.directory.sync()?;
            }
        }
        self.finish(claim, output.is_some())?;
        Ok(Ok(size))
    }

    /// The input goes; what it was handed on as is there. Its tries go first where whoever takes over would know that.
    pub(super) fn finish(&self, claim: &Claim, handed_on: bool) -> Result<()> {
        if claim.noted && handed_on {
            self.sidecar.forget(&claim.doc)?;
        }
        self.directory.remove(&claim.file())?;
        if claim.noted && !handed_on {
            self.sidecar.forget(&claim.doc)?;
        }
        Ok(())
    }

    /// Nothing was its fault: it goes back as it was.
    pub fn give_back(&self, claim: &Claim, output: Option<&Output>) -> Result<Back> {
        self.remove_output(claim, output)?;
        let standing = if claim.had_failed { Standing::Failed } else { Standing::Ready };
        self.put_back(claim, standing)
    }

    /// It has used one more try, and goes to the end of the queue.
    pub fn fail(&self, claim: &mut Claim, output: Option<&Output>, by: &str, error: &str) -> Result<Back> {
        self.remove_output(claim, output)?;
        self.charge(claim, by, error)?;
        self.put_back(claim, Standing::Failed)
    }

    /// It was the last try: body and reason are kept.
    pub fn set_aside(&self, claim: &mut Claim, output: Option<&Output>, by: &str, error: &str) -> Result<Back> {
        self.remove_output(claim, output)?;
        self.charge_in_memory(claim, by, error)?;
        self.keep_aside(claim, error)
    }

    /// Counts a try of the document as its command has left it, which may be another file by now.
    fn charge_in_memory(&self, claim: &mut Claim, by: &str, error: &str) -> Result<()> {
        if let Some(facts) = self.directory.facts(&claim.file())? {
            claim.facts = facts;
            claim.tries.are_of(&facts);
        }
        claim.tries.charge(Some(claim.charged()), clock::now(), by, error);
        Ok(())
    }

    fn charge(&self, claim: &mut Claim, by: &str, error: &str) -> Result<()> {
        self.charge_in_memory(claim, by, error)?;
        if sabotage::on(Sabotage::TryForgotten) {
            return Ok(());
        }
        claim.noted = true;
        self.sidecar.remember(&claim.doc, &claim.tries)
    }

    fn put_back(&self, claim: &Claim, standing: Standing<'_>) -> Result<Back> {
        if standing != Standing::Failed || !claim.noted {
            return self.rename_back(claim, standing);
        }
        // Until it is noted when it was put back, nobody can tell whether others had it since.
        let mut tries = claim.tries.clone();
        if tries.left.take().is_some() {
            self.sidecar.remember(&claim.doc, &tries)?;
        }
        let lock = self.note_lock(&claim.file(), FlockOperation::NonBlockingLockExclusive, Duration::ZERO)?;
        let back = self.rename_back(claim, standing)?;
        if let Some(file) = lock.filter(|_| back == Back::InTheQueue) {
            tries.left = Some(Facts::of_file(&file)?.changed);
            self.sidecar.remember(&claim.doc, &tries)?;
        }
        Ok(back)
    }

    fn rename_back(&self, claim: &Claim, standing: Standing<'_>) -> Result<Back> {
        match self.directory.rename_new(&claim.file(), &self.directory, &claim.doc.named(standing)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Back::Gone),
            // Neither may be lost, and both cannot have the name.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => self.keep_aside(claim, NAME_TAKEN),
            renamed => renamed.map(|()| Back::InTheQueue),
        }
    }

    pub(super) fn remove_output(&self, claim: &Claim, output: Option<&Output>) -> Result<()> {
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
        // Its command may have changed it, and cannot have got its tries back by that.
        let noted = self.sidecar.tries(&doc, |tries| tries.are_of_inode(&facts))?;
        let mut claim = Claim::new(doc, by, facts, noted);
        if let (Doing::Publishing { input, output: made }, Some(output)) = (doing, output)
            && input == facts.inode
        {
            let written = output.directory.facts(&claim.writing(output))?;
            if written.is_none_or(|written| written.inode != made) {
                output.directory.sync()?;
                self.finish(&claim, true)?;
                return Ok(TakenBack::WasDone);
            }
        }
        disown()?;
        let Some(error) = terms.error.filter(|_| !sabotage::on(Sabotage::DeathUncharged)) else {
            return self.give_back(&claim, output).map(TakenBack::from);
        };
        // A try that was counted before its driver died is not counted again, and neither is its error another.
        let error = claim.tries.charged_for(&claim.charged()).unwrap_or(error).to_owned();
        self.remove_output(&claim, output)?;
        self.charge(&mut claim, &String::from_utf8_lossy(by), &error)?;
        if terms.most != 0 && claim.tries.used >= terms.most {
            return self.keep_aside(&claim, &error).map(TakenBack::from);
        }
        self.put_back(&claim, Standing::Failed).map(TakenBack::from)
    }

    /// Whether a document of this name waits here, is worked on by anybody, or was given up.
    pub(super) fn knows(&self, document: &[u8]) -> Result<bool> {
        let failed = Name { document, standing: Standing::Failed }.file();
        let aside = self.directory.existing(FAILED)?.map_or(Ok(false), |aside| aside.has(&failed))?;
        let mut found = aside;
        self.directory.each_name(|file| {
            found |= Name::of(file).is_some_and(|name| name.document == document);
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found)
    }

    /// Whether something says that nothing more will come.
    pub fn is_closed(&self) -> Result<bool> {
        self.directory.has(DONE)
    }

    /// Whether nothing waits, is worked on or is being written. A document that is renamed while the names are read may
    /// be read under neither name, so what counts is a look during which no name has changed: the last change is older
    /// than the look by the file system's clock, and still the last after it.
    pub fn is_worked_off(&self) -> Result<bool> {
        const ROUNDS: usize = 50;
        for _ in 0..ROUNDS {
            let (begun, before) = (self.sidecar.clock()?, self.directory.stamp()?);
            if !self.seems_worked_off()? {
                return Ok(false);
            }
            if before < begun && self.directory.stamp()? == before {
                return Ok(true);
            }
            // Until that clock moves on.
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Ok(false)
    }

    fn seems_worked_off(&self) -> Result<bool> {
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

impl From<Back> for TakenBack {
    fn from(back: Back) -> TakenBack {
        match back {
            Back::InTheQueue => TakenBack::Again,
            Back::Aside => TakenBack::Aside,
            Back::Gone => TakenBack::Gone,
        }
    }
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

/// What is said of a document that nobody lets us have.
pub(super) fn left(name: impl std::fmt::Display, error: &Error) -> String {
    format!("{name} stays where it is, and holds up the end: cannot rename it: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_document_that_is_renamed_during_the_look_is_not_overlooked() {
        let root = tempfile::tempdir().unwrap();
        let queue = Queue::open(root.path()).unwrap();
        // So many other names that the kernel tells of them in several pieces.
        (0..3000).for_each(|n| std::fs::write(root.path().join(format!("note{n}")), "").unwrap());
        assert!(queue.is_worked_off().unwrap());
        std::fs::write(root.path().join("0.ready"), "").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut name = "0.ready".to_owned();
                for number in 1.. {
                    let next = format!("{number}.ready");
                    std::fs::rename(root.path().join(&name), root.path().join(&next)).unwrap();
                    name = next;
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let early = (0..300).filter(|_| queue.is_worked_off().unwrap()).count();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(early, 0, "it was there all the time");
        });
    }
}
