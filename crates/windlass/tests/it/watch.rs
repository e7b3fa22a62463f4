//! The verbs that look on: stats, watch, wait for jobs; and the two that say "now": nudge and tick.

use crate::rig::{Rig, Told};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Stdio;

const CONFIG: &str = "[queue.ok]\nrun = [\"true\"]\n[queue.bad]\nrun = [\"false\"]\nattempts = 1\n\
                      [queue.later]\nrun = [\"sh\", \"-c\", \"exit 75\"]\nattempts = 2\n\
                      backoff = \"1000h\"\nbackoff_max = \"1000h\"\n";

#[test]
fn contention_is_measured_by_what_holds_a_queue() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo runs > {}; read x < {}", bell.path, gate.path);
    let first = format!("[queue.first]\nrun = [\"sh\", \"-c\", {script:?}]\n");
    let server = rig.serve(&format!("[limits]\nslots = 1\n{first}[queue.second]\nrun = [\"true\"]\n"));
    let stats = || rig.call(&["stats", "--json"]).json();
    let held = |stats: &Value, queue: &str| {
        let rows = stats["rows"].as_array().unwrap().iter();
        rows.filter(|row| row["key"] == queue).map(|row| row["held_s"].clone()).next().unwrap_or(Value::Null)
    };
    let taken = |stats: &Value| held(stats, "second")["server_slots_taken"].as_f64().unwrap_or(0.0);
    rig.call(&["push", "first", "x"]).fine();
    assert_eq!(bell.next(), "runs");
    assert_eq!(taken(&stats()), 0.0, "nothing of it is there");
    rig.call(&["push", "second", "x"]).fine();
    // It grows with time alone, so it is looked at until it has grown, and once more.
    for _ in 0..2 {
        let before = taken(&stats());
        while taken(&stats()) <= before {}
    }
    gate.open(1);
    rig.drained();
    let over = stats();
    let later = stats();
    assert!(taken(&over) > 0.0, "{over}");
    assert_eq!(taken(&over), taken(&later), "it is held no more");
    assert_eq!(held(&over, "second").as_object().unwrap().len(), 1, "by nothing else: {over}");
    assert_eq!(held(&over, "first"), Value::Null, "nothing held it: {over}");
    assert_eq!(over["total"]["held_s"], held(&over, "second"));
    let busy = over["busy"].as_f64().unwrap();
    assert!(busy > 0.0 && busy <= 1.0, "{busy}");
    let told = rig.call(&["stats", "queue:second", "--fields", "key,held_by"]).fine().to_owned();
    assert!(told.contains("server_slots_taken"), "{told}");
    server.stop();
}

#[test]
fn statistics_of_what_ended() {
    let rig = Rig::new();
    let server = rig.serve(CONFIG);
    rig.call(&["push", "ok", "1", "2", "3"]).fine();
    rig.call(&["push", "bad", "x", "--priority", "7"]).fine();
    rig.call(&["push", "nobody", "x", "y"]).fine();
    rig.drained();
    let row = |stats: &Value, key: &str| -> Value {
        stats["rows"].as_array().unwrap().iter().find(|row| row["key"] == key).cloned().unwrap_or(Value::Null)
    };
    let stats = rig.call(&["stats", "--json"]).json();
    let ok = row(&stats, "ok");
    assert_eq!((ok["attempts"].as_u64(), ok["succeeded"].as_u64()), (Some(3), Some(3)), "{stats}");
    assert!(ok["run_s"]["p50"].as_f64().unwrap() > 0.0 && ok["per_minute"].as_f64().unwrap() > 0.0, "{ok}");
    assert_eq!(row(&stats, "bad")["failed"], 1);
    assert_eq!(row(&stats, "nobody")["waiting"]["ready"], 2);
    assert_eq!(stats["total"]["attempts"], 4);
    let stats = rig.call(&["stats", "--by", "priority", "--since", "1h", "--json"]).json();
    assert_eq!((row(&stats, "7")["failed"].as_u64(), row(&stats, "0")["succeeded"].as_u64()), (Some(1), Some(3)));
    let stats = rig.call(&["stats", "queue:ok", "--by", "state", "--json"]).json();
    assert_eq!((stats["rows"].as_array().unwrap().len(), &stats["total"]["attempts"]), (1, &3.into()));
    server.stop();
    let table = rig.call(&["stats", "--by", "hour"]).fine().to_owned();
    assert!(table.starts_with("HOUR") && table.lines().last().unwrap().starts_with("total "), "{table}");
    rig.call(&["stats", "--since", "soon"]).says("expected a span such as 30m").ended(64);
    rig.call(&["stats", "--by", "colour"]).ended(64);
    rig.call(&["stats", "text:x"]).says("statistics are about many jobs").ended(65);
}

