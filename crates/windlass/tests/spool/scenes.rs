//! Deaths on the less trodden ways, before every call that changes a directory: a document that becomes several, a kept
//! command, a command that moves its input, a document that is taken to another file system, a driver that dies while
//! it takes over from a dead one, and a feeder that had noted its lines. Whatever came out is taken away, and must not
//! come again. And the power is cut at the same places, on disks of their own: what comes out is whole, each once.
//!
//! The short form takes one point in four times `WINDLASS_SPOOL_STRIDE` (5); `cargo xtask prove spool` takes every one.

use crate::crash::{image, stride};
use crate::disk::{Boots, Disk, with_own_mounts};
use crate::mount::Mount;
use crate::rig::PATIENCE;
use crate::spool::{Listing, Spool, listing};
use crate::tracer::{Act, Plan, Tally, Traced, Which};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::SystemTime;

/// What is done, and what must come of it.
struct Scene {
    spool: Spool,
    /// Everything that is looked at is in it.
    place: PathBuf,
    words: Vec<OsString>,
    /// Where what comes of it is.
    results: PathBuf,
    expected: Listing,
    /// What a feeder has fed, until all of it has come to its end: the same words feed anew then.
    journal: Option<PathBuf>,
    /// Its command moves its input, and the machine goes down.
    moves: bool,
    /// Keeps what it needs.
    _mount: Option<Mount>,
}

