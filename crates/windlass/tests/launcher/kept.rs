//! Kept workers with real programs: made on demand, chosen well, ended, made anew.

use crate::in_time::in_time;
use crate::payloads::lines;
use crate::rig::{Rig, children, kept, lives};
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use windlass::runner::{Flight, Runner, Stop};
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Framing, Policy};

/// Answers each line with the process that did it.
const WHO: &str = "while IFS= read -r line; do echo ok $$; done";

fn processes(heard: &[String]) -> Vec<String> {
    let mut seen: Vec<String> = heard.iter().map(|word| word.trim_start_matches("ok ").to_owned()).collect();
    seen.sort();
    seen.dedup();
    seen
}

#[test]
fn one_process_answers_line_after_line() {
    let mut rig = Rig::new(1);
    let policy = kept(WHO, 1, |_| {});
    let data = vec![&b"x"[..]; 500];
    let first = processes(&rig.all(&policy, &data));
    assert_eq!(first.len(), 1);
    assert_eq!(processes(&rig.all(&policy, &data)), first, "it is still the same process");
    let pid: i32 = first[0].parse().unwrap();
    drop(rig);
    assert!(!lives(pid), "it goes with its runner");
}

#[test]
fn any_bytes_pass_and_a_newline_needs_json() {
    let mut rig = Rig::new(1);
    let large = vec![b'y'; 1 << 20];
    let data: [&[u8]; 5] = [b"a\nb", b"\"'$(id)`", b"g\0h\xff", &large, b"{}"];
    let copy = rig.dir.root().join("copy");
    let tee = format!("while IFS= read -r line; do printf '%s\\n' \"$line\" >> {}; echo ok; done", copy.display());
    let heard = rig.all(&kept(&tee, 1, |_| {}), &[data[0], data[1], data[3], data[4]]);
    assert!(heard[0].starts_with("failed_for_good the data holds a newline"), "{}", heard[0]);
    assert_eq!(heard[1..], ["ok"; 3]);
    assert!(std::fs::read(&copy).unwrap() == [data[1], data[3], data[4], b""].join(&b"\n"[..]));
    std::fs::remove_file(&copy).unwrap();
    let json = Policy { pattern: "other".into(), ..kept(&tee, 1, |worker| worker.framing = Framing::Json) };
    assert_eq!(rig.all(&json, &data), ["ok"; 5]);
    let text = std::fs::read_to_string(&copy).unwrap();
    for (line, data) in text.lines().zip(data) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let bytes = match line["data"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => windlass::api::base64::decode(line["data64"].as_str().unwrap()).unwrap(),
        };
        assert!(bytes == data, "{} bytes", data.len());
    }
}

#[test]
fn no_job_waits_for_a_long_one_while_another_worker_is_free() {
    let mut rig = Rig::new(1);
    let gate = rig.fifo("gate");
    // The long job ends only when the gate is opened, and that is done when all the short ones have ended.
    let script =
        format!("while read line; do case $line in long) cat {} > /dev/null;; esac; echo ok $$; done", gate.display());
    let policy = kept(&script, 2, |_| {});
    rig.start_many(&policy, &[b"long"], 1);
    let short = vec![&b"short"[..]; 100];
    rig.start_many(&policy, &short, 10);
    let heard = rig.hear_jobs(100);
    assert!(heard.iter().all(|(offset, _)| *offset > 1), "the long one is still at it");
    std::fs::write(&gate, "open\n").unwrap();
    assert_eq!(rig.hear_jobs(1)[0].0, 1);
}

#[test]
fn several_are_in_flight_where_the_worker_says_so() {
    let mut rig = Rig::new(1);
    // It reads four lines before it answers any, last first: with one in flight it would wait for ever.
    let script = r#"echo in_flight 4 >&3
        while read a && read b && read c && read d; do
            for line in "$d" "$c" "$b" "$a"; do
                echo "$line" |
                sed 's/.*"id":"\([^"]*\)".*"data":"\([^"]*\)".*/{"id":"\1","status":"ok","message":"\2"}/'
            done
        done"#;
    let policy = kept(script, 1, |worker| (worker.framing, worker.in_flight) = (Framing::Json, 2));
    let policy = Policy { slots: 1, ..policy };
    let heard = rig.all(&policy, &[b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]);
    assert_eq!(heard, ["ok a", "ok b", "ok c", "ok d", "ok e", "ok f", "ok g", "ok h"]);
}

