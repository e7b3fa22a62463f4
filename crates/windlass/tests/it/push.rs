//! `windlass push` from outside: what is accepted, what is answered, what is refused.

use crate::rig::{Rig, sorted};
use std::io::Write;
use std::process::Stdio;

/// Every queue keeps its jobs: nobody serves.
fn listed(rig: &Rig, selector: &str) -> Vec<serde_json::Value> {
    rig.call(&["ls", selector, "--json"]).json().as_array().unwrap().clone()
}

#[test]
fn arguments_are_jobs_and_their_ids_are_printed() {
    let rig = Rig::new();
    for serves in [false, true] {
        let server = serves.then(|| rig.serve("# nothing\n"));
        let told = rig.call(&["push", "q", "a", "b\nc", "-", "--", "-rf"]);
        let ids: Vec<&str> = told.fine().lines().collect();
        told.says("4 jobs accepted (full)");
        assert_eq!(told.stderr.contains("no server is running"), server.is_none());
        for (id, data) in ids.iter().zip(["a", "b\nc", "-", "-rf"]) {
            let job = rig.call(&["show", id, "--json"]).json();
            assert_eq!((&job["data"], &job["state"], &job["queue"]), (&data.into(), &"ready".into(), &"q".into()));
        }
        let told = rig.call(&["push", "q", "x", "--durability", "os", "--json"]);
        let answer = told.json();
        assert_eq!((&answer["count"], &answer["durability"]), (&1.into(), &"os".into()));
        assert_eq!(answer["server"], server.is_some());
        rig.call(&["show", answer["ids"][0].as_str().unwrap()]).fine();
    }
}

#[test]
fn an_id_is_found_as_soon_as_it_is_told() {
    let rig = Rig::new();
    let _server = rig.serve("# nothing\n");
    for n in 0..30 {
        let id = rig.call(&["push", "q", &n.to_string(), "--durability", "os"]).fine().trim_end().to_owned();
        rig.call(&["show", &id]).fine();
    }
}

#[test]
fn lines_times_and_priorities() {
    let rig = Rig::new();
    let told = rig.feed(&["push", "lines", "-"], "a\nb\r\n\u{1b}[2J\n");
    assert_eq!(told.fine(), "");
    told.says("3 jobs accepted (full); no server is running");
    let data: Vec<_> = listed(&rig, "queue:lines").iter().map(|job| job["data"].clone()).collect();
    assert_eq!(data, ["a", "b\r", "\u{1b}[2J"]);
    assert!(!rig.call(&["ls"]).fine().contains('\u{1b}'), "nothing reaches a terminal as it is");
    rig.call(&["push", "later", "a", "--in", "1h"]).fine();
    rig.call(&["push", "later", "b", "--at", "2030-01-01T00:00:00Z", "--priority", "high"]).fine();
    rig.call(&["push", "now", "c", "--at", "@5", "--priority", "-100"]).fine();
    let later = listed(&rig, "queue:later state:scheduled");
    assert_eq!(later.len(), 2);
    assert_eq!((&later[1]["not_before"], &later[1]["priority"]), (&"2030-01-01T00:00:00Z".into(), &10.into()));
    assert_eq!(listed(&rig, "queue:now state:ready")[0]["priority"], -100);
    let bytes: Vec<u8> = (0..=255).filter(|byte| *byte != b'\n').collect();
    rig.feed(&["push", "bytes"], &bytes).fine();
    let id = listed(&rig, "queue:bytes")[0]["id"].as_str().unwrap().to_owned();
    let job = rig.call(&["show", &id, "--json"]).json();
    assert_eq!((&job["data_bytes"], job["data_base64"].is_string()), (&255.into(), true));
}

#[test]
fn a_run_of_pushed_lines_ends_exactly() {
    let rig = Rig::new();
    let run = rig.feed(&["push", "q", "--run", "new"], "1\n2\n3\n").fine().trim_end().to_owned();
    assert!(run.starts_with("r-"), "{run}");
    rig.call(&["wait", &run]).says("no server is running").ended(69);
    rig.call(&["push", "q", "4", "--run", &run, "--durability", "os"]).fine();
    let server = rig.serve("[queue.q]\nrun = [\"sh\", \"-c\", \"test $1 != 2\", \"sh\", \"{}\"]\nattempts = 1\n");
    let told = rig.call(&["wait", &run, "--json"]);
    let ended: serde_json::Value = serde_json::from_str(told.ended(1)).unwrap();
    assert_eq!((&ended["counts"]["failed"], &ended["ended"]), (&1.into(), &true.into()));
    rig.call(&["wait", "--drained"]).fine();
    let shown = rig.call(&["show", &run, "--json"]).json();
    assert_eq!((&shown["id"], &shown["live"]), (&run.as_str().into(), &0.into()));
    assert_eq!(listed(&rig, &format!("run:{run} state:failed"))[0]["data"], "2");
    rig.call(&["wait", "r-0000000000"]).ended(66);
    server.stop();
}

