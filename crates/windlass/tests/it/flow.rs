//! Work that makes work, with real processes: each run ends once, with the right counts, whatever happens on the way.

use crate::rig::{Rig, Server};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Stdio;

/// A run once it has ended, as `show` has it.
#[track_caller]
fn ended(rig: &Rig, run: &str) -> Value {
    let told = rig.call(&["wait", run, "--json"]);
    assert!([Some(0), Some(1)].contains(&told.code), "{told:?}");
    rig.call(&["show", run, "--json"]).json()
}

#[track_caller]
fn counts(run: &Value, succeeded: u64, failed: u64) {
    assert_eq!(run["ended"], true, "{run}");
    let of = |state: &str| run["counts"][state].as_u64().unwrap_or(0);
    assert_eq!((of("succeeded"), of("failed"), run["live"].as_u64()), (succeeded, failed, Some(0)), "{run}");
}

/// Serves these tables, and one that hears of the ends of runs.
fn serve(rig: &Rig, tables: &str) -> Server {
    rig.serve(&format!("{tables}[queue.done]\nrun = [\"true\"]\n"))
}

/// The end of the one run was announced, once.
#[track_caller]
fn announced_once(rig: &Rig) {
    rig.call(&["wait", "--drained"]);
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["done"]["succeeded"], 1);
}

/// A worker that has each line in `n` and does this first; where the condition holds it emits so many jobs of a
/// queue, each with this number.
fn worker(before: &str, condition: &str, queue: &str, copies: usize, number: &str) -> String {
    let one = format!("{{\"queue\":\"{queue}\",\"data\":\"%d\"}}");
    let (all, numbers) = (vec![one; copies].join(","), vec![format!("$(({number}))"); copies].join(" "));
    let reply = format!("printf '{{\"status\":\"ok\",\"emit\":[{all}]}}\\n' {numbers}");
    let script = format!("while read -r n; do {before} if [ $n {condition} ]; then {reply}; else echo ok; fi; done");
    format!("worker = [\"sh\", \"-c\", {script:?}]")
}

/// A stage of the pipeline `p`.
fn stage(name: &str, service: &str, rest: &str) -> String {
    format!("[[pipeline.p.stage]]\nname = \"{name}\"\n{service}\n{rest}\n")
}

/// A shell script as a `run`, whose first argument is the data, or as a `batch`.
fn sh(key: &str, script: &str) -> String {
    let data = if key == "run" { ", \"sh\", \"{}\"" } else { "" };
    format!("{key} = [\"sh\", \"-c\", {script:?}{data}]")
}

#[test]
fn a_binary_tree_of_jobs_ends_once_with_every_leaf() {
    let rig = Rig::new();
    let split = worker("", "-lt 12", "tree", 2, "n + 1");
    let server = serve(&rig, &format!("[queue.tree]\n{split}\nslots = 2\nin_flight = 64\n"));
    let run = rig.call(&["push", "tree", "0", "--run", "new", "--end-job", "done"]).fine().trim_end().to_owned();
    counts(&ended(&rig, &run), 8191, 0);
    announced_once(&rig);
    server.stop();
}

#[test]
fn ten_thousand_links_that_are_all_filtered_end_with_the_page() {
    let rig = Rig::new();
    let page = sh("run", "seq 10000 | sed 's/^/filter\t/' >> $WINDLASS_EMIT");
    let filter = "worker = [\"sh\", \"-c\", \"while read -r link; do echo ok; done\"]";
    let server = serve(&rig, &format!("[queue.page]\n{page}\n[queue.filter]\n{filter}\nin_flight = 64\n"));
    let run = rig.call(&["push", "page", "x", "--run", "new", "--end-job", "done"]).fine().trim_end().to_owned();
    counts(&ended(&rig, &run), 10_001, 0);
    announced_once(&rig);
    server.stop();
}

#[test]
fn a_ring_of_stages_with_a_limit_of_one_goes_on_to_its_end() {
    let rig = Rig::new();
    let down = |to: &str| worker("", "-gt 0", to, 1, "n - 1");
    let a = stage("a", &down("b"), "slots = 1\nlimit = 1\nto = [\"b\"]");
    let b = stage("b", &down("a"), "slots = 1\nlimit = 1\nto = [\"a\"]");
    let server = serve(&rig, &(a + &b));
    // Three that go round at once, where one may wait: each passes twenty-one times.
    let words = ["push", "p.a", "--run", "new", "--end-job", "done"];
    let run = rig.feed(&words, "20\n20\n20\n").fine().trim_end().to_owned();
    counts(&ended(&rig, &run), 63, 0);
    announced_once(&rig);
    server.stop();
}

