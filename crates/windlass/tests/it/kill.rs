//! Real `kill -9` of servers, runs and producers in a loop, with a witness outside.
//!
//! Every accepted id is noted by its producer after exit 0; every start is noted by its job. At the end nothing
//! accepted is missing, nothing failed, and repeats are within the bound: what each killed one may have had in
//! flight, its slots and the stock of short jobs behind them.

use crate::rig::{Rig, lines_of};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::process::Stdio;
use windlass_core::scheduler::STOCK_PER_SLOT_MAX;

const SLOTS: usize = 4;

#[test]
fn nothing_accepted_is_lost() {
    let cycles: usize = std::env::var("WINDLASS_KILL_CYCLES").ok().and_then(|n| n.parse().ok()).unwrap_or(50);
    let rig = Rig::new();
    let (witness, mut bell) = (rig.path("witness"), rig.bell("bell"));
    let script = format!("echo $1 >> {}; echo > {}", witness.display(), bell.path);
    let config = format!(
        "[limits]\nslots = {SLOTS}\n[queue.q]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{id}}\"]\nattempts = 1\n"
    );
    std::fs::create_dir_all(rig.dir()).unwrap();
    std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
    let (mut accepted, mut kills) = (Vec::new(), 0);
    for cycle in 0..cycles {
        let mut push = |data: &[&str], more: &[&str]| {
            let told = rig.call(&[&["push", "q"], data, more].concat());
            accepted.extend(told.fine().lines().map(str::to_owned));
        };
        push(&["before", "the", "server"], if cycle % 2 == 0 { &[] } else { &["--durability", "os"] });
        // A producer that dies in the middle of its input: what it wrote may run, but nobody was promised it.
        let mut producer = rig.start(&["push", "q"], Stdio::piped());
        let mut stdin = producer.stdin();
        std::io::Write::write_all(&mut stdin, b"x\ny\n").unwrap();
        producer.kill();
        if cycle % 3 == 2 {
            // A run serves the directory, its own job rings, and it dies; the next server has what it took.
            let words = ["run", "-j", "4", "--", "sh", "-c", &script, "sh", "{id}"];
            let run = rig.start_fed(&words, "1\n2\n3\n4\n5\n6\n");
            bell.next();
            run.kill();
        } else {
            let server = rig.serve_again();
            push(&["with", "a", "server"], &[]);
            bell.next();
            server.process.signal(Signal::KILL);
            server.process.end();
        }
        kills += 1;
    }
    let server = rig.serve_again();
    rig.call(&["wait", "--drained"]).fine();
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!((&status["totals"]["failed"], &status["totals"]["ready"]), (&0.into(), &0.into()), "{status}");
    server.stop();
    let mut starts = BTreeMap::<String, usize>::new();
    for id in lines_of(&witness) {
        *starts.entry(id).or_default() += 1;
    }
    let lost = accepted.iter().filter(|id| !starts.contains_key(*id)).count();
    let repeats = starts.values().sum::<usize>() - starts.len();
    let bound = kills * SLOTS * (1 + STOCK_PER_SLOT_MAX as usize);
    println!("kill: cycles {cycles} accepted {} lost {lost} repeats {repeats} (bound {bound})", accepted.len());
    assert_eq!(lost, 0);
    assert!(repeats <= bound, "{repeats} repeats, at most {bound} were expected");
    assert_eq!(status["totals"]["succeeded"].as_u64(), Some(starts.len() as u64), "{status}");
}
