//! `cargo xtask test`: everything that must hold at every commit, in under half an hour on two cores.

use crate::prove::sabotage::{self, Whole};
use crate::servers::Servers;
use crate::setup::setup;
use crate::steps::{cargo, root, step};

pub(crate) fn test() -> Result<(), String> {
    setup()?;
    step("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    step("lints", &mut cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))?;
    step("binary", &mut cargo(&["build", "--release", "--bin", "windlass"]))?;
    let servers = Servers::start()?;
    let told = servers.variables();
    step("tests", cargo(&["test", "--workspace", "--", "--test-threads=2"]).envs(told.iter().cloned()))?;
    step("simulation", &mut cargo(&["run", "--release", "--quiet", "-p", "windlass-sim", "--", "--seeds", "2000"]))?;
    step("is it over", &mut cargo(&["run", "--release", "--quiet", "-p", "windlass-sim", "--", "--end", "100000"]))?;
    sabotage::absent_from(&root().join("target/release/windlass"))?;
    // Every check has just passed; now it must fail where what it checks is broken.
    let figure = sabotage::prove(&[], Whole::Known, told)?;
    eprintln!("── sabotage: {figure}");
    Ok(())
}
