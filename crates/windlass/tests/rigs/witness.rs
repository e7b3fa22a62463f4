//! The witness: what was accepted and what was started, noted outside of the data directory.
//!
//! A producer notes an id only after the answer came, and syncs the note. A job notes its id and its data with one
//! append. The data of every job proves itself, so that an altered or merged one is found whoever pushed it. The
//! program under test is never asked.

use crate::rig::{Process, Rig, lines_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use windlass::client::{Client, PushOptions};
use windlass::store::Durability;

/// A producer that nobody kills ends after so many: every job costs a process later.
const PRODUCED_MAX: usize = 30;

/// An answer that somebody got.
#[derive(Clone, Debug)]
pub(crate) struct Accepted {
    pub(crate) id: String,
    data: String,
    pub(crate) durability: String,
    pub(crate) at: i64,
}

/// Microseconds since the epoch.
pub(crate) fn now() -> i64 {
    windlass::clock::now().0
}

/// Where things are noted.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    accepted: PathBuf,
    started: PathBuf,
}

/// What the notes say.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) accepted: usize,
    /// Different jobs that were started.
    pub(crate) jobs: usize,
    /// Accepted and never started.
    pub(crate) lost: Vec<Accepted>,
    /// Data that nobody pushed: torn, merged, or under another's id.
    pub(crate) altered: Vec<String>,
    /// One push that became two jobs: its data, and their ids.
    pub(crate) doubled: Vec<String>,
    /// The jobs that the server calls failed, if it was asked.
    pub(crate) failed: String,
    /// Starts beyond the first.
    pub(crate) repeats: usize,
}

/// How far the notes had come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64, u64);

impl Witness {
    pub(crate) fn new(rig: &Rig) -> Witness {
        let witness = Witness { accepted: rig.path("accepted"), started: rig.path("started") };
        File::create(&witness.accepted).and_then(|_| File::create(&witness.started)).unwrap();
        witness
    }

    /// A job: notes its id and its data, which a `run` gives as an argument and a queue on standard input; then does
    /// `more`.
    pub(crate) fn script(&self, more: &str) -> String {
        format!("d=$2; [ -n \"$d\" ] || read -r d; echo \"$1 $d\" >> {}{more}", self.started.display())
    }

    /// A config whose queue `q` does that.
    pub(crate) fn config(&self, slots: usize, more: &str) -> String {
        let script = self.script(more);
        format!(
            "[limits]\nslots = {slots}\n[server]\ndrain = \"1s\"\n[queue.q]\nattempts = 0\nbackoff = \"10ms\"\n\
             backoff_max = \"100ms\"\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{id}}\"]\n"
        )
    }

    /// After the answer, and not before.
    pub(crate) fn accept(&self, id: &str, data: &str, durability: &str) {
        let mut file = File::options().append(true).open(&self.accepted).unwrap();
        file.write_all(format!("{id} {data} {durability} {}\n", now()).as_bytes()).unwrap();
        file.sync_data().unwrap();
    }

    /// Pushes so many by the command line; true if they were accepted.
    pub(crate) fn push(&self, rig: &Rig, count: usize, durability: &str) -> bool {
        let data: Vec<String> = (0..count).map(|_| fresh()).collect();
        let mut words = vec!["push", "q", "--durability", durability];
        words.extend(data.iter().map(String::as_str));
        let told = rig.call(&words);
        self.note(&data, &String::from_utf8_lossy(&told.stdout), durability);
        told.code == Some(0)
    }

    /// An id that was printed was promised, however the process ended.
    pub(crate) fn note(&self, data: &[String], printed: &str, durability: &str) {
        // What was cut off in the middle of a line is no id.
        for (id, data) in printed.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).zip(data) {
            self.accept(id, data, durability);
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        let length = |path: &Path| path.metadata().unwrap().len();
        Mark(length(&self.accepted), length(&self.started))
    }

    /// Forgets what was noted since.
    pub(crate) fn rewind(&self, mark: Mark) {
        let cut = |path: &Path, length| File::options().write(true).open(path).unwrap().set_len(length).unwrap();
        cut(&self.accepted, mark.0);
        cut(&self.started, mark.1);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.rewind(Mark(0, 0));
    }

    /// Where answers are noted: `ID DATA DURABILITY TIME`, or `-` for an id that is not known.
    pub(crate) fn accepted(&self) -> &Path {
        &self.accepted
    }

    fn answers(&self) -> Vec<Accepted> {
        let read = |line: String| {
            let mut words = line.split(' ').map(str::to_owned);
            let (id, data, durability) = (words.next()?, words.next()?, words.next()?);
            Some(Accepted { id, data, durability, at: words.next()?.parse().ok()? })
        };
        lines_of(&self.accepted).into_iter().filter_map(read).collect()
    }

