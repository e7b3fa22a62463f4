//! One way to print rows: a listing verb names its columns, and `-o` decides the form.
//!
//! `json`, `jsonl` and `yaml` have what the API answers, or the columns of `--fields`; `csv` has cells as a machine
//! reads them: seconds, plain numbers, times in UTC. Only the table of a terminal is ever shortened, in the middle, and
//! never an id or the word of a state.

use super::Context;
use super::color::painted;
use super::print::{Out, shortened, terminal_width};
use crate::config::units::nearest;
use crate::error::{Failure, Kind};
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// The options of every listing verb.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Shape {
    /// How: table, wide, json, jsonl, yaml, csv or ids
    #[arg(short, long, value_name = "FORM", value_enum, hide_possible_values = true)]
    output: Option<Form>,
    /// These columns, in this order, with commas between
    #[arg(long, value_name = "COLUMNS")]
    fields: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Form {
    Table,
    Wide,
    Json,
    Jsonl,
    Yaml,
    Csv,
    Ids,
}

/// Whom a cell is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    People,
    Machines,
}

/// What a verb can list: its first column names a row.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) all: &'static [&'static str],
    /// Without `--fields`.
    pub(super) usual: &'static [&'static str],
    /// Where there is room for more.
    pub(super) wide: &'static [&'static str],
    pub(super) cell: fn(&Value, &str, For) -> Result<String, Failure>,
}

impl Columns {
    /// The column of this name.
    pub(super) fn named(&self, text: &str) -> Result<&'static str, String> {
        let found = self.all.iter().find(|name| **name == text);
        found.copied().ok_or_else(|| {
            let near = nearest(text, self.all).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            format!("expected a column ({}), got: {text}{near}", self.all.join(", "))
        })
    }

    fn chosen(&self, text: &str) -> Result<Vec<&'static str>, Failure> {
        let columns = text.split(',').map(|name| self.named(name.trim()));
        columns.collect::<Result<_, _>>().map_err(|why| Failure::new(Kind::Usage, format!("--fields: {why}")))
    }
}

/// Columns that are never shortened: half an id is none, and half a state says nothing.
const WHOLE: [&str; 6] = ["id", "run", "state", "health", "closed", "check"];
/// A column that must give way keeps so much.
const NARROWEST: usize = 12;

/// A listing on its way out.
pub(super) struct Listing {
    form: Form,
    columns: Vec<&'static str>,
    /// The columns were asked for by name, so they are all that machines get, too.
    chosen: bool,
    of: Columns,
    color: bool,
    /// What people read above the column that names a row, where that is no name of a column.
    heading: Option<String>,
    headed: bool,
    out: Out,
    printed: u64,
}

impl Listing {
    /// Refuses a column that there is not, before anything is asked of anybody.
    pub(super) fn new(shape: &Shape, of: Columns, context: &Context) -> Result<Listing, Failure> {
        let form = shape.output.unwrap_or(if context.json { Form::Json } else { Form::Table });
        let columns = match (&shape.fields, form) {
            (Some(fields), _) => of.chosen(fields)?,
            (None, Form::Wide | Form::Csv) => of.wide.to_vec(),
            (None, _) => of.usual.to_vec(),
        };
        let chosen = shape.fields.is_some();
        let (color, out) = (context.color, Out::new());
        Ok(Listing { form, columns, chosen, of, color, heading: None, headed: false, out, printed: 0 })
    }

    /// True where people read it, so that sentences go with it.
    pub(super) fn is_for_people(&self) -> bool {
        matches!(self.form, Form::Table | Form::Wide)
    }

    pub(super) fn printed(&self) -> u64 {
        self.printed
    }

    /// True where nobody reads any more.
    pub(super) fn closed(&self) -> bool {
        self.out.closed()
    }

    /// A further column, where one is needed only now and then.
    pub(super) fn with_column(&mut self, name: &'static str) {
        if !self.chosen {
            self.columns.push(name);
        }
    }

    /// People read this above the column that names a row.
    pub(super) fn headed(&mut self, name: &str) {
        self.heading = Some(name.to_uppercase());
    }

