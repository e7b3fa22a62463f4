//! Documents taken out of a queue by hand, each by one taker.
//!
//! On one file system a rename is all of it. To another a document is copied, and meanwhile claimed under a leased
//! number, as a driver would, so that a death in the middle neither loses nor doubles it. It must not work on a
//! document: who dies over one has not tried it.

use super::LEASE;
use super::directory::{Directory, Facts};
use super::door::Handed;
use super::lease::{About, Doing, Lease};
use super::queue::{Claim, Claimed, Output, Queue};
use super::recover::{Heir, take_over};
use crate::error::{Failure, Kind};
use std::fs::File;
use std::io::{ErrorKind, Read, Result, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;
use windlass_core::document::{DocId, Name, Standing, Times};

/// What the names end with of what is being taken out.
pub const TAKEN: &str = "taken";
const PIECE: usize = 1 << 20;

/// Takes outputs out of a queue into a directory, where each has its plain name.
#[derive(Debug)]
pub struct Taker {
    queue: Queue,
    to: Directory,
    /// Leased when the first document has to be copied.
    lease: Option<Lease>,
}

impl Taker {
    pub fn new(queue: Queue, to: &Path) -> std::result::Result<Taker, Failure> {
        let to = Directory::open(to)?;
        if to.path() == queue.directory.path() {
            let text = format!("{} is the queue itself, expected another directory", to.path().display());
            return Err(Failure::new(Kind::Usage, text));
        }
        // Who died over a document that was being copied has left it claimed.
        take_over(&queue, &Heir::default())?;
        Ok(Taker { queue, to, lease: None })
    }

    /// The documents that are ready now, the first come first.
    pub fn ready(&self) -> Result<Vec<DocId>> {
        let (mut ready, mut trouble) = (Vec::new(), None);
        self.queue.directory.each_name(|file| {
            if let Some(Name { document, standing: Standing::Ready }) = Name::of(file)
                && let Ok(doc) = DocId::new(document)
            {
                match self.queue.directory.facts(file) {
                    Ok(facts) => ready.extend(facts.map(|facts| (facts.changed, doc))),
                    Err(error) => trouble = Some(error),
                }
            }
            ControlFlow::Continue(())
        })?;
        ready.sort_unstable();
        trouble.map_or(Ok(()), Err)?;
        Ok(ready.into_iter().map(|(_, doc)| doc).collect())
    }

    pub fn take(&mut self, doc: &DocId) -> std::result::Result<Handed, Failure> {
        let place = self.queue.directory.path().to_owned();
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot take {doc} out of {}", place.display()), &e);
        let ready = doc.named(Standing::Ready);
        let Some(facts) = self.queue.directory.facts(&ready).map_err(cannot)? else { return Ok(Handed::NotThere) };
        if let Some(why) = self.queue.unfit(&facts).map_err(cannot)? {
            return Ok(Handed::Refused(why.into()));
        }
        // On one file system the rename is all of it.
        match self.queue.directory.rename_new(&ready, &self.to, doc.as_bytes()) {
            Ok(()) => Ok(Handed::Yes),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Handed::NotThere),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(self.is_taken()),
            Err(e) if e.kind() == ErrorKind::CrossesDevices => self.copy_out(&ready),
            Err(error) => Err(cannot(error)),
        }
    }

    fn is_taken(&self) -> Handed {
        Handed::Refused(format!("{} has a file of this name already", self.to.path().display()))
    }

    fn copy_out(&mut self, ready: &[u8]) -> std::result::Result<Handed, Failure> {
        let lease = match self.lease.take() {
            Some(lease) => lease,
            None => {
                let output = Some(self.to.path().to_owned());
                let about = About { lease: LEASE, output, extension: TAKEN.into(), hands: PathBuf::new() };
                Lease::take(&self.queue.sidecar, &about)?
            }
        };
        let copied = self.copy(ready, &lease);
        self.lease = Some(lease);
        let (from, to) = (self.queue.directory.path().display(), self.to.path().display());
        copied.map_err(|e| Failure::io(format_args!("cannot copy from {from} to {to}"), &e))
    }

    fn copy(&self, ready: &[u8], lease: &Lease) -> Result<Handed> {
        // What was said of the last one must not be taken for this one, which may have its inode.
        lease.say(Doing::Own, &Times::default())?;
        let mut claim = match self.queue.claim(ready, &lease.by(), TAKEN)? {
            Claimed::Ours(claim) => claim,
            Claimed::Lost => return Ok(Handed::NotThere),
            Claimed::Refused(why) | Claimed::Left(why) => return Ok(Handed::Refused(why)),
        };
        let output = Output { directory: self.to.clone(), extension: TAKEN.into() };
        let copied = self.hand_over(&mut claim, &output, lease);
        // What has its name there must not come twice: its claim stays for whoever takes over.
        if !matches!(copied, Ok(Handed::Yes)) && !claim.handed_on {
            self.queue.give_back(&claim, Some(&output))?;
        }
        copied
    }

    /// As a driver hands on: whole and synced before it has its name, and its name before the input goes.
    fn hand_over(&self, claim: &mut Claim, output: &Output, lease: &Lease) -> Result<Handed> {
        let writing = claim.writing(output);
        let Some(from) = self.queue.directory.open_file(&claim.file(), false)? else { return Ok(Handed::NotThere) };
        let into = self.to.create(&writing)?;
        copy_alive(&from, &into, lease)?;
        into.sync_all()?;
        let made = Facts::of_file(&into)?.inode;
        lease.say(Doing::Publishing { input: claim.facts.inode, output: made }, &Times::default())?;
        match self.to.rename_new(&writing, &self.to, claim.doc.as_bytes()) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                lease.say(Doing::Own, &Times::default())?;
                return Ok(self.is_taken());
            }
            renamed => renamed?,
        }
        claim.handed_on = true;
        self.to.sync()?;
        self.queue.finish(claim, true)?;
        Ok(Handed::Yes)
    }

    /// What was taken is on disk, and no number is held.
    pub fn finish(self) -> std::result::Result<(), Failure> {
        let synced = self.to.sync().and_then(|()| self.queue.directory.sync());
        let ended = synced.and_then(|()| self.lease.map_or(Ok(()), Lease::give_back));
        ended.map_err(|e| Failure::io(format_args!("cannot sync {}", self.to.path().display()), &e))
    }
}

/// Copies with a sign of life now and then, however large it is.
fn copy_alive(mut from: &File, mut into: &File, lease: &Lease) -> Result<()> {
    let (mut piece, mut renewed) = (vec![0; PIECE], Instant::now());
    loop {
        let length = match from.read(&mut piece) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        if length == 0 {
            return Ok(());
        }
        into.write_all(&piece[..length])?;
        if renewed.elapsed() > LEASE / 3 {
            renewed = Instant::now();
            lease.renew()?;
        }
    }
}
