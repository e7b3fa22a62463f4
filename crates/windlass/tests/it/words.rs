//! What people type and read: other tools' verbs, the forms of a listing, places that are not there, times, progress.

use crate::rig::{Process, Rig};
use serde_json::Value;

#[test]
fn other_tools_verbs_do_what_they_did_there() {
    let rig = Rig::new();
    let id = rig.call(&["add", "q", "x"]).fine().trim_end().to_owned();
    rig.call(&["enqueue", "q", "y"]).fine();
    rig.call(&["suspend", &id]).fine();
    rig.call(&["start", &id]).says("1 job resumed").fine();
    let server = rig.serve("[queue.q]\nrun = [\"echo\", \"{}\"]\n");
    rig.call(&["parallel", "q", "3"]).says("has 3 slots now").fine();
    assert_eq!(rig.call(&["follow", &id]).fine(), "x\n");
    rig.drained();
    assert_eq!(rig.call(&["log", &id]).fine(), "x\n");
    rig.call(&["clean", "queue:q"]).says("0 jobs deleted; no job matches").says("go by themselves").fine();
    assert!(rig.call(&["help", "follow"]).fine().contains("windlass logs "));
    server.stop();
}

#[test]
fn a_place_that_is_not_there_is_named_and_not_made() {
    let rig = Rig::new();
    let missing = rig.path("mistyped");
    let dir = missing.to_str().unwrap();
    let told = format!("there is no data directory at {dir}");
    let verbs: [&[&str]; 13] = [
        &["ls"],
        &["status"],
        &["stats"],
        &["show", "j-0123456789-1"],
        &["logs", "j-0123456789-1"],
        &["wait", "--drained"],
        &["watch"],
        &["why", "q"],
        &["cancel", "queue:q"],
        &["pause", "q"],
        &["config", "show"],
        &["export"],
        &["backup", "/nowhere/at/all"],
    ];
    for words in verbs {
        rig.call(&[words, &["--dir", dir]].concat()).says(&told).ended(66);
    }
    for words in [&["stop"][..], &["nudge"], &["config", "reload"], &["schedule", "ls"]] {
        rig.call(&[words, &["--dir", dir]].concat()).says("no server is running in ").ended(69);
    }
    assert!(!missing.exists(), "nothing was made");
    // A directory of somebody else's is no data directory, and stays as it is.
    std::fs::create_dir(&missing).unwrap();
    rig.call(&["ls", "--dir", dir]).says(&told).ended(66);
    assert_eq!(std::fs::read_dir(&missing).unwrap().count(), 0);
    // One in which a program has left jobs before any server was there is one.
    std::fs::create_dir(missing.join("inbox")).unwrap();
    rig.call(&["ls", "--dir", dir]).fine();
    rig.call(&["push", "q", "x", "--dir", dir]).fine();
}

#[test]
fn one_writer_for_all_forms_of_all_listings() {
    let rig = Rig::new();
    let server =
        rig.serve("[schedule.night]\ncron = \"0 2 * * *\"\npush = { queue = \"q\", data = \"a, \\\"b\\\"\" }\n");
    let ids: Vec<String> = rig.call(&["push", "q", "a,b", "y: z"]).fine().lines().map(str::to_owned).collect();
    let jsonl = rig.call(&["ls", "-o", "jsonl", "--fields", "id,state,data"]).fine().to_owned();
    let first: Value = serde_json::from_str(jsonl.lines().next().unwrap()).unwrap();
    assert_eq!(first, serde_json::json!({ "id": ids[0], "state": "ready", "data": "a,b" }));
    assert_eq!(rig.call(&["ls", "-o", "ids"]).fine(), format!("{}\n{}\n", ids[0], ids[1]));
    let csv = rig.call(&["ls", "-o", "csv", "--fields", "id,data"]).fine().to_owned();
    assert_eq!(csv, format!("id,data\n{},\"a,b\"\n{},y: z\n", ids[0], ids[1]));
    let yaml = rig.call(&["ls", "-o", "yaml", "--fields", "id,data"]).fine().to_owned();
    assert_eq!(yaml, format!("- data: \"a,b\"\n  id: \"{}\"\n- data: \"y: z\"\n  id: \"{}\"\n", ids[0], ids[1]));
    for form in ["json", "yaml"] {
        assert_eq!(rig.call(&["ls", "queue:none", "-o", form]).fine(), "[]\n", "{form}");
    }
    assert_eq!(rig.call(&["status", "-o", "csv", "--fields", "queue,ready"]).fine(), "queue,ready\nq,2\n");
    assert_eq!(rig.call(&["status", "-o", "ids"]).fine(), "q\n");
    assert_eq!(rig.call(&["status", "-o", "json"]).json()["totals"]["ready"], 2);
    assert!(rig.call(&["status", "-o", "yaml"]).fine().contains("totals:\n"));
    let stats = rig.call(&["stats", "-o", "csv"]).fine().to_owned();
    assert!(stats.starts_with("key,attempts,") && stats.contains("\nq,0,0,"), "{stats}");
    let schedules = rig.call(&["schedule", "ls", "-o", "csv", "--fields", "name,cron,state"]).fine().to_owned();
    assert_eq!(schedules, "name,cron,state\nnight,0 2 * * *,waits\n");
    for words in [&["ls", "--fields", "id,"][..], &["status", "--fields", "redy"], &["stats", "--fields", "x"]] {
        rig.call(words).says("--fields: expected a column (").ended(64);
    }
    rig.call(&["status", "--fields", "redy"]).says("did you mean ready?").ended(64);
    rig.call(&["ls", "-o", "jsnl"]).says("'jsonl'").ended(64);
    server.stop();
}

