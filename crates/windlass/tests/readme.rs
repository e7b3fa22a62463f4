//! Runs every command of the README as it stands there and judges what came out.
//!
//! `windlass` and `cargo run … --bin windlass --` are the binary under test, to save a build; nothing else is changed.
//! The block that runs all tests, of which this is one, is held against `.ci/run` instead.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const BUILD_AND_RUN: &str = "cargo run --release --quiet --bin windlass --";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The `sh` blocks, in order.
fn blocks() -> Vec<String> {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let after = text.split("\n```sh\n").skip(1);
    after.map(|rest| rest.split("\n```").next().unwrap().to_owned()).collect()
}

/// A fresh machine: an empty directory, an empty data directory, and `windlass` on the path.
struct Machine {
    place: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_windlass"), place.path().join("bin/windlass")).unwrap();
        Machine { place }
    }

    fn command(&self, program: &str) -> Command {
        let path = format!("{}:{}", self.place.path().join("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(program);
        command.current_dir(self.place.path()).env("PATH", path).env("HOME", self.place.path());
        command.env("WINDLASS_DIR", self.place.path().join("data")).env_remove("XDG_CONFIG_HOME");
        command.stdin(Stdio::null());
        command
    }

    /// Runs a block; a server that a failing one leaves behind would keep us waiting for its stderr.
    fn bash(&self, block: &str) -> Output {
        let script = format!("trap 'windlass stop --now >/dev/null 2>&1 || :' EXIT\n{block}");
        self.command("bash").args(["-euo", "pipefail", "-c", &script]).output().unwrap()
    }
}

/// What it said, once it is sure that it ended well.
fn fine(output: Output) -> String {
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\nstdout: {said}\nstderr: {complained}", output.status);
    said.into_owned()
}

#[test]
fn the_blocks_are_the_ones_that_are_run_here() {
    let blocks = blocks();
    assert_eq!(blocks.len(), 3, "a new block needs a judge in this file");
    assert!(blocks[0].contains(BUILD_AND_RUN), "the first command builds and runs: {}", blocks[0]);
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    assert_eq!(ci.trim_end().lines().last(), Some(blocks[1].as_str()), ".ci/run ends with the README's test command");
}

#[test]
fn the_first_command_runs_a_thousand_jobs() {
    let machine = Machine::new();
    let script = blocks()[0].replace(BUILD_AND_RUN, "windlass");
    let said = fine(machine.bash(&script));
    let mut lines: Vec<&str> = said.lines().collect();
    let mut expected: Vec<String> = (1..=1000).map(|n| format!("job {n} done")).collect();
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn the_first_minute_does_what_it_says() {
    let machine = Machine::new();
    let said = fine(machine.bash(&blocks()[2]));
    for line in ["colour red", "colour green", "colour blue"] {
        assert!(said.lines().any(|said| said == line), "{line} is not in: {said}");
    }
    let listed = fine(machine.command("windlass").args(["ls", "queue:mail", "--json"]).output().unwrap());
    let jobs: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
    assert_eq!(jobs.len(), 3, "{listed}");
    let mut sent = Vec::new();
    for job in jobs {
        assert_eq!(job["state"], "succeeded", "{job}");
        sent.push(fine(machine.command("windlass").args(["logs", job["id"].as_str().unwrap()]).output().unwrap()));
    }
    sent.sort();
    // sed ends a last line as it found it, and data has no line feed of its own.
    assert_eq!(sent, ["sent: to=ada", "sent: to=edsger", "sent: to=grace"]);
    let stopped = machine.command("windlass").arg("stop").output().unwrap();
    assert_eq!(stopped.status.code(), Some(69), "the server was stopped by the block itself");
}