#[test]
fn who_asks_for_more_with_a_job_in_hand_gets_it_at_once() {
    let mut rig = Rig::new(1);
    // It has its first line when it says that it takes two, and answers neither before it has both.
    let script = r#"read a; echo in_flight 2 >&3; read b
        for line in "$a" "$b"; do
            echo "$line" | sed 's/.*"id":"\([^"]*\)".*/{"id":"\1","status":"ok","message":"both"}/'
        done"#;
    let policy = kept(script, 1, |worker| worker.framing = Framing::Json);
    let policy = Policy { slots: 1, ..policy };
    assert_eq!(rig.all(&policy, &[b"a", b"b"]), ["ok both", "ok both"]);
}

/// Jobs of different queues in one flight, the first of which is at work until a gate opens; that gate, and where
/// the worker notes what it was given.
fn at_work(rig: &mut Rig, in_flight: u32) -> (Flight, PathBuf, PathBuf) {
    let [begun, gate] = ["begun", "gate"].map(|name| rig.fifo(name));
    let given = rig.dir.root().join("given");
    let script = format!(
        "while read line; do
             echo $line >> {}
             case $line in long) echo > {}; cat {} > /dev/null;; esac
             echo ok
         done",
        given.display(),
        begun.display(),
        gate.display()
    );
    let policy = kept(&script, 1, |worker| worker.in_flight = in_flight);
    let flight = rig.start_fellows(&policy, &[b"long", b"a", b"b", b"c"]);
    std::fs::read(&begun).unwrap();
    (flight, gate, given)
}

#[test]
fn one_of_a_shared_flight_that_waits_is_cancelled_and_its_worker_never_hears_of_it() {
    let mut rig = Rig::new(1);
    let (flight, gate, given) = at_work(&mut rig, 1);
    rig.runner.cancel(flight, 2);
    assert_eq!(rig.hear_jobs(1), [(flight.0 + 2, Outcome::Cancelled)]);
    rig.runner.cancel(flight, 2);
    std::fs::write(&gate, "open\n").unwrap();
    let done = |position| (flight.0 + position, Outcome::Succeeded { message: String::new() });
    assert_eq!(rig.hear_jobs(3), [0, 1, 3].map(done), "the others go on, and a second word changes nothing");
    assert_eq!(std::fs::read_to_string(given).unwrap(), "long\na\nc\n", "by the same worker");
}

#[test]
fn one_of_a_shared_flight_that_is_at_work_is_cancelled_with_its_worker_and_no_other_is() {
    for in_flight in [1, 4] {
        let mut rig = Rig::new(1);
        let (flight, ..) = at_work(&mut rig, in_flight);
        rig.runner.cancel(flight, 0);
        let words: Vec<&str> = rig.hear_jobs(4).iter().map(|(_, outcome)| outcome.word()).collect();
        // What was in the pipe of the worker that had to go is given back, and costs nothing.
        let others = if in_flight == 1 { "succeeded" } else { "interrupted" };
        assert_eq!(words, ["cancelled", others, others, others]);
    }
}

#[test]
fn a_death_costs_the_job_in_hand_and_no_other() {
    let mut rig = Rig::new(1);
    let script = "while read line; do case $line in bad) kill -9 $$;; *) echo ok;; esac; done";
    let heard = rig.all(&kept(script, 1, |_| {}), &[b"a", b"bad", b"b", b"c"]);
    assert_eq!(heard, ["ok", "lost", "ok", "ok"]);
    let ahead = Policy { pattern: "ahead".into(), ..kept(script, 1, |worker| worker.in_flight = 64) };
    let mut data = vec![&b"a"[..]; 50];
    data.push(b"bad");
    data.extend([&b"b"[..]; 20]);
    let heard = rig.all(&ahead, &data);
    assert_eq!(heard.iter().filter(|word| *word == "lost").count(), 1);
    assert_eq!(heard[50], "lost");
    assert!(heard.iter().all(|word| ["lost", "ok", "interrupted"].contains(&word.as_str())));
}

