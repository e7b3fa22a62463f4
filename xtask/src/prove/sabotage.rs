//! `cargo xtask prove sabotage [NAME…]`: breaks one promise after the other and expects its check to notice.
//!
//! The tests are built once with the planted bugs; each check runs first as it is, and must pass, then with its
//! sabotage switched on, and must fail. A check that never ends counts as noticed, but says so. What a check leaves
//! running is killed: some sabotages are about just that. This file must not know what a sabotage does.

use crate::steps::{cargo, root};
use rustix::process::{Pid, Signal, WaitOptions};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use windlass::sabotage::{Check, PLANTS, Plant, VARIABLE};

/// No check takes so long, not even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);

/// How a run of a check ended.
struct Ran {
    /// The check passed, failed, or did neither in time.
    passed: Option<bool>,
    /// The first sentence of what it said about that.
    said: String,
    took: Duration,
}

/// The test programs, by the name of their target, and what they are told of the databases.
struct Built<'a> {
    programs: HashMap<String, PathBuf>,
    told: &'a [(&'a str, String)],
    /// Children that this process had before, and that are no check's.
    spared: Vec<Pid>,
}

/// Whether the checks are seen to pass before anything is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    Seen,
    /// The same tests have just passed without the planted bugs; what they say about one is not of interest then.
    Known,
}

/// Proves that every sabotage, or every named one, is noticed; returns the figure.
pub(crate) fn prove(names: &[&str], whole: Whole, told: &[(&str, String)]) -> Result<String, String> {
    let chosen = choose(names)?;
    let built = Built { programs: build()?, told, spared: children() };
    adopt_orphans()?;
    let began = Instant::now();
    let mut clean: HashMap<String, Ran> = HashMap::new();
    let mut faults = Vec::new();
    for plant in &chosen {
        let check = words(plant.caught_by);
        if let (Entry::Vacant(new), Whole::Seen) = (clean.entry(check.clone()), whole) {
            new.insert(built.run(plant.caught_by, None)?);
        }
        if let Some(ran) = clean.get(&check).filter(|ran| ran.passed != Some(true)) {
            faults.push(format!("{}: {check} fails while nothing is broken: {}", plant.name, ran.said));
            continue;
        }
        let ran = built.run(plant.caught_by, Some(plant))?;
        let seconds = ran.took.as_secs_f64();
        match ran.passed {
            Some(true) => faults.push(format!("{}: {check} does not notice it", plant.name)),
            Some(false) if whole == Whole::Known => println!("{} caught, {seconds:.1} s", plant.name),
            Some(false) => println!("{:<26} caught by {check}, {seconds:.1} s: {}", plant.name, ran.said),
            None => println!("{:<26} caught by the deadline of {check}, {seconds:.1} s", plant.name),
        }
    }
    if !faults.is_empty() {
        return Err(format!("{} of {} sabotages\n{}", faults.len(), chosen.len(), faults.join("\n")));
    }
    let clean: f64 = clean.values().map(|ran| ran.took.as_secs_f64()).sum();
    let seconds = began.elapsed().as_secs_f64();
    Ok(format!("{0} of {0} sabotages caught, {seconds:.0} s, of which {clean:.0} s with nothing broken", chosen.len()))
}

/// Holds that a program which is given to people was not built with the planted bugs.
pub(crate) fn absent_from(program: &Path) -> Result<(), String> {
    let bytes = std::fs::read(program).map_err(|e| format!("cannot read {}: {e}", program.display()))?;
    let holds = |name: &str| bytes.windows(name.len()).any(|part| part == name.as_bytes());
    match PLANTS.iter().map(|plant| plant.name).chain([VARIABLE]).find(|name| holds(name)) {
        Some(name) => Err(format!("{} holds the planted bug {name}", program.display())),
        None => Ok(()),
    }
}

fn choose(names: &[&str]) -> Result<Vec<&'static Plant>, String> {
    if names.is_empty() {
        return Ok(PLANTS.iter().collect());
    }
    let find = |name: &&str| PLANTS.iter().find(|plant| plant.name == *name).ok_or(format!("no sabotage {name}"));
    names.iter().map(find).collect()
}

fn words(check: Check) -> String {
    match check {
        Check::Test { of, name } => format!("{of} {name}"),
        Check::Sim { seeds } => format!("sim --seeds {seeds}"),
    }
}

/// Builds everything with the feature; the same commands as the tests', so little is built anew.
fn build() -> Result<HashMap<String, PathBuf>, String> {
    let features = ["-p", "windlass", "-p", "windlass-sim", "--features", "windlass/sabotage,windlass-sim/sabotage"];
    let mut built = HashMap::new();
    for (what, more) in [("test", "--no-run"), ("build", "--bins")] {
        let mut command = cargo(&[what]);
        command.args(features).args([more, "--message-format=json"]);
        eprintln!("── sabotage: {command:?}");
        let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cannot run cargo: {e}"))?;
        if !output.status.success() {
            return Err(format!("the build with planted bugs failed: {}", output.status));
        }
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some(path) = field(line, "executable").map(PathBuf::from) else { continue };
            let of = match (field(line, "src_path"), line.contains("\"kind\":[\"lib\"]")) {
                (Some(source), true) if source.ends_with("windlass/src/lib.rs") => "lib".to_owned(),
                _ => field(&line[line.find("\"target\"").unwrap_or(0)..], "name").unwrap_or_default(),
            };
            // The simulator is run as the program that it is.
            if what == "test" || of == "windlass-sim" {
                built.insert(of, path);
            }
        }
    }
    Ok(built)
}

