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
    write!(into, "{{\"id\":\"{}\",\"queue\":", start.held.jobs.id(index))?;
    serde_json::to_writer(&mut *into, start.queue.as_str())?;
    write!(into, ",\"attempt\":{},", start.held.start())?;
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
