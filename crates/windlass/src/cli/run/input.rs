//! The lines of a run's input, with their position and running hash, readable again until the run is known.
//!
//! Empty lines are nothing, as everywhere: neither the count nor the hash knows of them.
//! An unfinished run is continued only if the input begins with the lines it has taken. Until that is certain
//! the beginning can be read again: a file by seeking, a pipe out of a scratch file. Lines are handed out as soon
//! as they are there; nothing here waits for more of them.
//!
//! Rows and objects are lines by the time they are counted and hashed, so that all of this holds for them, too; what is
//! read again is what they were made of.

use crate::cli::parts;
use crate::cli::rows::{Converted, Rows};
use crate::error::{Failure, Kind};
use crate::store::Taken;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use windlass_core::job::DATA_MAX;

/// Lines in one batch at most.
pub(super) const BATCH_LINES: u64 = 1000;
/// A batch ends with the line that reaches this.
const BATCH_BYTES: usize = 1 << 20;
const READ: usize = 1 << 16;

/// How the beginning of the input can be read again.
#[derive(Debug)]
enum Memory {
    Seekable {
        start: u64,
    },
    Copied {
        copy: File,
        replaying: bool,
    },
    /// Not again, but the rest of the copy has still to be read.
    Last {
        copy: File,
    },
    Forgotten,
}

/// Standard input as it is.
#[derive(Debug)]
struct Source {
    file: File,
    memory: Memory,
}

/// Where the lines come from.
#[derive(Debug)]
enum Lines {
    Source(Source),
    Rows(Converted<Source>),
}

/// The input of a `windlass run`.
#[derive(Debug)]
pub(super) struct Input {
    lines: Lines,
    /// What a line ends with.
    separator: u8,
    buffer: Vec<u8>,
    /// The part of the buffer before this is consumed.
    start: usize,
    ended: bool,
    at: Taken,
}

/// Whole lines that wait in the buffer, each with its newline, and perhaps empty ones among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    bytes: usize,
    pub(super) after: Taken,
}

/// What comparing the input with what a run has taken came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    Same,
    Different,
}

impl Input {
    /// `scratch` is an empty file that nobody else has; it is used only for what cannot be seeked.
    pub(super) fn new(mut file: File, scratch: File, rows: Option<Rows>) -> Input {
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let memory = match file.stream_position() {
            Ok(start) if regular => Memory::Seekable { start },
            _ => Memory::Copied { copy: scratch, replaying: false },
        };
        let source = Source { file, memory };
        let lines = match rows {
            None => Lines::Source(source),
            Some(rows) => Lines::Rows(Converted::new(rows, source)),
        };
        Input { lines, separator: b'\n', buffer: Vec::new(), start: 0, ended: false, at: Taken::default() }
    }

    /// Lines that end with another byte, and may have newlines in them.
    pub(super) fn ending_with(self, separator: u8) -> Input {
        Input { separator, ..self }
    }

    /// How much has been consumed.
    pub(super) fn at(&self) -> Taken {
        self.at
    }

    /// The next lines, at most `most` of them; waits only while there is no whole line. `None` is the end.
    pub(super) fn peek(&mut self, most: u64) -> Result<Option<Batch>, Failure> {
        loop {
            let empty = self.buffer[self.start..].iter().take_while(|byte| **byte == self.separator).count();
            self.start += empty;
            let waiting = &self.buffer[self.start..];
            if let Some(batch) = whole_lines(waiting, self.separator, self.at, most)? {
                return Ok(Some(batch));
            }
            if waiting.len() > DATA_MAX {
                return Err(too_long(self.at.lines + 1));
            }
            match (self.ended, waiting.is_empty()) {
                (true, true) => return Ok(None),
                (true, false) => self.buffer.push(self.separator),
                (false, _) => self.fill()?,
            }
        }
    }

