//! The watchdog: what the dead held goes back, drivers are started again, and whoever kills the watchdog harms nothing.

use crate::rig::{Bell, PATIENCE, Process};
use crate::spool::{Spool, listing, name};
use crate::tracer::{Act, Plan, Traced, Which};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::process::Stdio;

/// A driver that knows nothing but files and `mv`: its directories, its number, and what it does with a document.
const DRIVER: &str = "while :; do for f in \"$1\"/*.ready \"$1\"/*.failed; do [ -e \"$f\" ] || continue; \
    d=$(basename \"$f\"); d=${d%.*}; mv \"$f\" \"$1/$d.$3.working\" 2> /dev/null || continue; \
    i=\"$1/$d.$3.working\"; o=\"$2/$d.$3.writing.txt\"; WORK \
    mv \"$o\" \"$2/$d.ready\" && rm \"$i\"; done; \
    [ -e \"$1/done\" ] && ! ls \"$1\" | grep -q '[.]ready$\\|[.]failed$\\|[.]working$' && exit 0; sleep 0.05; done";

const WINDLASS: &str = env!("CARGO_BIN_EXE_windlass");

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
        let watchdog = ["watchdog", place];
        let restart = if options.contains(&"--restart") { &[][..] } else { &["--restart", "10ms"][..] };
        let words: Vec<&str> = [&watchdog[..], restart, options, &["--"], driver].concat();
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

    fn places(&self) -> (String, String) {
        let place = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        (place(&self.spool.input), place(&self.spool.output))
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
fn what_a_watchdog_says_of_drivers_is_what_became_of_them() {
    let guarded = Guarded::new();
    guarded.spool.put("a", "body");
    // It had nothing, so nothing was taken over; and it said itself that it was done.
    let told = guarded.start(&[], &["true", "{n}"]).end();
    told.says("ended in order, with 0, before all was done; it is not started again").fine();
    assert!(!told.stderr.contains("took over"), "{told:?}");
    let file = guarded.spool.rig.path("file");
    std::fs::write(&file, "x").unwrap();
    let file = file.to_str().unwrap();
    guarded.start(&[], &[file]).end().says("expected a program; if it is one: chmod +x").ended(77);
    guarded.start(&["--out", file], &["true", "{n}"]).end().says("is no directory, expected one of").ended(66);
    let root = guarded.spool.rig.path("root");
    std::fs::create_dir_all(root.join("one")).unwrap();
    std::fs::write(root.join("one/a.ready"), "body").unwrap();
    let told = guarded.spool.rig.call(&["watchdog", root.to_str().unwrap(), "--", "true", "{n}"]);
    told.says("is a directory of queues, and a driver that asks for a number works on one")
        .says("name the queue of this driver")
        .ended(64);
    assert_eq!(listing(&root).len(), 1, "nothing was made");
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

#[test]
fn the_end_of_a_queue_without_documents_travels_under_a_watchdog() {
    let guarded = Guarded::new();
    let (input, output) = guarded.places();
    guarded.spool.rig.call(&["spool", "put", &input, "--done"]).fine();
    let drive = ["drive", "--in", &input, "--out", &output, "--", "cp"];
    guarded.start(&[], &[&[WINDLASS], &drive[..]].concat()).end().fine();
    assert!(guarded.spool.output.join("done").exists());
    // Now that it is known where the output is, and that it was told, nobody is needed.
    guarded.start(&[], &["/no/such/driver"]).end().fine();
}

#[test]
fn a_driver_that_was_killed_before_it_said_that_nothing_more_comes_is_started_again() {
    let drive = |guarded: &Guarded| {
        let (input, output) = guarded.places();
        ["drive", "--in", &input, "--out", &output, "--", "cp"].map(str::to_owned)
    };
    let play = |guarded: &Guarded, nth, act| {
        let which = Which::Changing(guarded.spool.rig.path(""));
        let command = guarded.spool.rig.windlass(&drive(guarded));
        Traced::start(command, Plan { which, nth, act }).end(PATIENCE).unwrap()
    };
    let prepared = || {
        let guarded = Guarded::new();
        guarded.spool.put("a", "body");
        guarded.spool.close();
        guarded
    };
    let points = play(&prepared(), 0, Act::Count).counted;
    let mut told_nobody = 0;
    for nth in points - 5..=points {
        let guarded = prepared();
        play(&guarded, nth, Act::Cut(Box::new(|| ())));
        let is_through = guarded.spool.outputs().contains_key(&name(b"a.ready"));
        told_nobody += u64::from(is_through && !guarded.spool.output.join("done").exists());
        let words = drive(&guarded);
        let driver: Vec<&str> = [WINDLASS].into_iter().chain(words.iter().map(String::as_str)).collect();
        guarded.start(&[], &driver).end().fine();
        assert!(guarded.spool.output.join("done").exists(), "call {nth} of {points}");
        assert_eq!(guarded.spool.outputs()[&name(b"a.ready")], b"body");
    }
    assert!(told_nobody > 0, "nobody was killed where it matters");
}

#[test]
fn a_driver_of_ours_whose_command_cannot_serve_stops_the_stage() {
    let guarded = Guarded::new();
    guarded.spool.put("a", "body");
    let (input, output) = guarded.places();
    let drive = [WINDLASS, "drive", "--in", &input, "--out", &output, "--keep", "--", "sh", "-c", "exit 3"];
    guarded.start(&[], &drive).end().says("cannot start, 5 times in a row: exit 78").ended(73);
    assert_eq!(guarded.spool.inputs()[&name(b"a.ready")], b"body");
    assert_eq!(guarded.tries(), 0);
}

#[test]
fn what_a_foreign_driver_leaves_half_written_nobody_knows_where_is_looked_for_beside_its_queue() {
    let mut guarded = Guarded::new();
    guarded.spool.put("slow", "body");
    let (input, output) = guarded.places();
    let script = DRIVER.replace(
        "WORK",
        &format!(
            "echo half > \"$o\"; echo $$ $3 $d > {}; read x < {}; cp \"$i\" \"$o\";",
            guarded.bell.path, guarded.gate.path
        ),
    );
    std::fs::write(guarded.spool.output.join("others.8.writing.txt"), "half").unwrap();
    let mut watchdog = guarded.start(&[], &["sh", "-c", &script, "sh", &input, &output, "{n}"]);
    watchdog.until("nobody says where these drivers write");
    let (process, first, _) = guarded.rings();
    std::fs::write(guarded.spool.output.join(format!("other.{first}.writing.txt")), "half").unwrap();
    kill_process(process, Signal::KILL).unwrap();
    watchdog.until("1 go back to the queue");
    let (_, second, _) = guarded.rings();
    let left: Vec<OsString> = guarded.spool.outputs().into_keys().collect();
    let kept =
        [format!("other.{first}.writing.txt"), "others.8.writing.txt".into(), format!("slow.{second}.writing.txt")];
    assert_eq!(left, kept.map(OsString::from), "what it surely was is gone, and nothing else");
    guarded.spool.close();
    guarded.gate.open(1);
    watchdog.end().fine();
}

#[test]
fn a_whole_pipeline_is_started_again_by_a_watchdog_until_it_says_that_all_is_done() {
    let spool = Spool::new();
    let rig = &spool.rig;
    let (work, config, once) = (rig.path("work"), rig.path("pipeline.toml"), rig.path("once"));
    std::fs::create_dir(&work).unwrap();
    // The pipeline is killed over its first document, and the next one does it.
    let kill = format!("mkdir {} 2> /dev/null && kill -9 $(cat {}); cat", once.display(), rig.path("pid").display());
    let stages = format!(
        "[pipeline.p]\n[[pipeline.p.stage]]\nname = \"find\"\nfeed = [\"seq\", \"9\"]\nto = [\"a\"]\n\
         [[pipeline.p.stage]]\nname = \"a\"\nslots = 1\npass = \"message\"\nto = [\"b\"]\n\
         run = [\"sh\", \"-c\", {kill:?}]\n\
         [[pipeline.p.stage]]\nname = \"b\"\nslots = 1\nrun = [\"sh\", \"-c\", \"cat >> {}; echo >> {}\"]\n",
        rig.path("came").display(),
        rig.path("came").display()
    );
    std::fs::write(&config, stages).unwrap();
    let pipeline = format!(
        "echo $$ > {}; exec {WINDLASS} --store dir:{} pipeline run --config {}",
        rig.path("pid").display(),
        work.display(),
        config.display()
    );
    let words = ["watchdog", work.to_str().unwrap(), "--restart", "10ms", "--", "sh", "-c", &pipeline];
    let told = rig.call(&words);
    told.says("died: signal 9").says("1 go back to the queue").fine();
    let mut came = crate::rig::lines_of(&rig.path("came"));
    came.retain(|line| !line.is_empty());
    came.sort();
    assert_eq!(came, (1..=9).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(!work.join(".windlass").exists(), "the place of the queues is none itself");
}

/// Neither what is said nor what is kept depends on how fast anything is: a driver may always come later.
#[test]
fn a_driver_that_dies_at_once_is_started_again_after_waits_that_grow_and_are_kept() {
    let guarded = Guarded::new();
    guarded.spool.put("a", "body");
    let starts = guarded.spool.rig.path("starts");
    let script = format!("read up idle < /proc/uptime; echo $up >> {}; exit 7", starts.display());
    let told = guarded.start(&["--restart", "50ms"], &["sh", "-c", &script, "{n}"]).end();
    told.says("cannot start, 5 times in a row: exit 7").ended(73);
    let said = told.stderr.lines().filter_map(|line| line.split_once("another is started in "));
    let said: Vec<&str> = said.map(|(_, wait)| wait.trim_end()).collect();
    assert_eq!(said, ["50ms", "100ms", "200ms", "400ms"], "{told:?}");
    let starts: Vec<f64> = crate::rig::lines_of(&starts).iter().map(|line| line.parse().unwrap()).collect();
    assert_eq!(starts.len(), 5, "{starts:?}");
    for (pair, wait) in starts.windows(2).zip([0.05, 0.1, 0.2, 0.4]) {
        // That clock tells hundredths of a second.
        assert!(
            pair[1] - pair[0] >= wait - 0.011,
            "{starts:?}: the next one came before its wait of {wait} s was over"
        );
    }
}
