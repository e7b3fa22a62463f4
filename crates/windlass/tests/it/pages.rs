//! Completions and manual pages: made from the table of verbs, read by the programs they are for.

use crate::rig::Rig;
use std::process::Command;

#[test]
fn completions_know_every_verb_and_bash_reads_them() {
    let rig = Rig::bare();
    for shell in ["bash", "zsh", "fish"] {
        let told = rig.call(&["completions", shell]);
        for word in ["push", "backup", "restore", "doctor", "--durability", "completions"] {
            // Fish has options without their dashes.
            assert!(told.fine().contains(word.trim_start_matches('-')), "{shell} does not know {word}");
        }
    }
    let script = rig.call(&["completions", "bash"]).fine().to_owned() + "\ncomplete -p windlass";
    // It is longer than one argument may be.
    let file = rig.path("completions");
    std::fs::write(&file, script).unwrap();
    let read = Command::new("bash").arg("--norc").arg(&file).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    rig.call(&["completions", "tcsh"]).says("expected bash, zsh or fish").ended(64);
    rig.call(&["completions"]).ended(64);
    assert!(!rig.dir().exists(), "nothing is made for it");
}

#[test]
fn the_manual_has_a_page_for_windlass_and_for_every_verb() {
    let rig = Rig::new();
    let page = rig.call(&["man"]).fine().to_owned();
    assert!(page.contains(".TH windlass 1") && page.contains("Exit codes: 0 fine"), "{page}");
    let page = rig.call(&["man", "push"]).fine().to_owned();
    assert!(page.contains(".TH windlass-push 1") && page.contains("durability"), "{page}");
    rig.call(&["man", "fly"]).says("there is no verb \"fly\"").ended(64);
}
