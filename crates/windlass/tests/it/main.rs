//! The shipped program from outside: every verb, the inbox, real signals, real deaths.
//!
//! Nothing in here sleeps or depends on speed: tests wait for a process to end, for a line, or for a job that rings.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod ending;
mod inbox;
mod kill;
mod push;
mod rig;
mod run;
mod runners;
mod server;
mod urls;
mod verbs;
