//! What is planted, vanishes or cannot be written: a clear sentence, nothing lost, nothing outside touched.

use crate::mount::Mount;
use crate::rig::PATIENCE;
use crate::spool::{Spool, name};
use crate::tracer::{Act, Plan, Tally, Traced, Which};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use windlass::spool::queue::{Claimed, Queue};

#[test]
fn what_is_planted_as_a_document_is_set_aside_and_nothing_behind_it_is_touched() {
    let spool = Spool::new();
    let canary = spool.rig.path("canary");
    std::fs::write(&canary, "alive").unwrap();
    symlink(&canary, spool.input.join("link.ready")).unwrap();
    symlink("/nowhere", spool.input.join("broken.failed")).unwrap();
    assert!(Command::new("mkfifo").arg(spool.input.join("pipe.ready")).status().unwrap().success());
    std::fs::create_dir(spool.input.join("dir.ready")).unwrap();
    std::fs::write(spool.input.join("-rf.ready"), "x").unwrap();
    let long = "l".repeat(240);
    std::fs::write(spool.input.join(format!("{long}.ready")), "x").unwrap();
    spool.put("good", "x");
    spool.close();
    let told = spool.drive(&["-j", "2"], &["cp", "{in}", "{out}"]);
    told.says("link.ready: a symbolic link, expected a file")
        .says("broken.failed: a symbolic link")
        .says("pipe.ready: a named pipe, expected a file")
        .says("dir.ready: a directory, expected a file")
        .says("-rf.ready: the name of a document begins with `-`")
        .says("too long for what its file will be called, expected 236 bytes")
        .says("1 document done, 6 set aside")
        .ended(1);
    assert_eq!(std::fs::read_to_string(&canary).unwrap(), "alive");
    assert_eq!(spool.outputs().into_keys().collect::<Vec<_>>(), [name(b"done"), name(b"good.ready")]);
    let aside = spool.aside();
    assert!(aside.contains_key(&name(b"pipe.ready")) && aside.contains_key(&name(b"link.ready")), "{aside:?}");
    assert!(aside.contains_key(&name(b"link.ready.reason")), "{aside:?}");
    spool.is_clean();
}

#[test]
fn an_output_that_is_a_link_is_no_output() {
    let spool = Spool::new();
    spool.put("a", "x");
    spool.close();
    let script = "ln -s /etc/hostname \"$2\"";
    let told = spool.drive(&["--tries", "1"], &["sh", "-c", script, "sh", "{in}", "{out}"]);
    told.says("its output is a symbolic link, expected a file").ended(1);
    assert_eq!(spool.outputs().into_keys().collect::<Vec<_>>(), [name(b"done")]);
}

#[test]
fn a_document_that_vanishes_is_lost_to_another_and_nothing_else() {
    let spool = Spool::new();
    let queue = Queue::open(&spool.input).unwrap();
    assert!(matches!(queue.claim(b"gone.ready", b"1000", "xml").unwrap(), Claimed::Lost));
    assert!(matches!(queue.claim(b"gone.failed", b"1000", "xml").unwrap(), Claimed::Lost));
    assert!(matches!(queue.claim(b"no document", b"1000", "xml").unwrap(), Claimed::Lost));
    // A command may move its input away.
    spool.put("a", "x");
    spool.close();
    let told = spool.drive(&[], &["sh", "-c", "mv \"$1\" \"$2\"", "sh", "{in}", "{out}"]);
    told.says("1 document done").fine();
    assert_eq!(spool.outputs()[&name(b"a.ready")], b"x");
}

