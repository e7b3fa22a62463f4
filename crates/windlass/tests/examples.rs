//! Runs the examples with the binary under test; each judges itself and says so with its exit code.
//!
//! What they need beyond Rust is set up by `cargo xtask test`. Here it is asked for first, so that a missing program is
//! named and not installed by a test.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::Path;
use std::process::{Command, Stdio};

/// Fails with the package of the first program that is missing.
fn needs(programs: &[(&str, &str)]) {
    for (program, package) in programs {
        let looked = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
        assert!(
            looked.unwrap().success(),
            "this example needs `{program}` (package {package}): `cargo xtask test` installs it"
        );
    }
}

/// Runs `examples/NAME/run.sh` and returns its last line.
fn run(name: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name).join("run.sh");
    let mut command = Command::new(&script);
    command.env("WINDLASS", env!("CARGO_BIN_EXE_windlass")).env_remove("WINDLASS_DIR").stdin(Stdio::null());
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {}: {e}", script.display()));
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {}\nstdout: {said}\nstderr: {complained}", output.status);
    said.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_list_of_images_killed_in_the_middle() {
    needs(&[("identify", "imagemagick")]);
    let verdict = run("list");
    assert!(verdict.starts_with("right: 500 of 500 thumbnails"), "{verdict}");
}

#[test]
fn producers_in_six_languages_without_a_server() {
    needs(&[
        ("php", "php-cli"),
        ("ruby", "ruby"),
        ("node", "nodejs"),
        ("python3", "python3"),
        ("cc", "gcc"),
        ("flock", "util-linux"),
    ]);
    let verdict = run("inbox");
    assert!(verdict.starts_with("right: 1401 jobs"), "{verdict}");
}

#[test]
fn web_hooks_single_in_batches_signed_and_held_back() {
    needs(&[("nginx", "nginx-light"), ("python3", "python3"), ("curl", "curl")]);
    let modules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/python");
    let import = Command::new("python3").args(["-c", "import standardwebhooks"]).env("PYTHONPATH", modules).output();
    assert!(import.unwrap().status.success(), "no Python package `standardwebhooks`: `cargo xtask test` installs it");
    let verdict = run("webhooks");
    assert!(verdict.starts_with("right: 20 hooks, 1000 rows in batches and 10 jobs behind a 429"), "{verdict}");
}

#[test]
fn a_web_application_with_its_own_jobs_table() {
    needs(&[("psql", "postgresql-client"), ("ruby", "ruby"), ("curl", "curl")]);
    let server = std::env::var("WINDLASS_TEST_POSTGRES");
    assert!(server.is_ok(), "WINDLASS_TEST_POSTGRES names no database server: run `cargo xtask test`, or set it");
    let verdict = run("rails-like");
    assert!(verdict.starts_with("right: 201 comments judged by rows"), "{verdict}");
}

#[test]
fn a_directory_of_handlers_and_twenty_thousand_queues() {
    let verdict = run("handlers");
    assert!(verdict.starts_with("right: 20000 queues"), "{verdict}");
}

#[test]
fn a_site_of_five_thousand_pages() {
    needs(&[("nginx", "nginx-light"), ("python3", "python3"), ("curl", "curl"), ("wget", "wget")]);
    let verdict = run("crawl");
    assert!(verdict.starts_with("right: 5011 pages"), "{verdict}");
}

#[test]
fn two_machines_that_are_killed_in_turn() {
    needs(&[("python3", "python3")]);
    let verdict = run("two-machines");
    assert!(verdict.starts_with("right: 6500 jobs done on the second machine"), "{verdict}");
}

#[test]
fn a_night_of_two_thousand_reports() {
    needs(&[("python3", "python3"), ("bash", "bash")]);
    let verdict = run("nightly");
    assert!(verdict.starts_with("right: 2000 reports of a night"), "{verdict}");
}

#[test]
fn documents_through_three_stages_of_directories() {
    needs(&[("pdftotext", "poppler-utils"), ("python3", "python3"), ("bash", "bash")]);
    let verdict = run("documents");
    assert!(verdict.starts_with("right: 120 documents once and whole"), "{verdict}");
    assert!(verdict.ends_with("the pictures tell the same"), "{verdict}");
}
