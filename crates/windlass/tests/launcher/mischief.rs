//! Kept workers that do everything wrong at once, drawn at random: they die in the middle, ignore TERM, say nothing,
//! answer twice, out of order or for jobs they never had. Every start is told once, and whoever does no harm is done.

use crate::rig::{Rig, argv, kept};
use std::time::Duration;
use windlass_core::job::JobId;
use windlass_core::policy::{Framing, Policy, Service};

/// A worker that has four jobs in hand and does with each what its data says.
const WORKER: &str = r#"
import json, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(3, b"in_flight 4\n")
kept = []
def answer(id):
    os.write(1, json.dumps({"id": id, "status": "ok"}).encode() + b"\n")
while line := sys.stdin.buffer.readline():
    job = json.loads(line)
    id, word = job["id"], job["data"]
    if word == "late":
        kept.append(id)
        continue
    if word in ("ok", "twice"):
        answer(id)
    if word == "twice":
        answer(id)
    if word == "stranger":
        answer("j-0000000001-1")
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "exit":
        os._exit(3)
    while kept and word != "silent":
        answer(kept.pop())
"#;

/// What may become of a job that does this; whoever is in the same hands may be interrupted, lost or blamed with it.
fn may_become(word: &str, told: &str) -> bool {
    let by_others = ["interrupted", "lost", "failed its worker replied to a job that it was not given"].contains(&told);
    by_others
        || match word {
            // One that is held back is answered with the next; the last ones have no next.
            "late" => ["ok", "timed_out"].contains(&told),
            // On a machine that has too much to do even they are late, and tried again.
            "ok" | "twice" => ["ok", "timed_out"].contains(&told),
            "silent" | "stranger" => told == "timed_out",
            // Their death is `lost`.
            _ => false,
        }
}

/// Starts these jobs together and hears of each of them exactly once.
fn round(rig: &mut Rig, policy: &Policy, words: &[&'static str]) -> Vec<String> {
    let data: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let ids = rig.start_many(policy, &data, 5);
    let heard = rig.hear_jobs(words.len());
    let told: Vec<u64> = heard.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(told, ids.iter().map(|id: &JobId| id.offset).collect::<Vec<_>>(), "each is told once");
    heard.iter().map(|(_, outcome)| crate::rig::brief(outcome)).collect()
}

#[test]
fn whatever_workers_do_every_start_is_told_once_and_the_harmless_are_done() {
    let mut rig = Rig::new(1);
    let mut policy = kept("", 2, |worker| worker.framing = Framing::Json);
    (policy.time_limit, policy.grace) = (Some(Duration::from_millis(400)), Duration::from_millis(50));
    if let Service::Worker(worker) = &mut policy.service {
        worker.command = argv(&["python3", "-c", WORKER]);
    }
    let harm = ["die", "exit", "silent", "twice", "stranger", "late"];
    let mut words: Vec<&'static str> = (0..60usize).map(|n| if n % 4 == 1 { harm[n / 4 % 6] } else { "ok" }).collect();
    // The harmful ones are each tried a few times, as an engine would; the others until they are done.
    for tries in 0.. {
        let told = round(&mut rig, &policy, &words);
        for (word, told) in words.iter().zip(&told) {
            assert!(may_become(word, told), "{word} became {told}");
        }
        let goes_on = |(word, told): &(&&'static str, &String)| *told != "ok" && (**word == "ok" || tries < 2);
        words = words.iter().zip(&told).filter(goes_on).map(|(word, _)| *word).collect();
        if words.is_empty() {
            break;
        }
        assert!(tries < 30, "{} harmless jobs are not done", words.len());
    }
    policy.time_limit = None;
    assert_eq!(round(&mut rig, &policy, &["ok"; 20]), ["ok"; 20], "afterwards everything is as before");
}
