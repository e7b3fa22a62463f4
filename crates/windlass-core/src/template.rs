//! Fills the templates of an argv with one job: `{}` `{data}` `{data.FIELD}` `{column.N}` `{.}` `{/}` `{//}` `{#}`
//! `{queue}` `{id}` `{attempt}`, and with a document of a directory: `{in}` `{out}`.
//!
//! Each argument stays one argument whatever the data holds; nothing here goes near a shell. An argv without a
//! data template gets the data on standard input (a queue) or as its last argument (`windlass run`).

use std::fmt;

/// What a template can name.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    pub data: &'a [u8],
    pub queue: &'a str,
    pub id: &'a str,
    /// The job's number in its run, from 1, or its start where there is no run.
    pub number: u64,
    pub attempt: u32,
    /// Finds a field of data that is a JSON object, as text; the path's parts are separated by dots. None where the
    /// data has no such field. Reading JSON needs more than this crate has, so it is given.
    pub field: &'a dyn Fn(&str) -> Option<Vec<u8>>,
}

impl fmt::Debug for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("queue", &self.queue).field("id", &self.id).finish_non_exhaustive()
    }
}

/// A template named a field that the data does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoField {
    Named(String),
    Column(usize),
}

impl fmt::Display for NoField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoField::Named(name) => {
                write!(
                    f,
                    "the data has no field `{name}`, which the command asks for; expected a JSON object that has it"
                )
            }
            NoField::Column(number) => write!(
                f,
                "the data has no column {number}, which the command asks for; expected columns with tabs between them"
            ),
        }
    }
}

/// True where the argv itself takes the data, so that it must not come on standard input as well.
pub fn takes_data(argv: &[Vec<u8>]) -> bool {
    argv.iter().any(|argument| names(argument).any(is_data))
}

/// True where the argv names a document: where it lies, or where its output goes.
pub fn takes_document(argv: &[Vec<u8>]) -> bool {
    argv.iter().flat_map(|argument| names(argument)).any(|name| matches!(name, b"in" | b"out"))
}

/// True where the argv says where a document's output goes.
pub fn makes_document(argv: &[Vec<u8>]) -> bool {
    argv.iter().flat_map(|argument| names(argument)).any(|name| name == b"out")
}

/// The first template that means one job, in the argv of a process that gets many; `{queue}` does not.
pub fn of_one_job(argv: &[Vec<u8>]) -> Option<String> {
    let of_one = |name: &[u8]| is_data(name) || matches!(name, b"#" | b"id" | b"attempt");
    argv.iter().flat_map(|argument| names(argument)).find(|name| of_one(name)).map(|name| text(name).to_owned())
}

fn is_data(name: &[u8]) -> bool {
    matches!(name, b"" | b"." | b"/" | b"//" | b"data") || name.starts_with(b"data.") || column_of(name).is_some()
}

/// The data of a document: where it lies and where its output goes. No path has a NUL, so none can be mistaken.
pub fn document(input: &[u8], output: &[u8]) -> Vec<u8> {
    [input, output].join(&0)
}

/// The paths of a document; none where the data is no document's.
fn paths(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let nul = data.iter().position(|byte| *byte == 0)?;
    Some((&data[..nul], &data[nul + 1..]))
}

/// The number in `column.N`, from 1.
fn column_of(name: &[u8]) -> Option<usize> {
    text(name.strip_prefix(b"column.")?).parse().ok().filter(|number| (1..=COLUMNS_MOST).contains(number))
}

const COLUMNS_MOST: usize = 999;

/// The short form on a command line, `{2}` for `{column.2}`. Commands of a config do not have it: there `{2}` is what
/// it is to a regular expression.
pub fn with_columns(argument: &[u8]) -> Vec<u8> {
    let mut long = Vec::with_capacity(argument.len());
    let mut rest = argument;
    while let Some(open) = rest.iter().position(|b| *b == b'{') {
        long.extend_from_slice(&rest[..=open]);
        rest = &rest[open + 1..];
        let name = rest.iter().position(|b| *b == b'}').map_or(&[][..], |close| &rest[..close]);
        let column = [b"column.", name].concat();
        if name.iter().all(u8::is_ascii_digit) && column_of(&column).is_some() {
            long.extend_from_slice(b"column.");
        }
    }
    long.extend_from_slice(rest);
    long
}

/// What stands between braces, read as `fill` reads it.
fn names(argument: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = argument;
    std::iter::from_fn(move || {
        loop {
            rest = &rest[rest.iter().position(|b| *b == b'{')? + 1..];
            let name = &rest[..rest.iter().position(|b| *b == b'}')?];
            // A brace within is where the next one begins.
            if !name.contains(&b'{') {
                return Some(name);
            }
        }
    })
}

fn text(name: &[u8]) -> &str {
    std::str::from_utf8(name).unwrap_or_default()
}

