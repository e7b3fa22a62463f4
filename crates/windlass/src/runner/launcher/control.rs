//! The control and emit files of jobs: a pair per number, made once and used by one job after the other.
//!
//! A job appends lines to them if it has something to say; most have not, so a pair is looked at when its job ends or
//! comes to its time limit, and costs two calls. They lie in a directory of their own, on tmpfs where there is one.
//! A job that runs as another user has a pair that is that user's, in that user's directory. This file owns their
//! names. It must not know what the lines mean, but for `extend`, which moves a deadline.

use super::message::Owner;
use crate::runner::control_dir;
use crate::when;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most bytes that are read of a control file; what is behind them is not heard.
const CONTROL_MAX: u64 = 256 << 10;
/// The most bytes of emitted jobs; one byte more is read, so that too many are noticed.
pub const EMIT_MAX: u64 = 32 << 20;

/// Where the control file of a launcher's number is.
pub(in crate::runner) fn control_path(dir: &Path, launcher: usize, number: u32) -> PathBuf {
    dir.join(format!("{launcher}.{number}.control"))
}

/// Where its emit file is.
pub(in crate::runner) fn emit_path(dir: &Path, launcher: usize, number: u32) -> PathBuf {
    dir.join(format!("{launcher}.{number}.emit"))
}

/// One file and where it should be.
#[derive(Debug)]
struct Open {
    file: File,
    path: PathBuf,
}

impl Open {
    fn make(path: PathBuf, owner: Option<&Owner>) -> io::Result<Open> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))?);
        if let Some(owner) = owner {
            std::os::unix::fs::fchown(&file, Some(owner.uid), Some(owner.gid))?;
        }
        Ok(Open { file, path })
    }

    /// What was written, up to a bound; the file is empty after it. A file that somebody removed is made anew, which
    /// only the server's own user can do.
    fn take(&mut self, most: u64) -> io::Result<Vec<u8>> {
        let meta = self.file.metadata()?;
        if meta.len() == 0 && meta.nlink() > 0 {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; meta.len().min(most) as usize];
        self.file.read_exact_at(&mut bytes, 0)?;
        if meta.nlink() == 0 {
            *self = Open::make(self.path.clone(), None)?;
        }
        self.file.set_len(0)?;
        Ok(bytes)
    }
}

/// All pairs of a launcher.
#[derive(Debug)]
pub(super) struct ControlFiles {
    dir: PathBuf,
    /// What the directories of users begin with.
    of_users: PathBuf,
    launcher: usize,
    pairs: Vec<Option<Pair>>,
}

/// The control and the emit file of one number.
#[derive(Debug)]
struct Pair {
    owner: Option<Owner>,
    files: [Open; 2],
}

impl ControlFiles {
    pub(super) fn new(dir: PathBuf, of_users: PathBuf, launcher: usize) -> ControlFiles {
        ControlFiles { dir, of_users, launcher, pairs: Vec::new() }
    }

    /// Makes the pair of a number if it is not there yet, or is another's; it is empty.
    pub(super) fn prepare(&mut self, number: u32, owner: Option<&Owner>) -> io::Result<()> {
        let at = number as usize;
        if self.pairs.len() <= at {
            self.pairs.resize_with(at + 1, || None);
        }
        if self.pairs[at].as_ref().is_none_or(|pair| pair.owner.as_ref() != owner) {
            let dir = match owner {
                None => self.dir.clone(),
                Some(owner) => {
                    let dir = control_dir::of_user(&self.of_users, owner.uid);
                    control_dir::make_for_user(&dir, owner.gid)?;
                    dir
                }
            };
            let control = Open::make(control_path(&dir, self.launcher, number), owner)?;
            let emit = Open::make(emit_path(&dir, self.launcher, number), owner)?;
            let mut files = [control, emit];
            for open in &mut files {
                open.take(0)?;
            }
            self.pairs[at] = Some(Pair { owner: owner.cloned(), files });
        }
        // A word that came over HTTP as the last job ended may have been too late for it.
        for open in self.pairs[at].iter_mut().flat_map(|pair| &mut pair.files) {
            if open.file.metadata()?.len() > 0 {
                open.file.set_len(0)?;
            }
        }
        Ok(())
    }

