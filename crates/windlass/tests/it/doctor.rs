//! `doctor` from outside: what it looks at, what it says of a sick directory, and what its exit code tells.

use crate::mount::Mount;
use crate::rig::{Rig, Told};
use rustix::process::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};

fn finding(told: &Told, check: &str) -> Value {
    let document: Value = serde_json::from_slice(&told.stdout).unwrap_or_else(|e| panic!("{e}: {told:?}"));
    let found = document["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("no finding about {check}: {document}")).clone()
}

#[test]
fn a_directory_that_is_well_is_found_well() {
    let rig = Rig::new();
    let server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    rig.call(&["push", "q", "x"]).fine();
    rig.drained();
    let told = rig.call(&["doctor", "--json"]);
    told.fine();
    for check in [
        "directory",
        "places",
        "server",
        "format",
        "store",
        "archive",
        "file system",
        "calls",
        "space",
        "reserve",
        "sync",
        "inotify",
        "open files",
        "processes",
        "file size",
        "cgroups",
        "clock",
        "clock pace",
        "time zone",
    ] {
        let finding = finding(&told, check);
        assert_ne!(finding["health"], "problem", "{finding}");
    }
    assert!(finding(&told, "server")["text"].as_str().unwrap().ends_with("answers: serving"));
    assert!(finding(&told, "archive")["text"].as_str().unwrap().contains("1 segment, "), "{told:?}");
    let left = std::fs::read_dir(rig.dir()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().contains("doctor")), "nothing is left behind");
    server.process.signal(Signal::TSTP);
    while finding(&rig.call(&["doctor", "--json"]), "server")["health"] != "warning" {}
    rig.call(&["doctor", "--strict"]).ended(75);
    server.stop();
}

#[test]
fn a_damaged_archive_and_a_full_disk_are_problems_with_a_remedy() {
    let rig = Rig::new();
    let mount = Mount::ext4(&rig.dir(), 48);
    let mut server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    rig.call(&["push", "q", "x"]).fine();
    rig.drained();
    let filled = mount.fill("filled");
    let large = "x".repeat(100_000);
    while rig.call(&["push", "q", &large]).code == Some(0) {}
    server.process.until("no space left");
    let told = rig.call(&["doctor", "--json"]);
    assert_eq!(told.code, Some(74), "{told:?}");
    for check in ["server", "space"] {
        let finding = finding(&told, check);
        assert!(finding["health"] == "problem" && finding["remedy"] != "", "{finding}");
    }
    std::fs::remove_file(filled).unwrap();
    server.process.until("there is space again");
    server.stop();
    let segment = rig.dir().join("archive/00000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[60] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let told = rig.call(&["doctor", "--json"]);
    assert_eq!((told.code, finding(&told, "archive")["health"].clone()), (Some(74), "problem".into()));
}

#[test]
fn a_memory_file_system_and_small_limits_are_warned_of() {
    let rig = Rig::new();
    let _mount = Mount::tmpfs(&rig.dir(), 256);
    let mut shell = Command::new("sh");
    let script = "ulimit -n 200; ulimit -f 100000; exec \"$1\" doctor --json";
    shell
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_windlass")])
        .env("WINDLASS_DIR", rig.dir())
        .stdin(Stdio::null());
    let told = crate::rig::Process::start(&mut shell).end();
    told.fine();
    let tmpfs = finding(&told, "file system");
    assert_eq!((&tmpfs["text"], &tmpfs["health"]), (&"tmpfs, in memory only".into(), &"warning".into()));
    for check in ["open files", "file size"] {
        assert_eq!(finding(&told, check)["health"], "warning");
    }
}
