//! How far from the start each page is, where a depth was asked for: a file for each page, beside the engine's own.
//!
//! The jobs of a page differ by its distance, and each of them is once in the run. What is noted here spares most of
//! them: a way that is no shorter leads to nothing new, and a page that is met again on a shorter way passes that on
//! without being fetched again. Without a depth nothing is noted: then a page has one job in the run and no more.
//!
//! What decides is the jobs: a note that is missing or torn costs a request and changes no set of pages. The job at the
//! noted distance is in the store and is not over before what follows from it is there too.

use super::note::Note;
use super::target::Target;
use ring::digest::{SHA256, digest};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What is to be done with a page that a job names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    /// It is new.
    Fetch,
    /// It is known, and this way is no shorter.
    Known,
    /// This came of it, and this way is shorter, or the same way is gone once more after a death.
    Nearer(Note),
    /// This way is shorter, but the page is being fetched on a longer one at this moment.
    Later,
}

struct Known {
    depth: u32,
    /// None while it is being fetched.
    note: Option<Note>,
}

#[derive(Debug)]
pub(super) struct Distances {
    /// None where no depth was asked for.
    dir: Option<PathBuf>,
    /// Two jobs of one page must not both be the first.
    turn: Mutex<()>,
}

impl Distances {
    /// In this directory, if a depth counts; the notes of a crawl that is over are not this one's.
    pub(super) fn open(dir: &Path, counts: bool, continued: bool) -> io::Result<Distances> {
        if !continued && dir.exists() {
            std::fs::remove_dir_all(dir)?;
        }
        if counts {
            std::fs::create_dir_all(dir)?;
        }
        Ok(Distances { dir: counts.then(|| dir.to_owned()), turn: Mutex::new(()) })
    }

    /// A job for this page begins.
    pub(super) fn meet(&self, target: &Target) -> Meeting {
        let Some(file) = self.file(target) else { return Meeting::Fetch };
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let depth = target.depth();
        let note = match read(&file) {
            Some(known) if known.depth < depth => return Meeting::Known,
            Some(Known { depth: longer, note: None }) if longer > depth => return Meeting::Later,
            known => known.and_then(|known| known.note),
        };
        write(&file, depth, note.as_ref());
        note.map_or(Meeting::Fetch, Meeting::Nearer)
    }

    /// This came of the page, for good.
    pub(super) fn done(&self, target: &Target, note: &Note) {
        if let Some(file) = self.file(target) {
            write(&file, target.depth(), Some(note));
        }
    }

    /// It was not: another start will meet it anew.
    pub(super) fn forget(&self, target: &Target) {
        if let Some(file) = self.file(target) {
            // One that stays is met again by the job at its distance.
            let _gone = std::fs::remove_file(file);
        }
    }

    /// A job for it would do nothing.
    pub(super) fn is_known(&self, target: &Target) -> bool {
        self.file(target).and_then(|file| read(&file)).is_some_and(|known| known.depth <= target.depth())
    }

    fn file(&self, target: &Target) -> Option<PathBuf> {
        let whole = digest(&SHA256, target.url.as_str().as_bytes());
        let name: String = whole.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        self.dir.as_ref().map(|dir| dir.join(name))
    }
}

/// `DEPTH`, and below it, where that is known, what came of the page.
fn read(file: &Path) -> Option<Known> {
    let text = std::fs::read_to_string(file).ok()?;
    let (depth, note) = match text.split_once('\n') {
        Some((depth, note)) => (depth, Some(Note::read(note)?)),
        None => (text.as_str(), None),
    };
    Some(Known { depth: depth.parse().ok()?, note })
}

fn write(file: &Path, depth: u32, note: Option<&Note>) {
    let note = note.map(|note| format!("\n{note}")).unwrap_or_default();
    // What cannot be written is not known.
    let _noted = std::fs::write(file, format!("{depth}{note}"));
}

#[cfg(test)]
mod tests {
    use super::super::note::Skipped;
    use super::*;

    fn at(depth: u32) -> Target {
        Target::read(format!("{depth} http://example.org/").as_bytes()).unwrap()
    }

    fn open(dir: &tempfile::TempDir) -> Distances {
        Distances::open(dir.path(), true, true).unwrap()
    }

    #[test]
    fn each_page_is_fetched_once_and_shorter_ways_are_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let distances = open(&dir);
        assert_eq!(distances.meet(&at(5)), Meeting::Fetch);
        assert_eq!((distances.meet(&at(6)), distances.meet(&at(4))), (Meeting::Known, Meeting::Later));
        let page = Note { status: 200, kind: "text/html".into(), bytes: 5, ..Note::default() };
        let moved = Note { status: 302, to: "http://example.org/there".into(), ..Note::default() };
        for note in [page, moved, Note::skipped(Skipped::Robots)] {
            distances.done(&at(5), &note);
            assert_eq!(distances.meet(&at(3)), Meeting::Nearer(note));
            assert_eq!(distances.meet(&at(5)), Meeting::Known);
        }
        assert!(distances.is_known(&at(3)) && !distances.is_known(&at(2)));
        distances.forget(&at(3));
        assert_eq!(distances.meet(&at(9)), Meeting::Fetch);
    }

    /// A process that dies leaves notes of jobs that are started again.
    #[test]
    fn a_job_that_is_started_again_finds_its_own_note() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open(&dir).meet(&at(5)), Meeting::Fetch);
        let after = open(&dir);
        assert_eq!(after.meet(&at(5)), Meeting::Fetch);
        after.done(&at(5), &Note::default());
        assert_eq!(open(&dir).meet(&at(5)), Meeting::Nearer(Note::default()));
        std::fs::write(after.file(&at(5)).unwrap(), "5\n{").unwrap();
        assert_eq!(after.meet(&at(7)), Meeting::Fetch);
        assert_eq!(Distances::open(dir.path(), true, false).unwrap().meet(&at(8)), Meeting::Fetch);
    }

    #[test]
    fn without_a_depth_nothing_is_noted() {
        let distances = Distances::open(Path::new("nowhere"), false, true).unwrap();
        assert_eq!((distances.meet(&at(5)), distances.meet(&at(5))), (Meeting::Fetch, Meeting::Fetch));
        assert!(!distances.is_known(&at(5)));
    }
}