/// The text of a field in a line of JSON that cargo wrote; paths here hold nothing that is escaped.
pub(super) fn field(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
    rest.split_once('"').map(|(text, _)| text.to_owned())
}

impl Built<'_> {
    fn run(&self, check: Check, broken: Option<&Plant>) -> Result<Ran, String> {
        let target = match check {
            Check::Test { of, .. } => of,
            Check::Sim { .. } => "windlass-sim",
        };
        let program = self.programs.get(target).ok_or_else(|| format!("no test binary {target} was built"))?;
        let mut command = Command::new(program);
        match check {
            Check::Test { name, .. } => command.args(["--exact", name, "--test-threads=1"]),
            Check::Sim { seeds } => command.args(["--seeds", &seeds.to_string()]),
        };
        command.envs(self.told.iter().map(|(name, value)| (name, value)));
        command.env_remove(VARIABLE).envs(broken.map(|plant| (VARIABLE, plant.name)));
        command.current_dir(root().join("crates/windlass")).stdin(Stdio::null()).process_group(0);
        let ran = watch(command, &self.spared)?;
        let one = matches!(check, Check::Sim { .. }) || ran.1.contains("running 1 test");
        if !one {
            return Err(format!("{} is not one test", words(check)));
        }
        Ok(ran.0)
    }
}

/// Runs a command up to the deadline and kills whatever is left of it.
fn watch(mut command: Command, spared: &[Pid]) -> Result<(Ran, String), String> {
    let wrong = |e: std::io::Error| format!("{command:?}: {e}");
    let mut said = tempfile().map_err(wrong)?;
    let began = Instant::now();
    let both = said.try_clone().and_then(|out| Ok((out, said.try_clone()?))).map_err(wrong)?;
    let mut child = command.stdout(both.0).stderr(both.1).spawn().map_err(|e| format!("{command:?}: {e}"))?;
    let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), rustix::process::PidfdFlags::empty());
    let pidfd = pidfd.map_err(|e| format!("cannot watch a check: {e}"))?;
    let patience = rustix::event::Timespec { tv_sec: DEADLINE.as_secs() as _, tv_nsec: 0 };
    let mut ended = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(&patience)));
    let in_time = ready.map_err(|e| format!("cannot wait for a check: {e}"))? > 0;
    let _dead_already = rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL);
    let status = child.wait().map_err(|e| e.to_string())?;
    let took = began.elapsed();
    kill_orphans(spared);
    let mut text = Vec::new();
    said.rewind().and_then(|()| said.read_to_end(&mut text)).map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let passed = in_time.then_some(status.success());
    Ok((Ran { passed, said: sentence(&text), took }, text))
}

/// What a failed check said first: the line behind the place of a panic, or the finding of the simulator.
fn sentence(text: &str) -> String {
    let mut lines = text.lines();
    let found = lines.find(|line| line.contains("panicked at") || line.starts_with("seed "));
    let line = match found {
        Some(line) if line.starts_with("seed ") => line,
        Some(_) => lines.next().unwrap_or_default(),
        None => text.lines().last().unwrap_or_default(),
    };
    line.chars().take(140).collect()
}

fn tempfile() -> std::io::Result<File> {
    let made = rustix::fs::memfd_create("said", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(File::from(made))
}

/// Whatever a check leaves behind becomes a child of this process.
fn adopt_orphans() -> Result<(), String> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|e| format!("no subreaper: {e}"))
}

fn children() -> Vec<Pid> {
    let listed = format!("/proc/self/task/{}/children", rustix::process::getpid().as_raw_nonzero());
    let pids = std::fs::read_to_string(listed).unwrap_or_default();
    pids.split_whitespace().filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw)).collect()
}

/// Kills all children that are left, and theirs, which come here in turn; but for those that were there before.
fn kill_orphans(spared: &[Pid]) {
    loop {
        let left: Vec<Pid> = children().into_iter().filter(|pid| !spared.contains(pid)).collect();
        if left.is_empty() {
            return;
        }
        for pid in left {
            // A child of ours that is not waited for keeps its number: this can hit no stranger.
            let _dead_already = rustix::process::kill_process(pid, Signal::KILL);
            let _gone = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_others_refused() {
        assert_eq!(choose(&[]).map(|all| all.len()), Ok(PLANTS.len()));
        assert_eq!(choose(&["NoFsync"]).map(|one| one[0].name), Ok("NoFsync"));
        assert!(choose(&["NoFsync", "Nothing"]).is_err());
    }

    #[test]
    fn a_failure_is_told_in_its_first_sentence() {
        assert_eq!(sentence("x\nthread 'a' panicked at b.rs:1:\nit broke\nnote: c"), "it broke");
        assert_eq!(sentence("seed 7: a job is lost\nreplay with: d"), "seed 7: a job is lost");
        assert_eq!(sentence("a\nkilled"), "killed");
    }
}