/// What a command puts on a terminal of this width.
fn on_terminal(rig: &Rig, columns: u32, line: &str) -> String {
    let command = format!("stty cols {columns}; {} {line}", env!("CARGO_BIN_EXE_windlass"));
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).env("WINDLASS_DIR", rig.dir()).env("TERM", "xterm");
    let output = script.env("TERM_PROGRAM", "ghostty").stdin(std::process::Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_terminal_shortens_in_the_middle_and_wide_never() {
    let rig = Rig::new();
    let queue = "a-queue-with-a-rather-long-name-for-a-narrow-terminal";
    rig.call(&["push", queue, "the beginning of some data and after all of it the end"]).fine();
    let shown = on_terminal(&rig, 90, "--color never ls");
    let row = shown.lines().last().unwrap();
    assert!(row.chars().count() <= 90 && row.contains(" ready ") && row.contains('…'), "{shown}");
    assert!(row.ends_with("the end"), "{shown}");
    let wide = on_terminal(&rig, 90, "--color never ls -o wide");
    assert!(wide.contains(queue) && wide.contains("after all of it") && !wide.contains('…'), "{wide}");
}

#[test]
fn ends_are_times_of_day_times_or_lengths() {
    let rig = Rig::new();
    rig.call(&["push", "q", "x"]).fine();
    for until in ["1h", "PT90M", "23:59:59", "2100-01-01 00:00"] {
        rig.call(&["pause", "q", "--until", until]).says("is paused until 2").fine();
    }
    rig.call(&["pause", "q", "--until", "soon"]).says("07:00 (the next)").ended(64);
    rig.call(&["pause", "q", "--until", "1970-01-01"]).says("has passed").ended(64);
}

#[test]
fn people_see_the_clock_on_their_wall_and_machines_utc() {
    let rig = Rig::new();
    let id = rig.call(&["push", "q", "x", "--at", "2100-01-01T00:00:00Z"]).fine().trim_end().to_owned();
    let shown = Process::start(rig.windlass(&["show", &id]).env("TZ", "Asia/Tokyo")).end();
    assert!(shown.fine().contains("not_before   2100-01-01 09:00:00, in "), "{}", shown.fine());
    assert_eq!(rig.call(&["show", &id, "--json"]).json()["not_before"], "2100-01-01T00:00:00Z");
}

#[test]
fn rows_and_objects_are_jobs() {
    let rig = Rig::new();
    let csv = "to,text\nann,\"hello, \"\"you\"\"\"\nbob,two\n";
    rig.feed(&["push", "mail", "--csv", "--header"], csv).says("2 jobs accepted").fine();
    let out = rig.path("out");
    let line = format!("printf '%s|%s\\n' \"$1\" \"$2\" >> {}", out.display());
    let server = rig.serve(&format!(
        "[queue.mail]\nslots = 1\nrun = [\"sh\", \"-c\", {line:?}, \"sh\", \"{{data.to}}\", \"{{data.text}}\"]\n"
    ));
    rig.drained();
    assert_eq!(crate::rig::lines_of(&out), ["ann|hello, \"you\"", "bob|two"]);
    server.stop();
    rig.feed(&["push", "-Q", "objects", "--jsonl"], "{\"a\":1}\n\n{\"b\":2}\n").says("2 jobs accepted").fine();
    let told = rig.feed(&["push", "objects", "--jsonl"], "{\"a\":1}\nnot json\n");
    told.says("line 2 of the input: not JSON").says("1 job before that was accepted").ended(65);
    rig.feed(&["push", "objects", "--csv"], "x,y\n").fine();
    let data = rig.call(&["ls", "queue:objects", "-o", "csv", "--fields", "data"]).fine().to_owned();
    assert!(data.contains("\"{\"\"1\"\":\"\"x\"\",\"\"2\"\":\"\"y\"\"}\""), "{data}");
    rig.call(&["push", "q", "x", "--jsonl"]).says("--jsonl is about stdin").ended(64);
    rig.call(&["push", "q", "--header"]).says("--csv").ended(64);
}

#[test]
fn with_q_every_argument_is_a_job() {
    let rig = Rig::new();
    assert_eq!(rig.call(&["push", "-Q", "reports", "customer-42", "customer-43"]).fine().lines().count(), 2);
    rig.feed(&["push", "-Q", "reports"], "a\nb\n").fine();
    rig.feed(&["push", "-Q", "reports", "-"], "c\n").fine();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["reports"]["ready"], 5);
}