#[test]
fn a_job_that_says_later_is_tried_again_and_watched() {
    let rig = Rig::new();
    let server = rig.serve(CONFIG);
    let mut watch = rig.start(&["--json", "watch", "queue:later"], Stdio::null());
    assert_eq!(watch.out_line(), "{\"watching\":true}\n", "from here on nothing is missed");
    let id = rig.call(&["push", "later", "x"]).fine().trim_end().to_owned();
    let line: Value = serde_json::from_str(&watch.out_line()).unwrap();
    assert_eq!((&line["job"], &line["start"]), (&id.as_str().into(), &1.into()), "{line}");
    assert_eq!((&line["state"], &line["outcome"]), (&"retrying".into(), &"retry_later".into()), "{line}");
    // A listing waits for the archive.
    rig.call(&["ls", "queue:later"]).fine();
    let shown = rig.call(&["show", &id, "--json"]).json();
    assert_eq!(shown["history"][0]["outcome"], "retry_later", "exit 75 asks for another try");
    rig.call(&["cancel", "queue:later", "--yes"]).fine();
    watch.signal(Signal::INT);
    let told = watch.end();
    told.says("no longer watching; the jobs go on").ended(130);
    server.stop();
}

#[test]
fn a_run_is_watched_to_its_end() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo > {}; read x < {}; test $0 != b", bell.path, gate.path);
    let server =
        rig.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}, \"{{}}\"]\nslots = 1\nattempts = 1\n"));
    let run = rig.call(&["push", "q", "--run", "new", "a", "b"]).fine().trim_end().to_owned();
    bell.next();
    let mut watch = rig.start(&["watch", &run], Stdio::null());
    watch.until(&format!("watching {run}: 0/2 done, 1 running"));
    let mut full = rig.start(&["watch", &run, "--full"], Stdio::null());
    full.until("watching");
    let mut every = rig.start(&["--json", "watch", &run], Stdio::null());
    assert_eq!(every.out_line(), "{\"watching\":true}\n");
    let wait = rig.start(&["wait", "queue:q"], Stdio::null());
    gate.open(2);
    let told = watch.end();
    told.says("has ended: 1 succeeded, 1 failed; retry: windlass retry").ended(1);
    let shown = |told: &Told| String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(!shown(&told).contains(" succeeded "), "what succeeds is counted: {told:?}");
    assert_eq!(shown(&told).lines().count(), 1, "and what fails is told: {told:?}");
    assert_eq!(full.end().ended(1).lines().count(), 2);
    assert_eq!(every.end().ended(1).lines().filter(|line| line.contains("\"start\"")).count(), 2);
    wait.end().says("queue:q has ended: 1 failed").ended(1);
    rig.call(&["watch", &run]).says("has ended: 1 succeeded, 1 failed").ended(1);
    rig.call(&["watch", "state:done"]).says("in the selector at character 1").ended(65);
    rig.call(&["watch", "r-0000000000"]).ended(66);
    server.stop();
    rig.call(&["watch", &run]).says("1 failed").ended(1);
    rig.call(&["watch"]).says("no server is running").ended(69);
}

