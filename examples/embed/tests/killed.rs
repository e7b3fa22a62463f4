//! The program killed in the middle, and started again on the same directory.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

fn start(dir: &std::path::Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embed"));
    command.arg("numbers").arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn killed_between_a_commit_and_its_archive_nothing_is_lost_and_nothing_done_twice() {
    let place = tempfile::tempdir().unwrap();
    let mut before = 0;
    for kill_at in [1, 200, 500, 800] {
        let mut program = start(place.path());
        let (mut stdin, stdout) = (program.stdin.take().unwrap(), BufReader::new(program.stdout.take().unwrap()));
        for line in stdout.lines() {
            let done: usize = line.unwrap().parse().unwrap();
            assert!(done >= before, "{done} are done after {before} were");
            before = done;
            if done >= kill_at {
                break;
            }
            // It stands still after each commit until it is told to go on.
            writeln!(stdin).unwrap();
        }
        assert!((kill_at..1000).contains(&before), "it was to be killed in the middle, and has done {before}");
        program.kill().unwrap();
        program.wait().unwrap();
    }
    let mut program = start(place.path());
    // Nobody writes any more lines, so it waits for none.
    drop(program.stdin.take());
    let told = program.wait_with_output().unwrap();
    let said = String::from_utf8(told.stdout).unwrap();
    assert!(told.status.success(), "{said}");
    assert!(said.ends_with("own store and runner: each of 1000 numbers is done, and once\n"), "{said}");
}
