//! Documents in directories, by their names: what a file's name says of its document, and what becomes of a document
//! when one try of it is over.
//!
//! The last part of a name decides, so a document may be called anything: `x.failed.ready` is the document `x.failed`,
//! and it is ready. Names are bytes. It must not touch a directory.

use crate::outcome::Outcome;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::time::Duration;

/// How often a document is tried, where nobody says otherwise.
pub const TRIES: u32 = 2;
/// The longest name that file systems take.
pub const NAME_MAX: usize = 255;
/// The file that says that nothing more will come.
pub const DONE: &[u8] = b"done";

const READY: &[u8] = b"ready";
const FAILED: &[u8] = b"failed";
const WORKING: &[u8] = b"working";
const WRITING: &[u8] = b"writing";

/// The checked name of a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocId(Box<[u8]>);

impl DocId {
    pub fn new(name: &[u8]) -> Result<DocId, BadDocId> {
        match name {
            b"" => Err(BadDocId::Empty),
            b"." | b".." => Err(BadDocId::Dots),
            [b'-', ..] => Err(BadDocId::Dash),
            _ if name.contains(&b'/') => Err(BadDocId::Slash),
            _ if name.contains(&0) => Err(BadDocId::Nul),
            _ => Ok(DocId(name.into())),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name of its file while it stands so.
    pub fn named(&self, standing: Standing<'_>) -> Vec<u8> {
        Name { document: &self.0, standing }.file()
    }

    /// Refuses a name that is too long for what its file will be called on the way.
    pub fn fits(&self, by: &[u8], extension: &[u8]) -> Result<(), BadDocId> {
        let longest = self.named(Standing::Writing { by, extension }).len();
        match longest.checked_sub(NAME_MAX) {
            None | Some(0) => Ok(()),
            Some(over) => Err(BadDocId::Long { most: self.0.len().saturating_sub(over) }),
        }
    }
}

impl DocId {
    /// The n-th document that a stage makes of this one. Whatever the way through the stages, no two have one name, and
    /// the same one is made again under the same; one that gets too long becomes a digest of itself.
    pub fn made_by(&self, stage: &str, number: usize) -> DocId {
        const LONGEST: usize = 200;
        let name = [&self.0[..], format!(".{stage}{number}").as_bytes()].concat();
        match name.len() <= LONGEST {
            true => DocId(name.into()),
            false => DocId(format!("~{:032x}", digest(&name)).into_bytes().into()),
        }
    }
}

impl DocId {
    /// What the n-th of several of this name is called: `report~2.pdf`. Of a long name the end of its stem goes.
    fn beside(&self, number: u32) -> DocId {
        const LONGEST: usize = 200;
        const EXTENSION: usize = 20;
        let name = &self.0[..];
        let dot = name.iter().rposition(|byte| *byte == b'.');
        let dot = dot.filter(|dot| *dot > 0 && name.len() - dot <= EXTENSION).unwrap_or(name.len());
        let tail = [format!("~{number}").as_bytes(), &name[dot..]].concat();
        let stem = &name[..dot.min(LONGEST - tail.len())];
        DocId([stem, &tail].concat().into())
    }
}

/// The names that documents have got, each held in a few bytes. The same names asked for in the same order are given
/// out the same again.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// By the digest of a name: how many were to be called so.
    counts: HashMap<u128, u32>,
}

impl Given {
    /// A name for one more document that is called so: its own where nobody has it, else one beside it.
    pub fn next(&mut self, doc: DocId) -> DocId {
        let own = digest(&doc.0);
        let Some(mut number) = self.counts.get(&own).copied() else {
            self.counts.insert(own, 1);
            return doc;
        };
        loop {
            number += 1;
            let other = doc.beside(number);
            if let Entry::Vacant(free) = self.counts.entry(digest(&other.0)) {
                free.insert(1);
                self.counts.insert(own, number);
                return other;
            }
        }
    }
}

impl DocId {
    /// What tells this document from any other of its name: the same file, however often it is looked at.
    pub fn key(&self, inode: u64, size: u64, modified: i64) -> String {
        let facts = [inode.to_le_bytes(), size.to_le_bytes(), modified.to_le_bytes()].concat();
        format!("{:032x}", digest(&[&facts[..], &self.0].concat()))
    }
}

/// FNV-1a of 128 bits: names are nobody's secret.
fn digest(bytes: &[u8]) -> u128 {
    let step = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul((1 << 88) + 0x13b);
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step)
}

