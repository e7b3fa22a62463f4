//! A remote worker that has lost its lease: what it runs is dead by then, whole, and nothing is told of it, whoever was
//! gone or frozen meanwhile.

use crate::rig::{Bell, Process, Rig, is_ready, lines_of};
use crate::work::{claim, connect, reply};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::{Value, json};
use windlass::client::Connection;

const FAR: &str = "[queue.far]\nremote = true\nattempts = 5\nbackoff = \"1ms\"\nlease = \"2s\"\n";

/// A worker for jobs that ring twice, from two sessions, and then stand at the gate.
fn worker(rig: &Rig, bell: &str, gate: &str) -> Process {
    let script = format!(
        "setsid sh -c 'echo $$ > {bell}; exec sleep 1000' < /dev/null > /dev/null 2>&1 &
        echo $$ > {bell}; read open < {gate}"
    );
    start(rig, &script)
}

fn start(rig: &Rig, script: &str) -> Process {
    // What a killed worker leaves behind goes with the rig.
    let place = rig.path("work");
    std::fs::create_dir_all(&place).unwrap();
    let words = ["work", "far", "-j", "1", "--", "sh", "-c", script, "sh", "{}"];
    Process::start(rig.windlass(&words).env("XDG_RUNTIME_DIR", place))
}

/// The two processes of a job that has begun.
fn tree(bell: &mut Bell) -> [i32; 2] {
    [(); 2].map(|()| bell.next().parse().unwrap())
}

#[track_caller]
fn all_die(tree: [i32; 2]) {
    for pid in tree {
        // One that has no number any more is dead.
        if let Ok(handle) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) {
            assert!(is_ready(&handle, crate::rig::PATIENCE), "{pid} outlives the lease");
        }
    }
}

/// What a frozen worker ran is dead, though nobody but its launcher can see to that, and is begun by another; then the
/// worker wakes, and tells nothing.
#[track_caller]
fn replaced(rig: &Rig, process: &mut Process, begun: [i32; 2]) -> (Connection, Value) {
    all_die(begun);
    let mut to = connect(rig);
    let next = claim(&mut to, "far", 1).remove(0);
    assert_eq!(next["attempt"], 2);
    process.signal(Signal::CONT);
    process.until("its lease had ended, so nothing is told of its end");
    (to, next)
}

fn show(rig: &Rig, id: &str) -> Value {
    rig.call(&["show", id, "--json"]).json()
}

fn push(rig: &Rig, data: &str) -> String {
    rig.call(&["push", "far", data]).fine().trim_end().to_owned()
}

#[test]
fn what_a_frozen_worker_runs_is_dead_before_another_has_the_job() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let server = rig.serve(FAR);
    let mut process = worker(&rig, &bell.path, &gate.path);
    let id = push(&rig, "x");
    let begun = tree(&mut bell);
    process.freeze();
    let (mut to, next) = replaced(&rig, &mut process, begun);
    assert_eq!(next["id"], id.as_str());
    assert_eq!(show(&rig, &id)["state"], "running");
    reply(&mut to, &next, &json!({ "status": "ok", "message": "by the second" })).unwrap();
    rig.drained();
    let shown = show(&rig, &id);
    assert_eq!((&shown["state"], &shown["history"][1]["message"]), (&"succeeded".into(), &"by the second".into()));
    // It goes on with what comes.
    let after = push(&rig, "y");
    tree(&mut bell);
    gate.open(1);
    rig.drained();
    assert_eq!(show(&rig, &after)["state"], "succeeded");
    process.signal(Signal::TERM);
    process.end().fine();
    server.stop();
}

#[test]
fn an_end_that_a_frozen_worker_hears_of_too_late_is_not_told() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let server = rig.serve(FAR);
    let mut process = worker(&rig, &bell.path, &gate.path);
    let id = push(&rig, "x");
    let begun = tree(&mut bell);
    process.freeze();
    gate.open(1);
    let (mut to, next) = replaced(&rig, &mut process, begun);
    reply(&mut to, &next, &json!({ "status": "fail", "error": "by the second" })).unwrap();
    rig.drained();
    assert_eq!(show(&rig, &id)["state"], "failed");
    process.signal(Signal::TERM);
    process.end().fine();
    server.stop();
}

#[test]
fn what_was_handed_to_a_frozen_worker_is_not_begun_when_it_wakes() {
    let rig = Rig::new();
    let witness = rig.path("witness");
    let server = rig.serve(&FAR.replace("2s", "1s"));
    let process = start(&rig, &format!("echo $1 >> {}", witness.display()));
    let mut to = connect(&rig);
    // Its ask is there within some rounds; a job that was not handed to it is done here.
    let was_handed = (0..100).any(|_| {
        push(&rig, "first");
        rig.drained();
        process.freeze();
        push(&rig, "late");
        let job = claim(&mut to, "far", 1).remove(0);
        reply(&mut to, &job, &json!({ "status": "ok" })).unwrap();
        rig.drained();
        process.signal(Signal::CONT);
        job["attempt"] == 2
    });
    assert!(was_handed);
    push(&rig, "after");
    rig.drained();
    let mut seen = lines_of(&witness);
    assert_eq!(seen.pop().as_deref(), Some("after"));
    assert!(seen.iter().all(|data| data == "first"), "{seen:?}");
    process.signal(Signal::TERM);
    process.end().fine();
    server.stop();
}

#[test]
fn a_server_that_is_gone_or_frozen_for_longer_than_the_lease_leaves_nothing_running() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let mut server = rig.serve(FAR);
    let mut process = worker(&rig, &bell.path, &gate.path);
    let id = push(&rig, "x");
    all_die({
        let begun = tree(&mut bell);
        server.kill();
        begun
    });
    process.until("its lease had ended, so nothing is told of its end");
    server = rig.serve_again();
    let begun = tree(&mut bell);
    assert_eq!(show(&rig, &id)["attempts"]["suspicions"], 0, "the server's death is nobody's fault");
    server.process.freeze();
    all_die(begun);
    process.until("its lease had ended, so nothing is told of its end");
    server.process.signal(Signal::CONT);
    tree(&mut bell);
    gate.open(1);
    rig.drained();
    assert_eq!(show(&rig, &id)["state"], "succeeded");
    process.signal(Signal::TERM);
    process.end().fine();
    server.stop();
}

#[test]
fn a_worker_that_is_told_that_its_claim_is_stale_kills_what_it_runs() {
    let rig = Rig::new();
    let (mut bell, gate) = (rig.bell("bell"), rig.gate("gate"));
    let server = rig.serve(&FAR.replace("2s", "1h"));
    let process = worker(&rig, &bell.path, &gate.path);
    let id = push(&rig, "x");
    let begun = tree(&mut bell);
    server.kill();
    // Who serves the queue from now on does not lend its jobs.
    let server = rig.serve("[queue.far]\nrun = [\"echo\", \"here\"]\n");
    rig.drained();
    all_die(begun);
    let shown = show(&rig, &id);
    assert_eq!((&shown["state"], &shown["history"][0]["message"]), (&"succeeded".into(), &"here".into()));
    process.signal(Signal::TERM);
    process.end().fine();
    server.stop();
}
