//! From jobs to lines: how a batch or a kept worker is told of a job. `docs/runners.md` is the contract.
//!
//! It must not know who reads them.

use super::Start;
use crate::api::base64;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use windlass_core::policy::Framing;

/// So much is gathered for one write: it stays in the processor's cache on its way.
const GATHERED: usize = 128 << 10;

/// Lines on their way to a process that reads them from a file in memory.
#[derive(Debug)]
pub(super) struct LinesFile {
    file: File,
    gathered: Vec<u8>,
    written: u64,
}

impl LinesFile {
    pub(super) fn new() -> io::Result<LinesFile> {
        let file = File::from(memfd_create("windlass-lines", MemfdFlags::CLOEXEC)?);
        Ok(LinesFile { file, gathered: Vec::with_capacity(GATHERED + (4 << 10)), written: 0 })
    }

    /// Adds the line of one job; the inner error is that of `add`.
    pub(super) fn add(&mut self, start: &Start, position: u16, framing: Framing) -> io::Result<Result<(), &'static str>> {
        let added = add(start, position, framing, &mut self.gathered);
        if self.gathered.len() >= GATHERED {
            self.write()?;
        }
        Ok(added)
    }

    pub(super) fn len(&self) -> u64 {
        self.written + self.gathered.len() as u64
    }

    /// By position, so that the reader begins at the beginning.
    fn write(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.gathered, self.written)?;
        self.written += self.gathered.len() as u64;
        self.gathered.clear();
        Ok(())
    }

    /// The file, with all lines in it.
    pub(super) fn finish(mut self) -> io::Result<File> {
        self.write()?;
        Ok(self.file)
    }
}

/// Adds the line of one job of a start; an error is the sentence of a job that can never be a line.
pub(super) fn add(start: &Start, position: u16, framing: Framing, into: &mut Vec<u8>) -> Result<(), &'static str> {
    let index = usize::from(start.held.first + position);
    let data = start.held.jobs.data(index);
    match framing {
        Framing::Raw if memchr::memchr(b'\n', data).is_some() => {
            return Err(
                "the data holds a newline, and a raw line ends with it; `framing = \"json\"` carries any bytes",
            );
        }
        Framing::Raw => into.extend_from_slice(data),
        Framing::Json | Framing::Array => {
            // Writing into memory cannot fail.
            let _infallible = add_object(start, index, data, into);
        }
    }
    into.push(b'\n');
    Ok(())
}

fn add_object(start: &Start, index: usize, data: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
    into.extend_from_slice(b"{\"id\":\"");
    start.held.jobs.id(index).write(into);
    into.extend_from_slice(b"\",\"queue\":");
    add_text(start.queue.as_str(), into)?;
    match start.held.start() {
        1 => into.extend_from_slice(b",\"attempt\":1,"),
        attempt => write!(into, ",\"attempt\":{attempt},")?,
    }
    if !start.checkpoint.is_empty() {
        into.extend_from_slice(b"\"checkpoint\":");
        add_text(&start.checkpoint, into)?;
        into.push(b',');
    }
    match std::str::from_utf8(data) {
        Ok(text) => {
            into.extend_from_slice(b"\"data\":");
            add_text(text, into)?;
            into.push(b'}');
        }
        Err(_) => {
            into.extend_from_slice(b"\"data64\":\"");
            base64::encode_into(data, into);
            into.extend_from_slice(b"\"}");
        }
    }
    Ok(())
}

/// A JSON string. Most texts need no escape, and to see that is far quicker than to go through them byte by byte.
fn add_text(text: &str, into: &mut Vec<u8>) -> io::Result<()> {
    let needs = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
    if text.as_bytes().iter().fold(false, |any, byte| any | needs(byte)) {
        return Ok(serde_json::to_writer(into, text)?);
    }
    into.push(b'"');
    into.extend_from_slice(text.as_bytes());
    into.push(b'"');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_what_a_parser_reads_back() {
        for text in
            ["", "plain", "a \"quote\"", "back\\slash", "tab\t, nul\0, line\n, del\u{7f}", "ünïcode 漢字 🦀", "\u{1f}"]
        {
            let mut json = Vec::new();
            add_text(text, &mut json).unwrap();
            assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text);
        }
    }
}