#[test]
fn a_directory_that_is_missing_or_read_only_is_refused_in_words() {
    let spool = Spool::new();
    std::fs::remove_dir(&spool.input).unwrap();
    spool.drive(&[], &["cp"]).says("there is no directory").says("mkdir").ended(66);
    let round = spool.input.to_str().unwrap();
    std::fs::create_dir(&spool.input).unwrap();
    let words = ["drive", "--in", round, "--out", round, "--", "cp", "{in}", "{out}"];
    spool.rig.call(&words).says("is both input and output").ended(64);
    std::fs::remove_dir_all(&spool.input).unwrap();
    std::fs::write(&spool.input, "").unwrap();
    spool.drive(&[], &["cp"]).says("is no directory, expected one of documents").ended(66);
    std::fs::remove_file(&spool.input).unwrap();
    let mount = Mount::tmpfs(&spool.input, 1);
    mount.read_only(true);
    spool.drive(&[], &["cp"]).says("cannot use").says("Read-only").ended(77);
    mount.read_only(false);
    spool.put_many(1);
    let output = Mount::tmpfs(&spool.output, 1);
    output.read_only(true);
    spool.close();
    spool.drive(&["--tries", "1"], &["cp"]).says("cannot use").says("Read-only").ended(77);
    assert!(spool.inputs().contains_key(&name(b"doc0.ready")));
}

#[test]
fn an_output_on_another_file_system_is_written_there_and_a_full_one_costs_no_try() {
    let spool = Spool::new();
    let mount = Mount::tmpfs(&spool.output, 1);
    let filled = mount.fill("filled");
    spool.put("small", "x");
    spool.drive(&[], &["cp", "{in}", "{out}"]).says("No space left").ended(74);
    std::fs::remove_file(filled).unwrap();
    let mut driver = spool.start(&["--tries", "1"], &["cp", "{in}", "{out}"]);
    while !spool.outputs().contains_key(&name(b"small.ready")) {
        std::thread::yield_now();
    }
    let filled = mount.fill("filled");
    spool.put("large", &"x".repeat(100_000));
    spool.close();
    driver.until("there is no room left in the output");
    std::fs::remove_file(filled).unwrap();
    driver.end().says("2 documents done").fine();
    assert_eq!(spool.outputs()[&name(b"large.ready")].len(), 100_000);
    spool.is_clean();
}

#[test]
fn a_command_that_is_not_there_or_cannot_start_costs_no_document_anything() {
    let spool = Spool::new();
    spool.put_many(3);
    spool.close();
    spool
        .drive(&[], &["no-such-program"])
        .says("cannot run the command: the program \"no-such-program\" is not in PATH")
        .ended(66);
    let told = spool.drive(&["--keep", "-j", "2"], &["sh", "-c", "echo no model >&2; exit 3"]);
    told.says("cannot serve: its worker ended with exit 3 before it answered a job: no model").ended(78);
    let waiting = spool.inputs().into_keys().filter(|name| name.to_str().unwrap().ends_with(".ready")).count();
    assert_eq!(waiting, 3);
    assert_eq!(spool.aside().len(), 0);
}

/// Drivers whose n-th rename, or all from it on, are not done and answer this; nought says that it was done.
fn drive_where_renames_answer(spool: &Spool, call: libc::c_long, nth: u64, errno: i32, from_then_on: bool) -> Tally {
    let command = spool.rig.windlass(&spool.words(&[], &["cp", "{in}", "{out}"]));
    let act = Act::Fail { errno, from_then_on };
    let tally = Traced::start(command, Plan { which: Which::Call(call), nth, act }).end(PATIENCE);
    tally.unwrap_or_else(|| panic!("call {call}, the {nth}th: hangs"))
}

