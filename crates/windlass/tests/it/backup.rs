//! `backup` and `restore` from outside: beside a working server, without one, of a full disk, and of damage.

use crate::rig::{Rig, lines_of, sorted};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The program on another data directory.
fn elsewhere(rig: &Rig, dir: &Path, words: &[&str]) -> crate::rig::Told {
    crate::rig::Process::start(rig.windlass(words).env("WINDLASS_DIR", dir)).end()
}

#[test]
fn a_backup_beside_a_working_server_holds_everything_accepted_before_it() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo > {}; read x < {}; echo out", bell.path, gate.path);
    let server = rig.serve(&format!(
        "[queue.slow]\nrun = [\"sh\", \"-c\", {script:?}]\n[queue.quick]\nrun = [\"echo\", \"{{}}\"]\n\
         [queue.bad]\nrun = [\"false\"]\nattempts = 1\n"
    ));
    let ids = |queue: &str, data: &[&str]| -> Vec<String> {
        let words: Vec<&str> = ["push", queue].into_iter().chain(data.iter().copied()).collect();
        rig.call(&words).fine().lines().map(str::to_owned).collect()
    };
    let running = ids("slow", &["1", "2"]);
    (0..2).for_each(|_| drop(bell.next()));
    let (waiting, done, bad) = (ids("unserved", &["a", "b", "c"]), ids("quick", &["x", "y"]), ids("bad", &["z"]));
    // Through the inbox and at once into the backup: it was accepted before.
    let inboxed = rig.feed(&["push", "unserved", "--ids"], "d\ne\n").fine().to_owned();
    for id in done.iter().chain(&bad) {
        while !["succeeded", "failed"].contains(&rig.call(&["show", id, "--json"]).json()["state"].as_str().unwrap()) {}
    }
    let backup = rig.path("backup.tar");
    rig.call(&["backup", backup.to_str().unwrap()]).says("wrote ").fine();
    let listed = Command::new("tar").arg("tf").arg(&backup).output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.status.success() && names.lines().any(|name| name == "state.db"), "any tar reads it: {names}");
    // What happens after it is not in it.
    let late = ids("unserved", &["late"]);
    gate.open(2);
    server.stop();

    let new = rig.path("new");
    elsewhere(&rig, &new, &["restore", backup.to_str().unwrap()]).fine();
    let state = |id: &str| {
        let told = elsewhere(&rig, &new, &["show", id, "--json"]);
        if told.code == Some(66) { "unknown".to_owned() } else { told.json()["state"].as_str().unwrap().to_owned() }
    };
    let states = |ids: &[String]| -> BTreeSet<String> { ids.iter().map(|id| state(id)).collect() };
    assert_eq!(states(&waiting), ["ready".to_owned()].into());
    assert_eq!(inboxed.lines().map(state).collect::<BTreeSet<_>>(), ["ready".to_owned()].into());
    assert_eq!(states(&done), ["succeeded".to_owned()].into());
    assert_eq!(states(&bad), ["failed".to_owned()].into());
    assert_eq!(states(&late), ["unknown".to_owned()].into());
    assert_eq!(states(&running), ["ready".to_owned()].into(), "what ran goes back: nobody there runs it");
    assert_eq!(elsewhere(&rig, &new, &["logs", &done[0]]).fine(), "x\n");

    // The restored directory works, and archives what it does from then on.
    let mut served = crate::rig::Process::start(rig.windlass(&["serve"]).env("WINDLASS_DIR", &new));
    assert!(served.out_line().starts_with("windlass serves"));
    (0..2).for_each(|_| drop(bell.next()));
    gate.open(2);
    elsewhere(&rig, &new, &["wait", "--drained"]);
    assert_eq!(states(&running), ["succeeded".to_owned()].into());
    assert_eq!(elsewhere(&rig, &new, &["logs", &running[0]]).fine(), "out\n");
    served.signal(rustix::process::Signal::TERM);
    served.end().fine();
}

