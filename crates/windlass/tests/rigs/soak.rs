//! SOAK: mixed load on the real server for a long time, with one fault a minute, and the slopes of what it uses.
//!
//! Jobs come through the socket, through the inbox and from `windlass run`; servers are killed, drained, stopped for a
//! while, told to reload, robbed of their launchers, and find damage in the inbox. Memory in use, descriptors, threads,
//! the store's pages in use and the number of inbox files are sampled; a slope that is positive beyond its noise is a
//! leak. What is kept on purpose is kept for a minute here, so that the store has all it will ever have when sampling
//! begins. A server that is to be judged lives long enough to have filled its caches: what ends it comes every ten
//! minutes, the other faults every minute.
//!
//! What is free is used again, by the allocator and by the store alike, so what the kernel counts as resident and the
//! store's file creep up to what the worst moment needed. Neither tells a leak from that, and a leak of a few bytes a
//! job would be lost in it. So the server is asked what it has in use (TTIN), what lies free beside it has a bound, and
//! of the store its free pages are taken off. The store's log grows and shrinks by design and has a bound as well.
//! Every accepted job must have run. It takes minutes and is only run when asked for:
//! `cargo xtask prove soak --size MINUTES`.

use crate::chance::{Chance, size};
use crate::rig::{Rig, lines_of};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use windlass::client::{Client, PushOptions};

/// Between two samples.
const PAUSE: Duration = Duration::from_secs(1);
/// A server that has just come up fills its caches (`docs/proof.md` has their bounds); that is no leak.
const WARM_UP: Duration = Duration::from_secs(180);
/// No server is ended before it is so old.
const LIFE: Duration = Duration::from_secs(600);
/// The most that the store's log may ever have.
const LOG_MAX: u64 = 64 << 20;
/// The most resident memory beyond what is in use, files and the program itself not counted: what each thread of the
/// server may keep of what it freed is 1 MiB, and few of them free much.
const FREE_MAX_KIB: f64 = 4096.0;
/// A new store fills up to what it keeps: a minute's worth, looked through once a minute, and once more to be sure.
const FILL_UP: Duration = Duration::from_secs(180);
/// How many standard errors a slope must be above nought to count.
const SURE: f64 = 4.0;

/// What is sampled, in the order of a sample.
const MEASURES: [&str; 5] = ["memory in use KiB", "descriptors", "threads", "store in use KiB", "inbox files"];

/// What each may rise by over the whole time, however long that is: statements and pages of the store that a first
/// fault of its kind brings into the caches (35 KiB were seen), no whole descriptor, thread or file, and one page.
const LEAST: [f64; 5] = [64.0, 0.5, 0.5, 8.0, 0.5];

/// Samples of one life of a server: seconds, values.
type Life = Vec<(f64, [f64; 5])>;

/// What the server says of its memory in its log: the newest line counts.
struct Told {
    log: PathBuf,
    file: Option<File>,
    rest: String,
    used: Option<f64>,
}

impl Told {
    fn of(log: PathBuf) -> Told {
        Told { log, file: None, rest: String::new(), used: None }
    }

    /// KiB in use, as of the last time that it was asked.
    fn used(&mut self) -> Option<f64> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.log).ok()?),
        };
        file.read_to_string(&mut self.rest).unwrap();
        let whole = self.rest.rfind('\n').map_or(0, |end| end + 1);
        for line in self.rest[..whole].lines() {
            let used = line.split_once("msg=\"dump memory\" used=").and_then(|(_, rest)| rest.split(' ').next());
            self.used = used.map(|bytes| bytes.parse::<f64>().unwrap() / 1024.0).or(self.used);
        }
        self.rest.drain(..whole);
        self.used
    }
}

/// KiB of the pages that the store has in use.
fn store_in_use(dir: &Path) -> Option<f64> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let db = rusqlite::Connection::open_with_flags(dir.join("state.db"), flags).ok()?;
    let number = |what: &str| db.query_row(&format!("PRAGMA {what}"), [], |row| row.get::<_, f64>(0)).ok();
    Some((number("page_count")? - number("freelist_count")?) * number("page_size")? / 1024.0)
}

/// What the kernel tells of a process, in KiB or pieces.
fn status(pid: Pid, name: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    status.lines().find(|line| line.starts_with(name))?.split_whitespace().nth(1)?.parse().ok()
}

fn sample(pid: Pid, dir: &Path, used: f64) -> Option<[f64; 5]> {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).ok()?.count() as f64;
    // A file of the inbox grows until it is rotated, by design; what must not happen is that they pile up.
    let inbox = std::fs::read_dir(dir.join("inbox")).ok()?.count() as f64;
    Some([used, descriptors, status(pid, "Threads:")?, store_in_use(dir)?, inbox])
}

