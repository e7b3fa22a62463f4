//! The control channel of a command: what it may say, and what follows from it.

use crate::in_time::in_time;
use crate::rig::{Rig, shell};
use std::time::Duration;
use windlass_core::outcome::Outcome;

fn emitted(rig: &mut Rig, script: &str) -> (Outcome, Vec<(String, Vec<u8>)>) {
    let (outcome, finished) = rig.run(shell(script));
    let emitted = finished.emitted.into_iter().map(|one| (one.queue.as_str().to_owned(), one.data)).collect();
    (outcome, emitted)
}

#[test]
fn the_last_words_in_the_control_file_count_when_the_job_ends_by_itself() {
    let mut rig = Rig::new(1);
    let said = |line: &str, end: &str| shell(&format!("echo '{line}' >> $WINDLASS_CONTROL; {end}"));
    let snoozed = |seconds| Outcome::Snoozed { after: Duration::from_secs(seconds) };
    for (line, end, expected) in [
        ("result 12 rows", "echo other", Outcome::Succeeded { message: "12 rows".into() }),
        ("again", "exit 0", snoozed(0)),
        ("again 2m", "exit 0", snoozed(120)),
        ("snooze 1h", "exit 0", snoozed(3600)),
        ("fail no such page", "exit 0", Outcome::FailedForGood { error: "no such page".into() }),
        ("fail no such page", "exit 3", Outcome::FailedForGood { error: "no such page".into() }),
        ("snooze 1h", "exit 3", Outcome::Failed { error: "exit 3".into() }),
        ("fail x", "kill -9 $$", Outcome::Crashed { error: "killed by signal 9".into() }),
        ("what is this", "exit 0", Outcome::Succeeded { message: String::new() }),
    ] {
        assert_eq!(rig.run(said(line, end)).0, expected, "{line}; {end}");
    }
    assert_eq!(rig.run(shell("true")).0, Outcome::Succeeded { message: String::new() }, "the file is empty again");
}

#[test]
fn more_time_is_given_to_whom_asks_for_it_in_time() {
    let mut rig = Rig::new(1);
    let mut run = |script: &str, limit| rig.run(shell(script).limit(limit, Duration::from_secs(5))).0.word();
    in_time(&["succeeded"], |limit| {
        let beyond = (limit + limit / 4).as_secs_f64();
        vec![run(&format!("echo extend 1h >> $WINDLASS_CONTROL; sleep {beyond}"), limit).to_owned()]
    });
    let short = Duration::from_millis(100);
    assert_eq!(run("sleep 1000", short), "timed_out");
    assert_eq!(run("echo extend 1ms >> $WINDLASS_CONTROL; sleep 1000", short), "timed_out");
}

#[test]
fn what_is_emitted_is_told_and_nonsense_fails_the_job() {
    let mut rig = Rig::new(1);
    let (outcome, jobs) = emitted(&mut rig, "printf 'a\\tone\\nb\\t\\t\\377\\n' >> $WINDLASS_EMIT");
    assert_eq!(outcome.word(), "succeeded");
    assert_eq!(jobs, [("a".into(), b"one".to_vec()), ("b".into(), b"\t\xff".to_vec())]);
    assert_eq!(emitted(&mut rig, "printf 'a\\tone\\n' >> $WINDLASS_EMIT; exit 1").1, []);
    for (script, part) in [
        ("printf 'a\\tone' >> $WINDLASS_EMIT", "not ended by a newline"),
        ("echo one >> $WINDLASS_EMIT", "names no queue"),
        ("printf -- '-a\\tone\\n' >> $WINDLASS_EMIT", "bad queue"),
        ("{ printf 'a\\t'; head -c 1048577 /dev/zero; echo; } >> $WINDLASS_EMIT", "1048577 bytes"),
        ("head -c 40000000 /dev/zero >> $WINDLASS_EMIT", "more than"),
    ] {
        match emitted(&mut rig, script) {
            (Outcome::Failed { error }, jobs) => assert!(error.contains(part) && jobs.is_empty(), "{error}"),
            (other, _) => panic!("{script}: {other:?}"),
        }
    }
    assert_eq!(emitted(&mut rig, "true").1, [], "nothing is left for the next job");
    assert_eq!(emitted(&mut rig, "rm $WINDLASS_EMIT $WINDLASS_CONTROL").0.word(), "succeeded");
    let (_, jobs) = emitted(&mut rig, "printf 'a\\tone\\n' >> $WINDLASS_EMIT");
    assert_eq!(jobs.len(), 1, "a file that somebody removed is there again");
}
