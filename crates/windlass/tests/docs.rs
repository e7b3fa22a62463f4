//! Holds the pages against the program: verbs, exit codes, config keys, links, and the names of tests.
//! Each failure names the page and what is missing in it.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use windlass::error::Kind;

const PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Every file below a folder whose name ends so.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found
}

/// The names in the table of commands that a help text prints.
fn verbs(words: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_windlass")).args(words).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let table = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    // A description that goes on in the next line is indented further.
    let names = table.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_verb_and_option_stands_on_the_page_of_the_command_line() {
    let page = read("docs/cli.md");
    let verbs_found = verbs(&[]);
    assert!(verbs_found.len() >= 13, "{verbs_found:?}");
    for verb in verbs_found {
        let section = page.split(&format!("\n### {verb}\n")).nth(1);
        assert!(section.is_some(), "docs/cli.md has no section about {verb}");
        let output = Command::new(env!("CARGO_BIN_EXE_windlass")).args([&verb, "--help"]).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        for option in help.lines().map(str::trim_start).filter(|line| line.starts_with('-')) {
            let long = option.split([' ', ',']).find(|word| word.starts_with("--")).unwrap();
            // One that may be given several times ends in dots.
            let long = long.trim_end_matches("...");
            assert!(page.contains(long), "docs/cli.md does not know {verb} {long}");
        }
    }
    for action in verbs(&["config"]) {
        assert!(page.contains(&format!("windlass config {action}")), "docs/cli.md does not know config {action}");
    }
}

#[test]
fn every_exit_code_stands_on_the_page() {
    let page = read("docs/cli.md");
    let table = page.split("## Exit codes").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    for kind in Kind::ALL {
        let row = format!("\n| {} |", kind.exit_code());
        assert!(table.contains(&row), "docs/cli.md has no row of exit code {} ({kind:?})", kind.exit_code());
    }
}

#[test]
fn every_config_key_is_explained_where_it_stands() {
    let file = read("crates/windlass/default-config.toml");
    let lines: Vec<&str> = file.lines().collect();
    let mut keys = 0;
    for (at, line) in lines.iter().enumerate() {
        let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ").filter(|(key, _)| !key.contains(' '))
        else {
            continue;
        };
        keys += 1;
        assert!(at > 0 && lines[at - 1].starts_with("# "), "default-config.toml: no reason stands above `{key}`");
    }
    assert!(keys >= 18, "only {keys} keys found");
    assert!(read("docs/config.md").contains("default-config.toml"), "docs/config.md leads to the file");
}

#[test]
fn the_deaths_that_convict_a_job_are_the_pages() {
    use windlass_core::suspicion::{ALONE_AFTER, CONVICTED_AT};
    let sentence =
        format!("with {ALONE_AFTER} it runs while no other suspect does, and with {CONVICTED_AT} it is `failed`");
    assert!(read("docs/runners.md").contains(&sentence), "expected on the page: {sentence}");
}

#[test]
fn every_link_leads_somewhere() {
    let mut pages: Vec<PathBuf> = PAGES.iter().map(|name| root().join(name)).collect();
    pages.extend(files("docs", "md"));
    pages.extend(files("examples", "md"));
    let mut links = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let headings: Vec<String> = text.lines().filter(|line| line.starts_with('#')).map(anchor).collect();
        for rest in text.split("](").skip(1) {
            let link = rest.split(')').next().unwrap();
            if link.contains("://") {
                continue;
            }
            links += 1;
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let there = file.is_empty() || page.parent().unwrap().join(file).exists();
            assert!(there, "{}: the link {link} leads nowhere", page.display());
            let there = place.is_empty() || !file.is_empty() || headings.iter().any(|heading| heading == place);
            assert!(there, "{}: there is no heading for {link}", page.display());
        }
    }
    assert!(links > 15, "only {links} links found");
}

/// What a heading is called in links.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    words
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn every_test_that_a_page_names_is_there() {
    let sources: String = files("crates", "rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    for (page, from) in [("docs/proof.md", "## Where each promise is tested"), ("docs/conventions.md", "| rule |")] {
        let text = read(page);
        let list = text.split(from).nth(1).unwrap();
        let of_test = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_name = |name: &&str| name.matches('_').count() > 1 && name.chars().all(of_test);
        let names: Vec<&str> = list.split('`').skip(1).step_by(2).filter(is_name).collect();
        for name in &names {
            assert!(sources.contains(&format!("fn {name}()")), "{page} names the test {name}, which is not there");
        }
        assert!(names.len() > 30, "{page} names only {} tests", names.len());
    }
}
