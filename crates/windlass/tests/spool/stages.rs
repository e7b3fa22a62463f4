//! Pipelines whose stages are directories: one description for every store, `done` from stage to stage, deaths on the
//! way.

use crate::rig::{Rig, lines_of};
use crate::spool::{Listing, Spool, listing};
use std::path::Path;
use std::process::Stdio;

/// Three stages of a job's kind: what is emitted, what is answered, what is taken.
fn words(collected: &Path) -> String {
    format!(
        "[pipeline.words]\nmemory = \"1G\"\n\
         [[pipeline.words.stage]]\nname = \"split\"\nslots = 2\nto = [\"shout\"]\n\
         run = [\"sh\", \"-c\", \"printf '%s\\\\n' $1 >> \\\"$WINDLASS_EMIT\\\"\", \"sh\", \"{{}}\"]\n\
         [[pipeline.words.stage]]\nname = \"shout\"\nlimit = 5\npass = \"message\"\nto = [\"collect\"]\n\
         worker = [\"sh\", \"-c\", \"while IFS= read -r w; do echo ok $w | tr a-z A-Z | sed 's/^OK/ok/'; done\"]\n\
         [[pipeline.words.stage]]\nname = \"collect\"\nslots = 1\n\
         run = [\"sh\", \"-c\", \"printf '%s\\\\n' \\\"$(cat)\\\" >> {0}\"]\n",
        collected.display()
    )
}

/// The seed's stages, scaled down, on files.
const FILES: &str = "[pipeline.docs]\nmemory = \"1G\"\n\
     [[pipeline.docs.stage]]\nname = \"values\"\nslots = 1\nmemory = \"60M\"\nto = [\"parse\"]\n\
     run = [\"sh\", \"-c\", \"sed s/^/values:/ $1 > $2\", \"sh\", \"{in}\", \"{out}\"]\n\
     [[pipeline.docs.stage]]\nname = \"parse\"\nslots = 3\nmemory = \"200M\"\nlimit = 10\nto = [\"output\"]\n\
     run = [\"sh\", \"-c\", \"sed s/^/parse:/ $1 > $2\", \"sh\", \"{in}\", \"{out}\"]\n\
     [[pipeline.docs.stage]]\nname = \"output\"\nslots = 2\nmemory = \"100M\"\nlimit = 10\n\
     run = [\"sh\", \"-c\", \"sed s/^/output:/ $1 > $2\", \"sh\", \"{in}\", \"{out}\"]\n";

/// The same with commands that stay: each says when it starts, and gets a line for each document.
fn kept(log: &Path) -> String {
    let script =
        "echo $0 >> LOG; while IFS='\t' read -r in out; do read -r text < $in; echo $0:$text > $out; echo ok; done";
    let script = script.replace("LOG", log.to_str().unwrap());
    let stage = |name: &str, slots: u32, memory: u32, more: &str| {
        format!(
            "[[pipeline.docs.stage]]\nname = {name:?}\nslots = {slots}\nmemory = \"{memory}M\"\n{more}\n\
             worker = [\"sh\", \"-c\", {script:?}, {name:?}]\nframing = \"in-out\"\n"
        )
    };
    let stages = [
        stage("values", 1, 60, "to = [\"parse\"]"),
        stage("parse", 3, 200, "limit = 10\nto = [\"output\"]"),
        stage("output", 2, 100, "limit = 10"),
    ];
    format!("[pipeline.docs]\nmemory = \"860M\"\n{}", stages.concat())
}

/// So many files, and their paths as lines.
fn files(rig: &Rig, count: usize) -> String {
    let lines = (0..count).map(|n| {
        let path = rig.path(&format!("d{n}"));
        std::fs::write(&path, format!("{n}\n")).unwrap();
        format!("{}\n", path.display())
    });
    lines.collect()
}

