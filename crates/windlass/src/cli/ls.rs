//! `windlass ls`: a listing of jobs, page by page, so that its length costs nobody memory.
//!
//! Only `--sort` has to hold what it sorts; it says so where that is too much.

use super::Context;
use super::amend::selector_of;
use super::connect::{Connection, Link, encoded};
use super::print::{self, Out, data_of, field, visible};
use super::values;
use crate::clock;
use crate::config::units::nearest;
use crate::error::{Failure, Kind};
use crate::when;
use serde_json::Value;
use windlass_core::time::Time;

const PAGE: u64 = 1000;
/// On a terminal nobody reads more; a pipe gets everything.
const SCREENFUL: u64 = 200;
/// So many jobs are sorted at most.
const SORTED_MOST: usize = 100_000;

const EXAMPLES: &str = "\
Examples:
  windlass ls
  windlass ls state:failed queue:mail
  windlass ls 'age>1h priority>=5' --sort -priority
  windlass ls run:r-0c3k5p7m2x -o ids
  windlass ls -- -queue:mail                   without one queue

Selectors: queue:PATTERN state:STATE run:ID id:ID reason:WORD error:TEXT text:TEXT \"TEXT\",
           priority attempts age ended due with > >= < <= or LOW..HIGH; comma: or, space: and, -: not";

/// The columns there are; what the API calls otherwise is beside it.
const FIELDS: [&str; 12] =
    ["id", "queue", "state", "priority", "age", "tries", "failures", "run", "reason", "due", "error", "data"];
/// The columns that a table has unless told otherwise.
pub(super) const USUAL: [&str; 7] = ["id", "queue", "state", "priority", "age", "tries", "data"];
const WIDE: [&str; 11] =
    ["id", "queue", "state", "priority", "age", "tries", "failures", "run", "reason", "error", "data"];

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// Which jobs; none means all
    selector: Vec<String>,
    /// At most this many; by default 200 on a terminal, else all
    #[arg(long, value_name = "N", value_parser = values::most)]
    limit: Option<u64>,
    /// By this column, -COLUMN the largest first; by default by arrival
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true, value_parser = sort)]
    sort: Option<Sort>,
    /// How: table, wide, json, jsonl, csv or ids
    #[arg(short, long, value_name = "FORM", value_parser = form)]
    output: Option<Form>,
    /// These columns, in this order, with commas between
    #[arg(long, value_name = "COLUMNS", value_parser = fields)]
    fields: Option<Fields>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Table,
    Wide,
    Json,
    Jsonl,
    Csv,
    Ids,
}

#[derive(Clone, Debug)]
struct Fields(Vec<&'static str>);

#[derive(Clone, Copy, Debug)]
struct Sort {
    column: &'static str,
    descending: bool,
}

pub(super) fn ls(args: &Args, context: &Context) -> Result<u8, Failure> {
    let form = args.output.unwrap_or(if context.json { Form::Json } else { Form::Table });
    let limit = args.limit.unwrap_or(if print::terminal_width().is_some() { SCREENFUL } else { u64::MAX });
    let columns = match &args.fields {
        Some(Fields(columns)) => columns.clone(),
        None if matches!(form, Form::Wide | Form::Csv) => WIDE.to_vec(),
        None => USUAL.to_vec(),
    };
    let dir = context.data_dir()?;
    let colored = columns.iter().position(|column| *column == "state").filter(|_| context.color);
    let mut listing = Listing { form, columns, colored, out: Out::new(), printed: 0 };
    let selector = selector_of(&args.selector);
    let more = Link::with(&dir, |server| match args.sort {
        Some(sort) => listing.sorted(server, &selector, limit, sort),
        None => listing.as_they_came(server, &selector, limit),
    })?;
    listing.end();
    let code = listing.out.finish()?;
    if more && args.limit.is_none() {
        context.say(format_args!("there are more; --limit N shows them"));
    }
    Ok(code)
}

/// A listing on its way to the screen.
struct Listing {
    form: Form,
    columns: Vec<&'static str>,
    /// The column of states, where they have colours.
    colored: Option<usize>,
    out: Out,
    printed: u64,
}

impl Listing {
    /// Prints pages until the end, the limit or the reader's leave; true where jobs were left out.
    fn as_they_came(&mut self, server: &mut Connection, selector: &str, limit: u64) -> Result<bool, Failure> {
        let mut cursor = None;
        loop {
            let (items, next) = page(server, selector, PAGE.min(limit - self.printed), cursor.as_deref())?;
            self.print(&items)?;
            if next.is_none() || self.printed >= limit || self.out.closed() {
                return Ok(next.is_some());
            }
            cursor = next;
        }
    }

    /// Everything first, then in order.
    fn sorted(&mut self, server: &mut Connection, selector: &str, limit: u64, sort: Sort) -> Result<bool, Failure> {
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let (items, next) = page(server, selector, PAGE, cursor.as_deref())?;
            all.extend(items);
            if all.len() > SORTED_MOST {
                let text = format!("more than {} jobs match, too many to sort", print::grouped(SORTED_MOST as u64));
                return Err(Failure::new(Kind::Usage, text).hint("choose fewer, or leave --sort out"));
            }
            let Some(next) = next else { break };
            cursor = Some(next);
        }
        all.sort_by_cached_key(|item| sort_key(item, sort.column));
        if sort.descending {
            all.reverse();
        }
        let shown = usize::try_from(limit).unwrap_or(usize::MAX).min(all.len());
        self.print(&all[..shown])?;
        Ok(shown < all.len())
    }

    fn print(&mut self, items: &[Value]) -> Result<(), Failure> {
        let first = self.printed == 0;
        match self.form {
            Form::Table | Form::Wide => {
                print::table(&mut self.out, &rows(items, &self.columns, first)?, self.colored);
            }
            Form::Json => items.iter().enumerate().for_each(|(at, item)| {
                self.out.bytes(if first && at == 0 { b"[\n" } else { b",\n" });
                self.out.bytes(item.to_string().as_bytes());
            }),
            Form::Jsonl => items.iter().for_each(|item| self.out.line(item)),
            Form::Ids => items.iter().for_each(|item| self.out.line(field(item, "id"))),
            Form::Csv => {
                for row in rows(items, &self.columns, first)? {
                    self.out.line(row.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(","));
                }
            }
        }
        self.printed += items.len() as u64;
        Ok(())
    }

    fn end(&mut self) {
        if self.form == Form::Json {
            self.out.bytes(if self.printed == 0 { b"[]\n" } else { b"\n]\n" });
        }
    }
}

