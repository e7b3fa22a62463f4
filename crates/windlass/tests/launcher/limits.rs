//! Limits hold for whole trees, with control groups and without, and the cause of death is told in words.

use crate::rig::{Job, Rig, batch, children, kept, lives, pids_from, shell, survivors};
use std::time::Duration;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Limits, Policy};

/// With all that the kernel has, without control groups, and without anything that only Linux has.
const MEANS: [&str; 3] = ["", "cgroup", "cgroup,children,shares"];

/// A process that has so many MiB and keeps them: it waits to write what it has read.
fn holds(mebibytes: u32) -> String {
    format!("dd if=/dev/zero bs={mebibytes}M count=1 2>/dev/null | sleep 1000")
}

fn memory(mebibytes: u64) -> Limits {
    Limits { memory: mebibytes << 20, ..Limits::default() }
}

fn killed_for(rig: &mut Rig, job: Job) -> String {
    let (outcome, _) = rig.run(job);
    let Outcome::Failed { error } = outcome else { panic!("{outcome:?}") };
    assert_eq!(children(rig.launchers()[0]), "", "the whole tree is gone, zombies too");
    error
}

#[test]
fn a_process_that_takes_too_much_memory_is_killed() {
    for means in MEANS {
        let mut rig = Rig::without(1, means);
        let error = killed_for(&mut rig, shell(&holds(300)).limits(memory(64)));
        assert!(error.starts_with("killed: it had "), "{error}");
        assert!(error.ends_with(" MiB of memory, and its limit is 64 MiB (`memory`)"), "{error}");
    }
}

#[test]
fn memory_is_that_of_the_whole_tree_wherever_its_parts_hide() {
    for means in MEANS {
        let mut rig = Rig::without(1, means);
        let one = holds(40);
        let script = format!("({one}) & setsid sh -c '{one}' & (setsid sh -c '{one}' &); {one}");
        let error = killed_for(&mut rig, shell(&script).limits(memory(100)));
        assert!(error.ends_with("and its limit is 100 MiB (`memory`)"), "{error}");
        assert_eq!(rig.stdout(shell("echo on").limits(memory(100))), b"on\n");
    }
}

