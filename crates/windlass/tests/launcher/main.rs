//! Real processes through real launchers: what a job is given, how it ends, and that nothing of it is left.

#![expect(clippy::unwrap_used, reason = "a test says that something is wrong by ending")]

mod batches;
mod control;
mod ends;
mod given;
mod groups;
#[path = "../shared/in_time.rs"]
mod in_time;
mod kept;
mod limits;
mod mischief;
mod notices;
mod payloads;
mod reap;
mod rig;
mod supervised;
mod trees;
mod trouble;
mod users;

#[path = "../shared/payloads.rs"]
mod shared;