/// A pipeline of pages, of which one hangs and one dies, under this time limit: how many have failed, and their errors.
fn with_a_hanging_and_a_dying_fetcher(limit: &str) -> (u64, String) {
    let rig = Rig::new();
    let fetch = "case $1 in hang) exec sleep 1000;; die) kill -9 $$;; esac; echo page $1 >> $WINDLASS_EMIT";
    let terms = format!("attempts = 1\ntime_limit = \"{limit}\"\ngrace = \"100ms\"\nto = [\"parse\"]");
    let parse = sh("batch", "while read -r line; do echo ok; done");
    let server = serve(&rig, &(stage("fetch", &sh("run", fetch), &terms) + &stage("parse", &parse, "")));
    let told = rig.feed(&["pipeline", "run", "p", "--json", "--end-job", "done"], "a\nhang\nb\ndie\nc\n");
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    let run: Value = serde_json::from_slice(&told.stdout).unwrap();
    let failed = run["counts"]["failed"].as_u64().unwrap();
    // Each of the other three is fetched and parsed, or was late.
    counts(&run, 6 - 2 * (failed - 2), failed);
    announced_once(&rig);
    let errors = rig.call(&["ls", "state:failed", "--json"]).fine().to_owned();
    server.stop();
    (failed, errors)
}

#[test]
fn a_fetcher_that_hangs_and_one_that_dies_cost_their_jobs_and_not_the_run() {
    // How long a machine takes for the others is its own affair.
    let mut tries = ["2s", "10s", "50s"].into_iter().map(with_a_hanging_and_a_dying_fetcher);
    let Some((_, errors)) = tries.find(|(failed, _)| *failed == 2) else { panic!("others fail, too") };
    assert!(errors.contains("time limit") && errors.contains("killed by signal 9"), "{errors}");
}

#[test]
fn a_run_goes_on_after_a_kill_of_the_server_and_ends_once_with_the_same_counts() {
    let rig = Rig::new();
    let mut bell = rig.bell("bell");
    let ring = format!("if [ $n = 8 ]; then echo half > {}; fi;", bell.path);
    let split = worker(&ring, "-lt 10", "tree", 2, "n + 1");
    let server = serve(&rig, &format!("[queue.tree]\n{split}\nslots = 2\nin_flight = 8\n"));
    let run = rig.call(&["push", "tree", "0", "--run", "new", "--end-job", "done"]).fine().trim_end().to_owned();
    bell.next();
    server.process.kill();
    let server = rig.serve_again();
    // Whoever was at a job when the server died does it again; what it emitted before counted for nothing.
    counts(&ended(&rig, &run), 2047, 0);
    announced_once(&rig);
    server.stop();
}

#[test]
fn a_pipeline_is_written_checked_run_without_a_server_and_drawn() {
    let rig = Rig::new();
    std::fs::create_dir_all(rig.dir()).unwrap();
    let elsewhere = rig.path("elsewhere.toml");
    let elsewhere = elsewhere.to_str().unwrap();
    rig.call(&["pipeline", "init", elsewhere]).says(&format!("pipeline check --config {elsewhere}")).fine();
    let drawn = rig.call(&["--dir", "/nowhere", "pipeline", "graph", "--config", elsewhere]).fine().to_owned();
    assert!(drawn.contains("[split] 0 waiting"), "a file is drawn where nothing has ever run: {drawn}");
    rig.call(&["pipeline", "check"]).ended(66);
    rig.call(&["pipeline", "init"]).fine();
    rig.call(&["pipeline", "init"]).ended(73);
    let checked = rig.call(&["pipeline", "check"]).fine().to_owned();
    assert!(checked.contains("  split: 3 of 3 workers of 64 MiB, to shout\n"), "{checked}");

    let got = rig.path("got");
    let split = sh("run", "for w in $1; do echo $w; done");
    let shout = sh("batch", "while read -r w; do echo ok $w!; done");
    let save = sh("batch", &format!("cat >> {}", got.display()));
    let config = "[pipeline.p]\nmemory = \"1G\"\n".to_owned()
        + &stage("split", &split, "pass = \"lines\"\nto = [\"shout\"]\nmemory = \"256M\"\nslots = 9")
        + &stage("shout", &shout, "pass = \"message\"\nto = [\"save\"]\nlimit = 5")
        + &stage("save", &save, "reply = \"exit\"\nslots = 1");
    std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
    let checked = rig.call(&["pipeline", "check", "--json"]).json();
    let stages = checked["pipelines"][0]["stages"].as_array().unwrap();
    let workers: Vec<u64> = stages.iter().map(|stage| stage["workers"].as_u64().unwrap()).collect();
    assert_eq!(workers, [4, 4, 1], "four times 256 MiB is a gibibyte");

    rig.feed(&["pipeline", "run"], "to be or\nnot to be\n").fine();
    let text = std::fs::read_to_string(&got).unwrap();
    let mut words: Vec<&str> = text.lines().collect();
    words.sort_unstable();
    assert_eq!(words, ["be!", "be!", "not!", "or!", "to!", "to!"]);
    let drawn = rig.call(&["pipeline", "graph"]).fine().to_owned();
    assert!(drawn.contains("[shout] 0 of 5 waiting, 0 running in 4, 6 succeeded, 0 failed"), "{drawn}");
    let svg = rig.call(&["pipeline", "graph", "--svg"]).fine().to_owned();
    assert!(svg.starts_with("<svg ") && svg.contains("6 succeeded") && svg.matches("<rect").count() == 3, "{svg}");
}

