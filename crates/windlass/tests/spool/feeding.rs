//! Stages at the ends of a pipeline: a feeder, whose command makes the input, and a sink, of which nothing comes out.

use crate::rig::{Process, Rig, lines_of};
use crate::spool::listing;
use rustix::process::Signal;
use std::io::Write;
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};

/// A feeder of this script, a stage that passes on, and a sink that notes what it got.
struct Fed {
    rig: Rig,
    config: PathBuf,
    store: String,
}

impl Fed {
    fn by(script: &str) -> Fed {
        let rig = Rig::new();
        let config = rig.path("pipeline.toml");
        let text = format!(
            "[pipeline.fed]\n\
             [[pipeline.fed.stage]]\nname = \"find\"\nfeed = [\"sh\", \"-c\", {script:?}, {:?}]\nto = [\"copy\"]\n\
             [[pipeline.fed.stage]]\nname = \"copy\"\nslots = 2\nlimit = 3\nattempts = 0\npass = \"data\"\n\
             run = [\"true\"]\nto = [\"sink\"]\n\
             [[pipeline.fed.stage]]\nname = \"sink\"\nslots = 1\nattempts = 0\n\
             run = [\"sh\", \"-c\", \"printf '%s\\\\n' \\\"$(cat)\\\" >> {}\"]\n",
            rig.path("").to_str().unwrap(),
            rig.path("collected").display()
        );
        std::fs::write(&config, text).unwrap();
        let store = format!("dir:{}", rig.path("stages").display());
        Fed { rig, config, store }
    }

    fn words(&self) -> [&str; 6] {
        ["--store", &self.store, "pipeline", "run", "--config", self.config.to_str().unwrap()]
    }

    /// What came, in order; once each where nobody was killed over the noting of it.
    fn came(&self) -> Vec<u64> {
        let path = self.rig.path("collected");
        let lines = if path.exists() { lines_of(&path) } else { Vec::new() };
        let mut came: Vec<u64> = lines.iter().map(|line| line.parse().unwrap()).collect();
        came.sort_unstable();
        came
    }

    fn is_over(&self) {
        for stage in ["copy", "sink"] {
            let left: Vec<_> = listing(&self.rig.path("stages").join(stage)).into_keys().collect();
            assert_eq!(left, [".windlass", "done"], "{stage}");
        }
        assert!(!self.rig.path("stages/.fed-by-find").exists());
    }
}

#[test]
fn a_feeder_makes_the_input_and_of_a_sink_nothing_comes_out() {
    let fed = Fed::by("seq 20");
    fed.rig.call(&fed.words()).says("20 documents in").says("sink: 20 documents done").fine();
    assert_eq!(fed.came(), (1..=20).collect::<Vec<_>>());
    fed.is_over();
    assert!(!fed.rig.path("stages/results").exists());
    // The next run is fed anew.
    fed.rig.call(&fed.words()).says("20 documents in").fine();
    assert_eq!(fed.came().len(), 40);
}

#[test]
fn a_feeder_feeds_an_embedded_pipeline_as_one_run() {
    let fed = Fed::by("seq 20");
    fed.rig.call(&fed.words()[2..]).says("20 jobs in fed.copy").fine();
    assert_eq!(fed.came(), (1..=20).collect::<Vec<_>>());
    fed.rig.call(&["pipeline", "check", "--config", fed.config.to_str().unwrap()]).fine();
}

#[test]
fn a_feeder_that_is_killed_with_its_pipeline_again_and_again_feeds_each_line_once() {
    let fed = Fed::by("seq 60");
    let fed_so_far = || {
        let journal = std::fs::read(fed.rig.path("stages/.fed-by-find")).unwrap_or_default();
        journal.iter().filter(|byte| **byte == b'\n').count()
    };
    let mut process = fed.rig.start(&fed.words(), Stdio::null());
    for round in 1..=5 {
        while fed_so_far() < round * 9 {
            std::thread::yield_now();
        }
        process.kill();
        process = fed.rig.start(&fed.words(), Stdio::null());
    }
    process.end().fine();
    let mut came = fed.came();
    // The sink's command is no transaction: what it noted when it was killed it may note once more.
    assert!(came.len() <= 60 + 5, "{came:?}");
    came.dedup();
    assert_eq!(came, (1..=60).collect::<Vec<_>>());
    fed.is_over();
}

