//! KILL: real `kill -9` of servers, runs, producers of all kinds, launchers and jobs, at random moments.
//!
//! Whatever was accepted is started, with its own data, and nothing fails. A death repeats at most what the dead one
//! had in flight: the slots of a server, of a `run` or of a launcher and the stock behind them, one start for a job,
//! nothing for a producer. At the end nobody is left.

use crate::chance::size;
use crate::random::Random;
use crate::rig::{Bell, PATIENCE, Process, Rig, Server, is_ready};
use crate::scene::failed;
use crate::witness::{Verdict, Witness, fresh};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use windlass_core::scheduler::STOCK_PER_SLOT_MAX;

const SLOTS: usize = 4;
/// A moment is at most so many milliseconds.
const MOMENT: u64 = 100;

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Server,
    /// A `run` that another server serves.
    Run,
    /// A `run` that serves itself.
    LonelyRun,
    PushOfLines,
    Library,
    Appender,
    Launcher,
    Job,
}

const VICTIMS: [Victim; 8] = [
    Victim::Server,
    Victim::Run,
    Victim::LonelyRun,
    Victim::PushOfLines,
    Victim::Library,
    Victim::Appender,
    Victim::Launcher,
    Victim::Job,
];

struct Slaughter {
    rig: Rig,
    witness: Witness,
    random: Random,
    script: String,
    server: Option<Server>,
    /// How many were killed, by kind, and what their deaths may repeat.
    kills: [usize; VICTIMS.len()],
    bound: usize,
}

