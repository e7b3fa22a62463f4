//! Drivers of ours: documents go through, once and whole; tries are counted; deaths are noticed; ends are exact.

use crate::mount::Mount;
use crate::rig::{Process, lines_of};
use crate::spool::{Spool, listing, name};
use rustix::process::Signal;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use windlass::spool::queue::{Claimed, Queue};

#[test]
fn documents_of_any_name_go_through_and_done_travels() {
    let spool = Spool::new();
    let docs: [&[u8]; 11] = [
        b"doc1",
        b"a.b.c",
        b"with space",
        b"x.ready",
        b"x.failed",
        b"x.3.working",
        b"\xff\xfe",
        b"{in}",
        b".hidden",
        b"a\nnewline",
        &[b'x'; 236],
    ];
    docs.iter().for_each(|doc| spool.put(doc, "some text\n"));
    spool.close();
    let told = spool.drive(&["-j", "3"], &["tr", "a-z", "A-Z"]);
    told.says("set aside");
    assert_eq!(told.code, Some(1), "a command without place for the files gets them as arguments, and tr takes none");
    std::fs::remove_dir_all(&spool.input).unwrap();
    std::fs::remove_dir_all(&spool.output).unwrap();
    std::fs::create_dir(&spool.input).unwrap();
    docs.iter().for_each(|doc| spool.put(doc, "some text\n"));
    spool.close();
    let told = spool.drive(&["-j", "3"], &["sh", "-c", "tr a-z A-Z < \"$1\" > \"$2\"", "sh", "{in}", "{out}"]);
    told.says("is worked off: 11 documents done").fine();
    let mut expected: Vec<_> = docs.iter().map(|doc| name(&[doc, &b".ready"[..]].concat())).collect();
    expected.push(name(b"done"));
    expected.sort();
    let outputs = spool.outputs();
    assert_eq!(outputs.keys().cloned().collect::<Vec<_>>(), expected);
    assert!(outputs.iter().all(|(name, text)| name == "done" || text == b"SOME TEXT\n"), "{outputs:?}");
    spool.is_clean();
    spool.is_left_by_all();
}

#[test]
fn of_twenty_who_race_for_one_document_one_wins() {
    let spool = Spool::new();
    let queue = Queue::open(&spool.input).unwrap();
    for round in 0..100 {
        spool.put("one", "text");
        let (barrier, won) = (Barrier::new(20), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for driver in 0..20 {
                let (queue, barrier, won) = (&queue, &barrier, &won);
                scope.spawn(move || {
                    barrier.wait();
                    let by = format!("{}", 1000 + driver);
                    match queue.claim(b"one.ready", by.as_bytes(), "xml").unwrap() {
                        Claimed::Ours(_) => won.fetch_add(1, Ordering::Relaxed),
                        Claimed::Lost => 0,
                        Claimed::Refused(why) | Claimed::Left(why) => panic!("{why}"),
                    };
                });
            }
        });
        assert_eq!(won.into_inner(), 1, "round {round}");
        let held: Vec<_> = spool.inputs().into_keys().filter(|name| name != ".windlass").collect();
        let [held] = &held[..] else { panic!("{held:?}") };
        std::fs::remove_file(spool.input.join(held)).unwrap();
    }
}

#[test]
fn twenty_drivers_and_one_document_make_one_output() {
    let spool = Spool::new();
    spool.put("one", "text");
    spool.close();
    let log = spool.rig.path("log");
    let script = format!("echo $$ >> {}; cp \"$1\" \"$2\"", log.display());
    spool.drive(&["-j", "20"], &["sh", "-c", &script, "sh", "{in}", "{out}"]).says("1 document done").fine();
    assert_eq!(lines_of(&log).len(), 1);
}

