//! Tries are counted across the hands of others, and what was not tried is not.

use crate::rig::{Bell, Gate, Process, lines_of};
use crate::spool::{Spool, listing, name};
use crate::tracer::{Act, Plan, Traced, Which};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

struct Tried {
    spool: Spool,
    bell: Bell,
    gate: Gate,
}

impl Tried {
    fn new() -> Tried {
        let spool = Spool::new();
        spool.put("a", "body");
        let (bell, gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
        Tried { spool, bell, gate }
    }

    /// A driver that rings, waits at the gate, and fails.
    fn start(&mut self) -> Process {
        let script =
            format!("echo >> {}; echo begun > {}; read x < {}; exit 1", self.log(), self.bell.path, self.gate.path);
        let driver = self.spool.start(&["--tries", "3"], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
        self.bell.next();
        driver
    }

    fn log(&self) -> String {
        self.spool.rig.path("log").display().to_string()
    }

    /// One try that fails, and the end.
    fn fail_once(&mut self) {
        let driver = self.start();
        driver.signal(Signal::TERM);
        self.gate.open(1);
        driver.end().says("1 try failed").fine();
    }

    fn used(&self) -> u64 {
        let text = std::fs::read(self.spool.input.join(".windlass/tries/a")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["used"].as_u64().unwrap()
    }

    /// As a program that knows only `mv` tries it, so that the clock of the file system tells it.
    fn fail_elsewhere(&self) {
        let (waits, works) = (self.spool.input.join("a.failed"), self.spool.input.join("a.7.working"));
        let changed = |path: &Path| std::fs::metadata(path).map(|meta| (meta.ctime(), meta.ctime_nsec())).unwrap();
        let before = changed(&waits);
        while changed(&waits) == before {
            std::fs::rename(&waits, &works).unwrap();
            std::fs::rename(&works, &waits).unwrap();
        }
    }
}

#[test]
fn a_try_of_others_between_two_of_ours_is_counted() {
    for (tries, ours, sentence) in
        [("3", 2, "set aside a after 3 tries"), ("2", 1, "set aside a: it had used up its tries when it was found")]
    {
        let mut tried = Tried::new();
        tried.fail_once();
        assert_eq!(tried.used(), 1);
        tried.fail_elsewhere();
        tried.spool.close();
        let script = format!("echo >> {}; exit 1", tried.log());
        let told = tried.spool.drive(&["--tries", tries], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
        told.says(sentence).ended(1);
        assert_eq!(lines_of(Path::new(&tried.log())).len(), ours, "{tries}");
        assert_eq!(tried.spool.aside()[&name(b"a.failed")], b"body");
        tried.spool.is_clean();
    }
}

#[test]
fn what_ours_put_back_and_have_again_is_counted_by_its_own_tries_alone() {
    let mut tried = Tried::new();
    tried.fail_once();
    // Told twice it goes back as it was; killed it has used a try, whoever takes over.
    let mut driver = tried.start();
    driver.signal(Signal::TERM);
    driver.until("once more gives it back now");
    driver.signal(Signal::TERM);
    driver.end();
    assert_eq!(tried.used(), 1);
    tried.fail_once();
    assert_eq!(tried.used(), 2);
    tried.spool.close();
    let told = tried.spool.drive(&["--tries", "3"], &["cp", "{in}", "{out}"]);
    told.says("1 document done").fine();
    assert_eq!(lines_of(Path::new(&tried.log())).len(), 3);
}

#[test]
fn whoever_has_its_files_for_a_time_elsewhere_still_ends_what_a_dead_driver_left() {
    let spool = Spool::new();
    spool.put("a", "body");
    let (theirs, mut bell) = (spool.rig.path("theirs"), spool.rig.bell("bell"));
    std::fs::create_dir(&theirs).unwrap();
    let script = format!("echo begun > {}; sleep 1000000", bell.path);
    let words = spool.words(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    let mut command = spool.rig.windlass(&words);
    let driver = Process::start(command.env("TMPDIR", &theirs).stdin(std::process::Stdio::null()));
    bell.next();
    driver.kill();
    assert_eq!(std::fs::read_dir(&theirs).unwrap().count(), 1);
    spool.close();
    spool.drive(&[], &["cp", "{in}", "{out}"]).says("took over from dead drivers: 1").fine();
    assert_eq!(std::fs::read_dir(&theirs).unwrap().count(), 0, "its launchers were proven dead");
}

#[test]
fn where_no_lock_tells_a_driver_elsewhere_lives_by_its_renewed_lease_alone() {
    let spool = Spool::new();
    spool.put("a", "body");
    let (mut bell, gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
    let script = format!("echo begun > {}; read x < {}; cp \"$1\" \"$2\"", bell.path, gate.path);
    let words = spool.words(&["--lease", "5s"], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    // The file system has no locks for it.
    let act = Act::Fail { errno: libc::ENOLCK, from_then_on: false };
    let plan = Plan { which: Which::Call(libc::SYS_flock), nth: 1, act };
    let driver = Traced::start(spool.rig.windlass(&words), plan);
    bell.next();
    let place = spool.input.join(".windlass/drivers");
    let lease = place.join(listing(&place).into_keys().next().unwrap());
    // It is of another machine.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = String::from_utf8(std::fs::read(&lease).unwrap()).unwrap();
    let at = text.find(boot.trim()).unwrap() as u64;
    let elsewhere = "0".repeat(boot.trim().len());
    std::fs::File::options().write(true).open(&lease).unwrap().write_all_at(elsewhere.as_bytes(), at).unwrap();
    let once = ["watchdog", spool.input.to_str().unwrap(), "--once", "--json"];
    let given_back = || spool.rig.call(&once).json()["again"].as_u64().unwrap();
    // For longer than its lease it is left alone, since it gives signs of life.
    let mut signs = BTreeSet::new();
    while signs.len() < 6 {
        assert_eq!(given_back(), 0, "after {} signs of life", signs.len());
        signs.insert(std::fs::metadata(&lease).unwrap().modified().unwrap());
    }
    drop(driver);
    while given_back() == 0 {}
    assert_eq!(spool.inputs()[&name(b"a.failed")], b"body");
}

#[test]
fn what_failed_waits_no_longer_than_for_those_who_came_before_however_many_come() {
    let spool = Spool::new();
    spool.put("bad", "body");
    (0..5).for_each(|n| spool.put(format!("x{n}"), "body"));
    let log = spool.rig.path("log");
    // Each brings another one, until the one that failed has had its second try.
    let script = format!(
        "n=$(cat {0} 2> /dev/null | wc -l); basename $1 >> {0}; cp $1 $2; \
         case $1 in */bad.*) [ $3 = 1 ] || {{ : > {1}/done; exit 0; }};; esac; \
         test -e {1}/done || {{ cp $1 {1}/new$n; mv {1}/new$n {1}/y$n.ready; }}; \
         case $1 in */bad.*) exit 1;; esac",
        log.display(),
        spool.input.display()
    );
    let told = spool.drive(&[], &["sh", "-c", &script, "sh", "{in}", "{out}", "{attempt}"]);
    told.says("1 try failed").fine();
    let begun = lines_of(&log);
    let tries: Vec<usize> = (0..begun.len()).filter(|at| begun[*at].starts_with("bad.")).collect();
    assert!(tries.len() == 2 && tries[1] - tries[0] <= 7, "{begun:?}");
}

#[test]
fn told_to_end_a_kept_command_finishes_its_document_and_leaves_no_done() {
    let spool = Spool::new();
    ["a", "b"].iter().for_each(|doc| spool.put_later(doc, doc));
    spool.close();
    let (mut bell, mut gate) = (spool.rig.bell("bell"), spool.rig.gate("gate"));
    let script = format!(
        "while IFS='\t' read -r in out; do echo begun > {}; read x < {}; cp \"$in\" \"$out\"; echo ok; done",
        bell.path, gate.path
    );
    let mut driver = spool.start(&["--keep"], &["sh", "-c", &script]);
    bell.next();
    driver.signal(Signal::TERM);
    driver.until("finishing what is under way");
    gate.open(1);
    driver.end().says("is left: 1 document done").fine();
    assert_eq!(spool.outputs().into_keys().collect::<Vec<_>>(), [name(b"a.ready")]);
    assert_eq!(spool.inputs()[&name(b"b.ready")], b"b");
    spool.is_left_by_all();
}

#[test]
fn twenty_processes_and_one_document_make_one_output() {
    let spool = Spool::new();
    let log = spool.rig.path("log");
    let script = format!("echo $$ >> {}; cp \"$1\" \"$2\"", log.display());
    let start = || spool.start(&[], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
    let drivers: Vec<Process> = (0..20).map(|_| start()).collect();
    // All of them are there before it comes.
    while listing(&spool.input.join(".windlass/drivers")).len() < 20 {
        std::thread::yield_now();
    }
    spool.put("one", "text");
    spool.close();
    let done = drivers.into_iter().map(|driver| driver.end()).filter(|told| told.stderr.contains("1 document done"));
    assert_eq!(done.count(), 1);
    assert_eq!(lines_of(&log).len(), 1);
    assert_eq!(spool.outputs()[&name(b"one.ready")], b"text");
}
