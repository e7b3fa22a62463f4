//! `windlass servers`: who shares the table, and having one of them end in order.

use super::Context;
use super::connect::{Connection, encoded};
use super::listing::{Columns, For, Listing, Shape};
use super::print::{field, visible};
use crate::api::{Page, servers::Server};
use crate::error::Failure;
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  windlass servers
  windlass servers -o json
  windlass servers drain web2-1f0c93aa           it starts nothing more, and ends when what it runs has ended";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Have one end in order, from its next look on
    Drain { name: String },
}

pub(super) fn servers(args: &Args, context: &Context) -> Result<u8, Failure> {
    match &args.verb {
        None => list(&args.shape, context),
        Some(Verb::Drain { name }) => drain(name, context),
    }
}

fn server(context: &Context) -> Result<Connection, Failure> {
    context.server(", and servers know of each other").map(|(_, server)| server)
}

const COLUMNS: Columns = Columns {
    all: &["name", "epoch", "lease_s", "slots", "memory", "running", "draining", "controls"],
    usual: &["name", "slots", "running", "lease_s", "draining", "controls"],
    wide: &["name", "epoch", "lease_s", "slots", "memory", "running", "draining", "controls"],
    cell,
};

fn list(shape: &Shape, context: &Context) -> Result<u8, Failure> {
    let mut listing = Listing::new(shape, COLUMNS, context)?;
    let page: Page<Server> = server(context)?.get_json("/api/v1/servers")?;
    if page.items.is_empty() {
        context.say("the jobs are in the data directory, which one server has for itself");
    }
    let items: Vec<Value> = page.items.iter().map(|server| json!(server)).collect();
    listing.print(&items)?;
    listing.end()
}

fn cell(item: &Value, column: &str, whom: For) -> Result<String, Failure> {
    let value = item.get(column);
    Ok(match (whom, value) {
        (For::People, Some(Value::Bool(true))) => "yes".into(),
        (For::People, Some(Value::Bool(false)) | None) => "-".into(),
        (For::People, Some(Value::Number(number))) if column == "lease_s" => {
            format!("{:.0}", number.as_f64().unwrap_or(0.0))
        }
        (For::Machines, Some(Value::Bool(flag))) => flag.to_string(),
        (For::People | For::Machines, Some(Value::Number(number))) => number.to_string(),
        (For::People | For::Machines, _) => field(item, column),
    })
}

fn drain(name: &str, context: &Context) -> Result<u8, Failure> {
    let _: Value = server(context)?.post_json(&format!("/api/v1/servers/{}/drain", encoded(name)), &json!({}))?;
    context.say(format_args!("{} starts nothing more from its next look on", visible(name)));
    Ok(0)
}
