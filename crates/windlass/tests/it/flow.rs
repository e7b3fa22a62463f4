//! Work that makes work, with real processes: each run ends once, with the right counts, whatever happens on the way.

use crate::rig::Rig;
use rustix::process::Signal;
use serde_json::Value;

/// The run that a push made, once it has ended.
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

/// A worker that gives each line to this awk program, whose `emit(queue, data)` adds to its reply.
fn awk(program: &str) -> String {
    let script = format!(
        "function emit(q, d) {{ e = e (e == \"\" ? \"\" : \",\") \"{{\\\"queue\\\":\\\"\" q \"\\\",\\\"data\\\":\\\"\" d \"\\\"}}\" }} \
         {{ e = \"\"; {program}; print \"{{\\\"status\\\":\\\"ok\\\",\\\"emit\\\":[\" e \"]}}\"; fflush() }}"
    );
    format!("[\"awk\", {script:?}]")
}

#[test]
fn a_binary_tree_of_jobs_ends_once_with_every_leaf() {
    let rig = Rig::new();
    let split = awk("if ($1 < 12) { emit(\"tree\", $1 + 1); emit(\"tree\", $1 + 1) }");
    let server = rig.serve(&format!("[queue.tree]\nworker = {split}\nslots = 2\nin_flight = 64\n"));
    let run = rig.call(&["push", "tree", "0", "--run", "new"]).fine().trim_end().to_owned();
    counts(&ended(&rig, &run), 8191, 0);
    server.stop();
}

#[test]
fn ten_thousand_links_that_are_all_filtered_end_with_the_page() {
    let rig = Rig::new();
    let page = "seq 10000 | sed 's/^/filter\t/' >> $WINDLASS_EMIT";
    let server = rig.serve(&format!(
        "[queue.page]\nrun = [\"sh\", \"-c\", {page:?}]\n[queue.filter]\nworker = {none}\nin_flight = 64\n",
        none = awk("x = 1")
    ));
    let run = rig.call(&["push", "page", "x", "--run", "new"]).fine().trim_end().to_owned();
    counts(&ended(&rig, &run), 10_001, 0);
    server.stop();
}

#[test]
fn a_ring_of_stages_with_a_limit_of_one_goes_on_to_its_end() {
    let rig = Rig::new();
    let down = "if ($1 > 0) emit(\"TO\", $1 - 1)";
    let server = rig.serve(&format!(
        "[[pipeline.ring.stage]]\nname = \"a\"\nworker = {a}\nslots = 1\nlimit = 1\nto = [\"b\"]\n\
         [[pipeline.ring.stage]]\nname = \"b\"\nworker = {b}\nslots = 1\nlimit = 1\nto = [\"a\"]\n",
        a = awk(&down.replace("TO", "b")),
        b = awk(&down.replace("TO", "a")),
    ));
    // Three that go round at once, where one may wait: each passes twenty-one times.
    let run = rig.feed(&["push", "ring.a", "--run", "new"], "20\n20\n20\n").fine().trim_end().to_owned();
    counts(&ended(&rig, &run), 63, 0);
    server.stop();
}

#[test]
fn a_fetcher_that_hangs_and_one_that_dies_cost_their_jobs_and_not_the_run() {
    let rig = Rig::new();
    let script = "case $1 in hang) exec sleep 1000;; die) kill -9 $$;; esac; echo page $1 >> $WINDLASS_EMIT";
    let server = rig.serve(&format!(
        "[[pipeline.crawl.stage]]\nname = \"fetch\"\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\nattempts = 1\n\
         time_limit = \"3s\"\ngrace = \"100ms\"\nto = [\"parse\"]\n\
         [[pipeline.crawl.stage]]\nname = \"parse\"\nbatch = [\"sh\", \"-c\", \"while read -r line; do echo ok; done\"]\n"
    ));
    let input = "a\nhang\nb\ndie\nc\n";
    let told = rig.feed(&["pipeline", "run", "crawl", "--json"], input);
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    let run: Value = serde_json::from_slice(&told.stdout).unwrap();
    counts(&run, 6, 2);
    let failed = rig.call(&["ls", "state:failed", "--json"]).fine().to_owned();
    assert!(failed.contains("time limit") && failed.contains("killed by signal 9"), "{failed}");
    server.stop();
}

