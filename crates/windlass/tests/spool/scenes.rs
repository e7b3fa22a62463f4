//! Deaths on the less trodden ways, before every call that changes a directory: a document that becomes several, a kept
//! command, a command that moves its input, a document that is taken to another file system, and a driver that dies
//! while it takes over from a dead one. Whatever came out is taken away, and must not come again.
//!
//! The short form takes one point in four times `WINDLASS_SPOOL_STRIDE` (5); `cargo xtask prove spool` takes every one.

use crate::crash::stride;
use crate::mount::Mount;
use crate::rig::PATIENCE;
use crate::spool::{Listing, Spool, listing};
use crate::tracer::{Act, Plan, Tally, Traced, Which};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// What is done, and what must come of it.
struct Scene {
    spool: Spool,
    /// Everything that is looked at is in it.
    place: PathBuf,
    words: Vec<OsString>,
    /// Where what comes of it is.
    results: PathBuf,
    expected: Listing,
    /// Keeps what it needs.
    _mount: Option<Mount>,
}

impl Scene {
    /// So many documents in the input, which become these.
    fn of(spool: Spool, words: Vec<OsString>, results: PathBuf, expected: &[(&str, &str)]) -> Scene {
        let expected = expected.iter().map(|(file, text)| ((*file).into(), text.as_bytes().to_vec())).collect();
        let place = spool.input.parent().unwrap().to_owned();
        Scene { spool, place, words, results, expected, _mount: None }
    }

    fn play(&self, nth: u64, act: Act) -> Tally {
        let plan = Plan { which: Which::Changing(self.place.clone()), nth, act };
        let mut command = self.spool.rig.windlass(&self.words);
        command.stdin(Stdio::null());
        let played = Traced::start(command, plan).end(PATIENCE);
        played.unwrap_or_else(|| panic!("call {nth}: hangs"))
    }

    /// What has come out is taken by whoever reads there.
    fn take(&self) -> Listing {
        let mut taken = listing(&self.results);
        taken.retain(|file, _| self.expected.contains_key(file));
        taken.keys().for_each(|file| std::fs::remove_file(self.results.join(file)).unwrap());
        taken
    }

    /// The same words once more, to the end: with what was taken before, everything has come once.
    fn heal(&self, which: &str, taken: &Listing) {
        let _done_may_be_there = std::fs::remove_file(self.results.join("done"));
        let told = self.spool.rig.call(&self.words);
        let mut came = listing(&self.results);
        came.retain(|file, _| ![".windlass", "done"].contains(&file.to_str().unwrap()));
        for (file, text) in taken {
            assert_eq!(came.insert(file.clone(), text.clone()), None, "{which}: {file:?} comes twice: {told:?}");
        }
        assert_eq!(came, self.expected, "{which}: {told:?}");
        self.spool.is_left_by_all();
    }
}

/// Kills at one point after the other; `before` is what has happened already each time.
fn every_death(name: &str, scene: impl Fn() -> Scene, before: impl Fn(&Scene)) {
    let points = {
        let scene = scene();
        before(&scene);
        scene.play(0, Act::Count).counted
    };
    let step = if stride() == 1 { 1 } else { 4 * stride() };
    let mut deaths = 0;
    for nth in (1..=points + 1).step_by(step) {
        let scene = scene();
        before(&scene);
        let mut taken = scene.take();
        deaths += u64::from(scene.play(nth, Act::Cut(Box::new(|| ()))).hit);
        for (file, text) in scene.take() {
            assert_eq!(taken.insert(file.clone(), text), None, "{name}, call {nth} of {points}: {file:?} comes twice");
        }
        scene.heal(&format!("{name}, call {nth} of {points}"), &taken);
    }
    println!("spool: {name}: killed before {deaths} of {points} calls, lost 0, doubled 0");
    assert!(deaths > 2, "{name}: {deaths} deaths of {points} points");
}

fn owned(words: &[&std::ffi::OsStr]) -> Vec<OsString> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Drivers of this command, which is tried as often as it takes.
fn driven(options: &[&str], command: &[&str]) -> Scene {
    let spool = Spool::new();
    ["a", "b"].iter().for_each(|doc| spool.put(doc, doc));
    spool.close();
    let options = [&["--tries", "0", "--lease", "100ms"], options].concat();
    let (words, results) = (owned(&spool.words(&options, command)), spool.output.clone());
    Scene::of(spool, words, results, &[("a.ready", "a"), ("b.ready", "b")])
}

#[test]
fn a_death_costs_a_kept_command_and_one_that_moves_its_input_nothing() {
    let kept = "while IFS='\t' read -r in out; do cp \"$in\" \"$out\"; echo ok; done";
    every_death("a kept command", || driven(&["--keep"], &["sh", "-c", kept]), |_| ());
    every_death("a moved input", || driven(&[], &["mv", "{in}", "{out}"]), |_| ());
}

#[test]
fn a_death_over_a_take_over_costs_nothing() {
    let copies = || driven(&[], &["cp", "{in}", "{out}"]);
    let points = copies().play(0, Act::Count).counted;
    // It had handed the first on, or was about to.
    for half in [points / 2, points / 2 + 1, points / 2 + 2] {
        let before = |scene: &Scene| drop(scene.play(half, Act::Cut(Box::new(|| ()))));
        every_death(&format!("taking over from one killed before call {half}"), copies, before);
    }
}

#[test]
fn a_death_over_a_document_that_becomes_several_loses_and_doubles_none() {
    let scene = || {
        let spool = Spool::at("stages");
        let spool = Spool { input: spool.rig.path("stages/split"), output: spool.rig.path("stages/results"), ..spool };
        std::fs::create_dir_all(&spool.input).unwrap();
        spool.put("d", "one two");
        let config = spool.rig.path("pipeline.toml");
        std::fs::write(
            &config,
            "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"split\"\nslots = 1\nattempts = 0\nto = [\"copy\"]\n\
             run = [\"sh\", \"-c\", \"printf '%s\\\\n' $1 >> \\\"$WINDLASS_EMIT\\\"\", \"sh\", \"{}\"]\n\
             [[pipeline.p.stage]]\nname = \"copy\"\nslots = 1\nattempts = 0\nrun = [\"cp\", \"{in}\", \"{out}\"]\n",
        )
        .unwrap();
        let store = format!("dir:{}", spool.rig.path("stages").display());
        let words = ["--store", &store, "pipeline", "run", "--config", config.to_str().unwrap()].map(OsString::from);
        let results = spool.output.clone();
        Scene::of(spool, words.to_vec(), results, &[("d.split1.ready", "one"), ("d.split2.ready", "two")])
    };
    every_death("one becomes several", scene, |_| ());
}

#[test]
fn a_death_over_a_document_that_is_taken_to_another_file_system_costs_nothing() {
    let scene = || {
        let spool = Spool::new();
        let to = spool.rig.path("elsewhere");
        let mount = Mount::tmpfs(&to, 1);
        ["a", "b"].iter().for_each(|doc| spool.put(doc, doc));
        let word = |path: &Path| path.as_os_str().to_owned();
        let words = vec!["spool".into(), "take".into(), word(&spool.input), "--to".into(), word(&to)];
        Scene { _mount: Some(mount), ..Scene::of(spool, words, to, &[("a", "a"), ("b", "b")]) }
    };
    every_death("a copy to elsewhere", scene, |_| ());
}
