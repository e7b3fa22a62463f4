//! `windlass nudge`: the server looks for work now, and does not wait for its next reason to.

use super::Context;
use crate::error::Failure;
use serde_json::Value;

pub(super) fn nudge(context: &Context) -> Result<u8, Failure> {
    let nobody = |failure: Failure| failure.hint("windlass tick does what is due and ends");
    let (_, mut server) = context.server(", so there is nobody to nudge").map_err(nobody)?;
    let _: Value = server.post_empty("/api/v1/nudge")?;
    context.say("the server looks for work");
    Ok(0)
}