    /// True where nothing follows what was consumed. Does not wait: an input that may still come is not over.
    pub(super) fn is_over(&mut self) -> Result<bool, Failure> {
        let empty = self.buffer[self.start..].iter().all(|byte| *byte == self.separator);
        if empty && !self.ended && at_hand(&self.lines.source().file) {
            self.fill()?;
            return Ok(self.ended);
        }
        Ok(empty && self.ended)
    }

    /// The bytes of a batch.
    pub(super) fn bytes(&self, batch: Batch) -> &[u8] {
        &self.buffer[self.start..self.start + batch.bytes]
    }

    pub(super) fn consume(&mut self, batch: Batch) {
        self.start += batch.bytes;
        self.at = batch.after;
    }

    /// Reads on to where the run is; the same only if the hash is, and if nothing follows what must be complete.
    pub(super) fn reach(&mut self, taken: Taken, complete: bool) -> Result<Reached, Failure> {
        while self.at.lines < taken.lines {
            match self.peek((taken.lines - self.at.lines).min(BATCH_LINES))? {
                Some(batch) => self.consume(batch),
                None => return Ok(Reached::Different),
            }
        }
        let same = self.at == taken && (!complete || self.peek(1)?.is_none());
        Ok(if same { Reached::Same } else { Reached::Different })
    }

    /// Back to the first line.
    pub(super) fn rewind(&mut self) -> Result<(), Failure> {
        self.lines.source_mut().rewind().map_err(|e| Failure::io("cannot read the input again", &e))?;
        if let Lines::Rows(rows) = &mut self.lines {
            rows.restart();
        }
        self.buffer.clear();
        (self.start, self.ended, self.at) = (0, false, Taken::default());
        Ok(())
    }

    /// The run is known: nothing will be read twice any more.
    pub(super) fn forget(&mut self) {
        self.lines.source_mut().forget();
    }

    fn fill(&mut self) -> Result<(), Failure> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let held = self.buffer.len();
        self.buffer.resize(held + READ, 0);
        let into = &mut self.buffer[held..];
        let read = match &mut self.lines {
            Lines::Source(source) => source.read(into),
            Lines::Rows(rows) => rows.read(into),
        };
        self.buffer.truncate(held + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => self.ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(parts::unreadable(&error)),
        }
        Ok(())
    }
}

impl Lines {
    fn source(&self) -> &Source {
        match self {
            Lines::Source(source) => source,
            Lines::Rows(rows) => rows.source(),
        }
    }

    fn source_mut(&mut self) -> &mut Source {
        match self {
            Lines::Source(source) => source,
            Lines::Rows(rows) => rows.source_mut(),
        }
    }
}

impl Source {
    fn rewind(&mut self) -> std::io::Result<()> {
        match &mut self.memory {
            Memory::Seekable { start } => self.file.seek(SeekFrom::Start(*start)).map(drop),
            Memory::Copied { copy, replaying } => {
                *replaying = true;
                copy.rewind()
            }
            Memory::Last { .. } | Memory::Forgotten => Err(ErrorKind::NotSeekable.into()),
        }
    }

    fn forget(&mut self) {
        self.memory = match std::mem::replace(&mut self.memory, Memory::Forgotten) {
            Memory::Copied { copy, replaying: true } => Memory::Last { copy },
            _ => Memory::Forgotten,
        };
    }
}

impl Read for Source {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if let Memory::Copied { copy, replaying: true } | Memory::Last { copy } = &mut self.memory {
            let read = copy.read(into)?;
            if read > 0 {
                return Ok(read);
            }
        }
        let read = self.file.read(into)?;
        match &mut self.memory {
            Memory::Copied { copy, replaying } => {
                *replaying = false;
                copy.write_all(&into[..read])?;
            }
            Memory::Last { .. } => self.memory = Memory::Forgotten,
            Memory::Seekable { .. } | Memory::Forgotten => {}
        }
        Ok(read)
    }
}

