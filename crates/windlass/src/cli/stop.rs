//! `windlass stop`: asks the server of this data directory to end, and waits until it has.

use super::Context;
use super::lock_watch;
use crate::error::Failure;
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Kill what runs; it goes back to its queue and costs no attempt
    #[arg(long)]
    now: bool,
}

pub(super) fn stop(args: &Args, context: &Context) -> Result<u8, Failure> {
    let (dir, mut server) = context.server("").map_err(|failure| Failure { hint: None, ..failure })?;
    let mode = if args.now { "now" } else { "drain" };
    let _: Value = server.post_json("/api/v1/stop", &json!({ "mode": mode }))?;
    drop(server);
    lock_watch::wait_for_release(&dir)?;
    context.say("the server has stopped");
    Ok(0)
}