#[test]
fn a_job_that_kills_its_worker_is_suspected_also_where_that_was_to_be_its_last() {
    let mut rig = Rig::new(1);
    let script = "while read line; do case $line in bad) kill -9 $$;; *) echo ok;; esac; done";
    let heard = rig.all(&kept(script, 1, |worker| worker.jobs = 1), &[b"a", b"bad", b"b"]);
    assert_eq!(heard, ["ok", "lost", "ok"]);
}

#[test]
fn workers_are_replaced_by_count_age_and_size_and_go_when_idle() {
    let mut rig = Rig::new(1);
    let data = vec![&b"x"[..]; 10];
    let by_count = rig.all(&kept(WHO, 1, |worker| worker.jobs = 3), &data);
    assert_eq!(processes(&by_count).len(), 4, "three jobs each");
    let script = "x=$(head -c 30000000 /dev/zero | tr '\\0' x); while read line; do echo ok $$; done";
    let large = Policy { pattern: "large".into(), ..kept(script, 1, |worker| worker.memory = 8 << 20) };
    assert_eq!(processes(&rig.all(&large, &data[..2])).len(), 2, "each is too large after its first job");
    let idle = Policy {
        pattern: "idle".into(),
        ..kept(WHO, 1, |worker| (worker.idle, worker.age) = (Duration::from_millis(20), Some(Duration::from_secs(999))))
    };
    let pid: i32 = processes(&rig.all(&idle, &data[..1]))[0].parse().unwrap();
    while lives(pid) {
        std::thread::yield_now();
    }
    let launcher = rig.launchers()[0];
    while children(launcher).split_whitespace().any(|child| child == pid.to_string()) {
        std::thread::yield_now();
    }
}

#[test]
fn a_worker_that_never_rests_is_replaced_by_age_too() {
    let mut rig = Rig::new(1);
    let data = vec![&b"x"[..]; 300];
    let busy = kept(WHO, 1, |worker| (worker.in_flight, worker.age) = (64, Some(Duration::from_millis(1))));
    assert!(processes(&rig.all(&busy, &data)).len() > 1, "one process did them all");
}

#[test]
fn the_memory_of_a_workers_children_is_its_own() {
    let mut rig = Rig::new(1);
    let held = rig.fifo("held");
    let script = format!(
        "(x=$(head -c 30000000 /dev/zero | tr '\\0' x); echo > {held}; sleep 1000; :) & read held < {held}
         while read line; do echo ok $$; done",
        held = held.display()
    );
    let large = kept(&script, 1, |worker| worker.memory = 8 << 20);
    assert_eq!(processes(&rig.all(&large, &[b"x", b"x"])).len(), 2, "each is too large after its first job");
}

#[test]
fn one_that_hangs_ignores_term_or_stops_itself_is_ended_for_its_job_alone() {
    let mut rig = Rig::new(1);
    let script = "trap '' TERM; while read line; do case $line in
        hang) while :; do sleep 1; done;; stop) kill -STOP $$;;
        fork) (setsid sleep 1000 &) ; kill -9 $$;; *) echo ok;; esac; done";
    in_time(&["ok", "timed_out", "ok", "timed_out", "ok", "lost", "ok"], |limit| {
        let mut policy = kept(script, 1, |_| {});
        (policy.time_limit, policy.grace) = (Some(limit), Duration::from_millis(50));
        rig.all(&policy, &[b"a", b"hang", b"b", b"stop", b"c", b"fork", b"d"])
    });
    // A heartbeat is a new time limit: without them six thirds would be too long.
    in_time(&["ok"], |limit| {
        let beat = (limit / 3).as_secs_f64();
        let beats = format!(
            "while read line; do for i in 1 2 3 4 5 6; do sleep {beat}; echo WATCHDOG=1 >&3; done; echo ok; done"
        );
        let beats = Policy { pattern: "beats".into(), time_limit: Some(limit), ..kept(&beats, 1, |_| {}) };
        rig.all(&beats, &[b"a"])
    });
}

