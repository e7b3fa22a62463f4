//! `export` and `import` from outside: every byte, every id, twice, cut off, and with what must not come in.

use crate::rig::{Process, Rig, Told};
use serde_json::Value;
use std::collections::BTreeMap;

/// A directory with jobs of every kind, and its export.
fn exported(rig: &Rig) -> String {
    let server = rig.serve("[queue.good]\nrun = [\"true\"]\n[queue.bad]\nrun = [\"false\"]\nattempts = 1\n");
    rig.call(&["push", "good", "done"]).fine();
    rig.call(&["push", "bad", "broken"]).fine();
    rig.drained();
    rig.feed(&["push", "q", "-0", "--priority", "7"], b"text\0\xff\xfe\0\n\0\0\xc3\xa9\0").fine();
    rig.call(&["push", "q", &"long é ".repeat(1000)]).fine();
    rig.feed(&["push", "later", "--in", "1h"], "a\nb\n").fine();
    rig.feed(&["push", "q", "--run", "new"], "in a run\n").fine();
    let told = rig.call(&["export"]);
    server.stop();
    told.fine().to_owned()
}

fn import(rig: &Rig, text: &str, words: &[&str]) -> Told {
    let words: Vec<&str> = ["import", "-"].into_iter().chain(words.iter().copied()).collect();
    rig.feed(&words, text)
}

/// Everything that must be the same of each waiting job, by id.
fn waiting(rig: &Rig) -> BTreeMap<String, (Value, Value, Value, Value)> {
    let told = rig.call(&["export", "state:ready,scheduled"]);
    let lines = told.fine().lines().filter(|line| line.contains("\"id\""));
    let read = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of = |job: Value| {
        let data = if job["data"].is_null() { job["data_base64"].clone() } else { job["data"].clone() };
        let key = job["id"].as_str().unwrap().to_owned();
        (key, (job["queue"].clone(), job["priority"].clone(), job["not_before"].clone(), data))
    };
    read.map(of).collect()
}

#[test]
fn jobs_come_back_with_their_ids_and_every_byte_and_only_once() {
    let (rig, other) = (Rig::new(), Rig::new());
    let text = exported(&rig);
    assert_eq!(text.lines().count(), 13, "eleven jobs, a head and an end");
    let done = import(&other, &text, &["--json"]).json();
    assert_eq!(done, serde_json::json!({ "imported": 9, "known": 0, "ended": 2, "without_run": 1 }));
    let (here, there) = (waiting(&rig), waiting(&other));
    assert_eq!(here.len(), 9);
    assert!(here == there, "each job is the same in both");
    let again = import(&other, &text, &["--json"]).json();
    assert_eq!(again, serde_json::json!({ "imported": 0, "known": 9, "ended": 2, "without_run": 0 }));
    assert!(waiting(&other) == there);
    // What has been done here meanwhile is not done again either.
    let server = other.serve("[queue.q]\nrun = [\"true\"]\n");
    other.drained();
    let third = import(&other, &text, &["--json"]).json();
    assert_eq!((&third["imported"], &third["known"]), (&0.into(), &9.into()));
    assert_eq!(other.call(&["status", "--json"]).json()["queues"]["q"]["succeeded"], 7);
    server.stop();
    // Nor in the directory they came from.
    assert_eq!(import(&rig, &text, &["--json"]).json()["imported"], 0);
}

#[test]
fn an_import_is_whole_or_nothing() {
    let (rig, other) = (Rig::new(), Rig::new());
    let text = exported(&rig);
    let last = text.lines().rev().nth(1).unwrap();
    let cut: String = text.lines().take(5).map(|line| format!("{line}\n")).collect();
    let with = |from: &str, to: &str| {
        let changed = text.replace(last, &last.replacen(from, to, 1));
        assert_ne!(changed, text, "{from} stands in the last line: {last}");
        changed
    };
    let state: Value = serde_json::from_str(last).unwrap();
    let state = format!("\"state\":{}", state["state"]);
    let id = format!("\"id\":{}", serde_json::from_str::<Value>(last).unwrap()["id"]);
    for (text, code, why) in [
        (cut, 65, "it was cut off"),
        (with(&state, "\"state\":\"flying\""), 65, "line 12 of the export: \"flying\" is not a state"),
        (with(&id, "\"id\":\"x\""), 65, "line 12 of the export"),
        (text.replace("\"windlass_export\":1", "\"windlass_export\":2"), 76, "has version 2"),
        ("[]\n".to_owned(), 65, "this is not an export"),
        (String::new(), 65, "this is not an export"),
    ] {
        import(&other, &text, &[]).says(why).ended(code);
    }
    assert_eq!(other.call(&["status", "--json"]).json()["totals"]["ready"], 0, "nothing of it was stored");
    let suspended = text.replace("\"state\":\"ready\"", "\"state\":\"suspended\"");
    import(&other, &suspended, &[]).says("is suspended, and would start").ended(65);
    assert_eq!(import(&other, &suspended, &["--resume", "--json"]).json()["imported"], 9);
    other.call(&["import", "/no/such/file"]).says("cannot read the export").ended(66);
}

#[test]
fn a_selection_is_exported_and_a_wrong_one_refused() {
    let rig = Rig::new();
    rig.call(&["push", "a", "1", "2"]).fine();
    rig.call(&["push", "b", "3"]).fine();
    let told = rig.call(&["export", "queue:b"]);
    assert!(told.fine().ends_with("{\"end\":1}\n") && told.stderr.contains("exported 1 job"), "{told:?}");
    assert_eq!(rig.call(&["export", "colour:red"]).ended(65), "", "nothing is written before it is known to be right");
    let full = Process::start(&mut {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "\"$1\" export > /dev/full", "sh", env!("CARGO_BIN_EXE_windlass")]);
        shell.env("WINDLASS_DIR", rig.dir());
        shell
    });
    full.end().ended(74);
}

#[test]
fn an_import_that_is_too_large_for_one_request_comes_in_parts() {
    let rig = Rig::new();
    let path = rig.path("large.jsonl");
    let job = |n: usize| {
        let data = n.to_string().repeat(1_000_000 / n.to_string().len());
        format!("{{\"id\":\"j-0123456789-{n}\",\"queue\":\"q\",\"state\":\"ready\",\"data\":\"{data}\"}}\n")
    };
    let mut text = String::from("{\"windlass_export\":1,\"made\":\"2026-11-16T00:00:00Z\"}\n");
    (10..80).for_each(|n| text.push_str(&job(n)));
    text.push_str("{\"end\":70}\n");
    std::fs::write(&path, &text).unwrap();
    let file = path.to_str().unwrap();
    assert_eq!(rig.call(&["import", file, "--json"]).json()["imported"], 70);
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["ready"], 70);
    let last = rig.call(&["show", "j-0123456789-79", "--json"]).json();
    assert!(last["data"].as_str().is_some_and(|data| data.len() == 1_000_000 && data.ends_with("7979")));
    rig.call(&["import", file]).says("imported 0 jobs; 70 were here already, 0 had ended").fine();
    // A mistake in the last line of many megabytes is found before the first job is taken.
    let other = Rig::new();
    let wrong = text.replace("{\"end\":70}", "{\"end\":71}");
    import(&other, &wrong, &[]).says("line 72 of the export: 71 jobs are named, 70 are there").ended(65);
    assert_eq!(other.call(&["status", "--json"]).json()["totals"]["ready"], 0);
}
