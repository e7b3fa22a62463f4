//! Input that is more than lines, as `push` and `run` take it: `--jsonl` is checked line by line, `--csv` becomes an
//! object for each row. What comes out has one job a line, so that it goes the way of all lines.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read};
use windlass_core::job::DATA_MAX;

/// The words for it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Form {
    /// Each line of stdin is a JSON object; one that is not is refused
    #[arg(long, conflicts_with = "null")]
    pub(super) jsonl: bool,
    /// Each row of stdin is CSV, and its job an object: {"1": …, "2": …}
    #[arg(long, conflicts_with_all = ["null", "jsonl"])]
    pub(super) csv: bool,
    /// The first row of the CSV has the names of the fields
    #[arg(long, requires = "csv")]
    header: bool,
}

impl Form {
    pub(super) fn rows(&self) -> Option<Rows> {
        match (self.jsonl, self.csv) {
            (true, _) => Some(Rows::Objects),
            (_, true) => Some(Rows::Table { heading: self.header }),
            (false, false) => None,
        }
    }
}

/// What the input is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// One JSON object a line.
    Objects,
    /// Rows of CSV as in RFC 4180; the first may have the names of the fields, which else are their numbers.
    Table { heading: bool },
}

/// The input as lines of JSON; an error of the kind `InvalidData` names the line.
#[derive(Debug)]
pub(super) struct Converted<R> {
    rows: Rows,
    input: BufReader<R>,
    /// Of the input, that is being read.
    line: u64,
    names: Option<Vec<String>>,
    ready: Vec<u8>,
    given: usize,
    trouble: Option<Error>,
}

impl<R: Read> Converted<R> {
    pub(super) fn new(rows: Rows, input: R) -> Converted<R> {
        Converted {
            rows,
            input: BufReader::new(input),
            line: 0,
            names: None,
            ready: Vec::new(),
            given: 0,
            trouble: None,
        }
    }

    pub(super) fn source(&self) -> &R {
        self.input.get_ref()
    }

    pub(super) fn source_mut(&mut self) -> &mut R {
        self.input.get_mut()
    }

    /// The source is at its beginning again: nothing is known of it.
    pub(super) fn restart(&mut self) {
        let held = self.input.buffer().len();
        self.input.consume(held);
        self.ready.clear();
        (self.line, self.given, self.names, self.trouble) = (0, 0, None, None);
    }

    /// The next job, with its newline; nothing at the end of the input.
    fn next_job(&mut self) -> Result<Vec<u8>, Error> {
        loop {
            let begun = self.line + 1;
            let Some(row) = self.next_row()? else { return Ok(Vec::new()) };
            let wrong = |why: String| Error::new(ErrorKind::InvalidData, format!("line {begun} of the input: {why}"));
            match self.rows {
                _ if row.iter().all(u8::is_ascii_whitespace) => {}
                Rows::Objects => {
                    serde_json::from_slice::<IgnoredAny>(&row).map_err(|e| wrong(format!("not JSON: {e}")))?;
                    return match row.trim_ascii_start().first() {
                        Some(b'{') => Ok([row.trim_ascii(), b"\n"].concat()),
                        _ => Err(wrong("expected a JSON object in braces".into())),
                    };
                }
                Rows::Table { heading } => {
                    let text = String::from_utf8(row).map_err(|_| wrong("not UTF-8 text".into()))?;
                    let fields = fields(&text).map_err(wrong)?;
                    match &self.names {
                        None if heading => self.names = Some(distinct(fields).map_err(wrong)?),
                        Some(names) if names.len() != fields.len() => {
                            let (there, wanted) = (fields.len(), names.len());
                            return Err(wrong(format!("fields: {there}, expected {wanted} as in the first line")));
                        }
                        names => {
                            let job = object(names.as_deref(), fields);
                            let bytes = job.len() - 1;
                            let fits = bytes <= DATA_MAX;
                            let long = || wrong(format!("as an object {bytes} bytes, expected at most {DATA_MAX}"));
                            return fits.then_some(job).ok_or_else(long);
                        }
                    }
                }
            }
        }
    }

