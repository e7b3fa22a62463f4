//! From jobs to lines: how a batch or a kept worker is told of a job. `docs/runners.md` is the contract.
//!
//! It must not know who reads them.

use super::spoken::Mint;
use super::{Flight, Start, given};
use crate::api::base64;
use crate::particulars::Trace;
use crate::store::Held;
use std::io::{self, Write};
use windlass_core::job::{JobId, QueueName};
use windlass_core::policy::Framing;

const NEWLINE: &str = "the data holds a newline, and a raw line ends with it; `framing = \"json\"` carries any bytes";
const NO_FILES: &str = "its stage works on files (`framing` is \"in\" or \"in-out\"), and a job is no file; \
                        expected a pipeline in directories: windlass --store dir:PATH pipeline run";

/// Lays lines, and remembers what those of one start have in common.
#[derive(Debug, Default)]
pub(super) struct Layer {
    /// The start, and the fellow of it, whose objects begin and go on so: up to that part of the id which is a job's
    /// own, and from there to the data.
    of: Option<(Flight, u16)>,
    front: Vec<u8>,
    middle: Vec<u8>,
    /// Makes the token that each object has.
    mint: Option<Mint>,
}

impl Layer {
    /// Tells each job the token with which it may speak over HTTP.
    pub(super) fn with(mint: Option<Mint>) -> Layer {
        Layer { mint, ..Layer::default() }
    }

    /// Adds the line of one job of a start; an error is the sentence of a job that can never be a line.
    pub(super) fn add(
        &mut self,
        start: &Start,
        position: u16,
        framing: Framing,
        into: &mut Vec<u8>,
    ) -> Result<(), String> {
        let (_, held, index) = start.job(position);
        let data = given(&start.policy, held.jobs.data(index))?;
        match framing {
            Framing::Raw if memchr::memchr(b'\n', &data).is_some() => return Err(NEWLINE.to_owned()),
            Framing::Raw => into.extend_from_slice(&data),
            Framing::Paths { .. } => return Err(NO_FILES.to_owned()),
            Framing::Json | Framing::Array => {
                // Writing into memory cannot fail.
                let _infallible = self.add_object(start, position, &data, into);
            }
        }
        into.push(b'\n');
        Ok(())
    }

    fn add_object(&mut self, start: &Start, position: u16, data: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
        let (queue, held, index) = start.job(position);
        let id = held.jobs.id(index);
        let of = (start.flight, (position + 1).saturating_sub(start.held.count));
        if self.of != Some(of) {
            self.begin((queue, held), &start.checkpoint, id)?;
            self.of = Some(of);
        }
        into.extend_from_slice(&self.front);
        id.write_offset(into);
        into.extend_from_slice(&self.middle);
        if let Some(mint) = &self.mint {
            into.extend_from_slice(b"\"token\":\"");
            into.extend_from_slice(mint.of_job(start.flight, id).as_bytes());
            into.extend_from_slice(b"\",");
        }
        if is_plain(data) {
            into.extend_from_slice(b"\"data\":\"");
            into.extend_from_slice(data);
            into.extend_from_slice(b"\"}");
            return Ok(());
        }
        match std::str::from_utf8(data) {
            Ok(text) => {
                into.extend_from_slice(b"\"data\":");
                serde_json::to_writer(&mut *into, text)?;
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

    fn begin(&mut self, (queue, held): (&QueueName, &Held), checkpoint: &str, id: JobId) -> io::Result<()> {
        let Layer { front, middle, .. } = self;
        front.clear();
        front.extend_from_slice(b"{\"id\":\"");
        id.write_origin(front);
        middle.clear();
        middle.extend_from_slice(b"\",\"queue\":");
        serde_json::to_writer(&mut *middle, queue.as_str())?;
        write!(middle, ",\"attempt\":{},", held.start())?;
        if !checkpoint.is_empty() {
            middle.extend_from_slice(b"\"checkpoint\":");
            serde_json::to_writer(&mut *middle, checkpoint)?;
            middle.push(b',');
        }
        if let Some((kind, id)) = held.subject() {
            middle.extend_from_slice(b"\"subject\":");
            serde_json::to_writer(&mut *middle, &serde_json::json!({ "type": kind, "id": id }))?;
            middle.push(b',');
        }
        if let Some(trace) = held.trace() {
            middle.extend_from_slice(b"\"trace\":");
            serde_json::to_writer(&mut *middle, &Trace::from(trace.clone()))?;
            middle.push(b',');
        }
        Ok(())
    }
}

/// Whether bytes are a JSON string as they are. Most data is, and to see that is far quicker than to go through it byte
/// by byte.
fn is_plain(data: &[u8]) -> bool {
    let plain = |byte: u8| (b' '..0x80).contains(&byte) && byte != b'"' && byte != b'\\';
    data.iter().fold(true, |all, byte| all & plain(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_plain_is_what_a_parser_reads_back() {
        let texts = [
            "",
            "plain",
            "a \"quote\"",
            "back\\slash",
            "tab\t",
            "nul\0",
            "line\n",
            "del\u{7f}",
            "ünïcode 漢字 🦀",
            "\u{1f}",
        ];
        for (text, plain) in texts.into_iter().zip([true, true, false, false, false, false, false, true, false, false])
        {
            assert_eq!(is_plain(text.as_bytes()), plain, "{text:?}");
            let read = serde_json::from_str::<String>(&format!("\"{text}\""));
            assert!(!plain || read.is_ok_and(|read| read == text), "{text:?}");
        }
    }
}
