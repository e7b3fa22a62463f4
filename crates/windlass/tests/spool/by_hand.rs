//! What people do with a queue, and see of it: put, take, retry, status, graph.

use crate::mount::Mount;
use crate::rig::{PATIENCE, Rig, Told};
use crate::spool::{Listing, Spool, listing, name};
use crate::tracer::{Act, Plan, Traced, Which};
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use windlass::spool::door::Handed;
use windlass::spool::lease::{About, Lease};
use windlass::spool::queue::{Claimed, Queue};
use windlass::spool::take::{TAKEN, Taker};

#[track_caller]
fn call(spool: &Spool, words: &[&dyn AsRef<OsStr>]) -> Told {
    let words: Vec<OsString> = [OsStr::new("spool")]
        .into_iter()
        .chain(words.iter().map(|word| (*word).as_ref()))
        .map(OsString::from)
        .collect();
    spool.rig.call(&words)
}

fn documents(listing: &Listing) -> Vec<OsString> {
    listing.keys().filter(|name| ![".windlass", "failed"].contains(&name.to_string_lossy().as_ref())).cloned().collect()
}

#[test]
fn what_is_put_is_there_whole_under_its_own_name() {
    let spool = Spool::new();
    let files: Vec<PathBuf> =
        [&b"a b.pdf"[..], b"\xff.txt", b"x.failed"].map(|file| spool.rig.path("").join(name(file))).into();
    files.iter().for_each(|file| std::fs::write(file, file.file_name().unwrap().as_encoded_bytes()).unwrap());
    let told = call(&spool, &[&"put", &spool.input, &files[0], &files[1], &files[2]]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert_eq!(told.stdout, b"a b.pdf\n\xff.txt\nx.failed\n");
    let there = spool.inputs();
    assert_eq!(there[&name(b"\xff.txt.ready")], b"\xff.txt");
    let names = [&b"a b.pdf.ready"[..], b"x.failed.ready", b"\xff.txt.ready"].map(name);
    assert_eq!(documents(&there), names);
    let queue = spool.input.to_str().unwrap();
    let told = spool.rig.feed(&["spool", "put", queue, "-", "--name", "fed", "--done", "--json"], "from a pipe");
    assert_eq!(told.json()["put"], 1);
    assert_eq!(spool.inputs()[&name(b"fed.ready")], b"from a pipe");
    call(&spool, &[&"put", &spool.input, &"/etc/hostname"]).says("has a file `done`").ended(75);
    assert!(!spool.inputs().contains_key(&name(b"hostname.ready")));
    call(&spool, &[&"put", &spool.rig.path("new"), &files[0]]).fine();
    assert_eq!(documents(&listing(&spool.rig.path("new"))), ["a b.pdf.ready"]);
}

#[test]
fn what_cannot_be_put_is_refused_in_words_and_nothing_is_put() {
    let spool = Spool::new();
    let good = spool.rig.path("good");
    std::fs::write(&good, "x").unwrap();
    let long = "x".repeat(237);
    for (words, code, sentence) in [
        (&[good.as_os_str(), "-dash".as_ref()][..], 64, "unexpected argument"),
        (&[good.as_os_str(), "--name".as_ref(), "a/b".as_ref()], 65, "has a `/` in it"),
        (&[good.as_os_str(), "--name".as_ref(), long.as_ref()], 65, "too long"),
        (&[good.as_os_str(), "..".as_ref()], 64, "expected a file"),
        (&["-".as_ref()], 64, "standard input has no name"),
        (&[good.as_os_str(), good.as_os_str(), "--name".as_ref(), "x".as_ref()], 64, "--name is for one document"),
        (&[], 64, "required"),
        (&["missing".as_ref()], 66, "there is no file missing"),
        (&[spool.input.as_os_str()], 66, "is a directory"),
    ] {
        let words: Vec<&OsStr> = [OsStr::new("spool"), "put".as_ref(), spool.input.as_os_str()]
            .into_iter()
            .chain(words.iter().copied())
            .collect();
        let told = spool.rig.call(&words);
        assert_eq!(told.code, Some(code), "{words:?}: {}", told.stderr);
        told.says(sentence);
        assert_eq!(documents(&spool.inputs()), [""; 0], "{words:?}");
    }
    call(&spool, &[&"put", &spool.input, &good]).fine();
    std::fs::write(&good, "another").unwrap();
    call(&spool, &[&"put", &spool.input, &good])
        .says("left good: a document of this name waits there already")
        .ended(75);
    assert_eq!(spool.inputs()[&name(b"good.ready")], b"x");
    let half = |name: &OsString| name.to_string_lossy().starts_with("new-");
    assert!(!listing(&spool.input.join(".windlass")).keys().any(half), "nothing half is left");
}

#[test]
fn what_is_taken_is_out_under_its_plain_name_and_only_what_is_ready_is() {
    let spool = Spool::new();
    let to = spool.rig.path("results");
    std::fs::create_dir(&to).unwrap();
    [&b"a"[..], b"b.x", b"\xff", b"c"].iter().for_each(|doc| spool.put(doc, "body"));
    for other in ["d.failed", "e.7.working", "f.7.writing.xml", "done"] {
        std::fs::write(spool.input.join(other), "theirs").unwrap();
    }
    std::os::unix::fs::symlink("/etc/hostname", spool.input.join("link.ready")).unwrap();
    call(&spool, &[&"take", &spool.input, &"c", &"--to", &to]).fine();
    let told = call(&spool, &[&"take", &spool.input, &"--to", &to]);
    told.says("left link: a symbolic link").says("3 documents taken");
    assert_eq!((told.code, &told.stdout[..]), (Some(75), &b"a\nb.x\n\xff\n"[..]), "{}", told.stderr);
    let taken = listing(&to);
    assert_eq!(taken.keys().cloned().collect::<Vec<_>>(), [name(b"a"), name(b"b.x"), name(b"c"), name(b"\xff")]);
    assert!(taken.values().all(|body| body == b"body"));
    assert_eq!(documents(&spool.inputs()), ["d.failed", "done", "e.7.working", "f.7.writing.xml", "link.ready"]);
    call(&spool, &[&"take", &spool.input, &"c", &"--to", &to])
        .says("c is not ready, or somebody else has it")
        .ended(66);
    spool.put("a", "second");
    call(&spool, &[&"take", &spool.input, &"a", &"--to", &to]).says("has a file of this name already").ended(75);
    assert_eq!(spool.inputs()[&name(b"a.ready")], b"second");
    call(&spool, &[&"take", &spool.input, &"--to", &spool.input]).says("is the queue itself").ended(64);
    call(&spool, &[&"take", &spool.input, &"../in/a", &"--to", &to]).says("has a `/` in it").ended(65);
    ["z", "y", "w"].iter().for_each(|doc| spool.put_later(doc, "body"));
    std::fs::remove_file(spool.input.join("a.ready")).unwrap();
    std::fs::remove_file(spool.input.join("link.ready")).unwrap();
    let told = call(&spool, &[&"take", &spool.input, &"-n", &"2", &"--to", &to]);
    assert_eq!(told.fine(), "z\ny\n", "the first come first");
}

#[test]
fn of_many_takers_one_gets_each_document() {
    let spool = Spool::new();
    spool.put_many(50);
    let places: Vec<PathBuf> = (0..8).map(|taker| spool.rig.path(&format!("to{taker}"))).collect();
    let barrier = Barrier::new(places.len());
    std::thread::scope(|scope| {
        for place in &places {
            let (barrier, input) = (&barrier, &spool.input);
            std::fs::create_dir(place).unwrap();
            scope.spawn(move || {
                let mut taker = Taker::new(Queue::open(input).unwrap(), place).unwrap();
                let ready = taker.ready().unwrap();
                barrier.wait();
                for doc in ready {
                    assert!(matches!(taker.take(&doc).unwrap(), Handed::Yes | Handed::NotThere));
                }
                taker.finish().unwrap();
            });
        }
    });
    let mut taken: Vec<(OsString, Vec<u8>)> = places.iter().flat_map(|place| listing(place)).collect();
    taken.sort();
    assert_eq!(taken.len(), 50);
    assert_eq!((taken[0].0.as_os_str(), &taken[0].1[..]), (OsStr::new("doc0"), &b"text 0"[..]));
    assert!(taken.windows(2).all(|two| two[0].0 < two[1].0), "{taken:?}");
    spool.is_clean();
}

#[test]
fn what_is_taken_to_another_file_system_is_copied_and_a_death_over_it_costs_nothing() {
    let spool = Spool::new();
    let to = spool.rig.path("elsewhere");
    let mount = Mount::tmpfs(&to, 1);
    spool.put("a", &"x".repeat(100_000));
    let filled = mount.fill("filled");
    call(&spool, &[&"take", &spool.input, &"--to", &to]).says("cannot copy from").ended(74);
    assert_eq!(documents(&spool.inputs()), ["a.ready"]);
    std::fs::remove_file(filled).unwrap();
    // As one leaves it who is killed between the claim and the end.
    let queue = Queue::open(&spool.input).unwrap();
    let about = About {
        lease: windlass::spool::LEASE,
        output: Some(to.clone()),
        extension: TAKEN.into(),
        hands: PathBuf::new(),
    };
    let lease = Lease::take(&queue.sidecar, &about).unwrap();
    let Claimed::Ours(claim) = queue.claim(b"a.ready", &lease.by(), TAKEN).unwrap() else { panic!("it is there") };
    std::fs::write(to.join(format!("a.{}.writing.{TAKEN}", lease.number)), "half").unwrap();
    drop((claim, lease));
    let told = call(&spool, &[&"take", &spool.input, &"--to", &to]);
    assert_eq!(told.fine(), "a\n");
    let taken = listing(&to);
    assert_eq!(taken.into_iter().map(|(name, body)| (name, body.len())).collect::<Vec<_>>(), [(name(b"a"), 100_000)]);
    spool.is_clean();
}

#[test]
fn what_was_set_aside_is_retried_as_if_it_had_never_been_tried() {
    let spool = Spool::new();
    let fail = &["sh", "-c", "exit 1", "sh", "{in}", "{out}"];
    for body in ["first", "second"] {
        spool.put("bad", body);
        spool.close();
        spool.drive(&[], fail).ended(1);
    }
    call(&spool, &[&"retry", &spool.input]).says("required").ended(64);
    call(&spool, &[&"retry", &spool.input, &"good"]).says("good is not among what was set aside").ended(66);
    assert_eq!(call(&spool, &[&"retry", &spool.input, &"bad"]).fine(), "bad\n");
    assert_eq!(spool.inputs()[&name(b"bad.ready")], b"first");
    // The other of its name has to wait for this one.
    call(&spool, &[&"retry", &spool.input, &"--all"]).says("a document of its name waits in the queue").ended(75);
    let told = spool.drive(&[], fail);
    told.says("set aside bad after 2 tries").ended(1);
    call(&spool, &[&"retry", &spool.input, &"bad"]).fine();
    spool.drive(&[], &["cp", "{in}", "{out}"]).fine();
    assert_eq!(spool.outputs()[&name(b"bad.ready")], b"first");
    call(&spool, &[&"retry", &spool.input, &"--all"]).says("1 document retried").fine();
    assert_eq!(spool.inputs()[&name(b"bad.ready")], b"second", "under the name that it had");
    assert_eq!(spool.aside(), Listing::new());
}

/// Everything about a tree that a look could change.
fn traces(place: &Path) -> Vec<(PathBuf, i64, i64, i64, i64, u64)> {
    let (mut found, mut next) = (Vec::new(), vec![place.to_owned()]);
    while let Some(path) = next.pop() {
        let meta = path.symlink_metadata().unwrap();
        if meta.is_dir() {
            next.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec(), meta.size()));
    }
    found.sort();
    found
}

