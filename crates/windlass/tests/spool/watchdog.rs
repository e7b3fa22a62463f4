//! The watchdog: what the dead held goes back, drivers are started again, and whoever kills the watchdog harms nothing.

use crate::rig::{Bell, Process};
use crate::spool::{Spool, listing, name};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::process::Stdio;

/// A driver that knows nothing but files and `mv`: its directories, its number, and what it does with a document.
const DRIVER: &str = "while :; do for f in \"$1\"/*.ready \"$1\"/*.failed; do [ -e \"$f\" ] || continue; \
    d=$(basename \"$f\"); d=${d%.*}; mv \"$f\" \"$1/$d.$3.working\" 2> /dev/null || continue; \
    i=\"$1/$d.$3.working\"; o=\"$2/$d.$3.writing.txt\"; WORK \
    mv \"$o\" \"$2/$d.ready\" && rm \"$i\"; done; \
    [ -e \"$1/done\" ] && ! ls \"$1\" | grep -q '[.]ready$\\|[.]failed$\\|[.]working$' && exit 0; sleep 0.05; done";

struct Guarded {
    spool: Spool,
    bell: Bell,
    gate: crate::rig::Gate,
}

impl Guarded {
    fn new() -> Guarded {
        let spool = Spool::new();
        std::fs::create_dir(&spool.output).unwrap();
        let (bell, gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
        Guarded { spool, bell, gate }
    }

    fn start(&self, options: &[&str], driver: &[&str]) -> Process {
        let place = self.spool.input.to_str().unwrap();
        let watchdog = ["watchdog", place, "--restart", "10ms"];
        let words: Vec<&str> = [&watchdog[..], options, &["--"], driver].concat();
        self.spool.rig.start(&words, Stdio::null())
    }

    /// The driver of another program, which rings with its process and its number at each document and waits at the
    /// gate, with half of an output.
    fn foreign(&self, options: &[&str]) -> Process {
        let work = format!(
            "echo half > \"$o\"; echo $$ $3 $d > {}; read x < {}; cp \"$i\" \"$o\";",
            self.bell.path, self.gate.path
        );
        self.foreign_that(&work, options)
    }

    fn foreign_that(&self, work: &str, options: &[&str]) -> Process {
        let (input, output) = (self.spool.input.to_str().unwrap(), self.spool.output.to_str().unwrap());
        let script = DRIVER.replace("WORK", work);
        let options: Vec<&str> = ["--out", output].iter().chain(options).copied().collect();
        self.start(&options, &["sh", "-c", &script, "sh", input, output, "{n}"])
    }

    /// Process, number and document of the driver that rings.
    fn rings(&mut self) -> (Pid, String, String) {
        let line = self.bell.next();
        let [process, number, doc] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        (Pid::from_raw(process.parse().unwrap()).unwrap(), number.into(), doc.into())
    }

    fn tries(&self) -> usize {
        listing(&self.spool.input.join(".windlass/tries")).len()
    }
}

#[test]
fn what_a_foreign_driver_held_goes_back_when_it_is_killed_and_another_is_started() {
    let mut guarded = Guarded::new();
    guarded.spool.put("slow", "body");
    let mut watchdog = guarded.foreign(&[]);
    let (process, first, _) = guarded.rings();
    kill_process(process, Signal::KILL).unwrap();
    watchdog.until("died: signal 9");
    watchdog.until("1 go back to the queue");
    let (_, second, doc) = guarded.rings();
    assert_ne!(first, second, "a number is of one driver");
    assert_eq!(doc, "slow");
    let held: Vec<OsString> = guarded.spool.outputs().into_keys().filter(|name| name != ".windlass").collect();
    assert_eq!(held, [OsString::from(format!("slow.{second}.writing.txt"))], "the other half is gone");
    guarded.spool.close();
    guarded.gate.open(1);
    watchdog.end().fine();
    assert_eq!(guarded.spool.outputs()[&name(b"slow.ready")], b"body");
    assert_eq!(listing(&guarded.spool.input.join(".windlass/drivers")).len(), 0);
}

#[test]
fn a_document_that_kills_every_driver_is_set_aside_and_the_stage_goes_on() {
    let guarded = Guarded::new();
    for bad in 0..4 {
        guarded.spool.put(format!("bad{bad}"), "bad");
    }
    guarded.spool.put("good", "good");
    guarded.spool.close();
    let watchdog = guarded.foreign_that("grep -q bad \"$i\" && kill -9 $$; cp \"$i\" \"$o\";", &[]);
    // Eight deaths, and not one of them a driver that could not start.
    watchdog.end().says("1 are set aside").ended(1);
    assert_eq!(guarded.spool.outputs()[&name(b"good.ready")], b"good");
    assert_eq!(guarded.spool.aside().len(), 8, "four bodies and four reasons");
}

#[test]
fn a_driver_of_ours_is_started_again_and_what_it_held_is_done() {
    let mut guarded = Guarded::new();
    guarded.spool.put("a", "body");
    let (input, output) = (guarded.spool.input.clone(), guarded.spool.output.clone());
    let script = format!("echo $PPID 0 a > {}; read x < {}; cp \"$1\" \"$2\"", guarded.bell.path, guarded.gate.path);
    let place = [input.to_str().unwrap(), output.to_str().unwrap()];
    let program = env!("CARGO_BIN_EXE_windlass");
    let pid = guarded.spool.rig.path("pid");
    let drive = format!(
        "echo $$ > {}; exec {program} drive --in {} --out {} -- sh -c '{script}' sh",
        pid.display(),
        place[0],
        place[1]
    );
    let mut watchdog = guarded.start(&[], &["sh", "-c", &drive]);
    guarded.rings();
    let process = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    watchdog.until("died: signal 9");
    guarded.rings();
    guarded.spool.close();
    guarded.gate.open(1);
    watchdog.end().fine();
    assert_eq!(guarded.spool.outputs()[&name(b"a.ready")], b"body");
    guarded.spool.is_clean();
}

#[test]
fn a_stage_whose_drivers_cannot_start_is_stopped_and_says_so() {
    let guarded = Guarded::new();
    guarded.spool.put("a", "body");
    guarded
        .start(&["-j", "2"], &["sh", "-c", "exit 7", "{n}"])
        .end()
        .says("cannot start, 5 times in a row: exit 7")
        .ended(73);
    guarded.start(&[], &["false"]).end().says("cannot start").ended(73);
    guarded.start(&[], &["/no/such/driver"]).end().says("cannot start the driver /no/such/driver").ended(66);
    guarded.start(&[], &[""]).end().says("the driver is the empty string").ended(64);
    assert_eq!(guarded.spool.inputs()[&name(b"a.ready")], b"body");
    assert_eq!(listing(&guarded.spool.input.join(".windlass/drivers")).len(), 0);
    assert_eq!(guarded.tries(), 0);
}

#[test]
fn whoever_kills_the_watchdog_harms_nothing() {
    let mut guarded = Guarded::new();
    guarded.spool.put("first", "1");
    let watchdog = guarded.foreign(&[]);
    let (process, number, _) = guarded.rings();
    watchdog.kill();
    // The driver lives, and so does its number, though nobody renews it.
    let place = guarded.spool.input.clone();
    let words = ["watchdog", place.to_str().unwrap(), "--once", "--json"];
    assert_eq!(guarded.spool.rig.call(&words).json()["drivers"], 0);
    let status = guarded.spool.rig.call(&["spool", "status", place.to_str().unwrap(), "--json"]).json();
    assert_eq!((&status["stages"][0]["drivers"], &status["stages"][0]["unleased"]), (&1.into(), &0.into()));
    // The next watchdog runs one beside it, under another number.
    guarded.spool.put("second", "2");
    let mut watchdog = guarded.foreign(&[]);
    let (_, other, doc) = guarded.rings();
    assert!(other != number && doc == "second", "{other} {doc}");
    kill_process(process, Signal::KILL).unwrap();
    watchdog.until("1 go back to the queue");
    guarded.spool.close();
    guarded.gate.open(2);
    watchdog.end().fine();
    let outputs = guarded.spool.outputs();
    assert_eq!((&outputs[&name(b"first.ready")][..], &outputs[&name(b"second.ready")][..]), (&b"1"[..], &b"2"[..]));
}

#[test]
fn what_a_dead_driver_left_running_keeps_its_number_alive() {
    let mut guarded = Guarded::new();
    guarded.spool.put("a", "body");
    // A child in a session of its own, which nobody's group reaches.
    let work =
        format!("setsid sh -c 'echo $$ {{n}} a > {}; read x < {}' & wait; ", guarded.bell.path, guarded.gate.path);
    let mut watchdog =
        guarded.foreign_that(&format!("echo $$ > {}; {work}", guarded.spool.rig.path("pid").display()), &[]);
    guarded.rings();
    let process = std::fs::read_to_string(guarded.spool.rig.path("pid")).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    watchdog.until("died: signal 9");
    let held =
        || guarded.spool.inputs().into_keys().filter(|name| name.to_string_lossy().ends_with(".working")).count();
    let once = ["watchdog", guarded.spool.input.to_str().unwrap(), "--once", "--json"];
    assert_eq!(guarded.spool.rig.call(&once).json()["again"], 0);
    assert_eq!(held(), 1);
    guarded.gate.open(1);
    watchdog.until("1 go back to the queue");
    watchdog.signal(Signal::TERM);
    watchdog.signal(Signal::TERM);
    watchdog.end();
}

#[test]
fn told_to_end_it_ends_its_drivers_and_what_they_had_costs_no_try() {
    let mut guarded = Guarded::new();
    guarded.spool.put("a", "body");
    let watchdog = guarded.foreign(&["-j", "2"]);
    guarded.rings();
    watchdog.signal(Signal::TERM);
    watchdog.end().fine();
    assert_eq!(guarded.spool.inputs()[&name(b"a.ready")], b"body");
    assert_eq!(guarded.tries(), 0);
    assert_eq!(listing(&guarded.spool.input.join(".windlass/drivers")).len(), 0);
    assert!(guarded.spool.outputs().into_keys().all(|name| name == ".windlass"), "{:?}", guarded.spool.outputs());
}

#[test]
fn what_foreign_drivers_hold_is_given_back_only_when_somebody_says_after_how_long() {
    let guarded = Guarded::new();
    let spool = &guarded.spool;
    std::fs::write(spool.input.join("theirs.7.working"), "body").unwrap();
    std::fs::write(spool.output.join("theirs.7.writing.txt"), "half").unwrap();
    std::fs::write(spool.output.join("others.8.writing.txt"), "half").unwrap();
    let (place, output) = (spool.input.to_str().unwrap(), spool.output.to_str().unwrap());
    let once = |after: &[&str]| {
        let words: Vec<&str> = ["watchdog", place, "--out", output, "--once"].iter().chain(after).copied().collect();
        spool.rig.call(&words)
    };
    once(&[]).fine();
    once(&["--foreign-after", "1h"]).fine();
    assert!(spool.inputs().contains_key(&name(b"theirs.7.working")));
    // By the clock of the file system nothing is younger than nothing.
    once(&["--foreign-after", "0s"]).says("gave back what drivers of other programs had: 1 go back").fine();
    assert_eq!(spool.inputs()[&name(b"theirs.failed")], b"body");
    let left: Vec<OsString> = spool.outputs().into_keys().filter(|name| name != ".windlass").collect();
    assert_eq!(left, ["others.8.writing.txt"]);
    std::fs::rename(spool.input.join("theirs.failed"), spool.input.join("theirs.7.working")).unwrap();
    once(&["--foreign-after", "0s"]).says("1 are set aside").ended(1);
    assert!(spool.aside().contains_key(&name(b"theirs.failed")), "two tries, counted across foreign hands");
}

#[test]
fn a_directory_of_queues_is_watched_until_all_of_it_is_worked_off() {
    let guarded = Guarded::new();
    let root = guarded.spool.rig.path("root");
    let stage = root.join("one");
    std::fs::create_dir_all(&stage).unwrap();
    let spool = Spool { input: stage, output: guarded.spool.rig.path("root-out"), rig: guarded.spool.rig };
    spool.put("a", "body");
    let mut bell = spool.rig.bell("other");
    let script = format!("echo begun > {}; sleep 1000", bell.path);
    let driver = spool.start(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    bell.next();
    driver.kill();
    let mut watchdog = spool.rig.start(&["watchdog", root.to_str().unwrap()], Stdio::null());
    watchdog.until("took over from dead drivers: 1; of their documents 1 go back to the queue");
    spool.close();
    spool.drive(&[], &["cp", "{in}", "{out}"]).fine();
    watchdog.end().fine();
    assert_eq!(spool.outputs()[&name(b"a.ready")], b"body");
}
