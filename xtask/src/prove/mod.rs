//! `cargo xtask prove [NAME…]`: the long proofs at full size. Each ends with one line that is its figure, which goes to
//! `docs/proof.md` with commit and date.
//!
//! A proof that fails leaves the page as it is. This file owns the list of proofs and how each is run; it must not
//! judge anything itself.

pub(crate) mod groups;
mod page;
pub(crate) mod sabotage;

use crate::servers::Servers;
use crate::setup::setup_for_some;
use crate::steps::{cargo, root};
use sabotage::Whole;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const KNOWN: &str = "kill, cut, fail, full, flip, fuzz, sim, end, soak, several, reap, spool, store, groups, \
                     sabotage [NAME…] or --size N";
const SABOTAGE: &str = "sabotage";

/// A proof: what it is called, how large it is, and how to get its command and its figure.
struct Proof {
    name: &'static str,
    /// Its full size: cycles, points, trials, cases, seconds, seeds, answers, minutes, rows or kills.
    size: u64,
    command: fn(&Proof, u64) -> Result<Command, String>,
    /// The part of a line of its output that is a figure.
    figure: fn(&str) -> Option<&str>,
}

const PROOFS: &[Proof] = &[
    Proof { name: "kill", size: 10_000, command: rig, figure: |line| after(line, "kill: ") },
    Proof { name: "cut", size: 10_000, command: rig, figure: |line| after(line, "cut: ").filter(is_summary) },
    // More than there are: every call of the scene, not only those of the hot paths.
    Proof { name: "fail", size: 1_000_000, command: rig, figure: |line| after(line, "fail: ").filter(is_summary) },
    Proof { name: "full", size: 10_000, command: rig, figure: |line| after(line, "full: ").filter(is_summary) },
    Proof { name: "flip", size: 100_000, command: rig, figure: flips },
    Proof { name: "fuzz", size: 8 * 3600, command: rig, figure: |line| after(line, "fuzz: ") },
    Proof { name: "sim", size: 1_000_000, command: sim, figure: |line| line.contains(" seeds, ").then_some(line) },
    Proof { name: "end", size: 10_000_000, command: end, figure: |line| after(line, "end: ") },
    Proof { name: "soak", size: 8 * 60, command: rig, figure: |line| after(line, "soak: ") },
    Proof { name: "several", size: 1_000_000, command: rig, figure: |line| after(line, "several: ") },
    Proof { name: "reap", size: 10_000, command: reap, figure: |line| after(line, "reap: ") },
    Proof { name: "spool", size: 100_000, command: spool, figure: |line| after(line, "spool: ") },
    Proof { name: "store", size: 0, command: store, figure: |line| after(line, "store: ") },
    Proof { name: "groups", size: 120, command: groups, figure: |line| after(line, "groups: ") },
];

/// What sets the size of each rig.
const RIGS: &[(&str, &str)] = &[
    ("kill", "WINDLASS_KILL_CYCLES"),
    ("cut", "WINDLASS_CUT_POINTS"),
    ("fail", "WINDLASS_FAIL_POINTS"),
    ("full", "WINDLASS_FULL_TRIALS"),
    ("flip", "WINDLASS_FLIP_CASES"),
    ("fuzz", "WINDLASS_FUZZ_SECONDS"),
    ("soak", "WINDLASS_SOAK_MINUTES"),
    ("several", "WINDLASS_SEVERAL_ROWS"),
];

pub(crate) fn prove(words: &[&str]) -> Result<(), String> {
    let commit = commit()?;
    setup_for_some();
    let servers = Servers::start()?;
    let told = servers.variables();
    if let [SABOTAGE, names @ ..] = words {
        let figure = sabotage::prove(names, Whole::Seen, told)?;
        eprintln!("── {SABOTAGE}: {figure}");
        // Only all of them are a proof.
        return if names.is_empty() { note(SABOTAGE, &figure, &commit) } else { Ok(()) };
    }
    let (proofs, size) = read(words)?;
    for proof in proofs {
        let figure = run(proof, size.unwrap_or(proof.size), told)?;
        eprintln!("── {}: {figure}", proof.name);
        note(proof.name, &figure, &commit)?;
    }
    if words.is_empty() {
        note(SABOTAGE, &sabotage::prove(&[], Whole::Seen, told)?, &commit)?;
    }
    Ok(())
}

