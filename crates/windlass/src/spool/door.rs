//! What people do with a queue by hand: put documents in, give those that were set aside their tries back; `take` takes
//! them out. It does the copy, the syncs and the rename, so that nobody has to remember their order.

use super::directory::Directory;
use super::queue::{FAILED, Queue};
use crate::api::base64;
use crate::error::{Failure, Kind};
use std::io::{ErrorKind, Read, Result};
use std::ops::ControlFlow;
use windlass_core::document::{DONE, DocId, Name, Standing};

/// A number as long as ours are, and the usual extension: what a name must have room for on its way.
const LONGEST: (&[u8], &[u8]) = (b"999999", b"xml");

/// The name of a document, or the sentence why it cannot be one.
pub fn doc_id(name: &[u8]) -> std::result::Result<DocId, Failure> {
    DocId::new(name).map_err(|why| Failure::new(Kind::BadData, format!("{}: {why}", String::from_utf8_lossy(name))))
}

/// The same of one that is to go into a queue: its file must have room for what it will be called on the way.
pub fn doc_id_that_fits(name: &[u8]) -> std::result::Result<DocId, Failure> {
    let doc = doc_id(name)?;
    let fits = doc.fits(LONGEST.0, LONGEST.1);
    fits.map_err(|why| Failure::new(Kind::BadData, format!("{doc}: {why}")))?;
    Ok(doc)
}

/// What came of one document that somebody asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Handed {
    Yes,
    /// There is no such document, or somebody else was first.
    NotThere,
    /// It stays where it was, for this reason.
    Refused(String),
}

impl Queue {
    /// Puts a document in; it is there whole and on disk when this comes back. False where one of its name waits.
    pub fn put(&self, doc: &DocId, body: &mut impl Read) -> Result<bool> {
        let temporary = self.sidecar.temporary();
        self.sidecar.root.remove(&temporary)?;
        let mut file = self.sidecar.root.create(&temporary)?;
        let written = std::io::copy(body, &mut file).and_then(|_| file.sync_all());
        let named = doc.named(Standing::Ready);
        let placed = written.and_then(|()| self.sidecar.root.place_new(&temporary, &self.directory, &named));
        if placed.is_err() {
            // A half of it is nobody's.
            self.sidecar.root.remove(&temporary)?;
        }
        match placed {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            placed => placed.and_then(|()| self.directory.sync()).map(|()| true),
        }
    }

    /// The documents that were set aside.
    pub fn set_aside_names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        if let Some(failed) = self.directory.existing(FAILED)? {
            failed.each_name(|file| {
                let aside = Name::of(file).filter(|name| name.standing == Standing::Failed);
                names.extend(aside.map(|name| name.document.to_vec()));
                ControlFlow::Continue(())
            })?;
        }
        names.sort();
        Ok(names)
    }

    /// Gives a document that was set aside, or that waits for another try, all its tries back.
    pub fn retry(&self, doc: &DocId) -> Result<Handed> {
        let failed = doc.named(Standing::Failed);
        if self.directory.has(&failed)? {
            return self.make_ready(&self.directory, &failed, doc);
        }
        let Some(aside) = self.directory.existing(FAILED)? else { return Ok(Handed::NotThere) };
        let reason = [doc.as_bytes(), b".reason"].concat();
        let called = match DocId::new(&called(&aside, doc.as_bytes(), &reason)?) {
            Ok(called) => called,
            Err(why) => return Ok(Handed::Refused(why.to_string())),
        };
        let handed = self.make_ready(&aside, &failed, &called)?;
        if handed == Handed::Yes {
            aside.remove(&reason)?;
        }
        Ok(handed)
    }

    fn make_ready(&self, from: &Directory, file: &[u8], doc: &DocId) -> Result<Handed> {
        if !from.has(file)? {
            return Ok(Handed::NotThere);
        }
        if self.directory.has(&doc.named(Standing::Ready))? {
            return Ok(Handed::Refused("a document of its name waits in the queue".into()));
        }
        self.sidecar.forget(doc)?;
        match from.rename_new(file, &self.directory, &doc.named(Standing::Ready)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Handed::NotThere),
            renamed => renamed.and_then(|()| self.directory.sync()).map(|()| Handed::Yes),
        }
    }

    /// Nobody may be there any more to take what comes now.
    pub fn refuse_if_closed(&self) -> std::result::Result<(), Failure> {
        let place = self.directory.path().display();
        match self.directory.has(DONE) {
            Ok(false) => Ok(()),
            Ok(true) => {
                let text = format!("{place} has a file `done`: whoever worked there may have ended");
                Err(Failure::new(Kind::Conflict, text).hint("remove the file and start the drivers again"))
            }
            Err(error) => Err(Failure::io(format_args!("cannot look into {place}"), &error)),
        }
    }
}

/// What a document was called that was set aside beside another of its name, `DOC~NUMBER`; else as its file is.
fn called(aside: &Directory, stem: &[u8], reason: &[u8]) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    if let Some(mut file) = aside.open_file(reason, false)? {
        file.read_to_end(&mut text)?;
    }
    let told = serde_json::from_slice::<serde_json::Value>(&text).unwrap_or_default();
    // A name that is no text stands there exactly as well.
    let exact = told["document_base64"].as_str().and_then(base64::decode);
    let name = exact.unwrap_or_else(|| told["document"].as_str().unwrap_or_default().as_bytes().to_vec());
    let cut = stem.iter().rposition(|byte| *byte == b'~').map(|at| (&stem[..at], &stem[at + 1..]));
    // A long name was cut for the number.
    let beside = cut.is_some_and(|(begin, number)| {
        name.starts_with(begin) && !number.is_empty() && number.iter().all(u8::is_ascii_hexdigit)
    });
    Ok(if beside { name } else { stem.to_vec() })
}