/// What is shared is counted once: each of these has all pages of the first, and none of its own.
#[test]
fn what_processes_share_is_not_counted_for_each_of_them() {
    let mut rig = Rig::new(1);
    let (begun, go) = (rig.fifo("begun"), rig.fifo("go"));
    // The shell holds a long string; its children are copies of it until they write to it.
    let script = format!(
        "text=$(head -c 20000000 /dev/zero | tr '\\0' x); for i in 1 2 3 4 5 6 7 8; do (read x < {go}) & done
         echo > {begun}; read x < {go}; echo ${{#text}}",
        go = go.display(),
        begun = begun.display()
    );
    let limits = memory(120);
    rig.start(shell(&script).limits(limits));
    std::fs::read(&begun).unwrap();
    // As long as it stands there it is looked at, and each look would find it too large if pages were counted twice.
    let Outcome::Failed { error } = rig.run(shell(&holds(300)).limits(limits)).0 else { panic!("it is too large") };
    assert!(error.contains("its limit is 120 MiB"), "{error}");
    let mut writer = std::fs::OpenOptions::new().write(true).open(&go).unwrap();
    std::io::Write::write_all(&mut writer, "\n".repeat(9).as_bytes()).unwrap();
    let finished = rig.hear();
    drop(writer);
    assert_eq!(finished.outcomes[0].1, Outcome::Succeeded { message: "20000000".into() });
}

#[test]
fn what_stays_within_its_limits_is_left_alone() {
    for means in MEANS {
        let mut rig = Rig::without(1, means);
        let limits = Limits { memory: 200 << 20, processes: 20, cpu: Duration::from_secs(60), output: 1000 };
        let script = "dd if=/dev/zero bs=30M count=1 2>/dev/null | tail -c 3 | wc -c; echo done";
        assert_eq!(rig.stdout(shell(script).limits(limits)), b"3\ndone\n");
    }
}

/// A net for what is taken at one stroke: the program is refused the memory and says so itself.
#[test]
fn a_process_cannot_ask_for_a_machine_full_of_memory() {
    let mut rig = Rig::new(1);
    let error = rig.error(shell("exec dd if=/dev/zero of=/dev/null bs=3G count=1").limits(memory(64)));
    assert!(error.starts_with("failed exit 1: dd: memory exhausted"), "{error}");
}

#[test]
fn a_tree_that_grows_too_many_processes_is_killed() {
    for means in MEANS {
        let mut rig = Rig::without(1, means);
        let limits = Limits { processes: 10, ..Limits::default() };
        for more in ["sleep 1000 &", "setsid sleep 1000 &", "(setsid sleep 1000 &)", "(env -i setsid sleep 1000 &)"] {
            let script = format!("for i in $(seq 30); do {more} done; sleep 1000");
            // Without a group a process that shed every mark is nobody's until its job has ended.
            if more.contains("env -i") && means.contains("cgroup") {
                continue;
            }
            let error = killed_for(&mut rig, shell(&script).limits(limits));
            assert!(error.starts_with("killed: it had "), "{error}");
            assert!(error.ends_with(" processes and threads, and its limit is 10 (`process_limit`)"), "{error}");
        }
    }
}

#[test]
fn processor_time_is_that_of_the_whole_tree() {
    for means in MEANS {
        let mut rig = Rig::without(1, means);
        let limits = Limits { cpu: Duration::from_millis(300), ..Limits::default() };
        for script in ["while :; do :; done", "for i in 1 2 3; do (while :; do :; done) & done; wait"] {
            let error = killed_for(&mut rig, shell(script).limits(limits).grace(Duration::from_millis(100)));
            assert!(error.starts_with("stopped: it used "), "{error}");
            assert!(error.ends_with(" of processor time, and its limit is 0.3s (`cpu_limit`)"), "{error}");
        }
        // Time that passes is not time that is used.
        let limits = Limits { cpu: Duration::from_millis(500), ..Limits::default() };
        assert_eq!(rig.stdout(shell("sleep 0.7; echo rested").limits(limits)), b"rested\n");
    }
}

#[test]
fn whoever_talks_too_much_is_ended() {
    let mut rig = Rig::new(1);
    let limits = Limits { output: 100_000, ..Limits::default() };
    for script in ["yes", "yes >&2", "yes & yes >&2", "trap '' TERM; while :; do echo on and on; done", "seq 30000"] {
        let error = killed_for(&mut rig, shell(script).limits(limits).grace(Duration::from_millis(100)));
        assert!(error.starts_with("stopped: it wrote "), "{script}: {error}");
        assert!(error.ends_with(" KiB, and its limit is 97.7 KiB (`output_limit`)"), "{script}: {error}");
    }
    assert_eq!(rig.run(shell("head -c 100000 /dev/zero").limits(limits)).1.output.stdout.total, 100_000);
}

#[test]
fn one_bad_line_of_a_batch_is_found_and_the_others_are_done() {
    let many = "for i in $(seq 30); do sleep 1000 & done; wait";
    for means in MEANS {
        let mut rig = Rig::without(1, means);
        for (bad, limits, why) in [
            (holds(200).as_str(), memory(64), "failed killed: it had "),
            (many, Limits { processes: 10, ..Limits::default() }, "failed killed: it had "),
            (
                "while :; do :; done",
                Limits { cpu: Duration::from_millis(300), ..Limits::default() },
                "failed stopped: ",
            ),
        ] {
            let script = format!("while read line; do case $line in bad) {bad};; esac; echo ok $line; done");
            let policy = Policy { limits, grace: Duration::from_millis(100), ..batch(&script, |_| {}) };
            let told = rig.all(&policy, &[b"one", b"two", b"bad", b"four", b"five"]);
            assert_eq!([&told[0], &told[1], &told[3], &told[4]], ["ok one", "ok two", "ok four", "ok five"], "{bad}");
            assert!(told[2].starts_with(why), "{bad}: {}", told[2]);
        }
    }
}

#[test]
fn a_worker_that_grows_too_many_processes_is_killed_and_its_job_is_told_why() {
    for means in MEANS {
        let mut rig = Rig::without(1, means);
        let many = "for i in $(seq 30); do sleep 1000 & done; wait";
        let script = format!("while read line; do case $line in bad) {many};; esac; echo ok $line; done");
        let limits = Limits { processes: 10, ..Limits::default() };
        let told = rig.all(&Policy { limits, ..kept(&script, 1, |_| {}) }, &[b"one", b"bad", b"three"]);
        assert_eq!([&told[0], &told[2]], ["ok one", "ok three"]);
        assert!(told[1].ends_with(" processes and threads, and its limit is 10 (`process_limit`)"), "{}", told[1]);
    }
}

#[test]
fn a_worker_that_grows_too_large_is_killed_and_its_job_is_told_why() {
    for means in MEANS {
        let mut rig = Rig::without(1, means);
        let script = format!("while read line; do case $line in bad) {};; esac; echo ok $line; done", holds(200));
        let mut policy = kept(&script, 1, |_| {});
        policy.limits = memory(64);
        let told = rig.all(&policy, &[b"one", b"bad", b"three"]);
        assert_eq!([&told[0], &told[2]], ["ok one", "ok three"]);
        assert!(told[1].starts_with("failed killed: it had "), "{}", told[1]);
        assert!(told[1].ends_with("its limit is 64 MiB (`memory`)"), "{}", told[1]);
    }
}

/// Whether the launcher has control groups on this machine; said, with what the kernel keeps in them, since the same
/// test passes with and without.
fn has_groups(rig: &Rig) -> bool {
    let Ok(base) = std::fs::read_to_string(rig.dir.run().join("cgroup.0")) else {
        eprintln!("there are no control groups here: trees are found and watched by other means");
        return false;
    };
    let handed = std::fs::read_to_string(format!("{base}/cgroup.subtree_control")).unwrap();
    eprintln!("control groups in {base}; the kernel itself keeps: {handed:?}");
    true
}

/// The group of a job knows what has neither its marker nor its process group, and the job's end is its end.
#[test]
fn with_a_control_group_nothing_can_hide_from_the_end_of_its_job() {
    let mut rig = Rig::new(1);
    let fifo = rig.fifo("pid");
    let go = rig.fifo("go");
    let stays = rig.start(shell(&format!("read x < {}", go.display())));
    let hide = format!("(env -i setsid sh -c 'echo $$ > {}; sleep 1000; :' &)", fifo.display());
    let wait = format!("read x < {}", rig.fifo("wait").display());
    rig.start(shell(&format!("{hide}; {wait}")).limits(memory(500)));
    let hidden = pids_from(&fifo)[0];
    assert!(lives(hidden));
    std::fs::write(rig.dir.root().join("wait"), "\n").unwrap();
    assert_eq!(rig.hear().outcomes[0].1.word(), "succeeded");
    // Where control groups cannot be made it goes with the last job that ran at its birth, which is another test's.
    if has_groups(&rig) {
        assert!(!lives(hidden), "although another job of its time still runs");
    }
    std::fs::write(&go, "\n").unwrap();
    assert_eq!(rig.hear().outcomes[0].1.word(), "succeeded");
    assert!(!lives(hidden));
    assert_eq!(survivors(stays), Vec::<i32>::new());
}

#[test]
fn a_killed_launcher_leaves_nothing_in_its_groups() {
    let mut rig = Rig::new(1);
    let fifo = rig.fifo("pid");
    let hide = format!("(env -i setsid sh -c 'echo $$ > {}; sleep 1000; :' &)", fifo.display());
    rig.start(shell(&format!("{hide}; sleep 1000")).limits(memory(500)));
    let hidden = pids_from(&fifo)[0];
    let has_groups = has_groups(&rig);
    let launcher = rustix::process::Pid::from_raw(rig.launchers()[0]).unwrap();
    rustix::process::kill_process(launcher, rustix::process::Signal::KILL).unwrap();
    assert_eq!(rig.hear().outcomes, [(1, Outcome::Lost)]);
    if has_groups {
        assert!(!lives(hidden));
    }
    assert_eq!(rig.stdout(shell("echo on").limits(memory(500))), b"on\n");
    if !has_groups {
        rustix::process::kill_process(rustix::process::Pid::from_raw(hidden).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
    }
}
