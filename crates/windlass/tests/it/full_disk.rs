//! A disk that is full for real, or cannot be written, under a real server with jobs in flight; and one that has no
//! descriptors left.

use crate::mount::Mount;
use crate::rig::{Process, Rig, Server};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const JOBS: usize = 40;

#[test]
fn a_full_ext4_loses_nothing_and_the_server_goes_on_by_itself() {
    let rig = Rig::new();
    let mount = Mount::ext4(&rig.dir(), 48);
    survives_a_full_disk(&rig, &mount);
}

#[test]
fn a_full_tmpfs_loses_nothing_and_the_server_goes_on_by_itself() {
    let rig = Rig::new();
    let mount = Mount::tmpfs(&rig.dir(), 48);
    survives_a_full_disk(&rig, &mount);
}

/// Fills the disk while jobs run: pushes are refused and leave nothing, what runs is settled, and when there is space
/// again everything that was accepted is done, once.
fn survives_a_full_disk(rig: &Rig, mount: &Mount) {
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let witness = rig.path("witness");
    let script =
        format!("echo $WINDLASS_JOB_ID >> {}; echo > {}; read x < {}", witness.display(), bell.path, gate.path);
    let quick = format!("echo $WINDLASS_JOB_ID >> {}", witness.display());
    let mut server = rig.serve(&format!(
        "[limits]\nslots = {JOBS}\n[queue.q]\nrun = [\"sh\", \"-c\", {script:?}]\nslots = {JOBS}\n\
         [queue.quick]\nrun = [\"sh\", \"-c\", {quick:?}]\n"
    ));
    let data: Vec<String> = (0..JOBS).map(|n| n.to_string()).collect();
    let words: Vec<&str> = ["push", "q", "--"].into_iter().chain(data.iter().map(String::as_str)).collect();
    let mut accepted: Vec<String> = rig.call(&words).fine().lines().map(str::to_owned).collect();
    (0..JOBS).for_each(|_| drop(bell.next()));
    assert!(rig.dir().join("reserve").metadata().unwrap().blocks() > 0, "there is a reserve");

    let filled = mount.fill("filled");
    // What the log still has room for is accepted, and kept; then it is over.
    let large = "x".repeat(100_000);
    let refused = loop {
        let told = rig.call(&["push", "quick", &large]);
        if told.code != Some(0) {
            break told;
        }
        accepted.push(told.fine().trim_end().to_owned());
    };
    refused.says("no space").ended(74);
    server.process.until("no space left");
    until(rig, |status| status["server"]["condition"] == "no_space");
    refusals_leave_nothing(rig, &large);

    gate.open(JOBS);
    until(rig, |status| status["queues"]["q"]["succeeded"] == JOBS);
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!(status["server"]["condition"], "no_space", "settled although the disk is full: {status}");

    std::fs::remove_file(filled).unwrap();
    let freed = Instant::now();
    server.process.until("there is space again: jobs are accepted and started");
    eprintln!("resumed after {:?}", freed.elapsed());
    accepted.push(rig.call(&["push", "quick", "after"]).fine().trim_end().to_owned());
    rig.drained();
    assert!(rig.dir().join("reserve").exists(), "the reserve is there again");
    for id in &accepted {
        assert_eq!(rig.call(&["show", id, "--json"]).json()["state"], "succeeded", "{id}");
    }
    let ran = std::fs::read_to_string(&witness).unwrap();
    assert_eq!(crate::rig::sorted(&ran), crate::rig::sorted(&accepted.join("\n")), "each once");
    server.stop();
}

