//! From jobs to lines: how a batch or a kept worker is told of a job. `docs/runners.md` is the contract.
//!
//! It must not know who reads them.

use super::Start;
use crate::api::base64;
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
        Framing::Json => {
            let id = start.held.jobs.id(index);
            let queue = serde_json::Value::from(start.queue.as_str());
            let head = format!("{{\"id\":\"{id}\",\"queue\":{queue},\"attempt\":{},", start.held.start());
            into.extend_from_slice(head.as_bytes());
            if !start.checkpoint.is_empty() {
                let checkpoint = serde_json::Value::from(start.checkpoint.as_str());
                into.extend_from_slice(format!("\"checkpoint\":{checkpoint},").as_bytes());
            }
            match std::str::from_utf8(data) {
                Ok(text) => into.extend_from_slice(format!("\"data\":{}}}", serde_json::Value::from(text)).as_bytes()),
                Err(_) => into.extend_from_slice(format!("\"data64\":\"{}\"}}", base64::encode(data)).as_bytes()),
            }
        }
    }
    into.push(b'\n');
    Ok(())
}
