//! Many documents: through three stages while their drivers are killed at random, and very many in one directory.
//!
//! `WINDLASS_SPOOL_DOCUMENTS` (150), `WINDLASS_SPOOL_KILLS_MS` (300, the longest time between two deaths) and
//! `WINDLASS_SPOOL_FILES` (5000) are the sizes; `cargo xtask prove spool` sets 100,000, 1000 and a million.

use crate::random::Random;
use crate::rig::{Process, Rig, is_ready};
use crate::spool::listing;
use rustix::process::{PidfdFlags, pidfd_open};
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn size(variable: &str, short: u64) -> u64 {
    std::env::var(variable).map_or(short, |text| text.parse().unwrap())
}

/// One worker before parsing, three that parse, two for the rest, as the seed has them.
const DRIVERS: [&str; 3] = ["1", "3", "2"];
/// Built into the shell, so that a document costs no process.
const STAGE: &str = "while IFS='\t' read -r in out; do IFS= read -r text < \"$in\"; echo \"$text:$0\" > \"$out\"; \
                     echo ok; done";

struct Line {
    rig: Rig,
    running: [Option<Process>; 3],
    seen: HashSet<OsString>,
    doubled: Vec<OsString>,
    altered: Vec<OsString>,
}

impl Line {
    fn queue(&self, number: usize) -> PathBuf {
        self.rig.path(&format!("queue{number}"))
    }

    fn start(&self, stage: usize) -> Process {
        let (input, output) = (self.queue(stage), self.queue(stage + 1));
        let name = stage.to_string();
        let words = [
            &["drive", "--in", input.to_str().unwrap(), "--out", output.to_str().unwrap()][..],
            &["--keep", "--tries", "0", "--limit", "200", "-j", DRIVERS[stage], "--", "sh", "-c", STAGE, &name],
        ];
        self.rig.start(&words.concat(), Stdio::null())
    }

    /// Takes what has come out, as whoever reads there does; it must be whole, and must not have come before.
    fn drain(&mut self) {
        let out = self.queue(3);
        for entry in std::fs::read_dir(&out).into_iter().flatten() {
            let file = entry.unwrap().file_name();
            let text = file.to_str().unwrap();
            let Some(doc) = text.strip_suffix(".ready") else { continue };
            let whole = std::fs::read_to_string(out.join(&file)).unwrap() == format!("{doc}:0:1:2\n");
            std::fs::remove_file(out.join(&file)).unwrap();
            if !whole {
                self.altered.push(file.clone());
            }
            if !self.seen.insert(file.clone()) {
                self.doubled.push(file);
            }
        }
    }

    /// Waits so long, or until a stage has ended; says whether all have.
    fn tend(&mut self, moment: Duration) -> bool {
        let last = (0..3).find(|stage| self.running[*stage].is_some());
        let Some(stage) = last else { return true };
        let process = self.running[stage].as_ref().unwrap();
        let handle = pidfd_open(process.pid(), PidfdFlags::empty()).unwrap();
        if is_ready(&handle, moment) {
            self.running[stage].take().unwrap().end().fine();
        }
        false
    }
}

