//! Runs the commands that a task is made of, and names the one that failed.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}

/// Runs a command in the workspace and says how long it took.
pub(crate) fn step(what: &str, program: &str, arguments: &[&str]) -> Result<(), String> {
    eprintln!("── {what}: {program} {}", arguments.join(" "));
    let begun = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .status()
        .map_err(|e| format!("{what}: cannot run {program}: {e}"))?;
    if !status.success() {
        return Err(format!("{what} failed: {program} {}: {status}", arguments.join(" ")));
    }
    eprintln!("── {what}: {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}
