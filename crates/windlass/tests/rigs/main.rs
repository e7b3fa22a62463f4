//! The rigs: real deaths, power cuts, failing system calls, full disks, damage and noise, against a witness outside.
//!
//! Each prints one line of figures. Its size comes from the environment (`WINDLASS_KILL_CYCLES`, `WINDLASS_CUT_POINTS`,
//! `WINDLASS_FAIL_POINTS`, `WINDLASS_FULL_TRIALS`, `WINDLASS_FLIP_CASES`); the default is the short form of
//! `cargo xtask test`, and `cargo xtask prove` sets the long one. What a machine lacks for a rig is a failure that says
//! so, never a skip.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod chance;
mod cut;
mod disk;
mod fail;
mod flip;
mod full;
mod kill;
#[path = "../it/rig.rs"]
#[expect(dead_code, reason = "shared with the tests of the verbs, which use the rest")]
mod rig;
mod scene;
mod tracer;
mod witness;