#[test]
fn a_file_system_without_atomic_rename_is_refused_with_the_reason() {
    for (nth, errno, from_then_on, reason) in [
        (1, libc::EXDEV, true, "renaming over another file: Invalid cross-device link"),
        (1, libc::EPERM, true, "renaming over another file: Operation not permitted"),
        (1, 0, false, "a file that replaced another is not found under its name"),
        (2, 0, false, "two renamed one file, and not exactly one of them won"),
        (2, libc::EIO, true, "two renamed one file, and not exactly one of them won"),
    ] {
        let spool = Spool::new();
        spool.put_many(2);
        spool.close();
        // A directory that nobody of ours has used, and then one that had a file system with renames before.
        for before in ["never used", "used"] {
            let tally = drive_where_renames_answer(&spool, libc::SYS_renameat, nth, errno, from_then_on);
            assert!(tally.hit && tally.end == 73, "{before}: {tally:?}");
            let sentence = format!("/.windlass: its file system has no atomic rename: {reason}");
            assert!(tally.stderr.contains(&sentence), "{before}: {}", tally.stderr);
            assert!(
                tally.stderr.contains("a queue needs a file system whose renames are one step"),
                "{}",
                tally.stderr
            );
            let left: Vec<_> = spool.inputs().into_keys().collect();
            assert_eq!(left, [".windlass", "doc0.ready", "doc1.ready", "done"], "{before}");
            assert!(!spool.output.exists() || spool.outputs().is_empty(), "{before}");
            Queue::open(&spool.input).unwrap();
            let proofs = crate::spool::listing(&spool.input.join(".windlass")).into_keys();
            assert_eq!(proofs.filter(|name| name.to_str().unwrap().starts_with("proof-")).count(), 0, "{before}");
        }
        spool.drive(&[], &["cp", "{in}", "{out}"]).says("2 documents done").fine();
    }
}

#[test]
fn a_file_system_that_cannot_refuse_a_name_that_is_taken_is_asked_first() {
    for errno in [libc::EINVAL, libc::ENOSYS] {
        let spool = Spool::new();
        spool.put_many(3);
        spool.put("another", "text");
        spool.close();
        let tally = drive_where_renames_answer(&spool, libc::SYS_renameat2, 1, errno, true);
        assert!(tally.hit && tally.end == 0, "{tally:?}");
        assert_eq!(spool.outputs().len(), 5);
        spool.is_clean();
        spool.is_left_by_all();
    }
}