#[test]
fn documents_through_three_stages_whose_drivers_are_killed_at_random_come_out_once_and_whole() {
    let documents = size("WINDLASS_SPOOL_DOCUMENTS", 150);
    let moment = size("WINDLASS_SPOOL_KILLS_MS", 300);
    let rig = Rig::bare();
    put(&rig.path("queue0"), documents);
    std::fs::write(rig.path("queue0").join("done"), "").unwrap();
    let mut line =
        Line { rig, running: [None, None, None], seen: HashSet::new(), doubled: Vec::new(), altered: Vec::new() };
    for stage in [1, 2, 3] {
        std::fs::create_dir_all(line.queue(stage)).unwrap();
    }
    line.running = [0, 1, 2].map(|stage| Some(line.start(stage)));
    let mut random = Random::new(size("WINDLASS_SPOOL_SEED", 1));
    let (mut kills, begun) = (0, Instant::now());
    while !line.tend(Duration::from_millis(1 + random.below(moment))) {
        line.drain();
        let stage = random.below(3) as usize;
        if let Some(victim) = line.running[stage].take() {
            victim.kill();
            kills += 1;
            line.running[stage] = Some(line.start(stage));
        }
    }
    line.drain();
    let lost = documents - line.seen.len() as u64;
    println!(
        "spool: {documents} documents through 3 stages with 6 drivers in {:.0} s, {kills} kills, lost {lost}, \
         doubled {}, altered {}",
        begun.elapsed().as_secs_f64(),
        line.doubled.len(),
        line.altered.len()
    );
    assert_eq!((lost, &line.doubled, &line.altered), (0, &Vec::new(), &Vec::new()));
    for stage in 0..3 {
        let mut left = listing(&line.queue(stage));
        left.retain(|name, _| name != ".windlass" && name != "done");
        assert!(left.is_empty(), "queue {stage}: {:?}", left.keys());
    }
}

/// Documents whose text is their name, as fast as files can be made.
fn put(queue: &Path, count: u64) {
    std::fs::create_dir_all(queue).unwrap();
    for number in 0..count {
        let hidden = queue.join("being-written");
        std::fs::write(&hidden, format!("d{number}\n")).unwrap();
        std::fs::rename(hidden, queue.join(format!("d{number}.ready"))).unwrap();
    }
}

/// So many are followed after the first.
const AFTER: usize = 500;

/// The document of a file, by its path or its name.
fn document(file: &str) -> &str {
    file.rsplit('/').next().unwrap().split('.').next().unwrap()
}

#[test]
fn very_many_files_in_one_directory_are_begun_at_once_in_bounded_memory() {
    let files = size("WINDLASS_SPOOL_FILES", 5000);
    let rig = Rig::bare();
    let queue = rig.path("queue");
    put(&queue, files);
    // In the order in which they came, and by name where the clock did not tell.
    let came = |file: OsString| {
        let meta = queue.join(&file).symlink_metadata().unwrap();
        ((meta.ctime(), meta.ctime_nsec()), file.into_string().unwrap())
    };
    let mut order: Vec<_> = std::fs::read_dir(&queue).unwrap().map(|entry| came(entry.unwrap().file_name())).collect();
    order.sort_unstable();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("while read -r in; do echo \"$in\" > {}; read -r x < {}; echo ok; done", bell.path, gate.path);
    let begun = Instant::now();
    let driver =
        rig.start(&["drive", "--keep", "--in", queue.to_str().unwrap(), "--", "sh", "-c", &script], Stdio::null());
    let first = bell.next();
    let waited = begun.elapsed();
    // When the whole directory has been read, what is held is at its most.
    let status = || std::fs::read_to_string(format!("/proc/{}/status", driver.pid())).unwrap();
    let memory = || {
        let text = status();
        let line = text.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let of_keeper = |name: &str| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", driver.pid())).unwrap();
        let mut texts = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
        texts.any(|text| text.contains("(spool keeper)") && text.contains(name))
    };
    while !of_keeper(") S ") {
        std::thread::yield_now();
    }
    let memory = memory();
    let after = Instant::now();
    for (_, file) in order.iter().filter(|(_, file)| document(file) != document(&first)).take(AFTER) {
        gate.open(1);
        assert_eq!(document(&bell.next()), document(file), "in order of arrival");
    }
    let rate = AFTER as f64 / after.elapsed().as_secs_f64();
    println!(
        "spool: {files} files waiting, first begun after {:.2} s, memory {memory} KiB, \
         then in order of arrival at {rate:.0} a second",
        waited.as_secs_f64()
    );
    // A look at the whole directory for each would take a second.
    assert!(files < 1_000_000 || rate > 50.0, "{rate} a second");
    assert!(first.contains("/d"), "{first}");
    assert!(memory < 64 << 10, "{memory} KiB");
    assert!(files < 1_000_000 || waited < Duration::from_secs(1), "{waited:?}");
    driver.kill();
}