fn page(
    server: &mut Connection,
    selector: &str,
    most: u64,
    cursor: Option<&str>,
) -> Result<(Vec<Value>, Option<String>), Failure> {
    let cursor = cursor.map(|cursor| format!("&cursor={}", encoded(cursor))).unwrap_or_default();
    let path = format!("/api/v1/jobs?selector={}&limit={most}{cursor}", encoded(selector));
    let mut page: Value = server.get_json(&path)?;
    let items = match page.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    Ok((items, page.get("next").and_then(Value::as_str).map(str::to_owned)))
}

/// The cells of a table, with its heading if it is the beginning.
pub(super) fn rows(items: &[Value], columns: &[&str], heading: bool) -> Result<Vec<Vec<String>>, Failure> {
    let mut rows = Vec::with_capacity(items.len() + 1);
    if heading {
        rows.push(columns.iter().map(|column| column.to_uppercase()).collect());
    }
    for item in items {
        rows.push(columns.iter().map(|column| cell(item, column)).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(rows)
}

fn cell(item: &Value, column: &str) -> Result<String, Failure> {
    let attempts = item.get("attempts").unwrap_or(&Value::Null);
    Ok(match column {
        "age" => moment(item, "admitted").map_or_else(String::new, |at| when::spoken(clock::now().since(at))),
        "tries" => field(attempts, "starts"),
        "failures" => field(attempts, "failures"),
        "due" => field(item, "not_before"),
        "error" => {
            let last = item.get("errors").and_then(Value::as_array).and_then(|errors| errors.last());
            last.map(|error| field(error, "text")).unwrap_or_default()
        }
        "data" => visible(&String::from_utf8_lossy(&data_of(item, "data")?)),
        plain => field(item, plain),
    })
}

/// Numbers by their value, the rest by its text; the younger has the smaller age.
fn sort_key(item: &Value, column: &str) -> (i64, String) {
    let attempts = item.get("attempts").unwrap_or(&Value::Null);
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_i64).unwrap_or(0);
    match column {
        "priority" => (number(item, "priority"), String::new()),
        "tries" => (number(attempts, "starts"), String::new()),
        "failures" => (number(attempts, "failures"), String::new()),
        "age" => (moment(item, "admitted").map_or(0, |at| -at.as_micros()), String::new()),
        column => (0, cell(item, column).unwrap_or_default()),
    }
}

fn moment(item: &Value, key: &str) -> Option<Time> {
    let stamp = item.get(key).and_then(Value::as_str)?.parse::<jiff::Timestamp>().ok()?;
    Some(Time(stamp.as_microsecond()))
}

/// A cell of CSV; what a spreadsheet could take for a formula is only text here.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

fn column(text: &str) -> Result<&'static str, String> {
    let found = FIELDS.iter().find(|name| **name == text);
    found.copied().ok_or_else(|| {
        let near = nearest(text, &FIELDS).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        format!("expected a column ({}), got: {text}{near}", FIELDS.join(", "))
    })
}

fn fields(text: &str) -> Result<Fields, String> {
    text.split(',').map(column).collect::<Result<Vec<_>, _>>().map(Fields)
}

fn sort(text: &str) -> Result<Sort, String> {
    let (descending, name) = text.strip_prefix('-').map_or((false, text), |name| (true, name));
    Ok(Sort { column: column(name)?, descending })
}

fn form(text: &str) -> Result<Form, String> {
    Ok(match text {
        "table" => Form::Table,
        "wide" => Form::Wide,
        "json" => Form::Json,
        "jsonl" => Form::Jsonl,
        "csv" => Form::Csv,
        "ids" => Form::Ids,
        other => return Err(format!("expected table, wide, json, jsonl, csv or ids, got: {other}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_forms() {
        assert_eq!(fields("id,state").unwrap().0, ["id", "state"]);
        assert_eq!(
            fields("id,stat").unwrap_err(),
            format!("expected a column ({}), got: stat; did you mean state?", FIELDS.join(", "))
        );
        assert!(sort("-age").unwrap().descending);
        assert!(sort("--age").is_err() && sort("").is_err() && form("xml").is_err());
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
