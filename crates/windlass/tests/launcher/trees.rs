//! Nothing outlives its job: not what ignores signals, not what hides, not when launcher or server die.

use crate::rig::{Job, Rig, children, command, descriptors, lives, pids_from, shell, survivors};
use rustix::process::{Pid, Signal};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::time::Duration;
use windlass::runner::launcher::slots;
use windlass::runner::{Flight, Runner, Stop};
use windlass_core::outcome::Outcome;

/// As the kernel is, and without handles of processes.
const MEANS: [&str; 2] = ["", "pidfd"];

/// Daemons of every kind, four of them, and the main shell: each writes its pid into the fifo, then lives on.
fn daemons(rig: &Rig, name: &str, last: &str) -> (Job, PathBuf) {
    let fifo = rig.fifo(name);
    let daemon = rig.dir.root().join("daemon.sh");
    std::fs::write(&daemon, "trap '' TERM HUP INT; echo $$ >&9; exec 9>&-; sleep 1000; sleep 1000").unwrap();
    let script = format!(
        "exec 9> {fifo}
         sh {daemon} &
         setsid sh {daemon} &
         (setsid sh {daemon} &)
         (setsid sh -c 'sh {daemon} & exec 9>&-; wait' &)
         trap '' TERM
         echo $$ >&9
         exec 9>&-
         {last}",
        fifo = fifo.display(),
        daemon = daemon.display()
    );
    (shell(&script), fifo)
}

#[test]
fn a_time_limit_ends_the_whole_tree() {
    for means in MEANS {
        let mut rig = Rig::without(1, means);
        let mut limit = Duration::from_millis(700);
        // All must be there before the limit ends them, and how long that takes is the machine's affair.
        let (id, pids) = loop {
            let (job, fifo) = daemons(&rig, &format!("pids.{}", limit.as_millis()), "sleep 1000; sleep 1000");
            let mut both_ends = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
            let id = rig.start(job.limit(limit, Duration::from_millis(100)));
            let finished = rig.hear();
            assert_eq!(finished.outcomes, [(1, Outcome::TimedOut { limit })], "without {means}");
            // Nobody else is left to write to it: this line is the last.
            both_ends.write_all(b"0\n").unwrap();
            let lines = BufReader::new(both_ends).lines().map(|line| line.unwrap().parse::<i32>().unwrap());
            let pids: Vec<i32> = lines.take_while(|pid| *pid != 0).collect();
            if pids.len() == 5 {
                assert!(finished.finished.since(finished.started) >= limit + Duration::from_millis(100));
                break (id, pids);
            }
            assert!(limit < Duration::from_secs(60), "without {means}: {pids:?}");
            limit *= 4;
        };
        assert_eq!(pids.iter().filter(|pid| lives(**pid)).count(), 0, "without {means}");
        assert_eq!(survivors(id), Vec::<i32>::new());
    }
}

#[test]
fn what_a_job_leaves_behind_dies_with_it_and_holds_nothing_up() {
    for means in MEANS {
        let mut rig = Rig::without(1, means);
        let (job, fifo) = daemons(&rig, "pids", "cat; exit 0");
        let id = rig.start(job.data(b"kept"));
        let pids = pids_from(&fifo);
        let finished = rig.hear();
        assert_eq!(finished.outcomes, [(1, Outcome::Succeeded { message: "kept".into() })], "without {means}");
        assert_eq!(pids.iter().filter(|pid| lives(**pid)).count(), 0, "without {means}");
        assert_eq!(survivors(id), Vec::<i32>::new());
        assert_eq!(children(rig.launchers()[0]), "");
    }
}

#[test]
fn without_handles_of_its_children_a_launcher_hears_of_every_end_once() {
    let mut rig = Rig::without(1, "pidfd");
    // What ends at the same time shares a signal.
    let [gate, here] = ["gate", "here"].map(|name| rig.fifo(name));
    let both_ends = |path| std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let (shut, mut coming) = (both_ends(&gate), both_ends(&here));
    let codes: Vec<i32> = (0..40).map(|n| n % 7).collect();
    for code in &codes {
        let wait = format!("exec 8< {}; echo > {}; cat <&8; exit {code}", gate.display(), here.display());
        rig.start(shell(&wait).slots(64));
    }
    coming.read_exact(&mut [0; 40]).unwrap();
    drop(shut);
    let word = |outcome: &Outcome| match outcome {
        Outcome::Succeeded { .. } => 0,
        Outcome::Failed { error } => error.trim_start_matches("exit ").parse().unwrap_or(-1),
        _ => -2,
    };
    let mut ends: Vec<(u64, i32)> =
        codes.iter().map(|_| rig.hear()).map(|end| (end.flight.0, word(&end.outcomes[0].1))).collect();
    ends.sort();
    assert_eq!(ends, (1..).zip(codes).collect::<Vec<_>>());
}

