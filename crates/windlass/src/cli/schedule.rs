//! `windlass schedule`: how the schedules stand, when their times come, and firing, enabling or disabling one by hand.

use super::Context;
use super::connect::{Connection, encoded};
use super::listing::{Columns, For, Listing, Shape};
use super::print::{self, Out, field, visible};
use super::steer::{self, Terms};
use crate::api::Page;
use crate::api::schedules::{Fired, Schedule};
use crate::api::steering::Steering;
use crate::error::{Failure, Kind};
use crate::when;
use serde::Deserialize;
use serde_json::{Value, json};
use windlass_core::overrides::{Key, Target};

const EXAMPLES: &str = "\
Examples:
  windlass schedule ls
  windlass schedule next nightly -n 5
  windlass schedule run nightly                  now, whatever its times are
  windlass schedule disable nightly --until '2026-12-24 00:00' --reason 'stocktaking'";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the schedules: when each fired last, and when it will
    Ls {
        #[command(flatten)]
        shape: Shape,
    },
    /// Print the coming times
    Next {
        /// One schedule; none means all
        name: Option<String>,
        /// How many of each
        #[arg(short = 'n', long = "count", value_name = "N", default_value = "5", value_parser = super::values::coming)]
        count: u32,
    },
    /// Fire one now; prints the run
    Run { name: String },
    /// Let one fire again
    Enable(SwitchArgs),
    /// Let one fire no more, until it is enabled or the time is over
    Disable(SwitchArgs),
}

#[derive(Debug, clap::Args)]
struct SwitchArgs {
    name: String,
    #[command(flatten)]
    terms: Terms,
}

pub(super) fn schedule(args: &Args, context: &Context) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Ls { shape } => ls(shape, context),
        Verb::Next { name, count } => next(name.as_deref(), *count, context),
        Verb::Run { name } => run(name, context),
        Verb::Enable(args) => switch(args, true, context),
        Verb::Disable(args) => switch(args, false, context),
    }
}

/// Only a server knows them: they are in its config.
fn server(context: &Context) -> Result<Connection, Failure> {
    let nobody =
        |failure: Failure| failure.hint("windlass serve --config FILE; windlass config check shows what a file says");
    context.server(", and schedules are a server's").map(|(_, server)| server).map_err(nobody)
}

fn all(context: &Context, coming: u32) -> Result<Vec<Schedule>, Failure> {
    let page: Page<Schedule> = server(context)?.get_json(&format!("/api/v1/schedules?next={coming}"))?;
    Ok(page.items)
}

const COLUMNS: Columns = Columns {
    all: &["name", "cron", "zone", "last", "next", "state"],
    usual: &["name", "cron", "zone", "last", "next", "state"],
    wide: &["name", "cron", "zone", "last", "next", "state"],
    cell,
};

fn ls(shape: &Shape, context: &Context) -> Result<u8, Failure> {
    let mut listing = Listing::new(shape, COLUMNS, context)?;
    let schedules = all(context, 1)?;
    if schedules.is_empty() {
        context.say("the config names no schedule");
    }
    let items: Vec<Value> = schedules.iter().map(|schedule| json!(schedule)).collect();
    listing.print(&items)?;
    listing.end()
}

fn cell(item: &Value, column: &str, whom: For) -> Result<String, Failure> {
    let time = |text: String| match whom {
        For::People if text.is_empty() => "-".to_owned(),
        For::People => when::told_text(&text),
        For::Machines => text,
    };
    Ok(match column {
        "last" => time(field(item, "fired")),
        "next" => time(item.pointer("/next/0").and_then(Value::as_str).unwrap_or_default().to_owned()),
        "state" => Schedule::deserialize(item).map(|schedule| state(&schedule)).unwrap_or_default(),
        plain => field(item, plain),
    })
}

fn state(schedule: &Schedule) -> String {
    match (&schedule.run, schedule.waiting.len()) {
        _ if !schedule.enabled => "disabled".into(),
        _ if schedule.error.is_some() => {
            format!("refused, and tried again: {}", schedule.error.as_deref().unwrap_or_default())
        }
        (None, _) => match &schedule.silent_until {
            Some(until) => format!("silent until {}: the clock was there once", when::told_text(until)),
            None => "waits".into(),
        },
        (Some(run), 0) => format!("{run} runs"),
        (Some(run), 1) => format!("{run} runs, 1 waits for it"),
        (Some(run), waiting) => format!("{run} runs, {waiting} wait for it"),
    }
}

fn next(name: Option<&str>, count: u32, context: &Context) -> Result<u8, Failure> {
    let mut schedules = all(context, count)?;
    if let Some(name) = name {
        let known: Vec<String> = schedules.iter().map(|schedule| schedule.name.clone()).collect();
        schedules.retain(|schedule| schedule.name == name);
        if schedules.is_empty() {
            let failure = Failure::new(Kind::NotFound, format!("no schedule `{name}`"));
            let named = !known.is_empty();
            return Err(if named { failure.hint(format!("there are: {}", known.join(", "))) } else { failure });
        }
    }
    if context.json {
        let times = |schedule: &Schedule| json!({ "name": schedule.name, "next": schedule.next });
        return print::document(&json!(schedules.iter().map(times).collect::<Vec<_>>()));
    }
    let mut out = Out::new();
    for schedule in &schedules {
        if !schedule.enabled {
            context.say(format_args!("schedule `{}` is disabled", visible(&schedule.name)));
        }
        for time in &schedule.next {
            out.line(format_args!("{time}\t{}", visible(&schedule.name)));
        }
    }
    out.finish()
}

fn run(name: &str, context: &Context) -> Result<u8, Failure> {
    let path = format!("/api/v1/schedules/{}/run", encoded(name));
    let fired: Fired = server(context)?.post_empty(&path)?;
    if context.json {
        return print::document(&json!(fired));
    }
    let mut out = Out::new();
    out.line(&fired.run);
    context.say(format_args!("schedule `{}` was fired; windlass wait {} waits for its end", visible(name), fired.run));
    out.finish()
}

fn switch(args: &SwitchArgs, on: bool, context: &Context) -> Result<u8, Failure> {
    server(context)?;
    let target = Target::Schedule(args.name.clone());
    let set = vec![args.terms.setting(&target, Key::Enabled, on.into())?];
    let steered = steer::send(context, &Steering { set, unset: Vec::new() })?;
    if context.json {
        return print::document(&json!(steered));
    }
    context.say(format_args!("{target} is {} now", if on { "enabled" } else { "disabled" }));
    Ok(0)
}
