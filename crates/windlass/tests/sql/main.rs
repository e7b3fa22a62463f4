//! The shipped program on a `jobs` table: PostgreSQL, MariaDB and SQLite, foreign clients, several servers, databases
//! that go away.
//!
//! `cargo xtask test` starts the databases; `cargo xtask servers` does for single tests. Each test makes a database of
//! its own. Nothing here sleeps: tests wait for a job that rings, for a process, or for what a client reads.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod away;
mod clocks;
mod constraints;
#[expect(dead_code, reason = "shared with the rigs, which use the rest")]
mod door;
mod doors;
mod foreign;
mod moves;
mod nudges;
mod pooler;
#[path = "../shared/ports.rs"]
mod ports;
#[path = "../it/rig.rs"]
#[expect(dead_code, reason = "the tests of the program need more of it")]
mod rig;
mod several;
mod table;
