//! The shipped program from outside: every verb, the inbox, real signals, real deaths.
//!
//! Nothing in here sleeps or depends on speed: tests wait for a process to end, for a line, or for a job that rings.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod durable;
mod ending;
mod inbox;
mod push;
#[expect(dead_code, reason = "shared with the rigs, which use the rest")]
mod rig;
mod run;
mod server;
mod verbs;
