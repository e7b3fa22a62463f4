//! Standard input as jobs: read in large pieces, handed on in whole parts, whatever door takes them.

use super::print::jobs;
use crate::error::{Failure, Kind};
use std::io::{Error, ErrorKind, Read};
use windlass_core::job::DATA_MAX;

const READ: usize = 1 << 20;

/// Hands on what the input gives as it comes, cut behind a separator; the last part may lack its own.
pub(super) fn in_whole(
    separator: u8,
    input: &mut dyn Read,
    take: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        let held = buffer.len();
        buffer.resize(held + READ, 0);
        let read = match input.read(&mut buffer[held..]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            read => read.map(Some),
        };
        let read = read.map_err(|e| unreadable(&e))?;
        buffer.truncate(held + read.unwrap_or(0));
        let over = read == Some(0);
        let whole = if over { buffer.len() } else { memchr::memrchr(separator, &buffer).map_or(0, |at| at + 1) };
        if whole > 0 {
            take(&buffer[..whole])?;
        }
        if over {
            return Ok(());
        }
        buffer.drain(..whole);
        if buffer.len() > DATA_MAX {
            return Err(Failure::new(Kind::BadData, format!("a job of the input has more than {DATA_MAX} bytes")));
        }
    }
}

/// What is said of an input that cannot be read, or not be taken apart.
pub(super) fn unreadable(error: &Error) -> Failure {
    match error.kind() {
        // Said by who takes it apart.
        ErrorKind::InvalidData => Failure::new(Kind::BadData, error.to_string()),
        _ => Failure::io("cannot read standard input", error),
    }
}

/// What ended the input, with how many jobs came before it.
pub(super) fn after(failure: Failure, count: u64) -> Failure {
    let were = if count == 1 { "was" } else { "were" };
    Failure { text: format!("{}; {} before that {were} accepted", failure.text, jobs(count)), ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_whole() {
        let mut seen: Vec<Vec<u8>> = Vec::new();
        let mut take = |part: &[u8]| {
            seen.push(part.to_vec());
            Ok(())
        };
        in_whole(b'\n', &mut (&b"a\nb"[..]).chain(&b"b\nc"[..]), &mut take).unwrap();
        assert_eq!(seen, [&b"a\n"[..], b"bb\n", b"c"]);
        let long = vec![b'x'; DATA_MAX + 1];
        assert_eq!(in_whole(b'\n', &mut &long[..], &mut |_| Ok(())).unwrap_err().kind, Kind::BadData);
    }

    #[test]
    fn one_job_was_and_two_were() {
        let told = |count| after(Failure::new(Kind::BadData, "line 3 is bad"), count).text;
        assert_eq!(told(1), "line 3 is bad; 1 job before that was accepted");
        assert_eq!(told(2), "line 3 is bad; 2 jobs before that were accepted");
    }
}