/// True where reading would not wait: there are bytes, or the end.
pub(super) fn at_hand(source: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(source, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The batch at the head of the buffer, if there is a whole line.
fn whole_lines(waiting: &[u8], separator: u8, at: Taken, most: u64) -> Result<Option<Batch>, Failure> {
    let mut bytes = 0;
    let mut after = at;
    for end in memchr::memchr_iter(separator, waiting) {
        if after.lines - at.lines == most || bytes >= BATCH_BYTES {
            break;
        }
        if end - bytes > DATA_MAX {
            return Err(too_long(after.lines + 1));
        }
        if end > bytes {
            after = Taken { lines: after.lines + 1, hash: hashed(after.hash, &waiting[bytes..=end]) };
        }
        bytes = end + 1;
    }
    Ok((bytes > 0).then_some(Batch { bytes, after }))
}

/// In the manner of FNV-1a, from nought, so that a run that has taken nothing has the hash of nothing.
pub(super) fn hashed(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_add(1).wrapping_mul(0x0000_0100_0000_01b3))
}

fn too_long(line: u64) -> Failure {
    Failure::new(Kind::BadData, format!("line {line} of the input has more than {DATA_MAX} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(bytes: &[u8]) -> Input {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        Input::new(file, tempfile::tempfile().unwrap(), None)
    }

    fn piped(bytes: &[u8]) -> Input {
        let (read, write) = rustix::pipe::pipe().unwrap();
        File::from(write).write_all(bytes).unwrap();
        Input::new(File::from(read), tempfile::tempfile().unwrap(), None)
    }

    fn all(input: &mut Input, most: u64) -> Vec<String> {
        let mut batches = Vec::new();
        while let Some(batch) = input.peek(most).unwrap() {
            batches.push(String::from_utf8(input.bytes(batch).to_vec()).unwrap());
            input.consume(batch);
        }
        batches
    }

    #[test]
    fn lines_come_in_batches_and_the_last_needs_no_newline() {
        let mut input = input(b"a\n\nb\r\nc");
        assert_eq!(all(&mut input, 2), ["a\n\nb\r\n", "c\n"]);
        assert_eq!(input.at(), Taken { lines: 3, hash: hashed(0, b"a\nb\r\nc\n") });
        assert_eq!(all(&mut super::tests::input(b""), 2), [""; 0]);
    }

    #[test]
    fn empty_lines_are_not_counted_wherever_a_batch_ends() {
        let taken = Taken { lines: 2, hash: hashed(0, b"a\nb\n") };
        for text in ["a\nb\n", "\n\na\n\n\nb\n\n", "a\n\nb", "\na\nb\n\n"] {
            for most in [1, 2, 9] {
                let mut input = input(text.as_bytes());
                all(&mut input, most);
                assert_eq!(input.at(), taken, "{text:?} by {most}");
            }
            assert_eq!(input(text.as_bytes()).reach(taken, true).unwrap(), Reached::Same, "{text:?}");
        }
        assert_eq!(all(&mut input(b"\n\n\n"), 2), [""; 0]);
    }

    #[test]
    fn a_line_is_handed_out_before_the_next_is_written() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut write = File::from(write);
        let mut input = Input::new(File::from(read), tempfile::tempfile().unwrap(), None);
        write.write_all(b"first\nsec").unwrap();
        let batch = input.peek(BATCH_LINES).unwrap().unwrap();
        assert_eq!(input.bytes(batch), b"first\n");
        input.consume(batch);
        write.write_all(b"ond\n").unwrap();
        let batch = input.peek(BATCH_LINES).unwrap().unwrap();
        assert_eq!(input.bytes(batch), b"second\n");
    }

    #[test]
    fn an_input_is_over_only_at_its_end() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut piped = Input::new(File::from(std::os::fd::OwnedFd::from(reader)), tempfile::tempfile().unwrap(), None);
        assert!(!piped.is_over().unwrap(), "more may come");
        writer.write_all(b"a\n").unwrap();
        assert!(!piped.is_over().unwrap(), "a line is there");
        let batch = piped.peek(9).unwrap().unwrap();
        piped.consume(batch);
        assert!(!piped.is_over().unwrap(), "nothing is there, but it is open");
        drop(writer);
        assert!(piped.is_over().unwrap() && piped.is_over().unwrap());
        let mut file = input(b"a\n\n");
        assert!(!file.is_over().unwrap());
        let batch = file.peek(9).unwrap().unwrap();
        file.consume(batch);
        assert!(file.is_over().unwrap(), "empty lines are nothing");
    }

    #[test]
    fn both_kinds_of_input_can_begin_again() {
        for make in [input, piped] {
            let mut input = make(b"a\nb\nc\n");
            let other = Taken { lines: 2, hash: hashed(0, b"a\nX\n") };
            assert_eq!(input.reach(other, false).unwrap(), Reached::Different);
            input.rewind().unwrap();
            let same = Taken { lines: 2, hash: hashed(0, b"a\nb\n") };
            assert_eq!(input.reach(same, false).unwrap(), Reached::Same);
            input.forget();
            assert_eq!(all(&mut input, 9), ["c\n"]);
        }
    }

    /// The same input, read as rows.
    fn in_rows(input: Input, rows: Rows) -> Input {
        let Lines::Source(source) = input.lines else { unreachable!("it was made of lines") };
        Input { lines: Lines::Rows(Converted::new(rows, source)), ..input }
    }

    #[test]
    fn rows_are_counted_and_hashed_as_the_lines_they_become() {
        let csv = b"a,b\n1,\"x\ny\"\n\n2,z\n";
        let lines = br#"{"a":"1","b":"x\ny"}|{"a":"2","b":"z"}|"#.map(|byte| if byte == b'|' { b'\n' } else { byte });
        let same = Taken { lines: 2, hash: hashed(0, &lines) };
        for make in [input, piped] {
            let mut input = in_rows(make(csv), Rows::Table { heading: true });
            assert_eq!(input.reach(Taken { lines: 1, hash: 7 }, false).unwrap(), Reached::Different);
            input.rewind().unwrap();
            assert_eq!(input.reach(same, true).unwrap(), Reached::Same);
            assert!(input.is_over().unwrap());
        }
    }

    #[test]
    fn what_came_before_a_bad_row_is_handed_out() {
        let mut input = in_rows(input(b"{}\n[]\n"), Rows::Objects);
        let first = input.peek(9).unwrap().unwrap();
        assert_eq!(input.bytes(first), b"{}\n");
        input.consume(first);
        let failure = input.peek(9).unwrap_err();
        let text = "line 2 of the input: expected a JSON object in braces";
        assert_eq!((failure.kind, failure.text.as_str()), (Kind::BadData, text));
    }

    #[test]
    fn a_complete_run_is_the_same_only_if_the_input_has_no_more() {
        let taken = Taken { lines: 1, hash: hashed(0, b"a\n") };
        assert_eq!(input(b"a").reach(taken, true).unwrap(), Reached::Same);
        assert_eq!(input(b"a\nb").reach(taken, true).unwrap(), Reached::Different);
        assert_eq!(input(b"").reach(taken, false).unwrap(), Reached::Different);
    }

    #[test]
    fn a_line_over_the_limit_is_named() {
        let mut long = b"ok\n".to_vec();
        long.resize(long.len() + DATA_MAX + 1, b'x');
        for ending in [&b"\n"[..], b""] {
            let mut input = input(&[&long, ending].concat());
            let first = input.peek(1).unwrap().unwrap();
            input.consume(first);
            let failure = input.peek(1).unwrap_err();
            assert_eq!(
                (failure.kind, failure.text.as_str()),
                (Kind::BadData, "line 2 of the input has more than 1048576 bytes")
            );
        }
        let longest = vec![b'x'; DATA_MAX];
        assert!(input(&longest).peek(1).unwrap().is_some(), "the limit itself is allowed");
    }

    #[test]
    fn leading_zeros_count() {
        assert_ne!(hashed(0, b"\0\n"), hashed(0, b"\n"));
    }
}
