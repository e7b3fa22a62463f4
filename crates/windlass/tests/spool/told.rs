//! What is told of documents while their drivers wait or are held, and of those that are not there any more.

use crate::rig::{PATIENCE, Rig};
use crate::spool::{Spool, listing, name};
use rustix::process::Signal;
use serde_json::Value;
use std::time::Instant;

fn status(spool: &Spool) -> Value {
    let told = spool.rig.call(&["spool", "status", spool.input.to_str().unwrap(), "--json"]).json();
    told["stages"][0].clone()
}

/// Looks until it is so.
#[track_caller]
fn until(spool: &Spool, is_so: impl Fn(&Value) -> bool) {
    let by = Instant::now() + PATIENCE;
    loop {
        let stage = status(spool);
        if is_so(&stage) {
            return;
        }
        assert!(Instant::now() < by, "it is told for ever: {stage}");
    }
}

#[test]
fn what_a_driver_has_done_is_told_while_it_waits_for_more() {
    let spool = Spool::new();
    spool.put("a", "text");
    let driver = spool.start(&[], &["cp", "{in}", "{out}"]);
    until(&spool, |stage| stage["documents"] == 1);
    let before = status(&spool)["wait_s"].as_f64().unwrap();
    until(&spool, |stage| stage["wait_s"].as_f64().is_some_and(|wait| wait > before));
    driver.signal(Signal::TERM);
    driver.end().fine();
}

#[test]
fn how_long_a_driver_was_held_by_a_full_output_is_told_while_it_is() {
    let spool = Spool::new();
    spool.put_many(2);
    let driver = spool.start(&["--limit", "1"], &["cp", "{in}", "{out}"]);
    until(&spool, |stage| stage["documents"] == 1 && stage["block_s"].as_f64().is_some_and(|block| block > 0.0));
    driver.signal(Signal::TERM);
    driver.end().fine();
}

#[test]
fn a_document_that_its_command_removed_without_doing_it_is_told_of() {
    for (tries, code) in [("2", 1), ("1", 1), ("2", 65)] {
        let spool = Spool::new();
        spool.put("a", "body");
        spool.close();
        let script = format!("rm \"$1\"; exit {code}");
        let told = spool.drive(&["--tries", tries], &["sh", "-c", &script, "sh", "{in}", "{out}"]);
        told.says("a is gone: its command has removed it").says("0 documents done, 1 gone").ended(1);
        assert!(spool.aside().is_empty(), "a reason without a body: {:?}", spool.aside());
        spool.is_clean();
    }
}

#[test]
fn what_a_command_moved_or_made_of_its_input_survives_its_failure() {
    let spool = Spool::new();
    spool.put("a", "body");
    spool.close();
    let told = spool.drive(&[], &["sh", "-c", "mv \"$1\" \"$2\"; exit 1", "sh", "{in}", "{out}"]);
    told.says("0 documents done, 1 try failed, 1 set aside").ended(1);
    assert_eq!(spool.aside()[&name(b"a.failed")], b"body", "it came back, and was tried once more");
    let spool = Spool::new();
    spool.put("a", "body");
    spool.close();
    let told = spool.drive(&[], &["sh", "-c", "cp \"$1\" \"$2\"; rm \"$1\"; exit 1", "sh", "{in}", "{out}"]);
    told.says("what it wrote is kept in the `failed/` of the output").says("1 gone").ended(1);
    assert_eq!(listing(&spool.output.join("failed"))[&name(b"a.failed")], b"body");
    assert!(spool.outputs().keys().all(|file| ["done", "failed"].contains(&file.to_str().unwrap())));
}

#[test]
fn a_try_that_failed_is_no_success_in_the_picture_of_a_pipeline() {
    let rig = Rig::bare();
    let (file, mark) = (rig.path("pipeline.toml"), rig.path("mark"));
    let script = format!("test -e {0} || {{ touch {0}; exit 1; }}", mark.display());
    let stage = format!("[pipeline.p]\n[[pipeline.p.stage]]\nname = \"a\"\nrun = [\"sh\", \"-c\", {script:?}]\n");
    std::fs::write(&file, stage).unwrap();
    let store = format!("dir:{}", rig.path("stages").display());
    let words = |verb| ["--store", &store, "pipeline", verb, "--config", file.to_str().unwrap()];
    rig.feed(&words("run"), "text\n").says("a: 1 document done").fine();
    let told = rig.call(&words("graph"));
    assert!(told.fine().contains("1 succeeded, 0 failed"), "{told:?}");
}