#[test]
fn a_queue_without_room_for_the_count_of_tries_loses_and_charges_nothing() {
    let spool = Spool::new();
    let mount = Mount::tmpfs(&spool.input, 1);
    let (mut bell, mut gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
    spool.put("a", "body");
    let script = format!("echo begun > {}; read x < {}; exit 1", bell.path, gate.path);
    let driver = spool.start(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    bell.next();
    let filled = mount.fill("filled");
    gate.open(1);
    driver.end().says("cannot work on").says("No space left").ended(74);
    assert_eq!(spool.inputs()[&name(b"a.ready")], b"body", "as it was");
    spool.drive(&[], &["cp", "{in}", "{out}"]).says("No space left").ended(74);
    std::fs::remove_file(filled).unwrap();
    spool.close();
    spool.drive(&["--tries", "1"], &["cp", "{in}", "{out}"]).says("1 document done").fine();
    assert_eq!(spool.outputs()[&name(b"a.ready")], b"body");
}

#[test]
fn a_disk_that_stops_under_a_driver_ends_it_and_what_it_had_is_done_when_the_disk_is_back() {
    let spool = Spool::at("disk");
    let place = spool.input.parent().unwrap().to_owned();
    let mount = Mount::ext4(&place, 16);
    std::fs::create_dir(&spool.input).unwrap();
    spool.put_many(2);
    spool.close();
    // What a feeder puts in is as durable as the feeder made it.
    rustix::fs::syncfs(std::fs::File::open(&place).unwrap()).unwrap();
    let (mut bell, mut gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
    let script = format!("cp \"$1\" \"$2\"; echo begun > {}; read x < {}", bell.path, gate.path);
    let driver = spool.start(&["-j", "1"], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    bell.next();
    mount.abort();
    gate.open(1);
    driver.end().says("cannot work on").says("Read-only file system").ended(77);
    mount.again();
    spool.drive(&[], &["cp", "{in}", "{out}"]).says("2 documents done").fine();
    let texts: Vec<Vec<u8>> = spool.outputs().into_values().filter(|text| !text.is_empty()).collect();
    assert_eq!(texts, [b"text 0".to_vec(), b"text 1".to_vec()]);
    spool.is_clean();
}

#[test]
fn a_directory_that_is_moved_away_under_its_drivers_ends_them_and_costs_no_document_anything() {
    for input_goes in [true, false] {
        let spool = Spool::new();
        let (mut bell, mut gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
        spool.put("a", "body");
        let script = format!("echo begun > {}; read x < {}; cp \"$1\" \"$2\"", bell.path, gate.path);
        let driver = spool.start(&["--tries", "1"], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
        bell.next();
        let (goes, away) = (if input_goes { &spool.input } else { &spool.output }, spool.rig.path("away"));
        std::fs::rename(goes, &away).unwrap();
        gate.open(1);
        driver.end().says("is not there any more").ended(66);
        std::fs::rename(&away, goes).unwrap();
        assert_eq!((spool.aside().len(), &spool.inputs()[&name(b"a.ready")][..]), (0, &b"body"[..]), "{input_goes}");
        spool.close();
        spool.drive(&["--tries", "1"], &["cp", "{in}", "{out}"]).says("1 document done").fine();
    }
}

#[test]
fn what_one_file_or_note_is_ends_nobody_and_holds_no_other_document_up() {
    let spool = Spool::new();
    let _mount = Mount::ext4(&spool.input, 16);
    let attribute = |how: &str, file: &str| {
        assert!(Command::new("chattr").arg(how).arg(spool.input.join(file)).status().unwrap().success());
    };
    spool.put("stuck", "x");
    attribute("+i", "stuck.ready");
    // Where the tries of documents belong stand a directory and a link.
    Queue::open(&spool.input).unwrap();
    std::fs::create_dir_all(spool.input.join(".windlass/tries/a/inner")).unwrap();
    symlink("/etc/hostname", spool.input.join(".windlass/tries/b")).unwrap();
    std::fs::create_dir(spool.input.join(".windlass/drivers/100001")).unwrap();
    ["a", "b"].iter().for_each(|doc| spool.put(doc, "text"));
    let script = "[ $3 -gt 1 ] || exit 1; cp \"$1\" \"$2\"";
    let mut driver = spool.start(&[], &["sh", "-c", script, "sh", "{in}", "{out}", "{attempt}"]);
    driver.until("stuck stays where it is, and holds up the end: cannot rename it: Operation not permitted");
    // Again and again under one name.
    for _ in 0..4 {
        symlink("/nowhere", spool.input.join("link.ready")).unwrap();
        driver.until("set aside link.ready: a symbolic link");
    }
    while spool.outputs().len() < 2 {
        std::thread::yield_now();
    }
    driver.signal(rustix::process::Signal::TERM);
    driver.end().says("2 documents done, 2 tries failed, 4 set aside").ended(1);
    attribute("-i", "stuck.ready");
    spool.close();
    spool.drive(&["--tries", "3"], &["cp", "{in}", "{out}"]).says("1 document done").fine();
    assert_eq!(spool.outputs().into_keys().filter(|file| file != "done").count(), 3);
}

#[test]
fn a_document_is_read_as_the_file_that_it_was_and_through_no_link() {
    let spool = Spool::new();
    let queue = Queue::open(&spool.input).unwrap();
    let canary = spool.rig.path("canary");
    std::fs::write(&canary, "secret").unwrap();
    for planted in ["file", "large", "link", "pipe", "second name"] {
        spool.put("a", "text");
        let Claimed::Ours(claim) = queue.claim(b"a.ready", b"1000", "xml").unwrap() else { panic!("it is there") };
        let working = spool.input.join("a.1000.working");
        if planted != "file" {
            std::fs::remove_file(&working).unwrap();
        }
        std::fs::set_permissions(&spool.input, PermissionsExt::from_mode(0o777)).unwrap();
        match planted {
            "large" => std::fs::write(&working, "longer").unwrap(),
            "link" => symlink(&canary, &working).unwrap(),
            "pipe" => assert!(Command::new("mkfifo").arg(&working).status().unwrap().success()),
            "second name" => std::fs::hard_link(&canary, &working).unwrap(),
            _ => {}
        }
        let read = queue.read(&claim, 5);
        assert_eq!(read.as_deref().ok(), (planted == "file").then_some(&b"text"[..]), "{planted}: {read:?}");
        std::fs::remove_file(&working).unwrap();
    }
}

#[test]
fn a_file_of_ours_that_others_gave_a_second_name_is_no_document_where_they_can_write() {
    let spool = Spool::new();
    let canary = spool.rig.path("canary");
    std::fs::write(&canary, "alive").unwrap();
    let overwrite = ["sh", "-c", "cp \"$1\" \"$2\"; echo overwritten > \"$1\"", "sh", "{in}", "{out}"];
    std::fs::set_permissions(&spool.input, PermissionsExt::from_mode(0o1777)).unwrap();
    std::fs::hard_link(&canary, spool.input.join("planted.ready")).unwrap();
    spool.close();
    let told = spool.drive(&[], &overwrite);
    told.says("planted.ready: a file with a second name elsewhere, expected one of its own").ended(1);
    assert_eq!(std::fs::read_to_string(&canary).unwrap(), "alive");
    // Where nobody else can write it was this user who gave it.
    std::fs::set_permissions(&spool.input, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::hard_link(&canary, spool.input.join("linked.ready")).unwrap();
    spool.drive(&[], &["cp", "{in}", "{out}"]).says("1 document done").fine();
    assert_eq!(spool.outputs()[&name(b"linked.ready")], b"alive");
}

#[test]
fn an_output_without_room_for_one_more_file_costs_no_try() {
    let spool = Spool::new();
    let _mount = Mount::tmpfs(&spool.output, 1);
    let few = Command::new("mount").args(["-o", "remount,nr_inodes=40"]).arg(&spool.output).status();
    assert!(few.unwrap().success());
    spool.put("first", "x");
    let mut driver = spool.start(&["--tries", "1"], &["cp", "{in}", "{out}"]);
    while !spool.outputs().contains_key(&name(b"first.ready")) {
        std::thread::yield_now();
    }
    let mut filled = 0;
    while std::fs::write(spool.output.join(format!("filled{filled}")), "").is_ok() {
        filled += 1;
    }
    spool.put("second", "x");
    spool.close();
    driver.until("there is no room left in the output");
    (0..filled).for_each(|n| std::fs::remove_file(spool.output.join(format!("filled{n}"))).unwrap());
    driver.end().says("2 documents done").fine();
    spool.is_clean();
}

#[test]
fn drivers_whom_the_kernel_tells_of_nothing_look_by_themselves() {
    let spool = Spool::new();
    spool.put_many(3);
    spool.close();
    let command = spool.rig.windlass(&spool.words(&["--limit", "2"], &["cp", "{in}", "{out}"]));
    let act = Act::Fail { errno: libc::EMFILE, from_then_on: true };
    let traced = Traced::start(command, Plan { which: Which::Call(libc::SYS_inotify_init1), nth: 1, act });
    // The limit holds it, and only a look can tell that there is room again.
    let ready = || spool.outputs().into_keys().filter(|file| file.to_str().unwrap().ends_with(".ready"));
    while ready().count() < 2 {
        std::thread::yield_now();
    }
    ready().for_each(|file| std::fs::remove_file(spool.output.join(file)).unwrap());
    let tally = traced.end(PATIENCE).unwrap();
    assert!(tally.hit && tally.end == 0, "{tally:?}");
    assert!(tally.stderr.contains("the kernel tells of no new documents"), "{}", tally.stderr);
    assert!(tally.stderr.contains("3 documents done"), "{}", tally.stderr);
    spool.is_clean();
}
