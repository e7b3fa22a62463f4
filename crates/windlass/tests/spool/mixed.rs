//! One pipeline whose stages are kept in directories, in a data directory and in tables, in any mixture: the same comes
//! out, each document once and whole, whoever dies on the way.

use crate::databases::Place;
use crate::rig::{Rig, Told, lines_of};
use crate::spool::listing;
use rustix::process::Signal;
use std::path::Path;
use std::process::Stdio;

/// The stages, each with the place where it is kept; none where whoever runs it says so.
fn line(places: [Option<&str>; 3], more: [&str; 3]) -> String {
    let store = |place: Option<&str>| place.map(|place| format!("store = {place:?}\n")).unwrap_or_default();
    let [first, middle, last] = places.map(store);
    let [begins, goes, ends] = more;
    format!(
        "[pipeline.line]\n\
         [[pipeline.line.stage]]\nname = \"first\"\nslots = 2\npass = \"message\"\nto = [\"middle\"]\n{first}{begins}\n\
         worker = [\"sh\", \"-c\", \"while IFS= read -r text; do echo ok $text:first; done\"]\n\
         [[pipeline.line.stage]]\nname = \"middle\"\nslots = 2\npass = \"message\"\nto = [\"last\"]\n{middle}{goes}\n\
         worker = [\"sh\", \"-c\", \"while IFS= read -r text; do case $text in bad*) echo fail no;; *) echo ok \
         $text:middle;; esac; done\"]\n\
         [[pipeline.line.stage]]\nname = \"last\"\nslots = 2\n{last}{ends}\n\
         run = [\"cp\", \"{{in}}\", \"{{out}}\"]\n"
    )
}

/// Runs it on directories where a stage does not say otherwise.
fn words<'w>(store: &'w str, config: &'w str) -> [&'w str; 6] {
    ["--store", store, "pipeline", "run", "--config", config]
}

fn run(rig: &Rig, config: &str, input: &str) -> Told {
    let path = rig.path("pipeline.toml");
    std::fs::write(&path, config).unwrap();
    rig.feed(&words(&format!("dir:{}", rig.path("stages").display()), path.to_str().unwrap()), input)
}

fn input(count: usize) -> String {
    (0..count).map(|n| format!("{n}\n")).collect()
}

/// Each document once and whole: doubled ones have names of their own.
fn all_came_once(rig: &Rig, count: usize) {
    let results = listing(&rig.path("stages/results"));
    let mut came: Vec<String> =
        results.into_values().filter(|text| !text.is_empty()).map(|text| String::from_utf8(text).unwrap()).collect();
    came.sort();
    let mut expected: Vec<String> = (0..count).map(|n| format!("{n}:first:middle")).collect();
    expected.sort();
    assert_eq!(came, expected);
}

/// Nothing is left of a stage's documents, and it knows that nothing more will come.
fn is_over(directory: &Path) {
    let left: Vec<_> = listing(directory).into_keys().collect();
    assert_eq!(left, [".windlass", "done"], "{}", directory.display());
    let coming = listing(&directory.join(".windlass/coming"));
    assert!(coming.is_empty(), "{coming:?}");
}

/// The picture counts alike, wherever a stage is kept.
fn each_stage_has_done(rig: &Rig, count: u64) {
    let (store, config) = (format!("dir:{}", rig.path("stages").display()), rig.path("pipeline.toml"));
    let graph = ["--store", &store, "pipeline", "graph", "--config", config.to_str().unwrap()];
    let told = rig.call(&[&graph[..], &["--json"]].concat()).json();
    for (stage, name) in told["stages"].as_array().unwrap().iter().zip(["first", "middle", "last"]) {
        assert_eq!((&stage["name"], &stage["counts"]["succeeded"]), (&name.into(), &count.into()), "{told}");
    }
    let drawn = rig.call(&graph);
    let line = format!("[middle] 0 waiting, 0 running in 2, {count} succeeded, 0 failed");
    assert!(drawn.fine().contains(&line), "{}", drawn.fine());
}

fn table(rig: &Rig) -> String {
    let url = format!("sqlite:{}", rig.path("jobs.db").display());
    rig.call(&["attach", &url, "--apply"]).fine();
    url
}

#[test]
fn one_stage_is_swapped_for_an_embedded_queue() {
    let rig = Rig::new();
    run(&rig, &line([None, Some("embedded"), None], [""; 3]), &input(30))
        .says("first: 30 documents done")
        .says("middle: 30 jobs done")
        .says("last: 30 documents done")
        .fine();
    all_came_once(&rig, 30);
    ["first", "middle", "last"].iter().for_each(|stage| is_over(&rig.path("stages").join(stage)));
    // Whoever looks sees one line, from directory to directory.
    let graph = rig.call(&["spool", "graph", rig.path("stages").to_str().unwrap()]);
    let graph = graph.fine();
    let named: Vec<&str> = graph.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(named, ["first", "middle", "last", "results"], "{graph}");
    each_stage_has_done(&rig, 30);
    // What went through the store is found there.
    let listed = rig.call(&["ls", "queue:line.middle", "state:succeeded", "--json"]).json();
    assert_eq!(listed.as_array().unwrap().len(), 30);
}

