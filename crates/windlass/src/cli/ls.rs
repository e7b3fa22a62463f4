//! `windlass ls`: a listing of jobs, page by page, so that its length costs nobody memory.
//!
//! Only `--sort` has to hold what it sorts; it says so where that is too much.

use super::Context;
use super::amend::selector_of;
use super::connect::{Connection, Link, encoded};
use super::listing::{Columns, For, Listing, Shape};
use super::print::{self, data_of, field, visible};
use super::values;
use crate::clock;
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
  windlass ls -o csv --fields id,state,age
  windlass ls -- -queue:mail                   without one queue

Selectors: queue:PATTERN state:STATE run:ID id:ID reason:WORD error:TEXT text:TEXT \"TEXT\",
           priority attempts age ended due with > >= < <= or LOW..HIGH
           comma: or, space: and, -: not";

/// The columns there are; what the API calls otherwise is beside it.
pub(super) const COLUMNS: Columns = Columns {
    all: &["id", "queue", "state", "priority", "age", "tries", "failures", "run", "reason", "due", "error", "data"],
    usual: &["id", "queue", "state", "priority", "age", "tries", "data"],
    wide: &["id", "queue", "state", "priority", "age", "tries", "failures", "run", "reason", "error", "data"],
    cell,
};

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
    #[command(flatten)]
    shape: Shape,
}

#[derive(Clone, Copy, Debug)]
struct Sort {
    column: &'static str,
    descending: bool,
}

pub(super) fn ls(args: &Args, context: &Context) -> Result<u8, Failure> {
    let limit = args.limit.unwrap_or(if print::terminal_width().is_some() { SCREENFUL } else { u64::MAX });
    let mut listing = Listing::new(&args.shape, COLUMNS, context)?;
    let place = context.place()?;
    let selector = selector_of(&args.selector);
    let more = Link::with(&place, |server| match args.sort {
        Some(sort) => sorted(&mut listing, server, &selector, limit, sort),
        None => as_they_came(&mut listing, server, &selector, limit),
    })?;
    let code = listing.end()?;
    if more && args.limit.is_none() {
        context.say(format_args!("there are more; --limit N shows them"));
    }
    Ok(code)
}

/// Prints pages until the end, the limit or the reader's leave; true where jobs were left out.
fn as_they_came(listing: &mut Listing, server: &mut Connection, selector: &str, limit: u64) -> Result<bool, Failure> {
    let mut cursor = None;
    loop {
        let (items, next) = page(server, selector, PAGE.min(limit - listing.printed()), cursor.as_deref())?;
        listing.print(&items)?;
        if next.is_none() || listing.printed() >= limit || listing.closed() {
            return Ok(next.is_some());
        }
        cursor = next;
    }
}

/// Everything first, then in order.
fn sorted(
    listing: &mut Listing,
    server: &mut Connection,
    selector: &str,
    limit: u64,
    sort: Sort,
) -> Result<bool, Failure> {
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
    listing.print(&all[..shown])?;
    Ok(shown < all.len())
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

fn cell(item: &Value, column: &str, whom: For) -> Result<String, Failure> {
    let attempts = item.get("attempts").unwrap_or(&Value::Null);
    let age = || moment(item, "admitted").map(|at| clock::now().since(at));
    Ok(match (column, whom) {
        ("age", For::People) => age().map(when::spoken).unwrap_or_default(),
        ("age", For::Machines) => age().map(|age| format!("{:.3}", age.as_secs_f64())).unwrap_or_default(),
        ("tries", _) => field(attempts, "starts"),
        ("failures", _) => field(attempts, "failures"),
        ("due", For::People) => moment(item, "not_before").map(when::told).unwrap_or_default(),
        ("due", For::Machines) => field(item, "not_before"),
        ("error", _) => {
            let last = item.get("errors").and_then(Value::as_array).and_then(|errors| errors.last());
            last.map(|error| field(error, "text")).unwrap_or_default()
        }
        ("data", _) => visible(&String::from_utf8_lossy(&data_of(item, "data")?)),
        (plain, _) => field(item, plain),
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
        column => (0, cell(item, column, For::Machines).unwrap_or_default()),
    }
}

fn moment(item: &Value, key: &str) -> Option<Time> {
    let stamp = item.get(key).and_then(Value::as_str)?.parse::<jiff::Timestamp>().ok()?;
    Some(Time(stamp.as_microsecond()))
}

fn sort(text: &str) -> Result<Sort, String> {
    let (descending, name) = text.strip_prefix('-').map_or((false, text), |name| (true, name));
    Ok(Sort { column: COLUMNS.named(name)?, descending })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_their_nearest_names() {
        assert_eq!(COLUMNS.named("state"), Ok("state"));
        assert_eq!(
            COLUMNS.named("stat").unwrap_err(),
            format!("expected a column ({}), got: stat; did you mean state?", COLUMNS.all.join(", "))
        );
        assert!(sort("-age").unwrap().descending);
        assert!(sort("--age").is_err() && sort("").is_err());
    }
}
