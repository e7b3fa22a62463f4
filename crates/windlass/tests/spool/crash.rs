//! A driver is killed, or the power is cut, before every call that changes its directories, or such a call fails; then
//! another comes, and everything must be there: each document once and whole, nothing half, nothing lost.
//!
//! The short form takes one point in `WINDLASS_SPOOL_STRIDE` (5); `cargo xtask prove spool` sets 1.

use crate::disk::{Boots, Disk, with_own_mounts};
use crate::rig::PATIENCE;
use crate::spool::{Listing, Spool, name};
use crate::tracer::{Act, Plan, Tally, Traced, Which};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// One that succeeds, one that fails at first, one that is given up.
const DOCUMENTS: [(&str, &str); 3] = [("good", "text"), ("slow", "text"), ("bad", "body")];
const SCRIPT: &str = "case $1 in */bad.*) exit 65;; */slow.*) [ $3 -gt 1 ] || exit 1;; esac; \
                      cat \"$1\" \"$1\" > \"$2\"";
const COMMAND: [&str; 7] = ["sh", "-c", SCRIPT, "sh", "{in}", "{out}", "{attempt}"];
/// Deaths are tries as well, and here there are many.
const OPTIONS: [&str; 4] = ["--tries", "99", "--lease", "100ms"];

pub(crate) fn stride() -> usize {
    std::env::var("WINDLASS_SPOOL_STRIDE").map_or(5, |text| text.parse().unwrap())
}

fn prepare(spool: &Spool) {
    std::fs::create_dir_all(&spool.input).unwrap();
    DOCUMENTS.iter().for_each(|(doc, text)| spool.put(doc, text));
    spool.close();
}

/// A driver that is followed call by call.
fn play(spool: &Spool, nth: u64, act: Act) -> Tally {
    let command = spool.rig.windlass(&spool.words(&OPTIONS, &COMMAND));
    let which = Which::Changing(spool.input.parent().unwrap().to_owned());
    Traced::start(command, Plan { which, nth, act }).end(PATIENCE).unwrap_or_else(|| panic!("call {nth}: hangs"))
}

/// How many points there are.
fn count(spool: &Spool) -> u64 {
    let tally = play(spool, 0, Act::Count);
    assert_eq!(tally.end, 1, "{}", tally.stderr);
    tally.counted
}

/// Another driver comes, and does what is left. `taken` was in the output before.
fn heal(spool: &Spool, which: &str, taken: &Listing) {
    let told = spool.drive(&OPTIONS, &COMMAND);
    assert!([Some(0), Some(1)].contains(&told.code), "{which}: {told:?}");
    let mut outputs = spool.outputs();
    assert_eq!(outputs.remove(&name(b"done")), Some(Vec::new()), "{which}: {told:?}");
    for (doc, text) in taken {
        assert_eq!(outputs.insert(doc.clone(), text.clone()), None, "{which}: {doc:?} comes twice: {told:?}");
    }
    let expected = Listing::from(["good", "slow"].map(|doc| (format!("{doc}.ready").into(), b"texttext".to_vec())));
    assert_eq!(outputs, expected, "{which}: {told:?}");
    let aside = spool.aside();
    assert_eq!(aside.get(&name(b"bad.failed")).map(Vec::as_slice), Some(&b"body"[..]), "{which}: {aside:?} {told:?}");
    assert!(aside.contains_key(&name(b"bad.reason")), "{which}: {aside:?}");
    assert_eq!(aside.len(), 2, "{which}: {aside:?}");
    spool.is_clean();
}

#[test]
fn killed_before_any_call_a_driver_loses_nothing_and_hands_nothing_on_twice() {
    let points = {
        let spool = Spool::new();
        prepare(&spool);
        count(&spool)
    };
    let mut deaths = 0;
    for nth in (1..=points + 1).step_by(stride()) {
        let spool = Spool::new();
        prepare(&spool);
        let tally = play(&spool, nth, Act::Cut(Box::new(|| ())));
        deaths += u64::from(tally.hit);
        heal(&spool, &format!("call {nth} of {points}"), &taken(&spool));
        spool.is_left_by_all();
    }
    println!("spool: killed before {deaths} of {points} calls, lost 0, doubled 0");
    assert!(deaths > 10, "{deaths} deaths of {points} points");
}

#[test]
fn with_the_power_cut_before_any_call_every_document_comes_out_whole() {
    with_own_mounts(|| {
        let spool = Spool::at("disk");
        let at = spool.input.parent().unwrap().to_owned();
        let disk = Disk::new(image(&spool), &at, 24);
        let boots = Boots::new(spool.rig.path("boot"));
        let kept = spool.rig.path("kept");
        disk.mount();
        prepare(&spool);
        disk.unmount();
        disk.keep(&kept);
        disk.mount();
        let points = count(&spool);
        disk.unmount();
        let mut cuts = 0;
        for nth in (1..=points + 1).step_by(stride()) {
            disk.restore(&kept);
            boots.boot();
            disk.mount();
            let tally = play(&spool, nth, Act::Cut(Box::new(disk.switch())));
            if !tally.hit {
                disk.switch()();
            }
            cuts += 1;
            disk.unmount();
            boots.boot();
            disk.mount();
            // Nobody reads `done` before the machine is up again.
            let _done_may_be_there = std::fs::remove_file(spool.output.join("done"));
            heal(&spool, &format!("call {nth} of {points}"), &Listing::new());
            disk.unmount();
            disk.check();
        }
        println!("spool: power cut before {cuts} of {points} calls, lost 0, half 0");
        assert!(cuts > 10, "{cuts} cuts of {points} points");
    });
}

/// In memory if that is a file system, because only the disk inside the image matters.
pub(crate) fn image(spool: &Spool) -> PathBuf {
    static IMAGES: AtomicU32 = AtomicU32::new(0);
    let memory = PathBuf::from("/dev/shm");
    let number = IMAGES.fetch_add(1, Ordering::Relaxed);
    let file = format!("windlass-spool-{}-{number}.img", std::process::id());
    if memory.is_dir() { memory.join(file) } else { spool.rig.path(&format!("image{number}")) }
}

#[test]
fn where_any_call_fails_once_nothing_is_lost_handed_on_twice_or_left_half() {
    let points = {
        let spool = Spool::new();
        prepare(&spool);
        count(&spool)
    };
    let mut faults = 0;
    for nth in (1..=points).step_by(stride()) {
        for errno in [libc::EIO, libc::ENOSPC] {
            let spool = Spool::new();
            prepare(&spool);
            let tally = play(&spool, nth, Act::Fail { errno, from_then_on: false });
            faults += u64::from(tally.hit);
            let which = format!("call {nth} of {points}, error {errno}: {}", tally.stderr);
            heal(&spool, &which, &taken(&spool));
            spool.is_left_by_all();
        }
    }
    println!("spool: {faults} calls failed of {points}, lost 0, doubled 0, half 0");
    assert!(faults > 10, "{faults} faults of {points} points");
}

/// What is in the output is taken by those who read it, and must not come again.
fn taken(spool: &Spool) -> Listing {
    let mut taken = spool.outputs();
    taken.retain(|file, _| file.to_str().unwrap().ends_with(".ready"));
    taken.keys().for_each(|file| std::fs::remove_file(spool.output.join(file)).unwrap());
    let _done_may_be_there = std::fs::remove_file(spool.output.join("done"));
    taken
}
