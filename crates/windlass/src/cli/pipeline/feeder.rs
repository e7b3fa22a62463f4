//! Where the input of a pipeline comes from: standard input, or the command of a stage that has no input; and which of
//! its lines have become documents already.
//!
//! A feeder that was killed with its pipeline is run again, and writes its lines again. The journal has those that were
//! fed, so that each is fed once, in whatever order it writes them. It is synced before the document gets its name,
//! and goes when the pipeline has come to its end.

use crate::config::Feeder;
use crate::error::{Failure, Kind};
use rustix::fs::FlockOperation;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Who writes the lines.
pub(super) struct Source {
    feeder: Option<(String, Child)>,
}

impl Source {
    pub(super) fn open(feeder: Option<&Feeder>) -> Result<Source, Failure> {
        let Some(Feeder { name, argv }) = feeder else { return Ok(Source { feeder: None }) };
        let words: Vec<&OsStr> = argv.iter().map(|word| OsStr::from_bytes(word)).collect();
        let mut command = Command::new(words.first().copied().unwrap_or_default());
        let spawned = command.args(words.iter().skip(1)).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let child = spawned.map_err(|e| {
            let program = command.get_program().to_string_lossy().into_owned();
            Failure::new(Kind::Config, format!("cannot start the feeder {name}: {program}: {e}"))
        })?;
        Ok(Source { feeder: Some((name.clone(), child)) })
    }

    pub(super) fn lines(&mut self) -> Result<File, Failure> {
        let cannot = |e: std::io::Error| Failure::io("cannot read standard input", &e);
        match self.feeder.as_mut().and_then(|(_, child)| child.stdout.take()) {
            Some(output) => Ok(File::from(OwnedFd::from(output))),
            None => rustix::io::dup(std::io::stdin()).map(File::from).map_err(|e| cannot(e.into())),
        }
    }

    /// All of it was read, or nobody wants more of it. A feeder that fails has not said all.
    pub(super) fn end(&mut self, interrupted: bool) -> Result<(), Failure> {
        let Some((name, child)) = &mut self.feeder else { return Ok(()) };
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot end the feeder {name}"), &e);
        if interrupted {
            child.kill().map_err(cannot)?;
        }
        let status = child.wait().map_err(cannot)?;
        if interrupted || status.success() {
            return Ok(());
        }
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or_default()),
        };
        Err(Failure::new(Kind::JobFailed, format!("the feeder {name} ended with {how}, expected 0")))
    }
}

impl Drop for Source {
    /// Whoever gives up over a line leaves no process behind.
    fn drop(&mut self) {
        if let Some((_, child)) = &mut self.feeder {
            // One that has ended was waited for.
            let _ended = child.kill();
            let _ended = child.wait();
        }
    }
}

/// The lines that a feeder has fed, each on disk before its document has its name; the first line is what documents
/// without a name of their own are called, before their number.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    pub(super) stem: String,
    /// Lines that earlier processes fed, and how often.
    fed: HashMap<Vec<u8>, u32>,
    pub(super) count: u64,
}

impl Journal {
    /// Opens it for this process alone; a new one has this stem. What was fed before is told, line by line.
    pub(super) fn open(path: &Path, stem: &str, mut tell: impl FnMut(&[u8])) -> Result<Journal, Failure> {
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot use {}", path.display()), &e);
        let mut file = File::options().create(true).read(true).append(true).open(path).map_err(cannot)?;
        // What is noted in it must not be in a file that a power cut leaves without a name.
        let into = path.parent().map_or(Ok(()), |parent| File::open(parent).and_then(|parent| parent.sync_all()));
        into.map_err(cannot)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let text = format!("another process feeds this pipeline: it holds {}", path.display());
            return Err(Failure::new(Kind::TryLater, text));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(cannot)?;
        // What has no end was being written when its process died, and was not fed.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).map_err(cannot)?;
        let mut lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let stem = match lines.next() {
            Some(stem) => String::from_utf8_lossy(stem).into_owned(),
            None => {
                file.write_all(format!("{stem}\n").as_bytes()).map_err(cannot)?;
                stem.to_owned()
            }
        };
        let (mut fed, mut count) = (HashMap::new(), 0);
        for line in lines {
            *fed.entry(line.to_vec()).or_default() += 1;
            count += 1;
            tell(line);
        }
        Ok(Journal { path: path.to_owned(), file, stem, fed, count })
    }

    /// Whether an earlier process fed this line; it is told once for each time.
    pub(super) fn has_fed(&mut self, line: &[u8]) -> bool {
        let left = self.fed.get_mut(line).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }

    pub(super) fn note(&mut self, line: &[u8]) -> Result<(), Failure> {
        let noted = self.file.write_all(&[line, b"\n"].concat()).and_then(|()| self.file.sync_all());
        noted.map_err(|e| Failure::io(format_args!("cannot use {}", self.path.display()), &e))
    }

    /// All of it has come to its end: the next run feeds anew.
    pub(super) fn forget(self) -> Result<(), Failure> {
        let removed = std::fs::remove_file(&self.path);
        removed.map_err(|e| Failure::io(format_args!("cannot remove {}", self.path.display()), &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_knows_what_was_fed_how_often_and_nothing_that_was_not_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fed");
        let mut told = Vec::new();
        let mut journal = Journal::open(&path, "one", |line| told.push(line.to_vec())).unwrap();
        assert!(!journal.has_fed(b"a") && told.is_empty());
        for line in [&b"a"[..], b"b\tc", b"a"] {
            journal.note(line).unwrap();
        }
        assert_eq!(Journal::open(&path, "two", |_| ()).err().unwrap().kind, Kind::TryLater, "one at a time");
        journal.file.write_all(b"half").unwrap();
        drop(journal);
        let mut journal = Journal::open(&path, "two", |line| told.push(line.to_vec())).unwrap();
        assert_eq!((journal.stem.as_str(), journal.count), ("one", 3));
        assert_eq!(told, [&b"a"[..], b"b\tc", b"a"]);
        assert!(journal.has_fed(b"a") && journal.has_fed(b"b\tc") && journal.has_fed(b"a"));
        assert!(!journal.has_fed(b"a") && !journal.has_fed(b"half"));
        journal.note(b"d").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one\na\nb\tc\na\nd\n");
        journal.forget().unwrap();
        assert_eq!(Journal::open(&path, "three", |_| ()).unwrap().stem, "three");
    }
}
