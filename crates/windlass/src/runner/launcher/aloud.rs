//! What a job says of itself on its standard output: `::windlass progress 40/100 page 40`, `::windlass phase parsing`,
//! for programs that cannot be changed to say it elsewhere.
//!
//! Output often carries foreign text, so nothing but progress and phase is heard here, and nothing follows from them:
//! they are shown. The newest of each is passed on, at most once a second. This file must not touch what is kept of the
//! output.

use std::time::{Duration, Instant};

const BEGINNING: &[u8] = b"::windlass ";
const WORDS: [&str; 2] = ["progress ", "phase "];
/// A longer line is somebody else's.
const LINE_MAX: usize = 200;
/// So often it is passed on.
const PAUSE: Duration = Duration::from_secs(1);
/// What is passed on has this length whatever was said, so that it can be said again in the same place.
pub(super) const SAID: usize = 2 * LINE_MAX;

/// One job's standard output as it is listened to.
#[derive(Debug, Default)]
pub(super) struct Aloud {
    /// The line so far, as long as it may be one of ours.
    line: Vec<u8>,
    /// The line is none of ours.
    other: bool,
    /// The newest of each word, and whether one of them has yet to be passed on.
    newest: [String; 2],
    news: bool,
    passed: Option<Instant>,
}

impl Aloud {
    /// More of the output.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            self.part(&rest[..end.unwrap_or(rest.len())]);
            if end.is_some() {
                self.end_of_line();
            }
            rest = end.map_or(&[], |end| &rest[end + 1..]);
        }
    }

    fn part(&mut self, part: &[u8]) {
        if self.other {
            return;
        }
        let room = LINE_MAX + 1 - self.line.len();
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        let known = self.line.len().min(BEGINNING.len());
        if self.line[..known] != BEGINNING[..known] || self.line.len() > LINE_MAX {
            self.other = true;
            self.line.clear();
        }
    }

    fn end_of_line(&mut self) {
        let said = self.line.strip_prefix(BEGINNING).and_then(|said| std::str::from_utf8(said).ok());
        if let Some(said) = said.map(str::trim_end).filter(|said| !said.chars().any(char::is_control))
            && let Some(word) = WORDS.iter().position(|word| said.starts_with(word))
        {
            self.newest[word] = said.to_owned();
            self.news = true;
        }
        self.line.clear();
        self.other = false;
    }

    /// What is to be passed on now, if anything is.
    pub(super) fn due(&mut self, now: Instant) -> Option<[u8; SAID]> {
        let early = self.passed.is_some_and(|passed| now.saturating_duration_since(passed) < PAUSE);
        if early {
            return None;
        }
        let said = self.last()?;
        self.passed = Some(now);
        Some(said)
    }

    /// What has yet to be passed on of a job that says nothing more, however soon it came after the words before.
    pub(super) fn last(&mut self) -> Option<[u8; SAID]> {
        if !std::mem::take(&mut self.news) {
            return None;
        }
        let mut said = [b' '; SAID];
        for (line, newest) in said.chunks_exact_mut(LINE_MAX).zip(&self.newest) {
            line[..newest.len()].copy_from_slice(newest.as_bytes());
            line[LINE_MAX - 1] = b'\n';
        }
        Some(said)
    }

    /// When there is something to pass on, if it came too soon after the last.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.passed.filter(|_| self.news).map(|passed| passed + PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(pieces: &[&[u8]]) -> Vec<String> {
        let mut aloud = Aloud::default();
        pieces.iter().for_each(|piece| aloud.hear(piece));
        let said = aloud.due(Instant::now()).map(|said| String::from_utf8(said.to_vec()).unwrap());
        said.iter().flat_map(|said| said.lines()).map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn the_newest_of_each_is_heard_however_it_comes() {
        assert_eq!(heard(&[b"a\n::windlass progress 1/3 a\n::windlass progress 2/3 b\n"]), ["progress 2/3 b", ""]);
        let whole = b"::windlass phase one\nx\n::windlass progress 7\r\n";
        for cut in 0..whole.len() {
            assert_eq!(heard(&[&whole[..cut], &whole[cut..]]), ["progress 7", "phase one"], "{cut}");
        }
    }

    #[test]
    fn nothing_else_is_heard() {
        let long = [b"::windlass phase ".as_slice(), &[b'x'; LINE_MAX]].concat();
        for other in [
            &b"::windlass retry 5s\n::windlass result x\n::windlass extend 9h\n::windlass checkpoint 3\n"[..],
            b" ::windlass phase x\n",
            b"::windlass phase \x1b[2J\n",
            b"::windlass phase x",
            b"::windlass phase \xff\n",
            b"::windlassphase x\n",
            &[long.as_slice(), b"\n"].concat(),
        ] {
            assert_eq!(heard(&[other]), [""; 0], "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn it_is_passed_on_once_a_second_at_most() {
        let (mut aloud, now) = (Aloud::default(), Instant::now());
        aloud.hear(b"::windlass progress 1\n");
        assert!(aloud.due(now).is_some() && aloud.due(now + PAUSE).is_none(), "nothing is said twice");
        aloud.hear(b"::windlass progress 2\n");
        assert!(aloud.due(now + PAUSE / 2).is_none());
        assert_eq!(aloud.due_at(), Some(now + PAUSE), "also where nothing more is said");
        assert!(aloud.due(now + PAUSE).unwrap().starts_with(b"progress 2 "));
        assert_eq!(aloud.due_at(), None);
        aloud.hear(b"::windlass progress 3\n");
        assert!(aloud.last().unwrap().starts_with(b"progress 3 "), "the last words wait for nothing");
        assert!(aloud.last().is_none());
    }
}