/// Refused by the server's socket and by the inbox: the files are as long as before.
fn refusals_leave_nothing(rig: &Rig, large: &str) {
    let sizes = || -> Vec<(String, u64)> {
        let inbox = std::fs::read_dir(rig.dir().join("inbox")).unwrap();
        inbox
            .map(|entry| entry.unwrap())
            .map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len()))
            .collect()
    };
    let before = sizes();
    rig.call(&["push", "quick", large]).says("no space").ended(74);
    let lines = format!("{large}\n").repeat(8);
    rig.feed(&["push", "quick"], lines).says("No space left on device").ended(74);
    rig.call(&["push", "quick", "--durability", "os", large]).says("No space left on device").ended(74);
    let after = sizes();
    let total = |sizes: &[(String, u64)]| sizes.iter().map(|(_, size)| size).sum::<u64>();
    assert_eq!(total(&after), total(&before), "{before:?} {after:?}");
}

#[track_caller]
fn until(rig: &Rig, holds: impl Fn(&Value) -> bool) {
    let begun = Instant::now();
    loop {
        let status = rig.call(&["status", "--json"]).json();
        if holds(&status) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain: {status}");
    }
}

/// Accepted jobs in the store and in the inbox, and not a block left: the server comes up on its reserve, says so,
/// starts nothing and refuses pushes in words. Nothing is lost: with space all of it is done, once.
fn starts_on_a_full_disk(rig: &Rig, mount: &Mount) {
    let witness = rig.path("witness");
    let script = format!("echo $WINDLASS_JOB_ID >> {}", witness.display());
    let run = rig.call(&["push", "elsewhere", "--run", "new", "0"]).fine().trim_end().to_owned();
    let mut accepted: Vec<String> = rig.call(&["push", "q", "1", "2", "3"]).fine().lines().map(str::to_owned).collect();
    // Whoever asks without a server reads the inbox into the store.
    rig.call(&["ls"]).fine();
    accepted.extend(rig.call(&["push", "q", "4", "5", "6"]).fine().lines().map(str::to_owned));
    let config = format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}]\n");
    std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
    let filled = mount.fill("filled");
    let mut process = rig.start(&["serve"], Stdio::null());
    let ready = process.out_line();
    assert!(ready.starts_with("windlass serves unix:"), "{ready}{:?}", process.end());
    process.until("no space left: nothing is admitted or started until there is");
    let mut server = Server { process, ready };
    mount.fill("filled");
    assert_eq!(rig.call(&["status", "--json"]).json()["server"]["condition"], "no_space");
    rig.call(&["push", "q", "7"]).says("rejected, nothing was stored: no space left").ended(74);
    let why = rig.call(&["why", &accepted[0]]);
    assert!(why.fine().contains("space"), "{why:?}");
    // The archive cannot go on, and nobody who asks waits for it.
    assert!(rig.call(&["why", "q"]).fine().contains("space"));
    assert!(rig.call(&["why", &run]).fine().contains("1 job is ready"));
    assert!(!witness.exists(), "nothing was started");
    std::fs::remove_file(filled).unwrap();
    server.process.until("there is space again: jobs are accepted and started");
    rig.drained();
    let ran = std::fs::read_to_string(&witness).unwrap();
    assert_eq!(crate::rig::sorted(&ran), crate::rig::sorted(&accepted.join("\n")), "each once");
    server.stop();
}

#[test]
fn a_server_starts_on_a_full_ext4() {
    let rig = Rig::new();
    let mount = Mount::ext4(&rig.dir(), 48);
    starts_on_a_full_disk(&rig, &mount);
}

#[test]
fn a_server_starts_on_a_full_tmpfs() {
    let rig = Rig::new();
    let mount = Mount::tmpfs(&rig.dir(), 48);
    starts_on_a_full_disk(&rig, &mount);
}

#[test]
fn a_server_on_a_full_disk_can_be_stopped() {
    let rig = Rig::new();
    let mount = Mount::ext4(&rig.dir(), 48);
    let mut server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    mount.fill("filled");
    let large = "x".repeat(100_000);
    while rig.call(&["push", "q", &large]).code == Some(0) {}
    server.process.until("no space left");
    server.process.signal(Signal::TERM);
    server.process.end().fine();
}