#[test]
fn the_exit_code_can_count_and_a_script_gets_the_line_as_an_argument() {
    let rig = Rig::new();
    rig.feed(&["run", "--exit-count", "--", "test", "2", "-gt"], "1\n2\n3\n4\n").ended(3);
    rig.feed(&["run", "--exit-count", "--tolerate", "3", "--", "test", "2", "-gt"], "1\n2\n3\n4\n").ended(0);
    let told = rig.feed(&["run", "--shell", "echo \"<$1>\" | tr a-z A-Z"], "a b; echo c\n");
    assert_eq!(told.fine(), "<A B; ECHO C>\n");
    let told = rig.feed(&["run", "-0", "-j", "1", "--", "printf", "<%s>"], "a\nb\0\0c");
    assert_eq!(told.fine(), "<a\nb><c>");
    rig.feed(&["run", "--shell", "rm {}"], "x\n").says("write \"$1\"").ended(64);
    rig.call(&["run", "--shell", "x", "--", "y"]).ended(64);
    rig.call(&["run"]).says("Usage:").ended(64);
}

#[test]
fn progress_is_a_bar_lines_objects_or_nothing() {
    let rig = Rig::new();
    let input = "1\n".repeat(20);
    // Ten of a hundred are told as soon as they are done, and not before the second second.
    let command = ["--", "sleep", "0.3"];
    let words = |how: &'static str| [&["run", "-j", "2", "--progress", how][..], &command].concat();
    let told = rig.feed(&words("json"), &input);
    told.fine();
    let objects: Vec<Value> = told.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(objects.iter().any(|object| object["progress"]["total"] == 20), "{}", told.stderr);
    let plain = rig.feed(&words("plain"), &input);
    assert!(plain.stderr.contains("/20 done, ") && plain.stderr.contains("/s, "), "{}", plain.stderr);
    let none = rig.feed(&words("none"), &input);
    assert!(!none.stderr.contains(" done") && none.stderr.contains("20 succeeded"), "{}", none.stderr);
    let named = Process::start(rig.windlass(&["ls"]).env("WINDLASS_PROGRESS", "pink")).end();
    named.says("pink").ended(64);
    let bar = on_terminal(&rig, 100, "run -j 2 -- sleep 0.3 < /dev/null");
    assert!(bar.contains("\u{1b}]9;4;0\u{1b}\\"), "the frame of the terminal is cleared: {bar:?}");
}

#[test]
fn very_verbose_tells_where_it_is() {
    let rig = Rig::new();
    rig.call(&["push", "q", "x", "-vv"]).says("no server answers there").fine();
    let quiet = rig.call(&["push", "q", "x", "-v"]);
    assert!(!quiet.stderr.contains("data directory"), "{}", quiet.stderr);
}

#[test]
fn a_detached_run_goes_on_with_a_server_that_ends_by_itself() {
    let rig = Rig::new();
    rig.feed(&["run", "--detach", "--no-start", "--", "true"], "x\n").says("no server is running").ended(69);
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo $1 > {}; read x < {}", bell.path, gate.path);
    let words = ["run", "-d", "-j", "2", "-Q", "fetch", "--", "sh", "-c", &script, "sh"];
    let told = rig.feed(&words, "a\nb\n");
    let run = told.fine().trim_end().to_owned();
    told.says("no server was running: started one (process ").says("2 jobs taken. Watch: windlass watch r-");
    assert!(run.starts_with("r-"), "{run}");
    let mut rung = [bell.next(), bell.next()];
    rung.sort();
    assert_eq!(rung, ["a", "b"], "they run although nobody follows");
    let again = rig.feed(&["run", "--detach", "--", "true"], "c\n");
    assert!(!again.stderr.contains("started one"), "one server is enough: {}", again.stderr);
    gate.open(2);
    rig.call(&["wait", &run]).fine();
    rig.call(&["stop"]).fine();
    // Of itself it ends when there is nothing left, and not while something waits for its time.
    rig.call(&["push", "fetch", "later", "--in", "1h"]).fine();
    std::fs::write(rig.dir().join("windlass.toml"), "[queue.fetch]\nrun = [\"true\"]\n").unwrap();
    let mut server = rig.start(&["serve", "--idle", "300ms"], std::process::Stdio::null());
    server.out_line();
    rig.call(&["push", "unserved", "x"]).fine();
    let now = rig.call(&["push", "fetch", "now"]).fine().trim_end().to_owned();
    rig.call(&["wait", &now]).fine();
    rig.call(&["cancel", "queue:fetch state:scheduled"]).says("1 job cancelled").fine();
    server.end().says("how=idle").fine();
}