#[test]
fn status_counts_every_stage_and_changes_nothing() {
    let spool = Spool::new();
    let (work, stage1, stage2) = (spool.rig.path("work"), spool.rig.path("work/1-texts"), spool.rig.path("work/2-out"));
    let empty = spool.rig.path("empty");
    std::fs::create_dir_all(&stage1).unwrap();
    std::fs::create_dir_all(&empty).unwrap();
    let spool = Spool { input: stage1.clone(), output: stage2.clone(), ..spool };
    spool.put_many(5);
    spool.put("bad", "bad");
    let (mut bell, mut gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
    let script = format!(
        "[ \"$(cat \"$1\")\" = bad ] && exit 65; echo begun > {}; read x < {}; cp \"$1\" \"$2\"",
        bell.path, gate.path
    );
    let driver = spool.start(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    bell.next();
    gate.open(2);
    bell.next();
    bell.next();
    std::fs::write(stage1.join("theirs.7.working"), "").unwrap();
    std::fs::write(stage1.join("later.failed"), "").unwrap();
    // The one that cannot be done is not yet come to, or is set aside.
    let aside = || listing(&stage1.join("failed")).len() as u64 / 2;
    let before = (traces(&spool.rig.path("work")), aside());
    let told = call(&spool, &[&"status", &work, &"--json"]).json();
    let stage = &told["stages"][0];
    assert_eq!(stage["stage"], "1-texts");
    assert_eq!(stage["to"], serde_json::json!(["2-out"]));
    let count = |stage: &serde_json::Value, what: &str| stage[what].as_u64().unwrap();
    assert_eq!(count(stage, "waiting"), 4 - before.1, "{stage}");
    assert_eq!((count(stage, "failed"), count(stage, "aside")), (1, before.1), "{stage}");
    assert_eq!((count(stage, "working"), count(stage, "unleased"), count(stage, "drivers")), (2, 1, 1), "{stage}");
    assert_eq!(count(stage, "documents"), 2 + before.1, "{stage}");
    assert!(["work_s", "wait_s", "block_s", "overhead_s"].iter().all(|time| stage[time].as_f64().is_some()), "{stage}");
    assert!(stage["per_hour"].as_f64().unwrap() > 0.0 && stage["left_s"].as_f64().unwrap() > 0.0, "{stage}");
    let last = &told["stages"][1];
    assert_eq!((last["stage"].as_str(), count(last, "waiting"), last["left_s"].as_f64()), (Some("2-out"), 2, None));
    call(&spool, &[&"status", &work, &stage1]).says("1 document is with drivers of other programs").fine();
    call(&spool, &[&"graph", &stage1]).fine();
    call(&spool, &[&"status", &empty]).fine();
    assert_eq!((traces(&spool.rig.path("work")), aside()), before, "whoever looks changes nothing");
    assert_eq!(listing(&empty), Listing::new());
    call(&spool, &[&"status", &spool.rig.path("nowhere")]).says("there is no directory").ended(66);
    driver.signal(Signal::KILL);
    driver.end();
    call(&spool, &[&"status", &stage1]).says("1 driver is dead").fine();
    assert_eq!(listing(&stage1.join(".windlass/drivers")).len(), 1, "and it stays for whoever takes over");
}

#[test]
fn the_graph_has_a_box_for_each_queue_and_an_arrow_for_each_driver() {
    let spool = Spool::new();
    let last = spool.rig.path("last");
    spool.put_many(3);
    spool.close();
    spool.drive(&[], &["cp", "{in}", "{out}"]).fine();
    let second = Spool { input: spool.output.clone(), output: last.clone(), rig: spool.rig };
    let mut bell = second.rig.bell("bell");
    let script = format!("echo begun > {}; sleep 1000", bell.path);
    let driver = second.start(&["-j", "2"], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    bell.next();
    bell.next();
    let first = second.rig.path("in");
    let told = second.rig.call(&["spool", "graph", first.to_str().unwrap()]);
    let lines: Vec<&str> = told.fine().lines().collect();
    assert_eq!(lines[2], "| 0 waiting            |      | 1 waiting            | ---> | 0 waiting            |");
    assert_eq!(lines[3], "| 0 working, 0 drivers |      | 2 working, 2 drivers | ---> | 0 working, 0 drivers |");
    assert_eq!(lines[4], "| 0 set aside, done    |      | 0 set aside, done    |      | 0 set aside          |");
    let svg = second.rig.call(&["spool", "graph", first.to_str().unwrap(), "--svg"]);
    assert_eq!(svg.fine().matches("<rect").count(), 3);
    driver.kill();
}

#[test]
fn a_second_document_of_a_name_that_is_no_text_gets_its_name_back() {
    let spool = Spool::new();
    let fail = &["sh", "-c", "exit 65", "sh", "{in}", "{out}"];
    let long = [&b"\xfe"[..], &b"l".repeat(235)].concat();
    for body in ["first", "second"] {
        spool.put(b"a\xff", body);
        spool.put(&long, body);
        spool.close();
        spool.drive(&[], fail).ended(1);
    }
    std::fs::remove_file(spool.input.join("failed").join(name(b"a\xff.failed"))).unwrap();
    std::fs::remove_file(spool.input.join("failed").join(name(&[&long[..], b".failed"].concat()))).unwrap();
    let told = call(&spool, &[&"retry", &spool.input, &"--all"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    let there = spool.inputs();
    assert_eq!(there[&name(b"a\xff.ready")], b"second");
    assert_eq!(there[&name(&[&long[..], b".ready"].concat())], b"second");
}

#[test]
fn where_no_name_can_be_refused_a_document_is_put_by_a_second_name_of_its_file() {
    let spool = Spool::new();
    let file = spool.rig.path("a");
    std::fs::write(&file, "first").unwrap();
    let put = || {
        let words = ["spool".as_ref(), "put".as_ref(), spool.input.as_os_str(), file.as_os_str()];
        let act = Act::Fail { errno: libc::EINVAL, from_then_on: true };
        let plan = Plan { which: Which::Call(libc::SYS_renameat2), nth: 1, act };
        Traced::start(spool.rig.windlass(&words), plan).end(PATIENCE).unwrap()
    };
    let tally = put();
    assert!(tally.hit && tally.end == 0 && tally.calls.contains_key(&libc::SYS_linkat), "{tally:?}");
    std::fs::write(&file, "second").unwrap();
    let tally = put();
    assert_eq!(tally.end, 75, "{tally:?}");
    let there = spool.input.join("a.ready");
    assert_eq!((std::fs::read(&there).unwrap(), there.metadata().unwrap().nlink()), (b"first".to_vec(), 1));
}

#[test]
fn what_is_put_waits_for_room() {
    let spool = Spool::new();
    let files: Vec<PathBuf> = (0..4).map(|n| spool.rig.path(&format!("f{n}"))).collect();
    files.iter().for_each(|file| std::fs::write(file, "12345678").unwrap());
    for limit in [["--limit", "2"], ["--limit-bytes", "16"]] {
        let words: Vec<&OsStr> = ["spool".as_ref(), "put".as_ref(), spool.input.as_os_str()]
            .into_iter()
            .chain(limit.iter().map(OsStr::new))
            .chain(files.iter().map(|file| file.as_os_str()))
            .collect();
        let put = spool.rig.start(&words, std::process::Stdio::null());
        for taken in 0..4 {
            // Two at most wait at any moment, however long nobody takes one.
            let wanted = if taken < 3 { 2 } else { 1 };
            let first = loop {
                let waiting = documents(&spool.inputs());
                assert!(waiting.len() <= 2, "{limit:?}: {waiting:?}");
                if waiting.len() == wanted {
                    break waiting[0].clone();
                }
                std::thread::yield_now();
            };
            std::fs::remove_file(spool.input.join(first)).unwrap();
        }
        put.end().says("4 documents put").fine();
    }
}

#[test]
fn verbs_of_jobs_say_what_does_their_work_where_the_store_is_directories() {
    let rig = Rig::bare();
    let queues = rig.path("queues");
    let (store, path) = (format!("dir:{}", queues.display()), queues.display());
    let put = format!("windlass spool put {path}/QUEUE FILE…");
    let status = format!("windlass spool status {path}");
    let take = format!("windlass spool take {path}/QUEUE DOC…");
    let drive = format!("windlass drive --in {path}/QUEUE");
    for (words, instead) in [
        (&["push", "q", "x"][..], put.clone()),
        (&["import", "/dev/null"], put.clone()),
        (&["seal", "r-0123456789"], put + " --done"),
        (&["ls"], status.clone()),
        (&["show", "j-0123456789-1"], status.clone()),
        (&["status"], status.clone()),
        (&["stats"], status.clone()),
        (&["why", "q"], status.clone()),
        (&["wait", "--drained"], status.clone()),
        (&["watch"], status.clone()),
        (&["logs", "j-0123456789-1"], status.clone()),
        (&["export"], status.clone()),
        (&["backup", "all.tar"], status),
        (&["top", "--once"], format!("windlass top --spool {path}")),
        (&["retry", "state:failed"], format!("windlass spool retry {path}/QUEUE DOC…")),
        (&["cancel", "state:ready"], take.clone()),
        (&["delete", "state:ready"], take.clone()),
        (&["suspend", "state:ready"], take.clone()),
        (&["resume", "state:suspended"], take.clone()),
        (&["priority", "high", "state:ready"], take.clone()),
        (&["move", "q", "--to", "/nowhere"], take),
        (&["serve"], drive.clone()),
        (&["run", "--", "true"], drive.clone()),
        (&["tick"], drive.clone()),
        (&["work", "q", "--", "true"], drive),
        (&["pause", "q"], "there is no server".into()),
        (&["unpause", "q"], "there is no server".into()),
        (&["scale", "3"], "there is no server".into()),
        (&["stop"], "there is no server".into()),
        (&["nudge"], "there is no server".into()),
        (&["schedule", "ls"], "there is no server".into()),
        (&["servers"], "there is no server".into()),
        (&["migrate"], "there is nothing to migrate".into()),
    ] {
        let told = rig.call(&[&["--store", &store], words].concat());
        told.says(&format!("{path}: directories hold no jobs for windlass {}", words[0])).says(&instead).ended(64);
        assert_eq!((told.stderr.lines().count(), &told.stdout[..]), (2, &b""[..]), "{words:?}: {told:?}");
        assert!(!queues.exists() && !rig.dir().exists(), "{words:?} has made something");
    }
    std::fs::create_dir_all(queues.join("q")).unwrap();
    rig.call(&["--store", &store, "top", "--once", "--spool", queues.to_str().unwrap()]).fine();
}
