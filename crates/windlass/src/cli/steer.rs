//! `windlass pause`, `unpause` and `scale`: what a person changes while running, through one route of the server.
//!
//! Also the shared words about overrides, which `config set` and `config unset` use. Each verb says what holds
//! afterwards; asked for twice, it does no harm.

use super::Context;
use super::confirm::confirm;
use super::connect::Link;
use super::print::{self, visible};
use super::values;
use crate::api::steering::{Override, SetOverride, Steered, Steering, UnsetOverride};
use crate::clock;
use crate::error::{Failure, Kind};
use crate::when;
use serde_json::json;
use windlass_core::overrides::{Key, Target};

const PAUSE_EXAMPLES: &str = "\
Examples:
  windlass pause mail
  windlass pause 'img.*' --for 2h --reason 'the disk is being changed'
  windlass pause --until '2026-11-16 07:00' --yes      the whole server";

const UNPAUSE_EXAMPLES: &str = "\
Examples:
  windlass unpause mail
  windlass unpause 'img.*'
  windlass unpause                               the whole server";

const SCALE_EXAMPLES: &str = "\
Examples:
  windlass scale mail 16
  windlass scale 'img.*' 2 --until '2026-11-16 07:00'
  windlass scale 32                              the whole server";

/// When a change ends, and why it was made.
#[derive(Debug, clap::Args)]
pub(super) struct Terms {
    /// Ends by itself at that time, or after that long
    #[arg(long, value_name = "TIME", conflicts_with = "length")]
    until: Option<String>,
    /// Ends by itself after that long
    #[arg(long = "for", value_name = "D")]
    length: Option<String>,
    /// Why, for those who will wonder
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

#[derive(Debug, clap::Args)]
#[command(before_help = PAUSE_EXAMPLES)]
pub(super) struct PauseArgs {
    /// Queues or patterns; none means the whole server
    #[arg(value_name = "QUEUE|PATTERN")]
    queues: Vec<String>,
    /// Do not ask before the whole server is paused
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    terms: Terms,
}

#[derive(Debug, clap::Args)]
#[command(before_help = UNPAUSE_EXAMPLES)]
pub(super) struct UnpauseArgs {
    /// Queues or patterns, a pattern meaning all that it covers; none means the whole server
    #[arg(value_name = "QUEUE|PATTERN")]
    queues: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(before_help = SCALE_EXAMPLES, allow_missing_positional = true)]
pub(super) struct ScaleArgs {
    /// A table of the config by its name, or a single queue; none means the whole server
    queue: Option<String>,
    /// How many jobs at once
    #[arg(value_name = "N", value_parser = values::slots)]
    slots: u32,
    #[command(flatten)]
    terms: Terms,
}

pub(super) fn pause(args: &PauseArgs, context: &Context) -> Result<u8, Failure> {
    let targets = targets(&args.queues)?;
    let set = targets.iter().map(|target| args.terms.setting(target, Key::Paused, true.into()));
    let set = set.collect::<Result<Vec<_>, _>>()?;
    if targets == [Target::Server] && !args.yes {
        confirm("pause the whole server", "name queues to pause only those", context)?;
    }
    let steered = send(context, &Steering { set, unset: Vec::new() })?;
    if context.json {
        return print::document(&json!(steered));
    }
    for target in &targets {
        let made = steered.overrides.iter().find(|made| made.target == target.as_text() && made.key == "paused");
        let until = made.and_then(|made| made.until.as_ref()).map(|until| format!(" until {}", when::told_text(until)));
        context.say(format_args!("{target} is paused{}; what runs goes on", until.unwrap_or_default()));
    }
    Ok(0)
}

pub(super) fn unpause(args: &UnpauseArgs, context: &Context) -> Result<u8, Failure> {
    let targets = targets(&args.queues)?;
    let key = Some(Key::Paused.word().to_owned());
    let unset = targets.iter().map(|target| UnsetOverride { target: target.as_text().into(), key: key.clone() });
    let steered = send(context, &Steering { set: Vec::new(), unset: unset.collect() })?;
    if context.json {
        return print::document(&json!(steered));
    }
    for target in &targets {
        let gone = steered.removed.iter().filter(|made| is_covered(target, &made.target)).count();
        context.say(format_args!("{target} {}", if gone > 0 { "goes on" } else { "was not paused" }));
    }
    let held = steered.overrides.iter().filter(|made| made.key == "paused");
    let holds = |made: &&Override| {
        let others = Target::from_text(&made.target);
        others == Target::Server || targets.iter().any(|target| others.covers(&target.as_text()))
    };
    for made in held.filter(holds) {
        let (target, by) = (Target::from_text(&made.target), visible(&made.by));
        context.say(format_args!("hint: {target} is still paused by {by} since {}", when::told_text(&made.since)));
    }
    Ok(0)
}

pub(super) fn scale(args: &ScaleArgs, context: &Context) -> Result<u8, Failure> {
    let target = args.queue.as_deref().map_or(Ok(Target::Server), target)?;
    let set = vec![args.terms.setting(&target, Key::Slots, args.slots.into())?];
    let steered = send(context, &Steering { set, unset: Vec::new() })?;
    if context.json {
        return print::document(&json!(steered));
    }
    context.say(format_args!("{target} has {} now", print::counted(args.slots.into(), "slot")));
    Ok(0)
}

impl Terms {
    /// One change with these terms.
    pub(super) fn setting(&self, target: &Target, key: Key, value: serde_json::Value) -> Result<SetOverride, Failure> {
        let now = clock::now();
        let until = match (&self.until, &self.length) {
            (Some(text), _) => match when::until(text, now)? {
                past if past == now => {
                    return Err(Failure::new(Kind::Usage, format!("the time {text:?} has passed")));
                }
                later => Some(later),
            },
            (None, Some(text)) => {
                let length = when::duration(text).map_err(|why| Failure::new(Kind::Usage, why))?;
                if length.is_zero() {
                    return Err(Failure::new(Kind::Usage, format!("{text:?} is no time at all")));
                }
                Some(now.after(length))
            }
            (None, None) => None,
        };
        let (target, key) = (target.as_text().into_owned(), key.word().to_owned());
        Ok(SetOverride { target, key, value, until: until.map(when::rfc3339), reason: self.reason.clone() })
    }
}

/// Hands the changes to whoever serves; they hold when this comes back.
pub(super) fn send(context: &Context, steering: &Steering) -> Result<Steered, Failure> {
    let place = context.place()?;
    Link::with(&place, |server| server.post_json("/api/v1/overrides", steering))
}

fn targets(queues: &[String]) -> Result<Vec<Target>, Failure> {
    if queues.is_empty() {
        return Ok(vec![Target::Server]);
    }
    queues.iter().map(|queue| target(queue)).collect()
}

/// A queue's name or a pattern, as the server will take it.
pub(super) fn target(text: &str) -> Result<Target, Failure> {
    use windlass_core::job::QueueName;
    QueueName::new(text.as_bytes()).map_err(|bad| Failure::new(Kind::Usage, bad.to_string()))?;
    Ok(Target::Queues(text.to_owned()))
}

fn is_covered(target: &Target, text: &str) -> bool {
    target.as_text() == text || !text.is_empty() && target.covers(text)
}

/// Who made an override, since when and until when, on one line.
pub(super) fn about(made: &Override) -> String {
    let until = made.until.as_ref().map(|until| format!(" until {}", when::told_text(until))).unwrap_or_default();
    let reason = if made.reason.is_empty() { String::new() } else { format!(": {}", made.reason) };
    visible(&format!("by {} since {}{until}{reason}", made.by, when::told_text(&made.since)))
}