#[test]
fn the_first_come_is_the_first_done_and_what_failed_goes_to_the_end() {
    let spool = Spool::new();
    ["c", "a", "d", "b"].iter().for_each(|doc| spool.put_later(doc, doc));
    spool.close();
    let log = spool.rig.path("log");
    let script = format!("cat \"$1\" >> {0}; echo >> {0}; [ $(cat \"$1\") != a ] && cp \"$1\" \"$2\"", log.display());
    spool.drive(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]).ended(1);
    assert_eq!(lines_of(&log), ["c", "a", "d", "b", "a"]);
}

#[test]
fn tries_are_counted_across_drivers_and_the_last_sets_aside_with_body_and_reason() {
    let spool = Spool::new();
    spool.put("bad", "body");
    let mut bell = spool.rig.bell("bell");
    let script = format!("echo begun > {}; sleep 1000", bell.path);
    for death in 1..=2 {
        let driver = spool.start(&["--tries", "3"], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
        assert_eq!(bell.next(), "begun", "death {death}");
        driver.kill();
    }
    spool.close();
    // One whose tries are not counted would be tried for ever.
    let log = spool.rig.path("log").display().to_string();
    let script = format!("echo why >&2; echo >> {log}; [ $(wc -l < {log}) -lt 9 ] || exit 65; exit 1");
    let told = spool.drive(&["--tries", "3"], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    told.says("took over from dead drivers: 1").says("set aside bad after 3 tries: exit 1: why").ended(1);
    let aside = spool.aside();
    assert_eq!(aside[&name(b"bad.failed")], b"body");
    let reason: serde_json::Value = serde_json::from_slice(&aside[&name(b"bad.reason")]).unwrap();
    assert_eq!((&reason["tries"], &reason["error"]), (&3.into(), &"exit 1: why".into()), "{reason}");
    let errors = reason["errors"].as_array().unwrap();
    assert!(errors[0]["error"].as_str().unwrap().ends_with("died while it had it"), "{reason}");
    assert_eq!(errors.len(), 3);
    assert_eq!(spool.outputs().into_keys().collect::<Vec<_>>(), [name(b"done")], "half of an output is nothing");
    spool.is_clean();
}

#[test]
fn a_document_that_was_found_as_failed_has_used_one_try() {
    let spool = Spool::new();
    std::fs::write(spool.input.join("found.failed"), "body").unwrap();
    spool.close();
    let log = spool.rig.path("log");
    let script = format!("echo >> {}; exit 1", log.display());
    spool.drive(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]).says("set aside found after 2 tries").ended(1);
    assert_eq!(lines_of(&log).len(), 1);
    assert_eq!(spool.aside()[&name(b"found.failed")], b"body");
}

#[test]
fn what_cannot_succeed_is_not_tried_again_and_a_second_of_its_name_is_kept_too() {
    let spool = Spool::new();
    for body in ["first", "second"] {
        spool.put("x", body);
        spool.close();
        spool.drive(&["--tries", "9"], &["sh", "-c", "exit 65", "sh", "{in}", "{out}"]).ended(1);
    }
    let mut bodies: Vec<Vec<u8>> = spool
        .aside()
        .into_iter()
        .filter(|(name, _)| name.to_str().unwrap().ends_with(".failed"))
        .map(|(_, body)| body)
        .collect();
    bodies.sort();
    assert_eq!(bodies, [b"first".to_vec(), b"second".to_vec()]);
}

#[test]
fn told_to_end_it_finishes_the_document_and_leaves_no_done() {
    let spool = Spool::new();
    spool.put("a", "first");
    spool.put("b", "second");
    spool.close();
    let (mut bell, mut gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
    let script = format!("echo begun > {}; read x < {}; cp \"$1\" \"$2\"", bell.path, gate.path);
    let mut driver = spool.start(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    bell.next();
    driver.signal(Signal::TERM);
    driver.until("finishing what is under way");
    gate.open(1);
    driver.end().says("is left: 1 document done").fine();
    assert_eq!(spool.outputs().into_keys().collect::<Vec<_>>(), [name(b"a.ready")]);
    assert!(spool.inputs().contains_key(&name(b"b.ready")));
    assert_eq!(listing(&spool.input.join(".windlass/drivers")).len(), 0);
}

#[test]
fn told_twice_it_gives_the_document_back_uncharged() {
    let spool = Spool::new();
    spool.put("a", "first");
    let mut bell = spool.rig.bell("bell");
    let script = format!("echo begun > {}; sleep 1000", bell.path);
    let mut driver = spool.start(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    bell.next();
    driver.signal(Signal::INT);
    driver.until("finishing what is under way");
    driver.signal(Signal::INT);
    driver.end().ended(130);
    assert_eq!(spool.inputs()[&name(b"a.ready")], b"first");
    assert_eq!(listing(&spool.input.join(".windlass/tries")).len(), 0);
}

#[test]
fn documents_that_come_while_it_waits_are_noticed() {
    let spool = Spool::new();
    let mut bell = spool.rig.bell("bell");
    let script = format!("cp \"$1\" \"$2\"; cat \"$1\" > {}", bell.path);
    let driver = spool.start(&["-j", "2"], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    for text in ["one\n", "two\n", "three\n"] {
        spool.put(text.trim_end(), text);
        assert_eq!(bell.next(), text.trim_end());
    }
    spool.close();
    driver.end().says("3 documents done").fine();
    assert!(spool.outputs().contains_key(&name(b"done")));
}

/// A driver looks into its directory now and then as well. What is begun without such a look behind its arrival was
/// told by the kernel: on a machine however slow one of some documents comes between two looks.
#[test]
fn the_kernel_tells_of_documents_before_anybody_looks() {
    const MOST: usize = 6;
    let spool = Spool::new();
    let (mut bell, log) = (spool.rig.bell("bell"), spool.rig.path("trace"));
    let script = format!("cp \"$1\" \"$2\"; cat \"$1\" > {}", bell.path);
    let program = spool.rig.windlass(&spool.words(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]));
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-qq", "-e", "signal=none", "-e", "trace=getdents64", "-o"]);
    command.arg(&log).arg(program.get_program()).args(program.get_args()).stdin(Stdio::null());
    let driver = Process::start(&mut command);
    // The trace is written before the call is done, so a look that has told of anything stands in it.
    let looks = || {
        let place = format!("<{}>", spool.input.canonicalize().unwrap().display());
        lines_of(&log).iter().filter(|line| line.contains("getdents64") && line.contains(&place)).count()
    };
    let mut put = |text: &str| {
        spool.put(text, &format!("{text}\n"));
        assert_eq!(bell.next(), text);
    };
    put("first");
    assert!(looks() > 0, "the look at the start is not in the trace");
    let told = (0..MOST).any(|n| {
        let before = looks();
        put(&format!("doc{n}"));
        looks() == before
    });
    assert!(told, "each of {MOST} documents was found by a look");
    spool.close();
    driver.end().fine();
}

#[test]
fn a_kept_command_is_started_once_for_each_driver_and_says_what_became_of_each_document() {
    let spool = Spool::new();
    spool.put_many(40);
    spool.put("bad", "bad");
    spool.put("tab\tin it", "never run");
    spool.close();
    let log = spool.rig.path("log");
    let script = format!(
        "echo started >> {}; while IFS='\t' read -r in out; do \
         if [ \"$(cat \"$in\")\" = bad ]; then echo fail no good; else cp \"$in\" \"$out\" && echo ok; fi; done",
        log.display()
    );
    let told = spool.drive(&["-j", "2", "--keep"], &["sh", "-c", &script]);
    told.says("40 documents done").says("set aside bad after 1 try: no good").says("a tab or a newline").ended(1);
    let starts = lines_of(&log).len();
    assert!((1..=2).contains(&starts), "{starts} starts");
    let outputs = spool.outputs();
    assert_eq!(outputs.len(), 41);
    assert_eq!(outputs[&name(b"doc7.ready")], b"text 7");
    spool.is_clean();
}

/// A model that loads for two seconds, and a millisecond for each document; it rings at every thousandth.
const SLOW_START: &str = "\
import sys, time
time.sleep(2)
with open(sys.argv[1], 'a') as log:
    log.write('loaded\\n')
for line in sys.stdin:
    source, target = line.rstrip('\\n').split('\\t')
    time.sleep(0.001)
    with open(source) as text, open(target, 'w') as made:
        body = text.read()
        made.write(body.upper())
    if body == 'text 0' or body.endswith('000'):
        with open(sys.argv[2], 'w') as bell:
            bell.write(body + '\\n')
    print('ok', flush=True)
";

#[test]
fn a_command_that_takes_two_seconds_to_start_is_paid_for_once_by_each_driver() {
    const DOCUMENTS: usize = 10_000;
    // In memory, because what is shown has nothing to do with a disk.
    let spool = Spool::at("memory");
    let _memory = Mount::tmpfs(spool.input.parent().unwrap(), 128);
    std::fs::create_dir(&spool.input).unwrap();
    spool.put_many(DOCUMENTS);
    spool.close();
    let (log, mut bell) = (spool.rig.path("log"), spool.rig.bell("bell"));
    let command = ["python3", "-c", SLOW_START, log.to_str().unwrap(), &bell.path];
    let driver = spool.start(&["--keep", "-j", "2"], &command);
    (0..DOCUMENTS / 1000).for_each(|_| drop(bell.next()));
    driver.end().says("10,000 documents done").fine();
    assert_eq!(lines_of(&log), ["loaded"; 2], "once for each driver");
    let outputs = spool.outputs();
    assert_eq!(outputs.len(), DOCUMENTS + 1);
    let whole = |n: usize| outputs[&name(format!("doc{n}.ready").as_bytes())] == format!("TEXT {n}").as_bytes();
    assert!((0..DOCUMENTS).all(whole));
    spool.is_clean();
}

#[test]
fn a_full_output_holds_the_drivers_until_something_is_taken() {
    let spool = Spool::new();
    spool.put_many(4);
    spool.close();
    let mut bell = spool.rig.bell("bell");
    let script = format!("cp \"$1\" \"$2\"; echo made > {}", bell.path);
    let driver = spool.start(&["--limit", "2", "-j", "1"], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    bell.next();
    bell.next();
    for taken in 0..2 {
        // Whatever is taken makes room for one.
        let first = loop {
            let ready = spool.outputs().into_keys().find(|name| name.to_str().unwrap().ends_with(".ready"));
            if let Some(first) = ready.filter(|_| waiting(&spool) >= 2) {
                break first;
            }
            std::thread::yield_now();
        };
        assert_eq!(waiting(&spool), 2, "after {taken}");
        std::fs::rename(spool.output.join(&first), spool.rig.path("taken")).unwrap();
        bell.next();
    }
    driver.end().says("4 documents done").fine();
}

fn waiting(spool: &Spool) -> usize {
    spool.outputs().into_keys().filter(|name| name != "done").count()
}

#[test]
fn a_sink_has_no_output_and_a_success_without_output_is_a_failure() {
    let spool = Spool::new();
    spool.put_many(3);
    spool.close();
    let sunk = spool.rig.path("sunk");
    let script = format!("cat \"$1\" >> {}", sunk.display());
    let words = ["drive", "--in", spool.input.to_str().unwrap(), "--", "sh", "-c", &script, "sh", "{in}"];
    spool.rig.call(&words).says("3 documents done").fine();
    assert_eq!(std::fs::read_to_string(&sunk).unwrap().matches("text").count(), 3);
    spool.put("again", "x");
    spool.drive(&["--tries", "1"], &["true", "{in}", "{out}"]).says("it succeeded and left no output").ended(1);
}

#[test]
fn a_command_that_changes_its_input_gets_no_more_tries_by_that() {
    for dies in [false, true] {
        let spool = Spool::new();
        spool.put("bad", "body");
        let (mut bell, log) = (spool.rig.bell("bell"), spool.rig.path("log").display().to_string());
        let dying = format!("echo more >> \"$1\"; echo >> {log}; echo begun > {}; sleep 1000", bell.path);
        for _ in 0..if dies { 2 } else { 0 } {
            let driver = spool.start(&["--tries", "3"], &["sh", "-c", &dying, "sh", "{in}", "{out}"]);
            bell.next();
            driver.kill();
        }
        spool.close();
        // One that begins anew each time would be tried for ever.
        let script = format!("echo more >> \"$1\"; echo >> {log}; [ $(wc -l < {log}) -lt 9 ] || exit 65; exit 1");
        let told = spool.drive(&["--tries", "3"], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
        told.says("set aside bad after 3 tries").ended(1);
        assert_eq!(lines_of(spool.rig.path("log").as_path()).len(), 3, "dies: {dies}");
        spool.is_clean();
    }
}

#[test]
fn a_document_that_finds_its_name_taken_when_it_goes_back_is_kept_and_told_of() {
    let spool = Spool::new();
    spool.put("x", "first");
    let (mut bell, mut gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
    let script = format!(
        "[ $(cat \"$1\") = first ] || exec cp \"$1\" \"$2\"; echo begun > {}; read x < {}; exit 1",
        bell.path, gate.path
    );
    let driver = spool.start(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    bell.next();
    std::fs::write(spool.input.join("x.failed"), "second").unwrap();
    spool.close();
    gate.open(1);
    let told = driver.end();
    told.says("set aside x: another document of its name has come to the queue meanwhile").says("1 set aside").ended(1);
    assert_eq!(spool.aside()[&name(b"x.failed")], b"first");
    assert_eq!(spool.outputs()[&name(b"x.ready")], b"second");
    spool.is_clean();
}

#[test]
fn a_driver_whose_lease_was_taken_hands_nothing_on_and_ends() {
    let spool = Spool::new();
    spool.put("a", "body");
    let (mut bell, mut gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
    let script = format!("cp \"$1\" \"$2\"; echo begun > {}; read x < {}", bell.path, gate.path);
    let driver = spool.start(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    bell.next();
    // As one elsewhere does who saw no sign of life for too long.
    let leases: Vec<_> = listing(&spool.input.join(".windlass/drivers")).into_keys().collect();
    let [number] = &leases[..] else { panic!("{leases:?}") };
    let working = spool.input.join(format!("a.{}.working", number.to_str().unwrap()));
    std::fs::rename(working, spool.input.join("a.failed")).unwrap();
    std::fs::remove_file(spool.input.join(".windlass/drivers").join(number)).unwrap();
    gate.open(1);
    driver.end().says("a was taken from us: its lease had run out").ended(74);
    assert_eq!(spool.outputs().len(), 0, "nothing is handed on, and nothing half is left");
    spool.close();
    spool.drive(&[], &["cp", "{in}", "{out}"]).says("1 document done").fine();
    assert_eq!(spool.outputs()[&name(b"a.ready")], b"body");
    spool.is_clean();
}

#[test]
fn what_a_command_moved_or_made_of_its_input_survives_the_death_of_its_driver() {
    // Moved to where the output is written, and nothing else; or removed when the output was written.
    for (step, keeps) in [("mv \"$1\" \"$2\"", "in"), ("cp \"$1\" \"$2\"; rm \"$1\"", "out")] {
        let spool = Spool::new();
        spool.put("a", "body");
        let mut bell = spool.rig.bell("bell");
        let script = format!("{step}; echo moved > {}; sleep 1000", bell.path);
        let driver = spool.start(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
        bell.next();
        driver.kill();
        spool.close();
        let told = spool.drive(&[], &["cp", "{in}", "{out}"]);
        let mut outputs = spool.outputs();
        match keeps {
            "in" => assert_eq!(outputs[&name(b"a.ready")], b"body", "{told:?}"),
            _ => assert_eq!(listing(&spool.output.join("failed"))[&name(b"a.failed")], b"body", "{told:?}"),
        }
        outputs.retain(|file, _| ![name(b"a.ready"), name(b"done"), name(b"failed")].contains(file));
        assert!(outputs.is_empty(), "{keeps}: the next stage would wait for ever: {outputs:?}");
    }
}
