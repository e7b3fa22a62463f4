//! The planted bugs are planted, noticed by checks that exist, told on the page of proofs, and in no shipped program.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::path::{Path, PathBuf};
use windlass::sabotage::{Check, PLANTS, VARIABLE};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The text of every source file below a folder, with its path.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.clone(), fs::read_to_string(path).unwrap()));
            }
        }
    }
    found
}

/// With the feature the same search finds them, so it can find them.
#[test]
fn the_program_holds_a_planted_bug_only_where_it_was_built_for_them() {
    let program = fs::read(env!("CARGO_BIN_EXE_windlass")).unwrap();
    let holds = |name: &str| memchr::memmem::find(&program, name.as_bytes()).is_some();
    let planted = cfg!(feature = "sabotage");
    assert_eq!(holds(VARIABLE), planted, "{VARIABLE}");
    for plant in PLANTS {
        assert_eq!(holds(plant.name), planted, "{}", plant.name);
    }
}

#[test]
fn every_sabotage_is_planted_and_its_check_is_there() {
    assert!(PLANTS.len() >= 24, "only {} sabotages", PLANTS.len());
    let product = [sources("crates/windlass/src"), sources("crates/windlass-core/src")].concat();
    let tests = [sources("crates/windlass/src"), sources("crates/windlass/tests")].concat();
    for plant in PLANTS {
        let point = format!("sabotage::on(Sabotage::{})", plant.name);
        assert!(product.iter().any(|(_, text)| text.contains(&point)), "{} is planted nowhere", plant.name);
        assert!(!plant.breaks.ends_with('.') && plant.breaks.len() > 20, "{}: {}", plant.name, plant.breaks);
        let Check::Test { name, .. } = plant.caught_by else { continue };
        let test = format!("fn {}() {{", name.rsplit("::").next().unwrap());
        assert!(tests.iter().any(|(_, text)| text.contains(&test)), "{}: there is no test {name}", plant.name);
    }
}

#[test]
fn the_page_of_proofs_tells_which_check_catches_which_sabotage() {
    let page = fs::read_to_string(root().join("docs/proof.md")).unwrap();
    for plant in PLANTS {
        let check = match plant.caught_by {
            Check::Test { name, .. } => format!("`{}`", name.rsplit("::").next().unwrap()),
            Check::Sim { seeds } => format!("`sim`, {seeds} seeds"),
        };
        let row = format!("| `{}` | {} | {check} |", plant.name, plant.breaks);
        assert!(page.contains(&row), "docs/proof.md lacks the row\n{row}");
    }
    let rows = page.split("## Planted bugs").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = rows.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, PLANTS.len(), "docs/proof.md has a row for a sabotage that is gone");
}
