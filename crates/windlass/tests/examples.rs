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

/// What is wrong with a night.
type Change<'c> = &'c dyn Fn(&mut Vec<String>);

/// A night as it must be told, for the judge of `examples/nightly`: what its reports wrote, one after the other.
fn right_night() -> Vec<String> {
    let named = |n: usize| format!("customer-{n:04}");
    let alone = |name: &str| [format!("+ {name}"), format!("- {name}")];
    let together = |names: Vec<String>| {
        let marks = |mark: &str| names.iter().map(|name| format!("{mark} {name}")).collect::<Vec<_>>();
        [marks("+"), marks("-")].concat()
    };
    let mut lines = alone("first").to_vec();
    lines.extend((0..200).flat_map(|n| alone(&named(n))));
    lines.extend(["+ together-1", "= scaled", "+ together-2", "+ together-3", "+ together-4"].map(str::to_owned));
    lines.extend((1..=4).map(|n| format!("- together-{n}")));
    (200..1900).step_by(4).for_each(|n| lines.extend(together((n..n + 4).map(named).collect())));
    lines.extend(alone("last"));
    lines.push("= resumed".to_owned());
    (1900..2000).step_by(4).for_each(|n| lines.extend(together((n..n + 4).map(named).collect())));
    lines
}

/// What the judge complains of, with these lines of cron's jobs and a night that began at 90 s; nothing where all is
/// right.
fn judged(reports: &[String], clock: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(place.path().join(name), text).unwrap();
    let failed = || (0..2000).step_by(100).map(|n| format!("customer-{n:04}"));
    write("reports", reports.join("\n") + "\n");
    write("failed", failed().map(|name| format!("{{\"id\":\"j-{name}\",\"data\":\"{name}\"}}\n")).collect());
    let mended = |name: String| {
        let job = format!("{{\"id\":\"j-{name}\",\"data\":\"{name}\"}}");
        let error = format!("{{\"message\":\"exit 1: no address for {name}\",\"attempts\":[1]}}");
        format!("{{\"job\":{job},\"error\":{error}}}\n")
    };
    write("mended", failed().map(mended).collect());
    write("clock", clock.to_owned());
    let judge = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/nightly/judge.py");
    let output = Command::new("python3").arg(judge).arg(place.path()).arg("90").output().unwrap();
    let complained = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), complained.is_empty(), "{complained}");
    complained
}

#[test]
fn the_judge_of_the_night_bears_a_slow_machine_and_no_wrong_order() {
    needs(&[("python3", "python3")]);
    const MINUTES: &str = "120 1970-01-01T00:02:00Z\n700 1970-01-01T00:03:00Z\n";
    let changed = |change: &dyn Fn(&mut Vec<String>)| {
        let mut lines = right_night();
        change(&mut lines);
        judged(&lines, MINUTES)
    };
    let place = |lines: &[String], line: &str| lines.iter().position(|one| one == line).unwrap();
    // Takes a line away and puts it in behind another.
    let moved = |lines: &mut Vec<String>, line: &str, behind: &str| {
        let line = lines.remove(place(lines, line));
        lines.insert(place(lines, behind) + 1, line);
    };
    let swapped = |lines: &mut Vec<String>, one: &str, other: &str| {
        for line in lines.iter_mut().filter(|line| line.ends_with(one) || line.ends_with(other)) {
            *line = if line.ends_with(one) { line.replace(one, other) } else { line.replace(other, one) };
        }
    };
    assert_eq!(changed(&|_| ()), "");
    // A slot that dawdles is overtaken by hundreds, three slots do that, and one of them until all is resumed.
    let dawdles: &dyn Fn(&mut Vec<String>) = &|lines| {
        for (name, behind) in [("0300", "- customer-0800"), ("0400", "- customer-0803"), ("0500", "= resumed")] {
            moved(lines, &format!("- customer-{name}"), behind);
            moved(lines, &format!("+ customer-{name}"), behind);
        }
    };
    assert_eq!(changed(dawdles), "");
    let complaints: [(&str, Change<'_>); 10] = [
        ("each report begins once", &|lines| drop(lines.remove(place(lines, "+ customer-0700")))),
        ("and is written once", &|lines| lines.push("- customer-0700".into())),
        ("the first goes first", &|lines| swapped(lines, "first", "customer-0000")),
        ("as they are listed", &|lines| swapped(lines, "customer-0010", "customer-0011")),
        ("one at a time until", &|lines| moved(lines, "- customer-0010", "+ customer-0011")),
        ("then the others still go as they are listed, the last", &|lines| swapped(lines, "last", "customer-1800")),
        ("then the others still go as they are listed, the last", &|lines| {
            (0..800).for_each(|n| {
                swapped(lines, &format!("customer-{:04}", 200 + n), &format!("customer-{:04}", 1899 - n))
            });
        }),
        ("and those that are to go before them", &|lines| {
            for name in (2..=4).map(|n| format!("together-{n}")) {
                moved(lines, &format!("+ {name}"), "- customer-0603");
                moved(lines, &format!("- {name}"), &format!("+ {name}"));
            }
        }),
        ("four at a time, and never five", &|lines| moved(lines, "- customer-0603", "+ customer-0607")),
        ("what is held back goes when it is resumed", &|lines| moved(lines, "= resumed", "- customer-1903")),
    ];
    for (complaint, change) in complaints {
        let told = changed(change);
        assert!(told.contains(complaint), "expected {complaint:?}: {told:?}");
    }
    for (complaint, clock) in [
        ("cron means full minutes", "130 1970-01-01T00:02:01Z\n"),
        ("nor before it is there", "119 1970-01-01T00:02:00Z\n"),
        ("for none that had passed", "91 1970-01-01T00:00:00Z\n"),
        ("each of them once", "120 1970-01-01T00:02:00Z\n121 1970-01-01T00:02:00Z\n"),
        ("each of them once", ""),
    ] {
        let told = judged(&right_night(), clock);
        assert!(told.contains(complaint), "expected {complaint:?}: {told:?}");
    }
}