#[test]
fn a_backup_under_load_restores_to_a_state_that_was() {
    let rig = Rig::new();
    let witness = rig.path("witness");
    let script = format!("echo $1 >> {}", witness.display());
    let server = rig.serve(&format!("[queue.q]\nslots = 8\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\n"));
    let input: String = (0..600).map(|n| format!("{n}\n")).collect();
    let run = rig.feed(&["push", "q", "--run", "new"], &input).fine().trim_end().to_owned();
    let backups: Vec<_> = (0..3).map(|n| rig.path(&format!("b{n}"))).collect();
    for backup in &backups {
        rig.call(&["backup", backup.to_str().unwrap()]).fine();
    }
    rig.call(&["wait", &run]).fine();
    server.stop();
    assert_eq!(sorted(&lines_of(&witness).join("\n")), sorted(&input));
    for (n, backup) in backups.iter().enumerate() {
        let new = rig.path(&format!("new{n}"));
        elsewhere(&rig, &new, &["restore", backup.to_str().unwrap()]).fine();
        let total = |told: crate::rig::Told| {
            let counts = told.json()["queues"]["q"].clone();
            ["ready", "running", "succeeded"].iter().map(|state| counts[state].as_u64().unwrap()).sum::<u64>()
        };
        assert_eq!(total(elsewhere(&rig, &new, &["status", "--json"])), 600, "{n}");
        // Every job is listed once, waiting or in the archive.
        let listed = elsewhere(&rig, &new, &["ls", "--json"]).json();
        let ids: BTreeSet<_> = listed.as_array().unwrap().iter().map(|job| job["id"].to_string()).collect();
        assert_eq!((ids.len(), listed.as_array().unwrap().len()), (600, 600), "{n}");
        let mut served = crate::rig::Process::start(rig.windlass(&["serve"]).env("WINDLASS_DIR", &new));
        assert!(served.out_line().starts_with("windlass serves"));
        elsewhere(&rig, &new, &["wait", &run]).fine();
        let listed = elsewhere(&rig, &new, &["ls", "state:succeeded", "--json"]).json();
        assert_eq!(listed.as_array().unwrap().len(), 600, "each end is archived once");
        served.signal(rustix::process::Signal::TERM);
        served.end().fine();
    }
}

#[test]
fn backup_and_restore_refuse_what_would_cost_something() {
    let rig = Rig::new();
    rig.call(&["push", "q", "x"]).fine();
    let (backup, dir) = (rig.path("b"), rig.dir());
    let (name, inside) = (backup.to_str().unwrap(), dir.join("b"));
    rig.call(&["backup", inside.to_str().unwrap()]).says("lies in the data directory itself").ended(64);
    rig.call(&["backup", name]).fine();
    rig.call(&["backup", name]).says("exists and is left as it is").ended(73);
    rig.call(&["restore", "--check", name]).says("is whole").fine();
    rig.call(&["restore", name]).says("it is not empty").ended(73);
    rig.call(&["restore", rig.path("none").to_str().unwrap()]).ended(66);
    let mut bytes = std::fs::read(&backup).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&backup, bytes).unwrap();
    rig.call(&["restore", "--check", name]).says("is not a whole backup").ended(65);
    elsewhere(&rig, &rig.path("new"), &["restore", name]).says("is not a whole backup").ended(65);
    assert!(!rig.path("new").exists());
    let full = rig.call(&["backup", "/dev/full"]);
    assert_eq!(full.code, Some(73), "{full:?}");
}

#[test]
fn force_moves_what_is_there_aside_and_a_server_keeps_it_from_being_moved() {
    let rig = Rig::new();
    rig.call(&["push", "q", "old"]).fine();
    let backup = rig.path("b");
    let name = backup.to_str().unwrap();
    rig.call(&["backup", name]).fine();
    rig.call(&["push", "q", "newer"]).fine();
    let server = rig.serve("[queue.other]\nrun = [\"true\"]\n");
    rig.call(&["restore", name, "--force"]).says("is in use by windlass process").ended(75);
    server.stop();
    let aside = rig.call(&["restore", name, "--force", "--json"]).json()["moved_aside"].as_str().unwrap().to_owned();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["ready"], 1);
    assert_eq!(elsewhere(&rig, Path::new(&aside), &["status", "--json"]).json()["queues"]["q"]["ready"], 2);
}
