//! A place with an input and an output, and eyes on what is in them.

use crate::rig::{Process, Rig, Told};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;

pub(crate) struct Spool {
    pub(crate) rig: Rig,
    pub(crate) input: PathBuf,
    pub(crate) output: PathBuf,
}

/// What a directory holds, by name: the contents of its files; directories have none.
pub(crate) type Listing = BTreeMap<OsString, Vec<u8>>;

impl Spool {
    pub(crate) fn new() -> Spool {
        let spool = Spool::at("");
        std::fs::create_dir(&spool.input).unwrap();
        spool
    }

    /// In a directory of the rig's place, where nothing is made yet.
    pub(crate) fn at(place: &str) -> Spool {
        let rig = Rig::bare();
        let (input, output) = (rig.path(place).join("in"), rig.path(place).join("out"));
        Spool { rig, input, output }
    }

    /// As a program that knows the convention: another name first, then the rename.
    pub(crate) fn put(&self, doc: impl AsRef<[u8]>, text: &str) {
        let name = OsString::from_vec([doc.as_ref(), b".ready"].concat());
        let hidden = self.input.join("being-written");
        std::fs::write(&hidden, text).unwrap();
        std::fs::rename(hidden, self.input.join(name)).unwrap();
    }

    /// The same, so much later that the clock of the file system tells it.
    pub(crate) fn put_later(&self, doc: &str, text: &str) {
        let newest =
            || std::fs::metadata(self.input.join("clock")).map(|meta| (meta.ctime(), meta.ctime_nsec())).unwrap();
        std::fs::write(self.input.join("clock"), "").unwrap();
        let before = newest();
        while newest() == before {
            std::fs::rename(self.input.join("clock"), self.input.join("clock-moved")).unwrap();
            std::fs::rename(self.input.join("clock-moved"), self.input.join("clock")).unwrap();
        }
        std::fs::remove_file(self.input.join("clock")).unwrap();
        self.put(doc, text);
    }

    pub(crate) fn put_many(&self, count: usize) {
        (0..count).for_each(|n| self.put(format!("doc{n}"), &format!("text {n}")));
    }

    /// Nothing more will come.
    pub(crate) fn close(&self) {
        std::fs::write(self.input.join("done"), "").unwrap();
    }

    pub(crate) fn words<'w>(&'w self, options: &[&'w str], command: &[&'w str]) -> Vec<&'w OsStr> {
        let places = ["drive".as_ref(), "--in".as_ref(), self.input.as_os_str()];
        let output = ["--out".as_ref(), self.output.as_os_str()];
        let options = options.iter().map(|word| OsStr::new(*word));
        let command = std::iter::once(OsStr::new("--")).chain(command.iter().map(|word| OsStr::new(*word)));
        places.into_iter().chain(output).chain(options).chain(command).collect()
    }

    /// Drivers from the input to the output.
    pub(crate) fn start(&self, options: &[&str], command: &[&str]) -> Process {
        self.rig.start(&self.words(options, command), Stdio::null())
    }

    /// The same to their end.
    #[track_caller]
    pub(crate) fn drive(&self, options: &[&str], command: &[&str]) -> Told {
        self.start(options, command).end()
    }

    pub(crate) fn inputs(&self) -> Listing {
        listing(&self.input)
    }

    /// Without the sidecar of the next stage.
    pub(crate) fn outputs(&self) -> Listing {
        let mut listing = listing(&self.output);
        listing.remove(OsStr::new(".windlass"));
        listing
    }

    pub(crate) fn aside(&self) -> Listing {
        listing(&self.input.join("failed"))
    }

    /// Nothing of any document is left in the input.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        let keys = |dir: &std::path::Path| listing(dir).into_keys().collect::<Vec<OsString>>();
        let is_left = |name: &OsString| !name.to_str().is_some_and(|name| OURS.contains(&name));
        let left: Vec<OsString> = keys(&self.input).into_iter().filter(is_left).collect();
        assert_eq!((left, keys(&self.input.join(".windlass/tries"))), Default::default());
    }

    /// Nobody is left who has a number.
    #[track_caller]
    pub(crate) fn is_left_by_all(&self) {
        assert_eq!(listing(&self.input.join(".windlass/drivers")).into_keys().next(), None);
    }
}

const OURS: [&str; 3] = [".windlass", "done", "failed"];

pub(crate) fn listing(dir: &std::path::Path) -> Listing {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let entries = entries.map(|entry| {
        let path = entry.unwrap().path();
        let is_file = path.symlink_metadata().is_ok_and(|meta| meta.is_file());
        let text = if is_file { std::fs::read(&path).unwrap_or_default() } else { Vec::new() };
        (path.file_name().unwrap().to_owned(), text)
    });
    entries.collect()
}

pub(crate) fn name(bytes: &[u8]) -> OsString {
    OsStr::from_bytes(bytes).to_owned()
}
