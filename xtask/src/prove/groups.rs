//! `cargo xtask prove groups`: limits that the kernel itself keeps in control groups, on a machine that has their
//! controllers.
//!
//! That machine is emulated, so that it does not matter what this one has: Debian's kernel, a disk in memory with the
//! tests and the programs that they run (`machine`), and a first process (`groups/init.sh`) that hands groups down in
//! several ways and runs the tests in each. Every test must say who kept its limits. This file owns what must have been
//! said; it must not know how a limit is kept.

mod machine;

use crate::steps::cargo;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;

/// The word that makes this program build the machine and judge it.
pub(crate) const WORD: &str = "__groups";

/// How a server finds its groups, and who must keep the limits then; `init.sh` sets each up.
const SCENES: [(&str, &str); 4] = [("handed", "kernel"), ("ada", "kernel"), ("plain", "watched"), ("shut", "none")];

/// Builds the machine, runs it, and says the figure if all that had to be said was said.
pub(crate) fn serve(kills: &str) -> Result<(), String> {
    let built = build()?;
    let tests = built.iter().find(|path| path.file_name().is_some_and(|name| name != "windlass"));
    let tests = tests.ok_or("cargo built no program of tests")?.to_string_lossy().into_owned();
    let machine = machine::make(&built, include_str!("groups/init.sh"))?;
    let said = machine.run(&[("TESTS", &tests), ("WINDLASS_REAP_KILLS", kills)])?;
    println!("groups: {}", judge(&said)?);
    Ok(())
}

/// The tests and the program that they start, where the tests look for it.
fn build() -> Result<Vec<PathBuf>, String> {
    let mut command = cargo(&["test", "-p", "windlass", "--test", "launcher", "--no-run", "--message-format=json"]);
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("the build of the tests failed: {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| super::sabotage::field(line, "executable")).map(PathBuf::from).collect())
}

/// The figure, where every scene was played to its end and each of its tests said what it had to.
fn judge(said: &str) -> Result<String, String> {
    let mut figures = Vec::new();
    for (name, keeper) in SCENES {
        let begin = format!("scene {name}: {keeper}\n");
        let end = format!("scene {name} ended: ");
        let (_, scene) = said.split_once(&begin).ok_or_else(|| format!("scene {name} did not begin"))?;
        let (scene, rest) = scene.split_once(&end).ok_or_else(|| format!("scene {name} did not end"))?;
        let status = rest.lines().next().unwrap_or_default();
        let tests = judge_scene(scene, keeper, status).map_err(|e| format!("scene {name}: {e}"))?;
        let killed = number_behind(scene, "killed for memory: ").ok_or("nobody counted the kills")?;
        if (killed > 0) != (keeper == "kernel") {
            return Err(format!("scene {name}: the kernel killed {killed} processes for want of memory"));
        }
        let left = number_behind(said, &format!("groups left in {name}.service: "));
        if left != Some(0) {
            return Err(format!("scene {name}: groups left {left:?}"));
        }
        figures
            .push(format!("{name}: {tests} tests, limits kept by {keeper}, {killed} processes killed by the kernel"));
    }
    let machine = said.lines().find_map(|line| line.strip_prefix("machine: ")).unwrap_or_default();
    Ok(format!("{}; groups left 0; on {machine}", figures.join("; ")))
}

/// How many tests of a scene passed, each of them with limits kept by whom they had to be kept.
fn judge_scene(scene: &str, keeper: &str, status: &str) -> Result<usize, String> {
    if status != "0" || !scene.contains("; 0 failed; 0 ignored; ") {
        return Err(format!("the tests ended with {status}"));
    }
    let passed: BTreeSet<&str> =
        scene.lines().filter_map(|line| line.strip_prefix("test ")?.split(' ').next()).collect();
    let passed: BTreeSet<&str> = passed.into_iter().filter(|name| name.contains("::")).collect();
    let told = format!("limits are kept by: {keeper}");
    let sections = scene.split("\n---- ").skip(1).filter_map(|section| section.split_once(" stdout ----\n"));
    let (mut said, mut untried) = (BTreeSet::new(), Vec::new());
    for (name, text) in sections {
        said.extend(text.lines().any(|line| line == told).then_some(name));
        untried.extend(text.lines().any(|line| line.starts_with("not tried")).then_some(name));
        if keeper == "kernel" && !(text.contains("memory.max ") && text.contains("pids.max ")) {
            return Err(format!("{name} did not say its memory.max and pids.max"));
        }
    }
    let silent: Vec<&&str> = passed.difference(&said).collect();
    match (passed.is_empty(), silent.is_empty(), keeper == "kernel" && !untried.is_empty()) {
        (false, true, false) => Ok(passed.len()),
        (true, _, _) => Err("no test ran".into()),
        (_, false, _) => Err(format!("tests that did not say who kept their limits: {silent:?}")),
        (_, _, true) => Err(format!("tests that tried nothing: {untried:?}")),
    }
}

fn number_behind(text: &str, words: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(words)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a machine says in which one test ran in each scene.
    fn said() -> String {
        let scene = |(name, keeper): (&str, &str)| {
            let killed = if keeper == "kernel" { 3 } else { 0 };
            format!(
                "scene {name}: {keeper}\ntest limits::a ... ok\n\nsuccesses:\n\n---- limits::a stdout ----\n\
                 limits are kept by: {keeper}\nmemory.max 5, pids.max 6 in x\n\n\
                 test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\nkilled for memory: {killed}\n\
                 scene {name} ended: 0\ngroups left in {name}.service: 0\n"
            )
        };
        format!("machine: 6.1\n{}", SCENES.map(scene).concat())
    }

    #[test]
    fn what_was_said_in_full_is_a_figure() {
        let figure = judge(&said()).unwrap();
        assert!(
            figure.starts_with("handed: 1 tests, limits kept by kernel, 3 processes killed by the kernel; "),
            "{figure}"
        );
        assert!(figure.ends_with("; groups left 0; on 6.1"), "{figure}");
    }

    #[test]
    fn what_was_not_said_was_not_shown() {
        for (part, other) in [
            ("scene ada ended: 0", "scene ada ended: 101"),
            ("scene ada ended: 0", ""),
            ("scene shut: none", ""),
            ("limits are kept by: kernel", "limits are kept by: watched"),
            ("test limits::a ... ok", ""),
            ("test limits::a ... ok", "test limits::a ... ok\ntest limits::b ... ok"),
            ("memory.max 5", "not tried: nothing\nmemory.max 5"),
            ("memory.max 5, pids.max 6 in x", ""),
            ("killed for memory: 3", "killed for memory: 0"),
            ("killed for memory: 0", "killed for memory: 1"),
            ("0 failed; 0 ignored; ", "0 failed; 1 ignored; "),
            ("groups left in plain.service: 0", "groups left in plain.service: 1"),
        ] {
            let less = said().replacen(part, other, 1);
            assert!(less != said() && judge(&less).is_err(), "{part} became {other}");
        }
    }
}