fn note(name: &str, figure: &str, commit: &str) -> Result<(), String> {
    page::note(&root().join("docs/proof.md"), name, figure, commit, &today()?)
}

/// Names and a size out of the arguments; no name means all, no size the full one of each.
fn read(words: &[&str]) -> Result<(Vec<&'static Proof>, Option<u64>), String> {
    let (mut chosen, mut size) = (Vec::new(), None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if *word == "--size" {
            let value = words.next().and_then(|value| value.parse().ok());
            size = Some(value.ok_or("expected a number behind --size")?);
        } else {
            let proof = PROOFS.iter().find(|proof| proof.name == *word);
            chosen.push(proof.ok_or_else(|| format!("expected {KNOWN}, got: {word}"))?);
        }
    }
    if chosen.is_empty() {
        chosen.extend(PROOFS);
    }
    Ok((chosen, size))
}

/// One of the rigs of `crates/windlass/tests/rigs`.
fn rig(proof: &Proof, size: u64) -> Result<Command, String> {
    let variable = RIGS.iter().find(|(name, _)| *name == proof.name).map(|(_, variable)| *variable);
    let variable = variable.ok_or_else(|| format!("nothing sets the size of {}", proof.name))?;
    let mut command = cargo(&["test", "--release", "-p", "windlass", "--test", "rigs"]);
    let tests = format!("{}::", proof.name);
    command.args([&tests, "--", "--nocapture", "--test-threads=1"]).env(variable, size.to_string());
    Ok(command)
}

fn sim(_: &Proof, size: u64) -> Result<Command, String> {
    let mut command = cargo(&["run", "--release", "--quiet", "-p", "windlass-sim", "--", "--twice", "--seeds"]);
    command.arg(size.to_string());
    Ok(command)
}

fn end(_: &Proof, size: u64) -> Result<Command, String> {
    let mut command = cargo(&["run", "--release", "--quiet", "-p", "windlass-sim", "--", "--end"]);
    command.arg(size.to_string());
    Ok(command)
}

/// Ten thousand jobs of every troublesome kind, killed.
fn reap(_: &Proof, size: u64) -> Result<Command, String> {
    let mut command = cargo(&["test", "--release", "-p", "windlass", "--test", "launcher"]);
    command.args(["reap::", "--", "--nocapture", "--test-threads=1"]).env("WINDLASS_REAP_KILLS", size.to_string());
    Ok(command)
}

/// Drivers of directories: killed and cut off before every call, killed at random, a million files in one directory.
fn spool(_: &Proof, size: u64) -> Result<Command, String> {
    let mut command = cargo(&["test", "--release", "-p", "windlass", "--test", "spool"]);
    command.args(["--", "crash::", "scenes::", "large::", "--nocapture", "--test-threads=1"]);
    let sizes = [("STRIDE", 1), ("DOCUMENTS", size), ("KILLS_MS", 1000), ("FILES", 10 * size)];
    command.envs(sizes.map(|(name, value)| (format!("WINDLASS_SPOOL_{name}"), value.to_string())));
    Ok(command)
}

/// Every test binary of the stores' own: the suite, and failure at every call.
fn store(_: &Proof, _: u64) -> Result<Command, String> {
    let mut command = cargo(&["test", "--release", "-p", "windlass"]);
    let folder = root().join("crates/windlass/tests");
    let listed = std::fs::read_dir(&folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
    let mut names: Vec<String> = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    // One that has files of its own is a folder.
    for name in names.iter().map(|name| name.strip_suffix(".rs").unwrap_or(name)) {
        if !name.starts_with("store_") {
            continue;
        }
        command.args(["--test", name]);
    }
    command.args(["--", "--nocapture", "--test-threads=1"]);
    Ok(command)
}

/// Limits in control groups of the kernel's own, in an emulated machine.
fn groups(_: &Proof, size: u64) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut command = Command::new(own);
    command.args([groups::WORD, &size.to_string()]);
    Ok(command)
}

