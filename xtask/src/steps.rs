//! Runs the commands that a task is made of, and names the one that failed.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}

/// Cargo in the workspace, as if a person had typed it.
///
/// `cargo xtask` tells its program of its own package in variables that build scripts look at: with them, some would
/// run again, and all that depends on them would be built twice. Nothing that is built here is built again after a
/// change of one line, so nothing is kept for that; it would be gigabytes.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = program("cargo", arguments);
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        command.env_remove(name);
    }
    command.env("CARGO_INCREMENTAL", "0");
    command
}

/// Another program, in the workspace.
pub(crate) fn program(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(arguments).current_dir(root());
    command
}

/// Runs a command and says how long it took.
pub(crate) fn step(what: &str, command: &mut Command) -> Result<(), String> {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let line = words.join(OsStr::new(" ")).to_string_lossy().into_owned();
    eprintln!("── {what}: {line}");
    let begun = Instant::now();
    let status = command.status().map_err(|e| format!("{what}: cannot run {line}: {e}"))?;
    if !status.success() {
        return Err(format!("{what} failed: {line}: {status}"));
    }
    eprintln!("── {what}: {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}