    /// Closes the pairs of these numbers, which are made again when they are needed; true where there were any.
    pub(super) fn close(&mut self, which: impl Fn(u32) -> bool) -> bool {
        let mut closed = false;
        for (number, pair) in (0..).zip(&mut self.pairs) {
            closed |= which(number) && pair.take().is_some();
        }
        closed
    }

    /// What a job left in its pair. What cannot be read is as if it had not been written; the job's exit still counts.
    pub(super) fn take(&mut self, number: u32) -> (Vec<u8>, Vec<u8>) {
        let Some(Some(Pair { files: [control, emit], .. })) = self.pairs.get_mut(number as usize) else {
            return Default::default();
        };
        let said = control.take(CONTROL_MAX).and_then(|said| Ok((said, emit.take(EMIT_MAX + 1)?)));
        said.unwrap_or_else(|_| {
            // Whatever is wrong with them, the next job gets new ones.
            self.pairs[number as usize] = None;
            Default::default()
        })
    }

    /// Says something for a job, in the place where that was said before; `place` remembers it. The job may be writing,
    /// too, and nothing of that is touched.
    pub(super) fn say_for(&self, number: u32, said: &[u8], place: &mut Option<u64>) -> io::Result<()> {
        let Some(Some(Pair { files: [control, _], .. })) = self.pairs.get(number as usize) else { return Ok(()) };
        if let Some(at) = *place {
            return control.file.write_all_at(said, at);
        }
        let at = control.file.metadata()?.len();
        let flags = rustix::io::ReadWriteFlags::APPEND;
        rustix::io::pwritev2(&control.file, &[io::IoSlice::new(said)], at, flags)?;
        let mut there = vec![0; said.len()];
        control.file.read_exact_at(&mut there, at)?;
        // Where the job wrote at the same moment it stands further on: next time it is said anew.
        *place = (there == said).then_some(at);
        Ok(())
    }

    /// All that a job has asked for beyond its time limit, in its `extend` lines so far.
    pub(super) fn extensions(&self, number: u32) -> Duration {
        let Some(Some(Pair { files: [control, _], .. })) = self.pairs.get(number as usize) else {
            return Duration::ZERO;
        };
        let length = control.file.metadata().map_or(0, |meta| meta.len().min(CONTROL_MAX));
        let mut bytes = vec![0; length as usize];
        if control.file.read_exact_at(&mut bytes, 0).is_err() {
            return Duration::ZERO;
        }
        let lines = bytes.split(|b| *b == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
        let asked = lines.filter_map(|line| when::duration(line.trim().strip_prefix("extend ")?.trim()).ok());
        asked.fold(Duration::ZERO, Duration::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_used_again_and_survives_its_removal() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = ControlFiles::new(dir.path().to_owned(), dir.path().join("as-"), 1);
        let (control, emit) = (control_path(dir.path(), 1, 2), emit_path(dir.path(), 1, 2));
        for round in 0..3 {
            files.prepare(2, None).unwrap();
            std::fs::write(&control, format!("phase {round}\nextend 2s\nextend soon\nextend 1m\n")).unwrap();
            std::fs::write(&emit, "q\tx\n").unwrap();
            assert_eq!(files.extensions(2), Duration::from_secs(62));
            let (said, emitted) = files.take(2);
            assert!(said.starts_with(format!("phase {round}\n").as_bytes()) && emitted == b"q\tx\n");
            assert_eq!(files.take(2), Default::default());
            assert!(files.close(|number| number == 2) && !files.close(|_| true));
            files.prepare(2, None).unwrap();
            if round == 1 {
                std::fs::remove_file(&control).unwrap();
                assert_eq!(files.take(2), Default::default());
                assert!(control.exists(), "it is there again for the next job");
            }
        }
    }
}