#[test]
fn one_that_never_reads_its_line_is_ended_and_the_job_is_late() {
    let mut rig = Rig::new(1);
    let limit = Duration::from_millis(50);
    let policy = Policy { time_limit: Some(limit), ..kept("exec sleep 1000", 1, |_| {}) };
    assert_eq!(rig.all(&policy, &[b"a"]), ["timed_out"]);
}

#[test]
fn one_that_does_not_keep_to_the_protocol_is_ended() {
    let mut rig = Rig::new(1);
    let script = "while read line; do case $line in
        twice) echo ok; echo ok;; flood) head -c 6000000 /dev/zero;; *) echo ok;; esac; done";
    let heard = rig.all(&kept(script, 1, |_| {}), &[b"a", b"flood", b"b"]);
    assert_eq!(heard, ["ok", "failed its worker wrote a reply without an end", "ok"]);
    // The second answer may come before or after the next job is given; it charges nobody either way.
    let twice = Policy { pattern: "twice".into(), ..kept(script, 1, |_| {}) };
    let heard = rig.all(&twice, &[b"a", b"twice", b"b", b"c"]);
    assert_eq!(heard[..2], ["ok"; 2]);
    assert!(heard[2..].iter().all(|word| ["ok", "interrupted"].contains(&word.as_str())), "{heard:?}");
    let fills = "while read line; do head -c 300000 /dev/zero >&2; echo ok; done";
    assert_eq!(rig.all(&Policy { pattern: "fills".into(), ..kept(fills, 1, |_| {}) }, &[b"a", b"b"]), ["ok"; 2]);
}