#[test]
fn hostile_queue_names_are_refused_and_nothing_is_written() {
    let rig = Rig::bare();
    let long = "q".repeat(201);
    for name in ["", ".x", "-x", "a\nb", "a\tb", "a\u{1b}b", "_future", &long] {
        rig.call(&["push", "--", name, "x"]).ended(64);
    }
    assert!(!rig.dir().exists());
    for name in ["a b", "ü", "$(id)", "a/../x", "*", "\u{202e}x", &"q".repeat(200)] {
        rig.call(&["push", name, "x"]).fine();
    }
    assert_eq!(rig.call(&["ls", "--json"]).json().as_array().unwrap().len(), 7);
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!(status["queues"]["a/../x"]["ready"], 1);
}

#[test]
fn a_hundred_mebibytes_and_a_line_too_long() {
    let rig = Rig::new();
    let mut line = vec![b'x'; (1 << 20) - 1];
    line.push(b'\n');
    let told = rig.feed(&["push", "q", "--durability", "os"], line.repeat(100));
    told.says("100 jobs accepted (os)").fine();
    let told = rig.feed(&["push", "q"], [&b"ok\n"[..], &vec![b'x'; 100 << 20]].concat());
    told.says("more than 1048576 bytes").ended(65);
    let status = rig.call(&["status", "--json"]).json();
    let ready = status["queues"]["q"]["ready"].as_u64().unwrap();
    assert!((100..=101).contains(&ready), "{ready}");
    rig.call(&["push", "q", &"x".repeat(100_000)]).fine();
}

#[test]
fn the_code_tells_acceptance_not_printing() {
    let rig = Rig::new();
    for (mark, words) in [("a", &["push", "q", "a"][..]), ("b", &["push", "q", "b", "--json"])] {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        for stdout in [Stdio::from(write), full.into()] {
            let status = rig.windlass(words).stdout(stdout).stderr(Stdio::null()).status().unwrap();
            assert_eq!(status.code(), Some(0), "{mark}");
        }
    }
    let jobs = listed(&rig, "queue:q");
    let data: Vec<&str> = jobs.iter().map(|job| job["data"].as_str().unwrap()).collect();
    assert_eq!(sorted(&data.join("\n")), ["a", "a", "b", "b"]);
}

#[test]
fn an_inbox_that_cannot_be_written_refuses() {
    let rig = Rig::new();
    rig.call(&["push", "q", "x"]).fine();
    std::fs::remove_dir_all(rig.dir().join("inbox")).unwrap();
    std::fs::write(rig.dir().join("inbox"), "").unwrap();
    let told = rig.call(&["push", "q", "x"]);
    assert!([73, 74, 77].contains(&told.code.unwrap()), "{told:?}");
    assert!(told.stdout.is_empty());
}

#[test]
fn a_signal_ends_the_input_and_says_what_was_accepted() {
    let rig = Rig::new();
    let mut push = rig.start(&["push", "q"], Stdio::piped());
    let mut stdin = push.stdin();
    stdin.write_all(b"a\nb\nhalf").unwrap();
    // It has read everything once the pipe is empty; then it waits for more.
    while rustix::io::ioctl_fionread(&stdin).unwrap() > 0 {}
    push.signal(rustix::process::Signal::INT);
    let told = push.end();
    told.says("interrupted: ").ended(130);
    let said: usize = told.stderr.split("interrupted: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(listed(&rig, "queue:q").len(), said, "as many as it said");
    assert!(said >= 2, "whole lines that were read are accepted: {}", told.stderr);
    drop(stdin);
}

#[test]
fn a_limit_on_the_size_of_files_refuses_and_leaves_nothing_behind() {
    let rig = Rig::new();
    rig.call(&["push", "q", "first"]).fine();
    let inbox = || -> u64 {
        let files = std::fs::read_dir(rig.dir().join("inbox")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    let before = inbox();
    let mut shell = std::process::Command::new("sh");
    // Blocks of 512 bytes: 16 KiB are allowed.
    shell.args(["-c", "ulimit -f 32; exec \"$0\" push q", env!("CARGO_BIN_EXE_windlass")]);
    shell.env("WINDLASS_DIR", rig.dir()).stdin(Stdio::piped());
    let mut process = crate::rig::Process::start(&mut shell);
    let mut stdin = process.stdin();
    // A program that refuses its input early closes the pipe.
    let _ = stdin.write_all(&[b'x'; 200_000]);
    drop(stdin);
    let told = process.end();
    told.ended(74);
    assert!(told.stderr.starts_with("windlass: ") && told.stderr.contains("File too large"), "{}", told.stderr);
    assert_eq!(inbox(), before, "the file is as long as it was");
    assert_eq!(listed(&rig, "").len(), 1, "what was there is there, and no more");
}