    /// True where a row is at hand as a whole, so that reading it does not wait.
    fn has_row(&self) -> bool {
        let table = matches!(self.rows, Rows::Table { .. });
        let (mut open, mut blank) = (false, true);
        self.input.buffer().iter().any(|byte| {
            open ^= table && *byte == b'"';
            blank &= byte.is_ascii_whitespace();
            *byte == b'\n' && !open && !blank
        })
    }

    /// A line, or several where quotes hold them together; without its end.
    fn next_row(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let mut row = Vec::new();
        loop {
            let limit = (DATA_MAX + 2).saturating_sub(row.len()) as u64;
            let read = self.input.by_ref().take(limit).read_until(b'\n', &mut row)?;
            let whole = row.last() == Some(&b'\n');
            self.line += u64::from(read > 0);
            if read == 0 && row.is_empty() {
                return Ok(None);
            }
            if !whole && row.len() > DATA_MAX {
                let text = format!("line {} of the input is longer than {DATA_MAX} bytes", self.line);
                return Err(Error::new(ErrorKind::InvalidData, text));
            }
            let open = row.iter().filter(|byte| **byte == b'"').count() % 2 == 1;
            if read == 0 || !matches!(self.rows, Rows::Table { .. }) || !open {
                while row.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
                    row.pop();
                }
                return Ok(Some(row));
            }
        }
    }
}

impl<R: Read> Read for Converted<R> {
    /// As many jobs as are at hand: a slow input is not waited for once there is one.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        let mut filled = 0;
        while filled < into.len() {
            if self.given == self.ready.len() {
                if filled > 0 && !self.has_row() {
                    break;
                }
                match self.next_job() {
                    Ok(job) if job.is_empty() => break,
                    Ok(job) => (self.ready, self.given) = (job, 0),
                    Err(error) if filled == 0 => return Err(error),
                    // What came before it is accepted; it is told by the next read.
                    Err(error) => {
                        self.trouble = Some(error);
                        break;
                    }
                }
            }
            let part = (self.ready.len() - self.given).min(into.len() - filled);
            into[filled..filled + part].copy_from_slice(&self.ready[self.given..self.given + part]);
            (self.given, filled) = (self.given + part, filled + part);
        }
        Ok(filled)
    }
}

/// The fields of a row of CSV; quotes are only at their ends, or doubled.
fn fields(row: &str) -> Result<Vec<String>, String> {
    let (mut fields, mut rest) = (Vec::new(), row);
    loop {
        let (field, after) = match rest.strip_prefix('"') {
            None => {
                let (field, after) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                if field.contains('"') {
                    return Err(format!("a quote in the middle of the field {field:?}"));
                }
                (field.to_owned(), after)
            }
            Some(quoted) => {
                let (mut field, mut inner) = (String::new(), quoted);
                loop {
                    let (part, after) = inner.split_once('"').ok_or("a quote is not closed")?;
                    field.push_str(part);
                    match after.strip_prefix('"') {
                        Some(more) => {
                            field.push('"');
                            inner = more;
                        }
                        None => break (field, after),
                    }
                }
            }
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None if after.is_empty() => return Ok(fields),
            None => return Err(format!("expected a comma after a quoted field, got: {after}")),
        }
    }
}

fn distinct(mut names: Vec<String>) -> Result<Vec<String>, String> {
    if let Some(first) = names.first_mut() {
        *first = first.trim_start_matches('\u{feff}').to_owned();
    }
    match names.iter().enumerate().find(|(at, name)| name.is_empty() || names[..*at].contains(name)) {
        Some((at, name)) if name.is_empty() => Err(format!("field {} of the heading has no name", at + 1)),
        Some((_, name)) => Err(format!("the heading has {name:?} twice")),
        None => Ok(names),
    }
}

