//! Holds the few rules of style that are worth holding: reviewers can then talk about design.
//! Each failure prints file, line and what to do instead.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 600;
const TEST_FILE_LINES_MAX: usize = 1000;
const FUNCTION_LINES_MAX: usize = 70;
const COLUMNS_MAX: usize = 120;

struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        let path = self.path.to_string_lossy();
        ["/tests/", "/examples/", "conformance"].iter().any(|part| path.contains(part)) || path.ends_with("tests.rs")
    }

    /// The lines before the unit tests of the file.
    fn shipped(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(at, line)| (at + 1, line));
        let whole = if self.is_test() { 0 } else { usize::MAX };
        lines.take(whole).take_while(|(_, line)| !line.starts_with("#[cfg(test)]"))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates"), root().join("xtask")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push(Source { path, text });
            }
        }
    }
    assert!(found.len() > 20, "the tidy test found too few files to mean anything");
    found
}

fn report(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn files_functions_and_lines_are_short() {
    let mut faults = Vec::new();
    for source in sources() {
        let path = source.path.display();
        let most = if source.is_test() { TEST_FILE_LINES_MAX } else { FILE_LINES_MAX };
        let lines = source.text.lines().count();
        if lines > most {
            faults.push(format!("{path}: {lines} lines, at most {most}: split it by duty"));
        }
        for (at, line) in source.text.lines().enumerate() {
            if line.chars().count() > COLUMNS_MAX {
                faults.push(format!("{path}:{}: longer than {COLUMNS_MAX} columns", at + 1));
            }
        }
        if !source.is_test() {
            faults.extend(long_functions(&source));
        }
    }
    report(faults);
}

fn long_functions(source: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    for (at, line) in source.text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let words: Vec<&str> = line.split_whitespace().take(5).collect();
        if open.is_none() && words.contains(&"fn") && !line.trim_start().starts_with("//") && !line.ends_with(';') {
            open = Some((at, indent));
        } else if let Some((start, depth)) = open
            && line.trim_start().starts_with('}')
            && indent == depth
        {
            if at - start > FUNCTION_LINES_MAX {
                faults.push(format!(
                    "{}:{}: a function of {} lines, at most {FUNCTION_LINES_MAX}",
                    source.path.display(),
                    start + 1,
                    at - start
                ));
            }
            open = None;
        }
    }
    faults
}

#[test]
fn every_file_says_what_it_is() {
    let mut faults = Vec::new();
    for source in sources() {
        if !source.text.starts_with("//! ") {
            faults.push(format!("{}: begin with `//!` lines: what it is, owns and must not do", source.path.display()));
        }
    }
    report(faults);
}

#[test]
fn core_stays_pure() {
    let banned = ["std::fs", "std::net", "std::process", "std::thread", "std::env", "SystemTime", "Instant::now"];
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| s.path.to_string_lossy().contains("windlass-core/src")) {
        for (at, line) in source.text.lines().enumerate() {
            for word in banned.iter().filter(|word| line.contains(**word)) {
                faults.push(format!("{}:{}: `{word}` in core: pass it in", source.path.display(), at + 1));
            }
        }
    }
    let manifest = fs::read_to_string(root().join("crates/windlass-core/Cargo.toml")).unwrap();
    let after = manifest.split("[dependencies]").nth(1).and_then(|rest| rest.split('[').next()).unwrap();
    if after.lines().any(|line| !line.trim().is_empty()) {
        faults.push("crates/windlass-core/Cargo.toml: core has no dependencies".into());
    }
    report(faults);
}

#[test]
fn nothing_is_left_for_later_or_switched_off() {
    let banned = [
        "FIX\u{4d}E",
        "XX\u{58}",
        "todo\u{21}(",
        "unimplemented\u{21}(",
        "dbg\u{21}(",
        "#[ignor\u{65}",
        "#[allo\u{77}(",
    ];
    let mut faults = Vec::new();
    for source in sources() {
        for (at, line) in source.text.lines().enumerate() {
            for word in banned.iter().filter(|word| line.contains(**word)) {
                faults.push(format!("{}:{}: `{word}`", source.path.display(), at + 1));
            }
        }
        for (at, line) in source.shipped() {
            if line.contains(".unwrap()") || (line.contains(".expect(\"") && !line.trim_start().starts_with("//")) {
                faults.push(format!("{}:{at}: a panic in somebody's night: return the error", source.path.display()));
            }
        }
    }
    report(faults);
}

#[test]
fn names_say_something() {
    let banned = ["util", "utils", "helpers", "helper", "common", "misc", "imp", "types", "manager"];
    let mut faults = Vec::new();
    for source in sources() {
        let stem = source.path.file_stem().unwrap().to_string_lossy().into_owned();
        let folder = source.path.parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
        for name in [stem, folder].iter().filter(|name| banned.contains(&name.as_str())) {
            faults.push(format!("{}: `{name}` names nothing: call it what it is", source.path.display()));
        }
    }
    report(faults);
}

#[test]
fn sleeping_and_exiting_have_one_home() {
    let homes: [(&str, &[&str]); 2] = [("process::exit(", &["src/main.rs"]), ("thread::sleep(", &[])];
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| s.path.to_string_lossy().contains("crates/")) {
        for (word, allowed) in homes {
            let at_home = allowed.iter().chain(&["tests/tidy.rs"]).any(|home| source.path.ends_with(home));
            let at = source.text.lines().position(|line| line.contains(word));
            if let Some(at) = at.filter(|_| !at_home) {
                faults.push(format!("{}:{}: `{word}` has no place here", source.path.display(), at + 1));
            }
        }
    }
    report(faults);
}

#[test]
fn the_map_and_the_front_page_are_true() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(read("ARCHITECTURE.md").lines().count() <= 200, "ARCHITECTURE.md is a map: at most 200 lines");
    assert!(read("README.md").contains("cargo xtask test"), "the README names the test command");
    assert!(read(".ci/run").contains("\ncargo xtask test\n"), ".ci/run is exactly the README's test command");
    let map = read("ARCHITECTURE.md");
    for entry in fs::read_dir(root().join("crates/windlass/src")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = name.trim_end_matches(".rs");
        if !["main", "lib"].contains(&name) {
            assert!(map.contains(&format!("`{name}`")), "ARCHITECTURE.md does not know `{name}`");
        }
    }
}
