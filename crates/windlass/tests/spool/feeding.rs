//! Stages at the ends of a pipeline: a feeder, whose command makes the input, and a sink, of which nothing comes out.

use crate::rig::{Rig, lines_of};
use crate::spool::listing;
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Stdio;

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
    fed.rig.call(&fed.words()).says("another process feeds this pipeline").ended(75);
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