/// A launcher that cannot adopt what jobs leave behind could not prove it dead.
#[test]
fn a_launcher_that_cannot_adopt_orphans_refuses_to_be_one() {
    let root = tempfile::tempdir().unwrap();
    let place = |name: &str| root.path().join(name);
    let mut launcher = std::process::Command::new(env!("CARGO_BIN_EXE_windlass"));
    launcher.arg("__launcher").args(["slots.0", "output", "control", "users"].map(place)).arg("subreaper");
    let ended = launcher.env("WINDLASS_TEST_WITHOUT", "subreaper").output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && said.starts_with("windlass launcher: cannot become a launcher: "), "{said}");
    assert!(!place("slots.0").exists(), "it has begun nothing");
}

/// Has two threads and a child in a session of its own, and says who it and the child are.
const TRACED: &str = "
import os, sys, threading, time
child = os.fork()
if child == 0:
    os.setsid()
    time.sleep(1000)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
open(sys.argv[1], 'w').write(f'{os.getpid()}\\n{child}\\n')
time.sleep(1000)
";

/// Traces the first thread or all others of these processes, says so, and never looks at what comes of it.
const TRACES: &str = "
import ctypes, os, sys, time
fifo, first, *pids = sys.argv[1:]
libc = ctypes.CDLL(None)
SEIZE = 0x4206
threads = [(pid, thread) for pid in pids for thread in os.listdir(f'/proc/{pid}/task')]
mine = [int(thread) for pid, thread in threads if (pid == thread) == (first == 'first')]
refused = [libc.ptrace(SEIZE, thread, None, None) for thread in mine]
open(fifo, 'w').write('refused\\n' if any(refused) or not refused else 'traces\\n')
time.sleep(1000)
";

