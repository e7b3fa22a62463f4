//! The verbs that change jobs, by id and by selector: success, refusal and bad input, with a server and without.

use crate::rig::Rig;
use serde_json::Value;

fn count(rig: &Rig, selector: &str) -> usize {
    rig.call(&["ls", "--json", "--", selector]).json().as_array().unwrap().len()
}

fn ids(rig: &Rig, words: &[&str]) -> Vec<String> {
    rig.call(words).fine().lines().map(str::to_owned).collect()
}

/// Jobs of queues that nobody serves wait for ever.
fn every_verb(rig: &Rig) {
    let made = ids(rig, &["push", "img.a", "1", "2", "3"]);
    let (one, two) = (made[0].as_str(), made[1].as_str());
    rig.call(&["suspend", one]).says("1 job suspended").fine();
    rig.call(&["suspend", one]).says("0 jobs suspended, 1 was so already").fine();
    rig.call(&["suspend", "queue:img.*", "--yes"]).says("2 jobs suspended, 1 was so already").fine();
    assert_eq!(count(rig, "state:suspended"), 3);
    rig.call(&["start", one]).says("1 job resumed").fine();
    rig.call(&["resume", "queue:img.a", "--yes"]).says("2 jobs resumed, 1 was so already").fine();
    rig.call(&["priority", "high", one]).says("1 job given priority 10").fine();
    rig.call(&["priority", "10", one]).says("1 was so already").fine();
    rig.call(&["priority", "-20", one, two]).says("2 jobs given priority -20").fine();
    assert_eq!(count(rig, "priority:-20"), 2);
    rig.call(&["cancel", one]).says("1 job cancelled").fine();
    rig.call(&["priority", "5", one]).says("is cancelled, which does not allow it").ended(75);
    rig.call(&["suspend", one, two]).says("1 could not be (1 cancelled)").ended(75);
    rig.call(&["resume", two]).says("1 job resumed").fine();
    rig.call(&["retry", one]).says("1 job ready again").fine();
    rig.call(&["delete", one]).says("1 job deleted").fine();
    let shown = rig.call(&["show", one, "--json"]).json();
    assert_eq!((&shown["state"], &shown["history"][0]["outcome"]), (&"cancelled".into(), &"deleted".into()), "{shown}");
    assert_eq!(shown["data"], "1");
    for verb in ["retry", "suspend", "delete"] {
        rig.call(&[verb, one]).says("has ended, which does not allow it").ended(75);
        rig.call(&[verb, "j-0000000000-1"]).says("no job j-0000000000-1").ended(66);
        let strange = rig.call(&[verb, two, "j-0000000000-1"]);
        strange.says("1 of 2 jobs is not known").ended(66);
        rig.call(&[verb, "state:done"]).says("in the selector at character 1").ended(65);
        rig.call(&[verb, "queue:nobody", "--yes"]).says("0 jobs").says("; no job matches").fine();
    }
    assert_eq!(count(rig, "queue:img.*"), 1, "two was deleted, beside a stranger");
}

/// One order at a time: the first has failed, and the same order waits a second time.
#[test]
fn what_is_unique_lives_again_only_while_no_other_has_its_key() {
    let rig = Rig::new();
    let server = rig.serve("[queue.bill]\nrun = [\"false\"]\nattempts = 1\nunique = \"active\"\n");
    let first = ids(&rig, &["push", "bill", "order 7"]).remove(0);
    rig.call(&["wait", &first]).ended(1);
    rig.call(&["pause", "bill"]).fine();
    let second = ids(&rig, &["push", "bill", "order 7"]).remove(0);
    assert_ne!(first, second);
    rig.call(&["retry", &first]).says(&format!("{second} has the unique key of {first}")).ended(75);
    rig.call(&["retry", "state:failed", "--yes"]).says("1 could not be (1 unique key taken)").fine();
    rig.call(&["cancel", &second]).fine();
    rig.call(&["retry", &first]).says("1 job ready again").fine();
    assert_eq!(ids(&rig, &["push", "bill", "order 7"]), [first], "its key is its own again");
    server.stop();
}

#[test]
fn every_verb_without_a_server() {
    every_verb(&Rig::new());
}

#[test]
fn every_verb_with_a_server() {
    let rig = Rig::new();
    let server = rig.serve("[limits]\nslots = 2\n");
    every_verb(&rig);
    server.stop();
}

#[test]
fn bulk_is_safe() {
    let rig = Rig::new();
    rig.call(&["push", "q", "1", "2", "3", "4", "5", "6", "7"]).fine();
    let dry = rig.call(&["cancel", "queue:q", "--dry-run"]);
    dry.says("would cancel 7 jobs; the first of them:");
    assert_eq!(dry.fine().lines().count(), 6, "a heading and five jobs");
    let dry = rig.call(&["priority", "3", "queue:q", "--dry-run", "--json"]).json();
    assert_eq!((dry["matched"].as_u64(), dry["sample"].as_array().map(Vec::len)), (Some(7), Some(5)));
    rig.call(&["cancel", "queue:q"]).says("to cancel 7 jobs needs --yes").ended(64);
    for words in [&["--yes", "--expect", "6"][..], &["--dry-run", "--expect", "8"]] {
        let words: Vec<&str> = ["cancel", "queue:q"].iter().chain(words).copied().collect();
        rig.call(&words).says("found 7; nothing was changed").ended(75);
    }
    rig.call(&["cancel", "queue:q", "--expect", "x"]).says("expected a whole number from 0 on, got: x").ended(64);
    assert_eq!(count(&rig, "state:ready"), 7, "nothing has happened yet");
    let told = rig.call(&["cancel", "queue:q", "--expect", "7", "--yes", "--json"]).json();
    assert_eq!((told["matched"].as_u64(), told["changed"].as_u64()), (Some(7), Some(7)));
    rig.call(&["retry", "state:cancelled \"3\""]).says("1 job ready again").fine();
}

