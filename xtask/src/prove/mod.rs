//! `cargo xtask prove [NAME…]`: the long proofs at full size. Each ends with one line that is its figure, which goes to
//! `docs/proof.md` with commit and date.
//!
//! A proof that fails leaves the page as it is. This file owns the list of proofs and how each is run; it must not
//! judge anything itself.

mod page;
mod sabotage;

use crate::steps::root;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const KILL_CYCLES: u64 = 10_000;
const SEEDS: u64 = 1_000_000;
const KNOWN: &str = "kill, sim, store, sabotage [NAME…], --cycles N or --seeds N";
const SABOTAGE: &str = "sabotage";

/// A proof: what it is called and how to get its command and its figure.
struct Proof {
    name: &'static str,
    command: fn(&Sizes) -> Result<Command, String>,
    /// The part of a line of its output that is a figure.
    figure: fn(&str) -> Option<&str>,
}

const PROOFS: &[Proof] = &[
    Proof { name: "kill", command: kill, figure: |line| after(line, "kill: ") },
    Proof { name: "sim", command: sim, figure: |line| line.contains(" seeds, ").then_some(line) },
    Proof { name: "store", command: store, figure: |line| after(line, "store: ") },
];

/// How far to go.
#[derive(Debug, PartialEq, Eq)]
struct Sizes {
    cycles: u64,
    seeds: u64,
}

pub(crate) fn prove(words: &[&str]) -> Result<(), String> {
    let commit = commit()?;
    if let [SABOTAGE, names @ ..] = words {
        let figure = sabotage::prove(names)?;
        eprintln!("── {SABOTAGE}: {figure}");
        // Only all of them are a proof.
        return if names.is_empty() { note(SABOTAGE, &figure, &commit) } else { Ok(()) };
    }
    let (proofs, sizes) = read(words)?;
    for proof in proofs {
        let figure = run(proof, &sizes)?;
        eprintln!("── {}: {figure}", proof.name);
        note(proof.name, &figure, &commit)?;
    }
    if words.is_empty() {
        note(SABOTAGE, &sabotage::prove(&[])?, &commit)?;
    }
    Ok(())
}

fn note(name: &str, figure: &str, commit: &str) -> Result<(), String> {
    page::note(&root().join("docs/proof.md"), name, figure, commit, &today()?)
}

/// Names and sizes out of the arguments; no name means all.
fn read(words: &[&str]) -> Result<(Vec<&'static Proof>, Sizes), String> {
    let mut sizes = Sizes { cycles: KILL_CYCLES, seeds: SEEDS };
    let mut chosen = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let size = match *word {
            "--cycles" => &mut sizes.cycles,
            "--seeds" => &mut sizes.seeds,
            name => {
                let proof = PROOFS.iter().find(|proof| proof.name == name);
                chosen.push(proof.ok_or_else(|| format!("expected {KNOWN}, got: {name}"))?);
                continue;
            }
        };
        let value = words.next().and_then(|value| value.parse().ok());
        *size = value.ok_or_else(|| format!("expected a number behind {word}"))?;
    }
    if chosen.is_empty() {
        chosen.extend(PROOFS);
    }
    Ok((chosen, sizes))
}

fn kill(sizes: &Sizes) -> Result<Command, String> {
    let mut command = cargo(&["test", "--release", "-p", "windlass", "--test", "it", "kill", "--"]);
    command.args(["--nocapture", "--test-threads=1"]).env("WINDLASS_KILL_CYCLES", sizes.cycles.to_string());
    Ok(command)
}

fn sim(sizes: &Sizes) -> Result<Command, String> {
    let mut command = cargo(&["run", "--release", "--quiet", "-p", "windlass-sim", "--", "--seeds"]);
    command.arg(sizes.seeds.to_string());
    Ok(command)
}

/// Every test binary of the stores' own: the suite, and failure at every call.
fn store(_: &Sizes) -> Result<Command, String> {
    let mut command = cargo(&["test", "--release", "-p", "windlass"]);
    let folder = root().join("crates/windlass/tests");
    let listed = std::fs::read_dir(&folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
    let mut names: Vec<String> = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    for name in names.iter().filter_map(|name| name.strip_suffix(".rs")).filter(|name| name.starts_with("store_")) {
        command.args(["--test", name]);
    }
    command.args(["--", "--nocapture", "--test-threads=1"]);
    Ok(command)
}

fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(words).current_dir(root());
    command
}

/// The test harness may have put the name of the test in front of the line.
fn after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    let at = line.find(mark).filter(|at| *at == 0 || line[..*at].ends_with("... "))?;
    Some(&line[at + mark.len()..])
}

/// Runs a proof, passes on what it says, and returns its figures in one line.
fn run(proof: &Proof, sizes: &Sizes) -> Result<String, String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", proof.name);
    let mut command = (proof.command)(sizes)?;
    eprintln!("── {}: {command:?}", proof.name);
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

fn answer(program: &str, words: &[&str]) -> Result<String, String> {
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
        assert_eq!(names(&[]), Ok(vec!["kill", "sim", "store"]));
        assert_eq!(names(&["sim", "--seeds", "5", "kill"]), Ok(vec!["sim", "kill"]));
        assert_eq!(read(&["--cycles", "7"]).map(|(_, sizes)| sizes.cycles), Ok(7));
        for wrong in [&["prayer"][..], &["--cycles"], &["--seeds", "many"], &["-x"]] {
            assert!(names(wrong).is_err(), "{wrong:?}");
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