fn object(names: Option<&[String]>, fields: Vec<String>) -> Vec<u8> {
    let name = |at: usize| names.map_or_else(|| (at + 1).to_string(), |names| names[at].clone());
    let named: Map<String, Value> =
        fields.into_iter().enumerate().map(|(at, field)| (name(at), field.into())).collect();
    format!("{}\n", Value::Object(named)).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rows: Rows, input: &str) -> Result<String, String> {
        let mut text = String::new();
        Converted::new(rows, input.as_bytes()).read_to_string(&mut text).map_err(|e| e.to_string())?;
        Ok(text)
    }

    #[test]
    fn objects_are_checked_and_left_as_they_are() {
        assert_eq!(read(Rows::Objects, "{\"a\": 1}\r\n\n {\"b\":[ ]}").unwrap(), "{\"a\": 1}\n{\"b\":[ ]}\n");
        assert_eq!(read(Rows::Objects, "").unwrap(), "");
        let refused = read(Rows::Objects, "{}\n{\"a\":}\n").unwrap_err();
        assert!(refused.starts_with("line 2 of the input: not JSON: "), "{refused}");
        assert_eq!(read(Rows::Objects, "[1]").unwrap_err(), "line 1 of the input: expected a JSON object in braces");
    }

    /// Gives a piece for each read; there is no more than that.
    struct Pieces(Vec<String>);

    impl Read for Pieces {
        fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
            assert!(!self.0.is_empty(), "waits for what is not written yet");
            self.0.remove(0).as_bytes().read(into)
        }
    }

    #[test]
    fn a_row_is_handed_out_before_the_next_is_whole() {
        for begun in ["", "bo", "\n\n", "\nbob,\"\n"] {
            let pieces = Pieces(vec!["to,text\nann,".into(), format!("1\n{begun}")]);
            let mut rows = Converted::new(Rows::Table { heading: true }, pieces);
            let mut into = [0; 100];
            let read = rows.read(&mut into).unwrap();
            assert_eq!(&into[..read], b"{\"text\":\"1\",\"to\":\"ann\"}\n", "{begun:?}");
        }
    }

    #[test]
    fn what_begins_again_is_read_as_before() {
        let file = std::io::Cursor::new("a\n1\n2\n");
        let mut rows = Converted::new(Rows::Table { heading: true }, file);
        let (mut once, mut again) = (String::new(), String::new());
        rows.by_ref().take(11).read_to_string(&mut once).unwrap();
        rows.source_mut().set_position(0);
        rows.restart();
        rows.read_to_string(&mut again).unwrap();
        assert_eq!((once.as_str(), again.as_str()), ("{\"a\":\"1\"}\n{", "{\"a\":\"1\"}\n{\"a\":\"2\"}\n"));
    }

    #[test]
    fn a_row_that_is_too_long_as_an_object_is_named() {
        let refused = read(Rows::Table { heading: false }, &format!("x\ny{}\n", "\t".repeat(DATA_MAX / 2)));
        let text = format!("line 2 of the input: as an object {} bytes, expected at most {DATA_MAX}", DATA_MAX + 9);
        assert_eq!(refused.unwrap_err(), text);
    }

    #[test]
    fn rows_become_objects() {
        let named = Rows::Table { heading: true };
        assert_eq!(
            read(named, "\u{feff}to,text\r\nann,\"a, \"\"b\"\"\nc\"\r\nbob,\n").unwrap(),
            "{\"text\":\"a, \\\"b\\\"\\nc\",\"to\":\"ann\"}\n{\"text\":\"\",\"to\":\"bob\"}\n"
        );
        assert_eq!(read(Rows::Table { heading: false }, "x,y\n").unwrap(), "{\"1\":\"x\",\"2\":\"y\"}\n");
        for (input, why) in [
            ("a,b\n1\n", "line 2 of the input: fields: 1, expected 2 as in the first line"),
            ("a,a\n", "line 1 of the input: the heading has \"a\" twice"),
            ("a,\n", "line 1 of the input: field 2 of the heading has no name"),
            ("a\n1\n\"x\ny", "line 3 of the input: a quote is not closed"),
            ("a\nx\"\"y\n", "line 2 of the input: a quote in the middle of the field \"x\\\"\\\"y\""),
            ("a\n\"x\"y\n", "line 2 of the input: expected a comma after a quoted field, got: y"),
        ] {
            assert_eq!(read(named, input).unwrap_err(), why, "{input:?}");
        }
    }
}