    /// The next rows.
    pub(super) fn print(&mut self, items: &[Value]) -> Result<(), Failure> {
        let first = !self.headed;
        self.headed = true;
        self.printed += items.len() as u64;
        match self.form {
            Form::Table | Form::Wide => {
                let rows = self.rows(items, first, For::People)?;
                let lines =
                    aligned(&rows, &self.columns, terminal_width().filter(|_| self.form == Form::Table), self.color);
                lines.iter().for_each(|line| self.out.line(line));
            }
            Form::Json | Form::Jsonl | Form::Yaml => {
                for (at, item) in items.iter().enumerate() {
                    let item = self.of_machine(item)?;
                    match self.form {
                        Form::Jsonl => self.out.line(item),
                        Form::Yaml => self.out.bytes(yaml(&Value::Array(vec![item])).as_bytes()),
                        _ => {
                            let first = self.printed == items.len() as u64;
                            self.out.bytes(if first && at == 0 { b"[\n" } else { b",\n" });
                            self.out.bytes(item.to_string().as_bytes());
                        }
                    }
                }
            }
            Form::Ids => {
                for item in items {
                    self.out.line((self.of.cell)(item, self.of.all[0], For::Machines)?);
                }
            }
            Form::Csv => {
                for row in self.rows(items, first, For::Machines)? {
                    self.out.line(row.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(","));
                }
            }
        }
        Ok(())
    }

    /// After the last rows.
    pub(super) fn end(mut self) -> Result<u8, Failure> {
        let nothing = self.printed == 0;
        match self.form {
            Form::Json => self.out.bytes(if nothing { b"[]\n" } else { b"\n]\n" }),
            Form::Yaml if nothing => self.out.bytes(b"[]\n"),
            // People and spreadsheets get the heading.
            Form::Table | Form::Wide | Form::Csv if !self.headed => self.print(&[])?,
            _ => {}
        }
        self.out.finish()
    }

    /// Rows that are all there, out of an answer that has more to say: as a whole it is what `json` and `yaml` have.
    /// The last of the rows may be their sum, which only people want among them.
    pub(super) fn whole(mut self, answer: &Value, items: &[Value], sum: Option<Value>) -> Result<u8, Failure> {
        match self.form {
            Form::Json if !self.chosen => self.out.line(answer),
            Form::Yaml if !self.chosen => self.out.bytes(yaml(answer).as_bytes()),
            _ => {
                let sum = sum.filter(|_| self.is_for_people());
                self.print(&items.iter().cloned().chain(sum).collect::<Vec<_>>())?;
                return self.end();
            }
        }
        self.out.finish()
    }

    fn rows(&self, items: &[Value], heading: bool, whom: For) -> Result<Vec<Vec<String>>, Failure> {
        let mut rows = Vec::with_capacity(items.len() + 1);
        if heading {
            let name = |column: &&str| match whom {
                For::People if *column == self.of.all[0] && self.heading.is_some() => {
                    self.heading.clone().unwrap_or_default()
                }
                For::People => column.to_uppercase().replace('_', " "),
                For::Machines => (*column).to_owned(),
            };
            rows.push(self.columns.iter().map(name).collect());
        }
        for item in items {
            let cells = self.columns.iter().map(|column| (self.of.cell)(item, column, whom));
            rows.push(cells.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(rows)
    }

    /// The item as it was answered, or its chosen columns: as they were answered where they were.
    fn of_machine(&self, item: &Value) -> Result<Value, Failure> {
        if !self.chosen {
            return Ok(item.clone());
        }
        let mut fields = Map::new();
        for column in &self.columns {
            let value = match item.get(*column) {
                Some(value) => value.clone(),
                None => match (self.of.cell)(item, column, For::Machines)? {
                    nothing if nothing.is_empty() => Value::Null,
                    cell => cell.into(),
                },
            };
            fields.insert((*column).to_owned(), value);
        }
        Ok(Value::Object(fields))
    }
}

/// The lines of a table with aligned columns; within `width`, if there is one.
pub(super) fn aligned(rows: &[Vec<String>], columns: &[&str], width: Option<usize>, color: bool) -> Vec<String> {
    let length = |cell: &String| cell.chars().count();
    let mut widths: Vec<usize> =
        (0..columns.len()).map(|column| rows.iter().map(|row| length(&row[column])).max().unwrap_or(0)).collect();
    if let Some(width) = width {
        narrow(&mut widths, columns, width);
    }
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let shown = shortened(cell, widths[column]);
            let padding = (widths[column] + 2).saturating_sub(length(&shown));
            line.push_str(&if color && columns[column] == "state" { painted(&shown) } else { shown });
            line.extend(std::iter::repeat_n(' ', padding));
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Takes from the widest columns until everything fits, as far as they can give.
fn narrow(widths: &mut [usize], columns: &[&str], width: usize) {
    loop {
        let total: usize = widths.iter().map(|width| width + 2).sum::<usize>().saturating_sub(2);
        let giving =
            widths.iter_mut().zip(columns).filter(|(width, name)| **width > NARROWEST && !WHOLE.contains(name));
        match giving.max_by_key(|(width, _)| **width) {
            Some((widest, _)) if total > width => *widest -= (total - width).min(*widest - NARROWEST).min(8),
            _ => return,
        }
    }
}

/// A cell of CSV; what a spreadsheet could take for a formula is only text here.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

/// A document of YAML in block style. Strings are in double quotes, as JSON writes them, so that none is taken for
/// something else.
pub(super) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

fn block(value: &Value, depth: usize, text: &mut String) {
    // Writing to a string cannot fail.
    let entry = |head: &str, value: &Value, text: &mut String| {
        let _ = write!(text, "{:1$}{head}", "", depth * 2);
        match value {
            Value::Object(fields) if !fields.is_empty() => inner(head, value, depth, text),
            Value::Array(items) if !items.is_empty() => inner(head, value, depth, text),
            plain => {
                let _ = writeln!(text, " {}", scalar(plain));
            }
        }
    };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, value)| entry(&format!("{}:", key(name)), value, text));
        }
        Value::Array(items) if !items.is_empty() => items.iter().for_each(|item| entry("-", item, text)),
        plain => {
            let _ = writeln!(text, "{}", scalar(plain));
        }
    }
}