/// The slope per hour by least squares, each life with a level of its own, and its standard error.
fn slope(lives: &[Life], measure: usize) -> (f64, f64) {
    let (mut xy, mut xx, mut yy, mut count) = (0.0, 0.0, 0.0, 0.0);
    for life in lives.iter().filter(|life| life.len() > 2) {
        let n = life.len() as f64;
        let (mx, my) = life.iter().fold((0.0, 0.0), |(x, y), (t, v)| (x + t / n, y + v[measure] / n));
        for (time, values) in life {
            let (x, y) = (time - mx, values[measure] - my);
            (xy, xx, yy) = (xy + x * y, xx + x * x, yy + y * y);
        }
        count += n - 1.0;
    }
    if xx == 0.0 || count < 3.0 {
        return (0.0, 0.0);
    }
    let slope = xy / xx;
    let error = ((yy - slope * xy).max(0.0) / (count - 1.0) / xx).sqrt();
    // Neighbouring samples are alike, so there are fewer independent ones than samples.
    (slope * 3600.0, error * 3600.0 * 10f64.sqrt())
}

/// A server whose log goes to a file: a pipe that nobody reads would hold it up.
struct Server(Child);

impl Server {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn end(mut self, signal: Signal) {
        self.signal(signal);
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Most have ended by then; a failing test must not leave one behind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Time is what a soak measures; nothing is waited for here.
fn let_time_pass() {
    let (_kept, never) = std::sync::mpsc::channel::<()>();
    // Nobody sends: it ends with the pause.
    let _ = never.recv_timeout(PAUSE);
}

/// A slope beyond its noise that comes to something over the whole time.
fn grows((slope, error): (f64, f64), hours: f64, measure: usize) -> bool {
    slope > SURE * error && slope * hours > LEAST[measure]
}

struct Soak {
    rig: Rig,
    server: Option<Server>,
    chance: Chance,
    accepted: BTreeSet<String>,
    lives: Vec<Life>,
    since: Instant,
    faults: Vec<&'static str>,
    told: Told,
    /// The largest log of the store that was seen, in bytes.
    log: u64,
    /// The most memory beyond what is in use, in KiB.
    free: f64,
}

impl Soak {
    fn serve(&mut self) {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(self.rig.path("log")).unwrap();
        let mut command = self.rig.windlass(&["serve"]);
        // Each thread keeps a few freed pieces of every size for itself, and the allocator counts them as in use.
        command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("windlass serves unix:"), "{ready}");
        self.server = Some(Server(child));
        self.lives.push(Life::new());
        // The first damage of a life opens the quarantine for good, which is no leak either.
        self.damage();
        self.since = Instant::now();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.server.as_ref().unwrap().0)
    }

    /// One round of load: some jobs through each door.
    fn load(&mut self, client: &Client, round: u64) {
        for n in 0..10 {
            let name = if n == 0 { format!("again-{round}") } else { format!("push-{round}-{n}") };
            client.push("q", name.as_bytes(), PushOptions::default()).unwrap();
            self.accepted.insert(name);
        }
        let path = self.rig.dir().join("inbox").join(rustix::process::geteuid().as_raw().to_string());
        if path.exists() {
            let lines: Vec<String> = (0..10).map(|n| format!("line-{round}-{n}")).collect();
            let text: String = lines.iter().map(|name| format!("\x18\nq\t{name}\n")).collect();
            let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            self.accepted.extend(lines);
        } else {
            let name = format!("inbox-{round}");
            let mut writer = windlass::inbox::InboxWriter::open(&self.rig.dir().join("inbox")).unwrap();
            let queue = windlass_core::job::QueueName::new(b"q").unwrap();
            writer.push(&windlass::inbox::Envelope::new(queue), name.as_bytes()).unwrap();
            self.accepted.insert(name);
        }
        if round.is_multiple_of(10) {
            let told = self.rig.feed(&["run", "-j", "2", "--", "true"], "1\n2\n3\n4\n5\n");
            assert_eq!(told.code, Some(0), "{told:?}");
        }
    }

    fn damage(&self) {
        let path = self.rig.dir().join("inbox").join(format!("noise-{}-{}", self.lives.len(), self.faults.len()));
        std::fs::write(path, b"neither a line nor a record\n\x18\n\0\0\0\n").unwrap();
    }

    /// Looks at what the server uses, and asks it for the next time.
    fn look(&mut self, time: f64, warm: bool) {
        let (pid, dir) = (self.pid(), self.rig.dir());
        let log = std::fs::metadata(dir.join("state.db-wal")).map_or(0, |log| log.len());
        self.log = self.log.max(log);
        let used = self.told.used();
        kill_process(pid, Signal::TTIN).unwrap();
        let (Some(used), Some(own)) = (used.filter(|_| warm), status(pid, "RssAnon:")) else { return };
        self.free = self.free.max(own - used);
        if let Some(values) = sample(pid, &dir, used) {
            self.lives.last_mut().unwrap().push((time, values));
        }
    }