#[test]
fn jobs_are_waited_for_by_id_and_selector() {
    let rig = Rig::new();
    let server = rig.serve(CONFIG);
    let good = rig.call(&["push", "ok", "1", "2"]).fine().to_owned();
    let good: Vec<&str> = good.lines().collect();
    rig.call(&["wait", good[0], good[1]]).says(" have ended: nothing failed").fine();
    rig.call(&["push", "nobody", "x"]).fine();
    rig.call(&["wait", "queue:nobody", "--timeout", "100ms"]).says("not ended after").ended(124);
    let waiting = rig.start(&["wait", "queue:nobody"], Stdio::null());
    rig.call(&["delete", "queue:nobody"]).says("1 job deleted").fine();
    let told = waiting.end();
    if told.code == Some(1) {
        told.says("queue:nobody has ended: 1 cancelled");
    }
    // It either saw the end or came too late to find the job at all.
    assert!([Some(1), Some(66)].contains(&told.code), "{told:?}");
    let ids =
        rig.call(&["push", "nobody", "x", "--in", "1h"]).fine().to_owned() + rig.call(&["push", "bad", "x"]).fine();
    let ids: Vec<&str> = ids.lines().collect();
    rig.call(&["wait", ids[1]]).says(" has ended: 1 failed").ended(1);
    rig.call(&["cancel", ids[0]]).fine();
    rig.call(&["wait", ids[0]]).says(" has ended: 1 cancelled").ended(1);
    rig.call(&["wait", ids[0], ids[1]]).says(" have ended: 1 failed, 1 cancelled").ended(1);
    assert_eq!(rig.call(&["wait", ids[0], ids[1], "--json"]).ended(1), "{\"failed\":2}\n");
    rig.call(&["wait", "queue:unheard"]).says("no job matches queue:unheard").ended(66);
    rig.call(&["wait", "hello"]).says("neither a job's id").ended(64);
    server.stop();
}

#[test]
fn a_job_is_waited_for_until_it_is_in_a_state() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let slow =
        format!("[queue.slow]\nrun = [\"sh\", \"-c\", \"echo > {}; read x < {}\"]\nslots = 1\n", bell.path, gate.path);
    let server = rig.serve(&format!("{CONFIG}{slow}"));
    let ids = rig.call(&["push", "slow", "1", "2", "3"]).fine().to_owned();
    let ids: Vec<&str> = ids.lines().collect();
    bell.next();
    rig.call(&["wait", ids[0], "--for", "running"]).says(": running").fine();
    rig.call(&["suspend", ids[2]]).fine();
    rig.call(&["wait", ids[2], "--for", "suspended"]).fine();
    rig.call(&["wait", ids[2], "--for", "running", "--timeout", "100ms"]).ended(124);
    let waits = rig.start(&["wait", ids[2], "--for", "running"], Stdio::null());
    let never = rig.start(&["wait", ids[0], "--for", "failed"], Stdio::null());
    rig.call(&["resume", ids[2]]).fine();
    gate.open(3);
    waits.end().fine();
    never.end().says("1 job ended and not as failed").ended(1);
    rig.call(&["wait", ids[0], ids[1], ids[2], "--for", "succeeded"]).fine();
    rig.call(&["wait", ids[1], "--for", "running"]).says(": running").fine();
    let run = rig.call(&["push", "later", "--run", "new", "x"]).fine().trim_end().to_owned();
    rig.call(&["wait", &run, "--for", "retrying"]).says(": retrying").fine();
    rig.call(&["wait", ids[0], "--for", "ready"]).says("expected one of running, retrying").ended(64);
    rig.call(&["wait", "--drained", "--for", "running"]).ended(64);
    server.stop();
    rig.call(&["wait", &run, "--for", "failed"]).says("not failed: 1 job, and no server is running").ended(69);
    rig.call(&["wait", ids[0], "--for", "succeeded"]).fine();
}