fn config(rig: &Rig, text: &str) -> String {
    let path = rig.path("pipeline.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn store(rig: &Rig) -> String {
    format!("dir:{}", rig.path("stages").display())
}

#[test]
fn one_description_runs_on_directories_in_the_data_directory_and_on_a_table() {
    for kind in ["embedded", "dir", "sqlite"] {
        let rig = Rig::new();
        let collected = rig.path("collected");
        let store = match kind {
            "embedded" => String::new(),
            "dir" => store(&rig),
            _ => format!("sqlite:{}", rig.path("jobs.db").display()),
        };
        let config = config(&rig, &words(&collected));
        if kind == "sqlite" {
            rig.call(&["attach", &store, "--apply"]).fine();
        }
        let given: &[&str] = if store.is_empty() { &[] } else { &["--store", &store] };
        let words = [given, &["pipeline", "run", "words", "--config", &config]].concat();
        rig.feed(&words, "one two three\nfour\nfive six\n").fine();
        let mut came = lines_of(&collected);
        came.sort();
        assert_eq!(came, ["FIVE", "FOUR", "ONE", "SIX", "THREE", "TWO"], "{kind}");
        for stage in ["split", "shout", "collect"].iter().filter(|_| kind == "dir") {
            let left: Vec<_> = listing(&rig.path("stages").join(stage)).into_keys().collect();
            assert_eq!(left, [".windlass", "done"], "{stage}");
        }
    }
}

#[test]
fn the_file_that_pipeline_init_writes_runs_as_it_is_in_every_store() {
    for kind in ["embedded", "dir", "sqlite"] {
        let rig = Rig::new();
        let file = rig.path("example.toml");
        let file = file.to_str().unwrap();
        rig.call(&["pipeline", "init", file]).fine();
        let store = match kind {
            "embedded" => Vec::new(),
            "dir" => vec!["--store".to_owned(), store(&rig)],
            _ => vec!["--store".to_owned(), format!("sqlite:{}", rig.path("jobs.db").display())],
        };
        if kind == "sqlite" {
            rig.call(&["attach", &store[1], "--apply"]).fine();
        }
        let text = rig.path("text");
        std::fs::write(&text, "to be or\nnot to be\n").unwrap();
        let words: Vec<&str> = store.iter().map(String::as_str).chain(["pipeline", "run", "--config", file]).collect();
        rig.feed(&words, format!("{}\n", text.display())).fine();
        let mut came = lines_of(&rig.path("words.txt"));
        came.sort();
        assert_eq!(came, ["BE", "BE", "NOT", "OR", "TO", "TO"], "{kind}");
    }
}

#[test]
fn files_go_through_three_stages_within_limits_and_done_travels() {
    let spool = Spool::new();
    let config = config(&spool.rig, FILES);
    let store = store(&spool.rig);
    let files = files(&spool.rig, 30);
    let told = spool.rig.feed(&["--store", &store, "pipeline", "run", "--config", &config], files);
    told.says("values: 30 documents done").says("output: 30 documents done").fine();
    let results = listing(&spool.rig.path("stages/results"));
    let expected = (0..30).map(|n| (format!("d{n}.ready").into(), format!("output:parse:values:{n}\n").into_bytes()));
    let expected: Listing = expected.chain([("done".into(), Vec::new()), (".windlass".into(), Vec::new())]).collect();
    assert_eq!(results, expected);
}

#[test]
fn a_line_that_names_no_file_is_refused_at_once_and_so_is_a_store_without_a_name() {
    let rig = Rig::bare();
    let config = config(&rig, FILES);
    let pipe = rig.gate("pipe");
    let place = rig.path("");
    let named = |line: &str, sentence: &str| {
        let told = rig.feed(&["--store", &store(&rig), "pipeline", "run", "--config", &config], format!("{line}\n"));
        told.says(sentence).says("each line is the path of one").ended(66);
    };
    named(&pipe.path, "is no regular file, expected one");
    named(place.to_str().unwrap(), "is no regular file, expected one");
    named("/", "/ is no regular file");
    named("/no/such/file", "there is no file /no/such/file");
    let told = rig.call(&["--store", "dir:", "pipeline", "run", "--config", &config]);
    told.says("`dir:` names no directory, expected dir:PATH").ended(64);
}

#[test]
fn a_stage_is_held_by_the_bytes_that_wait_behind_it() {
    // Three of eight bytes are more than twenty, and none is begun after that.
    is_held("limit_bytes = \"20\"", 3);
}

#[test]
fn a_stage_is_held_by_the_number_of_those_that_wait_behind_it() {
    is_held("limit = 2", 2);
}

#[track_caller]
fn is_held(limit: &str, most: u32) {
    let rig = Rig::new();
    let (stages, log) = (rig.path("stages"), rig.path("log"));
    // Slow enough for the stage before it to be far ahead, if nothing held it.
    let load = format!("sleep 0.1; ls {}/load | grep -c ready$ >> {}; cat $1", stages.display(), log.display());
    let config = config(
        &rig,
        &format!(
            "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"make\"\nslots = 1\nto = [\"load\"]\n\
             run = [\"sh\", \"-c\", \"echo 1234567 > $2\", \"sh\", \"{{in}}\", \"{{out}}\"]\n\
             [[pipeline.p.stage]]\nname = \"load\"\nslots = 1\n{limit}\n\
             run = [\"sh\", \"-c\", {load:?}, \"sh\", \"{{in}}\"]\n"
        ),
    );
    let store = store(&rig);
    let told = rig.feed(&["--store", &store, "pipeline", "run", "--config", &config], files(&rig, 20));
    told.says("load: 20 documents done").fine();
    let waited: Vec<u32> = lines_of(&log).iter().map(|line| line.parse().unwrap()).collect();
    assert!(waited.len() == 20 && waited.iter().all(|waiting| *waiting <= most), "{waited:?}");
}

#[test]
fn kept_commands_of_a_pipeline_are_told_of_files_and_start_once_for_each_driver_that_fits() {
    // Room for all, and for one driver less of the largest stage.
    for (memory, parsers) in [("860M", 3), ("660M", 2)] {
        let rig = Rig::bare();
        let log = rig.path("log");
        let config = config(&rig, &kept(&log).replace("860M", memory));
        let store = store(&rig);
        let told = rig.feed(&["--store", &store, "pipeline", "run", "--config", &config], files(&rig, 60));
        told.says("values: 60 documents done").says("output: 60 documents done").fine();
        let mut results = listing(&rig.path("stages/results"));
        results.retain(|name, _| name != "done" && name != ".windlass");
        let expected =
            (0..60).map(|n| (format!("d{n}.ready").into(), format!("output:parse:values:{n}\n").into_bytes()));
        assert_eq!(results, expected.collect::<Listing>());
        let starts = lines_of(&log);
        for (stage, most) in [("values", 1), ("parse", parsers), ("output", 2)] {
            let count = starts.iter().filter(|started| *started == stage).count();
            assert!((1..=most).contains(&count), "{stage}: {count} starts with {memory}");
        }
    }
}

#[test]
fn a_stage_that_cannot_go_on_ends_the_whole_pipeline_and_says_why() {
    let rig = Rig::bare();
    let broken = "[ $0 = parse ] && { echo no model >&2; exit 3; }; while IFS=";
    let config = config(&rig, &kept(&rig.path("log")).replace("while IFS=", broken));
    let store = store(&rig);
    let told = rig.feed(&["--store", &store, "pipeline", "run", "--config", &config], files(&rig, 30));
    told.says("stages/parse cannot serve: its worker ended with exit 3").says("no model").ended(78);
    // Nothing is lost: what was not done waits where it was.
    let waits = |stage: &str| listing(&rig.path("stages").join(stage)).into_keys().filter(is_ready).count();
    fn is_ready(name: &std::ffi::OsString) -> bool {
        name.to_str().unwrap().ends_with(".ready")
    }
    assert_eq!(waits("values") + waits("parse"), 30);
}

#[test]
fn a_kept_command_at_the_end_may_write_nothing_and_files_are_of_directories_only() {
    let rig = Rig::new();
    let sunk = rig.path("sunk");
    let script = format!("while read -r in; do cat $in >> {}; echo ok; done", sunk.display());
    let stage = format!("[pipeline.p]\n[[pipeline.p.stage]]\nname = \"load\"\nworker = [\"sh\", \"-c\", {script:?}]\n");
    let sink = config(&rig, &format!("{stage}framing = \"in\"\n"));
    let store = store(&rig);
    let words = ["--store", &store, "pipeline", "run", "--config", &sink];
    rig.feed(&words, files(&rig, 5)).says("load: 5 documents done").fine();
    assert_eq!(lines_of(&sunk).len(), 5);
    assert!(!rig.path("stages/results").exists(), "nothing comes out");
    // The same stage as a queue of jobs, which are no files.
    let told = rig.feed(&words[2..], "text\n");
    told.ended(1);
    let listed = rig.call(&["ls", "state:failed", "--json"]);
    assert!(listed.fine().contains("a job is no file"), "{listed:?}");
    let nowhere = config(
        &rig,
        &format!("{stage}framing = \"in\"\nto = [\"b\"]\n[[pipeline.p.stage]]\nname = \"b\"\nrun = [\"cat\"]\n"),
    );
    rig.feed(&["--store", &store, "pipeline", "run", "--config", &nowhere], "").says("says what it writes").ended(78);
    let queue = config(&rig, "[queue.q]\nworker = [\"cat\"]\nframing = \"in-out\"\n");
    rig.call(&["config", "check", &queue]).says("expected it in a stage of a pipeline only").ended(78);
}

#[test]
fn what_a_directory_cannot_hold_is_a_sentence_at_the_start() {
    let rig = Rig::bare();
    let store = store(&rig);
    let stage = |more: &str| format!("[pipeline.p]\n[[pipeline.p.stage]]\nname = \"a\"\nrun = [\"cat\"]\n{more}\n");
    for (more, sentence) in [
        ("to = [\"a\"]", "a way back to itself"),
        ("hours = \"22:00-06:00\"", "`hours`"),
        ("rate = \"2/s\"", "`rate`"),
        ("on_failure = \"q\"", "`on_failure`"),
        ("enabled = false", "`enabled = false`"),
    ] {
        let config = config(&rig, &stage(more));
        let told = rig.feed(&["--store", &store, "pipeline", "run", "--config", &config], "x\n");
        told.says("cannot be a directory").says(sentence).ended(78);
        let checked = rig.call(&["--store", &store, "pipeline", "check", "--config", &config]);
        checked.says("cannot be a directory").says(sentence).ended(78);
        assert!(!rig.path("stages").exists(), "nothing was made");
    }
    let idle = config(&rig, &stage("backoff = \"7s\"\nweight = 3\ndead_after = 4"));
    let told = rig.feed(&["--store", &store, "pipeline", "run", "--config", &idle], "x\n");
    told.says("the `backoff` of p.a does nothing in a directory")
        .says("the `weight` of p.a")
        .says("the `dead_after`")
        .fine();
    let kept = "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"a\"\nto = [\"b\"]\nin_flight = 4\nslots = 4\n\
                worker = [\"sh\", \"-c\", \"while read -r x; do echo ok; done\"]\n\
                [[pipeline.p.stage]]\nname = \"b\"\nbatch = [\"cat\"]\nbatch_size = 7\n";
    let told = rig.feed(&["--store", &store, "pipeline", "run", "--config", &self::config(&rig, kept)], "x\n");
    told.says("the `in_flight` of p.a does nothing in a directory").says("the `batch_size` of p.b").fine();
    windlass::data_dir::DataDir::open(&rig.dir()).unwrap();
    rig.call(&["--store", &store, "ls"]).says("directories hold no jobs for windlass ls").ended(64);
}

#[test]
fn a_pipeline_that_is_killed_again_and_again_hands_each_document_on_once() {
    let rig = Rig::bare();
    let collected = rig.path("collected");
    let config = config(
        &rig,
        &["slots = 2", "slots = 1", "limit = 5"]
            .iter()
            .fold(words(&collected), |words, line| words.replace(line, &format!("{line}\nattempts = 0"))),
    );
    let store = store(&rig);
    let words = ["--store", &store, "pipeline", "run", "--config", &config];
    let input: String = (0..60).map(|n| format!("a{n} b{n}\n")).collect();
    let mut bell = 0;
    let mut run = rig.start_fed(&words, &input);
    run.until("60 documents in");
    // Killed whenever some more have come out, until little is left.
    for _ in 0..6 {
        bell += 12;
        while lines_of(&collected).len() < bell && rig.path("stages/split").exists() {
            std::thread::yield_now();
        }
        run.kill();
        run = rig.start(&words, Stdio::null());
    }
    run.end().fine();
    let mut came = lines_of(&collected);
    came.sort();
    came.dedup();
    let mut expected: Vec<String> = (0..60).flat_map(|n| [format!("A{n}"), format!("B{n}")]).collect();
    expected.sort();
    assert_eq!(came, expected);
    // The stages themselves hand each on once: only what was collected while its driver died is collected twice.
    assert!(lines_of(&collected).len() <= 120 + 6, "{}", lines_of(&collected).len());
}

/// A stage in the middle is a queue of a server, embedded or on a table: documents are pushed into it, and what
/// it makes is put into the directory of the next stage.
#[test]
fn a_stage_between_directories_may_be_a_queue_of_a_server_or_a_table() {
    for on_a_table in [false, true] {
        let spool = Spool::new();
        let rig = &spool.rig;
        let program = env!("CARGO_BIN_EXE_windlass");
        let (data, middle) = (rig.dir(), rig.path("middle"));
        let table = format!("sqlite:{}", rig.path("jobs.db").display());
        let store = if on_a_table { format!("[store]\nurl = {table:?}\n") } else { String::new() };
        if on_a_table {
            rig.call(&["attach", &table, "--apply"]).fine();
        }
        let shout = format!("tr a-z A-Z | {program} -q spool put {} - --name $WINDLASS_JOB_ID", middle.display());
        let server = rig.serve(&format!("{store}[queue.shout]\nrun = [\"sh\", \"-c\", {shout:?}]\n"));
        spool.put_many(5);
        spool.close();
        let push = format!("cat \"$1\" | {program} -q --dir {} push shout", data.display());
        let input = spool.input.to_str().unwrap();
        rig.call(&["drive", "--in", input, "--", "sh", "-c", &push, "sh", "{in}"]).says("5 documents done").fine();
        rig.drained();
        std::fs::write(middle.join("done"), "").unwrap();
        let words = ["drive", "--in", middle.to_str().unwrap(), "--out", spool.output.to_str().unwrap(), "--", "cp"];
        rig.call(&words).says("5 documents done").fine();
        let mut came: Vec<Vec<u8>> = spool.outputs().into_values().filter(|text| !text.is_empty()).collect();
        came.sort();
        assert_eq!(came, (0..5).map(|n| format!("TEXT {n}").into_bytes()).collect::<Vec<_>>(), "table {on_a_table}");
        server.stop();
    }
}

#[test]
fn a_batch_between_two_stages_gets_its_documents_as_lines() {
    let rig = Rig::bare();
    let collected = rig.path("collected");
    let batch =
        "while IFS= read -r row; do case $row in bad*) echo fail no such row;; *) echo ok $row$row;; esac; done";
    let config = config(
        &rig,
        &format!(
            "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"first\"\npass = \"data\"\nto = [\"rows\"]\nrun = [\"true\"]\n\
             [[pipeline.p.stage]]\nname = \"rows\"\nbatch = [\"sh\", \"-c\", {batch:?}]\nbatch_size = 10\n\
             pass = \"message\"\nto = [\"last\"]\nlimit = 3\n\
             [[pipeline.p.stage]]\nname = \"last\"\nslots = 1\n\
             run = [\"sh\", \"-c\", \"printf '%s\\\\n' \\\"$(cat)\\\" >> {}\"]\n",
            collected.display()
        ),
    );
    let rows: String = (0..20).map(|n| format!("{n}-\n")).collect();
    let told = rig.feed(&["--store", &store(&rig), "pipeline", "run", "--config", &config], format!("{rows}bad\n"));
    told.says("rows: 20 documents done, 1 set aside").says("last: 20 documents done").ended(1);
    let mut came = lines_of(&collected);
    came.sort();
    let mut expected: Vec<String> = (0..20).map(|n| format!("{n}-{n}-")).collect();
    expected.sort();
    assert_eq!(came, expected);
}

#[test]
fn a_document_of_a_stage_is_tried_twice_unless_the_stage_says_otherwise() {
    for (more, tries) in [("", 2), ("attempts = 5", 5), ("attempts = 1", 1)] {
        let rig = Rig::bare();
        let log = rig.path("log");
        let text = "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"a\"\n";
        let run = format!("run = [\"sh\", \"-c\", \"echo >> {}; exit 1\"]\n", log.display());
        let config = config(&rig, &format!("{text}{run}{more}\n"));
        rig.feed(&["--store", &store(&rig), "pipeline", "run", "--config", &config], "x\n").ended(1);
        assert_eq!(lines_of(&log).len(), tries, "{more}");
    }
}

#[test]
fn what_is_fed_waits_for_room_in_the_first_stage() {
    let rig = Rig::bare();
    let (stages, log) = (rig.path("stages"), rig.path("log"));
    // Whenever one is begun, no more than the limit wait behind it.
    let run = format!("ls {}/a | grep -c ready$ >> {}; cat > /dev/null", stages.display(), log.display());
    let stage = "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"a\"\nslots = 1\nlimit = 3\n";
    let config = config(&rig, &format!("{stage}run = [\"sh\", \"-c\", {run:?}]\n"));
    let input: String = (0..40).map(|n| format!("{n}\n")).collect();
    rig.feed(&["--store", &store(&rig), "pipeline", "run", "--config", &config], input)
        .says("a: 40 documents done")
        .fine();
    let waited: Vec<u32> = lines_of(&log).iter().map(|line| line.parse().unwrap()).collect();
    assert!(waited.len() == 40 && waited.iter().all(|waiting| *waiting <= 3), "{waited:?}");
}