#[test]
fn a_run_goes_on_after_a_kill_of_the_server_and_ends_once_with_the_same_counts() {
    let rig = Rig::new();
    let mut bell = rig.bell("bell");
    let ring = format!("if ($1 == 8) print \"half\" > \"{}\"; fflush(); ", bell.path);
    let split = awk(&(ring + "if ($1 < 10) { emit(\"tree\", $1 + 1); emit(\"tree\", $1 + 1) }"));
    let server = rig.serve(&format!("[queue.tree]\nworker = {split}\nslots = 2\nin_flight = 8\n"));
    let run = rig.call(&["push", "tree", "0", "--run", "new"]).fine().trim_end().to_owned();
    bell.next();
    server.process.kill();
    let server = rig.serve_again();
    // Whoever was at a job when the server died does it again; what it emitted before counted for nothing.
    counts(&ended(&rig, &run), 2047, 0);
    server.stop();
}

#[test]
fn a_pipeline_is_written_checked_run_without_a_server_and_drawn() {
    let rig = Rig::new();
    std::fs::create_dir_all(rig.dir()).unwrap();
    let refused = rig.call(&["pipeline", "check"]);
    assert_eq!(refused.code, Some(66), "{}", refused.stderr);
    rig.call(&["pipeline", "init"]).fine();
    assert_eq!(rig.call(&["pipeline", "init"]).code, Some(73), "an existing file is left alone");
    let checked = rig.call(&["pipeline", "check"]).fine().to_owned();
    let row = |stage: &str| checked.lines().find(|line| line.starts_with(stage)).unwrap().to_owned();
    let split: Vec<String> = row("split").split_whitespace().map(str::to_owned).collect();
    assert_eq!(
        (&split[..3].join(" "), split.last()),
        (&"split 3 3".to_owned(), Some(&"shout".to_owned())),
        "{checked}"
    );
    assert!(checked.contains("collect"), "{checked}");

    let got = rig.path("got");
    let config = format!(
        "[pipeline.words]\nmemory = \"1G\"\n\
         [[pipeline.words.stage]]\nname = \"split\"\nrun = [\"sh\", \"-c\", \"for w in $1; do echo $w; done\", \"sh\", \"{{}}\"]\n\
         pass = \"lines\"\nto = [\"shout\"]\nmemory = \"256M\"\nslots = 9\n\
         [[pipeline.words.stage]]\nname = \"shout\"\nbatch = [\"sh\", \"-c\", \"while read -r w; do echo ok $w!; done\"]\n\
         pass = \"message\"\nto = [\"save\"]\nlimit = 5\n\
         [[pipeline.words.stage]]\nname = \"save\"\nbatch = [\"sh\", \"-c\", \"cat >> {}\"]\nreply = \"exit\"\nslots = 1\n",
        got.display()
    );
    std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
    let checked = rig.call(&["pipeline", "check", "--json"]).json();
    let workers: Vec<u64> =
        checked["pipelines"][0]["stages"].as_array().unwrap().iter().map(|s| s["workers"].as_u64().unwrap()).collect();
    assert_eq!(workers, [4, 4, 1], "four times 256 MiB is a gibibyte");

    let told = rig.feed(&["pipeline", "run"], "to be or\nnot to be\n");
    assert_eq!(told.code, Some(0), "{}", told.stderr);
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
    let wait = format!("echo $1 > {}; read x < {}", bell.path, gate.path);
    let server = rig.serve(&format!(
        "[[pipeline.p.stage]]\nname = \"make\"\nrun = [\"sh\", \"-c\", \"echo one >> $WINDLASS_EMIT\"]\nslots = 1\n\
         to = [\"output\"]\n\
         [[pipeline.p.stage]]\nname = \"output\"\nrun = [\"sh\", \"-c\", {wait:?}, \"sh\", \"{{}}\"]\nslots = 1\nlimit = 2\n"
    ));
    let run = rig.feed(&["push", "p.make", "--run", "new"], "1\n2\n3\n4\n5\n6\n").fine().trim_end().to_owned();
    bell.next();
    // One is under way, two wait: whoever asks once nothing changes any more hears why.
    let why = loop {
        let why = rig.call(&["why", "p.make"]).fine().to_owned();
        if why.contains("held: stage output has 2 waiting, its limit") {
            break why;
        }
    };
    assert!(why.contains("held"), "{why}");
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!(status["queues"]["p.make"]["ready"], 3, "{status}");
    gate.open(6);
    counts(&ended(&rig, &run), 12, 0);
    server.process.signal(Signal::TERM);
    server.process.end().fine();
}
