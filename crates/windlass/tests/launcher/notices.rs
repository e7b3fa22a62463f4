//! Kept workers that speak to their manager as services do: datagrams on `NOTIFY_SOCKET`, by programs that know
//! nothing of Windlass.

use crate::in_time::in_time;
use crate::rig::{Rig, argv, kept};
use std::time::Duration;
use windlass::runner::progress::Said;
use windlass_core::job::JobId;
use windlass_core::policy::{Policy, Service};

/// What a worker in Python begins with; `say` is all of the protocol.
const PYTHON: &str = "
import os, socket, sys
ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def say(words): ear.sendto(words.encode(), os.environ['NOTIFY_SOCKET'])
";

fn python(rest: &str) -> Policy {
    let mut policy = Policy { pattern: "python".into(), ..kept("", 1, |_| {}) };
    if let Service::Worker(worker) = &mut policy.service {
        worker.command = argv(&["/usr/bin/env", "python3", "-c", &format!("{PYTHON}{rest}")]);
    }
    policy
}

/// What a job has said, once it has said enough.
fn said(rig: &Rig, job: JobId, enough: impl Fn(&Said) -> bool) -> Said {
    loop {
        match rig.board().of(job).filter(&enough) {
            Some(said) => return said,
            None => std::thread::yield_now(),
        }
    }
}

#[test]
fn a_worker_is_heard_by_the_protocol_of_service_managers() {
    let mut rig = Rig::new(1);
    let gate = rig.fifo("gate");
    let script = format!(
        "
say('READY=1')
for line in sys.stdin:
    say('STATUS=sorting\\nUNKNOWN=1\\nprogress 3/9')
    open('{}').read()
    print('ok', flush=True)
",
        gate.display()
    );
    let id = rig.start_many(&python(&script), &[b"a"], 1)[0];
    let said = said(&rig, id, |said| said.progress.is_some());
    assert_eq!((said.phase.as_deref(), said.progress.as_deref()), (Some("sorting"), Some("3/9")));
    let control = rig.control().to_owned();
    let names = || std::fs::read_dir(&control).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let sockets = || names().filter(|name| name.ends_with(".notify")).count();
    assert_eq!(sockets(), 1);
    std::fs::write(&gate, "open\n").unwrap();
    assert_eq!(rig.hear_jobs(1)[0].1.word(), "succeeded");
    let other = Policy { time_limit: Some(Duration::from_secs(9)), ..python("sys.stdin.readline(); print('ok')") };
    assert_eq!(rig.all(&other, &[b"b"]), ["ok"]);
    while sockets() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_worker_is_told_how_often_to_say_that_it_lives() {
    let mut rig = Rig::new(1);
    let tells =
        "[print('ok', os.environ.get('WATCHDOG_USEC'), os.environ.get('WATCHDOG_PID'), flush=True) for _ in sys.stdin]";
    for (pattern, limit, expected) in [("limited", Some(9), "ok 9000000 None"), ("free", None, "ok None None")] {
        let limit = limit.map(Duration::from_secs);
        let mut policy = Policy { pattern: pattern.into(), time_limit: limit, ..python(tells) };
        if let Service::Worker(worker) = &mut policy.service {
            // Those of a manager of this server are not the worker's.
            let theirs = ["WATCHDOG_USEC", "WATCHDOG_PID"].map(|name| (name.as_bytes().to_vec(), b"1".to_vec()));
            worker.command.environment.extend(theirs);
        }
        assert_eq!(rig.all(&policy, &[b"x"]), [expected]);
    }
}

#[test]
fn systemd_notify_is_answered_and_what_it_asks_for_is_given() {
    let mut rig = Rig::new(1);
    // The program waits until its message was taken; nobody would ever tell it otherwise.
    let limited = |pattern: &str, limit: Duration, script: &str| {
        let mut policy = Policy { pattern: pattern.into(), ..kept(script, 1, |_| {}) };
        (policy.time_limit, policy.grace) = (Some(limit), Duration::from_millis(50));
        policy
    };
    in_time(&["ok", "timed_out", "ok"], |limit| {
        let script = format!(
            "while read line; do [ $line = late ] || systemd-notify EXTEND_TIMEOUT_USEC=3600000000
             sleep {}; echo ok; done",
            (limit + limit / 4).as_secs_f64()
        );
        rig.all(&limited("extends", limit, &script), &[b"in time", b"late", b"in time"])
    });
    // A heartbeat is a new time limit: without them three halves would be too long.
    in_time(&["ok"], |limit| {
        let script = format!(
            "while read line; do for i in 1 2 3; do sleep {}; systemd-notify WATCHDOG=1; done; echo ok; done",
            (limit / 2).as_secs_f64()
        );
        rig.all(&limited("beats", limit, &script), &[b"a"])
    });
}

#[test]
fn who_says_that_it_stops_gets_no_more_jobs_and_costs_none() {
    let mut rig = Rig::new(1);
    let script = "read line; systemd-notify STOPPING=1; echo ok $$; cat > /dev/null";
    let mut heard = rig.all(&kept(script, 1, |_| {}), &[b"a", b"b", b"c"]);
    assert!(heard.iter().all(|word| word.starts_with("ok ")), "{heard:?}");
    heard.dedup();
    assert_eq!(heard.len(), 3, "each took its leave after one");
    // One that stops before it has done anything is as fruitless as any other that ends then.
    let idle = Policy { pattern: "idle".into(), ..kept("systemd-notify STOPPING=1", 1, |_| {}) };
    rig.start_many(&idle, &[&b"a"[..]; 5], 1);
    let trouble = loop {
        match rig.board().troubles().pop() {
            Some((_, trouble)) => break trouble,
            None => std::thread::yield_now(),
        }
    };
    assert!(trouble.starts_with("its worker ended with exit 0 before it answered a job"), "{trouble}");
}

#[test]
fn a_flood_of_words_holds_up_nobody_else() {
    let mut rig = Rig::new(1);
    let gate = rig.fifo("gate");
    let floods = format!(
        "
import threading
def shout():
    while True: say('WATCHDOG=1\\nSTATUS=' + 4000 * 'x')
def babble():
    while True: os.write(3, b'alive\\n' * 10000)
for line in sys.stdin:
    threading.Thread(target=shout, daemon=True).start()
    threading.Thread(target=babble, daemon=True).start()
    open('{}').read()
    print('ok', flush=True)
",
        gate.display()
    );
    let id = rig.start_many(&python(&floods), &[b"a"], 1)[0];
    said(&rig, id, |said| said.phase.is_some());
    let heard = rig.all(&kept("while read line; do echo ok; done", 1, |_| {}), &[&b"x"[..]; 200]);
    assert_eq!(heard, ["ok"; 200]);
    std::fs::write(&gate, "open\n").unwrap();
    assert_eq!(rig.hear_jobs(1)[0].1.word(), "succeeded");
}
