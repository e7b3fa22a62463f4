//! The rigs: real deaths, power cuts, failing system calls, full disks, damage, noise, long work and databases that
//! go, against a witness outside.
//!
//! Each prints one line of figures. Its size comes from the environment (`WINDLASS_KILL_CYCLES`, `WINDLASS_CUT_POINTS`,
//! `WINDLASS_FAIL_POINTS`, `WINDLASS_FULL_TRIALS`, `WINDLASS_FLIP_CASES`, `WINDLASS_FUZZ_SECONDS`,
//! `WINDLASS_SOAK_MINUTES`, `WINDLASS_SEVERAL_ROWS`); the default is the short form of `cargo xtask test`, and
//! `cargo xtask prove` sets the long one. What a machine lacks for a rig is a failure that says so, never a skip.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod chance;
mod cut;
#[path = "../../../../xtask/src/servers/database.rs"]
#[expect(dead_code, reason = "shared with `cargo xtask`, which uses the rest")]
mod database;
#[expect(dead_code, reason = "shared with the tests of the store, which use the rest")]
mod databases;
mod disk;
#[path = "../sql/door.rs"]
#[expect(dead_code, reason = "shared with the tests of the program on a table, which use the rest")]
mod door;
mod fail;
mod flip;
mod full;
mod fuzz;
mod kill;
#[path = "../shared/ports.rs"]
mod ports;
#[path = "../../../windlass-sim/src/random.rs"]
#[expect(dead_code, reason = "shared with the simulator, which uses the rest")]
mod random;
#[path = "../it/rig.rs"]
#[expect(dead_code, reason = "shared with the tests of the verbs, which use the rest")]
mod rig;
mod scene;
mod several;
mod soak;
mod tracer;
mod witness;