#[test]
fn a_deleted_job_leaves_the_counts_of_its_run_exact() {
    let rig = Rig::new();
    let run = rig.call(&["push", "q", "--run", "new", "a", "b"]).fine().trim_end().to_owned();
    rig.call(&["wait", &run]).says("not ended").ended(69);
    rig.call(&["delete", &run, "--yes"]).says("2 jobs deleted").fine();
    let shown = rig.call(&["show", &run, "--json"]).json();
    assert_eq!(
        (&shown["ended"], &shown["total"], &shown["counts"]["cancelled"]),
        (&Value::Bool(true), &2.into(), &2.into())
    );
    rig.call(&["wait", &run]).says("has ended: 2 cancelled").ended(1);
    rig.call(&["watch", &run]).says("has ended: 0 succeeded, 2 cancelled\n").ended(1);
    assert_eq!(count(&rig, ""), 0);
}

#[test]
fn what_runs_is_neither_deleted_nor_suspended() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo > {}; read x < {}", bell.path, gate.path);
    let server = rig.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}]\n"));
    let id = rig.call(&["push", "q", "x"]).fine().trim_end().to_owned();
    bell.next();
    for verb in ["delete", "suspend"] {
        rig.call(&[verb, &id]).says("is running, which does not allow it").ended(75);
        rig.call(&[verb, "queue:q", "--yes"]).says("1 could not be (1 running)").fine();
    }
    rig.call(&["priority", "5", &id]).ended(75);
    rig.call(&["resume", &id]).says("was so already").fine();
    gate.open(1);
    rig.drained();
    assert_eq!(rig.call(&["show", &id, "--json"]).json()["state"], "succeeded");
    server.stop();
}

#[test]
fn a_large_operation_goes_on_after_a_kill() {
    const JOBS: u64 = 100_000;
    let rig = Rig::new();
    let lines: String = (0..JOBS).map(|n| format!("{n}\n")).collect();
    rig.feed(&["push", "q"], lines).fine();
    let server = rig.serve("[limits]\nslots = 1\n");
    let cancelled = || rig.call(&["status", "--json"]).json()["totals"]["cancelled"].as_u64().unwrap();
    let asking = rig.start(&["cancel", "queue:q", "--expect", "100000", "--yes"], std::process::Stdio::null());
    while cancelled() == 0 {}
    server.process.kill();
    assert_ne!(asking.end().code, Some(0), "nobody could tell it that all is done");
    // Whoever opens the store goes on with it, also one that only came to count: so the server is the first.
    let mut server = rig.serve_again();
    server.process.until("operation 1 went on after a restart and is done");
    while cancelled() < JOBS {}
    assert_eq!(count(&rig, "state:ready"), 0);
    let told = rig.call(&["delete", "state:cancelled", "--yes", "--json"]).json();
    assert_eq!((told["matched"].as_u64(), told["changed"].as_u64()), (Some(JOBS), Some(JOBS)), "each once");
    server.stop();
}

#[test]
fn the_selector_and_the_columns_of_ls() {
    let rig = Rig::new();
    let made = ids(&rig, &["push", "img.a", "red apple", "green apple"]);
    rig.call(&["push", "img.b", "pear", "--priority", "7"]).fine();
    rig.call(&["push", "mail", "late", "--in", "1h"]).fine();
    rig.call(&["cancel", &made[1]]).fine();
    let both = format!("id:{},{}", made[0], made[1]);
    for (selector, expected) in [
        ("\"apple\"", 2),
        ("text:apple,pear -state:cancelled", 2),
        ("-\"apple\"", 2),
        (both.as_str(), 2),
        ("priority:1..9", 1),
        ("priority:..0", 3),
        ("attempts:0", 4),
        ("age:0s..1h", 4),
        ("due<2h", 1),
        ("ended<1h", 1),
        ("reason:poison", 0),
        ("error:x", 0),
    ] {
        assert_eq!(count(&rig, selector), expected, "{selector}");
    }
    let told = rig.call(&["ls", "queue:img.*", "--fields", "priority,data", "--sort", "-priority", "-o", "csv"]);
    assert_eq!(told.fine().lines().take(2).collect::<Vec<_>>(), ["priority,data", "7,pear"]);
    assert_eq!(rig.call(&["ls", "--limit", "1", "--sort", "data", "-o", "ids"]).fine().trim_end(), made[1]);
    assert_eq!(rig.call(&["ls", "-o", "jsonl"]).fine().lines().count(), 4);
    assert_eq!(rig.call(&["ls", "queue:nobody", "-o", "json"]).fine(), "[]\n");
    for (words, sentence) in [
        (&["ls", "--fields", "id,stat"][..], "did you mean state?"),
        (&["ls", "--sort", "colour"], "expected a column"),
        (&["ls", "-o", "xml"], "possible values: table, wide, json, jsonl, yaml, csv, ids"),
        (&["ls", "--limit", "0"], "expected a whole number from 1 on, got: 0"),
    ] {
        rig.call(words).says(sentence).ended(64);
    }
}
