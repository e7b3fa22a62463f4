//! The directory of handlers through the whole program: files come, serve, go, and are refused in words.

use crate::rig::Rig;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Puts a script in place by a rename, as a person should.
fn put(dir: &Path, name: &str, script: &str) {
    let made = dir.join(".made");
    std::fs::write(&made, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&made, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::rename(&made, dir.join(name)).unwrap();
}

/// A rig whose directory of handlers is there, and the first line of its config.
fn with_directory() -> (Rig, std::path::PathBuf, String) {
    let rig = Rig::new();
    let dir = rig.path("handlers");
    std::fs::create_dir(&dir).unwrap();
    let line = format!("handlers = {:?}\n", dir.to_str().unwrap());
    (rig, dir, line)
}

#[test]
fn a_new_file_serves_its_backlog_without_a_reload_and_takes_the_data_to_the_byte() {
    let (rig, dir, line) = with_directory();
    put(&dir, "first", "cat > /dev/null");
    let server = rig.serve(&(line + "[queue.\"*\"]\nenabled = false\n"));
    let data = b"quotes ' \" $(reboot) \\ -rf \xff\xfe and a\nnewline".to_vec();
    let id = rig.feed(&["push", "keep it", "-0", "--ids"], [&data[..], b"\0"].concat()).fine().trim().to_owned();
    rig.call(&["push", "first", "x"]).fine();
    rig.call(&["wait", "--drained"]).fine();
    assert_eq!(rig.call(&["show", &id, "--json"]).json()["state"], "ready", "nobody serves it yet");
    put(&dir, "keep it", &format!("cat > {}", rig.path("kept").display()));
    // Who asks after the file was there waits for what it serves.
    rig.call(&["wait", "--drained"]).fine();
    assert_eq!(rig.call(&["show", &id, "--json"]).json()["state"], "succeeded");
    assert_eq!(std::fs::read(rig.path("kept")).unwrap(), data);
    server.stop();
}

#[test]
fn what_waits_when_the_server_starts_is_the_files_and_not_the_tables_behind_it() {
    let (rig, dir, line) = with_directory();
    put(&dir, "word", &format!("cat >> {}", rig.path("words").display()));
    rig.call(&["push", "word", "a", "b", "c"]).fine();
    // Whoever asks without a server reads the inbox into the store.
    rig.call(&["ls"]).fine();
    let tables = "[queue.\"*\"]\nrun = [\"false\"]\nattempts = 1\n";
    let server = rig.serve(&(line + tables));
    rig.call(&["wait", "--drained"]).fine();
    assert_eq!(std::fs::read(rig.path("words")).unwrap().len(), 3);
    server.stop();
}

#[test]
fn a_file_that_goes_costs_no_job_anything_and_the_queue_says_why_it_waits() {
    let (rig, dir, line) = with_directory();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo begun > {}; read x < {}", bell.path, gate.path);
    put(&dir, "thumb", &script);
    let config = line.replace("handlers =", "[handlers]\nslots = 1\npath =");
    let mut server = rig.serve(&config);
    server.process.until("came=1 went=0");
    let ids = rig.call(&["push", "thumb", "1", "2", "3"]).fine().to_owned();
    assert_eq!(bell.next(), "begun");
    std::fs::remove_file(dir.join("thumb")).unwrap();
    gate.open(3);
    rig.call(&["wait", ids.lines().next().unwrap()]).fine();
    server.process.until("came=0 went=1");
    let why = rig.call(&["why", "thumb", "--json"]).json();
    let text = why["reasons"].as_array().unwrap().iter().find(|reason| reason["code"] == "handler_does_not_serve");
    let text = text.unwrap_or_else(|| panic!("{why}"))["text"].as_str().unwrap();
    assert!(text.starts_with("its handler ") && text.ends_with("/thumb is not there any more"), "{text}");
    put(&dir, "thumb", &script);
    rig.call(&["wait", "--drained"]).fine();
    for id in ids.lines() {
        let job = rig.call(&["show", id, "--json"]).json();
        assert_eq!(job["state"], "succeeded", "{job}");
        let free = |attempt: &Value| attempt["outcome"] == "succeeded" || attempt["outcome"] == "interrupted";
        assert!(job["history"].as_array().unwrap().iter().all(free), "{job}");
    }
    server.stop();
}

#[test]
fn what_may_not_serve_is_said_in_the_log_and_by_why() {
    let (rig, dir, line) = with_directory();
    put(&dir, "open", "true");
    std::fs::set_permissions(dir.join("open"), PermissionsExt::from_mode(0o777)).unwrap();
    std::os::unix::fs::symlink("/bin/true", dir.join("true")).unwrap();
    let mut server = rig.serve(&line);
    server.process.until("\\\"open\\\" serves nothing: can be written by everybody");
    server.process.until("\\\"true\\\" serves nothing: is a link that leads out of the directory");
    rig.call(&["push", "true", "x"]).fine();
    let why = rig.call(&["why", "true"]).fine().to_owned();
    assert!(why.contains("is a link that leads out of the directory"), "{why}");
    let why = rig.call(&["why", "open"]).fine().to_owned();
    assert!(why.contains("can be written by everybody"), "{why}");
    rig.call(&["push", "a/../true", "x"]).fine();
    rig.call(&["wait", "--drained"]).fine();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["a/../true"]["ready"], 1, "a path is no name");
    server.stop();
}