impl fmt::Display for DocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// Why something cannot be the name of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadDocId {
    Empty,
    Dots,
    Dash,
    Slash,
    Nul,
    Long { most: usize },
}

impl fmt::Display for BadDocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadDocId::Empty => f.write_str("the name of a document is empty"),
            BadDocId::Dots => f.write_str("the name of a document is made of dots alone, which leads elsewhere"),
            BadDocId::Dash => f.write_str("the name of a document begins with `-`, which programs take for an option"),
            BadDocId::Slash => f.write_str("the name of a document has a `/` in it, which leads elsewhere"),
            BadDocId::Nul => f.write_str("the name of a document has a NUL byte in it, which no file name can carry"),
            BadDocId::Long { most } => {
                write!(f, "the name of a document is too long for what its file will be called, expected {most} bytes")
            }
        }
    }
}

impl std::error::Error for BadDocId {}

/// How a document stands, as its file's name has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing<'n> {
    Ready,
    /// A try of it failed, and it waits for another.
    Failed,
    /// A driver has it; ours are numbers, those of others may be anything, also nothing.
    Working {
        by: &'n [u8],
    },
    /// A driver makes it, and it is not whole yet.
    Writing {
        by: &'n [u8],
        extension: &'n [u8],
    },
}

/// A file's name, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'n> {
    /// Not checked: a file may have any name.
    pub document: &'n [u8],
    pub standing: Standing<'n>,
}

impl<'n> Name<'n> {
    /// None where it is no document's.
    pub fn of(file: &'n [u8]) -> Option<Name<'n>> {
        let (rest, last) = cut(file)?;
        match last {
            READY => Some(Name { document: rest, standing: Standing::Ready }),
            FAILED => Some(Name { document: rest, standing: Standing::Failed }),
            WORKING => {
                let (document, by) = cut(rest).unwrap_or((rest, b""));
                Some(Name { document, standing: Standing::Working { by } })
            }
            extension => {
                let rest = cut(rest).filter(|(_, word)| *word == WRITING)?.0;
                let (document, by) = cut(rest).unwrap_or((rest, b""));
                Some(Name { document, standing: Standing::Writing { by, extension } })
            }
        }
    }

    pub fn file(&self) -> Vec<u8> {
        let parts: &[&[u8]] = match self.standing {
            Standing::Ready => &[self.document, READY],
            Standing::Failed => &[self.document, FAILED],
            Standing::Working { by: b"" } => &[self.document, WORKING],
            Standing::Working { by } => &[self.document, by, WORKING],
            Standing::Writing { by: b"", extension } => &[self.document, WRITING, extension],
            Standing::Writing { by, extension } => &[self.document, by, WRITING, extension],
        };
        parts.join(&b'.')
    }

    /// It waits for a driver.
    pub fn waits(&self) -> bool {
        matches!(self.standing, Standing::Ready | Standing::Failed)
    }
}

/// What stands before the last dot, and after it.
fn cut(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    Some((&name[..dot], &name[dot + 1..]))
}

/// An extension of what is being written: any word but those that say how a document stands.
pub fn check_extension(extension: &str) -> Result<(), String> {
    let bytes = extension.as_bytes();
    let plain = !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_alphanumeric());
    match plain && ![READY, FAILED, WORKING, WRITING].contains(&bytes) {
        true => Ok(()),
        false => Err(format!("expected letters and digits, not a word of the queue's own, got: {extension:?}")),
    }
}

/// What becomes of a document when one try of it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Its output goes on, and it is gone.
    Done,
    /// It goes back as it was: nothing was its fault.
    Back,
    /// It has used one more try, and goes to the end of the queue.
    Again { error: String },
    /// It was the last try: set aside with its reason.
    Aside { error: String },
}

/// Settles one try; `used` counts those before it, and `most` is how many there are, nought for no end of them.
pub fn settle(outcome: Outcome, used: u32, most: u32) -> Settlement {
    let charge = |error: String| match most != 0 && used.saturating_add(1) >= most {
        true => Settlement::Aside { error },
        false => Settlement::Again { error },
    };
    match outcome {
        Outcome::Succeeded { .. } => Settlement::Done,
        // Nobody moves a document to another server, and one that was not moved is where it was.
        Outcome::Interrupted | Outcome::Cancelled | Outcome::Moved { .. } | Outcome::NotMoved { .. } => {
            Settlement::Back
        }
        Outcome::FailedForGood { error } => Settlement::Aside { error },
        Outcome::RetryLater { error, .. } | Outcome::Failed { error } | Outcome::Crashed { error } => charge(error),
        Outcome::TimedOut { limit } => charge(format!("ran over its time limit of {limit:?}")),
        // A directory has no place for a time, and a document that came back at once would turn for ever.
        Outcome::Snoozed { .. } => charge("asked to be run again later, and a directory holds no times".into()),
        Outcome::Lost => charge("what ran it died".into()),
    }
}

