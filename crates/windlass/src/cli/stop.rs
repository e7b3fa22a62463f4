//! `windlass stop`: asks the server to end, and waits until it has.

use super::Context;
use super::lock_watch;
use super::place::Place;
use crate::error::Failure;
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Kill what runs; it goes back to its queue and costs no attempt
    #[arg(long)]
    now: bool,
}

pub(super) fn stop(args: &Args, context: &Context) -> Result<u8, Failure> {
    let (place, mut server) = context.server("").map_err(|failure| Failure { hint: None, ..failure })?;
    let mode = if args.now { "now" } else { "drain" };
    // Elsewhere there is no lock to wait for: a stream that only the server's end ends stands for it.
    let stream = match &place {
        Place::Directory { .. } => None,
        Place::Address { .. } => place.server()?.map(|second| second.lines("/api/v1/watch?selector=id:j-0000000000-0")),
    };
    let stream = stream.transpose()?;
    let _: Value = server.post_json("/api/v1/stop", &json!({ "mode": mode }))?;
    drop(server);
    match (&place, stream) {
        (Place::Directory { dir, .. }, _) => lock_watch::wait_for_release(dir)?,
        (Place::Address { .. }, stream) => {
            let Some(mut lines) = stream else { return Ok(0) };
            // However it ends, nobody is at the other end any more.
            while let Ok(Some(_)) = lines.next_line() {}
        }
    }
    context.say("the server has stopped");
    Ok(0)
}
