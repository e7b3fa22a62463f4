//! The rigs: damage, noise and long work against the shipped code and the real program.
//!
//! Each prints one line of figures. Its size comes from the environment (`WINDLASS_FLIP_CASES`,
//! `WINDLASS_FUZZ_SECONDS`, `WINDLASS_SOAK_MINUTES`);
//! the default is the short form of `cargo xtask test`, and `cargo xtask prove` sets the
//! long one.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod chance;
mod flip;
mod fuzz;
#[path = "../it/rig.rs"]
#[expect(dead_code, reason = "shared with the tests of the verbs, which use the rest")]
mod rig;
mod soak;
