//! How things reach the screen: data to stdout, sentences to stderr, nothing hostile to a terminal.
//!
//! A reader that goes away (`| head`) ends a listing quietly; a full device is an error where the output is the
//! point, and only a remark where the exit code tells that jobs were accepted. Nothing here panics on a closed stream.

use crate::api;
use crate::error::{Failure, Kind};
use serde_json::{Value, json};
use std::fmt::{Display, Write as _};
use std::io::{ErrorKind, IsTerminal, Write};

/// Standard output, remembering the first trouble it had.
#[derive(Debug)]
pub(super) struct Out {
    stdout: std::io::BufWriter<std::io::Stdout>,
    trouble: Option<std::io::Error>,
}

impl Out {
    pub(super) fn new() -> Out {
        Out { stdout: std::io::BufWriter::with_capacity(1 << 16, std::io::stdout()), trouble: None }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        if self.trouble.is_none() {
            self.trouble = self.stdout.write_all(bytes).err();
        }
    }

    pub(super) fn line(&mut self, line: impl Display) {
        if self.trouble.is_none() {
            self.trouble = writeln!(self.stdout, "{line}").err();
        }
    }

    /// Out to the reader now.
    pub(super) fn flush(&mut self) {
        if self.trouble.is_none() {
            self.trouble = self.stdout.flush().and_then(|()| std::io::stdout().flush()).err();
        }
    }

    /// True where nobody reads any more, so that a long listing can stop.
    pub(super) fn closed(&self) -> bool {
        self.trouble.is_some()
    }

    /// For verbs whose output is their point: a reader that left is fine, a full device is not.
    pub(super) fn finish(mut self) -> Result<u8, Failure> {
        self.flush();
        match self.trouble {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::io("cannot write to standard output", &error))
            }
            _ => Ok(0),
        }
    }

    /// For verbs that have accepted something: the code tells that, trouble with printing is only said.
    pub(super) fn finish_accepted(mut self) {
        self.flush();
        if let Some(error) = self.trouble.filter(|error| error.kind() != ErrorKind::BrokenPipe) {
            say(format_args!("everything was accepted, but not all could be printed: {error}"));
        }
    }
}

/// A sentence on stderr; a closed stderr is nobody's fault.
pub(super) fn say(sentence: impl Display) {
    // There is no third stream to complain on.
    let _ = writeln!(std::io::stderr().lock(), "windlass: {sentence}");
}

/// A failure as a sentence and a hint, or as the object that the API has for it.
pub(super) fn failure(failure: &Failure, as_json: bool) {
    if as_json {
        let mut problem = json!(api::Problem::of(failure));
        problem["exit_code"] = failure.kind.exit_code().into();
        return say_json(&problem);
    }
    say(visible(&failure.text));
    if let Some(hint) = &failure.hint {
        say(format_args!("hint: {}", visible(hint)));
    }
}

/// One object on stderr, for verbs whose stdout is taken by ids.
pub(super) fn say_json(value: &Value) {
    // There is no third stream to complain on.
    let _ = writeln!(std::io::stderr().lock(), "{value}");
}

/// One JSON document on stdout.
pub(super) fn document(value: &Value) -> Result<u8, Failure> {
    let mut out = Out::new();
    out.line(value);
    out.finish()
}

/// Text with control and direction-changing characters spelled out, so that data cannot play the terminal.
pub(super) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' => {
                // Writing to a string cannot fail.
                let _ = write!(shown, "{}", c.escape_unicode());
            }
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// Shortens in the middle, so that the beginning and the end can still be told apart from others.
pub(super) fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width || width < 3 {
        return text.to_owned();
    }
    let (head, tail) = ((width - 1) / 2, width - 1 - (width - 1) / 2);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

/// The width of the terminal on stdout; none where it is not one, and then nothing is ever cut.
pub(super) fn terminal_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0).or(Some(80))
}

/// A field of an answer as text; absent and null are empty.
pub(super) fn field(object: &Value, name: &str) -> String {
    match object.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => visible(text),
        Some(other) => visible(&other.to_string()),
    }
}

/// A count of an answer.
pub(super) fn count(object: &Value, name: &str) -> u64 {
    object.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// A job's data out of an answer, as its bytes.
pub(super) fn data_of(object: &Value, name: &str) -> Result<Vec<u8>, Failure> {
    if let Some(text) = object.get(name).and_then(Value::as_str) {
        return Ok(text.as_bytes().to_vec());
    }
    match object.get(format!("{name}_base64")).and_then(Value::as_str) {
        None => Ok(Vec::new()),
        Some(text) => crate::api::base64::decode(text)
            .ok_or_else(|| Failure::new(Kind::Internal, format!("the server's answer has a bad {name}_base64"))),
    }
}

/// `1 job`, `1,204 jobs`.
pub(super) fn jobs(count: u64) -> String {
    counted(count, "job")
}

/// So many of what a word names: `1 file`, `1,204 files`.
pub(super) fn counted(count: u64, word: &str) -> String {
    format!("{} {word}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// The same with a verb behind it that goes with one or with many: `1 job was`, `2 jobs were`.
pub(super) fn counted_do(count: u64, word: &str, (one, many): (&str, &str)) -> String {
    format!("{} {}", counted(count, word), if count == 1 { one } else { many })
}

/// A number with its thousands apart.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_plays_the_terminal() {
        assert_eq!(visible("a\u{1b}[31mb\r\n\tc\u{9b}"), "a\\u{1b}[31mb\\r\\n\\tc\\u{9b}");
        assert_eq!(visible("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(visible("größe 日本"), "größe 日本");
    }

    #[test]
    fn shortening_keeps_both_ends() {
        assert_eq!(shortened("abcdefghij", 10), "abcdefghij");
        assert_eq!(shortened("abcdefghijk", 6), "ab…ijk");
        assert_eq!(shortened("日本語日本語日本語", 5), "日本…本語");
    }

    #[test]
    fn numbers() {
        assert_eq!(jobs(1), "1 job");
        assert_eq!(jobs(1204), "1,204 jobs");
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(grouped(100), "100");
    }
}
