//! `windlass ls`: a listing of jobs, page by page, so that its length costs nobody memory.

use super::Context;
use super::connect::{Connection, Link, encoded};
use super::print::{self, Out, count, data_of, field, visible};
use crate::clock;
use crate::error::Failure;
use crate::when;
use serde_json::Value;

const PAGE: u64 = 1000;
/// On a terminal nobody reads more; a pipe gets everything.
const SCREENFUL: u64 = 200;

const EXAMPLES: &str = "\
Examples:
  windlass ls
  windlass ls state:failed queue:mail
  windlass ls run:r-0c3k5p7m2x --json | jq '.[].id'";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// Which jobs: queue:NAME state:STATE run:ID; commas mean or, spaces and
    selector: Vec<String>,
    /// At most this many; by default 200 on a terminal, else all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

pub(super) fn ls(args: &Args, context: &Context) -> Result<u8, Failure> {
    let dir = context.data_dir()?;
    let limit = args.limit.unwrap_or(if print::terminal_width().is_some() { SCREENFUL } else { u64::MAX });
    let mut out = Out::new();
    let more = Link::with(&dir, |server| list(server, &args.selector.join(" "), limit, context.json, &mut out))?;
    let code = out.finish()?;
    if more && args.limit.is_none() {
        context.say(format_args!("there are more; --limit N shows them"));
    }
    Ok(code)
}

/// Prints pages until the end, the limit or the reader's leave; true where jobs were left out.
fn list(server: &mut Connection, selector: &str, limit: u64, as_json: bool, out: &mut Out) -> Result<bool, Failure> {
    let (mut cursor, mut printed) = (String::new(), 0);
    let more = loop {
        let most = PAGE.min(limit - printed);
        let query = format!("selector={}&limit={most}{cursor}", encoded(selector));
        let page: Value = server.get_json(&format!("/api/v1/jobs?{query}"))?;
        let items = page.get("items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if as_json {
            items.iter().enumerate().for_each(|(at, item)| {
                out.bytes(if printed == 0 && at == 0 { b"[\n" } else { b",\n" });
                out.bytes(item.to_string().as_bytes());
            });
        } else {
            print_rows(out, items, printed == 0)?;
        }
        printed += items.len() as u64;
        let Some(next) = page.get("next").filter(|next| !next.is_null()) else { break false };
        if printed >= limit || out.closed() {
            break true;
        }
        let next = next.as_str().map_or_else(|| next.to_string(), str::to_owned);
        cursor = format!("&cursor={}", encoded(&next));
    };
    if as_json {
        out.bytes(if printed == 0 { b"[]\n" } else { b"\n]\n" });
    }
    Ok(more)
}

fn print_rows(out: &mut Out, items: &[Value], first: bool) -> Result<(), Failure> {
    let mut rows = Vec::with_capacity(items.len() + 1);
    if first {
        rows.push(["ID", "QUEUE", "STATE", "PRIORITY", "AGE", "TRIES", "DATA"].map(str::to_owned).to_vec());
    }
    for item in items {
        let data = data_of(item, "data")?;
        rows.push(vec![
            field(item, "id"),
            field(item, "queue"),
            field(item, "state"),
            field(item, "priority"),
            age(item),
            count(item.get("attempts").unwrap_or(&Value::Null), "starts").to_string(),
            visible(&String::from_utf8_lossy(&data)),
        ]);
    }
    print::table(out, &rows);
    Ok(())
}

fn age(item: &Value) -> String {
    let now = clock::now();
    let admitted = item.get("admitted").and_then(Value::as_str);
    let admitted = admitted.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    admitted.map_or_else(String::new, |at| when::spoken(now.since(windlass_core::time::Time(at.as_microsecond()))))
}