/// Fills one argument.
pub fn fill(argument: &[u8], values: Values<'_>) -> Result<Vec<u8>, NoField> {
    fill_by(argument, values, &|bytes, into| into.extend_from_slice(bytes))
}

/// Fills the path and query of a URL: whatever a template stands for is encoded to the last reserved character, so
/// it can neither end a part nor begin one.
pub fn fill_url(target: &str, values: Values<'_>) -> Result<Vec<u8>, NoField> {
    fill_by(target.as_bytes(), values, &|bytes, into| encode(bytes, into))
}

/// Percent-encoding of everything but letters, digits and `-._~`.
pub fn encode(bytes: &[u8], into: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => into.push(*byte),
            _ => into.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
}

/// How what a template stands for is written.
type Put = dyn Fn(&[u8], &mut Vec<u8>);

fn fill_by(argument: &[u8], values: Values<'_>, put: &Put) -> Result<Vec<u8>, NoField> {
    let mut filled = Vec::with_capacity(argument.len() + values.data.len());
    let mut rest = argument;
    while let Some(open) = rest.iter().position(|b| *b == b'{') {
        filled.extend_from_slice(&rest[..open]);
        rest = &rest[open..];
        match rest.iter().position(|b| *b == b'}') {
            Some(close) if expand(&rest[1..close], values, put, &mut filled)? => rest = &rest[close + 1..],
            _ => {
                filled.push(b'{');
                rest = &rest[1..];
            }
        }
    }
    filled.extend_from_slice(rest);
    Ok(filled)
}

/// Writes what the name stands for; false leaves unknown braces as they are.
fn expand(name: &[u8], values: Values<'_>, put: &Put, into: &mut Vec<u8>) -> Result<bool, NoField> {
    match name {
        b"" | b"data" => put(values.data, into),
        b"." => put(without_extension(values.data), into),
        b"/" => put(base_name(values.data), into),
        b"//" => put(directory(values.data), into),
        b"#" => put(values.number.to_string().as_bytes(), into),
        b"queue" => put(values.queue.as_bytes(), into),
        b"id" => put(values.id.as_bytes(), into),
        b"attempt" => put(values.attempt.to_string().as_bytes(), into),
        b"in" | b"out" => match paths(values.data) {
            Some((input, output)) => put(if name == b"in" { input } else { output }, into),
            None => return Ok(false),
        },
        _ => match (column_of(name), name.strip_prefix(b"data.").map(text).filter(|path| !path.is_empty())) {
            (Some(number), _) => put(&column(number, values).ok_or(NoField::Column(number))?, into),
            (None, Some(path)) => put(&(values.field)(path).ok_or_else(|| NoField::Named(path.to_owned()))?, into),
            (None, None) => return Ok(false),
        },
    }
    Ok(true)
}

/// A row that came as CSV is an object whose fields have numbers, JSON lists count from nought; any other line has its
/// columns between tabs, and without a tab it is its own first column.
fn column(number: usize, values: Values<'_>) -> Option<Vec<u8>> {
    match values.data.first() {
        Some(b'[') => (values.field)(&(number - 1).to_string()),
        Some(b'{') => (values.field)(&number.to_string()),
        _ => values.data.split(|byte| *byte == b'\t').nth(number - 1).map(<[u8]>::to_vec),
    }
}

fn base_name(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(path, |slash| &path[slash + 1..])
}

fn directory(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|b| *b == b'/') {
        None => b".",
        Some(0) => b"/",
        Some(slash) => &path[..slash],
    }
}

fn without_extension(path: &[u8]) -> &[u8] {
    let base = base_name(path);
    match base.iter().rposition(|b| *b == b'.') {
        // A leading dot hides a file; it does not begin an extension.
        None | Some(0) => path,
        Some(dot) => &path[..path.len() - (base.len() - dot)],
    }
}

