//! `cargo xtask test`: everything that must hold at every commit, in under half an hour on two cores.

use crate::prove::sabotage::{self, Whole};
use crate::setup::setup;
use crate::steps::{root, step};

pub(crate) fn test() -> Result<(), String> {
    setup()?;
    step("format", "cargo", &["fmt", "--all", "--check"])?;
    step("lints", "cargo", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?;
    step("binary", "cargo", &["build", "--release", "--bin", "windlass"])?;
    step("tests", "cargo", &["test", "--workspace", "--", "--test-threads=2"])?;
    step("simulation", "cargo", &["run", "--release", "--quiet", "-p", "windlass-sim", "--", "--seeds", "2000"])?;
    step("is it over", "cargo", &["run", "--release", "--quiet", "-p", "windlass-sim", "--", "--end", "100000"])?;
    sabotage::absent_from(&root().join("target/release/windlass"))?;
    // Every check has just passed; now it must fail where what it checks is broken.
    let figure = sabotage::prove(&[], Whole::Known)?;
    eprintln!("── sabotage: {figure}");
    Ok(())
}