    pub(crate) fn judge(&self) -> Verdict {
        let mut verdict = Verdict::default();
        let (mut jobs, mut of_data) = (BTreeMap::<String, String>::new(), BTreeMap::<String, BTreeSet<String>>::new());
        for line in lines_of(&self.started) {
            let (id, data) = line.split_once(' ').unwrap_or((&line, ""));
            if !is_whole(data) || jobs.get(id).is_some_and(|before| before != data) {
                verdict.altered.push(line.clone());
            }
            verdict.repeats += usize::from(jobs.insert(id.to_owned(), data.to_owned()).is_some());
            of_data.entry(data.to_owned()).or_default().insert(id.to_owned());
        }
        let told = |(data, ids): (&String, &BTreeSet<String>)| (ids.len() > 1).then(|| format!("{data} {ids:?}"));
        verdict.doubled = of_data.iter().filter_map(told).collect();
        verdict.jobs = jobs.len();
        for answer in self.answers() {
            verdict.accepted += 1;
            match jobs.get(&answer.id) {
                None if answer.id == "-" && of_data.contains_key(&answer.data) => {}
                None => verdict.lost.push(answer),
                Some(data) if *data != answer.data => verdict.altered.push(format!("{} {data}", answer.id)),
                Some(_) => {}
            }
        }
        verdict
    }

    /// Starts a process that pushes with the library until it is killed, the directory fails it, or it has enough.
    pub(crate) fn library_producer(&self, rig: &Rig, durability: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "witness::produces_when_asked", "--nocapture", "--test-threads=1"]);
        command.env("WINDLASS_RIG_PRODUCER", rig.dir()).env("WINDLASS_RIG_DURABILITY", durability);
        command.env("WINDLASS_RIG_ACCEPTED", &self.accepted).stdin(Stdio::null());
        Process::start(&mut command)
    }
}

/// Data that nobody else has, and that proves to be whole. The number of a process would not do for a name: it is given
/// to another one after 32,768 more, which is a minute of this.
pub(crate) fn fresh() -> String {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static PROCESS: LazyLock<u64> = LazyLock::new(|| getrandom::u64().unwrap());
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("{:016x}.{}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed));
    format!("{name}-{:08x}", crc32fast::hash(name.as_bytes()))
}

pub(crate) fn is_whole(data: &str) -> bool {
    let proven = |(name, sum): (&str, &str)| sum == format!("{:08x}", crc32fast::hash(name.as_bytes()));
    data.split_once('-').is_some_and(proven)
}

#[test]
fn data_proves_itself() {
    let (one, other) = (fresh(), fresh());
    assert!(is_whole(&one) && is_whole(&other) && one != other);
    for wrong in ["", "x", &one[1..], &one[..one.len() - 1], &format!("{one}{other}")] {
        assert!(!is_whole(wrong), "{wrong}");
    }
}

/// Found by KILL with 3,000 cycles: two producers with the same number pushed the same data, which looked like one push
/// that became two jobs.
#[test]
fn processes_with_the_same_number_have_data_of_their_own() {
    const CHILD: &str = "WINDLASS_RIG_NAMES";
    if std::env::var_os(CHILD).is_some() {
        println!("named {} {}", std::process::id(), fresh());
        return;
    }
    let told = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap()).env(CHILD, "1");
        let own = "witness::processes_with_the_same_number_have_data_of_their_own";
        let output = command.args(["--exact", own, "--nocapture", "--test-threads=1"]).output().unwrap();
        let (said, wrong) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
        // The harness may have put the name of the test in front of it.
        let mut words = said.split("named ").nth(1).unwrap_or_else(|| panic!("{said}{wrong}")).split_whitespace();
        assert_eq!(words.next(), Some("1"), "not the first process of its own");
        words.next().unwrap().to_owned()
    };
    assert_ne!(told(), told());
}

/// The other end of `library_producer`: this test binary, started again.
#[test]
fn produces_when_asked() {
    let Some(dir) = std::env::var_os("WINDLASS_RIG_PRODUCER") else { return };
    let accepted = PathBuf::from(std::env::var_os("WINDLASS_RIG_ACCEPTED").unwrap());
    let durability = std::env::var("WINDLASS_RIG_DURABILITY").unwrap();
    let witness = Witness { accepted, started: PathBuf::new() };
    let full = if durability == "os" { Durability::Os } else { Durability::Full };
    let options = PushOptions { durability: full, ..PushOptions::default() };
    let client = Client::open(dir.as_ref()).unwrap();
    for _ in 0..PRODUCED_MAX {
        let data = fresh();
        match client.push("q", data.as_bytes(), options.clone()) {
            Ok(pushed) => witness.accept(&pushed.id.to_string(), &data, &durability),
            // The disk is gone; what this one was told before stands.
            Err(_) => return,
        }
    }
}
