//! Every signal that a server takes, sent for real: drain, stop, reload, look, quiet, dump.

use crate::rig::{Rig, Server, lines_of};
use rustix::process::Signal;
use serde_json::Value;

/// A server with one queue whose jobs ring and then stand at the gate.
fn gated(rig: &Rig, before: &str) -> (crate::rig::Bell, crate::rig::Gate, Server) {
    let (bell, gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("{before}echo $1 > {}; read x < {}", bell.path, gate.path);
    let server = rig.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\n"));
    (bell, gate, server)
}

fn condition(rig: &Rig) -> Value {
    rig.call(&["status", "--json"]).json()["server"]["condition"].clone()
}

fn state_of(rig: &Rig, id: &str) -> Value {
    rig.call(&["show", id, "--json"]).json()["state"].clone()
}

fn push(rig: &Rig, data: &str) -> String {
    rig.call(&["push", "q", data]).fine().trim_end().to_owned()
}

#[test]
fn tstp_starts_nothing_more_while_what_runs_goes_on_and_cont_or_usr1_ends_it() {
    let rig = Rig::new();
    let (mut bell, mut gate, mut server) = gated(&rig, "");
    assert_eq!(condition(&rig), "serving");
    for (data, end) in [("1", Signal::CONT), ("2", Signal::USR1)] {
        let running = push(&rig, data);
        assert_eq!(bell.next(), data);
        server.process.signal(Signal::TSTP);
        server.process.until("quiet: nothing is started");
        let late = push(&rig, "late");
        gate.open(1);
        server.process.until(&format!("job={running}"));
        assert_eq!(state_of(&rig, &running), "succeeded");
        assert_eq!((state_of(&rig, &late), condition(&rig)), ("ready".into(), "quiet".into()));
        server.process.signal(end);
        assert_eq!(bell.next(), "late");
        gate.open(1);
        server.process.until(&format!("job={late}"));
        assert_eq!(condition(&rig), "serving");
    }
    // A quiet server can be told to stop like any other.
    server.process.signal(Signal::TSTP);
    server.process.until("quiet: nothing is started");
    server.stop();
}

#[test]
fn the_second_int_kills_what_the_first_let_run() {
    let rig = Rig::new();
    let (mut bell, _gate, mut server) = gated(&rig, "trap '' TERM INT; ");
    let id = push(&rig, "1");
    bell.next();
    server.process.signal(Signal::INT);
    server.process.until("how=drain");
    assert_eq!(condition(&rig), "draining");
    server.process.signal(Signal::INT);
    server.process.until("how=now");
    server.process.end().fine();
    let job = rig.call(&["show", &id, "--json"]).json();
    assert_eq!((&job["state"], &job["attempts"]["failures"]), (&"ready".into(), &0.into()), "{job}");
}

#[test]
fn usr1_looks_for_work_now() {
    let rig = Rig::new();
    let mut server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    server.process.signal(Signal::USR1);
    server.process.until("looking for work");
    push(&rig, "1");
    rig.drained();
    server.stop();
}

#[test]
fn hup_opens_the_log_anew() {
    let rig = Rig::new();
    let server = rig.serve("[log]\nfile = \"server.log\"\n[queue.q]\nrun = [\"true\"]\n");
    let (log, old) = (rig.dir().join("server.log"), rig.dir().join("server.log.1"));
    let id = push(&rig, "1");
    rig.drained();
    // The line of an attempt comes from the archiver, which nobody waits for.
    while lines_of(&log).iter().all(|line| !line.contains(&id)) {
        rig.call(&["status"]).fine();
    }
    std::fs::rename(&log, &old).unwrap();
    server.process.signal(Signal::HUP);
    // The engine has the reload behind it once it has done what was asked of it after that.
    while lines_of(&log).iter().all(|line| !line.contains("msg=reloaded")) {
        rig.call(&["status"]).fine();
    }
    assert!(lines_of(&old).iter().any(|line| line.contains(&id)), "{:?}", lines_of(&old));
    let said = server.stop();
    assert_eq!(said, "", "with a file nothing is said on stderr");
    let lines = lines_of(&log);
    assert!(lines.last().unwrap().ends_with("msg=stopped"), "{lines:?}");
    assert!(lines_of(&old).iter().all(|line| !line.contains("reloaded")), "the old file is left alone");
}

#[test]
fn ttin_tells_what_goes_on() {
    let rig = Rig::new();
    let (mut bell, mut gate, mut server) = gated(&rig, "");
    let id = push(&rig, "1");
    rig.call(&["push", "unserved", "a", "b"]).fine();
    bell.next();
    server.process.signal(Signal::TTIN);
    let mut told = server.process.until("msg=dump ");
    while !told.ends_with("msg=\"dump ends\"\n") {
        told.push_str(&server.process.until("msg="));
    }
    for part in [
        "condition=serving flights=1",
        "msg=\"dump memory\" used=",
        "queue=unserved scheduled=0 ready=2",
        &format!("msg=\"dump flight\" job={id} and=0 queue=q start=1 since="),
        "state=working",
        "msg=\"dump thread\" name=engine state=",
        "name=ingest",
        "name=log",
    ] {
        assert!(told.contains(part), "expected {part:?} in: {told}");
    }
    gate.open(1);
    server.process.until(&format!("job={id}"));
    server.stop();
}
