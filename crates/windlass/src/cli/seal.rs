//! `windlass seal`: no more jobs will join a run from outside, so it ends when those it has have ended.

use super::Context;
use super::connect::{Link, encoded};
use super::show::whole_id;
use crate::error::{Failure, Kind};
use serde_json::Value;
use windlass_core::job::RunId;

const EXAMPLES: &str = "\
Examples:
  windlass seal r-0c3k5p7m2x";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The run's id, or as much of its beginning as no other has
    run: String,
}

pub(super) fn seal(args: &Args, context: &Context) -> Result<u8, Failure> {
    let place = context.place()?;
    let run = Link::with(&place, |server| {
        let id = whole_id(server, &args.run)?;
        if id.parse::<RunId>().is_err() {
            return Err(Failure::new(Kind::Usage, format!("{id} is no run, expected r-…")));
        }
        let _: Value = server.post_empty(&format!("/api/v1/runs/{}/seal", encoded(&id)))?;
        Ok(id)
    })?;
    context.say(format_args!("{run} is sealed: it ends when its jobs have ended"));
    Ok(0)
}