#[test]
fn a_reload_changes_the_directory_and_its_terms() {
    let (rig, dir, line) = with_directory();
    put(&dir, "a", "true");
    let mut server = rig.serve(&line);
    let other = rig.path("other");
    std::fs::create_dir(&other).unwrap();
    put(&other, "b", "true");
    let config = format!("[handlers]\npath = {:?}\nslots = 7\n", other.to_str().unwrap());
    std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
    let shown = rig.call(&["config", "diff"]).stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains("[handlers] path") && shown.contains("[handlers] slots"), "{shown}");
    rig.call(&["config", "reload"]).fine();
    // The answer comes when the new directory serves.
    let ids = rig.call(&["push", "b", "x"]).fine().to_owned();
    rig.call(&["wait", ids.trim()]).fine();
    let why = rig.call(&["why", "a"]).fine().to_owned();
    assert!(why.contains("other/a is not there any more"), "{why}");
    assert!(rig.call(&["config", "show"]).fine().contains("slots = 7"));
    server.process.until("came=1 went=1");
    server.stop();
}

#[test]
fn a_config_with_a_wrong_directory_is_refused_with_its_place() {
    let (rig, dir, line) = with_directory();
    let check = |text: &str| {
        std::fs::write(rig.path("w.toml"), text).unwrap();
        rig.call(&["config", "check", rig.path("w.toml").to_str().unwrap()])
    };
    check(&line).fine();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
    check(&line).says("can be written by everybody, and its files are run").ended(78);
    check("handlers = \"nowhere\"\n").says(":1:12: cannot use the directory of handlers").ended(78);
    check("handlers = 3\n").says("`handlers` is an integer, expected a string in quotes").ended(78);
    check("handlers = \"a{b}\"\n").says("expected a directory without braces").ended(78);
    check("[handlers]\nslots = 3\n").says("[handlers] has no `path`").ended(78);
    let terms = |terms: &str| format!("{}{terms}\n", line.replace("handlers =", "[handlers]\npath ="));
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
    check(&terms("rate = \"5/m\"\nmemory = \"64M\"\ncpu_limit = \"9s\"")).fine();
    check(&terms("user = \"nobody\"")).says("\"nobody\" is not in `users` of [limits]").ended(78);
    check(&terms("rate = \"often\"")).says("is no rate").ended(78);
    check("[handlers]\npath = \"x\"\nrun = [\"true\"]\n").says("unknown key `run` in [handlers]").ended(78);
}

#[test]
fn a_tick_serves_the_directory_too() {
    let (rig, dir, line) = with_directory();
    put(&dir, "mail", "cat");
    std::fs::write(rig.dir().join("windlass.toml"), line).unwrap();
    let id = rig.call(&["push", "mail", "x"]).fine().trim().to_owned();
    rig.call(&["tick"]).says("everything that was due is done: nothing failed").fine();
    assert_eq!(rig.call(&["logs", &id]).fine(), "x");
}