#[test]
fn nothing_accepted_is_lost() {
    let cycles = size("WINDLASS_KILL_CYCLES", 50);
    let rig = Rig::new();
    let witness = Witness::new(&rig);
    let mut bell = rig.bell("bell");
    let ring = format!("; echo > {}", bell.path);
    std::fs::create_dir_all(rig.dir()).unwrap();
    std::fs::write(rig.dir().join("windlass.toml"), witness.config(SLOTS, &ring)).unwrap();
    let (script, random) = (witness.script(&ring), Random::new(size("WINDLASS_KILL_SEED", 1)));
    let mut loop_ = Slaughter { rig, witness, random, script, server: None, kills: [0; VICTIMS.len()], bound: 0 };
    for cycle in 0..cycles {
        let durability = if cycle % 2 == 0 { "full" } else { "os" };
        assert!(loop_.witness.push(&loop_.rig, 3, durability), "a push that nobody disturbs");
        loop_.cycle(&mut bell);
    }
    let Slaughter { rig, witness, server, kills, bound, .. } = loop_;
    let server = server.unwrap_or_else(|| rig.serve_again());
    // Suspects wait longer and longer until they are tried again: a deadline would depend on luck.
    let told = wait_drained(&rig, &mut bell);
    let totals = rig.call(&["status", "--json"]).json()["totals"].clone();
    let failed = failed(&rig, &totals);
    server.stop();
    let left = everybody_with(rig.dir().parent().unwrap());
    let verdict = witness.judge();
    println!(
        "kill: cycles {cycles} ({}) accepted {} lost {} altered or merged {} failed {} repeats {} (bound {bound}) \
         processes left {}",
        VICTIMS.iter().zip(kills).map(|(who, n)| format!("{who:?} {n}")).collect::<Vec<_>>().join(", "),
        verdict.accepted,
        verdict.lost.len(),
        verdict.altered.len() + verdict.doubled.len(),
        totals["failed"],
        verdict.repeats,
        left.len(),
    );
    let Verdict { lost, altered, doubled, .. } = &verdict;
    assert!(lost.is_empty() && altered.is_empty() && doubled.is_empty(), "{lost:?} {altered:?} {doubled:?}");
    assert_eq!((told, failed.as_str(), &totals["ready"]), (Some(0), "", &0.into()), "{totals}");
    assert_eq!(totals["succeeded"].as_u64(), Some(verdict.jobs as u64), "{totals}");
    assert!(verdict.repeats <= bound, "{} repeats, at most {bound} were expected", verdict.repeats);
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// A `run` whose jobs are tried again when they are killed.
fn run_of(script: &str) -> [&str; 10] {
    ["run", "-j", "4", "--retry=1000000", "--", "sh", "-c", script, "sh", "{id}"]
}

/// Found with 3,000 cycles: a `run` tries once unless it is told otherwise, so a job of it that was killed had failed.
#[test]
fn a_killed_job_of_a_run_fails_unless_it_is_tried_again() {
    let rig = Rig::new();
    let marker = rig.path("killed");
    let script = format!("mkdir {} 2> /dev/null && kill -9 $$; :", marker.display());
    rig.feed(&["run", "--", "sh", "-c", &script], "x\n").says("killed by signal 9").ended(1);
    std::fs::remove_dir(&marker).unwrap();
    rig.feed(&run_of(&script), "x\n").fine();
    assert!(marker.exists());
}

/// Jobs ring until the end, and a bell that nobody hears would hold them up.
fn wait_drained(rig: &Rig, bell: &mut Bell) -> Option<i32> {
    let waiting = rig.start(&["wait", "--drained"], Stdio::null());
    let handle = pidfd_open(waiting.pid(), PidfdFlags::empty()).unwrap();
    while !is_ready(&handle, Duration::from_millis(200)) {
        hear_all(bell);
    }
    waiting.end().code
}

impl Slaughter {
    fn cycle(&mut self, bell: &mut Bell) {
        let which = self.random.below(VICTIMS.len() as u64) as usize;
        let victim = VICTIMS[which];
        if victim == Victim::LonelyRun {
            self.kill_server();
        } else if self.server.is_none() {
            self.server = Some(self.rig.serve_again());
        }
        let producer = self.witness.library_producer(&self.rig, "full");
        match victim {
            Victim::Server => {
                self.moment(bell);
                self.kill_server();
            }
            Victim::Run | Victim::LonelyRun => {
                let input: String = (0..8).map(|_| format!("{}\n", fresh())).collect();
                let run = self.rig.start_fed(&run_of(&self.script), &input);
                // Half of them get as far as jobs that run.
                if self.random.below(2) == 0 {
                    hear_all(bell);
                    rings_within(bell, PATIENCE);
                }
                self.moment(bell);
                run.kill();
                self.bound += if victim == Victim::LonelyRun { in_flight() } else { 0 };
            }
            Victim::PushOfLines => {
                let mut push = self.rig.start(&["push", "q"], Stdio::piped());
                let lines: String = (0..200).map(|_| format!("{}\n", fresh())).collect();
                // It dies in the middle of its input: what it wrote may run, but nobody was promised it.
                std::io::Write::write_all(&mut push.stdin(), lines.as_bytes()).unwrap();
                self.moment(bell);
                push.kill();
            }
            Victim::Library => {}
            Victim::Appender => {
                let appender = self.appender();
                self.moment(bell);
                appender.kill();
            }
            Victim::Launcher | Victim::Job => {
                self.moment(bell);
                if let Some(pid) = self.child(victim == Victim::Job) {
                    kill(pid);
                    self.bound += if victim == Victim::Job { 1 } else { in_flight() };
                }
            }
        }
        self.kills[which] += 1;
        self.moment(bell);
        producer.kill();
    }

    fn kill_server(&mut self) {
        let Some(server) = self.server.take() else { return };
        server.process.kill();
        self.bound += in_flight();
    }

    /// Lets something happen, for a random time that may be nothing.
    fn moment(&mut self, bell: &mut Bell) {
        let rings = self.random.below(6);
        for _ in 0..rings {
            if !rings_within(bell, Duration::from_millis(self.random.below(MOMENT))) {
                break;
            }
        }
    }

    /// A foreign program that appends lines as the examples do, and notes what it has appended.
    fn appender(&self) -> Process {
        let script = "exec 9>>\"$1\"; a=$2; shift 2; for d; do flock 9; printf '\\030\\nq\\t%s\\n' \"$d\" >&9; \
                      flock -u 9; echo \"- $d os 0\" >> \"$a\"; done";
        let inbox = self.rig.dir().join("inbox").join(rustix::process::geteuid().as_raw().to_string());
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(inbox).arg(self.witness.accepted());
        Process::start(shell.args((0..20).map(|_| fresh())).stdin(Stdio::null()))
    }

    /// The launcher of the server, or one of its jobs.
    fn child(&self, job: bool) -> Option<Pid> {
        let launcher = children(self.server.as_ref()?.process.pid()).next()?;
        if job { children(launcher).next() } else { Some(launcher) }
    }
}

/// Whether a job rings within this time; takes one line.
fn rings_within(bell: &mut Bell, patience: Duration) -> bool {
    let rings = !bell.file.buffer().is_empty() || is_ready(bell.file.get_ref(), patience);
    if rings {
        bell.next();
    }
    rings
}

/// Takes every line that is there.
fn hear_all(bell: &mut Bell) {
    while rings_within(bell, Duration::ZERO) {}
}

/// What a server may have in flight.
fn in_flight() -> usize {
    SLOTS * (1 + STOCK_PER_SLOT_MAX as usize)
}

fn kill(pid: Pid) {
    // It may have ended a moment ago, and then the number may be anybody's: only a descriptor says who is meant.
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if pidfd_send_signal(&handle, Signal::KILL).is_ok() {
        assert!(is_ready(&handle, PATIENCE), "a killed process lives");
    }
}

fn children(of: Pid) -> impl Iterator<Item = Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let listed = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<Pid> = listed
        .flat_map(|list| list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>())
        .collect();
    pids.into_iter()
}

/// Processes that were given something of this place.
fn everybody_with(place: &Path) -> Vec<String> {
    let place = place.to_str().unwrap().as_bytes();
    let is_of = |pid: &String| {
        let told = |what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        let has = |text: Vec<u8>| text.windows(place.len()).any(|part| part == place);
        has(told("cmdline")) || has(told("environ"))
    };
    let names = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.bytes().all(|b| b.is_ascii_digit())).filter(is_of).collect()
}