#[test]
fn several_are_waited_for_all_or_the_first_or_the_first_failure() {
    let rig = Rig::new();
    let mut gate = rig.gate("gate");
    let slow = format!("[queue.slow]\nrun = [\"sh\", \"-c\", \"read x < {}\"]\n", gate.path);
    let server = rig.serve(&format!("{CONFIG}{slow}"));
    let run = |queue: &str| rig.call(&["push", queue, "--run", "new", "x"]).fine().trim_end().to_owned();
    let job = |queue: &str| rig.call(&["push", queue, "x"]).fine().trim_end().to_owned();
    let (slow, good, bad) = (run("slow"), run("ok"), run("bad"));
    assert_eq!(rig.call(&["wait", "--any", &slow, &good]).fine(), format!("{good}\n"));
    let told = rig.call(&["wait", "--any", &slow, &bad]);
    assert_eq!((told.says("1 failed").ended(1), told.code), (format!("{bad}\n").as_str(), Some(1)));
    rig.call(&["wait", "--fail-fast", &slow, &good, &bad]).says("has ended: 1 failed").ended(1);
    let (slow_job, good_job, bad_job) = (job("slow"), job("ok"), job("bad"));
    assert_eq!(rig.call(&["wait", "--any", &slow_job, &good_job]).fine(), format!("{good_job}\n"));
    rig.call(&["wait", "--fail-fast", &slow_job, &bad_job]).says("has ended: 1 failed").ended(1);
    rig.call(&["wait", &slow, &good, "--timeout", "100ms"]).says("not ended after").ended(124);
    let both = rig.start(&["wait", &slow, &good, &slow_job], Stdio::null());
    gate.open(2);
    both.end().says("have ended: nothing failed").fine();
    let told = rig.call(&["wait", &slow, &bad, "--json"]);
    assert_eq!(told.code, Some(1), "{told:?}");
    rig.call(&["wait", &slow, "r-0000000000"]).says("no unfinished run r-0000000000").ended(66);
    rig.call(&["wait", "--any", "--fail-fast", &slow]).says("cannot be used with").ended(64);
    rig.call(&["wait", "--any", "--drained"]).says("cannot be used with").ended(64);
    let left = run("nobody");
    server.stop();
    rig.call(&["wait", &slow, &good]).says("have ended: nothing failed").fine();
    rig.call(&["wait", &slow, &left]).says("not ended: 1 job, and no server is running").ended(69);
    assert_eq!(rig.call(&["wait", "--any", &left, &slow]).fine(), format!("{slow}\n"));
    rig.call(&["wait", "--fail-fast", &left, &bad]).says("1 failed").ended(1);
}

#[test]
fn a_nudge_needs_a_server_and_a_tick_does_not() {
    let rig = Rig::new();
    rig.call(&["nudge"]).says("nobody to nudge").ended(69);
    rig.call(&["push", "ok", "1", "2"]).fine();
    rig.call(&["push", "ok", "late", "--in", "1h"]).fine();
    let file = rig.path("w.toml");
    let name = file.to_str().unwrap();
    std::fs::write(&file, "[limits]\nslotz = 3\n").unwrap();
    rig.call(&["tick", "--config", name]).says("unknown key `slotz`").ended(78);
    std::fs::write(&file, CONFIG).unwrap();
    rig.call(&["tick", "--config", name]).says("everything that was due is done: nothing failed").fine();
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!(
        (&status["totals"]["succeeded"], &status["totals"]["scheduled"]),
        (&2.into(), &1.into()),
        "what is not due waits for a later tick"
    );
    rig.call(&["push", "bad", "x"]).fine();
    rig.call(&["tick", "--config", name]).says("1 failed").ended(1);
    let server = rig.serve(CONFIG);
    rig.call(&["nudge"]).says("the server looks for work").fine();
    rig.call(&["push", "ok", "3"]).fine();
    rig.call(&["tick"]).says("everything that was due is done").fine();
    assert_eq!(rig.call(&["status", "--json"]).json()["totals"]["succeeded"], 3);
    server.stop();
}