/// Of what is traced only the tracer is told, and he takes it away first or never. It needs root, or a kernel that lets
/// processes of one user trace each other.
#[test]
fn a_job_that_another_traces_is_reported_when_it_is_dead_and_holds_nobody_up() {
    for (means, threads) in MEANS.into_iter().flat_map(|means| [(means, "first"), (means, "others")]) {
        let mut rig = Rig::without(1, means);
        let [here, traces] = ["here", "traces"].map(|name| rig.fifo(name));
        let traced = rig.start(command(&["python3", "-c", TRACED, here.to_str().unwrap()]).grace(Duration::ZERO));
        let pids = pids_from(&here);
        let [main, child] = [pids[0].to_string(), pids[1].to_string()];
        let argv = ["python3", "-c", TRACES, traces.to_str().unwrap(), threads, &main, &child];
        let tracer = rig.start(command(&argv));
        assert_eq!(std::fs::read_to_string(&traces).unwrap(), "traces\n", "it cannot trace its sibling here");
        rig.runner.stop(Flight(traced.offset), Stop::Cancel);
        let finished = rig.hear();
        assert_eq!((finished.flight.0, &finished.outcomes[0].1), (traced.offset, &Outcome::Cancelled), "{means:?}");
        assert_eq!(pids.iter().filter(|pid| lives(**pid)).count(), 0, "{means:?}");
        // What is left of it, for the tracer to look at, is in nobody's way.
        assert_eq!(rig.stdout(shell("setsid sleep 1000 & echo on")), b"on\n");
        rig.runner.stop(Flight(tracer.offset), Stop::Kill);
        assert_eq!(rig.hear().outcomes[0].1, Outcome::Interrupted);
        while !children(rig.launchers()[0]).is_empty() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn an_orphan_without_marker_or_group_goes_with_the_jobs_of_its_time() {
    let mut rig = Rig::new(1);
    let fifo = rig.fifo("pid");
    let hide = format!("(env -i setsid sh -c 'echo $$ > {}; sleep 1000; :' &)", fifo.display());
    rig.start(shell(&format!("{hide}; read x < {}", rig.fifo("go").display())));
    let hidden = pids_from(&fifo)[0];
    rig.run(command(&["true"]));
    assert!(lives(hidden), "it may belong to the job that still runs");
    std::fs::write(rig.dir.root().join("go"), "\n").unwrap();
    assert_eq!(rig.hear().outcomes[0].1.word(), "succeeded");
    assert!(!lives(hidden));
}

#[test]
fn a_running_jobs_daemon_is_left_alone_while_others_end() {
    let mut rig = Rig::new(1);
    let fifo = rig.fifo("pid");
    let daemon = format!("(setsid sh -c 'echo $$ > {}; sleep 1000; :' &)", fifo.display());
    rig.start(shell(&format!("{daemon}; read x < {}", rig.fifo("go").display())));
    let pid = pids_from(&fifo)[0];
    for _ in 0..5 {
        rig.run(command(&["true"]));
    }
    assert!(lives(pid));
    std::fs::write(rig.dir.root().join("go"), "\n").unwrap();
    assert_eq!(rig.hear().outcomes[0].1.word(), "succeeded");
    assert!(!lives(pid));
}

#[test]
fn when_the_server_goes_every_tree_goes_and_the_slots_tell() {
    let mut rig = Rig::new(2);
    let done = rig.start(command(&["true"]));
    rig.hear();
    let (one, first) = daemons(&rig, "one", "sleep 1000; sleep 1000");
    let (two, second) = daemons(&rig, "two", "sleep 1000; sleep 1000");
    let (one, two) = (rig.start(one), rig.start(two));
    let pids = [pids_from(&first), pids_from(&second)].concat();
    assert_eq!(pids.len(), 10);
    let launchers = rig.launchers();
    assert_eq!(launchers.len(), 2);
    // The runner goes as a dead server would: its ends of the sockets close.
    let Rig { runner, dir, heard, .. } = rig;
    drop(runner);
    assert!(heard.recv().is_err(), "nobody reports to a server that is gone");
    let evidence = slots::prove_dead(&dir.run()).unwrap();
    assert_eq!(pids.iter().chain(&launchers).filter(|pid| lives(**pid)).count(), 0);
    assert!(evidence.was_running(one, 7) && evidence.was_running(two, 7) && evidence.same_boot());
    assert!(evidence.begun(done, 7) && !evidence.was_running(done, 7));
    assert!(!evidence.begun(one, 6));
}

#[test]
fn a_killed_launcher_takes_its_trees_along_and_is_replaced() {
    let mut rig = Rig::new(1);
    let (job, fifo) = daemons(&rig, "pids", "sleep 1000; sleep 1000");
    let id = rig.start(job);
    let pids = pids_from(&fifo);
    let launcher = rig.launchers()[0];
    signal(launcher, Signal::KILL);
    assert_eq!(rig.hear().outcomes, [(1, Outcome::Lost)]);
    assert_eq!(pids.iter().filter(|pid| lives(**pid)).count(), 0);
    assert_eq!(survivors(id), Vec::<i32>::new());
    assert_eq!(rig.stdout(command(&["echo", "on"])), b"on\n");
    assert!(rig.launchers()[0] != launcher && rig.launchers().len() == 1);
}

fn signal(pid: i32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn signals_meant_for_the_server_leave_the_launcher_to_its_orders() {
    let mut rig = Rig::new(1);
    let fifo = rig.fifo("begun");
    rig.start(shell(&format!("echo > {}; read x < {}", fifo.display(), rig.fifo("go").display())));
    std::fs::read(&fifo).unwrap();
    let launcher = rig.launchers()[0];
    for meant_for_all in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::PIPE, Signal::USR1] {
        signal(launcher, meant_for_all);
    }
    std::fs::write(rig.dir.root().join("go"), "\n").unwrap();
    assert_eq!(rig.hear().outcomes[0].1.word(), "succeeded");
    assert_eq!(rig.launchers(), [launcher]);
}

#[test]
fn a_job_that_kills_its_launcher_is_lost_and_not_failed() {
    let mut rig = Rig::new(1);
    assert_eq!(rig.run(shell("kill -KILL $PPID; sleep 1000")).0, Outcome::Lost);
    assert_eq!(rig.stdout(command(&["echo", "on"])), b"on\n");
}

#[test]
fn a_thousand_quick_jobs_leave_no_trace() {
    let mut rig = Rig::new(2);
    // Both launchers must have served before their descriptors are counted: one that is only just starting has fewer.
    for _ in 0..100 {
        rig.start(command(&["/bin/true"]).slots(8));
    }
    for _ in 0..100 {
        rig.hear();
    }
    let launchers = rig.launchers();
    let before: Vec<usize> = launchers.iter().map(|pid| descriptors(*pid)).collect();
    for _ in 0..1000 {
        rig.start(command(&["/bin/true"]).data(b"x").slots(8));
    }
    let mut ended = BTreeSet::new();
    for _ in 0..1000 {
        let finished = rig.hear();
        assert_eq!(finished.outcomes, [(1, Outcome::Succeeded { message: String::new() })]);
        assert!(ended.insert(finished.flight.0), "start {} was reported twice", finished.flight.0);
    }
    let after: Vec<usize> = launchers.iter().map(|pid| descriptors(*pid)).collect();
    assert_eq!(after, before);
    for launcher in launchers {
        assert_eq!(children(launcher), "", "zombies are children too");
    }
    assert_eq!(std::fs::read_dir(rig.dir.output()).unwrap().count(), 0);
}

/// So many take a moment to die: a report that does not wait for them finds some alive.
#[test]
fn a_job_is_reported_when_the_last_of_its_tree_is_dead() {
    let mut rig = Rig::new(1);
    for round in 0..40 {
        let id = rig.start(shell("for i in $(seq 100); do setsid sleep 1000 & done; exit 0"));
        let finished = rig.hear();
        assert_eq!(finished.outcomes[0].1.word(), "succeeded");
        assert_eq!(survivors(id).len(), 0, "processes that outlived the report of round {round}");
    }
}