/// What stands below a head, or for the fields of an item beside its dash.
fn inner(head: &str, value: &Value, depth: usize, text: &mut String) {
    let mut below = String::new();
    block(value, depth + 1, &mut below);
    match head {
        "-" => {
            text.push(' ');
            text.push_str(below.trim_start());
        }
        _ => {
            text.push('\n');
            text.push_str(&below);
        }
    }
}

fn key(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.len() > 1;
    let plain = plain && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let word = ["true", "false", "null", "yes", "no", "on", "off"].contains(&name.to_lowercase().as_str());
    if plain && !word { name.to_owned() } else { scalar(&Value::from(name)) }
}

fn scalar(value: &Value) -> String {
    let mut text = String::new();
    for c in value.to_string().chars() {
        match c {
            // JSON may have them as they are, YAML may not.
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => {
                let _ = write!(text, "\\u{:04x}", c as u32);
            }
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_fits_and_keeps_its_words() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        let long = "a-very-long-queue-name-of-somebody";
        let rows = [row(&["ID", "QUEUE", "STATE", "DATA"]), row(&["j-0c3k5p7m2x-1f", long, "succeeded", long])];
        let lines = aligned(&rows, &["id", "queue", "state", "data"], Some(64), false);
        assert!(lines.iter().all(|line| line.chars().count() <= 64), "{lines:?}");
        assert!(lines[1].starts_with("j-0c3k5p7m2x-1f  a-very-") && lines[1].contains("  succeeded  "), "{lines:?}");
        assert!(lines[1].contains('…') && lines[1].ends_with("omebody"), "{lines:?}");
        let narrow = aligned(&rows, &["id", "queue", "state", "data"], Some(10), false);
        assert!(narrow[1].contains("succeeded"), "what cannot fit is not cut to pieces: {narrow:?}");
        let free = aligned(&rows, &["id", "queue", "state", "data"], None, false);
        assert!(free[1].ends_with(long));
    }

    #[test]
    fn yaml_says_what_json_says() {
        let list = json!([1, { "a": null, "bb": [] }, [2, 3]]);
        let value = json!({ "id": "j-1", "no": true, "list": list, "map": {}, "text": "a: \"b\"\n" });
        assert_eq!(
            yaml(&value),
            "id: \"j-1\"\nlist:\n  - 1\n  - \"a\": null\n    bb: []\n  - - 2\n    - 3\nmap: {}\n\"no\": true\n\
             text: \"a: \\\"b\\\"\\n\"\n"
        );
        assert_eq!((yaml(&json!([])), yaml(&json!("\u{85}"))), ("[]\n".into(), "\"\\u0085\"\n".into()));
    }

    #[test]
    fn a_cell_of_csv() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