/// What `encode` was given; none where a `%` is not followed by two digits.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text.iter());
    while let Some(byte) = rest.next() {
        decoded.push(match byte {
            b'%' => (digit(rest.next())? << 4 | digit(rest.next())?) as u8,
            other => *other,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(path: &str) -> Option<Vec<u8>> {
        (path == "to.name").then(|| b"{id} Ann".to_vec())
    }

    fn filled(argument: &str, data: &str) -> String {
        let values = Values { data: data.as_bytes(), queue: "q", id: "j-1", number: 7, attempt: 3, field: &field };
        String::from_utf8(fill(argument.as_bytes(), values).unwrap()).unwrap()
    }

    #[test]
    fn fields_of_the_data_are_found_or_missed_by_name() {
        assert_eq!(filled("<{data.to.name}> try {attempt}", "x"), "<{id} Ann> try 3");
        assert_eq!(filled("{data}{data.}", "x"), "x{data.}");
        let values = Values { data: b"", queue: "q", id: "j-1", number: 7, attempt: 3, field: &field };
        assert_eq!(fill(b"{data.none}", values), Err(NoField::Named("none".into())));
    }

    #[test]
    fn columns_are_counted_from_one() {
        assert_eq!(filled("{column.2}-{column.1}", "a b\tc"), "c-a b");
        assert_eq!(filled("{column.1}", "whole line"), "whole line");
        let values = |data: &'static [u8]| Values {
            data,
            queue: "q",
            id: "j-1",
            number: 7,
            attempt: 3,
            field: &|name| Some(format!("field {name}").into_bytes()),
        };
        assert_eq!(fill(b"{column.2}", values(b"{}")).unwrap(), b"field 2");
        assert_eq!(fill(b"{column.2}", values(b"[]")).unwrap(), b"field 1");
        assert_eq!(fill(b"{column.3}", values(b"a\tb")), Err(NoField::Column(3)));
        assert_eq!(filled("{column.0}{column.x}{column.1000}", "a"), "{column.0}{column.x}{column.1000}");
        for (short, long) in [
            ("{2} {1}.jpg", "{column.2} {column.1}.jpg"),
            ("{{1}}", "{{column.1}}"),
            ("{} {0} {-1} {1,2} {1", "{} {0} {-1} {1,2} {1"),
        ] {
            assert_eq!(String::from_utf8(with_columns(short.as_bytes())).unwrap(), long);
        }
        assert!(takes_data(&[b"{column.1}".to_vec()]) && !takes_data(&[b"[0-9]{4}".to_vec()]));
    }

    #[test]
    fn a_document_is_two_paths_and_other_data_has_none() {
        let data = document(b"/q/a{}b.7.working", b"/out/\xff");
        let values = Values { data: &data, queue: "q", id: "j-1", number: 7, attempt: 3, field: &field };
        assert_eq!(fill(b"<{in}>", values).unwrap(), b"</q/a{}b.7.working>", "a name is never a template");
        assert_eq!(fill(b"{out}", values).unwrap(), b"/out/\xff");
        assert_eq!(filled("{in} {out}", "a line"), "{in} {out}");
        let argv = |argument: &str| vec![b"p".to_vec(), argument.as_bytes().to_vec()];
        assert!(takes_document(&argv("{in}")) && !takes_document(&argv("{inn}")));
        assert!(makes_document(&argv("x={out}")) && !makes_document(&argv("{in}")));
    }

    #[test]
    fn a_process_for_many_jobs_may_not_name_one() {
        let argv = |argument: &str| of_one_job(&[b"p".to_vec(), argument.as_bytes().to_vec()]);
        assert_eq!(argv("{queue} {x} { {"), None);
        for (argument, name) in [("{}", ""), ("a{id}", "id"), ("{{attempt}", "attempt"), ("{data.a}", "data.a")] {
            assert_eq!(argv(argument).as_deref(), Some(name));
        }
    }

    #[test]
    fn names_of_a_path() {
        for (template, expected) in [
            ("{}", "/a/b.c/d.jpg"),
            ("{.}.thumb.jpg", "/a/b.c/d.thumb.jpg"),
            ("{/}", "d.jpg"),
            ("{//}", "/a/b.c"),
            ("{#}-{queue}-{id}", "7-q-j-1"),
            ("{x} {", "{x} {"),
            ("{{}}", "{/a/b.c/d.jpg}"),
        ] {
            assert_eq!(filled(template, "/a/b.c/d.jpg"), expected);
        }
        assert_eq!(filled("{.} {//} {/}", ".hidden"), ".hidden . .hidden");
        assert_eq!(filled("{//}", "/x"), "/");
    }

    #[test]
    fn data_is_never_a_template() {
        assert_eq!(filled("[{}]", "{id} $(id)"), "[{id} $(id)]");
    }

    #[test]
    fn a_value_in_a_url_is_one_part_of_it() {
        let values =
            Values { data: b"a/b?c=d&e#f %\0\xe9", queue: "q r", id: "j-1", number: 7, attempt: 3, field: &field };
        let filled = fill_url("/{queue}/{}?to={data.to.name}&n={attempt}", values).unwrap();
        let expected = "/q%20r/a%2Fb%3Fc%3Dd%26e%23f%20%25%00%E9?to=%7Bid%7D%20Ann&n=3";
        assert_eq!(String::from_utf8(filled).unwrap(), expected);
    }

    #[test]
    fn only_data_templates_take_the_data() {
        assert!(takes_data(&[b"a".to_vec(), b"x{.}y".to_vec()]));
        assert!(!takes_data(&[b"{id}".to_vec(), b"{queue}".to_vec(), b"{#}".to_vec()]));
    }

    #[test]
    fn whatever_is_encoded_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let mut text = Vec::new();
        encode(&all, &mut text);
        assert_eq!(decode(&text), Some(all));
        assert_eq!((decode(b"a%2"), decode(b"%zz")), (None, None));
    }
}