#[test]
fn told_to_end_a_feeder_is_ended_and_the_next_goes_on_behind_what_was_fed() {
    // It waits for ever behind its fifth line, unless somebody has opened the gate.
    let fed = Fed::by("seq 5; test -e \"$0/open\" || exec sleep 1000000; seq 6 9");
    let process = fed.rig.start(&fed.words(), Stdio::null());
    while fed.came().len() < 5 {
        std::thread::yield_now();
    }
    // Two at once would feed everything twice.
    fed.rig.call(&fed.words()).says("another process runs a pipeline here").ended(75);
    process.signal(Signal::TERM);
    process.end().ended(143);
    assert!(!fed.rig.path("stages/sink/done").exists());
    std::fs::write(fed.rig.path("open"), "").unwrap();
    fed.rig.call(&fed.words()).says("4 documents in").fine();
    assert_eq!(fed.came(), (1..=9).collect::<Vec<_>>());
    fed.is_over();
}

#[test]
fn a_feeder_that_fails_ends_the_pipeline_and_half_a_line_of_it_is_no_document() {
    let fed = Fed::by("seq 3; test -e \"$0/open\" && seq 40 42 && exit; printf 4; exit 3");
    fed.rig.call(&fed.words()).says("the feeder find ended with exit 3, expected 0").ended(1);
    std::fs::write(fed.rig.path("open"), "").unwrap();
    fed.rig.call(&fed.words()).fine();
    assert_eq!(fed.came(), [1, 2, 3, 40, 41, 42]);
    fed.is_over();
}

#[test]
fn what_is_no_feeder_is_refused_with_its_place() {
    let fed = Fed::by("true");
    let text = std::fs::read_to_string(&fed.config).unwrap();
    let refused = |old: &str, new: &str, sentence: &str| {
        std::fs::write(&fed.config, text.replacen(old, new, 1)).unwrap();
        fed.rig.call(&fed.words()).says(sentence).ended(78);
    };
    refused("to = [\"copy\"]", "to = [\"sink\"]", "hands to the stage that stands behind it");
    refused("to = [\"copy\"]", "to = [\"copy\"]\nslots = 2", "slots");
    refused("run = [\"true\"]", "feed = [\"true\"]", "only its first stage has none");
    refused("feed = [\"sh\"", "feed = [\"/no/such/program\"", "cannot start the feeder find: /no/such/program");
}

/// A place with files of one name in several directories, and a pipeline of one stage that copies them.
struct Namesakes {
    rig: Rig,
    config: PathBuf,
    store: String,
}

impl Namesakes {
    fn new(feeder: Option<&str>) -> Namesakes {
        let rig = Rig::bare();
        for directory in ["a", "b", "c"] {
            std::fs::create_dir_all(rig.path(directory)).unwrap();
            std::fs::write(rig.path(directory).join("report.pdf"), directory).unwrap();
        }
        let feed = feeder.map(|script| {
            let place = rig.path("");
            let find = "[[pipeline.p.stage]]\nname = \"find\"\nto = [\"copy\"]\n";
            format!("{find}feed = [\"sh\", \"-c\", {script:?}, {place:?}]\n")
        });
        let copy = "[[pipeline.p.stage]]\nname = \"copy\"\nslots = 1\nrun = [\"cp\", \"{in}\", \"{out}\"]\n";
        let config = rig.path("pipeline.toml");
        std::fs::write(&config, format!("[pipeline.p]\n{}{copy}", feed.unwrap_or_default())).unwrap();
        let store = format!("dir:{}", rig.path("stages").display());
        Namesakes { rig, config, store }
    }

    fn words(&self) -> [&str; 6] {
        ["--store", &self.store, "pipeline", "run", "--config", self.config.to_str().unwrap()]
    }

    #[track_caller]
    fn came(&self, expected: &[(&str, &str)]) {
        let mut came = listing(&self.rig.path("stages/results"));
        came.retain(|name, _| name != "done" && name != ".windlass");
        let expected = expected.iter().map(|(name, text)| ((*name).into(), text.as_bytes().to_vec()));
        assert_eq!(came, expected.collect());
    }
}

