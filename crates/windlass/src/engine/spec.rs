//! How the service of a `windlass run` is kept in its run row: a version byte, then length-prefixed fields.

use super::event::RunService;
use crate::store::chunk::{read_varint, write_varint};
use windlass_core::policy::{Command, Policy, Service};

const VERSION: u8 = 1;

/// The bytes of a service.
pub fn encode(service: &RunService) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    write_bytes(&mut bytes, service.queue.as_bytes());
    for number in [u64::from(service.slots), u64::from(service.attempts), service.output_max] {
        write_varint(&mut bytes, number);
    }
    write_bytes(&mut bytes, &service.command.directory);
    write_varint(&mut bytes, service.command.argv.len() as u64);
    for argument in &service.command.argv {
        write_bytes(&mut bytes, argument);
    }
    write_varint(&mut bytes, service.command.environment.len() as u64);
    for (name, value) in &service.command.environment {
        write_bytes(&mut bytes, name);
        write_bytes(&mut bytes, value);
    }
    bytes
}

/// Reads what `encode` wrote; nothing for a run that has no service of its own.
pub fn decode(bytes: &[u8]) -> Option<RunService> {
    let (version, rest) = bytes.split_first()?;
    if *version != VERSION {
        return None;
    }
    let mut at = 0;
    let queue = String::from_utf8(read_bytes(rest, &mut at)?).ok()?;
    let slots = u32::try_from(read_varint(rest, &mut at).ok()?).ok()?;
    let attempts = u32::try_from(read_varint(rest, &mut at).ok()?).ok()?;
    let output_max = read_varint(rest, &mut at).ok()?;
    let directory = read_bytes(rest, &mut at)?;
    let mut argv = Vec::new();
    for _ in 0..read_varint(rest, &mut at).ok()? {
        argv.push(read_bytes(rest, &mut at)?);
    }
    let mut environment = Vec::new();
    for _ in 0..read_varint(rest, &mut at).ok()? {
        environment.push((read_bytes(rest, &mut at)?, read_bytes(rest, &mut at)?));
    }
    let command = Command { argv, directory, environment };
    Some(RunService { queue, command, slots, attempts, output_max })
}

/// The crew that serves a run.
pub fn policy(service: &RunService) -> Policy {
    let mut policy = Policy::new(service.queue.clone(), Service::Command(service.command.clone()));
    policy.slots = service.slots;
    policy.attempts = service.attempts;
    policy.output_max = service.output_max;
    policy
}

fn write_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    write_varint(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

fn read_bytes(from: &[u8], at: &mut usize) -> Option<Vec<u8>> {
    let length = usize::try_from(read_varint(from, at).ok()?).ok()?;
    let bytes = from.get(*at..at.checked_add(length)?)?.to_vec();
    *at += length;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_and_survives_every_cut() {
        let service = RunService {
            queue: "run.x".into(),
            command: Command {
                argv: vec![b"echo".to_vec(), vec![0xff, 0]],
                directory: b"/".to_vec(),
                environment: vec![(b"PATH".to_vec(), b"/bin".to_vec())],
            },
            slots: 3,
            attempts: 1,
            output_max: 1 << 30,
        };
        let bytes = encode(&service);
        assert_eq!(decode(&bytes), Some(service));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None);
        }
    }
}