/// The test harness may have put the name of the test in front of the line.
fn after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    let at = line.find(mark).filter(|at| *at == 0 || line[..*at].ends_with("... "))?;
    Some(&line[at + mark.len()..])
}

/// Rigs tell of single points as well; the figures are the line with all of them.
fn is_summary(figure: &&str) -> bool {
    figure.contains(" accepted ")
}

/// FLIP has a line for the inbox and one for the store.
fn flips(line: &str) -> Option<&str> {
    line.find("flip ").map(|at| &line[at + 5..]).filter(|_| line.contains(" cases"))
}

/// Runs a proof, passes on what it says, and returns its figures in one line.
fn run(proof: &Proof, size: u64, told: &[(&str, String)]) -> Result<String, String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", proof.name);
    let mut command = (proof.command)(proof, size)?;
    eprintln!("── {}: {command:?}", proof.name);
    command.envs(told.iter().map(|(name, value)| (name, value)));
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(wrong)?;
    let mut figures = Vec::new();
    if let Some(said) = child.stdout.take() {
        for line in BufReader::new(said).lines() {
            let line = line.map_err(wrong)?;
            println!("{line}");
            figures.extend((proof.figure)(&line).map(|figure| figure.trim().to_owned()));
        }
    }
    let status = child.wait().map_err(wrong)?;
    match (status.success(), figures.is_empty()) {
        (false, _) => Err(format!("{} failed: {status}", proof.name)),
        (true, true) => Err(format!("{} ended without a figure", proof.name)),
        (true, false) => Ok(figures.join("; ")),
    }
}

/// The commit that is proven; what is not in it is said to be.
fn commit() -> Result<String, String> {
    let head = answer("git", &["rev-parse", "--short", "HEAD"])?;
    // The page itself changes with every proof.
    let changed = answer("git", &["status", "--porcelain", "--", ".", ":(exclude)docs/proof.md"])?;
    Ok(if changed.is_empty() { head } else { format!("{head}-dirty") })
}

fn today() -> Result<String, String> {
    answer("date", &["-u", "+%Y-%m-%d"])
}

pub(crate) fn answer(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).current_dir(root()).output();
    let output = output.map_err(|e| format!("cannot run {program}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes() {
        let names = |words: &[&str]| read(words).map(|(proofs, _)| proofs.iter().map(|p| p.name).collect::<Vec<_>>());
        let all =
            "kill cut fail full flip fuzz sim end soak several reap spool store groups".split(' ').collect::<Vec<_>>();
        assert_eq!(names(&[]), Ok(all));
        assert_eq!(names(&["sim", "--size", "5", "kill"]), Ok(vec!["sim", "kill"]));
        assert_eq!(read(&["--size", "7"]).map(|(_, size)| size), Ok(Some(7)));
        assert_eq!(read(&["kill"]).map(|(_, size)| size), Ok(None));
        for wrong in [&["prayer"][..], &["--size"], &["--size", "many"], &["-x"]] {
            assert!(names(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_rig_has_a_size() {
        for proof in PROOFS.iter().filter(|proof| RIGS.iter().any(|(name, _)| *name == proof.name)) {
            assert!(rig(proof, 1).is_ok(), "{}", proof.name);
        }
    }

    /// Cargo takes one name of a test; more of them go to the harness, behind `--`.
    #[test]
    fn cargo_is_given_one_name_of_tests_at_most() {
        for proof in PROOFS {
            let command = (proof.command)(proof, 1).unwrap();
            let words = command.get_args().take_while(|word| *word != "--");
            let names = words.filter(|word| word.to_string_lossy().ends_with("::")).count();
            assert!(names <= 1, "{}: {command:?}", proof.name);
        }
    }

    #[test]
    fn a_figure_stands_at_the_start_of_a_line_or_behind_the_name_of_its_test() {
        assert_eq!(after("kill: 10 cycles", "kill: "), Some("10 cycles"));
        assert_eq!(after("test kill::loses_nothing ... kill: 10 cycles", "kill: "), Some("10 cycles"));
        assert_eq!(after("after the kill: nothing", "kill: "), None);
        assert_eq!(after("ok", "kill: "), None);
    }
}