#[test]
fn files_of_one_name_are_documents_beside_each_other() {
    let namesakes = Namesakes::new(None);
    let path = |name: &str| namesakes.rig.path(name).display().to_string();
    let lines = format!("{}\n{}\n", path("a/report.pdf"), path("b/report.pdf"));
    namesakes.rig.feed(&namesakes.words(), lines).says("copy: 2 documents done").fine();
    namesakes.came(&[("report.pdf.ready", "a"), ("report~2.pdf.ready", "b")]);
    let long = namesakes.rig.path(&format!("{}.pdf", "x".repeat(240)));
    std::fs::write(&long, "").unwrap();
    let told = namesakes.rig.feed(&namesakes.words(), format!("{}\n", long.display()));
    told.says("too long for what its file will be called, expected 236 bytes").ended(65);
}

#[test]
fn files_of_one_name_keep_their_names_when_their_feeder_is_killed_between_them() {
    let script = "cd \"$0\"; tell() { for d; do echo \"$0/$d/report.pdf\"; done; }; \
                  test -e again && tell c b a && exit; tell a b; exec sleep 600";
    let namesakes = Namesakes::new(Some(script));
    let process = namesakes.rig.start(&namesakes.words(), Stdio::null());
    while !namesakes.rig.path("stages/results/report~2.pdf.ready").exists() {
        std::thread::yield_now();
    }
    process.kill();
    std::fs::write(namesakes.rig.path("again"), "").unwrap();
    namesakes.rig.call(&namesakes.words()).says("1 document in").fine();
    namesakes.came(&[("report.pdf.ready", "a"), ("report~2.pdf.ready", "b"), ("report~3.pdf.ready", "c")]);
}

/// A stage that passes on, and one that notes what it got; fed by whoever holds the pipe.
fn fed_by_hand() -> (Fed, Process, ChildStdin) {
    let fed = Fed::by("true");
    let text = std::fs::read_to_string(&fed.config).unwrap();
    let (first, second) = (text.find("[[pipeline.fed.stage]]").unwrap(), text.find("name = \"copy\"").unwrap());
    let second = text[..second].rfind("[[pipeline.fed.stage]]").unwrap();
    std::fs::write(&fed.config, [&text[..first], &text[second..]].concat()).unwrap();
    let mut process = fed.rig.start(&fed.words(), Stdio::piped());
    let stdin = process.stdin();
    (fed, process, stdin)
}

#[test]
fn two_do_not_run_a_pipeline_in_one_place() {
    let (fed, process, mut stdin) = fed_by_hand();
    stdin.write_all(b"1\n").unwrap();
    while fed.came().is_empty() {
        std::thread::yield_now();
    }
    fed.rig.feed(&fed.words(), "2\n").says("another process runs a pipeline here").ended(75);
    stdin.write_all(b"3\n").unwrap();
    drop(stdin);
    process.end().says("2 documents in").fine();
    assert_eq!(fed.came(), [1, 3]);
}

#[test]
fn a_done_of_somebody_else_ends_no_stage_that_is_still_fed() {
    for stage in ["copy", "sink"] {
        let (fed, mut process, mut stdin) = fed_by_hand();
        stdin.write_all(b"1\n").unwrap();
        while fed.came().is_empty() {
            std::thread::yield_now();
        }
        std::fs::write(fed.rig.path("stages").join(stage).join("done"), "").unwrap();
        process.until("it is not believed until all is fed");
        stdin.write_all(b"2\n").unwrap();
        drop(stdin);
        process.end().says("2 documents in").fine();
        assert_eq!(fed.came(), [1, 2], "{stage}");
        fed.is_over();
    }
}

#[test]
fn a_stage_that_cannot_go_on_ends_the_pipeline_while_its_input_is_open() {
    let rig = Rig::bare();
    let (config, file) = (rig.path("pipeline.toml"), rig.path("file"));
    std::fs::write(&file, "text").unwrap();
    let stage = "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"a\"\nslots = 1\nworker = [\"sh\", \"-c\", \"exit 3\"]\n";
    std::fs::write(&config, format!("{stage}framing = \"in\"\n")).unwrap();
    let store = format!("dir:{}", rig.path("stages").display());
    let words = ["--store", &store, "pipeline", "run", "--config", config.to_str().unwrap()];
    let mut process = rig.start(&words, Stdio::piped());
    let mut stdin = process.stdin();
    stdin.write_all(format!("{}\n", file.display()).as_bytes()).unwrap();
    process.end().says("cannot serve: its worker ended with exit 3").ended(78);
    drop(stdin);
    assert!(rig.path("stages/a/file.ready").exists());
}
