//! Steering a running server from outside: pauses, slots, hours, the config, and the question why.

use crate::audit::audit;
use crate::rig::{Rig, Server};
use rustix::process::Signal;
use serde_json::Value;

/// A queue whose jobs ring and then stand at a gate.
fn standing(rig: &Rig, queue: &str, slots: u32) -> (crate::rig::Bell, crate::rig::Gate, String) {
    let (bell, gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo $1 > {}; read x < {}", bell.path, gate.path);
    let table = format!("[queue.{queue:?}]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\nslots = {slots}\n");
    (bell, gate, table)
}

fn write_config(rig: &Rig, text: &str) {
    std::fs::write(rig.dir().join("windlass.toml"), text).unwrap();
}

/// The codes of the reasons why.
#[track_caller]
fn why(rig: &Rig, of: &str) -> Vec<String> {
    let told = rig.call(&["why", of, "--json"]).json();
    told["reasons"].as_array().unwrap().iter().map(|reason| reason["code"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_pause_holds_a_queue_through_a_restart_until_it_is_lifted() {
    let rig = Rig::new();
    let echo = "[queue.\"*\"]\nrun = [\"echo\", \"{}\"]\n";
    let server = rig.serve(echo);
    rig.call(&["pause", "img.*", "--reason", "new disk"]).says("queue `img.*` is paused; what runs goes on").fine();
    let id = rig.call(&["push", "img.a", "x"]).fine().trim_end().to_owned();
    rig.call(&["push", "mail", "y"]).fine();
    rig.drained();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["mail"]["succeeded"], 1);
    let user = String::from_utf8(std::process::Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let status = rig.call(&["status"]);
    let marked: Vec<bool> = status.fine().lines().map(|line| line.ends_with("paused")).collect();
    assert_eq!(marked, [false, true, false, false], "a heading, img.a, mail, the total");
    let sentence = rig.call(&["why", &id]).fine().to_owned();
    let expected = format!("queue `img.*` was paused by {} on ", user.trim_end());
    assert!(sentence.starts_with(&expected) && sentence.ends_with(": new disk\n"), "{sentence}");
    server.stop();
    assert_eq!(why(&rig, "img.a"), ["no_server"]);
    let server = rig.serve_again();
    assert_eq!((why(&rig, "img.a"), why(&rig, &id)), (vec!["paused".to_owned()], vec!["paused".to_owned()]));
    let told = rig.call(&["unpause", "img.a"]);
    told.says("queue `img.a` was not paused").says("queue `img.*` is still paused").fine();
    rig.call(&["unpause", "img.*"]).says("queue `img.*` goes on").fine();
    rig.call(&["unpause", "img.*"]).says("was not paused").fine();
    rig.drained();
    assert_eq!(why(&rig, &id), ["ended"]);
    let log = audit(&rig);
    let told: Vec<_> =
        log.iter().map(|line| (line["action"].as_str().unwrap(), line["by"].as_str().unwrap())).collect();
    assert_eq!(told, [("set", user.trim_end()), ("unset", user.trim_end())]);
    assert_eq!(
        (&log[0]["target"], &log[0]["value"], &log[0]["reason"]),
        (&"img.*".into(), &true.into(), &"new disk".into())
    );
    server.stop();
}

#[test]
fn a_pause_with_an_end_ends_by_itself() {
    let rig = Rig::new();
    let mut server = rig.serve("[queue.q]\nrun = [\"echo\", \"{}\"]\n");
    rig.call(&["pause", "--for", "1h"]).says("to pause the whole server needs --yes").ended(64);
    rig.call(&["pause", "--for", "1h", "--yes"]).fine();
    let told = rig.call(&["status"]);
    assert!(!told.says("which is paused: nothing is started").fine().contains("CLOSED"));
    // One that is over before the server has heard of it is refused: how long that takes is the machine's affair.
    let paused = ["1s", "5s", "25s"].iter().map(|length| rig.call(&["pause", "--for", length, "-y"]));
    let told = paused.into_iter().find(|told| told.code == Some(0)).expect("none is long enough");
    told.says("the server is paused until 2");
    let run = rig.feed(&["push", "q", "--run", "new"], "1\n2\n").fine().trim_end().to_owned();
    // Nobody asks for anything more: the end of the pause alone makes the jobs start.
    rig.call(&["wait", &run]).fine();
    server.process.until("`paused` of the server");
    let actions: Vec<_> = audit(&rig).iter().map(|line| line["action"].clone()).collect();
    assert_eq!(actions, ["set", "set", "end"]);
    server.stop();
}

#[test]
fn verbs_work_without_a_server_and_hold_when_one_comes() {
    let rig = Rig::new();
    rig.call(&["pause", "q"]).fine();
    rig.call(&["scale", "7"]).says("the server has 7 slots now").fine();
    rig.call(&["push", "q", "x"]).fine();
    assert_eq!(why(&rig, "q"), ["no_server"]);
    let server = rig.serve("[queue.q]\nrun = [\"echo\", \"{}\"]\n");
    assert_eq!(why(&rig, "q"), ["paused"]);
    let shown = rig.call(&["config", "show", "--json"]).json();
    assert_eq!(shown["entries"][0]["override"]["value"], 7);
    rig.call(&["config", "unset", "q", "limits"]).says("`paused` of queue `q` is the config's again").fine();
    rig.drained();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["succeeded"], 1);
    server.stop();
    rig.call(&["unpause", "q"]).says("queue `q` was not paused").fine();
    assert_eq!(audit(&rig).len(), 4);
}

#[test]
fn slots_are_changed_while_jobs_run() {
    let rig = Rig::new();
    let (mut bell, mut gate, table) = standing(&rig, "a.*", 1);
    let server = rig.serve(&table);
    let ids = rig.feed(&["push", "a.x", "--ids"], "1\n2\n3\n4\n").fine().to_owned();
    let last = ids.lines().last().unwrap();
    assert_eq!(bell.next(), "1");
    assert_eq!(
        (why(&rig, last), why(&rig, ids.lines().next().unwrap())),
        (vec!["crew_slots_taken".to_owned()], vec!["running".to_owned()])
    );
    rig.call(&["scale", "a.*", "3"]).says("queue `a.*` has 3 slots now").fine();
    let mut rung = [bell.next(), bell.next()];
    rung.sort();
    assert_eq!(rung, ["2", "3"]);
    rig.call(&["scale", "a.x", "1"]).fine();
    assert_eq!(why(&rig, last), ["queue_slots_taken"]);
    rig.call(&["push", "a.y", "5"]).fine();
    assert_eq!(why(&rig, "a.y"), ["crew_slots_taken"]);
    rig.call(&["scale", "1"]).fine();
    rig.call(&["config", "unset", "a.x.slots"]).fine();
    rig.call(&["config", "set", "a.*.slots", "9"]).says("`slots` of queue `a.*` is 9 now").fine();
    assert_eq!(why(&rig, "a.y"), ["server_slots_taken"]);
    let urgent = rig.call(&["push", "a.y", "6", "-p", "high"]).fine().trim_end().to_owned();
    assert_eq!(why(&rig, last), ["server_slots_taken", "behind"]);
    assert_eq!(why(&rig, &urgent), ["server_slots_taken"]);
    rig.call(&["config", "unset", "limits"]).fine();
    gate.open(6);
    (0..3).for_each(|_| drop(bell.next()));
    rig.drained();
    server.stop();
}

#[test]
fn disabled_tables_and_hours_hold_and_a_reload_lets_go() {
    let rig = Rig::new();
    // Open on one day of the week only, and that is not today or tomorrow, wherever this runs.
    let day = String::from_utf8(
        std::process::Command::new("date")
            .args(["-u", "-d", "3 days", "+%a"])
            .env("LC_ALL", "C")
            .output()
            .unwrap()
            .stdout,
    )
    .unwrap();
    let run = "run = [\"echo\", \"{}\"]\n";
    let server = rig.serve(&format!(
        "[queue.off]\nenabled = false\n{run}[queue.late]\nhours = \"{} 10:00-10:05 UTC\"\n{run}",
        day.trim_end()
    ));
    for queue in ["off", "late", "nobody"] {
        rig.call(&["push", queue, "x"]).fine();
    }
    assert_eq!((why(&rig, "off"), why(&rig, "nobody")), (vec!["disabled".to_owned()], vec!["no_runner".to_owned()]));
    let closed = rig.call(&["status", "--json"]).json()["closed"].clone();
    assert_eq!(closed, serde_json::json!({ "off": "disabled", "late": "shut" }));
    let told = rig.call(&["why", "late", "--json"]).json();
    assert_eq!(told["reasons"][0]["code"], "outside_hours");
    assert!(told["reasons"][0]["at"].as_str().unwrap().ends_with("T10:00:00Z"), "{told}");
    rig.call(&["config", "set", "off.enabled", "true"]).fine();
    write_config(&rig, &format!("[queue.late]\n{run}[queue.off]\nenabled = false\n{run}"));
    let told = rig.call(&["config", "reload"]).fine().to_owned();
    assert!(told.contains("[queue.late] hours: \"") && told.contains("-> none"), "{told}");
    rig.drained();
    let status = rig.call(&["status", "--json"]).json();
    let done = |queue: &str| status["queues"][queue]["succeeded"].as_u64().unwrap();
    assert_eq!((done("off"), done("late"), done("nobody")), (1, 1, 0), "an override outlives the reload");
    server.stop();
}

#[test]
fn the_config_is_shown_with_its_sources_and_compared() {
    let rig = Rig::new();
    let file = "[limits]\nslots = 3\n\n[queue.mail]\nrun = [\"echo\", \"{}\"]\nweight = 2\n";
    rig.call(&["config", "diff"]).ended(69);
    rig.call(&["config", "reload"]).ended(69);
    let server = rig.serve(file);
    rig.call(&["config", "set", "mail.weight", "5", "--for", "1h", "--reason", "rush"]).fine();
    rig.call(&["pause", "other"]).fine();
    let told = rig.call(&["config", "show"]).fine().to_owned();
    for line in [
        "slots = 3  # line 2",
        "run = [\"echo\", \"{}\"]  # line 5",
        "slots = 4  # default",
        "drain = \"25s\"  # default",
    ] {
        assert!(told.lines().any(|shown| shown == line), "{line} in {told}");
    }
    let weight = told.lines().find(|line| line.starts_with("weight = 5  # override by ")).unwrap();
    assert!(weight.contains(" until 2") && weight.ends_with(": rush; line 6 says 2"), "{weight}");
    assert!(told.contains("# queue `other`: paused = true, by "), "{told}");
    rig.call(&["config", "diff"]).says("no differences").fine();
    write_config(&rig, &file.replace("slots = 3", "slots = 30").replace("weight = 2", "weight = 3"));
    std::fs::write(rig.path("other.toml"), "[server]\ndrain = \"1s\"\n").unwrap();
    let told = rig.call(&["config", "diff"]).fine().to_owned();
    assert_eq!(told, "[limits] slots: 3 -> 30\n[queue.mail] weight: 2 -> 3  # an override holds instead\n");
    let told = rig.call(&["config", "diff", rig.path("other.toml").to_str().unwrap()]).fine().to_owned();
    assert!(told.contains("[server] drain: \"25s\" -> \"1s\"  # takes a restart\n"), "{told}");
    server.stop();
    let told = rig.call(&["config", "show"]).fine().to_owned();
    assert!(told.contains("slots = 30  # line 2\n") && told.contains("weight = 5  # override by "), "{told}");
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let rig = Rig::new();
    let server = rig.serve("[queue.\"img.*\"]\nrun = [\"echo\", \"{}\"]\n");
    for (words, code, sentence) in [
        (&["pause", "-x"][..], 64, "Usage:"),
        (&["pause", "a\tb"], 64, "control characters"),
        (&["pause", "q", "--until", "2020-01-01 00:00"], 64, "has passed"),
        (&["pause", "q", "--for", "soon"], 64, "cannot read the duration"),
        (&["pause", "q", "--for", "0s"], 64, "no time at all"),
        (&["pause", "q", "--for", "1h", "--until", "@9999999999"], 64, "cannot be used with"),
        (&["scale", "img.*", "0"], 64, "expected a whole number from 1 to 1000000, got: 0"),
        (&["scale", "img.*"], 64, "expected a whole number from 1 to 1000000, got: img.*"),
        (&["scale", "q*", "3"], 66, "no table for exactly `q*`"),
        (&["config", "set", "img.a.weight", "3"], 66, "the table that serves it is `img.*`"),
        (&["config", "set", "img.*.weight", "0"], 64, "`weight`: expected a whole number from 1 to 1000000, got: 0"),
        (&["config", "set", "img.*.weight", "much"], 64, "from 1 to 1000000, got: much"),
        (&["config", "set", "img.*.enabled", "maybe"], 64, "`enabled`: expected true or false, got: maybe"),
        (&["config", "set", "img.*.colour", "3"], 64, "has no key"),
        (&["config", "set", "limits.weight", "3"], 65, "the server has no `weight`"),
        (&["config", "set", "q.paused", "false"], 65, "expected"),
        (&["why", "nobody"], 66, "no queue nobody"),
        (&["why", "queue:q"], 66, "hint: a queue is asked for by its name alone: windlass why q"),
        (&["why", "j-0123456789-1"], 66, "no job"),
        (&["why", "r-0123456789"], 66, "no run"),
    ] {
        rig.call(words).says(sentence).ended(code);
    }
    assert_eq!(rig.call(&["config", "show", "--json"]).json()["overrides"], Value::Array(Vec::new()));
    assert!(audit(&rig).is_empty());
    server.stop();
}

#[test]
fn why_tells_what_a_run_waits_for() {
    let rig = Rig::new();
    let (mut bell, mut gate, table) = standing(&rig, "q", 1);
    let fails = "[queue.bad]\nrun = [\"false\"]\nbackoff = \"1h\"\n";
    let server = rig.serve(&format!("{table}{fails}"));
    let run = rig.feed(&["push", "q", "--run", "new"], "1\n2\n").fine().trim_end().to_owned();
    assert_eq!(bell.next(), "1");
    assert_eq!(why(&rig, &run), ["running", "ready", "crew_slots_taken"]);
    gate.open(2);
    rig.call(&["wait", &run]).fine();
    assert_eq!(why(&rig, &run), ["ended"]);
    let later = rig.call(&["push", "q", "x", "--in", "1h"]).fine().trim_end().to_owned();
    let told = rig.call(&["why", &later]).fine().to_owned();
    assert!(told.starts_with("its time has not come; it is due in 59m"), "{told}");
    server.stop();
}

/// A server that is told a thousand times to take over files of which most are wrong.
#[test]
fn a_storm_of_reloads_changes_nothing_but_by_whole_files() {
    let rig = Rig::new();
    let good = "[limits]\nslots = 5\n[queue.q]\nrun = [\"echo\", \"{}\"]\nweight = 3\n";
    let mut server = rig.serve(good);
    let mut dice = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = |below: usize| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice % below.max(1) as u64) as usize
    };
    for _ in 0..1000 {
        let mut bytes = good.as_bytes().to_vec();
        for _ in 0..1 + next(3) {
            let at = next(bytes.len());
            match next(if bytes.is_empty() { 0 } else { 3 }) {
                _ if bytes.is_empty() => {}
                0 => bytes[at] = next(256) as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        // A file that is whole by chance would rightly be taken over; this line is refused in any.
        bytes.extend_from_slice(b"\n[limits.x.y]\nz = 1\n");
        std::fs::write(rig.dir().join("windlass.toml"), &bytes).unwrap();
        server.process.signal(Signal::HUP);
        let refused = server.process.until("reload refused, the old config stays");
        assert!(refused.contains("windlass.toml"), "{refused}");
    }
    // And a burst that nobody waits for.
    (0..100).for_each(|_| server.process.signal(Signal::HUP));
    let told = rig.call(&["config", "reload", "--json"]);
    assert_eq!(told.code, Some(78), "{}", told.stderr);
    assert!(told.stderr.contains("windlass.toml:"), "{}", told.stderr);
    unchanged(&rig, &server);
    // Signals are obeyed in their order, and of those that wait HUP comes first: behind this line there is none left
    // that could take the new file before it is asked for.
    server.process.signal(Signal::USR1);
    server.process.until("looking for work");
    write_config(&rig, &good.replace("weight = 3", "weight = 4"));
    assert_eq!(rig.call(&["config", "reload"]).fine(), "[queue.q] weight: 3 -> 4\n");
    std::fs::remove_file(rig.dir().join("windlass.toml")).unwrap();
    rig.call(&["config", "reload"]).says("is not there any more").ended(78);
    server.stop();
}

#[track_caller]
fn unchanged(rig: &Rig, _server: &Server) {
    let shown = rig.call(&["config", "show", "--json"]).json();
    let entry = |table: &str, key: &str| {
        let entries = shown["entries"].as_array().unwrap();
        entries.iter().find(|e| e["table"] == table && e["key"] == key).unwrap()["value"].clone()
    };
    assert_eq!((entry("limits", "slots"), entry("q", "weight")), ("5".into(), "3".into()));
    rig.call(&["push", "q", "x"]).fine();
    rig.drained();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["succeeded"], 1);
}