#[test]
fn one_stage_is_swapped_for_a_table() {
    let rig = Rig::new();
    let table = table(&rig);
    run(&rig, &line([None, Some(&table), None], [""; 3]), &input(30)).says("middle: 30 jobs done").fine();
    all_came_once(&rig, 30);
    is_over(&rig.path("stages/middle"));
    each_stage_has_done(&rig, 30);
}

#[test]
fn one_stage_is_swapped_for_a_table_of_postgresql() {
    let rig = Rig::new();
    let place = Place::postgres();
    let table = place.options("test").url;
    rig.call(&["attach", &table, "--apply"]).fine();
    run(&rig, &line([None, Some(&table), None], [""; 3]), &input(30)).says("middle: 30 jobs done").fine();
    all_came_once(&rig, 30);
    let rows = place.statement("SELECT count(*) FROM jobs WHERE name = 'line.middle'");
    assert_eq!(rows, "30");
}

#[test]
fn every_mixture_gives_the_same() {
    let directories = Rig::new();
    let other = format!("dir:{}", directories.path("elsewhere").display());
    for places in [
        [Some("embedded"), None, None],
        [Some("embedded"), Some("embedded"), None],
        [Some("embedded"), Some("sqlite"), None],
        [Some("sqlite"), Some("embedded"), None],
        [None, Some("embedded:data"), Some(other.as_str())],
    ] {
        let rig = Rig::new();
        let (table, data) = (table(&rig), format!("embedded:{}", rig.path("data2").display()));
        let named = places.map(|place| match place {
            Some("sqlite") => Some(table.as_str()),
            Some("embedded:data") => Some(data.as_str()),
            other => other,
        });
        let told = run(&rig, &line(named, [""; 3]), &input(12));
        let middle = if places[1].is_some() { "middle: 12 jobs done\n" } else { "middle: 12 documents done\n" };
        told.says(middle).says("last: 12 documents done").fine();
        all_came_once(&rig, 12);
    }
}

#[test]
fn one_stage_of_an_embedded_pipeline_is_swapped_for_a_directory() {
    let rig = Rig::new();
    let (collected, stages) = (rig.path("collected"), rig.path("stages"));
    let place = format!("dir:{}", stages.display());
    let collect = format!("run = [\"sh\", \"-c\", \"printf '%s\\\\n' \\\"$(cat)\\\" >> {}\"]\n", collected.display());
    let config = line([None, Some(&place), None], [""; 3]).replace("run = [\"cp\", \"{in}\", \"{out}\"]\n", &collect);
    let config = config.replace("name = \"last\"\nslots = 2", "name = \"last\"\nslots = 1");
    let path = rig.path("pipeline.toml");
    std::fs::write(&path, config).unwrap();
    rig.feed(&["pipeline", "run", "--config", path.to_str().unwrap()], input(20))
        .says("first: 20 jobs done")
        .says("middle: 20 documents done")
        .says("last: 20 jobs done")
        .fine();
    assert_eq!(lines_of(&collected).len(), 20);
    is_over(&stages.join("middle"));
}

#[test]
fn limits_of_one_hold_the_stages_and_nothing_stands_still() {
    let rig = Rig::new();
    let limits = ["limit = 1", "limit = 1", "limit = 1"];
    run(&rig, &line([None, Some("embedded"), None], limits), &input(25)).fine();
    all_came_once(&rig, 25);
    let rig = Rig::new();
    run(&rig, &line([Some("embedded"), None, None], limits), &input(25)).fine();
    all_came_once(&rig, 25);
}

#[test]
fn what_fails_in_a_store_is_told_and_stays_there() {
    let rig = Rig::new();
    run(&rig, &line([None, Some("embedded"), None], ["", "attempts = 1", ""]), "bad\n1\n")
        .says("middle: 1 job done, 1 failed")
        .ended(1);
    let listed = rig.call(&["ls", "state:failed", "--json"]);
    assert!(listed.fine().contains("bad:first"), "{listed:?}");
    // Ready again, it goes on where it was, with whoever comes next.
    rig.call(&["retry", "state:failed", "--yes"]).fine();
    let mended = line([None, Some("embedded"), None], [""; 3]).replace("bad*", "none");
    run(&rig, &mended, "").says("middle: 1 job done\n").says("last: 1 document done").fine();
    let came: Vec<Vec<u8>> = listing(&rig.path("stages/results")).into_values().collect();
    assert!(came.contains(&b"bad:first:middle".to_vec()), "{came:?}");
}

