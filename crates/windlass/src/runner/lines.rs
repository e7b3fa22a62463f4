//! From jobs to lines: how a batch or a kept worker is told of a job. `docs/runners.md` is the contract.
//!
//! It must not know who reads them.

use super::Start;
use crate::api::base64;
use std::io::Write;
use windlass_core::policy::Framing;

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

fn add_object(start: &Start, index: usize, data: &[u8], into: &mut Vec<u8>) -> std::io::Result<()> {
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
fn add_text(text: &str, into: &mut Vec<u8>) -> std::io::Result<()> {
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