impl Scene {
    /// So many documents in the input, which become these.
    fn of(spool: Spool, words: Vec<OsString>, results: PathBuf, expected: &[(&str, &str)]) -> Scene {
        let expected = expected.iter().map(|(file, text)| ((*file).into(), text.as_bytes().to_vec())).collect();
        let place = spool.input.parent().unwrap().to_owned();
        Scene { spool, place, words, results, expected, journal: None, moves: false, _mount: None }
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

    /// The machine stood still for longer than any lease holds: after a power cut nothing but time proves a death.
    fn was_off_for_long(&self) {
        for queue in std::fs::read_dir(self.spool.input.parent().unwrap()).unwrap() {
            let drivers = std::fs::read_dir(queue.unwrap().path().join(".windlass/drivers"));
            for lease in drivers.into_iter().flatten() {
                File::options()
                    .write(true)
                    .open(lease.unwrap().path())
                    .unwrap()
                    .set_modified(SystemTime::UNIX_EPOCH)
                    .unwrap();
            }
        }
    }

    /// What its command had moved before the power was cut may be kept beside the output, whole, with the reason:
    /// nobody can tell it from what a command wrote half of. In one place it is as in the other.
    fn kept(&self, came: &mut Listing) -> Listing {
        let aside = listing(&self.results.join("failed"));
        if !self.moves || came.remove(OsStr::new("failed")).is_none() {
            return Listing::new();
        }
        let bodies = aside.iter().filter_map(|(file, text)| Some((file.to_str()?.strip_suffix(".failed")?, text)));
        let kept = bodies.map(|(doc, text)| {
            assert!(aside.contains_key(OsStr::new(&format!("{doc}.reason"))), "{doc} is kept without a reason");
            (format!("{doc}.ready").into(), text.clone())
        });
        kept.collect()
    }

    /// The same words once more, to the end: with what was taken before, everything has come once.
    fn heal(&self, which: &str, taken: &Listing) {
        let is_over =
            self.journal.as_ref().is_some_and(|journal| self.results.join("done").exists() && !journal.exists());
        let _done_may_be_there = std::fs::remove_file(self.results.join("done"));
        let told = (!is_over).then(|| self.spool.rig.call(&self.words));
        let mut came = listing(&self.results);
        came.retain(|file, _| ![".windlass", "done", "lost+found"].contains(&file.to_str().unwrap()));
        for (file, text) in self.kept(&mut came).iter().chain(taken) {
            assert_eq!(came.insert(file.clone(), text.clone()), None, "{which}: {file:?} comes twice: {told:?}");
        }
        assert_eq!(came, self.expected, "{which}: {told:?}");
        self.spool.is_left_by_all();
    }
}

/// One point in so many.
fn step() -> usize {
    if stride() == 1 { 1 } else { 4 * stride() }
}

/// A place where nothing is yet, all of it in one directory.
fn fresh() -> Spool {
    Spool::at("disk")
}

/// Kills at one point after the other; `before` is what has happened already each time.
fn every_death(name: &str, scene: impl Fn() -> Scene, before: impl Fn(&Scene)) {
    let points = {
        let scene = scene();
        before(&scene);
        scene.play(0, Act::Count).counted
    };
    let mut deaths = 0;
    for nth in (1..=points + 1).step_by(step()) {
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

fn owned(words: &[&OsStr]) -> Vec<OsString> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Cuts the power of the disks in these directories at one point after the other. Nobody takes anything before the
/// machine is up again; then the same words bring the rest, and nothing twice.
fn every_power_cut(name: &str, disks: &[&str], scene: impl Fn(Spool) -> Scene + Send, before: impl Fn(&Scene) + Send) {
    with_own_mounts(move || {
        let spool = fresh();
        let disks: Vec<Disk> = disks.iter().map(|at| Disk::new(image(&spool), &spool.rig.path(at), 24)).collect();
        let (boots, kept) = (Boots::new(spool.rig.path("boot")), |which| spool.rig.path(&format!("kept{which}")));
        disks.iter().for_each(Disk::mount);
        let places: Vec<PathBuf> = (0..disks.len()).map(kept).collect();
        let scene = scene(spool);
        disks.iter().for_each(Disk::unmount);
        disks.iter().zip(&places).for_each(|(disk, kept)| disk.keep(kept));
        let anew = || {
            disks.iter().zip(&places).for_each(|(disk, kept)| disk.restore(kept));
            boots.boot();
            disks.iter().for_each(Disk::mount);
            before(&scene);
        };
        anew();
        let points = scene.play(0, Act::Count).counted;
        disks.iter().for_each(Disk::unmount);
        let mut cuts = 0;
        for nth in (1..=points + 1).step_by(step()) {
            anew();
            let switches: Vec<_> = disks.iter().map(Disk::switch).collect();
            let cut = move || switches.into_iter().for_each(|switch| switch());
            let missed = !scene.play(nth, Act::Cut(Box::new(cut))).hit;
            disks.iter().filter(|_| missed).for_each(|disk| disk.switch()());
            cuts += 1;
            disks.iter().for_each(Disk::unmount);
            boots.boot();
            disks.iter().for_each(Disk::mount);
            scene.was_off_for_long();
            scene.heal(&format!("{name}, power cut before call {nth} of {points}"), &Listing::new());
            disks.iter().for_each(Disk::unmount);
            disks.iter().for_each(Disk::check);
        }
        println!("spool: {name}: power cut before {cuts} of {points} calls, lost 0, doubled 0, half 0");
        assert!(cuts > 2, "{name}: {cuts} cuts of {points} points");
    });
}

/// Drivers of this command, which is tried as often as it takes.
fn driven(spool: Spool, options: &[&str], command: &[&str]) -> Scene {
    std::fs::create_dir_all(&spool.input).unwrap();
    ["a", "b"].iter().for_each(|doc| spool.put(doc, doc));
    spool.close();
    let options = [&["--tries", "0", "--lease", "100ms"], options].concat();
    let (words, results) = (owned(&spool.words(&options, command)), spool.output.clone());
    Scene::of(spool, words, results, &[("a.ready", "a"), ("b.ready", "b")])
}

const KEPT: &str = "while IFS='\t' read -r in out; do cp \"$in\" \"$out\"; echo ok; done";

fn kept(spool: Spool) -> Scene {
    driven(spool, &["--keep"], &["sh", "-c", KEPT])
}

fn moved(spool: Spool) -> Scene {
    driven(spool, &[], &["mv", "{in}", "{out}"])
}

fn copied(spool: Spool) -> Scene {
    driven(spool, &[], &["cp", "{in}", "{out}"])
}

#[test]
fn a_death_costs_a_kept_command_and_one_that_moves_its_input_nothing() {
    every_death("a kept command", || kept(fresh()), |_| ());
    every_death("a moved input", || moved(fresh()), |_| ());
}

#[test]
fn a_power_cut_costs_a_kept_command_and_one_that_moves_its_input_nothing() {
    every_power_cut("a kept command", &["disk"], kept, |_| ());
    every_power_cut("a moved input", &["disk"], |spool| Scene { moves: true, ..moved(spool) }, |_| ());
}

#[test]
fn a_death_over_a_take_over_costs_nothing() {
    let points = copied(fresh()).play(0, Act::Count).counted;
    // It had handed the first on, or was about to.
    for half in [points / 2, points / 2 + 1, points / 2 + 2] {
        let name = format!("taking over from one killed before call {half}");
        every_death(&name, || copied(fresh()), |scene| drop(scene.play(half, Act::Cut(Box::new(|| ())))));
    }
}

#[test]
fn a_power_cut_over_a_take_over_costs_nothing() {
    let half = copied(fresh()).play(0, Act::Count).counted / 2;
    let name = format!("taking over from one killed before call {half}");
    every_power_cut(&name, &["disk"], copied, |scene| drop(scene.play(half, Act::Cut(Box::new(|| ())))));
}

/// A document that becomes two, in directories.
fn splitting(spool: Spool) -> Scene {
    let spool = Spool { input: spool.rig.path("disk/split"), output: spool.rig.path("disk/results"), ..spool };
    std::fs::create_dir_all(&spool.input).unwrap();
    spool.put("d", "one two");
    let stages = "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"split\"\nslots = 1\nattempts = 0\nto = [\"copy\"]\n\
         run = [\"sh\", \"-c\", \"printf '%s\\\\n' $1 >> \\\"$WINDLASS_EMIT\\\"\", \"sh\", \"{}\"]\n\
         [[pipeline.p.stage]]\nname = \"copy\"\nslots = 1\nattempts = 0\nrun = [\"cp\", \"{in}\", \"{out}\"]\n";
    run(spool, stages, &[("d.split1.ready", "one"), ("d.split2.ready", "two")])
}

/// A pipeline of these stages, of which these results come.
fn run(spool: Spool, stages: &str, expected: &[(&str, &str)]) -> Scene {
    let config = spool.rig.path("pipeline.toml");
    std::fs::write(&config, stages).unwrap();
    let store = format!("dir:{}", spool.rig.path("disk").display());
    let words = ["--store", &store, "pipeline", "run", "--config", config.to_str().unwrap()].map(OsString::from);
    let results = spool.output.clone();
    Scene::of(spool, words.to_vec(), results, expected)
}

/// A feeder of two files of one name, from different directories.
fn fed(spool: Spool) -> Scene {
    let spool = Spool { input: spool.rig.path("disk/copy"), output: spool.rig.path("disk/results"), ..spool };
    // Neither is the disk's, which is to be cut off.
    let files = ["a", "b"].map(|directory| spool.rig.path(directory).join("report.pdf"));
    for (file, text) in files.iter().zip(["1", "2"]) {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let stages = format!(
        "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"find\"\nto = [\"copy\"]\n\
         feed = [\"printf\", '%s\\n', {:?}, {:?}]\n[[pipeline.p.stage]]\nname = \"copy\"\nslots = 1\nattempts = 0\n\
         run = [\"cp\", \"{{in}}\", \"{{out}}\"]\n",
        files[0], files[1]
    );
    let journal = spool.rig.path("disk/.fed-by-find");
    let scene = run(spool, &stages, &[("report.pdf.ready", "1"), ("report~2.pdf.ready", "2")]);
    Scene { journal: Some(journal), ..scene }
}

#[test]
fn a_death_over_a_feeder_feeds_each_line_once_under_its_name() {
    every_death("a feeder", || fed(fresh()), |_| ());
}

#[test]
fn a_power_cut_over_a_feeder_feeds_each_line_once_under_its_name() {
    every_power_cut("a feeder", &["disk"], fed, |_| ());
}

#[test]
fn a_death_over_a_document_that_becomes_several_loses_and_doubles_none() {
    every_death("one becomes several", || splitting(fresh()), |_| ());
}

#[test]
fn a_power_cut_over_a_document_that_becomes_several_loses_and_doubles_none() {
    every_power_cut("one becomes several", &["disk"], splitting, |_| ());
}

#[test]
fn whoever_takes_by_hand_clears_what_a_dead_driver_was_writing_for_the_next_stage() {
    let points = splitting(fresh()).play(0, Act::Count).counted;
    let half = |scene: &Scene| {
        let files = listing(&scene.place.join("copy"));
        files.into_keys().filter(|file| file.to_str().unwrap().ends_with(".writing.data")).count()
    };
    let mut cleared = 0;
    for nth in 1..=points {
        let scene = splitting(fresh());
        scene.play(nth, Act::Cut(Box::new(|| ())));
        if half(&scene) == 0 {
            continue;
        }
        let to = scene.spool.rig.path("to");
        std::fs::create_dir(&to).unwrap();
        let words = ["spool".as_ref(), "take".as_ref(), scene.spool.input.as_os_str(), "nothing".as_ref()];
        let told = scene.spool.rig.call(&[&words[..], &["--to".as_ref(), to.as_os_str()]].concat());
        told.says("nothing is not ready");
        assert_eq!(half(&scene), 0, "call {nth} of {points}: the next stage would wait for ever");
        let taken = scene.take();
        scene.heal(&format!("call {nth} of {points}"), &taken);
        cleared += 1;
        if cleared == 3 {
            return;
        }
    }
    panic!("{cleared} deaths over something half written");
}

/// Documents that are taken by hand to another file system.
fn taken_elsewhere(spool: Spool) -> Scene {
    std::fs::create_dir_all(&spool.input).unwrap();
    ["a", "b"].iter().for_each(|doc| spool.put(doc, doc));
    let to = spool.rig.path("elsewhere");
    let words = ["spool".as_ref(), "take".as_ref(), spool.input.as_os_str(), "--to".as_ref(), to.as_os_str()];
    let (words, place) = (owned(&words), spool.rig.path(""));
    Scene { place, ..Scene::of(spool, words, to, &[("a", "a"), ("b", "b")]) }
}

#[test]
fn a_death_over_a_document_that_is_taken_to_another_file_system_costs_nothing() {
    let scene = || {
        let spool = fresh();
        let mount = Mount::tmpfs(&spool.rig.path("elsewhere"), 1);
        Scene { _mount: Some(mount), ..taken_elsewhere(spool) }
    };
    every_death("a copy to elsewhere", scene, |_| ());
}

#[test]
fn a_power_cut_over_a_document_that_is_taken_to_another_disk_costs_nothing() {
    every_power_cut("a copy to elsewhere", &["disk", "elsewhere"], taken_elsewhere, |_| ());
}