#[test]
fn what_is_no_job_is_set_aside_in_front_of_the_store_with_the_reason() {
    let rig = Rig::new();
    let config = line([None, Some("embedded"), None], [""; 3]);
    run(&rig, &config, "").fine();
    let middle = rig.path("stages/middle");
    std::fs::remove_file(middle.join("done")).unwrap();
    std::fs::write(middle.join("large.ready"), vec![b'x'; (1 << 20) + 1]).unwrap();
    std::fs::write(middle.join("0.ready"), "0:first").unwrap();
    run(&rig, &config, "").says("middle: 1 job done, 1 set aside").ended(1);
    let reason = std::fs::read_to_string(middle.join("failed/large.reason")).unwrap();
    assert!(reason.contains("1048577 bytes"), "{reason}");
    all_came_once(&rig, 1);
}

#[test]
fn killed_again_and_again_with_a_stage_in_a_store_each_document_goes_on_once() {
    killed_again_and_again(&Rig::new(), "embedded");
    let rig = Rig::new();
    killed_again_and_again(&rig, &table(&rig));
    let (rig, place) = (Rig::new(), Place::postgres());
    let table = place.options("test").url;
    rig.call(&["attach", &table, "--apply"]).fine();
    killed_again_and_again(&rig, &table);
}

/// Killed whenever another ten have come out, and started again without any input.
fn killed_again_and_again(rig: &Rig, place: &str) {
    let path = rig.path("pipeline.toml");
    let limits = ["attempts = 0", "attempts = 0\nlimit = 5", "attempts = 0"];
    std::fs::write(&path, line([None, Some(place), None], limits)).unwrap();
    let store = format!("dir:{}", rig.path("stages").display());
    let words = words(&store, path.to_str().unwrap());
    let came = || std::fs::read_dir(rig.path("stages/results")).map_or(0, Iterator::count);
    let mut process = rig.start_fed(&words, &input(80));
    process.until("80 documents in");
    for round in 1..=6 {
        while came() < round * 10 && !rig.path("stages/results/done").exists() {
            std::thread::yield_now();
        }
        process.kill();
        process = rig.start(&words, Stdio::null());
    }
    process.end().fine();
    all_came_once(rig, 80);
    ["first", "middle", "last"].iter().for_each(|stage| is_over(&rig.path("stages").join(stage)));
}

#[test]
fn told_to_end_it_leaves_no_done_and_goes_on_with_the_next() {
    let rig = Rig::new();
    let path = rig.path("pipeline.toml");
    std::fs::write(&path, line([None, Some("embedded"), None], [""; 3])).unwrap();
    let store = format!("dir:{}", rig.path("stages").display());
    let words = words(&store, path.to_str().unwrap());
    let mut process = rig.start(&words, Stdio::piped());
    let mut stdin = process.stdin();
    std::io::Write::write_all(&mut stdin, input(40).as_bytes()).unwrap();
    while std::fs::read_dir(rig.path("stages/results")).map_or(0, Iterator::count) < 5 {
        std::thread::yield_now();
    }
    process.signal(Signal::TERM);
    process.end().ended(143);
    assert!(!rig.path("stages/results/done").exists());
    drop(stdin);
    rig.call(&words).fine();
    all_came_once(&rig, 40);
}

#[test]
fn what_cannot_be_mixed_is_a_sentence_before_anything_starts() {
    let rig = Rig::new();
    let refused = |config: &str, sentence: &str| {
        run(&rig, config, "1\n").says(sentence).ended(78);
        assert!(!rig.path("stages").exists(), "nothing was made");
    };
    let whole = line([None, Some("embedded"), None], [""; 3]);
    refused(&line([None, None, Some("embedded")], [""; 3]), "a command that is told of files, and a job is none");
    refused(&whole.replace("to = [\"last\"]", "to = [\"last\", \"first\"]"), "a way back to itself");
    refused(&whole.replace("\"embedded\"", "\"embedded\"\nunique = \"run\""), "told apart by a key already");
    refused(&whole.replace("\"embedded\"", "\"redis://x\""), "\"dir:PATH\", \"embedded\" or \"embedded:PATH\"");
    // A server would have only a part of it, and says that it leaves it alone.
    let mut server = rig.serve(&whole);
    server.process.until("has stages in other stores; windlass pipeline run line works on all of it");
    let told = run(&rig, &whole, "1\n");
    told.says("in use").ended(75);
    server.stop();
}
