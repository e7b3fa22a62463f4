//! Jobs that end badly: beyond their time, with their server, their launcher, their kept worker; and readers that do
//! not read.

use crate::rig::Rig;
use rustix::process::Signal;
use std::path::Path;

#[test]
fn a_time_limit_kills_the_whole_tree_and_keeps_the_output() {
    let rig = Rig::new();
    let (mut bell, gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!(
        "trap '' TERM; echo begun; setsid sh -c 'echo $$ > {b}; read x < {g}' & wait; read x < {g}",
        b = bell.path,
        g = gate.path
    );
    let server = rig.serve(&format!(
        "[queue.q]\nrun = [\"sh\", \"-c\", {script:?}]\ntime_limit = \"300ms\"\ngrace = \"100ms\"\nattempts = 1\n"
    ));
    let id = rig.call(&["push", "q", "x"]).fine().trim_end().to_owned();
    let daemon = bell.next();
    rig.drained();
    assert!(!Path::new(&format!("/proc/{daemon}")).exists(), "a child in a session of its own is killed too");
    let text = rig.call(&["show", &id]).fine().to_owned();
    assert!(text.contains("time limit"), "{text}");
    assert_eq!(rig.call(&["logs", &id]).fine(), "begun\n");
    server.stop();
}

/// Jobs in a process each, and lines that one kept worker has in flight together. `bad` does what the script says.
fn both_ways(script: &str) -> [String; 2] {
    let lines = format!("while read -r line; do case $line in bad) {script};; esac; echo ok; done");
    let job = format!("case $1 in bad) {script};; esac; echo fine");
    [
        format!("[limits]\nslots = 4\n[queue.q]\nrun = [\"sh\", \"-c\", {job:?}, \"sh\", \"{{}}\"]\n"),
        format!("[limits]\nslots = 4\n[queue.q]\nslots = 1\nin_flight = 8\nworker = [\"sh\", \"-c\", {lines:?}]\n"),
    ]
}

/// Only the bad one of four is convicted.
#[track_caller]
fn only_the_bad_one_is_poison(rig: &Rig, ids: &str) {
    let jobs: Vec<_> = ids.lines().map(|id| rig.call(&["show", id, "--json"]).json()).collect();
    let states: Vec<_> = jobs.iter().map(|job| job["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["succeeded", "failed", "succeeded", "succeeded"], "{jobs:?}");
    assert_eq!(jobs[1]["reason"], "poison", "{}", jobs[1]);
}

#[test]
fn a_job_that_kills_its_server_is_poison_and_its_neighbours_are_not() {
    let place = Rig::new();
    let pid = place.path("pid");
    for config in both_ways(&format!("kill -9 $(cat {})", pid.display())) {
        let rig = Rig::new();
        let ids = rig.call(&["push", "q", "a", "bad", "b", "c"]).fine().to_owned();
        std::fs::create_dir_all(rig.dir()).unwrap();
        std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
        let mut deaths = 0;
        // The server dies as often as the job is believed innocent; the one that lives is stopped by hand.
        let server = loop {
            let mut server = rig.serve_with_pid(&pid);
            let ready = server.out_line();
            if !ready.is_empty() && [Some(0), Some(1)].contains(&rig.call(&["wait", "--drained"]).code) {
                break server;
            }
            assert_eq!(server.end().code, None, "killed");
            deaths += 1;
            // Five convict it; in a worker the line in front of it may be believed guilty twice.
            assert!(deaths < 12, "it goes on for ever");
        };
        server.signal(Signal::TERM);
        server.end().fine();
        only_the_bad_one_is_poison(&rig, &ids);
    }
}

#[test]
fn a_job_that_kills_its_launcher_is_poison_and_its_neighbours_are_not() {
    // What a worker answers before it dies counts, so this one does not go on.
    for config in both_ways("kill -9 $PPID; exec sleep 1000") {
        serve_one_bad_among_others(&config);
    }
}

#[test]
fn a_line_that_kills_its_kept_worker_is_poison_and_its_neighbours_are_not() {
    let [_, config] = both_ways("kill -9 $$");
    serve_one_bad_among_others(&config);
}

/// One server to the end: the bad job is convicted, and nobody else.
fn serve_one_bad_among_others(config: &str) {
    let rig = Rig::new();
    let server = rig.serve(config);
    let ids = rig.call(&["push", "q", "a", "bad", "b", "c"]).fine().to_owned();
    rig.drained();
    only_the_bad_one_is_poison(&rig, &ids);
    server.stop();
}

#[test]
fn a_reader_that_does_not_read_costs_no_memory_and_misses_nothing() {
    let rig = Rig::new();
    let server = rig.serve("# nothing\n");
    let lines: String = (1..=100).map(|n| format!("{n}\n")).collect();
    let run = rig.start_fed(&["run", "-j", "4", "--", "sh", "-c", "head -c 1000000 /dev/zero"], &lines);
    let pid = server.process.pid().as_raw_nonzero();
    // Nobody reads what the run prints until all jobs have ended.
    while rig.call(&["status", "--json"]).json()["totals"]["succeeded"] != 100 {
        rig.drained();
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 200 << 10, "{peak} kB for a hundred megabytes that nobody takes");
    let told = run.end();
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert_eq!(told.stdout.len(), 100_000_000, "{}", told.stderr);
    server.stop();
}

#[test]
fn channels_are_told_of_jobs_and_runs_that_failed_succeeded_or_were_late_and_nobody_of_theirs() {
    let rig = Rig::new();
    let got = rig.path("got");
    let server = rig.serve(&format!(
        "[notify.ops]\nrun = [\"sh\", \"-c\", \"cat >> {got}; echo >> {got}; exit 65\"]\nslots = 1\n\
         [queue.bad]\nrun = [\"sh\", \"-c\", \"echo no >&2; exit 65\"]\nnotify = [\"ops\"]\n\
         [queue.good]\nrun = [\"echo\", \"fine\"]\nnotify = [\"ops\"]\nnotify_on = [\"succeeded\"]\n\
         [queue.quiet]\nrun = [\"false\"]\nattempts = 1\n\
         [queue.shut]\nrun = [\"true\"]\nenabled = false\nnotify = [\"ops\"]\n\
         [queue.emits]\nrun = [\"sh\", \"-c\", \"printf 'quiet\\\\ttwelve\\\\n' >> $WINDLASS_EMIT\"]\n\
         [schedule.yearly]\ncron = \"0 0 1 1 *\"\npush = {{ queue = \"quiet\" }}\nnotify = [\"ops\"]\n",
        got = got.display()
    ));
    rig.call(&["push", "bad", "one"]).fine();
    rig.call(&["push", "good", "two"]).fine();
    rig.call(&["push", "quiet", "three"]).fine();
    rig.call(&["push", "shut", "four", "--start-by", "1ms"]).fine();
    rig.call(&["schedule", "run", "yearly"]).fine();
    // So may a job: in the place of its table, beside it, where nobody serves it, and through the API alone.
    rig.call(&["push", "quiet", "seven", "--notify", "ops"]).fine();
    rig.call(&["push", "good", "eight", "--notify", "ops", "--notify-on", "succeeded"]).fine();
    rig.call(&["push", "nobody", "nine", "--notify", "ops", "--start-by", "1ms"]).fine();
    rig.call(&["push", "good", "ten", "--notify", "ops", "--notify-on", "failed"]).fine();
    rig.call(&["push", "emits", "eleven", "--notify", "ops"]).fine();
    // Any run may ask for it: made by lines through the inbox, or by `run` through the API.
    let asked = ["--run", "new", "--notify", "ops", "--notify-on", "succeeded,failed"];
    rig.feed(&[&["push", "quiet"][..], &asked].concat(), "five\n").fine();
    let asked = ["--name", "by-hand", "--notify", "ops", "--notify-on", "succeeded"];
    rig.feed(&[&["run"][..], &asked, &["--", "true"]].concat(), "six\n").fine();
    let told = || -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&got).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    while told().len() < 10 {
        rig.drained();
    }
    let mut words: Vec<String> = told()
        .iter()
        .map(|told| {
            let of = |of: &serde_json::Value| of.as_str().unwrap_or_default().to_owned();
            let name = of(&told["name"]).split('@').next().unwrap_or_default().to_owned();
            format!("{} {}{name}", of(&told["event"]), of(&told["job"]["data"]))
        })
        .collect();
    words.sort_unstable();
    let of_jobs =
        ["failed one", "failed seven", "late four", "late nine", "succeeded eight", "succeeded ten", "succeeded two"];
    let mut expected = [&of_jobs[..], &["failed ", "failed yearly", "succeeded by-hand"]].concat();
    expected.sort_unstable();
    assert_eq!(words, expected, "each once; what a job emits has nobody of its own to tell");
    rig.drained();
    assert_eq!(told().len(), 10, "that a channel fails is told to nobody");
    assert_eq!(rig.call(&["ls", "queue:notify.ops", "-o", "ids"]).fine().lines().count(), 10, "but it can be seen");
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["quiet"]["failed"], 5, "twelve is one of them");
    server.stop();
    let path = rig.path("unknown.toml");
    std::fs::write(&path, "[queue.q]\nrun = [\"true\"]\nnotify = [\"ops\"]\n").unwrap();
    rig.call(&["config", "check", path.to_str().unwrap()]).says("`notify`: no channel \"ops\"").ended(78);
}

#[test]
fn a_handler_gets_every_job_that_failed_for_good_through_every_door_and_no_other() {
    let rig = Rig::new();
    let got = rig.path("got");
    // A line before there is a server, a push, and an emitted job.
    std::fs::create_dir_all(rig.dir()).unwrap();
    rig.call(&["push", "q", "inbox"]).fine();
    let script =
        "case $1 in emits) printf 'q\\temitted\\n' >> $WINDLASS_EMIT;; good) ;; *) echo no >&2; exit 65;; esac";
    let server = rig.serve(&format!(
        "[queue.q]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\non_failure = \"errors\"\n\
         [queue.errors]\nrun = [\"sh\", \"-c\", \"cat >> {got}; echo >> {got}; exit 65\"]\nslots = 1\n",
        got = got.display()
    ));
    rig.call(&["push", "q", "pushed", "good", "emits"]).fine();
    rig.drained();
    let text = std::fs::read_to_string(&got).unwrap();
    let told: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut data: Vec<_> = told.iter().map(|told| told["job"]["data"].as_str().unwrap()).collect();
    data.sort_unstable();
    assert_eq!(data, ["emitted", "inbox", "pushed"], "{text}");
    assert!(told.iter().all(|told| told["error"]["message"] == "exit 65: said that it cannot succeed: no"), "{text}");
    server.stop();
}