/// Where the time of a driver went, how many documents it has tried, and how many of them were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub work: Duration,
    /// For documents.
    pub wait: Duration,
    /// For room in the output.
    pub block: Duration,
    pub overhead: Duration,
    pub documents: u64,
    pub done: u64,
}

impl Times {
    pub fn add(&mut self, other: &Times) {
        self.work += other.work;
        self.wait += other.wait;
        self.block += other.block;
        self.overhead += other.overhead;
        self.documents += other.documents;
        self.done += other.done;
    }

    /// Reads what `Display` writes; what is missing is nought.
    pub fn read(text: &str) -> Times {
        let of = |name: &str| {
            let lines = text.lines().filter_map(|line| line.split_once('\t'));
            let mut found = lines.filter(|(word, _)| *word == name).map(|(_, value)| value.trim().parse::<u64>());
            found.next().and_then(Result::ok).unwrap_or(0)
        };
        let time = |name: &str| Duration::from_millis(of(name));
        let (documents, done) = (of("Docs"), of("Done"));
        let (work, wait, block, overhead) = (time("Work"), time("Wait"), time("Block"), time("Overhead"));
        Times { work, wait, block, overhead, documents, done }
    }
}

/// A line each: the name, a tab, milliseconds or documents.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = [("Work", self.work), ("Wait", self.wait), ("Block", self.block), ("Overhead", self.overhead)];
        for (name, time) in of {
            writeln!(f, "{name}\t{}", time.as_millis())?;
        }
        writeln!(f, "Docs\t{}\nDone\t{}", self.documents, self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_the_last_part_says() {
        let by = |by| Standing::Working { by };
        let writing = |by, extension| Standing::Writing { by, extension };
        let cases: [(&[u8], &[u8], Standing<'_>); 16] = [
            (b"doc1.ready", b"doc1", Standing::Ready),
            (b"doc1.failed", b"doc1", Standing::Failed),
            (b"doc1.3.working", b"doc1", by(b"3")),
            (b"doc1.3.writing.xml", b"doc1", writing(b"3", b"xml")),
            (b"a.b.c.ready", b"a.b.c", Standing::Ready),
            (b"a b\n.17.working", b"a b\n", by(b"17")),
            (b"x.ready.ready", b"x.ready", Standing::Ready),
            (b"x.failed.ready", b"x.failed", Standing::Ready),
            (b"x.ready.failed", b"x.ready", Standing::Failed),
            (b"x.1.working.2.working", b"x.1.working", by(b"2")),
            (b"x.1.writing.xml.ready", b"x.1.writing.xml", Standing::Ready),
            (b"x.ready.7.writing.out", b"x.ready", writing(b"7", b"out")),
            (b"\xff\xfe.ready", b"\xff\xfe", Standing::Ready),
            (b"x.host-3.working", b"x", by(b"host-3")),
            (b"x.working", b"x", by(b"")),
            (b".hidden.ready", b".hidden", Standing::Ready),
        ];
        for (file, document, standing) in cases {
            let name = Name::of(file).unwrap();
            assert_eq!((name.document, name.standing), (document, standing), "{}", file.escape_ascii());
            assert_eq!(name.file(), file, "comes back as it was");
            assert_eq!(DocId::new(document).unwrap().named(standing), file);
        }
        let others = [&b"done"[..], b"doc1", b"ready", b"doc1.ready~", b".doc1.ready.swp", b"doc1.READY", b"x.writing"];
        for other in others {
            assert_eq!(Name::of(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn what_cannot_be_a_document_is_refused() {
        let refused = |name: &[u8]| DocId::new(name).unwrap_err();
        assert_eq!(refused(b""), BadDocId::Empty);
        assert_eq!((refused(b"."), refused(b"..")), (BadDocId::Dots, BadDocId::Dots));
        assert_eq!((refused(b"../x"), refused(b"/x")), (BadDocId::Slash, BadDocId::Slash));
        assert_eq!((refused(b"-rf"), refused(b"a\0b")), (BadDocId::Dash, BadDocId::Nul));
        let long = DocId::new(&[b'x'; 240]).unwrap();
        assert_eq!(long.fits(b"123456", b"xml"), Err(BadDocId::Long { most: 236 }));
        assert_eq!(DocId::new(&[b'x'; 236]).unwrap().fits(b"123456", b"xml"), Ok(()));
    }

    #[test]
    fn what_is_made_of_a_document_has_a_name_of_its_own() {
        let doc = DocId::new(b"a").unwrap();
        assert_eq!(doc.made_by("split", 3).as_bytes(), b"a.split3");
        assert_ne!(doc.made_by("p", 1).made_by("q", 1), doc.made_by("q", 1).made_by("p", 1));
        let long = DocId::new(&[b'x'; 200]).unwrap();
        let (one, two) = (long.made_by("s", 1), long.made_by("s", 2));
        assert!(one != two && one == long.made_by("s", 1) && one.as_bytes().len() == 33);
        assert_eq!(doc.key(1, 2, 3), DocId::new(b"a").unwrap().key(1, 2, 3));
        assert!(
            [doc.key(2, 2, 3), doc.key(1, 3, 3), doc.key(1, 2, 4), one.key(1, 2, 3)]
                .iter()
                .all(|k| *k != doc.key(1, 2, 3))
        );
        assert_eq!(digest(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964, "as others compute it");
    }

    #[test]
    fn documents_of_one_name_get_names_beside_each_other() {
        let mut given = Given::default();
        let mut next =
            |name: &str| String::from_utf8(given.next(DocId::new(name.as_bytes()).unwrap()).0.into()).unwrap();
        let cases = [
            ("report.pdf", "report.pdf"),
            ("report.pdf", "report~2.pdf"),
            ("report~3.pdf", "report~3.pdf"),
            ("report.pdf", "report~4.pdf"),
            ("report~2.pdf", "report~2~2.pdf"),
            (".hidden", ".hidden"),
            (".hidden", ".hidden~2"),
            ("plain", "plain"),
            ("plain", "plain~2"),
            ("a.b. of more than an extension", "a.b. of more than an extension"),
            ("a.b. of more than an extension", "a.b. of more than an extension~2"),
        ];
        cases.iter().for_each(|(name, given)| assert_eq!(next(name), *given));
        let long = "x".repeat(232) + ".pdf";
        assert_eq!([next(&long), next(&long), next(&long)].map(|name| name.len()), [236, 200, 200]);
    }

    #[test]
    fn tries_are_counted_and_the_last_sets_aside() {
        let failed = || Outcome::Failed { error: "exit 1".into() };
        let error = || "exit 1".to_owned();
        assert_eq!(settle(failed(), 0, 2), Settlement::Again { error: error() });
        assert_eq!(settle(failed(), 1, 2), Settlement::Aside { error: error() });
        assert_eq!(settle(failed(), 0, 1), Settlement::Aside { error: error() });
        assert_eq!(settle(failed(), 1000, 0), Settlement::Again { error: error() });
        let hopeless = Outcome::FailedForGood { error: error() };
        assert_eq!(settle(hopeless, 0, 0), Settlement::Aside { error: error() });
        assert_eq!(settle(Outcome::Interrupted, 1, 2), Settlement::Back);
        assert!(matches!(settle(Outcome::Lost, 1, 2), Settlement::Aside { .. }), "a crash is a try");
        let snoozed = Outcome::Snoozed { after: Duration::ZERO };
        assert!(matches!(settle(snoozed, 1, 2), Settlement::Aside { .. }), "no document turns for ever");
    }

    #[test]
    fn times_come_back_as_they_were() {
        let (work, wait) = (Duration::from_millis(5), Duration::from_millis(1));
        let overhead = Duration::from_secs(3);
        let times = Times { work, wait, block: Duration::ZERO, overhead, documents: 7, done: 6 };
        assert_eq!(times.to_string(), "Work\t5\nWait\t1\nBlock\t0\nOverhead\t3000\nDocs\t7\nDone\t6\n");
        assert_eq!(Times::read(&times.to_string()), times);
        assert_eq!(Times::read("Docs\tmany\n"), Times::default());
        let mut sum = times;
        sum.add(&times);
        assert_eq!((sum.documents, sum.work), (14, Duration::from_millis(10)));
    }

    #[test]
    fn extensions_are_words_of_their_own() {
        assert_eq!(check_extension("xml"), Ok(()));
        for bad in ["", "ready", "working", "a.b", "a/b", "-"] {
            assert!(check_extension(bad).is_err(), "{bad}");
        }
    }
}