#[test]
fn a_full_stage_holds_the_one_before_it_and_says_so() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let wait = sh("run", &format!("echo $1 > {}; read x < {}", bell.path, gate.path));
    let make = stage("make", &sh("run", "echo one >> $WINDLASS_EMIT"), "slots = 1\nto = [\"output\"]");
    let server = rig.serve(&(make + &stage("output", &wait, "slots = 1\nlimit = 2")));
    let run = rig.feed(&["push", "p.make", "--run", "new"], "1\n2\n3\n4\n5\n6\n").fine().trim_end().to_owned();
    bell.next();
    // One is under way and two wait, sooner or later: then whoever asks hears why no more are made.
    while !rig.call(&["why", "p.make"]).fine().contains("held: stage output has 2 waiting, its limit") {}
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!(status["queues"]["p.make"]["ready"], 3, "{status}");
    gate.open(6);
    counts(&ended(&rig, &run), 12, 0);
    server.stop();
}

#[test]
fn the_run_of_a_pipeline_has_the_terms_that_it_was_given() {
    let rig = Rig::new();
    let server = rig.serve(
        "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"a\"\nrun = [\"test\", \"{}\", \"!=\", \"bad\"]\nattempts = 1\n\
         [queue.done]\nrun = [\"true\"]\n",
    );
    let lines = "bad\none\ntwo\nthree\n";
    rig.feed(&["pipeline", "run", "p"], lines).ended(1);
    let run = |more: &[&str]| rig.feed(&[&["pipeline", "run", "p", "--json"], more].concat(), lines);
    let told = run(&["--tolerate", "1", "--job-limit", "3", "--end-job", "done"]);
    let told = told.json();
    assert_eq!((&told["counts"]["succeeded"], &told["counts"]["failed"]), (&2.into(), &1.into()), "{told}");
    rig.call(&["wait", "--drained"]);
    assert_eq!(rig.call(&["status", "--json"]).json()["totals"]["succeeded"], 3 + 2 + 1, "and its end is announced");
    rig.feed(&["pipeline", "run", "p", "--time-limit", "soon"], "x\n").ended(64);
    server.stop();
}

/// The end of nothing is an end, too: at once, once, and with nothing in it.
#[test]
fn a_run_of_nothing_ends_at_once_and_is_announced() {
    let rig = Rig::new();
    let server = serve(&rig, &stage("a", &sh("run", "true"), ""));
    let told = rig.feed(&["pipeline", "run", "p", "--json", "--end-job", "done"], "").json();
    counts(&told, 0, 0);
    announced_once(&rig);
    let run = rig.feed(&["push", "p.a", "--run", "new"], "").fine().trim_end().to_owned();
    counts(&ended(&rig, &run), 0, 0);
    server.stop();
}

#[test]
fn a_pipeline_check_says_which_stages_share_their_keys_and_what_fits_only_by_turns() {
    let rig = Rig::new();
    std::fs::create_dir_all(rig.dir()).unwrap();
    let config = "[limits]\nmemory = \"1G\"\n".to_owned()
        + &stage("a", &sh("run", "true"), "pass = \"data\"\nto = [\"b\"]\nunique = \"run\"\nmemory = \"500M\"")
        + &stage("b", &sh("run", "true"), "unique = \"run\"\nmemory = \"500M\"")
        + "[queue.q]\nrun = [\"true\"]\nslots = 2\nmemory = \"500M\"\n";
    std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
    let told = rig.call(&["pipeline", "check"]);
    told.says("p.a and p.b have `unique = \"run\"`, and a run has one set of keys");
    told.says("all tables together may use 2.0 GiB, of 1 GiB").fine();
}

#[test]
fn a_pipeline_is_that_of_the_server_which_runs() {
    let rig = Rig::new();
    let save = sh("batch", &format!("cat >> {}", rig.path("got").display()));
    let elsewhere = rig.path("elsewhere.toml");
    std::fs::write(&elsewhere, stage("save", &save, "reply = \"exit\"")).unwrap();
    let mut server = rig.start(&["serve", "--config", &elsewhere.display().to_string()], Stdio::null());
    assert!(server.out_line().starts_with("windlass serves unix:"));
    rig.feed(&["pipeline", "run"], "one\n").fine();
    assert_eq!(std::fs::read_to_string(rig.path("got")).unwrap(), "one\n");
    assert!(rig.call(&["pipeline", "graph"]).fine().contains("1 succeeded"));
    server.signal(Signal::TERM);
    server.end().ended(0);
    rig.call(&["pipeline", "graph"]).says("hint: name one: --config FILE").ended(66);
}