    fn fault(&mut self) {
        let server = self.server.take().unwrap();
        let kinds = ["hup", "stop and go on", "no launcher", "damage", "kill -9", "drain"];
        let kind = match self.since.elapsed() < LIFE {
            true => kinds[self.chance.below(4)],
            false => kinds[4 + self.chance.below(2)],
        };
        self.faults.push(kind);
        match kind {
            "kill -9" => {
                server.end(Signal::KILL);
                self.serve();
                return;
            }
            "drain" => {
                server.end(Signal::TERM);
                self.serve();
                return;
            }
            "hup" => server.signal(Signal::HUP),
            "stop and go on" => {
                server.signal(Signal::STOP);
                let_time_pass();
                server.signal(Signal::CONT);
            }
            "no launcher" => {
                let pid = server.0.id();
                let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
                for child in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
                    // It may have ended by itself.
                    let _ = kill_process(child, Signal::KILL);
                }
            }
            _ => self.damage(),
        }
        self.server = Some(server);
    }
}

#[test]
fn nothing_grows_and_nothing_is_lost() {
    // It has no short form: without a size it is not taken.
    let minutes = size("WINDLASS_SOAK_MINUTES", 0);
    if minutes == 0 {
        return;
    }
    let rig = Rig::new();
    let witness = rig.path("witness");
    // What is called again fails the first time: rows, indexes and retries have to be in the caches from the start.
    let place = witness.parent().unwrap().display();
    let first = format!("mkdir {place}/$1 2> /dev/null && exit 1; rmdir {place}/$1");
    let script = format!("case $1 in again-*) {first};; esac; echo $1 >> {}", witness.display());
    let kept = "[archive]\nkeep_succeeded = \"1m\"\nkeep_failed = \"1m\"\n";
    let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\nattempts = 0\n");
    let config = format!("[limits]\nslots = 4\n{kept}{queue}");
    std::fs::create_dir_all(rig.dir()).unwrap();
    std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
    let (chance, since) = (Chance::new(size("WINDLASS_SOAK_SEED", 1)), Instant::now());
    let (accepted, lives, faults) = (BTreeSet::new(), Vec::new(), Vec::new());
    let told = Told::of(rig.path("log"));
    let mut soak = Soak { rig, server: None, chance, accepted, lives, since, faults, told, log: 0, free: 0.0 };
    soak.serve();
    let client = Client::open(&soak.rig.dir()).unwrap();
    let (begun, mut round, mut next_fault) = (Instant::now(), 0, Duration::from_secs(60));
    while begun.elapsed() < Duration::from_secs(60 * minutes) {
        round += 1;
        soak.load(&client, round);
        // Between two samples time must pass: this is what is measured, not a wait for something.
        let_time_pass();
        let warm = soak.since.elapsed() > WARM_UP && begun.elapsed() > FILL_UP;
        soak.look(begun.elapsed().as_secs_f64(), warm);
        if begun.elapsed() > next_fault {
            next_fault += Duration::from_secs(60);
            soak.fault();
        }
    }
    soak.rig.drained();
    soak.server.take().unwrap().end(Signal::TERM);
    let ran: BTreeSet<String> = lines_of(&witness).into_iter().collect();
    let lost = soak.accepted.difference(&ran).count();
    report(&soak, minutes, lost);
}

fn report(soak: &Soak, minutes: u64, lost: usize) {
    let mut told = Vec::new();
    let mut leaks = Vec::new();
    for (measure, name) in MEASURES.iter().enumerate() {
        let (rise, error) = slope(&soak.lives, measure);
        told.push(format!("{name} {rise:+.1} ± {error:.1} an hour"));
        if grows((rise, error), minutes as f64 / 60.0, measure) {
            leaks.push(*name);
        }
    }
    let samples: usize = soak.lives.iter().map(Vec::len).sum();
    println!(
        "soak: {minutes} minutes, {} jobs accepted, lost {lost}, {} faults, {} lives, \
         {samples} samples, {}, memory not in use at most {:.0} KiB, log at most {} KiB, growing {}",
        soak.accepted.len(),
        soak.faults.len(),
        soak.lives.len(),
        told.join(", "),
        soak.free,
        soak.log >> 10,
        leaks.len()
    );
    assert_eq!(lost, 0);
    assert!(soak.log <= LOG_MAX, "the log had {} bytes", soak.log);
    assert!(soak.free <= FREE_MAX_KIB, "{} KiB were not in use", soak.free);
    assert!(samples > 0 && leaks.is_empty(), "{samples} samples; these grow: {leaks:?}");
}

#[test]
fn a_slope_is_found_and_noise_is_none() {
    let mut chance = Chance::new(3);
    let mut life = |leak: f64| -> Life {
        (0..200)
            .map(|n| (f64::from(n), [1000.0 + leak * f64::from(n) + chance.below(50) as f64, 5.0, 5.0, 5.0, 5.0]))
            .collect()
    };
    let (flat, leaking) = (vec![life(0.0), life(0.0)], vec![life(1.0), life(1.0)]);
    let found = |lives: &[Life], measure| grows(slope(lives, measure), 200.0 / 3600.0, measure);
    assert!(!found(&flat, 0) && !found(&flat, 1));
    assert!(found(&leaking, 0) && !found(&leaking, 1));
}