#[test]
fn a_read_only_directory_is_refused_with_its_reason_and_works_again_afterwards() {
    let rig = Rig::new();
    let mount = Mount::ext4(&rig.dir(), 32);
    rig.call(&["push", "q", "x"]).fine();
    rig.call(&["ls"]).fine();
    mount.read_only(true);
    for words in [&["push", "q", "y"][..], &["ls"], &["serve"], &["status"], &["run", "--", "true"]] {
        rig.call(words).says("Read-only file system").ended(77);
    }
    let doctor = rig.call(&["doctor"]);
    assert_eq!(doctor.code, Some(74), "{doctor:?}");
    mount.read_only(false);
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["ready"], 1);
}

/// The file system turns read-only under a server that runs, as a kernel does after an error of the disk: it ends with
/// a sentence, and the next start has everything that was accepted.
#[test]
fn a_server_whose_disk_turns_read_only_ends_with_a_sentence_and_loses_nothing() {
    let rig = Rig::new();
    let mount = Mount::ext4(&rig.dir(), 48);
    let server = rig.serve("[log]\nlevel = \"info\"\n");
    let accepted = rig.call(&["push", "q", "1", "2", "3"]).fine().lines().count();
    mount.abort();
    assert_ne!(rig.call(&["push", "q", "4"]).code, Some(0), "what cannot be kept is not accepted");
    let told = server.process.end();
    assert_eq!(told.code, Some(74), "{}", told.stderr);
    let place = rig.dir();
    let place = place.file_name().unwrap().to_string_lossy();
    let why = told.stderr.lines().find(|line| line.starts_with("windlass: cannot write in the data directory "));
    let why = why.unwrap_or_else(|| panic!("{}", told.stderr));
    let said = [&*place, "Read-only file system", "expected a writable file system"];
    assert!(said.iter().all(|words| why.contains(words)), "{why}");
    assert!(told.stderr.ends_with("start again: everything accepted is kept\n"), "{}", told.stderr);
    mount.again();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["ready"], accepted);
}

/// A server that may open so few files that its callers take them all.
fn with_few_descriptors(rig: &Rig, config: &str, descriptors: u32) -> Server {
    std::fs::create_dir_all(rig.dir()).unwrap();
    std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
    let mut shell = Command::new("sh");
    let script = format!("ulimit -n {descriptors}; exec \"$1\" serve");
    shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_windlass")]);
    shell.env("WINDLASS_DIR", rig.dir()).stdin(Stdio::null());
    let mut process = Process::start(&mut shell);
    let ready = process.out_line();
    assert!(ready.starts_with("windlass serves unix:"), "{ready}");
    Server { process, ready }
}

#[test]
fn a_server_without_descriptors_says_so_and_serves_when_there_are_some_again() {
    let rig = Rig::new();
    let mut server = with_few_descriptors(&rig, "[queue.q]\nrun = [\"true\"]\n", 64);
    let socket = Path::new("data/run/socket");
    let callers: Vec<UnixStream> =
        (0..120).map(|_| UnixStream::connect(rig.path(socket.to_str().unwrap())).unwrap()).collect();
    server.process.until("cannot take a connection");
    // The inbox needs no answer: what is accepted there is done.
    rig.call(&["push", "q", "--durability", "os", "x"]).fine();
    drop(callers);
    rig.drained();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["succeeded"], 1);
    server.stop();
}

#[test]
fn more_jobs_than_descriptors_wait_for_one_another() {
    let rig = Rig::new();
    let witness = rig.path("witness");
    let script = format!("echo $1 >> {}", witness.display());
    let config = format!(
        "[limits]\nslots = 60\n[queue.q]\nslots = 60\nattempts = 1\n\
         run = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\n"
    );
    let server = with_few_descriptors(&rig, &config, 64);
    let input: String = (0..300).map(|n| format!("{n}\n")).collect();
    let run = rig.feed(&["push", "q", "--run", "new"], &input).fine().trim_end().to_owned();
    rig.call(&["wait", &run]).fine();
    let ran = std::fs::read_to_string(&witness).unwrap();
    assert_eq!(crate::rig::sorted(&ran), crate::rig::sorted(&input), "each once");
    server.stop();
}
