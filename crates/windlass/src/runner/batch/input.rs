//! The standard input of a batch's process: its lines, whole and in the kernel's hands before the process begins.
//!
//! What fits into a pipe goes into one: the kernel gives a pipe's pages out and takes them back for half of what those
//! of a file in memory cost. More than a pipe holds goes into such a file. Nobody feeds a process while it runs: a
//! server that dies leaves no half line behind for it to read. It must not know what a line says.

use super::super::Start;
use super::super::lines::Layer;
use super::super::spoken::Mint;
use crate::without::memory_file;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use windlass_core::policy::Framing;

/// So much is gathered for one write: it stays in the processor's cache on its way.
const GATHERED: usize = 128 << 10;
/// The most that a pipe holds where nobody has allowed more.
const PIPE_MOST: usize = 1 << 20;
/// A write begins on a page of its own, and the last one may need another.
const PAGE: usize = 4096;

/// Lines on their way to a process.
#[derive(Debug)]
pub(super) struct Input {
    into: Into,
    layer: Layer,
    gathered: Vec<u8>,
    laid: u64,
}

#[derive(Debug)]
enum Into {
    Pipe { theirs: OwnedFd, ours: OwnedFd },
    File(File),
}

impl Input {
    /// For lines of about so many bytes, each with a token where there are any.
    pub(super) fn new(expected: u64, mint: Option<Mint>) -> io::Result<Input> {
        let into = match pipe_for(expected)? {
            Some((theirs, ours)) => Into::Pipe { theirs, ours },
            None => Into::File(file()?),
        };
        let gathered = Vec::with_capacity(GATHERED + PAGE);
        Ok(Input { into, layer: Layer::with(mint), gathered, laid: 0 })
    }

    /// Adds the line of one job; the inner error is that of `Layer::add`.
    pub(super) fn add(&mut self, start: &Start, at: u16, framing: Framing) -> io::Result<Result<(), String>> {
        let added = self.layer.add(start, at, framing, &mut self.gathered);
        if self.gathered.len() >= GATHERED {
            self.write()?;
        }
        Ok(added)
    }

    pub(super) fn len(&self) -> u64 {
        self.laid + self.gathered.len() as u64
    }

    fn write(&mut self) -> io::Result<()> {
        let mut left = &self.gathered[..];
        while !left.is_empty() {
            match &mut self.into {
                Into::Pipe { theirs, ours } => match rustix::io::write(ours, left) {
                    Ok(written) => left = &left[written..],
                    Err(Errno::INTR) => {}
                    // It is more than was expected.
                    Err(Errno::AGAIN) => {
                        let laid = self.laid + (self.gathered.len() - left.len()) as u64;
                        self.into = Into::File(moved(theirs, laid)?);
                    }
                    Err(error) => return Err(error.into()),
                },
                Into::File(file) => {
                    // By position, so that the reader begins at the beginning.
                    let at = self.laid + (self.gathered.len() - left.len()) as u64;
                    file.write_all_at(left, at)?;
                    left = &[];
                }
            }
        }
        self.laid += self.gathered.len() as u64;
        self.gathered.clear();
        Ok(())
    }

    /// What the process reads, with all lines in it and their end behind them.
    pub(super) fn finish(mut self) -> io::Result<File> {
        self.write()?;
        Ok(match self.into {
            Into::Pipe { theirs, .. } => theirs.into(),
            Into::File(file) => file,
        })
    }
}

fn file() -> io::Result<File> {
    Ok(memory_file("windlass-lines")?)
}

/// A pipe that takes so much without anybody reading, its end for reading first; none where none can.
fn pipe_for(expected: u64) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    let bytes = usize::try_from(expected).map_or(PIPE_MOST, |bytes| bytes.min(PIPE_MOST));
    let room = bytes + (2 + bytes / GATHERED) * PAGE;
    if room > PIPE_MOST {
        return Ok(None);
    }
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    // Who has many pipes may be refused a large one.
    let large_enough = fcntl_getpipe_size(&ours)? >= room || fcntl_setpipe_size(&ours, room).is_ok();
    if !large_enough {
        return Ok(None);
    }
    let flags = rustix::fs::fcntl_getfl(&ours)?;
    rustix::fs::fcntl_setfl(&ours, flags | OFlags::NONBLOCK)?;
    Ok(Some((theirs, ours)))
}

/// A file with the first bytes of a pipe.
fn moved(pipe: &OwnedFd, bytes: u64) -> io::Result<File> {
    let (file, mut laid) = (file()?, Vec::new());
    File::from(pipe.try_clone()?).take(bytes).read_to_end(&mut laid)?;
    file.write_all_at(&laid, 0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;

    /// What a process reads of a thousand jobs, so many times over, and whether it is a pipe.
    fn laid(times: usize, expected: u64) -> (Vec<u8>, bool) {
        let start = start(1, 1, 1000);
        let mut input = Input::new(expected, None).unwrap();
        for position in (0..times).flat_map(|_| 0..1000) {
            input.add(&start, position, Framing::Json).unwrap().unwrap();
        }
        let length = input.len();
        let mut file = input.finish().unwrap();
        let is_pipe = !file.metadata().unwrap().is_file();
        let mut text = Vec::new();
        file.read_to_end(&mut text).unwrap();
        assert_eq!(text.len() as u64, length);
        (text, is_pipe)
    }

    #[test]
    fn a_process_reads_all_lines_and_their_end_whatever_was_expected() {
        let (mut once, start) = (Vec::new(), start(1, 1, 1000));
        let mut layer = Layer::default();
        (0..1000).for_each(|position| layer.add(&start, position, Framing::Json, &mut once).unwrap());
        for (times, expected, pipe) in [
            (0, 0, true),
            (1, 100_000, true),
            (4, 400_000, true),
            (4, PIPE_MOST as u64, false),
            (4, u64::MAX, false),
            // A pipe that turns out to be too small, at its first write and at a later one.
            (4, 100, false),
            (8, 200_000, false),
        ] {
            let (text, is_pipe) = laid(times, expected);
            assert_eq!(is_pipe, pipe, "{times} times, {expected} expected");
            assert!(text == once.repeat(times), "{times} times, {expected} expected: other lines");
        }
    }
}
