//! `windlass nudge`: the server looks for work now, and does not wait for its next reason to.

use super::Context;
use super::connect::Link;
use crate::error::{Failure, Kind};
use serde_json::Value;

pub(super) fn nudge(context: &Context) -> Result<u8, Failure> {
    let dir = context.data_dir()?;
    let Some(mut server) = Link::to_server(&dir)? else {
        let text = format!("no server is running in {}, so there is nobody to nudge", dir.root().display());
        return Err(Failure::new(Kind::NoServer, text).hint("windlass tick does what is due and ends"));
    };
    let _: Value = server.post_empty("/api/v1/nudge")?;
    context.say("the server looks for work");
    Ok(0)
}
