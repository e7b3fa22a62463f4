//! Verbs that speak to a server by its address, with its token; and those that cannot.

use crate::rig::{Process, Rig, Told, lines_of, sorted};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A client's machine: another home, no data directory, and the server's address and token.
struct Away<'r> {
    rig: &'r Rig,
    url: String,
    token: String,
}

impl<'r> Away<'r> {
    fn new(rig: &'r Rig) -> Away<'r> {
        let read = |name: &str| std::fs::read_to_string(rig.dir().join("run").join(name)).unwrap().trim().to_owned();
        Away { rig, url: read("address"), token: read("token") }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.rig.windlass(words);
        command.env_remove("WINDLASS_DIR").env("HOME", self.rig.path("away")).env("WINDLASS_TOKEN", &self.token);
        command.env("WINDLASS_URL", &self.url);
        command
    }

    fn call(&self, words: &[&str]) -> Told {
        Process::start(&mut self.command(words)).end()
    }

    fn feed(&self, words: &[&str], input: &[u8]) -> Told {
        let mut process = Process::start(self.command(words).stdin(Stdio::piped()));
        process.stdin().write_all(input).unwrap();
        process.end()
    }
}

const MAIL: &str = "[queue.mail]\nrun = [\"sh\", \"-c\", \"echo $1 >> $2; test $1 != bad\", \"sh\", \"{}\", \"DONE\"]\n\
                    attempts = 1\n";

fn config(done: &Path) -> String {
    MAIL.replace("DONE", done.to_str().unwrap())
}

#[test]
fn jobs_are_pushed_watched_and_steered_through_an_address() {
    let rig = Rig::new();
    let done = rig.path("done");
    let server = rig.serve(&config(&done));
    let away = Away::new(&rig);
    let id = away
        .call(&["push", "mail", "one", "two"])
        .says("2 jobs accepted (full)")
        .fine()
        .lines()
        .next()
        .unwrap()
        .to_owned();
    away.call(&["wait", "--drained"]).says("nothing failed").fine();
    assert_eq!(sorted(&std::fs::read_to_string(&done).unwrap()), ["one", "two"]);
    assert_eq!(away.call(&["show", &id, "--json"]).json()["state"], "succeeded");
    away.call(&["status"]).says("served by process").fine();
    away.call(&["logs", &id]).fine();
    away.call(&["pause", "mail", "--reason", "elsewhere"]).fine();
    let held = away.call(&["push", "mail", "bad"]).fine().trim().to_owned();
    assert!(away.call(&["why", &held]).fine().contains("paused by token"), "over TCP the token's holder is who");
    away.call(&["suspend", &held]).fine();
    away.call(&["resume", &held]).fine();
    away.call(&["unpause", "mail"]).fine();
    away.call(&["wait", &held]).ended(1);
    assert_eq!(away.call(&["ls", "state:failed", "-o", "ids"]).fine().trim(), held);
    assert!(away.call(&["config", "show"]).fine().contains("[queue.mail]"));
    away.call(&["config", "diff"]).says("on its own machine").ended(64);
    away.call(&["config", "reload"]).says("no differences").fine();
    away.call(&["nudge"]).fine();
    assert_eq!(away.call(&["stats", "--json"]).json()["total"]["failed"], 1);
    assert!(away.call(&["export"]).fine().contains(&held));
    assert!(!rig.path("away").exists(), "nothing was made on the client's side");
    away.call(&["stop"]).says("the server has stopped").fine();
    server.process.end().fine();
    let gone = away.call(&["ls"]);
    gone.says("nobody listens at http://127.0.0.1:").says("windlass serve").ended(69);
}

#[test]
fn lines_go_to_an_address_in_requests_of_many() {
    let rig = Rig::new();
    let done = rig.path("done");
    let server = rig.serve(&config(&done));
    let away = Away::new(&rig);
    let lines: String = (0..2_500).map(|n| format!("{n}\n\n")).collect();
    let words = ["push", "held", "--ids"];
    let ids = away.feed(&words, lines.as_bytes()).says("2,500 jobs accepted (full)").fine().to_owned();
    assert_eq!(ids.lines().count(), 2_500);
    assert_eq!(away.call(&["show", ids.lines().nth(1_777).unwrap(), "--json"]).json()["data"], "1777");
    let run = away.feed(&["push", "mail", "--run", "new", "--tolerate", "1"], b"a\nbad\n").fine().trim().to_owned();
    away.call(&["wait", &run]).fine();
    assert_eq!(sorted(&std::fs::read_to_string(&done).unwrap()), ["a", "bad"]);
    let told: Value = away.call(&["show", &run, "--json"]).json();
    assert_eq!((&told["sealed"], &told["total"]), (&Value::Bool(true), &2.into()));
    let odd = away.feed(&["push", "held", "-0", "--ids"], b"\xff\n\0\0").says("2 jobs accepted").fine().to_owned();
    let shown = away.call(&["show", odd.lines().next().unwrap(), "--json"]).json();
    assert_eq!((&shown["data_base64"], &shown["data_bytes"]), (&"/wo=".into(), &2.into()));
    away.feed(&["push", "held", "--jsonl"], b"{}\n[]\n").says("1 job before that was accepted").ended(65);
    let many: Vec<String> = (0..1_500).map(|n| n.to_string()).collect();
    let many: Vec<&str> = ["push", "held"].into_iter().chain(many.iter().map(String::as_str)).collect();
    assert_eq!(away.call(&many).fine().lines().count(), 1_500);
    assert_eq!(rig.call(&many).fine().lines().count(), 1_500, "and through the socket");
    server.stop();
}

#[test]
fn who_may_and_who_cannot() {
    let rig = Rig::new();
    let server = rig.serve("# nothing\n");
    let away = Away::new(&rig);
    let bare = Process::start(away.command(&["ls"]).env_remove("WINDLASS_TOKEN")).end();
    bare.says("this needs the server's token").says("WINDLASS_TOKEN").ended(77);
    let token = rig.path("token");
    std::fs::write(&token, format!("{}\n", away.token)).unwrap();
    let by_file = |words: &[&str]| {
        let mut command = away.command(words);
        command.env_remove("WINDLASS_TOKEN").env_remove("WINDLASS_URL").env("WINDLASS_TOKEN_FILE", &token);
        Process::start(&mut command).end()
    };
    by_file(&["ls", "--server", &away.url]).fine();
    by_file(&["ls", "--server", &away.url.replace("127.0.0.1", "localhost")]).fine();
    by_file(&["ls", "--server", &format!("unix://{}/run/socket", rig.dir().display())]).fine();
    by_file(&["ls", "--server", "https://127.0.0.1:1"]).says("expected http://HOST:PORT").says("tunnel").ended(64);
    by_file(&["ls", "--server", &away.url, "--dir", "x"]).ended(64);
    for words in [&["doctor"][..], &["serve"], &["run", "--", "true"], &["backup", "x"], &["tick"], &["restore", "x"]] {
        let sentence = format!("windlass {} works in a data directory of this machine", words[0]);
        let named = format!("WINDLASS_URL names a server: {}", away.url);
        away.call(words).says(&sentence).says(&named).says("--dir").ended(64);
    }
    let both = Process::start(away.command(&["doctor"]).env("WINDLASS_DIR", rig.dir())).end();
    both.fine();
    // What a job is told of its server is its own.
    let job = Process::start(away.command(&["status"]).env("WINDLASS_JOB_TOKEN", "t")).end();
    job.says("no server is running").fine();
    server.stop();
}

#[test]
fn a_wait_elsewhere_ends_with_its_run() {
    let rig = Rig::new();
    let mut gate = rig.gate("gate");
    let done = rig.path("done");
    let script = format!("read x < {}; echo $1 >> {}", gate.path, done.display());
    let server = rig.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\n"));
    let away = Away::new(&rig);
    let run = away.feed(&["push", "q", "--run", "new"], b"a\nb\n").fine().trim().to_owned();
    let waiting = Process::start(&mut away.command(&["wait", &run]));
    let mut watching = Process::start(&mut away.command(&["watch", &run, "--json"]));
    assert!(watching.out_line().contains("watching"));
    gate.open(2);
    waiting.end().says("nothing failed").fine();
    watching.end().fine();
    assert_eq!(lines_of(&done).len(), 2);
    let mut watching = Process::start(&mut away.command(&["watch", "--json"]));
    assert!(watching.out_line().contains("watching"));
    watching.signal(Signal::INT);
    watching.end().says("no longer watching").ended(130);
    server.stop();
}
