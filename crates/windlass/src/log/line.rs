//! The layouts of a line. Whatever a value holds, it stays one line and can be taken apart again.

use super::{Format, Level, Line};
use crate::when;
use serde_json::{Map, Value};

/// The line with its end.
pub(super) fn text(line: &Line, format: Format) -> Vec<u8> {
    let mut text = match format {
        Format::Logfmt => logfmt(line),
        Format::Json => json(line),
    };
    text.push('\n');
    text.into_bytes()
}

/// The line as the journal takes it: its weight in front, and no time, which the journal has.
pub(super) fn of_journal(line: &Line, format: Format) -> Vec<u8> {
    let weight = match line.level {
        Level::Debug => 7,
        Level::Info => 6,
        Level::Warn => 4,
        Level::Error => 3,
    };
    let text = match format {
        Format::Logfmt => values(line, format!("msg={}", quoted(&line.what))),
        Format::Json => json(line),
    };
    format!("<{weight}>{text}\n").into_bytes()
}

/// The line as people read it beside the program: the time of day, and what matters in colour.
pub(super) fn of_terminal(line: &Line, color: bool) -> Vec<u8> {
    let (word, code) = match line.level {
        Level::Debug => ("debug", "2"),
        Level::Info => ("info ", "32"),
        Level::Warn => ("warn ", "33"),
        Level::Error => ("error", "31"),
    };
    let word = if color { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() };
    let what = line.what.escape_debug();
    let text = values(line, format!("{} {word} {what}", when::time_of_day(&when::rfc3339(line.time))));
    format!("{text}\n").into_bytes()
}

fn logfmt(line: &Line) -> String {
    let head = format!("time={} level={} msg={}", when::rfc3339(line.time), line.level.word(), quoted(&line.what));
    values(line, head)
}

fn values(line: &Line, mut text: String) -> String {
    for (name, value) in &line.values {
        let shown = match value {
            Value::String(value) => quoted(value),
            other => other.to_string(),
        };
        text.push_str(&format!(" {name}={shown}"));
    }
    text
}

fn json(line: &Line) -> String {
    let mut fields = Map::new();
    fields.insert("time".into(), when::rfc3339(line.time).into());
    fields.insert("level".into(), line.level.word().into());
    fields.insert("msg".into(), line.what.as_ref().into());
    fields.extend(line.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    Value::Object(fields).to_string()
}

/// A value as it is, or in quotes with everything escaped that could end it, the line, or a terminal's good mood.
fn quoted(value: &str) -> String {
    let harmless = |c: char| !c.is_control() && !matches!(c, ' ' | '"' | '=' | '\\' | '\u{2028}' | '\u{2029}');
    if !value.is_empty() && value.chars().all(harmless) {
        return value.to_owned();
    }
    let mut text = String::from("\"");
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                text.push_str(&format!("\\u{{{:x}}}", c as u32));
            }
            c => text.push(c),
        }
    }
    text.push('"');
    text
}
