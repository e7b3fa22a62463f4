//! Programs that know nothing but files and `mv`: they feed, work and drain beside ours.

use crate::rig::Process;
use crate::spool::Spool;
use std::path::Path;
use std::process::{Command, Stdio};

const DOCUMENTS: usize = 60;

fn script(text: &str, places: &[&Path]) -> Process {
    let mut shell = Command::new("sh");
    Process::start(shell.args(["-c", text, "sh"]).args(places).stdin(Stdio::null()))
}

#[test]
fn a_script_that_knows_only_mv_feeds_works_and_drains_beside_ours() {
    let spool = Spool::new();
    let drained = spool.rig.path("drained");
    std::fs::create_dir_all(&drained).unwrap();
    std::fs::create_dir_all(&spool.output).unwrap();
    // Ours begin two, and wait until the other has handed one on.
    let mut gate = spool.rig.gate("gate");
    let ours = format!("read x < {}; sed s/^/ours:/ \"$1\" > \"$2\"", gate.path);
    let driver = spool.start(&["-j", "2"], &["sh", "-c", &ours, "sh", "{in}", "{out}"]);
    let feed = format!(
        "i=0; while [ $i -lt {DOCUMENTS} ]; do echo text $i > \"$1/d$i.tmp\" && mv \"$1/d$i.tmp\" \"$1/d$i.ready\"; \
         i=$((i+1)); done; : > \"$1/done\""
    );
    // Driver 1 of another program: it claims by a rename that only one can win, and ends when nothing waits.
    let work = "while :; do for f in \"$1\"/*.ready; do [ -e \"$f\" ] || continue; d=$(basename \"$f\" .ready); \
                mv \"$f\" \"$1/$d.1.working\" 2> /dev/null || continue; \
                sed s/^/theirs:/ \"$1/$d.1.working\" > \"$2/$d.1.writing.xml\" && \
                mv \"$2/$d.1.writing.xml\" \"$2/$d.ready\" && rm \"$1/$d.1.working\"; done; \
                [ -e \"$1/done\" ] && ! ls \"$1\" | grep -q '\\.ready$' && exit 0; done";
    let drain = "while :; do for f in \"$1\"/*.ready; do [ -e \"$f\" ] && mv \"$f\" \"$2/\"; done; \
                 [ -e \"$1/done\" ] && ! ls \"$1\" | grep -q '\\.ready$' && exit 0; done";
    let drain = script(drain, &[&spool.output, &drained]);
    let feed = script(&feed, &[&spool.input]);
    let is_held = |file: &std::ffi::OsString| file.to_str().is_some_and(|name| name.ends_with(".working"));
    while spool.inputs().keys().filter(|file| is_held(file)).count() < 2 {
        std::thread::yield_now();
    }
    let work = script(work, &[&spool.input, &spool.output]);
    while std::fs::read_dir(&drained).unwrap().next().is_none() {
        std::thread::yield_now();
    }
    gate.open(DOCUMENTS);
    feed.end().fine();
    work.end().fine();
    driver.end().fine();
    drain.end().fine();
    let came: Vec<String> = (0..DOCUMENTS)
        .map(|n| std::fs::read_to_string(drained.join(format!("d{n}.ready"))).unwrap_or_else(|e| panic!("d{n}: {e}")))
        .collect();
    let whole = |(n, text): (usize, &String)| [format!("ours:text {n}\n"), format!("theirs:text {n}\n")].contains(text);
    assert!(came.iter().enumerate().all(whole), "{came:?}");
    for both in ["ours:", "theirs:"] {
        assert!(came.iter().any(|text| text.starts_with(both)), "{both} {came:?}");
    }
    assert_eq!(std::fs::read_dir(&drained).unwrap().count(), DOCUMENTS);
    spool.is_clean();
}

#[test]
fn the_claim_of_a_foreign_driver_is_left_alone_and_holds_the_end_up() {
    let spool = Spool::new();
    spool.put("ours", "x");
    std::fs::write(spool.input.join("theirs.7.working"), "y").unwrap();
    spool.close();
    let mut driver = spool.start(&[], &["cp", "{in}", "{out}"]);
    driver.until("waiting for others");
    assert!(!spool.output.join("done").exists());
    std::fs::remove_file(spool.input.join("theirs.7.working")).unwrap();
    driver.end().says("1 document done").fine();
    assert!(spool.output.join("done").exists());
}