#[test]
fn a_worker_that_cannot_start_is_told_and_costs_no_job() {
    let mut rig = Rig::new(1);
    let board = rig.board();
    let mut policy = kept("", 1, |_| {});
    if let windlass_core::policy::Service::Worker(worker) = &mut policy.service {
        worker.command.argv = vec![b"/no/such/program".to_vec()];
    }
    rig.start_many(&policy, &[b"a", b"b"], 9);
    let trouble = loop {
        match board.troubles().pop() {
            Some(trouble) => break trouble,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(trouble.0, "lines");
    assert!(
        trouble.1.starts_with("cannot run `/no/such/program`: it or its interpreter is not there"),
        "{}",
        trouble.1
    );
    rig.runner.stop(Flight(1), Stop::Withdraw);
    assert_eq!(rig.hear_jobs(2)[0].1, Outcome::Interrupted, "the jobs come back as they were");
    // Other rules for the same entry are tried at once, and the trouble is over with the first answer.
    assert_eq!(rig.all(&kept("while read line; do echo ok; done", 1, |_| {}), &[b"a"]), ["ok"]);
    assert_eq!(board.troubles(), []);
    let dies = Policy { pattern: "dies".into(), ..kept("echo no database >&2; exit 3", 1, |_| {}) };
    rig.start_many(&dies, &[b"a", b"b", b"c", b"d", b"e"], 9);
    let trouble = loop {
        match board.troubles().pop() {
            Some((_, trouble)) => break trouble,
            None => std::thread::yield_now(),
        }
    };
    assert!(trouble.starts_with("its worker ended with exit 3 before it answered a job: no database"), "{trouble}");
}

#[test]
fn a_cancelled_job_takes_its_worker_along_and_nobody_else() {
    let mut rig = Rig::new(1);
    let fifo = rig.fifo("begun");
    let script =
        format!("while read line; do case $line in long) echo > {}; sleep 1000;; esac; echo ok; done", fifo.display());
    let policy = kept(&script, 1, |_| {});
    rig.start_many(&policy, &[b"long"], 1);
    std::fs::read(&fifo).unwrap();
    rig.start_many(&policy, &[b"short"], 1);
    rig.runner.stop(Flight(1), Stop::Cancel);
    let heard = rig.hear_jobs(2);
    assert_eq!((&heard[0].1, heard[1].1.word()), (&Outcome::Cancelled, "succeeded"));
}

#[test]
fn progress_is_on_the_board_while_the_job_runs() {
    let mut rig = Rig::new(1);
    let board = rig.board();
    let gate = rig.fifo("gate");
    let script = format!(
        "while read line; do printf 'progress 3/9 half\\nphase sort\\n' >&3; cat {} > /dev/null; echo ok; done",
        gate.display()
    );
    let id = rig.start_many(&kept(&script, 1, |_| {}), &[b"a"], 1)[0];
    let said = loop {
        match board.of(id).filter(|said| said.phase.is_some()) {
            Some(said) => break said,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!((said.progress.as_deref(), said.phase.as_deref()), (Some("3/9 half"), Some("sort")));
    std::fs::write(&gate, "open\n").unwrap();
    assert_eq!(rig.hear_jobs(1)[0].1.word(), "succeeded");
    assert_eq!(board.of(id), None);
}

#[test]
fn the_workers_of_six_languages_speak_one_protocol() {
    let mut rig = Rig::new(1);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/workers");
    let compiled = rig.dir.root().join("worker");
    let source = format!("{folder}/worker.c");
    let built = std::process::Command::new("cc").arg("-o").arg(&compiled).arg(source).status().unwrap();
    assert!(built.success());
    for words in [
        &["sh", "worker.sh"][..],
        &["python3", "worker.py"],
        &["php", "worker.php"],
        &["ruby", "worker.rb"],
        &["node", "worker.js"],
        &[compiled.to_str().unwrap()],
    ] {
        let mut policy = Policy { pattern: words.join(" "), ..kept("", 1, |_| {}) };
        if let windlass_core::policy::Service::Worker(worker) = &mut policy.service {
            worker.command = crate::rig::argv(words);
            worker.command.directory = folder.into();
        }
        let heard = rig.all(&policy, &[b"one", b"fail no such page", b"two words", b"retry later", b"", b"--x"]);
        let expected = ["ok ONE", "failed_for_good no such page", "ok TWO WORDS", "retry_later later", "ok", "ok --X"];
        assert_eq!(heard, expected, "{words:?}");
        // A shell cannot hold a NUL.
        let raw: Vec<Vec<u8>> = lines().into_iter().filter(|line| words[0] != "sh" || !line.contains(&0)).collect();
        let capitals: Vec<Vec<u8>> = raw.iter().map(|line| line.to_ascii_uppercase()).collect();
        let data: Vec<&[u8]> = raw.iter().map(Vec::as_slice).collect();
        for (heard, capitals) in rig.all(&policy, &data).iter().zip(&capitals) {
            let expected = format!("ok {}", String::from_utf8_lossy(capitals).trim());
            assert!(expected.starts_with(heard), "{words:?}: {heard:?}, expected {expected:?}");
            assert_eq!(heard.len(), expected.trim_end().len().min(heard.len().max(1000)), "{words:?}: {heard:?}");
        }
        // And to the byte, which a message need not be.
        let mut command = std::process::Command::new(words[0]);
        command.args(&words[1..]).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut alone = command.spawn().unwrap();
        let mut stdin = alone.stdin.take().unwrap();
        let all: Vec<u8> = raw.iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
        let feeder = std::thread::spawn(move || stdin.write_all(&all).unwrap());
        let replies = alone.wait_with_output().unwrap().stdout;
        feeder.join().unwrap();
        let expected: Vec<u8> = capitals.iter().flat_map(|line| [b"ok ", &line[..], b"\n"].concat()).collect();
        assert!(replies == expected, "{words:?}: {:?}", String::from_utf8_lossy(&replies[..replies.len().min(999)]));
    }
}

#[test]
fn a_worker_of_any_language_is_a_short_program() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/workers");
    let mut sources = 0;
    for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let is_source = file.file_stem().is_some_and(|stem| stem == "worker");
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(!is_source || lines < 60, "{} has {lines} lines", file.display());
        sources += usize::from(is_source);
    }
    assert_eq!(sources, 6);
}
