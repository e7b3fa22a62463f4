//! The question before a wide change: asked on a terminal; elsewhere nobody can answer, so the flag is named.

use super::Context;
use crate::error::{Failure, Kind};
use std::io::{BufRead, IsTerminal, Write};

/// Comes back if it may be done: `wish` is what, as the middle of a sentence.
pub(super) fn confirm(wish: &str, hint: &str, context: &Context) -> Result<(), Failure> {
    if context.no_input || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let text = format!("to {wish} needs --yes where nobody can be asked");
        return Err(Failure::new(Kind::Usage, text).hint(hint));
    }
    let mut stderr = std::io::stderr().lock();
    // A question nobody can see gets the answer no below.
    let _ = write!(stderr, "{wish}? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        true => Ok(()),
        false => Err(Failure::new(Kind::Usage, "not confirmed; nothing was changed")),
    }
}
